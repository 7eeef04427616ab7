"""What a set of linear queries determines, whatever the answers are.

A query matrix has one row per query and one column per client: which clients' vectors are added up,
0/1 or with weights. Whoever holds the answers can form every combination of them, so what is given
away is the **row space** of the matrix:

    rank           how many independent combinations there are
    recoverable    clients whose own vector is one of them: their unit vector is in the row space
    support        how many clients a combination involves; the smallest is what hides nobody else
    share          each client's part of the row space, the diagonal of its projector: 1 means
                   recoverable, and where vectors are uncorrelated and of equal size it is the part
                   of a client's variance that the best linear guess explains
    condition      how much rounding (or noise) in the answers grows when they are solved

Whole numbers, and fractions with small denominators, are treated **exactly**: ranks and supports
over the rationals come from elimination modulo several primes of 31 bits, as many as the Hadamard
bound asks for, so that no minor that is not zero can vanish modulo all of them. Other real numbers
are treated in floating point: what is below `TOLERANCE` times the largest singular value is zero.

The smallest support is the minimum distance of a linear code, which is hard in general. It is
searched exhaustively as far as `work` allows, from the side that is cheaper, after clients that
always occur together are merged and independent parts are separated. What the search reports as
found is verified exactly. That it overlooks a smaller one needs a random projection modulo
2^31 - 1 to vanish twice by chance: below 1e-9 in a call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

TOLERANCE = 1e-9
"""Relative to the largest singular value; for matrices that are not rational only."""

WORK = 300_000_000
"""Numbers that a search for the smallest support may touch: two or three seconds."""

_ZERO = 1e-7  # of a unit vector's component, after the rounding of an orthogonalisation
_P = 2_147_483_647
_LARGEST = 2**31  # of an entry, so that products stay below 2^62
_DENOMINATOR = 1000
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Support:
    """The fewest clients in any combination of the answers that is not zero.

    `value` clients: such a combination exists, and `clients` are in it. No combination has fewer
    than `floor`. `exact`: the two are equal. Without any answer all are 0.
    """

    value: int
    floor: int
    clients: tuple[int, ...]

    @property
    def exact(self) -> bool:
        return self.value == self.floor


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What one more query would add to those that were answered.

    `rank` 1 if it tells anything new, else 0; `recoverable` clients that it would lay open;
    `support` of all answers together; `share` (K,) by how much each client's part would grow.
    """

    rank: int
    recoverable: tuple[int, ...]
    support: Support
    share: Floats


# -- reading -------------------------------------------------------------------------------------


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
    if not np.isfinite(matrix).all():
        raise UsageError(
            "a query has weights that are not finite",
            expected="finite numbers",
            got=f"{int((~np.isfinite(matrix)).sum())} NaN or infinite entries",
            remedy="write 1 where a client is in a query, 0 where it is not",
        )
    return matrix


def _distinct(matrix: Floats) -> Floats:
    """Rows that are not zero, each once."""
    rows = np.unique(matrix, axis=0) if len(matrix) else matrix
    return rows[rows.any(axis=1)]


def _whole(matrix: Floats) -> Whole | None:
    """The same row space with whole numbers, rows scaled; None if the numbers are not rational."""
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
        whole = [int(f * scale) for f in parts]
        if max(map(abs, whole)) >= _LARGEST:
            return None
        rows.append(np.array(whole, dtype=np.int64)[at.reshape(-1)])
    return np.array(rows, dtype=np.int64).reshape(matrix.shape)


# -- elimination ---------------------------------------------------------------------------------


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
        return _P
    n = _prime(number - 1) - 2
    while not _is_prime(n):
        n -= 2
    return n


def _reduce(matrix: Whole, p: int) -> tuple[Whole, list[int]]:
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


def _minor_bits(matrix: Whole) -> float:
    """Hadamard: no minor has more bits. The smaller of the bounds by rows and by columns."""
    bits = []
    for axis in (0, 1):
        norms = 0.5 * np.log2(np.maximum((matrix.astype(np.float64) ** 2).sum(axis=axis), 1.0))
        bits.append(float(np.sort(norms)[::-1][: min(matrix.shape)].sum()))
    return min(bits)


