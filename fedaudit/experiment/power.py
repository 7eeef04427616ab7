"""How many rounds, records or queries an audit needs before it can conclude.

Of a run: what its results rest on, the smallest leak they would have shown, and what a wanted one
takes. Of an audit alone: the same, before anything is recorded. The forms are in `stats.power`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedaudit.errors import UsageError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.gate.evidence import Evidence, gather, need_results
from fedaudit.report.findings import number, undecided
from fedaudit.report.power import Need
from fedaudit.results import AuditResult, Estimate
from fedaudit.stats import plan_design, power, query_plans
from fedaudit.stats.intervals import check_confidence, design_effect
from fedaudit.stats.roc import nonmembers_needed

RATES = (0.01, 0.001)
MOST_ROUNDS = 50
"""Times the earliest possible round: further on attribution is not looked for."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is to be shown, and how surely.

    `effect` above chance, in the measure's own unit (attribution: what one mark adds to a score, in
    deviations of its noise); None takes a default per audit. `clients`, `threshold` (smallest group
    that may be exposed) and `rate` (false positives) describe a federation that is yet to run.
    """

    effect: float | None = None
    power: float = 0.9
    confidence: float = 0.95
    clients: int = 20
    threshold: int = 5
    rate: float | None = None

    def __post_init__(self) -> None:
        power.check_power(self.power)
        check_confidence(self.confidence)
        if self.effect is not None and not (self.effect > 0 and math.isfinite(self.effect)):
            raise UsageError(
                "an effect is how far above chance a leak would be",
                expected="a number above 0",
                got=f"{self.effect:g}",
                remedy="--effect 0.05",
            )
        if self.clients < 2:
            raise UsageError(
                "a federation has clients",
                expected="at least 2",
                got=str(self.clients),
                remedy="--clients 20",
            )
        if self.rate is not None:
            nonmembers_needed(self.rate)

    @property
    def level(self) -> tuple[float, float]:
        return self.power, self.confidence

    @property
    def rates(self) -> tuple[float, ...]:
        return RATES if self.rate is None else (self.rate,)


# -- from a run ----------------------------------------------------------------------------------


def power_of_run(
    run: str | os.PathLike[str], *, audits: Sequence[str] = (), aim: Aim | None = None
) -> list[Need]:
    """What the results of a run (or study) rest on, and what they would need."""
    aim = aim or Aim()
    found = gather(run)
    need_results(found)
    for name in audits:
        find(AUDITS, "audit", name)
    out = []
    for e in found:
        for name in audits or e.results:
            if name not in e.results:
                raise UsageError(
                    f"{e.path} has no result of {name}",
                    expected="one of: " + ", ".join(e.results),
                    got=name,
                    remedy=f"fedaudit audit {e.path} --only {name}, or plan without a run: "
                    f"fedaudit power --audit {name}",
                )
            result = e.results[name]
            needs = (
                [_unmeasured(result)]
                if result.headline is None
                else [_nothing(name, result.headline, result.estimates[result.headline])]
                if result.known
                else OF_RUN[name](result, e, aim)
                if name in OF_RUN
                else [_by_width(result, result.headline, aim, "units", "more of what n counts")]
            )
            old = "made of another trace, audit again; " if name in e.stale else ""
            out += [
                replace(n, run=e.label, how=old + n.how, rule=_beside_the_report(n, result, aim))
                for n in needs
            ]
    return out


def _beside_the_report(need: Need, result: AuditResult, aim: Aim) -> str:
    """The rule of a need, and how its "saw from" goes with the figure that a report gives.

    A report says from which *measured* value on the result would have read as a leak. A true leak
    of just that size measures more or less, and is seen about every second time. What is seen with
    the power asked for lies further out.
    """
    if need.measure != result.headline or result.detectable is None or need.seen is None:
        return need.rule
    if need.exact or need.seen == result.detectable:
        return need.rule
    return (
        f"{need.rule}; the report's {number(result.detectable)} is the measured value from which "
        "on this would have read as a leak, which a true leak of that size reaches about every "
        f"second time; one of {number(need.seen)} does in {100 * aim.power:g} of 100"
    )


def _unmeasured(result: AuditResult) -> Need:
    return Need(audit=result.audit, measure="nothing was measured", how=str(result.need))


def _goal(chance: float, effect: float, top: float = 1.0) -> float:
    """The value to show; an effect that leads above the scale is refused."""
    if chance + effect > top + 1e-12:
        raise UsageError(
            "the effect leads beyond what can be measured",
            expected=f"at most {top - chance:.4g} above a chance of {chance:.4g}",
            got=f"{effect:g}",
            remedy="--effect is the difference from chance, not the value",
        )
    return min(chance + effect, top)


def _linkage(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    head = result.estimates["linkage_accuracy"]
    rows = list(result.per_client.values())
    hits = np.array([float(r.get("found") or 0) for r in rows])
    tries = np.array([float(r.get("links") or 0) for r in rows])
    hits, tries = hits[tries > 0], tries[tries > 0]
    if head.baseline is None or not len(tries):
        return [_by_width(result, "linkage_accuracy", aim, "clients", "more clients")]
    clients, links = len(tries), int(tries.sum())
    effect = design_effect(hits, tries)
    each = links / clients
    likeness = min(1.0, (effect - 1.0) / (each - 1.0)) if each > 1 else 0.0
    chance = head.baseline
    share = _goal(chance, aim.effect if aim.effect is not None else min(chance, 1 - chance) / 2)
    independent = power.trials_for_share(share, chance, *aim.level)
    per_client = power.links_per_client(independent, clients, likeness)
    same = float(hits.sum()) in (0.0, float(tries.sum()))
    alike = (
        "all links of a client agree: each client counts once"
        if same
        else f"design effect {effect:.2g}"
    )
    return [
        Need(
            audit=result.audit,
            measure="linkage_accuracy",
            unit="links",
            chance=chance,
            have=links,
            seen=power.share_seen(chance, max(1, int(links / effect)), *aim.level),
            wanted=share,
            needed=None if per_client is None else per_client * clients,
            how=f"links of a client are too much alike: at least {_more(independent, likeness)} "
            f"clients instead of {clients}"
            if per_client is None
            else f"{per_client + 1} rounds that all {clients} clients take part in "
            f"(now {e.rounds})",
            rule=f"exact binomial power of Wilson's interval; {alike}; {links:,} links of "
            f"{clients} clients, and n in the report counts the clients",
        )
    ]


def _more(independent: int, likeness: float) -> str:
    return f"{math.ceil(independent * likeness) + 1:,}"


def _two_stage(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    head = result.estimates["membership_auc"]
    asked = sum(int(r.get("members asked") or 0) for r in result.per_client.values())
    members, others = asked, max(head.n - asked, 0)
    auc = _goal(0.5, aim.effect if aim.effect is not None else 0.05)
    ratio = others / members if members else 1.0
    out = []
    if min(members, others) >= 2:
        needed = power.records_for_auc(auc, *aim.level, others_per_member=ratio)
        wide = head.value - head.low
        plain = _z(head.confidence) * power.auc_deviation(head.value, members, others)
        # clients or classes differ: as many times more records as the interval is wider
        wider = max(1.0, (wide / plain) ** 2) if plain > 0 and head.value < 1 else 1.0
        total = math.ceil(needed * wider)
        seen = power.auc_seen(max(2, int(members / wider)), max(2, int(others / wider)), *aim.level)
        out.append(
            Need(
                audit=result.audit,
                measure="membership_auc",
                unit="members",
                chance=0.5,
                have=members,
                seen=seen,
                wanted=auc,
                needed=total,
                how=f"ask about {total:,} members and {math.ceil(total * ratio):,} others "
                f"(now {members:,} and {others:,})",
                rule="Hanley and McNeil's deviation"
                + (f", times {wider:.2g} as the stored interval is wider" if wider > 1 else ""),
            )
        )
    return out + [
        _rate_need(result.audit, f"true_positive_rate at {100 * r:g} %", r, aim, others, members)
        for r in aim.rates
    ]


def _rate_need(
    audit: str,
    measure: str,
    rate: float,
    aim: Aim,
    others: int | None = None,
    members: int | None = None,
) -> Need:
    effect = aim.effect if aim.effect is not None else rate
    wanted = _goal(rate, effect)
    needed_others = nonmembers_needed(rate)
    needed_members = power.members_for_rate(wanted, rate, *aim.level)
    now = "" if members is None or others is None else f" (now {others:,} and {members:,})"
    stated = others is not None and members is not None and others >= needed_others
    # the side that is too small decides
    short = stated and members is not None and members < needed_members
    return Need(
        audit=audit,
        measure=measure,
        unit="members" if short else "non-members",
        chance=rate,
        have=members if short else others,
        seen=power.rate_seen(rate, members, *aim.level) if stated and members is not None else None,
        wanted=wanted,
        needed=needed_members if short else needed_others,
        how=f"{needed_others:,} non-members, and {needed_members:,} members to show "
        f"{wanted:.3g}{now}",
        rule="10 expected false positives; exact binomial power of Clopper-Pearson's interval",
    )


def _games(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    head = result.estimates["success"]
    members = result.estimates.get("true positive rate")
    others = result.estimates.get("true negative rate")
    by_trial = head.method.startswith("bootstrap")
    if members is None or others is None or by_trial:
        needs = [_by_width(result, "success", aim, "trials", "set audits.active_membership.trials")]
        have_others = None
    else:
        wanted = _goal(0.5, aim.effect if aim.effect is not None else 0.05)
        have_others = others.n
        needs = [
            Need(
                audit=result.audit,
                measure="success",
                unit="games",
                chance=0.5,
                have=members.n + others.n,
                seen=power.success_seen(members.n, others.n, *aim.level),
                wanted=wanted,
                needed=power.games_for_success(wanted, *aim.level),
                how="set audits.active_membership.games, or recorded where the record goes through "
                "the engine",
                rule="exact power of Clopper-Pearson on both rates",
            )
        ]
    return needs + [
        _rate_need(
            result.audit,
            f"true positive rate at {100 * r:g} % false positives",
            r,
            aim,
            have_others,
            None if members is None else members.n,
        )
        for r in aim.rates[:1]
    ]


def _topology(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    assert result.headline is not None
    need = _by_width(result, result.headline, aim, "clients", "", default=0.1)
    if need.needed is None or not need.have:
        return [need]
    runs = math.ceil(need.needed / need.have)
    return [
        replace(
            need,
            how=f"{runs} target federations of {need.have} clients, or one of {need.needed:,}; "
            "more shadows sharpen the guesses, not the interval",
        )
    ]


def _by_width(
    result: AuditResult, measure: str, aim: Aim, unit: str, how: str, default: float = 0.05
) -> Need:
    """From the width of the stored interval alone."""
    e = result.estimates[measure]
    baseline = e.baseline or 0.0
    sign = 1 if result.greater_is_leak else -1
    half = (e.value - e.low) if sign > 0 else (e.high - e.value)
    effect = aim.effect if aim.effect is not None else default
    if half <= 0 or e.confidence >= 1 or math.isinf(half):
        return Need(
            audit=result.audit,
            measure=measure,
            unit=unit,
            chance=e.baseline,
            have=e.n,
            wanted=baseline + sign * effect,
            how="the stored interval has no width to go by: " + (how or "more clients"),
        )
    # the stored interval may be at another level than the one asked for
    at = half / _z(e.confidence) * _z(aim.confidence)
    return Need(
        audit=result.audit,
        measure=measure,
        unit=unit,
        chance=e.baseline,
        have=e.n,
        seen=baseline + sign * power.effect_seen(at, *aim.level),
        wanted=baseline + sign * effect,
        needed=power.units_for_effect(at, e.n, effect, *aim.level),
        how=how,
        rule="the stored interval's width, which shrinks as one over the root of its units",
    )


def _z(confidence: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _attribution(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    signal, noise = result.estimates.get("signal"), result.estimates.get("noise")
    effect = aim.effect
    if effect is None and signal is not None and noise is not None and noise.value > 0:
        effect = max(signal.value / noise.value, 1e-3)
    plan = e.results.get("query_plan")
    threshold = aim.threshold
    if plan is not None and isinstance(plan.settings.get("threshold"), int):
        threshold = int(plan.settings["threshold"])
    clients = max(2, result.estimates["clients_named"].n)
    need = _rounds(replace(aim, effect=effect, clients=clients, threshold=min(threshold, clients)))
    # the run may have asked by another plan: what that would have shown is not this closed form
    return [replace(need, how=f"{need.how} (recorded now, by the run's own plan: {e.rounds})")]


def _rounds(aim: Aim) -> Need:
    """Rounds of fresh partitions until marked clients are found with the power asked for."""
    from threadpoolctl import threadpool_limits

    effect = 1.0 if aim.effect is None else aim.effect
    # the closed form has one error for both sides
    error = min(1.0 - aim.power, 0.49)
    scores = plan_design.Scores(effect=effect, marked=max(1, round(0.3 * aim.clients)), error=error)
    if aim.threshold < 1 or aim.clients < 2 * aim.threshold:
        return Need(
            audit="attribution",
            measure="marked clients found",
            unit="rounds",
            wanted=effect,
            how=f"{aim.clients} clients are no two groups of {aim.threshold}: no client can be "
            "told apart; smaller groups or more clients",
        )
    groups = query_plans.group_count(aim.clients, aim.threshold)
    earliest = query_plans.rounds_to_identify(aim.clients, groups)
    rng = np.random.default_rng(1)
    with threadpool_limits(1):
        found = plan_design.rounds_needed(
            lambda t: query_plans.random_partitions(aim.clients, aim.threshold, t, rng),
            scores,
            first=earliest,
            most=MOST_ROUNDS * earliest,
            plans=10,
        )
    return Need(
        audit="attribution",
        measure="marked clients found",
        unit="rounds",
        wanted=effect,
        needed=found.rounds,
        how=f"rounds with fresh groups of {aim.threshold} among {aim.clients} clients"
        + (f"; over {found.most}" if found.rounds is None else "")
        + "; compare plans with `fedaudit plan design`",
        rule="expected power of least squares over 10 drawn plans; to show: what a mark adds to a "
        "group's score, in deviations of its noise",
    )


def _exact(result: AuditResult, e: Evidence, aim: Aim) -> list[Need]:
    assert result.headline is not None
    head = result.estimates[result.headline]
    need = _nothing(result.audit, result.headline, head)
    if undecided(result):
        ends = f"{number(head.low)} to {number(head.high)}"
        need = replace(
            need,
            how=f"the search ended undecided, {ends}: no more rounds help, fewer queries a round, "
            "disjoint groups (`fedaudit plan design`) or another threshold do",
        )
    return [need]


def _nothing(audit: str, measure: str, head: Estimate | None = None) -> Need:
    return Need(
        audit=audit,
        measure=measure,
        chance=None if head is None else head.baseline,
        have=None if head is None else head.n,
        exact=True,
        how="counted over all that was recorded: there is no chance in it",
    )


OF_RUN: dict[str, Callable[[AuditResult, Evidence, Aim], list[Need]]] = {
    "active_membership": _games,
    "attribution": _attribution,
    "coverage": _exact,
    "fingerprint": _linkage,
    "query_plan": _exact,
    "topology_inference": _topology,
    "two_stage_membership": _two_stage,
}


# -- before a run --------------------------------------------------------------------------------


def power_of_audit(audit: str, aim: Aim | None = None) -> list[Need]:
    """What an audit needs, before anything is recorded."""
    aim = aim or Aim()
    find(AUDITS, "audit", audit)
    if audit in ("coverage", "query_plan"):
        measure = "kinds_outside_protection" if audit == "coverage" else "smallest_exposed_group"
        return [_nothing(audit, measure)]
    if audit == "attribution":
        return [_rounds(aim)]
    return _BEFORE[audit](aim)


def _linkage_before(aim: Aim) -> list[Need]:
    chance = 1.0 / aim.clients
    share = _goal(chance, aim.effect if aim.effect is not None else chance / 2)
    links = power.trials_for_share(share, chance, *aim.level)
    each = power.links_per_client(links, aim.clients)
    assert each is not None  # links that are not alike always add up
    return [
        Need(
            audit="fingerprint",
            measure="linkage_accuracy",
            unit="links",
            chance=chance,
            wanted=share,
            needed=links,
            how=f"{each + 1} rounds that all {aim.clients} clients take part in; more if the links "
            "of a client are alike",
            rule="exact binomial power of Wilson's interval",
        )
    ]


def _two_stage_before(aim: Aim) -> list[Need]:
    auc = _goal(0.5, aim.effect if aim.effect is not None else 0.05)
    members = power.records_for_auc(auc, *aim.level)
    return [
        Need(
            audit="two_stage_membership",
            measure="membership_auc",
            unit="members",
            chance=0.5,
            wanted=auc,
            needed=members,
            how=f"ask about {members:,} members and as many others, over all clients",
            rule="Hanley and McNeil's deviation",
        ),
        *(
            _rate_need("two_stage_membership", f"true_positive_rate at {100 * r:g} %", r, aim)
            for r in aim.rates
        ),
    ]


def _games_before(aim: Aim) -> list[Need]:
    wanted = _goal(0.5, aim.effect if aim.effect is not None else 0.05)
    return [
        Need(
            audit="active_membership",
            measure="success",
            unit="games",
            chance=0.5,
            wanted=wanted,
            needed=power.games_for_success(wanted, *aim.level),
            how="set audits.active_membership.games",
            rule="exact power of Clopper-Pearson on both rates",
        ),
        *(
            _rate_need(
                "active_membership", f"true positive rate at {100 * r:g} % false positives", r, aim
            )
            for r in aim.rates[:1]
        ),
    ]


def _topology_before(aim: Aim) -> list[Need]:
    wanted = aim.effect if aim.effect is not None else 0.1
    clients = power.clients_for_explained(wanted, *aim.level)
    runs = math.ceil(clients / aim.clients)
    return [
        Need(
            audit="topology_inference",
            measure="explained",
            unit="clients",
            chance=0.0,
            wanted=wanted,
            needed=clients,
            how=f"{runs} target federations of {aim.clients} clients, or one of {clients:,}",
            rule="Fisher's deviation of a correlation; the share explained is its square",
        )
    ]


_BEFORE: dict[str, Callable[[Aim], list[Need]]] = {
    "active_membership": _games_before,
    "fingerprint": _linkage_before,
    "topology_inference": _topology_before,
    "two_stage_membership": _two_stage_before,
}
