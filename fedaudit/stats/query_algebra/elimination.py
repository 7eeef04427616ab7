"""Echelon forms of query matrices: exact over the rationals, otherwise in floating point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices, require_finite
from fedaudit.errors import UsageError

TOLERANCE = 1e-9
"""Zero relative to the largest singular value; only for matrices that are not rational."""

ZERO = 1e-7
"""Zero for a component of a unit vector, after orthogonalisation."""

LARGEST_PRIME = 2_147_483_647
"""The first prime to eliminate with, 2^31 - 1: products of residues stay below 2^62."""
_LARGEST = 2**31  # bound of an entry, so that products stay below 2^62
_DENOMINATOR = 1000


def query_matrix(queries: npt.ArrayLike, clients: int | None = None) -> Floats:
    """`queries` as a (Q, K) matrix of finite numbers; `clients` is K where there are no rows."""
    matrix = np.asarray(queries, dtype=np.float64)
    if matrix.size == 0 and clients is not None:
        matrix = np.zeros((0, clients))
    if matrix.ndim != 2 or matrix.shape[1] == 0 or (clients or matrix.shape[1]) != matrix.shape[1]:
        raise UsageError(
            "queries do not form a matrix",
            expected=f"one row per query, one column for each of {clients or 'the'} clients",
            got=f"shape {matrix.shape}",
            remedy="write 1 where a client is in a query, 0 where it is not",
        )
    remedy = "write 1 where a client is in a query, 0 where it is not"
    require_finite(matrix, "weights of a query", remedy=remedy)
    return matrix


def distinct(matrix: Floats) -> Floats:
    """The distinct non-zero rows."""
    rows = np.unique(matrix, axis=0) if len(matrix) else matrix
    return rows[rows.any(axis=1)]


def in_whole_numbers(matrix: Floats) -> Indices | None:
    """The same row space in whole numbers, by scaling rows; None if entries are not rational."""
    if np.abs(matrix).max(initial=0.0) < _LARGEST and (matrix == np.rint(matrix)).all():
        return matrix.astype(np.int64)
    rows = []
    for row in matrix:
        values, at = np.unique(row, return_inverse=True)
        parts = [Fraction(v).limit_denominator(_DENOMINATOR) for v in values.tolist()]
        off = max(abs(float(f) - v) for f, v in zip(parts, values.tolist(), strict=True))
        if off > 1e-12 * float(np.abs(values).max()):
            return None
        scale = math.lcm(*(f.denominator for f in parts))
        scaled = [int(f * scale) for f in parts]
        if max(map(abs, scaled)) >= _LARGEST:
            return None
        rows.append(np.array(scaled, dtype=np.int64)[at.reshape(-1)])
    return np.array(rows, dtype=np.int64).reshape(matrix.shape)


def _is_prime(n: int) -> bool:
    """Miller and Rabin; these bases decide every n below 3.2e9."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@lru_cache(maxsize=1024)
def _prime(number: int) -> int:
    """Primes from 2^31 - 1 downwards."""
    if number == 0:
        return LARGEST_PRIME
    n = _prime(number - 1) - 2
    while not _is_prime(n):
        n -= 2
    return n


def reduce(matrix: Indices, p: int) -> tuple[Indices, list[int]]:
    """Reduced row echelon form (r, K) modulo p, and its pivot columns."""
    left = matrix % p
    pivots: list[int] = []
    for column in range(left.shape[1]):
        at = len(pivots)
        if at == len(left):
            break
        found = np.flatnonzero(left[at:, column])
        if not len(found):
            continue
        other = at + int(found[0])
        left[[at, other]] = left[[other, at]]
        left[at] = left[at] * pow(int(left[at, column]), -1, p) % p
        factors = left[:, column].copy()
        factors[at] = 0
        touched = np.flatnonzero(factors)
        left[touched] = (left[touched] - factors[touched, None] * left[at]) % p
        pivots.append(column)
    return left[: len(pivots)], pivots


