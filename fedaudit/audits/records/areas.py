"""How well a statistic tells members: AUC and true-positive rates with their intervals.

Shapes: P clients, n candidates each, (P, n) with `present` where rows are padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import roc
from fedaudit.stats.roc import midranks, plain_auc

RATES = (0.01, 0.001)
"""False-positive rates at which an ROC curve is read."""


def membership_auc(
    statistic: Floats,
    member: Bools,
    present: Bools,
    classes: npt.NDArray[np.int64],
    confidence: float,
) -> Estimate | Underpowered:
    """AUC over all candidates (P, n). Chance is 1/2: members and others are matched one to one.

    Records are not independent: candidates of one client share its update, and those of one client
    and class are centred together. The interval is the widest of three: DeLong's over records; a t
    interval over the clients' own AUCs; and the deviation of the rank sum when labels are permuted
    within client and class (without a leak, labels are exchangeable there).
    """
    from scipy.special import ndtri, stdtrit

    usable = present & np.isfinite(statistic)
    pooled = roc.auc(statistic[usable], member[usable], confidence=confidence)
    if isinstance(pooled, Underpowered):
        return pooled
    own, weight = [], []
    for p in range(len(statistic)):
        mine = usable[p]
        if member[p][mine].any() and (~member[p][mine]).any():
            own.append(plain_auc(statistic[p][mine], member[p][mine]))
            weight.append(int(mine.sum()))
    method = pooled.method if pooled.method != "DeLong" else "DeLong over records"
    low, high = pooled.low, pooled.high
    others = {
        "labels permuted within client and class": float(ndtri(0.5 + confidence / 2))
        * permutation_error(statistic, member, usable, classes)
    }
    if len(own) >= 3:
        w = np.array(weight) / np.sum(weight)
        spread = np.array(own) - float(w @ own)
        count = len(own)
        error = math.sqrt(float(np.square(w * spread).sum()) * count / (count - 1))
        others["t interval over clients"] = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    for name, reach in others.items():
        if pooled.value - reach < low:
            low, method = max(0.0, pooled.value - reach), name
        high = max(high, min(1.0, pooled.value + reach))
    return Estimate(
        value=pooled.value,
        low=min(low, pooled.value),
        high=max(high, pooled.value),
        n=int(usable.sum()),
        confidence=confidence,
        baseline=0.5,
        method=f"{method}, the widest of {1 + len(others)}",
    )


def permutation_error(
    statistic: Floats, member: Bools, usable: Bools, classes: npt.NDArray[np.int64]
) -> float:
    """Standard deviation of the AUC when labels are permuted within client and class.

    The rank sum of m members among N candidates of a group has variance m (N - m) S^2 / N, S^2 the
    sample variance of their ranks; groups add up (the stratified rank-sum test).
    """
    ranks = midranks(statistic[usable])
    inside = member[usable]
    clients = np.broadcast_to(np.arange(len(classes))[:, None], classes.shape)
    _, group = np.unique(np.stack([clients[usable], classes[usable]]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    size, members = np.bincount(group), np.bincount(group, weights=inside)
    mean = np.bincount(group, weights=ranks) / size
    squares = np.bincount(group, weights=np.square(ranks - mean[group]))
    variance = squares / np.maximum(size - 1, 1)
    total = float((members * (size - members) / size * variance).sum())
    pairs = int(inside.sum()) * int((~inside).sum())
    return math.sqrt(total) / pairs


def true_positive_rates(
    statistic: Floats,
    member: Bools,
    present: Bools,
    confidence: float,
    rates: Sequence[float] = RATES,
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    usable = present & np.isfinite(statistic)
    out, short = {}, []
    for rate in rates:
        found = roc.true_positive_rate_at(
            statistic[usable], member[usable], rate, confidence=confidence
        )
        measure = f"true_positive_rate (at {100 * rate:g} %)"
        if isinstance(found, Underpowered):
            short.append(replace(found, measure=measure))
        else:
            out[measure] = found
    return out, short
