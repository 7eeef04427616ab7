"""Estimates, test and ceilings of the attacks' statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.membership.facts import (
    ABOVE,
    ADJUSTED_P,
    ADVANTAGE,
    AREA,
    EXPOSED,
    HEADLINE,
    RATE,
)
from fedaudit.audits.records.areas import membership_auc, true_positive_rates
from fedaudit.audits.records.ceilings import ceiling_by, rate_ceilings
from fedaudit.results import Bound, Estimate, Underpowered
from fedaudit.stats import intervals, roc
from fedaudit.trace import Truth

RATES = (0.05, 0.01, 0.001)
"""False-positive rates at which true-positive rates are stated."""
MOST_POINTS = 200
MOST_EXPOSED = 20
"""Records that a result lists."""


@dataclass(frozen=True)
class AskedCandidates:
    """Who was asked about: `member`, `present` and `classes` (P, n)."""

    member: Bools
    present: Bools
    classes: Indices
    confidence: float


def area(statistic: Floats, asked: AskedCandidates) -> Estimate | Underpowered:
    return membership_auc(statistic, asked.member, asked.present, asked.classes, asked.confidence)


def measure_of(reading: str, headline: str) -> str:
    """Name of the AUC of one reading."""
    return HEADLINE if reading == headline else f"{AREA} ({reading})"


def estimates_of(
    statistics: Mapping[str, Floats], asked: AskedCandidates
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    """AUC of every reading, rates of the headline (the first reading)."""
    headline = next(iter(statistics))
    out: dict[str, Estimate] = {}
    short: list[Underpowered] = []
    for name, statistic in statistics.items():
        found, measure = area(statistic, asked), measure_of(name, headline)
        if isinstance(found, Underpowered):
            short.append(replace(found, measure=measure))
        else:
            out[measure] = found
    head = statistics[headline]
    rates, lacking = true_positive_rates(
        head, asked.member, asked.present, asked.confidence, rates=RATES
    )
    short += lacking
    if HEADLINE in out:
        out |= rates | {ADVANTAGE: advantage(head, asked)}
    return out, short


def advantage(evidence: Floats, asked: AskedCandidates) -> Estimate:
    """Rate of members minus rate of others with evidence above the median, clustered by client.

    The median uses no label. Members and others are matched one to one, so the difference of rates
    is twice the share of right calls, minus one.
    """
    usable = asked.present & np.isfinite(evidence)
    called = evidence > np.median(evidence[usable])
    rows = [
        p
        for p in range(len(called))
        if (usable[p] & asked.member[p]).any() and (usable[p] & ~asked.member[p]).any()
    ]
    yes, tried = [], []
    for p in rows:
        right = called[p] == asked.member[p]
        yes.append(int(right[usable[p]].sum()))
        tried.append(int(usable[p].sum()))
    share = intervals.clustered_share(yes, tried, asked.confidence, baseline=0.5)
    return replace(
        share,
        value=2 * share.value - 1,
        low=2 * share.low - 1,
        high=2 * share.high - 1,
        baseline=0.0,
    )


def per_client(
    parties: Sequence[str], statistic: Floats, asked: AskedCandidates, adjusted: Floats
) -> dict[str, dict[str, Any]]:
    """Client -> columns."""
    out: dict[str, dict[str, Any]] = {}
    above = others_above(statistic, asked)
    for i, party in enumerate(parties):
        mine = np.where(asked.member[i] & np.isfinite(above[i]), statistic[i], -np.inf)
        top = int(mine.argmax()) if np.isfinite(mine).any() else None
        one = slice(i, i + 1)
        own = area(
            statistic[one],
            AskedCandidates(
                asked.member[one], asked.present[one], asked.classes[one], asked.confidence
            ),
        )
        known = isinstance(own, Estimate)
        out[party] = {
            "AUC": own.value if isinstance(own, Estimate) else None,
            "low": own.low if isinstance(own, Estimate) else None,
            "high": own.high if isinstance(own, Estimate) else None,
            "members_asked": int((asked.member[i] & asked.present[i]).sum()),
            EXPOSED: None if top is None else f"record {top + 1}",
            ABOVE: None if top is None else float(above[i, top]),
            ADJUSTED_P: float(adjusted[i]) if known and not math.isnan(adjusted[i]) else None,
        }
    return out


def others_above(statistic: Floats, asked: AskedCandidates) -> Floats:
    """Share (P, n) of all records that nobody trained on with at least as much evidence; NaN where
    a candidate has none."""
    usable = asked.present & np.isfinite(statistic)
    others = np.sort(statistic[usable & ~asked.member])
    if not len(others):
        return np.full(statistic.shape, np.nan)
    above = 1.0 - np.searchsorted(others, statistic, side="left") / len(others)
    return np.where(usable, above, np.nan)


def most_exposed(
    statistic: Floats, asked: AskedCandidates
) -> dict[str, dict[str, tuple[float, ...]]]:
    """The training records with the most evidence: number of the client in the client table, and of
    the record among those that the client was asked about, from 1."""
    usable = asked.present & asked.member & np.isfinite(statistic)
    where = np.argwhere(usable)
    top = where[np.argsort(-statistic[usable], kind="stable")[:MOST_EXPOSED]]
    if not len(top):
        return {}
    above, at = others_above(statistic, asked), tuple(top.T)
    columns = {"client": top[:, 0] + 1, "record": top[:, 1] + 1}
    values = columns | {"evidence": statistic[at], "others above": above[at]}
    return {"most exposed records": {n: tuple(map(float, v)) for n, v in values.items()}}


def curves(statistic: Floats, asked: AskedCandidates) -> dict[str, dict[str, tuple[float, ...]]]:
    """The headline's ROC curve."""
    usable = asked.present & np.isfinite(statistic)
    found = roc.curve(statistic[usable], asked.member[usable])
    if isinstance(found, Underpowered):
        return {}
    points = len(found.threshold)
    keep = np.unique(np.linspace(0, points - 1, min(MOST_POINTS, points)).astype(int))
    return {
        "ROC": {
            "false positives": tuple(map(float, found.false_positive_rate[keep])),
            "true positives": tuple(map(float, found.true_positive_rate[keep])),
        }
    }


def ceilings(
    noisy: Sequence[str], truth: Truth, estimates: Mapping[str, Estimate]
) -> dict[str, Bound]:
    """Upper bounds from guarantees whose noise is added before this vantage sees anything."""
    out = {}
    for ceiling in rate_ceilings(truth, noisy):
        values = {HEADLINE: ceiling.curve.area, ADVANTAGE: ceiling.curve.total_variation} | {
            f"{RATE} (at {100 * rate:g} %)": ceiling.curve.most_true(rate) for rate in RATES
        }
        for of, value in values.items():
            if of in estimates:
                out[f"ceiling of {ceiling.name} on {of}"] = ceiling_by(
                    ceiling,
                    value,
                    of=of,
                    source="trade-off curve",
                    assumes="the curves of all clients, the largest at each rate",
                )
    return out


def with_ceilings(
    curves: Mapping[str, Mapping[str, tuple[float, ...]]], noisy: Sequence[str], truth: Truth
) -> dict[str, dict[str, tuple[float, ...]]]:
    """The curves, with the ceiling of each protection as a further column."""
    out = {name: dict(columns) for name, columns in curves.items()}
    for ceiling in rate_ceilings(truth, noisy):
        for columns in out.values():
            columns[f"ceiling of {ceiling.name}"] = tuple(
                map(ceiling.curve.most_true, columns["false positives"])
            )
    return out
