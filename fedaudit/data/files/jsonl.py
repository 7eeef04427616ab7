"""Read text records: one JSON object per line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Dataset
from fedaudit.data.files.cells import check_organisations, class_name, encode_labels
from fedaudit.data.files.raw import utf8_text
from fedaudit.errors import DataError, nearest
from fedaudit.files import parse_json


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of every non-blank line."""
    for number, line in enumerate(utf8_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, nan=True)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: this is not JSON",
                expected='one object per line, such as {"text": "..."}',
                got=str(error),
                remedy="correct the line (JSONL has no line breaks inside a record)",
            ) from None
        if not isinstance(record, dict):
            raise DataError(
                f"{path}, line {number}: this is not an object",
                expected='one object per line, such as {"text": "..."}',
                got=type(record).__name__,
                remedy="write one object per line",
            )
        yield number, record


def read_jsonl(
    path: Path, name: str, text: str, label: str | None, owners: Mapping[str, str | None]
) -> Dataset:
    """Read a JSONL file: see `read`."""
    texts: list[str] = []
    lines: list[int] = []
    found: dict[str, list[str]] = {}
    wanted = {"label": label, **owners}
    roles: dict[str, str] = {}
    for number, record in json_lines(path):
        if not texts:
            # a key given by name must exist; the usual keys are used if they exist
            roles = {r: c or r for r, c in wanted.items() if c is not None or r in record}
        value = record.get(text)
        if not isinstance(value, str):
            raise DataError(
                f"{path}, line {number}: there is no text",
                expected=f"a key {text!r} with a text",
                got=f"keys {', '.join(record) or '(none)'}" if value is None else repr(value)[:60],
                remedy=nearest(text, record) if value is None and record else "correct the line",
            )
        texts.append(value)
        lines.append(number)
        for role, key in roles.items():
            cell = record.get(key)
            if (
                cell is None
                or isinstance(cell, list | dict)
                or (isinstance(cell, float) and not math.isfinite(cell))
                or str(cell).strip() == ""
            ):
                raise DataError(
                    f"{path}, line {number}: the {role} is missing",
                    expected=f"a key {key!r} with a value, as every record must have one",
                    got=f"keys {', '.join(record)}" if cell is None else repr(cell)[:60],
                    remedy=nearest(key, record) if key not in record else "fill it in",
                )
            found.setdefault(role, []).append(class_name(cell) if role == "label" else str(cell))
    if not texts:
        raise DataError(
            f"{path} holds no records",
            expected='one object per line, such as {"text": "..."}',
            got="an empty file",
            remedy="check that this is the right file",
        )
    y: npt.NDArray[np.int64] = np.zeros(len(texts), dtype=np.int64)
    classes: tuple[str, ...] = ()
    if "label" in found:
        y, classes = encode_labels(str(path), roles["label"], found.pop("label"))
    columns = {role: tuple(values) for role, values in found.items()}
    check_organisations(str(path), columns, lines)
    return Dataset(
        name=name,
        kind="text",
        x=tuple(texts),
        y=y,
        classes=classes,
        client=columns.get("client"),
        organisation=columns.get("organisation"),
        person=columns.get("person"),
    )
