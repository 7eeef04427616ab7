"""The risk as published: TS-MIA and the shares of its two stages.

[TwoStage] Eqs. (28), (30), (31) and (32): an update survives if SUR > tau, and attributes if J_m >
0 over a draw of m members. The difference of [TwoStage] Eqs. (11) and (12) is stated too. Every
number is measured on contributions: one client's visible single update in one round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.two_stage_membership import theory
from fedaudit.audits.two_stage_membership.attack import round_statistics
from fedaudit.audits.two_stage_membership.facts import (
    ADVANTAGE,
    FROM_TRUE,
    ON_MEMBERS,
    SURVIVAL,
    TS_MIA,
    TS_MIA_DIFFERENCE,
    TS_MIA_OF_OTHERS,
)
from fedaudit.randomness import Seed
from fedaudit.results import Estimate
from fedaudit.stats import intervals
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.survey import RoundSurvey, Survey


RESAMPLES = 200
"""Draws of m records behind every Pr(J_m > 0)."""


@dataclass(frozen=True)
class Contribution:
    """One client's update in one round: its row, and the candidates' increments delta (n,).

    `client`: index of `party`, which resampling uses instead of names. `deviation` (n,): empirical
    minus true score advantage, if rows are named. `evidence` (n,): the headline attack's statistic
    of this round. `classes` (n,) of the candidates.
    """

    round: int
    party: str
    client: int
    row: int
    survey: RoundSurvey
    delta: Floats
    member: Bools
    deviation: Floats | None
    evidence: Floats
    classes: npt.NDArray[np.int64]


def contributions(guess: Survey, truth: Truth, member: Bools) -> Iterator[Contribution]:
    """Every (round, client) with a visible single update, with the client's own candidates."""
    for survey, evidence in zip(guess.rounds, round_statistics(guess), strict=True):
        if survey.stage_one is None:  # a sum, or clients with different models
            continue
        # senders are on the wire, or only in the truth
        senders = {} if survey.seen == "named" else truth.senders(survey.number)
        for row, message in enumerate(survey.messages):
            party = senders.get(message, survey.senders[row])
            if party not in guess.parties:
                continue
            p = guess.parties.index(party)
            keep, deviation = guess.present[p], None
            if survey.seen == "named":
                assert survey.own is not None
                assert survey.isolated is not None
                delta = survey.own[p]
                deviation = (survey.aggregate[p] - survey.isolated[p])[keep]
            else:
                assert survey.by_row is not None
                delta = survey.by_row[row, p]
            yield Contribution(
                round=survey.number,
                party=party,
                client=p,
                row=row,
                survey=survey,
                delta=delta[keep],
                member=member[p][keep],
                deviation=deviation,
                evidence=evidence[p][keep],
                classes=guess.classes[p][keep],
            )


def risk(
    audit: TwoStageMembership,
    parts: list[Contribution],
    streams: Seed,
) -> dict[str, Estimate]:
    """TS-MIA_m and its two stages over rounds and clients. [TwoStage] Eqs. (28), (31), (32)

    The baseline of TS-MIA, of Pr(A | S) and of J is the same quantity on matched records that
    nobody trained on: a value below it says nothing about membership. That of TS-MIA is an estimate
    of its own, and so is the difference of the two, paired by client and round. The baseline of SUR
    and of stage I is that of n equal, orthogonal updates: SUR = 1 / sqrt(n).
    """
    parts = [c for c in parts if np.isfinite(ratio_of(c))]
    if not parts:
        return {}
    clients = [c.client for c in parts]
    survived = np.array([survives(c) for c in parts], dtype=float)
    inside = np.array([share_above_zero(c, True, audit.sample, streams) for c in parts])
    outside = np.array([share_above_zero(c, False, audit.sample, streams) for c in parts])
    advantage = np.array([float(theory.phi(c.delta[c.member]).mean()) for c in parts])
    foreign = np.array([float(theory.phi(c.delta[~c.member]).mean()) for c in parts])
    ratio = np.array([ratio_of(c) for c in parts])
    out: dict[str, Estimate] = {}

    def add(
        name: str,
        values: Floats,
        baseline: float | None,
        keep: Bools | None = None,
        *,
        share: bool = True,
    ) -> None:
        chosen = np.ones(len(values), bool) if keep is None else keep
        if not chosen.any():
            return
        found = intervals.cluster_mean(
            values[chosen],
            np.array(clients)[chosen],
            rng=streams.generator(name),
            confidence=audit.confidence,
            baseline=baseline,
            share=share,
        )
        if isinstance(found, Estimate):
            out[name] = found

    add(TS_MIA, survived * inside, float((survived * outside).mean()))
    add(TS_MIA_OF_OTHERS, survived * outside, None)
    add(TS_MIA_DIFFERENCE, survived * (inside - outside), 0.0, share=False)
    if TS_MIA_DIFFERENCE in out:
        out[TS_MIA_DIFFERENCE] = _never_certain(out[TS_MIA_DIFFERENCE])
    # equal and unrelated updates are orthogonal
    apart = np.array([1.0 / math.sqrt(len(c.survey.messages)) for c in parts])
    floors = np.array([c.survey.threshold for c in parts])
    add(SURVIVAL, survived, float((apart > floors).mean()))
    held = survived > 0
    given = float(outside[held].mean()) if held.any() else None
    add(ADVANTAGE, inside, given, held)
    add(ON_MEMBERS, advantage, float(foreign.mean()), share=False)
    if all(c.deviation is not None for c in parts):
        off = np.array([_deviation(c, c.member) for c in parts])
        abroad = float(np.mean([_deviation(c, ~c.member) for c in parts]))
        add(FROM_TRUE, off, abroad, share=False)
    add("sur", ratio, float(apart.mean()), share=False)
    return out


def _never_certain(difference: Estimate) -> Estimate:
    """A difference that is 0 for every client has no spread to resample: as many clients without
    one leave room for a share of clients with one (Wilson), which bounds the mean difference."""
    if not difference.low == difference.value == difference.high == 0:
        return difference
    reach = intervals.wilson(0, difference.n, difference.confidence).high
    return replace(difference, low=-reach, high=reach, method="0 for every client: Wilson's limit")


def share_above_zero(c: Contribution, inside: bool, sample: int, streams: Seed) -> float:
    """Pr(J_m > 0) of one contribution's members, or of its non-members."""
    rng = streams.generator("J of members" if inside else "J of non-members", c.client, c.round)
    return positive_share(c.delta[c.member == inside], sample, rng)


def positive_share(delta: Floats, sample: int, rng: np.random.Generator) -> float:
    """Pr(J_m > 0) over draws of m records with replacement. [TwoStage] Eqs. (30), (31)"""
    values = theory.phi(delta)
    draws = values[rng.integers(0, len(values), size=(RESAMPLES, sample))].mean(axis=1)
    return float((draws > 0).mean())


def _deviation(c: Contribution, of: Bools) -> float:
    """Mean |advantage under the aggregate - under u alone|. [TwoStage] Eqs. (11), (12)"""
    assert c.deviation is not None
    return float(np.abs(c.deviation[of]).mean())


def ratio_of(c: Contribution) -> float:
    assert c.survey.stage_one is not None
    return float(c.survey.stage_one.ratio[c.row])


def survives(c: Contribution) -> bool:
    return ratio_of(c) > c.survey.threshold
