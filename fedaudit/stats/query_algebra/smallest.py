"""The fewest clients that any combination of answers involves: the minimum distance of a code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.stats.query_algebra.elimination import (
    LARGEST_PRIME,
    ZERO,
    distinct,
    in_whole_numbers,
    query_matrix,
    rational_echelon,
    real_echelon,
    reduce,
    spectrum,
)

WORK = 300_000_000
"""Work limit of a search, in numbers touched: two or three seconds."""

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Support:
    """The fewest clients in any non-zero combination of the answers.

    A combination of `value` clients exists: `clients`. None has fewer than `floor`. `exact`: the
    two are equal. Without any answer both are 0.
    """

    value: int
    floor: int
    clients: tuple[int, ...]

    @property
    def exact(self) -> bool:
        return self.value == self.floor


def smallest_support(
    queries: npt.ArrayLike, *, below: int | None = None, work: int = WORK
) -> Support:
    """The fewest clients that any combination of the answers involves.

    With `below`, the search stops once it knows whether the support is smaller than that (then
    `value` < below, or `floor` >= below). `work` limits the search; if it does not suffice, `value`
    is the smallest found and `floor` the proven bound.
    """
    matrix = query_matrix(queries)
    rows = distinct(matrix)
    if not len(rows):
        return Support(value=0, floor=0, clients=())
    exact = in_whole_numbers(rows)
    if exact is None:
        return _real_support(rows, below, work)
    return _rational_support(exact, below, work)


def _rational_support(matrix: Indices, below: int | None, work: int) -> Support:
    echelon = rational_echelon(matrix)
    lightest = int(echelon.support.sum(axis=1).argmin())
    best = tuple(int(c) for c in np.flatnonzero(echelon.support[lightest]))
    floors = []
    # a generator seeded by the shape: the same queries get the same search
    rng = np.random.Generator(np.random.Philox(key=len(matrix) * 1_000_003 + matrix.shape[1]))
    for rows in _parts(echelon.support):
        if below is not None and len(best) < below:
            return Support(value=len(best), floor=1, clients=best)
        columns = np.flatnonzero(echelon.support[rows].any(axis=0))
        atoms = _proportional(matrix[:, columns], columns)
        weights = np.array([len(a) for a in atoms], dtype=np.int64)
        code, _ = reduce(matrix[:, [a[0] for a in atoms]], LARGEST_PRIME)
        found, floor = None, 1
        if len(code) == len(rows):  # otherwise a minor vanished modulo p: no proof
            found, floor = _search(code, weights, len(best), below, work, rng)
        if found is not None:
            clients = tuple(sorted(int(c) for i in found for c in atoms[i]))
            if _has_word_on(matrix, echelon.rank, clients):
                best = clients
            else:
                floor = 1  # another minor vanished modulo p
        floors.append(floor)
    return Support(value=len(best), floor=min(len(best), *floors), clients=best)


def _parts(support: Bools) -> list[list[int]]:
    """Independent parts: groups of echelon rows connected by shared columns."""
    left, parts = list(range(len(support))), []
    while left:
        part = [left.pop(0)]
        columns = support[part[0]].copy()
        grown = True
        while grown:
            near = [r for r in left if (support[r] & columns).any()]
            grown = bool(near)
            for r in near:
                left.remove(r)
                part.append(r)
                columns |= support[r]
        parts.append(part)
    return parts


def _proportional(matrix: Indices, names: npt.NDArray[np.intp]) -> list[list[int]]:
    """Groups of proportional columns: their clients occur together or not at all."""
    scaled = matrix // np.gcd.reduce(matrix, axis=0)
    first = scaled[(scaled != 0).argmax(axis=0), np.arange(scaled.shape[1])]
    scaled = scaled * np.sign(first)
    groups: dict[bytes, list[int]] = {}
    for column, name in zip(scaled.T, names, strict=True):
        groups.setdefault(np.ascontiguousarray(column).tobytes(), []).append(int(name))
    return list(groups.values())


def _has_word_on(matrix: Indices, full_rank: int, clients: Sequence[int]) -> bool:
    """Whether some non-zero combination involves only these clients; exact."""
    others = np.ones(matrix.shape[1], dtype=np.bool_)
    others[list(clients)] = False
    if not others.any():
        return full_rank > 0
    rest = np.unique(matrix[:, others], axis=0)
    return rational_echelon(rest[rest.any(axis=1)]).rank < full_rank


def _search(
    code: Indices,
    weights: Indices,
    upper: int,
    below: int | None,
    work: int,
    rng: np.random.Generator,
) -> tuple[list[int] | None, int]:
    """Search the code for a word lighter than `upper`: (its columns or None, proven lower bound).

    `code` (r, n) modulo p generates the words; `weights` (n,) belong to its columns.
    """
    r, n = code.shape
    best: list[int] | None = None
    target = upper

    def keep(columns: Sequence[int]) -> None:
        nonlocal best, target
        total = int(weights[list(columns)].sum())
        if total < target:
            best, target = [int(c) for c in columns], total

    for word in _light_words(code, weights, rng):
        keep(np.flatnonzero(word).tolist())
    cheapest = np.cumsum(np.sort(weights))  # weight of the lightest 1, 2, ... columns
    if r == n or r == 1:
        # every column alone, or a single word: _light_words has seen them all
        return best, min(target, int(cheapest[-1]))
    if below is not None and target < below:
        return best, 1
    goal = target if below is None else min(target, below)
    from_code = _cost(n, r)
    levels = [s for s in range(1, n - r + 1) if cheapest[s - 1] < goal]
    from_checks = sum(_cost(n, s) for s in levels)
    if from_code <= min(work, from_checks):
        for rows, _ in _contractions(code, r, ordered=False, rng=rng):
            light = (rows != 0) @ weights
            keep(np.flatnonzero(rows[int(light.argmin())]).tolist())
        return best, target
    checks = _checks(code)
    proven = 0
    for s in range(1, n - r + 1):
        goal = target if below is None else min(target, below)
        if cheapest[s - 1] >= goal:
            return best, min(target, int(cheapest[s - 1]))
        work -= _cost(n, s)
        if work < 0:
            return best, min(target, int(cheapest[proven]))
        for rows, chosen in _contractions(checks, s, ordered=True, rng=rng):
            last = chosen[:, -1] if s > 1 else np.full(len(rows), -1)
            dependent = (rows == 0) & (np.arange(n) > last[:, None])
            if dependent.any():
                which, column = np.nonzero(dependent)
                total = weights[chosen[which]].sum(axis=1) + weights[column]
                least = int(total.argmin())
                keep([*chosen[which[least]].tolist(), int(column[least])])
        proven = s
        if below is not None and target < below:
            return best, 1
    # all words of at most n - r columns are known, and any n - r + 1 columns contain a word
    keep(np.argsort(weights, kind="stable")[: n - r + 1].tolist())
    return best, target


def _light_words(
    code: Indices, weights: Indices, rng: np.random.Generator, tries: int = 24
) -> Iterator[Bools]:
    """Lightest rows of echelon forms with random pivots: the usual good upper bounds."""
    n = code.shape[1]
    for turn in range(tries if len(code) > 1 else 1):
        order = np.arange(n) if turn == 0 else rng.permutation(n)
        reduced, _ = reduce(code[:, order], LARGEST_PRIME)
        word = np.zeros(n, dtype=np.bool_)
        rows = reduced != 0
        word[order] = rows[int((rows @ weights[order]).argmin())]
        yield word


def _checks(code: Indices) -> Indices:
    """Parity checks (n - r, n) of a code: a basis of its dual."""
    r, n = code.shape
    reduced, pivots = reduce(code, LARGEST_PRIME)
    rest = [c for c in range(n) if c not in set(pivots)]
    checks = np.zeros((n - r, n), dtype=np.int64)
    checks[:, pivots] = -reduced[:, rest].T % LARGEST_PRIME
    checks[np.arange(n - r), rest] = 1
    return checks


def _cost(n: int, rows: int) -> int:
    """Numbers touched by contracting all sets of up to rows - 1 of n columns."""
    return sum(math.comb(n, t) * (rows - t) * n for t in range(1, rows)) + rows * n


class _ZeroPivot(Exception):
    """A random mixture has a zero pivot by chance."""


def _mixture(matrix: Indices, rows: int, rng: np.random.Generator) -> Indices:
    """`rows` random combinations of a matrix's rows modulo p."""
    factors = rng.integers(1, LARGEST_PRIME, size=(rows, len(matrix)), dtype=np.int64)
    out = np.zeros((rows, matrix.shape[1]), dtype=np.int64)
    for i in range(len(matrix)):  # one term at a time: a sum of products would overflow
        out = (out + factors[:, i : i + 1] * matrix[i]) % LARGEST_PRIME
    return out


