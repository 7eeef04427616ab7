"""The bytes and the text of one file, and the name without `.gz`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from fedaudit.errors import DataError


def plain_suffix(path: Path) -> str:
    """The file ending in lower case, that before `.gz` where there is one."""
    return _plain(path).suffix.lower()


def plain_stem(path: Path) -> str:
    """The file name without folder, `.gz` and ending."""
    return _plain(path).stem or str(path)


def _plain(path: Path) -> Path:
    return Path(path.name[:-3] if _is_gzip(path) else path.name)


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def raw_bytes(path: Path) -> bytes:
    """All bytes of a file, unpacked when it ends in .gz."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read",
            expected="a readable file",
            got=error.strerror or str(error),
            remedy="check the path and the permissions",
        ) from None
    if _is_gzip(path):
        try:
            return gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is not a whole gzip file",
                expected="a complete .gz file",
                got=str(error),
                remedy="copy or download it again",
            ) from None
    return raw


def utf8_text(path: Path) -> str:
    """All text of a UTF-8 file, without a byte order mark."""
    raw = raw_bytes(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: this is not UTF-8 text",
            expected="a UTF-8 file",
            got=f"byte 0x{raw[error.start]:02x} at position {error.start}",
            remedy="save the file as UTF-8 (in a spreadsheet: CSV UTF-8)",
        ) from None
