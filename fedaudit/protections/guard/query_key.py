"""Check for queries and keys that invert each other: W_K = beta pinv(W_Q)^T.

M = W_K^T W_Q is then a multiple of a projection, for any basis, scale or order of rows. With m
attention dimensions, |tr M| / (sqrt(m) |M|) is 1 for a projection of rank m and near 0 for
unrelated matrices. Layouts (out, in), (in, out) and one tensor for all three are handled alike.
[ActiveMembership] Algorithm 3
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from fedaudit.protections.guard.tensors import CheckScore, Received, WeightArray, kind_of

NAME, UNIT = "query_key", 0.02
SMALLEST = 8


def reach(rows: int, n: int) -> float:
    """Largest value of two matrices (R, n): equal parts of the identity give a projection."""
    return -math.inf if min(rows, n) < SMALLEST else 1.0


def check(model: Received) -> Iterator[CheckScore]:
    for where, names, a, b in pairs(model):
        shape = (a.shape[0], a.shape[1])
        most = reach(*shape)
        value = alike(a, b) if most > 0 else -math.inf
        words = f"the product of two matrices is {value:.2f} like a projection (1: exactly)"
        kind = kind_of(names[0], model.tensors[names[0]].shape)
        yield CheckScore(value, where, words, kind, shape, most, names)


def alike(a: WeightArray, b: WeightArray) -> float:
    """Similarity of a^T b, or a b^T, to a multiple of a projection, for a, b (m, n): 0 to 1."""
    tops = [float(np.abs(t).max(initial=0.0)) for t in (a, b)]
    if not all(tops):
        return 0.0
    x, y = (
        t / top for t, top in zip((a.astype(np.float64), b.astype(np.float64)), tops, strict=True)
    )
    trace = abs(float(np.sum(x * y)))
    # |a^T b|^2 = <a a^T, b b^T>: the narrow side's Gram matrices give the wide product
    one, other = (x, y) if x.shape[0] <= x.shape[1] else (x.T, y.T)
    sizes = [float(np.sum((one @ one.T) * (other @ other.T)))]
    if x.shape[0] == x.shape[1]:  # square: the attention axis is unknown
        sizes.append(float(np.sum((x.T @ x) * (y.T @ y))))
    size = np.sqrt(max(0.0, min(sizes)))
    return min(1.0, trace / float(size * np.sqrt(min(x.shape)))) if size > 0 else 0.0


def pairs(model: Received) -> Iterator[tuple[str, tuple[str, ...], WeightArray, WeightArray]]:
    """Possible query and key matrices: of equal shape in one module, or parts of one tensor.

    Yields (description of the place, tensor names, matrix, matrix)."""
    modules: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, t in model.tensors.items():
        if name in model.tables:
            continue
        if t.ndim == 2 and max(t.shape) == 3 * min(t.shape) and t.size:
            parts = np.split(t, 3, axis=int(t.shape[1] > t.shape[0]))
            for i, j in combinations(range(3), 2):
                yield f"{name} (parts {i + 1} and {j + 1})", (name,), parts[i], parts[j]
        if t.ndim in (2, 3) and t.size:
            parent = name.split(".")[: -2 if name.endswith((".weight", ".kernel")) else -1]
            modules.setdefault((".".join(parent), t.shape), []).append(name)
    for (_, shape), names in modules.items():
        for one, other in combinations(names, 2):
            a, b = model.tensors[one], model.tensors[other]
            if len(shape) == 3:
                for head, (x, y) in enumerate(zip(a, b, strict=True)):
                    yield f"{one} and {other}, head {head}", (one, other), x, y
            elif not (shape[0] > shape[1] and np.array_equal(a, b)):
                # a repeated tall matrix is an embedding shared with the output layer
                yield f"{one} and {other}", (one, other), a, b