@dataclass(frozen=True)
class _Echelon:
    """The reduced echelon form over the rationals: pivot columns, and where it is not zero."""

    pivots: tuple[int, ...]
    support: Mask  # (r, K)

    @property
    def rank(self) -> int:
        return len(self.pivots)

    @property
    def alone(self) -> tuple[int, ...]:
        """Pivot columns whose row has no other entry: the unit vectors of the row space."""
        single = self.support.sum(axis=1) == 1
        return tuple(c for c, one in zip(self.pivots, single, strict=True) if one)


def _rational_echelon(matrix: Whole) -> _Echelon:
    """Exact; the last few are kept: rank, shares and supports of the same queries all need it."""
    return _echelon_of(matrix.tobytes(), matrix.shape)


@lru_cache(maxsize=8)
def _echelon_of(content: bytes, shape: tuple[int, ...]) -> _Echelon:
    """By elimination modulo primes.

    Modulo p the rank cannot rise, and pivots cannot move to the left. A prime is good if both are
    as over the rationals; entries are then minors over a common minor. Of a minor that is not
    zero, the good primes together exceed the size, so one of them sees it.
    """
    matrix = np.frombuffer(content, dtype=np.int64).reshape(shape)
    if not len(matrix):
        return _Echelon((), np.zeros((0, matrix.shape[1]), dtype=np.bool_))
    bits = _minor_bits(matrix)
    best: tuple[int, list[int]] = (-1, [])
    support, covered, tried = np.zeros((0, 0), dtype=np.bool_), 0.0, 0.0
    number = 0
    while covered <= bits or tried <= bits:
        p = _prime(number)
        number += 1
        tried += math.log2(p)
        reduced, pivots = _reduce(matrix, p)
        this = (len(pivots), [-c for c in pivots])
        if this > (best[0], [-c for c in best[1]]):
            best, covered = (len(pivots), pivots), 0.0
            support = np.zeros(reduced.shape, dtype=np.bool_)
        if pivots == best[1]:
            covered += math.log2(p)
            support |= reduced != 0
        if len(pivots) == matrix.shape[1]:
            break  # full rank: nothing more can be found
    return _Echelon(tuple(best[1]), support)


def _real_echelon(matrix: Floats) -> _Echelon:
    """In floating point, with complete pivoting inside a column."""
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
    return _Echelon(tuple(pivots), np.abs(kept) > _ZERO * size[:, None])


# -- what is determined --------------------------------------------------------------------------


def rank(queries: npt.ArrayLike) -> int:
    """Independent combinations of the answers; over the rationals where entries are rational."""
    rows = _distinct(query_matrix(queries))
    whole = _whole(rows)
    if whole is not None:
        return _rational_echelon(whole).rank
    return _spectrum(rows)[0]


def _spectrum(rows: Floats) -> tuple[int, Floats, Floats]:
    """Rank, singular values (min(Q, K),) and all right singular vectors (K, K) of real rows."""
    if not len(rows):
        return 0, np.zeros(0), np.eye(rows.shape[1])
    if len(rows) > rows.shape[1]:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))  # the same row space, singular values
    _, values, right = np.linalg.svd(rows, full_matrices=True)
    return int((values > TOLERANCE * values[0]).sum()), values, right


def recoverable(queries: npt.ArrayLike) -> tuple[int, ...]:
    """Clients whose own vector can be solved for: e_k lies in the row space."""
    rows = _distinct(query_matrix(queries))
    whole = _whole(rows)
    if whole is not None:
        return _rational_echelon(whole).alone
    found, _, right = _spectrum(rows)
    # what of e_k lies outside the row space; 1 - share would lose half of the digits
    outside = np.linalg.norm(right[found:], axis=0)
    return tuple(int(k) for k in np.flatnonzero(outside <= _ZERO))


