"""What tests of every room may ask for, and what keeps them apart.

A test must end alike on a busy machine, alone, and after any other in the same worker: each begins
with the same global generators, property tests draw the same examples every time, and none is told
off for being slow.
"""

import contextlib
import io
import random
import secrets
import sys
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


def _seed_global_generators():
    random.seed(0)
    if "torch" in sys.modules:  # a fresh one begins with a constant
        sys.modules["torch"].manual_seed(0)


def pytest_collectstart():
    """Before a file is imported: what it builds does not depend on the files before it."""
    _seed_global_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Before the fixtures of a test, those of its file included."""
    _seed_global_generators()


class Done(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def _same_seed_for_all():
    """Configs without a seed get the same one: what a test measures does not depend on the day."""
    from fedaudit.setup import seeds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "draw", lambda: 1)
        yield


@pytest.fixture
def drawn_seeds(monkeypatch):
    """Seeds are drawn, as they are outside of tests."""
    from fedaudit.setup import seeds

    monkeypatch.setattr(seeds, "draw", lambda: secrets.randbits(seeds.BITS))


@pytest.fixture
def in_process(monkeypatch):
    """`fedaudit ARGUMENTS` in this process and in the current folder."""
    from fedaudit import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedaudit", *map(str, arguments)])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
        return Done(code, out.getvalue(), err.getvalue())

    return run
