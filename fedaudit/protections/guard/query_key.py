"""Queries and keys that invert each other: W_K = beta pinv(W_Q)^T.

W_K^T W_Q is then a multiple of a projection, whatever basis, scale or order its rows have. With m
dimensions of attention, |tr M| / (sqrt(m) |M|) is 1 for a projection of rank m and near 0 for
matrices without any relation. [ActiveMembership] Algorithm 3
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from fedaudit.protections.guard.tensors import Floats, Received, Score

NAME, UNIT = "query_key", 0.02
SMALLEST = 8


def check(model: Received) -> Score | None:
    best: Score | None = None
    for where, a, b in pairs(model):
        value = alike(a, b)
        if best is None or value > best.value:
            words = f"the product of two matrices is {value:.2f} like a projection (1: exactly)"
            best = Score(value, where, words)
    return best


def alike(a: Floats, b: Floats) -> float:
    """How like a multiple of a projection a^T b is, for a, b (m, n): 0 to 1."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if x.shape[0] > x.shape[1]:
        size = np.linalg.norm(x.T @ y)
    else:  # |a^T b|^2 = <a a^T, b b^T>, of m by m
        size = np.sqrt(max(0.0, float(np.sum((x @ x.T) * (y @ y.T)))))
    if not size > 0:
        return 0.0
    return min(1.0, abs(float(np.sum(x * y))) / float(size * np.sqrt(min(x.shape))))


def pairs(model: Received) -> Iterator[tuple[str, Floats, Floats]]:
    """Matrices that could be queries and keys: of one shape in one module, or parts of one."""
    modules: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, t in model.tensors.items():
        if t.ndim == 2 and t.shape[0] == 3 * t.shape[1] and t.shape[1] >= SMALLEST:
            parts = np.split(t, 3)
            for i, j in combinations(range(3), 2):
                yield f"{name} (parts {i + 1} and {j + 1})", parts[i], parts[j]
        if t.ndim in (2, 3) and min(t.shape[-2:]) >= SMALLEST:
            parent = name.split(".")[: -2 if name.endswith((".weight", ".kernel")) else -1]
            modules.setdefault((".".join(parent), t.shape), []).append(name)
    for (_, shape), names in modules.items():
        for one, other in combinations(names, 2):
            a, b = model.tensors[one], model.tensors[other]
            if len(shape) == 3:
                for head, (x, y) in enumerate(zip(a, b, strict=True)):
                    yield f"{one} and {other}, head {head}", x, y
            elif not (shape[0] > shape[1] and np.array_equal(a, b)):
                # a tall matrix that is there twice is an embedding that the output layer shares
                yield f"{one} and {other}", a, b
