"""`fedaudit run --engine flower`: run an experiment on Flower's simulation or a deployment.

In a deployment, the SuperLink starts the server's process and the SuperNodes start those of the
clients. A temporary app of two modules leads both here. Clients get everything from messages except
their number, which is `partition-id`.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit import foreign
from fedaudit.errors import FedauditError, TraceError, UsageError
from fedaudit.files import Unreadable, read_text, read_toml
from fedaudit.progress import no_progress
from fedaudit.recorders.flower import QUIET, require
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared, client_count
from fedaudit.setup.toml import to_toml
from fedaudit.study.remote import train_one
from fedaudit.study.run import _recorded, simulate

if TYPE_CHECKING:
    from fedaudit.progress import Progress
    from fedaudit.setup.config import Config
    from fedaudit.study.run import Engine

TIMEOUT = 600.0
"""Seconds after which a silent client counts as gone in a round."""
CONFIG, OUT, WAIT = "fedaudit-config", "fedaudit-out", "fedaudit-timeout"


def choose_engine(
    engine: str,
    superlink: str | None,
    timeout: float = TIMEOUT,
    *,
    root_certificates: Path | None = None,
    insecure: bool = False,
) -> Engine | None:
    """The engine of that name; None for fedaudit's own.

    A SuperLink is contacted over TLS with `root_certificates` (PEM). Without TLS only on this
    machine, or with `insecure`.
    """
    if superlink is None and (root_certificates is not None or insecure):
        raise UsageError(
            "the options for a SuperLink need its address",
            expected="`superlink` beside `root_certificates` or `insecure`",
            got="no address",
            remedy="leave them out, or give `engine=flower` and `superlink=ADDRESS`",
        )
    if engine not in ("local", "flower") or (superlink is not None and engine != "flower"):
        raise UsageError(
            "no such engine",
            expected="`engine=local` or `engine=flower`; `superlink` with flower only",
            got=f"`engine={engine}`" + (f" with `superlink={superlink}`" if superlink else ""),
            remedy="`engine=flower`",
        )
    if engine == "local":
        return None
    require()
    if superlink is None:
        return Simulation(timeout)
    trusted = _trusted(superlink, root_certificates, insecure)
    return Deployment(superlink, timeout, root_certificates=trusted)


def _trusted(address: str, root_certificates: Path | None, insecure: bool) -> Path | None:
    """The certificates to trust, or None if messages may travel in the clear."""
    if root_certificates is not None and insecure:
        raise UsageError(
            "a connection is either secured or not",
            expected="`root_certificates` or `insecure`",
            got="both",
            remedy="leave `insecure` out",
        )
    if root_certificates is None:
        if insecure or is_loopback(address):
            return None
        raise UsageError(
            f"models would travel to {address} in the clear",
            expected="`root_certificates`, the PEM file of the SuperLink",
            got="no certificates, and an address on another machine",
            remedy="give the file; use `insecure=True` only inside a tunnel or a closed network",
        )
    try:
        text = read_text(root_certificates, encoding="ascii")
    except Unreadable as error:
        text, why = "", error.got or "not text"
    else:
        why = "no certificate in it"
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise UsageError(
            f"{root_certificates} does not hold root certificates",
            expected="a PEM file: -----BEGIN CERTIFICATE-----",
            got=why,
            remedy="give the same file as to flower-supernode --root-certificates",
        )
    return root_certificates.resolve()


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is on this machine."""
    host = address.rpartition(":")[0].strip("[]") or address
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Simulation:
    """Train on Flower's simulation runtime."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout

    def __call__(self, prepared: Prepared, path: Path, progress: Progress) -> None:
        from fedaudit.recorders.flower import engine

        def play(grid: Any, _: Mapping[str, Any]) -> None:
            record(grid, prepared, path, progress, self.timeout)

        engine.simulate(play, train_one, clients_of(prepared), os.cpu_count() or 1)


def clients_of(prepared: Prepared) -> int:
    return client_count(prepared.config, prepared.train)


def record(
    grid: Any, given: Config | Prepared, path: Path, progress: Progress, timeout: float
) -> None:
    """Run the federation of a config on a grid, and record it."""
    from fedaudit.recorders.flower.engine import Fleet

    prepared = Prepared.of(given)
    experiment = to_toml({k: v for k, v in prepared.config.raw.items() if k != "audits"})
    fleet = Fleet(grid, clients_of(prepared), experiment, timeout)
    simulate(prepared, path, progress, fleet.train)


# -- a deployment ---------------------------------------------------------------------------------


def client_app() -> Any:
    """The app that a SuperNode runs."""
    from fedaudit.recorders.flower import engine

    return engine.client_app(train_one)


def server_app() -> Any:
    """The app that the SuperLink runs; the run config holds the path of the experiment."""
    from fedaudit.recorders.flower import engine

    def play(grid: Any, run_config: Mapping[str, Any]) -> None:
        path = Path(str(run_config[OUT]))
        failure = path / "flower-failed.txt"
        failure.unlink(missing_ok=True)
        try:
            raw = read_toml(str(run_config[CONFIG]))
            config = load({k: v for k, v in raw.items() if k != "audits"})
            record(grid, config, path, no_progress, float(str(run_config[WAIT])))
        except Exception as error:
            # for the process that waits: a message, not a traceback
            own = isinstance(error, FedauditError)
            message = str(error) if own else foreign.describe_error(error, package=True)
            failure.write_text(message, encoding="utf-8")
            raise

    return engine.server_app(play, [])


def _app(config: Mapping[str, Any]) -> str:
    """The pyproject.toml of the temporary app, with its run config."""
    return to_toml(
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": "fedaudit-engine",
                "version": "1.0.0",
                "description": "An experiment of fedaudit",
                "license": "Apache-2.0",
                "dependencies": [],
            },
            "tool": {
                "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
                "flwr": {
                    "app": {
                        "publisher": "fedaudit",
                        "components": {
                            "serverapp": "engine.server:app",
                            "clientapp": "engine.client:app",
                        },
                        "config": config,
                    }
                },
            },
        }
    )


def _connection(address: str, root_certificates: Path | None) -> str:
    """Flower's config.toml with the SuperLink as its default connection."""
    secured: dict[str, Any] = (
        {"insecure": True}
        if root_certificates is None
        else {"root-certificates": str(root_certificates)}
    )
    return to_toml({"superlink": {"default": "here", "here": {"address": address, **secured}}})


