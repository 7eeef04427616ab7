"""Read arrays: NPZ files and IDX files (the format of MNIST)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import files
from fedaudit.data.dataset import Dataset, Owners
from fedaudit.data.files.cells import check_organisations, class_name, encode_labels, quote_cell
from fedaudit.data.files.raw import raw_bytes
from fedaudit.errors import DataError, nearest

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_npz(path: Path, name: str, label: str | None, owners: Mapping[str, str | None]) -> Dataset:
    """Read an NPZ file: see `read`."""
    found = _Arrays(path, npz_arrays(path))
    arrays = found.by_name
    raw = found.get("x", "the records")
    if raw.ndim == 0 or raw.size == 0:
        raise DataError(
            f"{path}: array 'x' holds no records",
            expected="at least one record along the first axis, with at least one number",
            got=f"shape {raw.shape}",
            remedy="save x as an array of shape (records, features)",
        )
    key = label or "y"
    classes: tuple[str, ...] = ()
    if key in arrays or raw.dtype.kind != "U" or label is not None:
        given = [str(c) for c in arrays["classes"].tolist()] if "classes" in arrays else None
        y, classes = _array_labels(str(path), key, found.get(key, "the labels"), given)
    else:
        y = np.zeros(len(raw), dtype=np.int64)
    columns = {
        role: found.owners(named or role, role, len(raw))
        for role, named in owners.items()
        if named is not None or role in arrays
    }
    check_organisations(str(path), columns, None)
    kind, x, notes = _array_records(str(path), "x", raw)
    titles = tuple(str(c) for c in arrays["columns"].tolist()) if "columns" in arrays else ()
    if titles and isinstance(x, np.ndarray) and x.shape[1:] != (len(titles),):
        raise DataError(
            f"{path}: array 'columns' does not fit 'x'",
            expected=f"{x.shape[1]} names",
            got=f"{len(titles)} names",
            remedy="give one name per feature",
        )
    return Dataset(
        name=name,
        kind=kind,
        x=x,
        y=y,
        classes=classes,
        columns=titles,
        notes=notes,
        test=found.test(name, classes),
        client=columns.get("client"),
        organisation=columns.get("organisation"),
        person=columns.get("person"),
    )


@dataclass(frozen=True)
class _Arrays:
    """The arrays of an NPZ file, read by the part that they play."""

    path: Path
    by_name: Mapping[str, npt.NDArray[Any]]

    def get(self, key: str, role: str) -> npt.NDArray[Any]:
        if key not in self.by_name:
            raise DataError(
                f"{self.path} has no array {key!r} ({role})",
                expected=f"an array {key!r}",
                got=", ".join(sorted(self.by_name)) or "no arrays",
                remedy=nearest(key, self.by_name),
            )
        return self.by_name[key]

    def owners(self, key: str, role: str, records: int) -> Owners:
        """A column of names: clients, organisations or persons."""
        values = self.get(key, role)
        if values.ndim != 1:
            raise DataError(
                f"{self.path}: array {key!r} is not a column",
                expected=f"one {role} per record, shape ({records},)",
                got=f"shape {values.shape}",
                remedy="save it as a one-dimensional array",
            )
        return tuple(str(v) for v in values.tolist())

    def test(self, name: str, classes: tuple[str, ...]) -> Dataset | None:
        """The held-out records, if the file has some."""
        if "x_test" not in self.by_name or not self.by_name["x_test"].size:
            return None
        kind, x, _ = _array_records(str(self.path), "x_test", self.by_name["x_test"])
        y: npt.NDArray[np.int64] = np.zeros(len(x), dtype=np.int64)
        if classes:
            given = self.get("y_test", "labels of x_test")
            y, _ = _array_labels(str(self.path), "y_test", given, list(classes))
        return Dataset(name=name, kind=kind, x=x, y=y, classes=classes)


def npz_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every array of an NPZ file; never opens a pickle."""
    try:
        return files.read_npz(path)
    except files.Unreadable as error:
        raise error.as_error(DataError) from None