def _contractions(
    matrix: Indices, rows: int, *, ordered: bool, rng: np.random.Generator
) -> Iterator[tuple[Indices, npt.NDArray[np.intp]]]:
    """Contract all sets of rows - 1 columns: ((B, n) what is left, (B, rows - 1) the columns).

    `rows` random combinations represent the matrix. Contracting a column eliminates it with one
    row. A remaining zero in another column means that this column depends on the set. `ordered`
    sets leave at least one later column. After a zero pivot by chance, all sets are repeated.
    """
    for _ in range(8):
        block = _mixture(matrix, rows, rng)[None]
        try:
            yield from _contract(block, np.zeros((1, 0), dtype=np.intp), ordered)
        except _ZeroPivot:
            continue
        return
    raise AssertionError("eight random mixtures in a row had a zero pivot by chance")


def _contract(
    block: Indices, chosen: npt.NDArray[np.intp], ordered: bool
) -> Iterator[tuple[Indices, npt.NDArray[np.intp]]]:
    batch, rows, n = block.shape
    if rows == 1:
        yield block[:, 0], chosen
        return
    last = chosen[:, -1] if chosen.shape[1] else np.full(batch, -1)
    # leave enough columns for the rest of the set, and for one that may depend on it
    stop = n - (rows - 1) + (0 if ordered else 1)
    which, column = np.nonzero((np.arange(n) > last[:, None]) & (np.arange(n) < stop))
    step = max(1, _BLOCK // (rows * n))
    for start in range(0, len(which), step):
        w, c = which[start : start + step], column[start : start + step]
        parents = block[w]
        eliminated = np.take_along_axis(parents, c[:, None, None], axis=2)[:, :, 0]
        pivot = eliminated[:, 0]
        if ((pivot == 0) & eliminated.any(axis=1)).any():
            raise _ZeroPivot
        fine = pivot != 0  # otherwise the column depends on the set already
        parents, eliminated, pivot = parents[fine], eliminated[fine], pivot[fine]
        child = pivot[:, None, None] * parents[:, 1:]
        child -= eliminated[:, 1:, None] * parents[:, :1]
        child %= LARGEST_PRIME
        yield from _contract(
            child, np.concatenate([chosen[w[fine]], c[fine, None]], axis=1), ordered
        )


def _real_support(rows: Floats, below: int | None, work: int) -> Support:
    """For weights that are not rational: tests subsets of parity checks by singular values.

    Dependent means below `ZERO`; the search covers fewer clients than the exact one.
    """
    echelon = real_echelon(rows)
    lightest = int(echelon.support.sum(axis=1).argmin())
    best = tuple(int(c) for c in np.flatnonzero(echelon.support[lightest]))
    columns = np.flatnonzero(np.abs(rows).max(axis=0) > 0)
    found, _, right = spectrum(rows[:, columns])
    checks = right[found:]
    n, size = len(columns), 0
    for size in range(1, n - found + 1):
        goal = len(best) if below is None else min(len(best), below)
        work -= math.comb(n, size) * size * size * 50
        if size >= goal or work < 0:
            return Support(value=len(best), floor=min(size, len(best)), clients=best)
        subsets = combinations(range(n), size)
        while chunk := list(islice(subsets, 20_000)):
            sets = np.array(chunk)
            sizes = np.linalg.svd(checks[:, sets].transpose(1, 0, 2), compute_uv=False)
            dependent = np.flatnonzero(sizes[:, -1] <= ZERO)
            if len(dependent):
                best = tuple(int(c) for c in columns[sets[dependent[0]]])
                return Support(value=size, floor=size, clients=best)
    return Support(value=min(len(best), size + 1), floor=min(len(best), size + 1), clients=best)