class Deployment:
    """Train on the SuperNodes of a running SuperLink on this machine."""

    def __init__(
        self, address: str, timeout: float = TIMEOUT, *, root_certificates: Path | None = None
    ) -> None:
        self.address, self.timeout = address, timeout
        self.root_certificates = root_certificates

    def __call__(self, prepared: Prepared, path: Path, progress: Progress) -> None:
        total = prepared.config.federation.rounds
        recorded, complete = _recorded(path)
        if complete and recorded == total:
            progress("train", recorded, recorded, "already recorded")
            return
        progress("train", recorded, total, f"at {self.address}")
        with tempfile.TemporaryDirectory() as folder:
            self._run(Path(folder), path)
        failure = path / "flower-failed.txt"
        if failure.exists():
            why = read_text(failure).strip()
            failure.unlink()
            raise TraceError(f"the deployment stopped: {why}")
        recorded, complete = _recorded(path)
        if not complete:
            raise TraceError(
                "the deployment did not finish",
                expected=f"{total} rounds",
                got=f"{recorded}",
                remedy="see the SuperLink's log; the same command continues from there",
            )

    def _run(self, folder: Path, path: Path) -> None:
        """Submit the app to the SuperLink and wait for its end."""
        app, home = folder / "app", folder / "home"
        (app / "engine").mkdir(parents=True)
        home.mkdir()
        settings = {
            CONFIG: str((path / "truth" / "config.toml").resolve()),
            OUT: str(path.resolve()),
            WAIT: self.timeout,
        }
        (app / "pyproject.toml").write_text(_app(settings), encoding="utf-8")
        (app / "engine" / "__init__.py").write_text("", encoding="utf-8")
        for part in ("server", "client"):
            code = (
                f"from fedaudit.recorders.flower.runtime import {part}_app\n\napp = {part}_app()\n"
            )
            (app / "engine" / f"{part}.py").write_text(code, encoding="utf-8")
        text = _connection(self.address, self.root_certificates)
        (home / "config.toml").write_text(text, encoding="utf-8")
        flwr = Path(sys.executable).with_name("flwr")
        done = subprocess.run(
            [str(flwr), "run", str(app), "here", "--stream"],
            env={**os.environ, **QUIET, "FLWR_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            plain = (line.strip("╭╮╰╯│─ ") for line in done.stdout.splitlines())
            last = [line for line in plain if line]
            raise TraceError(
                f"the SuperLink at {self.address} did not accept the run",
                expected="a running SuperLink",
                got=last[-1] if last else f"exit code {done.returncode}",
                remedy="flower-superlink --insecure --host 127.0.0.1 --port PORT"
                if self.root_certificates is None
                else "check that the certificates are valid for this address",
            )
