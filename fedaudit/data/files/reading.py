"""Choose the reader for a path and call it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedaudit.data.dataset import Dataset
from fedaudit.data.files.arrays import idx_images, read_idx, read_npz
from fedaudit.data.files.encode import Encoding, Missing, encode_table
from fedaudit.data.files.images import holds_images, read_images
from fedaudit.data.files.jsonl import read_jsonl
from fedaudit.data.files.raw import plain_stem, plain_suffix
from fedaudit.data.files.sites import read_sites, tables_in
from fedaudit.data.files.table import TABLES, FileTable, read_table
from fedaudit.errors import ConfigError, DataError, nearest
from fedaudit.files import is_text
from fedaudit.settings import require

Format = Literal["table", "npz", "idx", "images", "jsonl"]


def read(
    path: str | Path,
    *,
    label: str | None = None,
    client: str | None = None,
    organisation: str | None = None,
    person: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    decimal: Literal[".", ","] = ".",
    text: str = "text",
    labels: str | Path | None = None,
    greyscale: bool | None = None,
    size: tuple[int, int] | None = None,
    name: str | None = None,
    one_class: bool = False,
    files: str | None = None,
    header: bool | None = None,
) -> Dataset:
    """Read the data at `path`; the file type decides how.

    Tables: `label`, `client`, `organisation`, `person` are column names; `features` are the
    columns to use (default: all others except `ignore`). Numeric columns stay; text columns and
    those in `categorical` become one column per category, in sorted order. `decimal` is the decimal
    mark. `missing` treats an empty field, NA, NaN, null or ?: "refuse" (with the count per column),
    "drop" the record, "mean" (of the column; a category of its own in text columns), or "category"
    (like "mean", plus a column that marks missing values). `one_class` allows records of a single
    class, for a single client's file. `header`: whether the first line names the columns.

    A folder of tables, or of folders of them, is one table with the columns "(file)" and "(folder)"
    that name the place of a record; `files` is a pattern of the names to read.

    NPZ and JSONL: these names denote arrays or keys; `text` is the key of the text.
    IDX: `labels` is the labels file, if its name is unusual.
    Images: `greyscale` and `size` (height, width) convert; by default grey images stay grey.
    """
    place = Path(path)
    kind = file_format(place)
    require(Missing, ConfigError, missing=missing)
    title = name or plain_stem(place)
    owners = {"client": client, "organisation": organisation, "person": person}
    if kind == "table":
        encoding = Encoding(
            features=features, ignore=ignore, categorical=categorical, missing=missing,
            decimal=decimal, one_class=one_class,
        )  # fmt: skip
        table = whole_table(place, only=files, header=header)
        return encode_table(table, encoding, name=title, label=label, owners=owners)
    if kind == "npz":
        return read_npz(place, title, label, owners)
    if kind == "jsonl":
        return read_jsonl(place, title, text, label, owners)
    for argument, value in (("label", label), *owners.items()):
        if value is not None:
            raise ConfigError(
                f"{place}: {argument} = {value!r} does not apply to images",
                expected="a table, NPZ or JSONL file",
                got="images",
                remedy=f"leave {argument} out (for owners of images, use an NPZ file)",
            )
    if kind == "idx":
        return read_idx(place, title, None if labels is None else Path(labels))
    return read_images(place, title, greyscale, size)


def whole_table(
    path: Path,
    *,
    only: str | None = None,
    header: bool | None = None,
    limit: int | None = None,
) -> FileTable:
    """The cells of a table, or of all tables of a folder."""
    if path.is_dir():
        return read_sites(path, only, header=header, limit=limit)
    return read_table(path, header=header, limit=limit)


def file_format(path: Path) -> Format:
    """The format of `path`."""
    if not is_text(str(path)):
        # a config must name it, and TOML is UTF-8
        raise DataError(
            "the name of the data file is not UTF-8 text",
            expected="a path that can be written into a config",
            got=ascii(str(path)),
            remedy="rename the file or folder",
        )
    # os.path: treats an overlong name as a missing file instead of raising
    if not os.path.exists(path):
        near = [p.name for p in path.parent.iterdir()] if os.path.isdir(path.parent) else []
        raise DataError(
            f"there is no file {path}",
            expected="a file or folder that exists",
            got="nothing there",
            remedy=nearest(path.name, near[:200]) if near else "check the path",
        )
    if path.is_dir():
        if idx_images(path, "train") is not None:
            return "idx"
        # a list of files often lies beside images
        return "table" if tables_in(path) and not holds_images(path) else "images"
    suffix = plain_suffix(path)
    if suffix in TABLES:
        return "table"
    if suffix == ".npz":
        return "npz"
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if "idx" in path.name and "ubyte" in path.name:
        return "idx"
    remedy = "save it as CSV" if suffix in (".xls", ".ods") else "convert it"
    if suffix in (".pkl", ".pickle", ".pt", ".joblib"):
        remedy = "save arrays with numpy.savez: fedaudit never opens a pickle, it can run code"
    raise DataError(
        f"{path}: unknown file type",
        expected=".csv, .tsv, .data, .parquet, .xlsx, .npz, .jsonl, IDX (…-images-idx3-ubyte), a "
        "folder of tables or a folder of images",
        got=suffix or "no file ending",
        remedy=remedy,
    )