def _array_labels(
    path: str, key: str, raw: npt.NDArray[Any], classes: list[str] | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1 or raw.dtype.kind not in "biufU":
        raise DataError(
            f"{path}: array {key!r} does not hold labels",
            expected="one label per record, numbers or text",
            got=f"shape {raw.shape}, dtype {raw.dtype}",
            remedy="save class numbers, shape (records,) (for one-hot labels: y.argmax(1))",
        )
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise DataError(
            f"{path}: array {key!r} has missing labels",
            expected="finite labels",
            got=f"{int((~np.isfinite(raw)).sum())} NaN or infinite",
            remedy="leave those records out before saving",
        )
    if classes is not None:
        number = {c: i for i, c in enumerate(classes)}
        if raw.dtype.kind == "U":
            unknown = sorted(set(raw.tolist()) - set(number))
            if unknown:
                raise DataError(
                    f"{path}: array {key!r} has a label that is not a class",
                    expected=", ".join(classes[:10]),
                    got=quote_cell(unknown[0]),
                    remedy=nearest(unknown[0], classes),
                )
            return np.array([number[v] for v in raw.tolist()], dtype=np.int64), tuple(classes)
        named = [number.get(class_name(v)) for v in raw.tolist()]
        if all(v is not None for v in named):
            return np.array(named, dtype=np.int64), tuple(classes)
        if (raw != raw.astype(np.int64)).any() or raw.min() < 0 or raw.max() >= len(classes):
            raise DataError(
                f"{path}: array {key!r} has a label that is not a class",
                expected=f"class numbers 0 to {len(classes) - 1}",
                got=f"{raw.min()} to {raw.max()}",
                remedy="correct the labels or the array 'classes'",
            )
        return raw.astype(np.int64), tuple(classes)
    return encode_labels(path, key, [class_name(v) for v in raw.tolist()])


def _array_records(
    path: str, key: str, raw: npt.NDArray[Any]
) -> tuple[
    Literal["features", "image", "text"], npt.NDArray[np.float32] | tuple[str, ...], tuple[str, ...]
]:
    """Kind, records and notes: (n,) text, (n, d) features, (n, h, w[, c]) images."""
    if raw.dtype.kind == "U" and raw.ndim == 1:
        return "text", tuple(raw.tolist()), ()
    if raw.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: array {key!r} does not hold numbers",
            expected="numbers",
            got=f"dtype {raw.dtype}",
            remedy="encode categories as numbers, or use a CSV table, where this is done for you",
        )
    if raw.dtype.kind == "f" and raw.dtype.itemsize > 4:
        large = np.isfinite(raw) & (np.abs(raw) > np.finfo(np.float32).max)
        if large.any():
            i = int(np.flatnonzero(large.reshape(len(raw), -1).any(axis=1))[0])
            raise DataError(
                f"{path}, record {i}: a number in array {key!r} is too large",
                expected="numbers below 3.4e38",
                got=f"{int(large.sum())} numbers beyond",
                remedy="correct them or change the unit",
            )
    if raw.ndim <= 2:
        return "features", raw.reshape(len(raw), -1).astype(np.float32), ()
    if raw.ndim > 4:
        raise DataError(
            f"{path}: array {key!r} has too many axes",
            expected="(records, features), (records, height, width) or with channels",
            got=f"shape {raw.shape}",
            remedy="reshape it",
        )
    notes: tuple[str, ...] = ()
    image = raw[:, None] if raw.ndim == 3 else raw
    if raw.ndim == 4 and raw.shape[3] in (1, 3, 4) and raw.shape[1] not in (1, 3):
        image = raw.transpose(0, 3, 1, 2)
        notes = ("channels were last and are now first",)
    scaled = image.astype(np.float32) / 255.0 if raw.dtype == np.uint8 else image.astype(np.float32)
    low, high = float(scaled.min()), float(scaled.max())
    if low < 0.0 or high > 1.0:
        raise DataError(
            f"{path}: the images in {key!r} are not scaled",
            expected="numbers in [0, 1], or bytes (dtype uint8)",
            got=f"dtype {raw.dtype}, numbers from {low:g} to {high:g}",
            remedy="save x.astype('uint8') for values up to 255, or divide by the largest value",
        )
    return "image", np.ascontiguousarray(scaled), notes