def _minor_bits(matrix: Indices) -> float:
    """Hadamard's bound on the bits of any minor: the smaller of the row and column bounds."""
    bits = []
    for axis in (0, 1):
        norms = 0.5 * np.log2(np.maximum((matrix.astype(np.float64) ** 2).sum(axis=axis), 1.0))
        bits.append(float(np.sort(norms)[::-1][: min(matrix.shape)].sum()))
    return min(bits)


@dataclass(frozen=True)
class Echelon:
    """Reduced echelon form over the rationals: pivot columns, and its non-zero entries."""

    pivots: tuple[int, ...]
    support: Bools  # (r, K)

    @property
    def rank(self) -> int:
        return len(self.pivots)

    @property
    def alone(self) -> tuple[int, ...]:
        """Pivot columns whose row has no other entry: the unit vectors of the row space."""
        single = self.support.sum(axis=1) == 1
        return tuple(c for c, one in zip(self.pivots, single, strict=True) if one)


def rational_echelon(matrix: Indices) -> Echelon:
    """Exact echelon form; cached, since rank, share and support of the same queries need it."""
    return _echelon_of(matrix.tobytes(), matrix.shape)


@lru_cache(maxsize=8)
def _echelon_of(content: bytes, shape: tuple[int, ...]) -> Echelon:
    """Eliminate modulo primes.

    Modulo p the rank cannot rise, and pivots cannot move to the left. A prime is good if both are
    as over the rationals; entries are then minors over a common minor. The product of the good
    primes exceeds every minor, so at least one of them shows a non-zero minor.
    """
    matrix = np.frombuffer(content, dtype=np.int64).reshape(shape)
    if not len(matrix):
        return Echelon((), np.zeros((0, matrix.shape[1]), dtype=np.bool_))
    bits = _minor_bits(matrix)
    best: tuple[int, list[int]] = (-1, [])
    support, covered, tried = np.zeros((0, 0), dtype=np.bool_), 0.0, 0.0
    number = 0
    while covered <= bits or tried <= bits:
        p = _prime(number)
        number += 1
        tried += math.log2(p)
        reduced, pivots = reduce(matrix, p)
        this = (len(pivots), [-c for c in pivots])
        if this > (best[0], [-c for c in best[1]]):
            best, covered = (len(pivots), pivots), 0.0
            support = np.zeros(reduced.shape, dtype=np.bool_)
        if pivots == best[1]:
            covered += math.log2(p)
            support |= reduced != 0
        if len(pivots) == matrix.shape[1]:
            break  # full rank: nothing more to find
    return Echelon(tuple(best[1]), support)


def real_echelon(matrix: Floats) -> Echelon:
    """In floating point, with partial pivoting: the largest entry of a column is its pivot."""
    left = matrix.copy()
    limit = TOLERANCE * float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
    pivots: list[int] = []
    for column in range(left.shape[1]):
        at = len(pivots)
        if at == len(left):
            break
        other = at + int(np.abs(left[at:, column]).argmax())
        if abs(left[other, column]) <= limit:
            left[at:, column] = 0.0
            continue
        left[[at, other]] = left[[other, at]]
        left[at] /= left[at, column]
        factors = left[:, column].copy()
        factors[at] = 0.0
        left -= factors[:, None] * left[at]
        pivots.append(column)
    kept = left[: len(pivots)]
    size = np.abs(kept).max(axis=1, initial=0.0)
    return Echelon(tuple(pivots), np.abs(kept) > ZERO * size[:, None])


def spectrum(rows: Floats) -> tuple[int, Floats, Floats]:
    """Rank, singular values (min(Q, K),) and all right singular vectors (K, K) of real rows."""
    if not len(rows):
        return 0, np.zeros(0), np.eye(rows.shape[1])
    if len(rows) > rows.shape[1]:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))  # the same row space, singular values
    _, values, right = np.linalg.svd(rows, full_matrices=True)
    return int((values > TOLERANCE * values[0]).sum()), values, right
