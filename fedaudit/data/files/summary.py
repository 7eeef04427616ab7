"""A dataset in numbers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from fedaudit.data.dataset import Dataset


def describe(dataset: Dataset) -> dict[str, Any]:
    """A summary in plain JSON types: how many records, features, classes and owners."""
    out: dict[str, Any] = {
        "name": dataset.name,
        "kind": dataset.kind,
        "records": len(dataset),
        "classes": {},
    }
    if isinstance(dataset.x, np.ndarray):
        out["shape"] = list(dataset.x.shape[1:])
        out["features"] = math.prod(dataset.x.shape[1:])
        if dataset.columns:
            out["columns"] = list(dataset.columns)
    else:
        lengths = [len(text) for text in dataset.x]
        out["characters"] = sum(lengths)
        out["median_characters"] = float(np.median(lengths))
    if dataset.classes:
        counts = np.bincount(dataset.y, minlength=len(dataset.classes))
        out["classes"] = {c: int(k) for c, k in zip(dataset.classes, counts, strict=True)}
    for role in ("client", "organisation", "person"):
        owners = getattr(dataset, role)
        if owners is not None:
            sizes = Counter(owners)
            numbers = sorted(sizes.values())
            out[f"{role}s"] = {
                "count": len(sizes),
                "smallest": numbers[0],
                "median": float(np.median(numbers)),
                "largest": numbers[-1],
            }
            if role == "client":
                out["clients"]["sizes"] = dict(sorted(sizes.items()))
    if dataset.test is not None:
        out["test_records"] = len(dataset.test)
    if dataset.licence:
        out["licence"] = dataset.licence
    if dataset.notes:
        out["notes"] = list(dataset.notes)
    return out
