"""Score a survey: estimates with intervals of the risk, the attack and the bounds.

`score_guess` reads top to bottom. Each part has its own file: `attack`, `risk` ([TwoStage] Eqs.
(28), (32)), `prediction`, `lemmas` ([TwoStage] Theorem 1), `tables`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.audits.two_stage_membership import detection
from fedaudit.audits.two_stage_membership.attack import (
    linkage,
    membership_auc,
    statistics_of,
    true_positive_rates,
)
from fedaudit.audits.two_stage_membership.lemmas import bound_checks, violations
from fedaudit.audits.two_stage_membership.prediction import prediction
from fedaudit.audits.two_stage_membership.risk import contributions, ratio_of, risk
from fedaudit.audits.two_stage_membership.tables import curves, noise_known, notes, per_client
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
    rng: np.random.Generator,
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
    estimates: dict[str, Estimate] = {}
    short: list[Underpowered] = []
    bounds: dict[str, Bound] = {}
    for name, statistic in statistics.items():
        found = membership_auc(statistic, member, guess.present, guess.classes, audit.confidence)
        measure = "membership_auc" if name == headline else f"auc ({name})"
        if isinstance(found, Underpowered):
            short.append(replace(found, measure=measure))
        else:
            estimates[measure] = found
    rates, lacking = true_positive_rates(statistics[headline], member, guess.present, audit)
    estimates |= rates
    short += lacking
    if parts:
        estimates |= risk(audit, parts, rng)
        # only rounds in which the model moved, as for all shares of stage I
        moving = [i for i, c in enumerate(parts) if math.isfinite(ratio_of(c))]
        if strength is not None and moving:
            power = detection.power(
                strength.take(moving), [parts[i].client for i in moving], audit, rng
            )
            if isinstance(power, Estimate):
                estimates[detection.power_name(audit)] = power
            else:
                short.append(power)
        estimates |= prediction(parts, audit, rng)
        estimates |= linkage(guess, truth, audit)
        checks, of_checks = bound_checks(guess, member)
        estimates |= checks | violations(guess, audit)
        bounds |= of_checks
    if "membership_auc" not in estimates:
        lack = next(s for s in short)
        return AuditResult(
            **shared,
            source=audit.source,
            status="nothing_to_say",
            need=Need(code="underpowered", what=f"{lack}"),
            underpowered=tuple(short),
        )
    auc = estimates["membership_auc"]
    return AuditResult(
        **shared,
        source=f"{audit.source}; the attack ({headline}) is ours",
        headline="membership_auc",
        estimates=estimates,
        underpowered=tuple(short),
        bounds=bounds,
        per_client=per_client(audit, guess, parts, statistics[headline], member, strength),
        curves=curves(audit, guess, parts, statistics[headline], member, rng, strength),
        # detected once the low end lies above one half
        detectable=min(1.0, 0.5 + (auc.value - auc.low)) if auc.high > auc.low else None,
        notes=notes(audit, guess, parts, headline, member, estimates, strength),
    )
