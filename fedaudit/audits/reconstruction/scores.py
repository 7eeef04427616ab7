"""Score guesses against records that were trained on, and as many that nobody trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.reconstruction import theory
from fedaudit.audits.records.ceilings import ceiling_by, rate_ceilings
from fedaudit.results import Bound, Estimate, FamilyTest, Underpowered
from fedaudit.stats import intervals, max_t
from fedaudit.trace import Truth

EXACT_WITHIN = 0.05
"""Distance, in median distances of two records, below which a record counts as rebuilt exactly."""
COLUMN_WITHIN = 0.05
"""Error, as a part of its range, below which a column counts as right."""
DRAWS = 9999
_BLOCK = 1 << 24  # numbers per block of distances


@dataclass(frozen=True)
class Asked:
    """All records asked about: `x` (n, D), `owner` (n,) number of the client each is asked about,
    `classes` (n,), `member` (n,) whether that client trained on it."""

    x: Floats
    owner: Indices
    classes: Indices
    member: Bools

    def of(self, client: int, *, member: bool = True) -> Bools:
        """Which records (n,) this client trained on, or which others are asked about it."""
        return np.asarray((self.owner == client) & (self.member == member))


@dataclass(frozen=True)
class Nearest:
    """Per asked record (n,): `hit`, the smallest distance of a guess that has this record as its
    nearest; `any`, the smallest distance of any guess; `guess`, the index of that guess or -1."""

    hit: Floats
    any: Floats
    guess: Indices


def usual_distance(x: Floats, rng: np.random.Generator, most: int = 500) -> float:
    """Median distance of two records of x (n, D)."""
    few = x[rng.permutation(len(x))[:most]]
    squares = _squared(few, few)
    return float(np.sqrt(np.median(squares[~np.eye(len(few), dtype=bool)])))


def nearest(guesses: Floats, x: Floats, usual: float) -> Nearest:
    """Distances of guesses (G, D) to records (n, D), in usual distances.

    A guess hits one record only, its nearest one.
    """
    hit, closest = np.full(len(x), np.inf), np.full(len(x), np.inf)
    index = np.full(len(x), -1, dtype=np.int64)
    step = max(1, _BLOCK // max(1, len(x)))
    for low in range(0, len(guesses), step):
        distance = np.sqrt(_squared(guesses[low : low + step], x)) / usual
        first = distance.argmin(axis=1)
        np.minimum.at(hit, first, distance[np.arange(len(first)), first])
        best = distance.argmin(axis=0)
        own = distance[best, np.arange(len(x))]
        index = np.where(own < closest, low + best, index)
        closest = np.minimum(closest, own)
    return Nearest(hit, closest, index)


def _squared(a: Floats, b: Floats) -> Floats:
    """Squared distances (m, n) of rows (m, D) and (n, D), exact 0 for equal rows up to rounding."""
    squares = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2.0 * a @ b.T
    return np.maximum(squares, 0.0)


def right_columns(guesses: Floats, x: Floats, low: Floats, high: Floats) -> Floats:
    """Share (n,) of the columns of x (n, D) that guesses (n, D) have right; constant ones do not
    count."""
    free = high > low
    if not free.any():
        return np.zeros(len(x))
    error = np.abs(guesses - x)[:, free] / (high - low)[free]
    return np.asarray((error <= COLUMN_WITHIN).mean(axis=1))


@dataclass(frozen=True)
class Tested:
    """The test over readings, the adjusted p-value of each client (P,), and the smallest share that
    it would have seen."""

    test: FamilyTest
    clients: Floats
    detectable: float


def hit_test(
    hits: Mapping[str, Bools | Floats],
    asked: Asked,
    clients: int,
    confidence: float,
    rng: np.random.Generator,
) -> Tested:
    """Test the readings (n,) by permuting membership within client and class.

    The headline is the first reading.

    Members and non-members of a client and class are exchangeable if guesses know nothing.
    """
    names = list(hits)
    head = hits[names[0]].astype(np.float64)
    single = [np.where(asked.owner == p, head, 0.0) for p in range(clients)]
    strata = asked.owner * (int(asked.classes.max()) + 1) + asked.classes
    weights = np.stack([*(hits[n].astype(np.float64) for n in names), *single])
    level = (1.0 - confidence) / 2.0
    found = max_t.max_t(weights, asked.member, rng=rng, strata=strata, draws=DRAWS)
    best = int(np.lexsort((-found.score[: len(names)], found.adjusted[: len(names)]))[0])
    critical = float(found.critical(level)[0])
    members = int(asked.member.sum())
    if not np.isfinite(critical):
        critical = float(theory.records_for_level(level))
    return Tested(
        test=FamilyTest(
            adjusted={n: float(p) for n, p in zip(names, found.adjusted, strict=False)},
            decided=names[best],
            level=level,
            method=f"max-T over {len(names)} readings and {clients} clients, labels permuted "
            "within client and class",
        ),
        clients=np.asarray(found.adjusted[len(names) :]),
        detectable=critical / members if critical <= members else np.inf,
    )


def share_of(hits: Bools, asked: Asked, confidence: float) -> Estimate:
    """Share of members that were hit, clustered by client; the baseline is that of non-members."""
    owners = np.unique(asked.owner[asked.member])
    mine = [asked.member & (asked.owner == p) for p in owners]
    return intervals.clustered_share(
        [int(hits[m].sum()) for m in mine],
        [int(m.sum()) for m in mine],
        confidence,
        baseline=float(hits[~asked.member].mean()),
    )


def mean_of(
    values: Floats, asked: Asked, confidence: float, rng: np.random.Generator, *, share: bool
) -> Estimate | Underpowered:
    """Mean over members with a finite value, clustered by client; the baseline is others' mean."""
    finite = np.isfinite(values)
    rows, others = asked.member & finite, ~asked.member & finite
    return intervals.cluster_mean(
        values[rows],
        asked.owner[rows],
        rng=rng,
        confidence=confidence,
        baseline=float(values[others].mean()) if others.any() else None,
        share=share,
    )


def ceilings(
    noisy: Sequence[str],
    truth: Truth,
    measure: str,
    hits: Bools,
    asked: Asked,
    confidence: float,
) -> dict[str, Bound]:
    """Ceilings on a share of records hit (n,), from the guarantees of client-side noise."""
    others = ~asked.member
    lucky = intervals.clopper_pearson(int(hits[others].sum()), int(others.sum()), confidence)
    prior = 1.0 if lucky.high is None else lucky.high
    return {
        f"ceiling of {ceiling.name} on {measure}": ceiling_by(
            ceiling,
            theory.ceiling(prior, ceiling.curve.most_true),
            of=measure,
            source="[Hayes] Theorem 2",
            assumes=f"a guess without the record succeeds for at most {prior:.3g} (upper end for "
            "records that nobody trained on); the curves of all clients, the largest at each rate",
        )
        for ceiling in rate_ceilings(truth, noisy)
    }


def asked_of(pools: Sequence[tuple[Floats, Indices]], member: Sequence[Bools]) -> Asked:
    """Records of all clients: pools of (x (n, ...), y (n,)) with their members (n,)."""
    x = np.concatenate([p[0].reshape(len(p[0]), -1) for p in pools]).astype(np.float64)
    owner = np.repeat(np.arange(len(pools)), [len(p[0]) for p in pools])
    return Asked(x, owner, np.concatenate([p[1] for p in pools]), np.concatenate(list(member)))