def share(queries: npt.ArrayLike) -> Floats:
    """Each client's part of the row space (K,), from 0 to 1; the parts sum to the rank."""
    matrix = query_matrix(queries)
    rows = _distinct(matrix)
    whole = _whole(rows)
    found, _, right = _spectrum(rows)
    if whole is None:
        return np.clip((right[:found] ** 2).sum(axis=0), 0.0, 1.0)
    echelon = _rational_echelon(whole)
    parts = np.clip((right[: echelon.rank] ** 2).sum(axis=0), 0.0, 1.0)
    parts[list(echelon.alone)] = 1.0
    parts[~rows.any(axis=0)] = 0.0
    return parts


def condition(queries: npt.ArrayLike) -> float:
    """Largest over smallest singular value that is not zero, of the distinct queries; 1 if none."""
    rows = _distinct(query_matrix(queries))
    if not len(rows):
        return 1.0
    found, values, _ = _spectrum(rows)
    whole = _whole(rows)
    if whole is not None:
        found = _rational_echelon(whole).rank
    return float(values[0] / values[found - 1])


def combination(queries: npt.ArrayLike, clients: Sequence[int]) -> tuple[Floats, Floats]:
    """Coefficients (Q,) of answers that together involve `clients` alone, and the weights (K,).

    The one of most weight on them, its largest weight 1. UsageError where there is none.
    """
    matrix = query_matrix(queries)
    inside = np.zeros(matrix.shape[1], dtype=np.bool_)
    inside[list(clients)] = True
    # coefficients that cancel everybody else: the left null space of their columns
    left, values, _ = np.linalg.svd(matrix[:, ~inside], full_matrices=True)
    limit = TOLERANCE * max(float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0, 1.0)
    free = left[:, int((values > limit).sum()) :]
    weights = free.T @ matrix[:, inside]
    u, sizes, _ = np.linalg.svd(weights, full_matrices=False)
    if not len(sizes) or sizes[0] <= limit:
        raise UsageError(
            "no combination of the answers involves these clients alone",
            expected="clients of a combination, as smallest_support names them",
            got=", ".join(map(str, clients)) or "nobody",
            remedy="ask smallest_support for the fewest",
        )
    coefficients = free @ u[:, 0]
    out = coefficients @ matrix
    scale = out[np.abs(out).argmax()]
    out = np.where(inside, out / scale, 0.0)
    return coefficients / scale, out


def added_by(
    answered: npt.ArrayLike, query: npt.ArrayLike, *, below: int | None = None, work: int = WORK
) -> Addition:
    """What `query` (K,) would add to `answered` (Q, K), before it is asked.

    With `below`, the search for the smallest support ends as soon as it is clear whether some
    combination involves fewer clients than that.
    """
    row = query_matrix(np.atleast_2d(np.asarray(query, dtype=np.float64)))
    before = query_matrix(answered, clients=row.shape[1])
    after = np.concatenate([before, row])
    known = set(recoverable(before)) if len(before) else set()
    opened = tuple(k for k in recoverable(after) if k not in known)
    return Addition(
        rank=rank(after) - rank(before),
        recoverable=opened,
        support=smallest_support(after, below=below, work=work),
        share=share(after) - share(before),
    )


# -- the smallest support ------------------------------------------------------------------------


def smallest_support(
    queries: npt.ArrayLike, *, below: int | None = None, work: int = WORK
) -> Support:
    """The fewest clients that any combination of the answers involves.

    With `below`, only whether it is smaller than that matters: the search ends when that is clear
    (then `value` < below, or `floor` >= below). `work` bounds the search; where it does not
    suffice, `value` is the smallest that was found and `floor` what was proven.
    """
    matrix = query_matrix(queries)
    rows = _distinct(matrix)
    if not len(rows):
        return Support(value=0, floor=0, clients=())
    whole = _whole(rows)
    if whole is None:
        return _real_support(rows, below, work)
    return _rational_support(whole, below, work)


