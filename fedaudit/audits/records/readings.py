"""One test over all readings of the attack and over single clients.

Shared by the membership audits. Every statistic is read over all clients, and the headline's also
for every client alone. Members and matched others of one client and class are drawn at random, and
no statistic uses labels: without a leak all labellings within client and class are equally likely.
The max-T permutation test (Westfall and Young) corrects for the number of readings at the stated
level, whatever their dependence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.results import FamilyTest
from fedaudit.stats import max_t

DRAWS, FEWER_DRAWS = 9999, 1999
"""Random labellings; fewer beyond `MANY` candidates, where each takes longer."""
MANY = 2000


@dataclass(frozen=True)
class ReadingsTest:
    """The test of the readings, the adjusted p-value of each client (P,), NaN for one that cannot
    be tested, and the smallest headline AUC that the test would have seen."""

    test: FamilyTest
    clients: Floats
    detectable: float


def readings_test(
    statistics: Mapping[str, Floats],
    member: Bools,
    present: Bools,
    classes: npt.NDArray[np.int64],
    confidence: float,
    rng: np.random.Generator,
) -> ReadingsTest:
    """Test statistics (P, n), the headline first, at once; one-sided at (1 - confidence) / 2."""
    names = list(statistics)
    labels = member[present]
    owner = np.broadcast_to(np.arange(len(present))[:, None], present.shape)[present]
    strata = owner * (int(classes.max()) + 1) + classes[present]
    pooled = [_rank_weights(statistics[name][present]) for name in names]
    head = statistics[names[0]]
    single = [
        _rank_weights(np.where(owner == p, head[present], np.nan)) for p in range(len(present))
    ]
    found = max_t.max_t(
        np.stack([*pooled, *single]),
        labels,
        rng=rng,
        strata=strata,
        draws=DRAWS if len(labels) <= MANY else FEWER_DRAWS,
    )
    level = (1.0 - confidence) / 2.0
    adjusted = found.adjusted[: len(names)]
    best = int(np.lexsort((-found.score[: len(names)], adjusted))[0])
    drawn = (
        f"in all {found.labellings:,} ways" if found.exact else f"{found.labellings - 1:,} times"
    )
    tested = np.array([bool(w.any()) for w in single])
    return ReadingsTest(
        test=FamilyTest(
            adjusted=dict(zip(names, map(float, adjusted), strict=True)),
            decided=names[best],
            level=level,
            method=f"max-T over {len(names)} readings and {int(tested.sum())} clients, labels "
            f"permuted within client and class {drawn}",
        ),
        clients=np.where(tested, found.adjusted[len(names) :], np.nan),
        detectable=_as_auc(
            float(found.critical(level)[0]), labels[np.isfinite(statistics[names[0]][present])]
        ),
    )


def _rank_weights(values: Floats) -> Floats:
    """Centred ranks of the finite values; candidates without one do not count."""
    usable = np.isfinite(values)
    out = np.zeros(len(values))
    if usable.any():
        out[usable] = max_t.rank_weights(values[usable])
    return out


def _as_auc(statistic: float, labels: Bools) -> float:
    """The AUC at a sum of `max_t.rank_weights` over members; infinite if none is that large."""
    inside, count = int(labels.sum()), len(labels)
    if not math.isfinite(statistic) or not 0 < inside < count:
        return math.inf
    ranks = (statistic + 0.5 * inside) * (count + 1)
    auc = (ranks - inside * (inside + 1) / 2) / (inside * (count - inside))
    return auc if auc <= 1.0 + 1e-9 else math.inf
