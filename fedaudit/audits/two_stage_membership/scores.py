"""Score a survey: estimates with intervals of the risk, the attack and the bounds.

`score_guess` reads top to bottom. Each part has its own file: `attack`, `risk` ([TwoStage] Eqs.
(28), (32)), `prediction`, `lemmas` ([TwoStage] Theorem 1), `tables`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.records.areas import membership_auc, true_positive_rates
from fedaudit.audits.records.readings import readings_test
from fedaudit.audits.two_stage_membership import detection
from fedaudit.audits.two_stage_membership.attack import (
    READINGS,
    linkage,
    statistics_of,
)
from fedaudit.audits.two_stage_membership.facts import ADJUSTED_P, POWER
from fedaudit.audits.two_stage_membership.lemmas import bound_checks, violations
from fedaudit.audits.two_stage_membership.prediction import prediction
from fedaudit.audits.two_stage_membership.risk import Contribution, contributions, ratio_of, risk
from fedaudit.audits.two_stage_membership.tables import curves, noise_known, notes, per_client
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult, Bound, Estimate, Need, Underpowered
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.survey import Survey

# scoring at sites uses the statistics alone: it has no truth
__all__ = ["score_guess", "statistics_of"]


def score_guess(
    audit: TwoStageMembership,
    guess: Survey,
    truth: Truth,
    streams: Seed,
    shared: dict[str, Any],
) -> AuditResult:
    """All estimates of a survey."""
    member = np.zeros_like(guess.present)
    for i, party in enumerate(guess.parties):
        own = truth.members[party]
        member[i, : len(own)] = own
    parts = list(contributions(guess, truth, member))
    strength = detection.strengths(parts, guess, truth) if noise_known(guess) else None
    statistics = statistics_of(guess)
    headline = next(iter(statistics))
    estimates, short = _areas(audit, guess, statistics, member)
    by_measure = {_measure(name, headline): statistic for name, statistic in statistics.items()}
    readings = {name: by_measure[name] for name in by_measure if name in estimates}
    bounds: dict[str, Bound] = {}
    rates, lacking = true_positive_rates(
        statistics[headline], member, guess.present, audit.confidence
    )
    estimates |= rates
    short += lacking
    if parts:
        estimates |= risk(audit, parts, streams)
        power = _update_power(audit, parts, strength, streams)
        if isinstance(power, Estimate):
            estimates[detection.power_name(audit)] = power
        elif power is not None:
            short.append(power)
        estimates |= prediction(parts, audit, streams)
        estimates |= linkage(guess, truth, audit)
        checks, of_checks = bound_checks(guess, member)
        estimates |= checks | violations(guess, audit)
        bounds |= of_checks
    if "membership_auc" not in estimates:
        lack = next(s for s in short)
        return AuditResult(
            **shared,
            status="nothing_to_say",
            need=Need(code="underpowered", what=f"{lack}"),
            underpowered=tuple(short),
        )
    tested = readings_test(
        readings,
        member,
        guess.present,
        guess.classes,
        audit.confidence,
        streams.generator("readings"),
    )
    clients = per_client(audit, guess, parts, statistics[headline], member, strength)
    for row, p in zip(clients.values(), tested.clients, strict=True):
        row[ADJUSTED_P] = None if math.isnan(p) else float(p)
    return AuditResult(
        **{**shared, "source": f"{audit.source}; the attack ({READINGS[headline]}) is ours"},
        headline="membership_auc",
        estimates=estimates,
        test=tested.test,
        underpowered=tuple(short),
        bounds=bounds,
        per_client=clients,
        curves=curves(audit, guess, parts, statistics[headline], member, streams, strength),
        detectable=tested.detectable,
        notes=notes(audit, guess, parts, headline, member, estimates, strength),
    )


def _measure(reading: str, headline: str) -> str:
    """Name of the AUC of one reading."""
    return "membership_auc" if reading == headline else f"auc ({reading})"


def _update_power(
    audit: TwoStageMembership,
    parts: list[Contribution],
    strength: detection.Strength | None,
    streams: Seed,
) -> Estimate | Underpowered | None:
    """Power to detect an update, over the rounds in which the model moved, as for all shares of
    stage I; None where the noise is unknown or the model never moved."""
    moving = [i for i, c in enumerate(parts) if math.isfinite(ratio_of(c))]
    if strength is None or not moving:
        return None
    clients = [parts[i].client for i in moving]
    return detection.power(strength.take(moving), clients, audit, streams.generator(POWER))


def _areas(
    audit: TwoStageMembership, guess: Survey, statistics: dict[str, Floats], member: Bools
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    """AUC of every reading (P, n), and the readings that have too few records for one."""
    headline = next(iter(statistics))
    estimates: dict[str, Estimate] = {}
    short: list[Underpowered] = []
    for name, statistic in statistics.items():
        found = membership_auc(statistic, member, guess.present, guess.classes, audit.confidence)
        measure = _measure(name, headline)
        if isinstance(found, Underpowered):
            short.append(replace(found, measure=measure))
        else:
            estimates[measure] = found
    return estimates, short
