"""Hold the evidence of a run against a policy. Whatever is not shown counts as broken."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.decide.gate.evidence import NOTHING_LEFT, Evidence, gather, nothing_left
from fedaudit.decide.gate.measures import (
    EPSILON,
    LOSS,
    UTILITY,
    VERDICT,
    column,
    covers,
)
from fedaudit.decide.gate.outcome import Gate, LimitCheck, LimitReading
from fedaudit.decide.gate.page import statement
from fedaudit.decide.gate.policy import Limit, Policy, load_policy
from fedaudit.errors import nearest
from fedaudit.files import read_bytes
from fedaudit.reporting.findings import judge, number
from fedaudit.reporting.rules import VERDICTS, label_of
from fedaudit.results import AuditResult, Estimate
from fedaudit.study.seal import check_signature


def gate(
    run: str | os.PathLike[str],
    policy: Policy | str | Path | Mapping[str, Any],
    *,
    allow: Sequence[str] = (),
    names: bool = False,
    require_signature: str | os.PathLike[str] | None = None,
) -> Gate:
    """Check a run, or every run of a study, against a policy.

    `allow` names limits whose evidence may be missing, besides those that the policy names.
    `names` shows clients under their own names. `require_signature`: file of a public key (PEM); a
    run that its owner has not signed is refused.
    """
    if require_signature is not None:
        check_signature(Path(run), read_bytes(Path(require_signature)))
    asked = policy if isinstance(policy, Policy) else load_policy(policy)
    asked = asked.allowing(allow)
    found = gather(run)
    root = Path(run)
    checks: list[LimitCheck] = []
    for limit in asked.limits:
        chosen = [e for e in found if _applies(limit, e)]
        if not chosen:
            checks.append(_nobody(limit, found))
        for e in chosen:
            for one in _expand(limit, e):
                checks.append(_named(_check(one, e, asked), e, root, names))
    return Gate(
        run=str(root),
        policy=asked.where,
        policy_sha256=_digest(asked),
        version=__version__,
        checks=tuple(_forgiven(c, asked) for c in checks),
        traces={e.label: e.trace_sha256 for e in found},
    )


def held(limit: Limit, e: Evidence, policy: Policy, names: bool = False) -> list[LimitCheck]:
    """One limit of a policy against one run, as `gate` does it; several checks for all verdicts."""
    return [
        _forgiven(_named(_check(one, e, policy), e, e.path, names), policy)
        for one in _expand(limit, e)
    ]


def held_estimate(limit: Limit, estimate: Estimate, policy: Policy) -> LimitCheck:
    """One limit against an estimate that no single run states: of several, or between two."""
    blank = LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=rule_of(limit),
        status="missing",
        why=limit.why,
    )
    lack = _too_unsure(estimate, policy)
    found = (
        replace(blank, missing=lack)
        if lack
        else _settled(blank, _readings(limit, estimate), "set an absolute limit")
    )
    return _forgiven(found, policy)


def _digest(policy: Policy) -> str:
    """What was asked for, whatever file it came from."""
    plain = {**asdict(policy), "where": ""}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _applies(limit: Limit, e: Evidence) -> bool:
    return (limit.federation is None or limit.federation == e.federation) and (
        limit.variant is None or limit.variant == e.variant
    )


def _nobody(limit: Limit, found: Sequence[Evidence]) -> LimitCheck:
    wanted = ", ".join(p for p in (limit.federation, limit.variant) if p)
    labels = [e.label for e in found if e.label]
    return LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=rule_of(limit),
        status="missing",
        missing=f"no run is called {wanted!r}",
        remedy=nearest(wanted, labels)
        if labels
        else "federation and variant name runs of a study; this is a single run",
        why=limit.why,
    )


def _expand(limit: Limit, e: Evidence) -> Iterable[Limit]:
    """A limit on all verdicts is one on each audit that the run has or was asked for."""
    if limit.metric != VERDICT:
        return [limit]
    audits = dict.fromkeys([*e.configured, *e.results])
    return [limit.of_audit(a) for a in audits] or [limit]


def _forgiven(check: LimitCheck, policy: Policy) -> LimitCheck:
    """Missing evidence that was let go by name, of the limit or of its part."""
    if check.status != "missing":
        return check
    base = check.limit.rpartition(" (")[0]
    parts = {x.name for x in policy.limits if x.metric == VERDICT}
    if check.limit in policy.allow_missing or (base in parts and base in policy.allow_missing):
        return replace(check, status="allowed")
    return check


def _named(check: LimitCheck, e: Evidence, root: Path, names: bool) -> LimitCheck:
    """With the file of the evidence relative to what was checked, and clients by number."""
    if check.file:
        check = replace(check, file=Path(os.path.relpath(e.path / check.file, root)).as_posix())
    hide = e.renaming(names).text
    return replace(
        check,
        readings=tuple(
            replace(r, who=hide(r.who), missing=hide(r.missing)) for r in check.readings
        ),
        said=hide(check.said),
        missing=hide(check.missing),
        remedy=hide(check.remedy),
    )


# -- one limit on one run ------------------------------------------------------------------------


def _check(limit: Limit, e: Evidence, policy: Policy) -> LimitCheck:
    blank = LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=rule_of(limit),
        status="missing",
        run=e.label,
        why=limit.why,
        file=f"results/{limit.audit}.json" if limit.audit else "run.json",
    )
    if e.lacking:
        remedy = "let the same command finish it"
        if e.purged:
            remedy = "run it again into another folder: this one cannot be shown any more"
        return replace(blank, missing=e.lacking, remedy=remedy)
    if limit.metric == VERDICT:
        return replace(
            blank, missing="the run has no audits at all", remedy=f"fedaudit audit {e.path}"
        )
    if limit.metric == EPSILON:
        spent = _settled(blank, _of_epsilon(limit, e), "add a protection that has an accountant")
        return _with_unit(spent, limit, e)
    if limit.metric == LOSS:
        return replace(
            blank,
            missing="one run alone does not say what its protection costs: that takes the same "
            "federation unprotected",
            remedy=f"fedaudit harden measures both; or allow it by name: --allow {limit.name!r}",
        )
    if limit.metric in UTILITY:
        remedy = "run it again: other versions stored no standard error"
        if limit.metric not in e.metrics:
            remedy = "check the run beside its truth: what was held out is scored there"
        return _settled(blank, _of_utility(limit, e, policy), remedy)
    result = e.results.get(limit.audit)
    if result is None:
        asked = "was asked for and is not there" if limit.audit in e.configured else "was not run"
        return replace(
            blank,
            missing=f"there is no result: {limit.audit} {asked}",
            code="no_result",
            remedy=f"fedaudit audit {e.path} --only {limit.audit}",
        )
    if limit.audit in e.stale:
        return replace(
            blank,
            missing=f"stale: {limit.audit} was made of another trace "
            f"({result.trace_sha256[:12] or 'unknown'}, the run's is {e.trace_sha256[:12]})",
            code="stale",
            remedy=f"fedaudit audit {e.path} --only {limit.audit}",
        )
    if result.need is not None and result.headline is None:
        if limit.is_verdict:
            # a bound can be contradicted where the headline is missing
            said = _of_verdict(limit, result, blank)
            if said.status == "failed":
                return said
        if nothing_left(limit.metric, [e]):
            return replace(blank, status="passed", said=NOTHING_LEFT, code="nothing_left")
        words = VERDICTS[judge(result)[-1].verdict].words
        return replace(
            blank,
            missing=f"{words}: {result.need}",
            code=result.need.code,
            remedy=result.need.remedy,
        )
    if limit.is_verdict:
        return _of_verdict(limit, result, blank)
    if limit.per == "client":
        return _settled(
            blank, _of_clients(limit, e, result, policy), "more rounds or records of these clients"
        )
    estimate = result.estimates.get(limit.measure)
    if estimate is None:
        return _unstated(limit, result, blank)
    lack = _too_unsure(estimate, policy)
    if lack:
        return replace(blank, missing=lack, remedy=f"set audits.{limit.audit}.confidence")
    done = _settled(blank, _readings(limit, estimate), "")
    if done.status == "failed" and estimate.one_sided:
        note = f"this interval has no upper end: forbid a leak by {limit.audit}.{VERDICT} instead"
        return replace(done, remedy=note)
    return done


def _settled(blank: LimitCheck, readings: Sequence[LimitReading], remedy: str) -> LimitCheck:
    """Broken if anything known is; else missing if anything is unknown."""
    broken = any(not r.missing and not r.kept for r in readings)
    lacking = not readings or any(r.missing for r in readings)
    return replace(
        blank,
        readings=tuple(readings),
        status="failed" if broken else "missing" if lacking else "passed",
        missing="" if readings else "there is nothing to compare",
        remedy=remedy if lacking and not broken else "",
    )


def _too_unsure(estimate: Estimate, policy: Policy) -> str:
    if estimate.confidence >= policy.confidence - 1e-9:
        return ""
    return (
        f"the interval is stated at {100 * estimate.confidence:g} %, the policy asks for "
        f"{100 * policy.confidence:g} %"
    )


def _unstated(limit: Limit, result: AuditResult, blank: LimitCheck) -> LimitCheck:
    """An estimate that the audit left out: because it is underpowered, or for another reason."""
    short = [u for u in result.underpowered if u.measure and covers(u.measure, limit.measure)]
    if short:
        u = short[0]
        return replace(
            blank,
            missing=f"underpowered: {u.what} needs {u.needed:,}, has {u.have:,}",
            code="underpowered",
            remedy=f"fedaudit power RUN --audit {limit.audit}",
        )
    also = f" ({'; '.join(map(str, result.underpowered))})" if result.underpowered else ""
    return replace(
        blank,
        missing=f"{limit.audit} did not state {limit.measure!r}{also}",
        code="not_stated",
        remedy=nearest(limit.measure, result.estimates),
    )


# -- numbers -------------------------------------------------------------------------------------


def _readings(limit: Limit, e: Estimate, who: str = "") -> list[LimitReading]:
    """An estimate against each bound of a limit: its high end below, its low end above."""
    out = []
    for side, end, bound, text in _bounds(limit, e.baseline):
        if bound is None:
            out.append(LimitReading(who=who, side=side, missing=text))
        else:
            out.append(
                LimitReading(who=who, side=side, bound=getattr(e, end), limit=bound, estimate=e)
            )
    return out


def _bounds(limit: Limit, chance: float | None) -> Iterable[tuple[Any, str, float | None, str]]:
    lost = "no chance level is stated for it: set an absolute limit"
    if limit.at_most is not None:
        yield "at most", "high", limit.at_most, ""
    if limit.at_least is not None:
        yield "at least", "low", limit.at_least, ""
    if limit.at_most_times_chance is not None:
        if chance is not None and chance <= 0:
            # a multiple of nothing says nothing
            yield "at most", "high", None, "chance is 0: set an absolute limit"
        else:
            times = None if chance is None else chance * limit.at_most_times_chance
            yield "at most", "high", times, lost
    if limit.at_least_times_chance is not None:
        times = None if chance is None else chance * limit.at_least_times_chance
        yield "at least", "low", times, lost
    if limit.at_most_above_chance is not None:
        above = None if chance is None else chance + limit.at_most_above_chance
        yield "at most", "high", above, lost


def _of_clients(
    limit: Limit, e: Evidence, result: AuditResult, policy: Policy
) -> list[LimitReading]:
    """Every client of the federation: one that the audit has no row for is missing."""
    about = column(limit.audit, limit.measure)
    assert about is not None  # checked with the policy
    head = result.estimates.get(result.headline or "")
    confidence = float(
        result.settings.get("confidence", head.confidence if head is not None else 1.0)
    )
    out = []
    for client in dict.fromkeys([*e.clients, *result.per_client]):
        row = result.per_client.get(client)
        value = None if row is None else row.get(limit.measure)
        if row is None or value is None:
            why = "the audit says nothing of it" if row is None else "has no value"
            out.append(LimitReading(who=client, missing=why))
            continue
        if isinstance(value, str):
            out.append(LimitReading(who=client, missing=f"says {value!r}, which is not a number"))
            continue
        low, high = float(value), float(value)
        method, exact = "as recorded", 1.0
        if about.has_interval:
            ends = (row.get("low"), row.get("high"))
            if not all(isinstance(x, int | float) for x in ends):
                out.append(LimitReading(who=client, missing="has no interval"))
                continue
            low, high = (float(x) for x in ends if isinstance(x, int | float))
            method, exact = "of this client alone", confidence
        elif not limit.point_value and not about.exact:
            out.append(
                LimitReading(
                    who=client, missing="has no interval (point_value = true takes it anyway)"
                )
            )
            continue
        chance = row.get("chance", None if head is None else head.baseline)
        estimate = Estimate(
            value=float(value),
            low=min(low, float(value)),
            high=max(high, float(value)),
            n=0,
            confidence=exact,
            baseline=chance if isinstance(chance, int | float) else None,
            method=method,
        )
        lack = _too_unsure(estimate, policy)
        out += (
            [LimitReading(who=client, missing=lack)] if lack else _readings(limit, estimate, client)
        )
    return out


def _of_epsilon(limit: Limit, e: Evidence) -> list[LimitReading]:
    """The largest epsilon that was promised to each client, over the promises asked about."""
    assert limit.at_most is not None
    chosen = {
        name: given
        for name, given in e.guarantees.items()
        if limit.protection is None or name == limit.protection
    }
    clients = list(e.clients) or sorted({c for given in chosen.values() for c in given})
    out = []
    for client in clients:
        told = [g for given in chosen.values() for c, g in given.items() if c == client]
        fit = [g for g in told if limit.unit is None or g.get("unit") == limit.unit]
        loose = [
            g
            for g in fit
            if limit.delta_at_most is not None
            and float(g.get("delta") or 0) > limit.delta_at_most * (1 + 1e-9)
        ]
        if not fit:
            what = "nothing was promised to it"
            if told:
                kinds = ", ".join(sorted({str(g.get("unit")) for g in told}))
                what = f"nothing was promised per {limit.unit} (but per {kinds})"
            elif limit.protection:
                what = f"{limit.protection} promised nothing to it"
            out.append(LimitReading(who=client, missing=what))
        elif loose:
            worst = max(float(g["delta"]) for g in loose)
            out.append(
                LimitReading(
                    who=client,
                    missing=f"its epsilon holds at delta {worst:g}, the limit is for "
                    f"{limit.delta_at_most:g}",
                )
            )
        else:
            spent = max(float(g["epsilon"]) for g in fit)
            if math.isnan(spent):
                out.append(LimitReading(who=client, missing="its epsilon is not a number"))
            else:
                out.append(LimitReading(who=client, bound=spent, limit=limit.at_most))
    return out


def _promises(limit: Limit, e: Evidence) -> list[Mapping[str, Any]]:
    """The promises that a limit on epsilon is about."""
    return [
        g
        for name, given in e.guarantees.items()
        if limit.protection is None or name == limit.protection
        for g in given.values()
        if limit.unit is None or g.get("unit") == limit.unit
    ]


def _with_unit(check: LimitCheck, limit: Limit, e: Evidence) -> LimitCheck:
    """An epsilon says nothing without whom it is for and the delta that it holds at."""
    told = _promises(limit, e)
    if check.missing or not told or all(r.missing for r in check.readings):
        return check
    units = " or ".join(sorted({str(g.get("unit")) for g in told}))
    deltas = sorted({float(g.get("delta") or 0.0) for g in told})
    at = " or ".join(f"{d:g}" for d in deltas)
    return replace(check, said=f"{statement(check)} (epsilon per {units} at delta {at})")


def _of_utility(limit: Limit, e: Evidence, policy: Policy) -> list[LimitReading]:
    value = e.metrics.get(limit.metric)
    if value is None:
        have = ", ".join(e.stated) or "none"
        return [LimitReading(missing=f"no held-out {limit.metric} is stored (stored: {have})")]
    estimate = e.utility(limit.metric, policy.confidence)
    if estimate is None:
        if not limit.point_value:
            return [
                LimitReading(
                    missing=f"held-out {limit.metric} {value:.4g} has no interval: no "
                    "standard error is stored beside it (point_value = true takes it anyway)"
                )
            ]
        estimate = Estimate(value=value, low=value, high=value, n=e.held_out, confidence=1.0)
        return [replace(r, estimate=None) for r in _readings(limit, estimate)]
    return _readings(limit, estimate)


def _of_verdict(limit: Limit, result: AuditResult, blank: LimitCheck) -> LimitCheck:
    """Forbidden verdicts; "no evidence" counts only where a leak could have been seen."""
    found = judge(result)
    bad = [f for f in found if f.verdict in limit.forbidden]
    if bad:
        said = "; ".join(f"{label_of(f).words}: {f.statement}" for f in bad)
        return replace(blank, status="failed", said=said, remedy=bad[0].remedy)
    lack = _too_weak(limit, result, {f.verdict for f in found})
    if lack:
        return replace(
            blank,
            missing=f"underpowered: {lack}",
            code="underpowered",
            remedy=f"fedaudit power RUN --audit {limit.audit}",
        )
    return replace(blank, status="passed", said="; ".join(f.statement for f in found))


def _too_weak(limit: Limit, result: AuditResult, verdicts: Collection[str]) -> str:
    """Why a result without a leak is no evidence; empty where it is, or where it need not be."""
    seen = result.detectable
    if not {"no_evidence", "nothing_to_say"}.intersection(verdicts):
        return ""
    if seen is None:
        return "no leak was found, and the audit cannot say how small a one it would have seen"
    if limit.must_detect is None:
        if "nothing_to_say" not in verdicts:
            return ""
        accepted = "" if math.isinf(seen) else f"; must_detect = {number(seen)} would accept that"
        return f"{judge(result)[-1].statement}{accepted}"
    short = seen > limit.must_detect if result.greater_is_leak else seen < limit.must_detect
    if not short:
        return ""
    return f"a leak is seen from {number(seen)} on, the policy asks for {number(limit.must_detect)}"


# -- words for limits ----------------------------------------------------------------------------


def rule_of(limit: Limit) -> str:
    """A limit in words."""
    if limit.is_verdict:
        words = ", ".join(limit.forbidden)
        detect = (
            f"; must detect from {number(limit.must_detect)}"
            if limit.must_detect is not None
            else ""
        )
        return f"no {words}{detect}"
    parts = []
    for key, text in (
        ("at_most", "at most {}"),
        ("at_least", "at least {}"),
        ("at_most_times_chance", "at most {} x chance"),
        ("at_least_times_chance", "at least {} x chance"),
        ("at_most_above_chance", "at most {} above chance"),
    ):
        value = getattr(limit, key)
        if value is not None:
            # as it is written: a loss of accuracy in points of a hundred
            shown = f"{round(100 * value, 9):g} points" if limit.metric == LOSS else f"{value:g}"
            parts.append(text.format(shown))
    if limit.unit:
        parts.append(f"per {limit.unit}")
    if limit.delta_at_most is not None:
        parts.append(f"delta at most {limit.delta_at_most:g}")
    if limit.protection:
        parts.append(f"of {limit.protection}")
    return ", ".join(parts) + (", every client" if limit.per_client else "")
