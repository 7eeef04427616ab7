"""Detection power of stage I: an update's length against the noise, which may hide the length too.

Ours, beside [TwoStage] Eq. (10): the power of the shift test depends on |u| / sigma. A client's own
noise is part of the observed u, and in a large model its energy d own^2 dwarfs |u|^2. If the truth
holds the updates before the noise, their length is used. Otherwise the noise's energy is
subtracted, and the rest is averaged over updates before taking the root. If the rest cannot be told
from zero, no power is stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.audits.two_stage_membership.facts import POWER
from fedaudit.audits.two_stage_membership.theory import detection_power
from fedaudit.errors import FedauditError
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import intervals
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.risk import Contribution
    from fedaudit.audits.two_stage_membership.survey import Survey


LEFT_OPEN = 0.1
"""Widest range of a single update's power before updates are averaged."""


@dataclass(frozen=True)
class Strength:
    """Squared SNR of N updates (N,): estimate, standard error (0: exact), and limit by clipping.

    `known`: from the updates before their noise.
    """

    squared: Floats
    error: Floats
    most: Floats
    known: bool = False

    def take(self, rows: Sequence[int]) -> Strength:
        at = np.asarray(rows, dtype=np.int64)
        return Strength(self.squared[at], self.error[at], self.most[at], self.known)

    @property
    def snr(self) -> Floats:
        """SNR of each update by itself, (N,)."""
        return np.sqrt(np.clip(self.squared, 0.0, self.most))


def strengths(parts: Sequence[Contribution], guess: Survey, truth: Truth) -> Strength:
    """Squared SNR of every contribution, from the truth if it holds raw updates."""
    squared, error, most = [], [], []
    clip = None if guess.noise is None else guess.noise.clip
    lengths = {t: _lengths(truth, t) if clip else {} for t in {c.round for c in parts}}
    known = clip is not None and all(c.party in lengths[c.round] for c in parts)
    for c in parts:
        stage = c.survey.stage_one
        assert stage is not None
        assert c.survey.shares is not None
        squared.append(float(stage.snr_squared[c.row]))
        error.append(float(stage.snr_error[c.row]))
        most.append(math.inf)
        if clip is None or not c.survey.sigma > 0:
            continue
        unit = c.survey.scale * float(c.survey.shares[c.row]) / c.survey.sigma
        most[-1] = (unit * clip) ** 2
        if known:
            squared[-1], error[-1] = (unit * min(clip, lengths[c.round][c.party])) ** 2, 0.0
    return Strength(np.array(squared), np.array(error), np.array(most), known)


def _lengths(truth: Truth, number: int) -> dict[str, float]:
    """Party -> norm of its update before any protection, if the run kept it."""
    try:
        names, rows = truth.raw_updates(number)
    except (FedauditError, KeyError):
        return {}
    return dict(zip(names, map(float, np.linalg.norm(rows, axis=1)), strict=True))


@dataclass(frozen=True)
class Pooled:
    """Root mean square SNR of several updates and its interval; `above_zero`: its low end is."""

    snr: float
    low: float
    high: float
    above_zero: bool


def pooled(of: Strength, confidence: float) -> Pooled:
    """Average squared SNRs, then take the root: the mean is unbiased, single roots are not."""
    from scipy.special import ndtri

    if not np.isfinite(of.squared).all():
        return Pooled(math.inf, math.inf, math.inf, above_zero=True)
    mean = float(of.squared.mean())
    reach = float(ndtri(0.5 + confidence / 2) * np.linalg.norm(of.error)) / len(of.squared)
    low, high = (max(v, 0.0) for v in (mean - reach, min(mean + reach, float(of.most.mean()))))
    inside = min(max(mean, low), max(low, high))
    return Pooled(math.sqrt(inside), math.sqrt(low), math.sqrt(max(low, high)), above_zero=low > 0)


def readable(of: Strength, audit: TwoStageMembership) -> bool:
    """Whether every single update's length is known well enough to state its power."""
    from scipy.special import ndtri

    if not of.error.any():
        return True
    reach = float(ndtri(0.5 + audit.confidence / 2)) * of.error
    ends = [np.sqrt(np.maximum(of.squared + side * reach, 0.0)) for side in (-1, 1)]
    low, high = (detection_power(e, audit.false_positive_rate) for e in ends)
    return bool((high - low).max() <= LEFT_OPEN)


def power(
    of: Strength, clients: Sequence[int], audit: TwoStageMembership, rng: np.random.Generator
) -> Estimate | Underpowered:
    """Power to find an update at the stated false-positive rate, over clients and rounds.

    The mean over updates if their lengths are known, otherwise the power at their root mean square
    length. Underpowered if that cannot be told from zero: pure noise would look like a signal half
    of the time.
    """
    from scipy.special import ndtri

    rate, name = audit.false_positive_rate, power_name(audit)
    names = np.array(clients)
    if readable(of, audit):
        return intervals.cluster_mean(
            detection_power(of.snr, rate),
            names,
            rng=rng,
            confidence=audit.confidence,
            baseline=rate,
            share=True,
        )
    found = pooled(of, audit.confidence)
    count = len(of.squared)
    if not found.above_zero:
        # enough updates to tell a power of one half from no update
        half = float(ndtri(1.0 - rate)) ** 2
        spread = math.sqrt(float(np.square(of.error).mean()))
        enough = math.ceil((float(ndtri(0.5 + audit.confidence / 2)) * spread / half) ** 2)
        what = f"{name}, with updates whose own noise hides their length,"
        needed = max(count + 1, enough)
        return Underpowered(what=what, have=count, needed=needed, measure=name)
    # clients differ as well
    across = intervals.cluster_mean(of.squared, names, rng=rng, confidence=audit.confidence)
    low, high = found.low, found.high
    if isinstance(across, Estimate) and across.low is not None and across.high is not None:
        low = min(low, math.sqrt(max(across.low, 0.0)))
        high = max(high, min(math.sqrt(max(across.high, 0.0)), math.sqrt(float(of.most.mean()))))
    value, least, most = (float(detection_power(s, rate)) for s in (found.snr, low, high))
    return Estimate(
        value=value,
        low=min(least, value),
        high=max(most, value),
        n=len(np.unique(names)),
        confidence=audit.confidence,
        baseline=rate,
        method=f"at the root mean square SNR of {count} updates, energy of their own noise "
        "subtracted; the wider of its error and a bootstrap over clients",
    )


def power_name(audit: TwoStageMembership) -> str:
    return f"{POWER} (at {100 * audit.false_positive_rate:g} %)"


def note(of: Strength, audit: TwoStageMembership) -> str:
    """A note on the power if updates carry noise of their own; empty if none is needed."""
    if of.known:
        return "SNR: from the updates before their noise, as the run kept them"
    if readable(of, audit):
        return ""
    found = pooled(of, audit.confidence)
    most = float(detection_power(found.high, audit.false_positive_rate))
    return (
        f"noise inside the updates hides their length: SNR at most {found.high:.2f}, power at most "
        f"{most:.2f}, on average over clients and rounds; set trace.raw_updates = true to keep raw "
        "updates, and both are exact"
    )
