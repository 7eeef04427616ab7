"""The folder of fetched data sets, and reading from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import shapes
from fedaudit.data.dataset import Dataset
from fedaudit.data.fetch.sources import Source, source
from fedaudit.data.files import json_lines
from fedaudit.errors import DataError
from fedaudit.files import Unreadable, opened, parse_json, read_npz, sha256_of
from fedaudit.randomness import Seed
from fedaudit.shapes import misfit

FORMAT = 1  # format of cached files; files of another format count as not fetched

# errors that reading a damaged file can raise
_TORN = (DataError, Unreadable, OSError, KeyError, ValueError, TypeError, IndexError)
_LONGEST = 1 << 20  # largest description in bytes


def cache_folder() -> Path:
    """`FEDAUDIT_CACHE`, or `fedaudit` in the user's cache folder."""
    own = os.environ.get("FEDAUDIT_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "fedaudit" if base else Path.home() / "AppData/Local/fedaudit"
    if sys.platform == "darwin" and not os.environ.get("XDG_CACHE_HOME"):
        return Path.home() / "Library/Caches/fedaudit"
    base = os.environ.get("XDG_CACHE_HOME")
    # the XDG standard ignores a relative path
    return (
        Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    ) / "fedaudit"


def load_fetched(
    name: str, *, cache: str | Path | None = None, records: int = 0, seed: Seed | None = None
) -> Dataset:
    """Load a data set from the cache, with its own held-out part if it has one.

    `records`: number of training records to draw at random from `seed` (0: all).
    """
    wanted = source(name)
    if wanted.kind == "model":
        raise DataError(
            f"{name!r} is a language model, not a data set",
            expected="the name of a data set",
            got=repr(name),
            remedy=f'task.kind = "lora" and task.model = "{name}", with text as data',
        )
    folder = Path(cache) if cache is not None else cache_folder()
    path = folder / wanted.filename
    if not path.is_file():
        raise DataError(
            f"data set {name!r} has not been fetched yet",
            expected=str(path),
            got="nothing there",
            remedy=f"fedaudit data get {name}",
        )
    about = read_about(path, wanted)
    rows: npt.NDArray[np.int64] | None = None
    if records:
        have = int(about["records"])
        if records > have:
            raise DataError(
                f"data set {name!r} has fewer records than asked for",
                expected=f"records of at most {have}",
                got=f"records = {records}",
                remedy="lower records, or leave it out for all",
            )
        if seed is None:
            raise TypeError("drawing records needs a seed")
        rows = np.sort(seed.generator("data/fetched").permutation(have)[:records]).astype(np.int64)
    try:
        dataset = _load_text(path, wanted, about) if wanted.kind == "text" else None
        if dataset is None:
            return _load_arrays(path, wanted, about, rows)
    except _TORN as error:
        raise _damaged(path, name, str(error) or type(error).__name__) from None
    if rows is None:
        return dataset
    return replace(dataset.take(rows), test=dataset.test)


def _damaged(path: Path, name: str, got: str) -> DataError:
    return DataError(
        f"{path} is damaged or was written by another version of fedaudit",
        expected=f"the file that fedaudit data get {name} writes",
        got=got,
        remedy=f"fedaudit data get {name} (it replaces a damaged file)",
    )


def read_about(path: Path, wanted: Source, *, whole: bool = False) -> dict[str, Any]:
    """The file's description; `whole` also checks the rest of the file."""
    if wanted.kind == "model":
        return _about_model(path, wanted, whole=whole)
    try:
        if wanted.kind == "text":
            with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as stream:
                about = parse_json(stream.readline(_LONGEST))
                if whole and sum(1 for _ in stream) != about["lines"]:
                    raise ValueError("lines are missing")
        else:
            # unpacking everything compares it with its checksums
            arrays = read_npz(path, None if whole else ("about",))
            about = parse_json(str(arrays["about"]))
        if (wrong := misfit(about, shapes.FETCHED)) is not None:
            raise ValueError(f"{wrong.got}, expected {wrong.expected}")
        marks = (about["fedaudit_data"], about["package_sha256"])
    except _TORN as error:
        raise _damaged(path, wanted.name, str(error) or type(error).__name__) from None
    if marks != (FORMAT, wanted.sha256):
        raise _damaged(path, wanted.name, f"format {marks[0]}, package {str(marks[1])[:16]}")
    return about


def _about_model(path: Path, wanted: Source, *, whole: bool) -> dict[str, Any]:
    """Description of a model: its file has none, so its checksum identifies it."""
    if whole:
        found = sha256_of(path)
        if found != wanted.content_sha256:
            raise _damaged(path, wanted.name, f"SHA-256 {found[:16]}")
    return {"records": 1}


def fetched_model(name: str, *, cache: str | Path | None = None) -> Path:
    """Path of a model in the cache."""
    wanted = source(name)
    path = (Path(cache) if cache is not None else cache_folder()) / wanted.filename
    if not path.is_file():
        raise DataError(
            f"model {name!r} has not been fetched yet",
            expected=str(path),
            got="nothing there",
            remedy=f"fedaudit data get {name}",
        )
    return path


def _load_arrays(
    path: Path, wanted: Source, about: Mapping[str, Any], rows: npt.NDArray[np.int64] | None
) -> Dataset:
    classes, columns = tuple(about["classes"]), tuple(about.get("columns", ()))
    kind: Literal["image", "features"] = "image" if wanted.kind == "image" else "features"

    def scaled(raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return raw.astype(np.float32) / np.float32(255) if wanted.kind == "image" else raw

    def part(x: npt.NDArray[Any], y: npt.NDArray[np.int64], test: Dataset | None) -> Dataset:
        return Dataset(
            name=wanted.name, kind=kind, x=scaled(x), y=y, classes=classes,
            columns=columns, licence=wanted.licence, notes=wanted.notes, test=test,
        )  # fmt: skip

    arrays = read_npz(path, ("x", "y", "test_x", "test_y"))
    x, y = arrays["x"], arrays["y"]
    test = part(arrays["test_x"], arrays["test_y"], None)
    # draw before scaling: a few records must not need the memory of all
    return part(x, y, test) if rows is None else part(x[rows], y[rows], test)


def _load_text(path: Path, wanted: Source, about: Mapping[str, Any]) -> Dataset:
    lines = json_lines(path)
    next(lines)
    records = [record for _, record in lines]
    if len(records) != about["lines"]:
        raise ValueError(f"{len(records)} of {about['lines']} records")
    classes = tuple(sorted({r["label"] for r in records}))
    number = {c: i for i, c in enumerate(classes)}

    def part(split: str, test: Dataset | None) -> Dataset | None:
        own = [r for r in records if r["split"] == split]
        if not own:
            return None
        return Dataset(
            name=wanted.name,
            kind="text",
            x=tuple(r["text"] for r in own),
            y=np.array([number[r["label"]] for r in own], dtype=np.int64),
            classes=classes,
            client=tuple(r["client"] for r in own) if "client" in own[0] else None,
            organisation=(
                tuple(r["organisation"] for r in own) if "organisation" in own[0] else None
            ),
            licence=wanted.licence,
            notes=wanted.notes,
            test=test,
        )

    dataset = part("train", part("test", None))
    if dataset is None:
        raise ValueError("no training records")
    return dataset