def idx_array(raw: bytes, source: str) -> npt.NDArray[Any]:
    """The array of an IDX file (the format of MNIST), of any type and number of axes."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(
            f"{source} is not an IDX file",
            expected="two zero bytes, a type and the number of axes",
            got="0x" + raw[:4].hex() if raw else "an empty file",
            remedy="check that this is the right file, and that it is unpacked",
        )
    axes = raw[3]
    head = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", raw[4:head]) if len(raw) >= head else ()
    kind = np.dtype(_IDX_TYPES[raw[2]])
    expected = head + math.prod(shape) * kind.itemsize
    if len(raw) < head or len(raw) != expected:
        raise DataError(
            f"{source} is torn",
            expected=f"{expected} bytes for shape {tuple(shape)}",
            got=f"{len(raw)} bytes",
            remedy="copy or download it again",
        )
    return np.frombuffer(raw, dtype=kind, offset=head).reshape(shape)


def idx_images(folder: Path, part: str) -> Path | None:
    """The IDX images of `part` ("train", "t10k", "test") in `folder`, or None."""
    for ending in ("", ".gz"):
        for mark in ("-", "."):
            path = folder / f"{part}-images{mark}idx3-ubyte{ending}"
            if path.is_file():
                return path
    return None


def read_idx(path: Path, name: str, labels: Path | None) -> Dataset:
    """Read an IDX pair of images and labels, or a folder of pairs: see `read`."""
    if path.is_dir():
        train = idx_images(path, "train")
        assert train is not None
        own = idx_images(path, "t10k") or idx_images(path, "test")
        dataset = read_idx(train, path.name, labels)
        if own is None:
            return dataset
        test = read_idx(own, path.name, None)
        if len(test.classes) > len(dataset.classes):
            dataset = replace(dataset, classes=test.classes)
        return replace(dataset, test=replace(test, classes=dataset.classes))
    if labels is None:
        beside = path.name.replace("images", "labels").replace("idx3", "idx1")
        if "labels" in path.name and "images" not in path.name:
            raise DataError(
                f"{path} is the labels file",
                expected="the images file",
                got=path.name,
                remedy=f"give {path.name.replace('labels', 'images').replace('idx1', 'idx3')}",
            )
        labels = path.with_name(beside)
        if not labels.exists():
            other = labels.name[:-3] if labels.name.endswith(".gz") else labels.name + ".gz"
            labels = labels.with_name(other) if labels.with_name(other).exists() else labels
    if not labels.exists():
        raise DataError(
            f"{path}: there is no labels file",
            expected=str(labels),
            got="nothing there",
            remedy="put it beside the images, or name it with labels = ...",
        )
    images = idx_array(raw_bytes(path), str(path))
    numbers = idx_array(raw_bytes(labels), str(labels))
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or numbers.ndim != 1:
        raise DataError(
            f"{path} and {labels} are not images and labels",
            expected="bytes of shape (records, height, width), and (records,)",
            got=f"shapes {images.shape} and {numbers.shape}",
            remedy="check that the two files are not swapped",
        )
    if len(images) != len(numbers):
        raise DataError(
            f"{path}: images and labels do not fit",
            expected=f"{len(images)} labels",
            got=f"{len(numbers)} labels in {labels}",
            remedy="take images and labels of the same part",
        )
    _, x, notes = _array_records(str(path), "images", images)
    return Dataset(
        name=name,
        kind="image",
        x=x,
        y=numbers.astype(np.int64),
        classes=tuple(str(c) for c in range(int(numbers.max(initial=0)) + 1)),
        notes=notes,
    )
