"""Solve the budget equation to the last digits.

    sum_i c_i / (K - l_i) = U,   K > max l                     [TopologyAwareDP] Eq. (5)

with c_i = w_i a_i (budget weight times mechanism coefficient). The unknown is the *gap*
y = K - max l, not K: if one client dominates, y is many orders below K, and K - l_i computed from K
loses most digits.

Method: Newton on 1 / F, F(y) = sum_i c_i / (y + g_i), g_i = max l - l_i. 1 / F is a weighted
harmonic mean, hence increasing and concave: from the left of the root, every step stays on the left
and moves right. Jensen's inequality gives a close lower bound as the start, and sum c / U is an
upper bound. Bisection in this bracket is the fallback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Floats

Sums = Callable[[float], tuple[float, float]]

BLOCK = 32_768
"""Clients per block: a few arrays of 256 KiB stay in the cache between operations."""

_TOLERANCE = 4 * float(np.finfo(np.float64).eps)
_LAST_STEP = 1e-8
_MOST_STEPS = 200
_SAMPLE = 1 << 13  # clients sampled for a first guess


@dataclass(frozen=True)
class Root:
    """The gap y = K - max l, the largest leverage, and the number of passes over the data."""

    gap: float
    top: float
    passes: int

    @property
    def worst_case(self) -> float:
        """K*, rounded once."""
        return self.top + self.gap


def solve(leverage: Floats, coefficient: float | Floats, budget: float) -> Root:
    """The root of sum_i c_i / (K - l_i) = budget above max l.

    `leverage` (n,) finite; `coefficient` c > 0, one for all or (n,); `budget` > 0. `allocate`
    checks the arguments.
    """
    if leverage.size <= BLOCK:
        top = float(np.maximum.reduce(leverage))
        if isinstance(coefficient, np.ndarray):
            total = float(np.add.reduce(coefficient))
            own = float(coefficient[leverage.argmax()])
            mean_gap = float(np.dot(coefficient, top - leverage)) / total
        else:
            total, own = coefficient * leverage.size, coefficient
            mean_gap = max(0.0, top - float(np.add.reduce(leverage)) / leverage.size)
        start = _lower(own, total, mean_gap, budget)
    else:
        few, c, total = _summary(leverage, coefficient)
        first = solve(few, c, budget)
        top, start = first.top, first.gap
        own = float(c[few.argmax()])
    return _newton(leverage, coefficient, top, budget, own / budget, total / budget, start)


def _summary(leverage: Floats, coefficient: float | Floats) -> tuple[Floats, Floats, float]:
    """A sample of a few thousand (leverage, coefficient), and the sum of all coefficients.

    The sample has the largest leverage of each block, and one client in every `stride` for the
    rest. Its root is near the root of all, on either side.
    """
    largest, own, total = [], [], []
    for block in blocks(leverage.size):
        part = leverage[block]
        if isinstance(coefficient, np.ndarray):
            at = int(part.argmax())
            largest.append(float(part[at]))
            own.append(float(coefficient[block][at]))
            total.append(float(np.add.reduce(coefficient[block])))
        else:
            largest.append(float(np.maximum.reduce(part)))
            own.append(coefficient)
            total.append(coefficient * part.size)
    stride = max(1, leverage.size // _SAMPLE)
    rest = leverage[::stride]
    weight = coefficient[::stride] if isinstance(coefficient, np.ndarray) else np.ones(rest.size)
    whole = math.fsum(total)
    scale = max(whole - math.fsum(own), 0.0) / float(np.add.reduce(weight))
    return np.r_[largest, rest], np.r_[own, scale * weight], whole


def _lower(own: float, total: float, mean_gap: float, budget: float) -> float:
    """A lower bound of the root: the top client's own gap, the mean gap G for all others.

    By Jensen F(y) >= own / y + rest / (y + G): the root of the right side lies left of F's. It
    solves y^2 - (total / U - G) y - own G / U = 0.
    """
    rest = total - own
    gap = mean_gap * total / rest if rest > 0 else 0.0
    half, below = (total / budget - gap) / 2, own / budget * gap
    root = math.hypot(half, math.sqrt(below))
    # the form without cancellation
    y = half + root if half >= 0 else below / (root - half)
    return max(y, own / budget)


def _newton(
    leverage: Floats,
    coefficient: float | Floats,
    top: float,
    budget: float,
    low: float,
    high: float,
    start: float,
) -> Root:
    sums = _sums(leverage, coefficient, top)
    y = start
    for passes in range(1, _MOST_STEPS + 1):
        # with p_i = y / (y + g_i) in (0, 1] nothing overflows: A = sum c p = y F, B = sum c p^2
        a, b = sums(y)
        aim = a / budget
        if abs(aim - y) <= _TOLERANCE * y:
            return Root(y, top, passes)
        if aim > y:  # F(y) > U: the root lies to the right
            low = max(low, y)
        else:
            high = min(high, y)
        new = y + a / b * (aim - y)
        if abs(new - y) <= _LAST_STEP * y and low <= new <= high:
            # y |(1/F)''| / (2 (1/F)') <= 1, so the next relative error is at most this one's square
            return Root(new, top, passes)
        if not low < new < high:
            # rounding at the end of a bracket, or a guess far on the right
            new = low if new <= low and y > low else math.sqrt(low) * math.sqrt(high)
        if new == y or high - low <= _TOLERANCE * high:
            return Root(y, top, passes)  # no floating-point number lies between
        y = new
    raise ArithmeticError(f"no root after {_MOST_STEPS} passes: bracket {low!r} to {high!r}")


def _sums(leverage: Floats, coefficient: float | Floats, top: float) -> Sums:
    """y -> A(y) = sum_i c_i p_i and B(y) = sum_i c_i p_i^2, for p_i = y / (y + g_i)."""
    p = np.empty(min(BLOCK, leverage.size))
    cp = np.empty_like(p) if isinstance(coefficient, np.ndarray) else p
    if leverage.size <= BLOCK:
        gaps = np.subtract(top, leverage)  # one block: computed once

        def once(y: float) -> tuple[float, float]:
            np.add(gaps, y, out=p)
            return _block(p, cp, coefficient, y)

        return once

    def in_blocks(y: float) -> tuple[float, float]:
        first, second = [], []
        for block in blocks(leverage.size):
            size = block.stop - block.start
            np.subtract(top, leverage[block], out=p[:size])
            p[:size] += y
            c = coefficient[block] if isinstance(coefficient, np.ndarray) else coefficient
            a, b = _block(p[:size], cp[:size], c, y)
            first.append(a)
            second.append(b)
        return math.fsum(first), math.fsum(second)

    return in_blocks


def _block(p: Floats, cp: Floats, c: float | Floats, y: float) -> tuple[float, float]:
    """Both sums over one block. `p` holds y + g_i and is overwritten; `cp` is a buffer."""
    np.divide(y, p, out=p)
    # numpy sums pairwise; the first sum decides the last digits, so it is not a dot product
    if isinstance(c, np.ndarray):
        np.multiply(c, p, out=cp)
        return float(np.add.reduce(cp)), _dot(cp, p)
    return c * float(np.add.reduce(p)), c * _dot(p, p)


_UNTHREADED = 8192


def _dot(a: Floats, b: Floats) -> float:
    """A dot product in pieces too small for BLAS threads, which cost more than they save."""
    if a.size <= _UNTHREADED:
        return float(np.dot(a, b))
    pieces = range(0, a.size, _UNTHREADED)
    return sum(float(np.dot(a[i : i + _UNTHREADED], b[i : i + _UNTHREADED])) for i in pieces)


def blocks(n: int) -> Iterator[slice]:
    """0 .. n in blocks."""
    return (slice(low, min(low + BLOCK, n)) for low in range(0, n, BLOCK))


def variances(leverage: Floats, coefficient: float | Floats, root: Root) -> Floats:
    """sigma_i^2 = a_i / (K - l_i) from the gap, (n,)  [TopologyAwareDP] Eq. (4)."""
    if leverage.size <= BLOCK:
        out = np.subtract(root.top, leverage)
        out += root.gap
        return np.divide(coefficient, out, out=out)
    out = np.empty(leverage.size)
    for block in blocks(leverage.size):
        part = out[block]
        np.subtract(root.top, leverage[block], out=part)
        part += root.gap
        c = coefficient[block] if isinstance(coefficient, np.ndarray) else coefficient
        np.divide(c, part, out=part)
    return out


def spent(sigma_squared: Floats, weights: Floats | None = None) -> float:
    """sum_i w_i sigma_i^2, summed block by block without loss of digits."""
    if weights is None:
        return math.fsum(float(sigma_squared[b].sum()) for b in blocks(sigma_squared.size))
    return math.fsum(
        float((weights[b] * sigma_squared[b]).sum()) for b in blocks(sigma_squared.size)
    )
