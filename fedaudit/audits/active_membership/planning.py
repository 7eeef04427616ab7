"""Number of games that a result has and needs."""

from __future__ import annotations

from fedaudit.audits.planning import Aim, SampleSize, for_rate, from_width
from fedaudit.results import AuditResult
from fedaudit.stats import power

HEADLINE = "success"
RULE = "exact power of the binomial test of fair coins"
SHARED = f"{RULE}, at half the error: single clients have the other half"


def _level(aim: Aim, *, shared: bool) -> tuple[float, float]:
    """Power and confidence of the test of success; `shared`: with tests of single clients."""
    wanted, confidence = aim.level
    return wanted, 1.0 - (1.0 - confidence) / 2 if shared else confidence


def samples(result: AuditResult, aim: Aim) -> list[SampleSize]:
    members = result.estimates.get("true_positive_rate")
    others = result.estimates.get("true_negative_rate")
    by_trial = int(result.settings.get("trials", 1)) > 1
    have_others = None
    if members is None or others is None or by_trial:
        how = f"set audits.{result.audit}.trials"
        first = from_width(result, HEADLINE, aim, unit="trials", how=how)
    else:
        have_others = others.n
        wanted, shared = aim.goal(0.5), bool(result.per_client)
        level = _level(aim, shared=shared)
        first = SampleSize(
            audit=result.audit,
            measure=HEADLINE,
            unit="games",
            chance=0.5,
            have=members.n + others.n,
            seen=power.detectable_success(members.n + others.n, *level),
            wanted=wanted,
            needed=power.games_for_success(wanted, *level),
            how=f"set audits.{result.audit}.games, or recorded for games through the engine",
            rule=SHARED if shared else RULE,
        )
    have_members = None if members is None else members.n
    return [
        first,
        *(
            for_rate(result.audit, _rate(r), r, aim, members=have_members, others=have_others)
            for r in aim.rates[:1]
        ),
    ]


def samples_before(audit: str, aim: Aim) -> list[SampleSize]:
    wanted = aim.goal(0.5)
    return [
        SampleSize(
            audit=audit,
            measure=HEADLINE,
            unit="games",
            chance=0.5,
            wanted=wanted,
            needed=power.games_for_success(wanted, *_level(aim, shared=True)),
            how=f"set audits.{audit}.games",
            rule=SHARED,
        ),
        *(for_rate(audit, _rate(r), r, aim) for r in aim.rates[:1]),
    ]


def _rate(rate: float) -> str:
    return f"true_positive_rate (at {100 * rate:g} %)"
