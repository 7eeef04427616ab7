"""Read bytes or text of a data file; names without `.gz`."""

from __future__ import annotations

from pathlib import Path

from fedaudit.errors import DataError
from fedaudit.files import Unreadable, read_data


def plain_suffix(path: Path) -> str:
    """The file ending in lower case, without `.gz`."""
    return _plain(path).suffix.lower()


def plain_stem(path: Path) -> str:
    """The file name without folder, `.gz` and ending."""
    return _plain(path).stem or str(path)


def _plain(path: Path) -> Path:
    return Path(path.name[:-3] if _is_gzip(path) else path.name)


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def raw_bytes(path: Path) -> bytes:
    """All bytes of a file, unpacked if it ends in .gz."""
    try:
        return read_data(path)
    except Unreadable as error:
        raise error.as_error(DataError) from None


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
