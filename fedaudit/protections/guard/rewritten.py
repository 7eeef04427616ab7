"""Check for rows that do not resemble themselves in the previous model.

Training moves all rows a little; planting replaces some. The value is 1 - the cosine of a row with
itself in the previous model, for the weakest of the rows that must look planted. Rows that were
zero had no direction (new output layers) and are left out. So are low-rank adapters: one factor
starts at zero and has no steady direction for many rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedaudit.protections.guard.tensors import CheckScore, Received, WeightArray, kind_of, needed

NAME, UNIT = "rewritten", 0.7
"""Replaced rows lie at 1; a round of large steps turns honest ones by half."""
OPPOSITE = 2.0
"""1 - cosine of a reversed row."""
_BLOCK = 2048


def check(model: Received) -> Iterator[CheckScore]:
    """1 - cosine, tensor by tensor; no scores without a previous model."""
    if model.previous is None:
        return
    for name, now in model.tensors.items():
        if now.ndim < 2 or not now.size or kind_of(name, now.shape) == "adapter":
            continue
        a, b = (t.reshape(len(now), -1) for t in (now, model.previous[name]))
        blocks = range(0, len(a), _BLOCK)
        apart = np.concatenate([_apart(a[i : i + _BLOCK], b[i : i + _BLOCK]) for i in blocks])
        if not len(apart):
            yield CheckScore(-math.inf, name, "", reach=-math.inf, layers=(name,))
            continue
        k = min(len(apart), needed(len(now)))
        value = float(np.sort(apart)[-k])
        words = f"{k} or more rows have a cosine of {1 - value:.2f} with their previous values"
        # a row of any width can be reversed
        yield CheckScore(value, name, words, reach=OPPOSITE, layers=(name,))


def _apart(a: WeightArray, b: WeightArray) -> WeightArray:
    """1 - cosine (r,) of rows a (R, n) with rows b (R, n), without zero rows of b."""
    tops = [np.abs(t).max(axis=1).astype(np.float64) for t in (a, b)]
    was = tops[1] > 0
    x, y = (
        t[was] / np.where(top[was] > 0, top[was], 1.0)[:, None]
        for t, top in zip((a, b), tops, strict=True)
    )
    sizes = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", y, y))
    # a row that became zero has no direction: half way between equal and opposite
    cosines = np.einsum("ij,ij->i", x, y) / np.where(sizes > 0, sizes, 1.0)
    return np.asarray(1.0 - np.where((a[was] == b[was]).all(axis=1), 1.0, cosines))