def _rational_support(matrix: Whole, below: int | None, work: int) -> Support:
    echelon = _rational_echelon(matrix)
    lightest = int(echelon.support.sum(axis=1).argmin())
    best = tuple(int(c) for c in np.flatnonzero(echelon.support[lightest]))
    floors = []
    # a generator that does not depend on the call: the same queries get the same search
    rng = np.random.Generator(np.random.Philox(key=len(matrix) * 1_000_003 + matrix.shape[1]))
    for rows in _parts(echelon.support):
        if below is not None and len(best) < below:
            return Support(value=len(best), floor=1, clients=best)
        columns = np.flatnonzero(echelon.support[rows].any(axis=0))
        atoms = _together(matrix[:, columns], columns)
        weights = np.array([len(a) for a in atoms], dtype=np.int64)
        code, _ = _reduce(matrix[:, [a[0] for a in atoms]], _P)
        found, floor = None, 1
        if len(code) == len(rows):  # otherwise a minor vanished modulo p: nothing is proven
            found, floor = _search(code, weights, len(best), below, work, rng)
        if found is not None:
            clients = tuple(sorted(int(c) for i in found for c in atoms[i]))
            if _carries(matrix, echelon.rank, clients):
                best = clients
            else:
                floor = 1  # the same, for another minor
        floors.append(floor)
    return Support(value=len(best), floor=min(len(best), *floors), clients=best)


def _parts(support: Mask) -> list[list[int]]:
    """Rows of an echelon form that share columns, directly or in turn: independent parts."""
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


def _together(matrix: Whole, names: npt.NDArray[np.intp]) -> list[list[int]]:
    """Columns that are multiples of each other: their clients occur together or not at all."""
    scaled = matrix // np.gcd.reduce(matrix, axis=0)
    first = scaled[(scaled != 0).argmax(axis=0), np.arange(scaled.shape[1])]
    scaled = scaled * np.sign(first)
    groups: dict[bytes, list[int]] = {}
    for column, name in zip(scaled.T, names, strict=True):
        groups.setdefault(np.ascontiguousarray(column).tobytes(), []).append(int(name))
    return list(groups.values())


def _carries(matrix: Whole, full_rank: int, clients: Sequence[int]) -> bool:
    """Whether some combination that is not zero involves these clients alone, exactly."""
    others = np.ones(matrix.shape[1], dtype=np.bool_)
    others[list(clients)] = False
    if not others.any():
        return full_rank > 0
    rest = np.unique(matrix[:, others], axis=0)
    return _rational_echelon(rest[rest.any(axis=1)]).rank < full_rank


def _search(
    code: Whole,
    weights: Whole,
    upper: int,
    below: int | None,
    work: int,
    rng: np.random.Generator,
) -> tuple[list[int] | None, int]:
    """(columns of a lighter word than `upper` or None, what no word of this code is lighter than).

    `code` (r, n) modulo p generates it; `weights` (n,) of its columns.
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
    cheapest = np.cumsum(np.sort(weights))  # of 1, 2, ... columns
    if r == n or r == 1:
        # every column by itself, or one word alone: _light_words has seen all of them
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
    # all words of at most n - r columns are known, and any n - r + 1 columns hold a word
    keep(np.argsort(weights, kind="stable")[: n - r + 1].tolist())
    return best, target


def _light_words(
    code: Whole, weights: Whole, rng: np.random.Generator, tries: int = 24
) -> Iterator[Mask]:
    """The lightest row of echelon forms with random pivots: the usual way to good upper bounds."""
    n = code.shape[1]
    for turn in range(tries if len(code) > 1 else 1):
        order = np.arange(n) if turn == 0 else rng.permutation(n)
        reduced, _ = _reduce(code[:, order], _P)
        word = np.zeros(n, dtype=np.bool_)
        rows = reduced != 0
        word[order] = rows[int((rows @ weights[order]).argmin())]
        yield word


def _checks(code: Whole) -> Whole:
    """Parity checks (n - r, n) of a code in reduced form: both span what the other is blind to."""
    r, n = code.shape
    reduced, pivots = _reduce(code, _P)
    rest = [c for c in range(n) if c not in set(pivots)]
    checks = np.zeros((n - r, n), dtype=np.int64)
    checks[:, pivots] = -reduced[:, rest].T % _P
    checks[np.arange(n - r), rest] = 1
    return checks


def _cost(n: int, rows: int) -> int:
    """Numbers touched when all sets of up to rows - 1 of n columns are contracted."""
    return sum(math.comb(n, t) * (rows - t) * n for t in range(1, rows)) + rows * n


class _Unlucky(Exception):
    """A random mixture gave a pivot of zero by chance."""


def _mixture(matrix: Whole, rows: int, rng: np.random.Generator) -> Whole:
    """`rows` random combinations of a matrix's rows modulo p."""
    factors = rng.integers(1, _P, size=(rows, len(matrix)), dtype=np.int64)
    out = np.zeros((rows, matrix.shape[1]), dtype=np.int64)
    for i in range(len(matrix)):  # one term at a time: a sum of products would overflow
        out = (out + factors[:, i : i + 1] * matrix[i]) % _P
    return out


