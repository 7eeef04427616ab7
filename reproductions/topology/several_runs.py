"""Lifts over several target runs: intervals that resample whole runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.audits.topology_inference import scores
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import intervals
from fedaudit.stats.combine import holm


@dataclass(frozen=True, kw_only=True)
class OverRuns:
    """One number per run: its mean with an interval over runs, and a Holm-adjusted p-value of "not
    above its baseline" among the numbers compared."""

    estimate: Estimate | Underpowered
    values: tuple[float, ...]
    p_value: float | None = None


def over_runs(
    outcomes: Sequence[scores.Outcome],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = scores.RESAMPLES,
) -> dict[str, OverRuns]:
    """Lifts of every channel and contributions, resampling whole runs.

    All use the same resamples (paired), and p-values are corrected for their number. A bootstrap of
    few runs is overconfident: intervals are at least as wide as Student's, and no p-value lies
    below 2^-runs, the sign test's smallest.
    """
    measures: dict[str, Callable[[scores.Outcome], float]] = {}
    for name in outcomes[0].guesses:
        measures[f"lift ({name})"] = lambda o, c=name: scores.lift(o.guesses[c], o.p)  # type: ignore[misc]
    for name, (less, more) in scores.CONTRIBUTIONS.items():
        if {less, more} <= set(outcomes[0].guesses):
            measures[name] = lambda o, a=less, b=more: (  # type: ignore[misc]
                scores.loss(o.guesses[a], o.p) - scores.loss(o.guesses[b], o.p)
            )
    values = {k: np.array([f(o) for o in outcomes]) for k, f in measures.items()}
    if len(outcomes) < 2:
        lack = Underpowered(what="an interval over runs", have=len(outcomes), needed=2)
        return {k: OverRuns(estimate=lack, values=tuple(v.tolist())) for k, v in values.items()}
    draws = rng.integers(0, len(outcomes), size=(resamples, len(outcomes)))
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    raw, out = [], {}
    for k, v in values.items():
        means = v[draws].mean(axis=1)
        low, high = np.quantile(means, tails)
        chance = (np.count_nonzero(means <= 0) + 1) / (resamples + 1)
        raw.append(max(chance, 0.5 ** len(outcomes)))
        student = intervals.mean(v, confidence)
        assert isinstance(student, Estimate)
        out[k] = Estimate(
            value=float(v.mean()),
            low=min(float(low), student.low),
            high=max(float(high), student.high),
            n=len(outcomes),
            confidence=confidence,
            baseline=0.0,
            method="paired bootstrap over runs, not narrower than t",
        )
    corrected = holm(raw)
    return {
        k: OverRuns(estimate=out[k], values=tuple(values[k].tolist()), p_value=float(q))
        for k, q in zip(values, corrected, strict=True)
    }
