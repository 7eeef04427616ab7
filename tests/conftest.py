"""What tests of every room may ask for."""

import contextlib
import io
import secrets
import sys
from typing import NamedTuple

import pytest


class Done(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def _same_seed_for_all():
    """Configs without a seed get the same one: what a test measures does not depend on the day."""
    from fedaudit.experiment import seeds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "draw", lambda: 1)
        yield


@pytest.fixture
def drawn_seeds(monkeypatch):
    """Seeds are drawn, as they are outside of tests."""
    from fedaudit.experiment import seeds

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