def _contractions(
    matrix: Whole, rows: int, *, ordered: bool, rng: np.random.Generator
) -> Iterator[tuple[Whole, npt.NDArray[np.intp]]]:
    """Contract all sets of rows - 1 columns: ((B, n) what is left, (B, rows - 1) the columns).

    `rows` random combinations stand for the matrix. Contracting a column eliminates it by one row.
    A zero that is left in another column means that this one depends on the set. `ordered` sets
    leave at least one later column. After an unlucky draw all sets come again.
    """
    for _ in range(8):
        block = _mixture(matrix, rows, rng)[None]
        try:
            yield from _contract(block, np.zeros((1, 0), dtype=np.intp), ordered)
        except _Unlucky:
            continue
        return
    raise AssertionError("eight random mixtures in a row had a zero pivot by chance")


def _contract(
    block: Whole, chosen: npt.NDArray[np.intp], ordered: bool
) -> Iterator[tuple[Whole, npt.NDArray[np.intp]]]:
    batch, rows, n = block.shape
    if rows == 1:
        yield block[:, 0], chosen
        return
    last = chosen[:, -1] if chosen.shape[1] else np.full(batch, -1)
    # enough columns must be left for the rest of the set, and for one that may depend on it
    stop = n - (rows - 1) + (0 if ordered else 1)
    which, column = np.nonzero((np.arange(n) > last[:, None]) & (np.arange(n) < stop))
    step = max(1, _BLOCK // (rows * n))
    for start in range(0, len(which), step):
        w, c = which[start : start + step], column[start : start + step]
        parents = block[w]
        eliminated = np.take_along_axis(parents, c[:, None, None], axis=2)[:, :, 0]
        pivot = eliminated[:, 0]
        if ((pivot == 0) & eliminated.any(axis=1)).any():
            raise _Unlucky
        fine = pivot != 0  # otherwise the column depends on the set already
        parents, eliminated, pivot = parents[fine], eliminated[fine], pivot[fine]
        child = pivot[:, None, None] * parents[:, 1:]
        child -= eliminated[:, 1:, None] * parents[:, :1]
        child %= _P
        yield from _contract(
            child, np.concatenate([chosen[w[fine]], c[fine, None]], axis=1), ordered
        )


def _real_support(rows: Floats, below: int | None, work: int) -> Support:
    """For weights that are not rational: subsets of parity checks by their smallest singular value.

    Dependent means below `TOLERANCE`; the search covers fewer clients than the exact one.
    """
    echelon = _real_echelon(rows)
    lightest = int(echelon.support.sum(axis=1).argmin())
    best = tuple(int(c) for c in np.flatnonzero(echelon.support[lightest]))
    columns = np.flatnonzero(np.abs(rows).max(axis=0) > 0)
    found, _, right = _spectrum(rows[:, columns])
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
            dependent = np.flatnonzero(sizes[:, -1] <= _ZERO)
            if len(dependent):
                best = tuple(int(c) for c in columns[sets[dependent[0]]])
                return Support(value=size, floor=size, clients=best)
    return Support(value=min(len(best), size + 1), floor=min(len(best), size + 1), clients=best)
