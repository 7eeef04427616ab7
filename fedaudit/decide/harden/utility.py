"""Cost of a protection in held-out accuracy, paired with the unprotected run of the same seed.

Both runs hold out the same n records. If only the unprotected model is right on b of them and only
the protected model on c, the loss is (b - c) / n. Its interval is Tango's score interval for paired
shares (Statistics in Medicine 17, 1998, 891-908), which keeps its level for small or zero b and c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from fedaudit.arrays import Floats
from fedaudit.audits.facts import GREATER
from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.measures import UTILITY
from fedaudit.errors import NotObservable
from fedaudit.results import Estimate
from fedaudit.stats.intervals import mean, wilson
from fedaudit.trace import PUBLIC, Trace

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation


SAME_MODEL = 1e-4
"""Relative difference up to which two models count as equal: a sum in another order."""

BATCH = 512


@dataclass(frozen=True)
class HeldOutScores:
    """The released model (d,) and its score on every held-out record (n,)."""

    model: npt.NDArray[Any]
    scores: Floats


def score_held_out(
    e: Evidence, federation: Federation, metric: str = "accuracy"
) -> HeldOutScores | None:
    """Scores per held-out record; None if the trace does not hold the whole model."""

    stored = e.metrics.get(metric)
    if stored is None or federation.test is None:
        return None
    try:
        model = np.array(
            Trace.open(e.path / "trace", verify_hashes=False).seen_by(PUBLIC).released()
        )
    except NotObservable:
        return None
    task, test = federation.task, federation.test
    if model.shape != (task.layout.width,):
        return None
    flat = torch.from_numpy(model.astype(np.float32))
    noise = task.draw_noise(len(test), federation.seed, "evaluation")
    parts = []
    with torch.no_grad(), task.evaluating():
        for low in range(0, len(test), BATCH):
            rows = slice(low, low + BATCH)
            z = None if noise is None else noise[rows]
            each = task.measures(task.named(flat), test.x[rows], test.y[rows], z)
            if metric not in each:
                return None
            parts.append(each[metric].double().numpy())
    scores = np.concatenate(parts)
    # the scores must reproduce the recorded metric
    return HeldOutScores(model, scores) if abs(float(scores.mean()) - stored) < 1e-3 else None


def loss_between(
    base: Evidence, own: Evidence, federation: Federation, metric: str = "accuracy"
) -> Estimate | str:
    """Accuracy lost against `base` as a share (or increase of the loss); or why it is unknown."""
    before, after = base.metrics.get(metric), own.metrics.get(metric)
    if before is None or after is None:
        have = ", ".join(own.metric_names) or "none"
        return f"no held-out {metric} is stored (stored: {have})"
    if base.path == own.path:
        return Estimate(
            value=0.0, low=0.0, high=0.0, n=base.held_out, confidence=1.0, method="the same run"
        )
    one, other = score_held_out(base, federation, metric), score_held_out(own, federation, metric)
    if one is None or other is None:
        if metric != "accuracy":
            return f"{metric} has no interval: the recording does not hold the whole model"
        return unpaired_difference(before, after, base.held_out)
    apart = float(np.linalg.norm(one.model - other.model))
    same = apart <= SAME_MODEL * float(np.linalg.norm(one.model))
    if same and np.allclose(one.scores, other.scores, rtol=SAME_MODEL, atol=0.0):
        return Estimate(
            value=0.0,
            low=0.0,
            high=0.0,
            n=len(one.scores),
            confidence=1.0,
            method="the same model up to rounding",
        )
    if UTILITY[metric] == GREATER:
        one, other = other, one  # a higher value is worse
    return paired_difference(one.scores, other.scores)


def paired_difference(before: Floats, after: Floats, confidence: float = 0.95) -> Estimate:
    """Mean of `before` - `after` (n,) over the same records, with its interval."""
    if not set(np.unique(before)) | set(np.unique(after)) <= {0.0, 1.0}:
        found = mean(before - after, confidence)
        assert isinstance(found, Estimate)
        return found
    b, c = int((before > after).sum()), int((after > before).sum())
    low, high = tango(b, c, len(before), confidence)
    return Estimate(
        value=(b - c) / len(before),
        low=low,
        high=high,
        n=len(before),
        confidence=confidence,
        method="paired records (Tango)",
    )


def tango(b: int, c: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of (b - c) / n from discordant pairs: Tango (1998).

    At its ends, the score statistic of a difference D, (b - c - n D) / sqrt(n (2 q + D (1 - D))),
    equals the normal quantile; q is the most likely share of pairs of the second kind given D.
    """
    from scipy.optimize import brentq

    z = float(ndtri(0.5 + confidence / 2))
    value = (b - c) / n

    def score(difference: float) -> float:
        d = difference
        half = -b - c + (2 * n - b + c) * d
        q = (math.sqrt(max(half * half + 8 * n * c * d * (1 - d), 0.0)) - half) / (4 * n)
        spread = n * (2 * q + d * (1 - d))
        return (b - c - n * d) / math.sqrt(max(spread, 1e-300))

    def end(side: Callable[[float], float], at: float, limit: float) -> float:
        # at the limit, the variance is zero or the statistic stays below the quantile
        near = limit - math.copysign(1e-9, limit)
        return float(brentq(side, at, near)) if side(at) * side(near) < 0 else limit

    return (
        end(lambda d: score(d) - z, value, -1.0) if value > -1 else -1.0,
        end(lambda d: score(d) + z, value, 1.0) if value < 1 else 1.0,
    )


def unpaired_difference(before: float, after: float, n: int) -> Estimate | str:
    """Difference of two shares with Newcombe's interval, wider than the paired one."""
    if not n:
        return "the number of held-out records is not stored"
    p, q = (wilson(round(x * n), n) for x in (before, after))
    value = p.value - q.value
    return Estimate(
        value=value,
        low=value - math.hypot(p.value - p.low, q.high - q.value),
        high=value + math.hypot(p.high - p.value, q.value - q.low),
        n=n,
        confidence=0.95,
        method="two shares (Newcombe), not paired",
    )
