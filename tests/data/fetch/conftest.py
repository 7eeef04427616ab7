"""Small packages replace the real ones; tests of the real ones are marked `network`."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.fetch import SOURCES, Download, Source, sources


@pytest.fixture
def tar_bytes() -> Callable[..., bytes]:
    """tar_bytes(members, mode="w:gz"): an archive with these files."""

    def packed(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for name, raw in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
        return out.getvalue()

    return packed


@pytest.fixture
def digits() -> dict[str, np.ndarray]:
    """30 training and 8 test images of noise, 28 x 28 bytes."""
    rng = np.random.default_rng(0)
    return {"train": rng.integers(0, 256, (30, 28, 28)), "test": rng.integers(0, 256, (8, 28, 28))}


@pytest.fixture
def idx_members(
    digits: dict[str, np.ndarray], idx_bytes: Callable[[np.ndarray], bytes]
) -> dict[str, bytes]:
    """The four files of MNIST, with these images."""
    return {
        "train-images-idx3-ubyte": idx_bytes(digits["train"]),
        "train-labels-idx1-ubyte": idx_bytes(np.arange(30) % 10),
        "t10k-images-idx3-ubyte": idx_bytes(digits["test"]),
        "t10k-labels-idx1-ubyte": idx_bytes(np.arange(8) % 10),
    }


@pytest.fixture
def mnist_package(idx_members: dict[str, bytes], tar_bytes: Callable[..., bytes]) -> bytes:
    """An npm package laid out like the one of MNIST."""
    return tar_bytes(
        {f"package/data/{n}": raw for n, raw in idx_members.items()}
        | {"package/index.js": b"throw 1"}
    )


@pytest.fixture
def speeches(tar_bytes: Callable[..., bytes]) -> bytes:
    """An npm package laid out like the one of the addresses, with three of them."""
    members = {}
    for year in range(1790, 1793):
        who = "George Washington" if year < 1792 else "John Adams"
        speech = {"year": year, "name": who, "party": "none", "text": f"text\u2028of {year}"}
        members[f"package/data/{year}_x_n.json"] = json.dumps(speech).encode()
        members[f"package/data/{year}_x_n.txt"] = b"not this one"
    return tar_bytes(members)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    """pinned(name, package, **change): the source `name` with the checksum of `package`."""

    def pin(name: str, package: bytes, **change: object) -> Source:
        checksum = hashlib.sha256(package).hexdigest()
        source = replace(SOURCES[name], sha256=checksum, **change)  # type: ignore[arg-type]
        monkeypatch.setattr(sources, "SOURCES", {**SOURCES, name: source})
        return source

    return pin


@pytest.fixture
def handing() -> Callable[[bytes, str], Download]:
    """handing(package, filename): a download function that returns this package."""

    def hand(package: bytes, filename: str) -> Download:
        def download(source: Source, folder: Path) -> Path:
            path = folder / filename
            path.write_bytes(package)
            return path

        return download

    return hand


@pytest.fixture
def listing() -> Callable[[Path], list[str]]:
    """listing(folder): all files below it."""
    return lambda folder: sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
