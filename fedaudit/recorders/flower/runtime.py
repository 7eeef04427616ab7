"""`fedaudit run --engine flower`: run an experiment on Flower's simulation or a deployment.

In a deployment, the SuperLink starts the server's process and the SuperNodes start those of the
clients. A temporary app of two modules leads both here. Clients get everything from messages except
their number, which is `partition-id`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.errors import FedauditError, TraceError, UsageError
from fedaudit.files import Unreadable, read_text, read_toml
from fedaudit.progress import no_progress
from fedaudit.randomness import Seed
from fedaudit.recorders.flower import QUIET, require
from fedaudit.setup.config import load
from fedaudit.setup.prepare import client_count, load_data
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
            expected="--superlink ADDRESS beside --root-certificates or --insecure",
            got="no address",
            remedy="leave them out, or give --engine flower --superlink ADDRESS",
        )
    if engine not in ("local", "flower") or (superlink is not None and engine != "flower"):
        raise UsageError(
            "no such engine",
            expected="--engine local, --engine flower, or --engine flower --superlink ADDRESS",
            got=f"--engine {engine}" + (f" --superlink {superlink}" if superlink else ""),
            remedy="--engine flower",
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
            expected="--root-certificates FILE or --insecure",
            got="both",
            remedy="leave --insecure out",
        )
    if root_certificates is None:
        if insecure or is_loopback(address):
            return None
        raise UsageError(
            f"models would travel to {address} in the clear",
            expected="--root-certificates FILE, the PEM file of the SuperLink",
            got="no certificates, and an address on another machine",
            remedy="give the file; use --insecure only inside a tunnel or a closed network",
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

    def __call__(self, config: Config, path: Path, progress: Progress) -> None:
        from fedaudit.recorders.flower import engine

        def play(grid: Any, _: Mapping[str, Any]) -> None:
            record(grid, config, path, progress, self.timeout)

        engine.simulate(play, train_one, clients_of(config), os.cpu_count() or 1)


def clients_of(config: Config) -> int:
    return client_count(config, load_data(config, Seed(config.seed))[0])


def record(grid: Any, config: Config, path: Path, progress: Progress, timeout: float) -> None:
    """Run the federation of a config on a grid, and record it."""
    from fedaudit.recorders.flower.engine import Fleet

    experiment = to_toml({k: v for k, v in config.raw.items() if k != "audits"})
    fleet = Fleet(grid, clients_of(config), experiment, timeout)
    simulate(config, path, progress, fleet.train)


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
            message = str(error) if own else f"{type(error).__name__}: {error}"
            failure.write_text(message, encoding="utf-8")
            raise

    return engine.server_app(play, [])


APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedaudit-engine"
version = "1.0.0"
description = "An experiment of fedaudit"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedaudit"

[tool.flwr.app.components]
serverapp = "engine.server:app"
clientapp = "engine.client:app"

[tool.flwr.app.config]
{config}
"""


class Deployment:
    """Train on the SuperNodes of a running SuperLink on this machine."""

    def __init__(
        self, address: str, timeout: float = TIMEOUT, *, root_certificates: Path | None = None
    ) -> None:
        self.address, self.timeout = address, timeout
        self.root_certificates = root_certificates

    def __call__(self, config: Config, path: Path, progress: Progress) -> None:
        recorded, complete = _recorded(path)
        if complete and recorded == config.federation.rounds:
            progress("train", recorded, recorded, "already recorded")
            return
        progress("train", recorded, config.federation.rounds, f"at {self.address}")
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
                expected=f"{config.federation.rounds} rounds",
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
        lines = "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items())
        (app / "pyproject.toml").write_text(APP.format(config=lines), encoding="utf-8")
        (app / "engine" / "__init__.py").write_text("", encoding="utf-8")
        for part in ("server", "client"):
            code = (
                f"from fedaudit.recorders.flower.runtime import {part}_app\n\napp = {part}_app()\n"
            )
            (app / "engine" / f"{part}.py").write_text(code, encoding="utf-8")
        secured = (
            "insecure = true"
            if self.root_certificates is None
            else f"root-certificates = {json.dumps(str(self.root_certificates))}"
        )
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            f"{secured}\n",
            encoding="utf-8",
        )
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
