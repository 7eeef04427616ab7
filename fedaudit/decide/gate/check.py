"""Check the evidence of a run against a policy. Missing evidence fails."""

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
from fedaudit.decide.gate.evidence import (
    Evidence,
    gather_evidence,
    removed_question,
)
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
from fedaudit.results import AuditResult, Estimate, Finding, Need
from fedaudit.study.folders import runs_at
from fedaudit.study.seal import check_signature

POINT_VALUE = "point_value = true takes the value alone"


def gate(
    run: str | os.PathLike[str],
    policy: Policy | str | Path | Mapping[str, Any],
    *,
    allow: Sequence[str] = (),
    names: bool = False,
    require_signature: str | os.PathLike[str] | None = None,
) -> Gate:
    """Check a run, or every run of a study or folder, against a policy.

    `allow` names limits whose evidence may be missing, in addition to the policy's own list.
    `names` shows clients by name. `require_signature`: file of a public key (PEM); a run that its
    owner has not signed is refused.
    """
    if require_signature is not None:
        for folder in runs_at(run):
            check_signature(folder, read_bytes(Path(require_signature)))
    checked = policy if isinstance(policy, Policy) else load_policy(policy)
    checked = checked.allowing(allow)
    found = gather_evidence(run)
    root = Path(run)
    checks: list[LimitCheck] = []
    for limit in checked.limits:
        chosen = [e for e in found if _applies(limit, e)]
        if not chosen:
            checks.append(_no_matching_run(limit, found))
        for e in chosen:
            for one in _expand_verdicts(limit, e):
                checks.append(_for_reader(_check_run(one, e, checked), e, root, names))
    return Gate(
        run=str(root),
        policy=checked.where,
        policy_sha256=_digest(checked),
        version=__version__,
        checks=tuple(_apply_allow_missing(c, checked) for c in checks),
        traces={e.label: e.trace_sha256 for e in found},
    )


def check_limit(limit: Limit, e: Evidence, policy: Policy, names: bool = False) -> list[LimitCheck]:
    """Check one limit on one run, as `gate` does; a limit on all verdicts gives several checks."""
    return [
        _apply_allow_missing(_for_reader(_check_run(one, e, policy), e, e.path, names), policy)
        for one in _expand_verdicts(limit, e)
    ]


def check_estimate(limit: Limit, estimate: Estimate, policy: Policy) -> LimitCheck:
    """Check one limit on an estimate over several runs, or between two runs."""
    blank = LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=limit_text(limit),
        status="missing",
        why=limit.why,
    )
    lack = _low_confidence(estimate, policy)
    found = (
        replace(blank, missing=lack)
        if lack
        else _decide(blank, _bound_readings(limit, estimate), "set an absolute limit")
    )
    return _apply_allow_missing(found, policy)


def _digest(policy: Policy) -> str:
    """Hash of the policy's content, without its file name."""
    plain = {**asdict(policy), "where": ""}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _applies(limit: Limit, e: Evidence) -> bool:
    return (limit.federation is None or limit.federation == e.federation) and (
        limit.variant is None or limit.variant == e.variant
    )


def _no_matching_run(limit: Limit, found: Sequence[Evidence]) -> LimitCheck:
    wanted = ", ".join(p for p in (limit.federation, limit.variant) if p)
    labels = [e.label for e in found if e.label]
    return LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=limit_text(limit),
        status="missing",
        missing=f"no run has the name {wanted!r}",
        code="no_such_run",
        remedy=nearest(wanted, labels)
        if labels
        else "remove federation and variant from the limit: this is a single run, not a study",
        why=limit.why,
    )


def _expand_verdicts(limit: Limit, e: Evidence) -> Iterable[Limit]:
    """Replace a limit on all verdicts by one per audit that the run has or its config requests."""
    if limit.metric != VERDICT:
        return [limit]
    audits = dict.fromkeys([*e.configured, *e.results])
    return [limit.of_audit(a) for a in audits] or [limit]


def _apply_allow_missing(check: LimitCheck, policy: Policy) -> LimitCheck:
    """Mark missing evidence as allowed if the policy names the limit or its part."""
    if check.status != "missing":
        return check
    audit, _, measure = check.metric.rpartition(".")
    allowed = policy.may_lack(check.limit, audit, verdict=bool(audit) and measure == VERDICT)
    return replace(check, status="allowed") if allowed else check


def _for_reader(check: LimitCheck, e: Evidence, root: Path, names: bool) -> LimitCheck:
    """The check with its evidence file relative to `root` and clients by number."""
    if check.file:
        check = replace(check, file=Path(os.path.relpath(e.path / check.file, root)).as_posix())
    hide = e.renaming(names).text
    return replace(
        check,
        readings=tuple(
            replace(r, who=hide(r.who), missing=hide(r.missing)) for r in check.readings
        ),
        explanation=hide(check.explanation),
        missing=hide(check.missing),
        remedy=hide(check.remedy),
    )


# -- one limit on one run ------------------------------------------------------------------------


def _check_run(limit: Limit, e: Evidence, policy: Policy) -> LimitCheck:
    blank = LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=limit_text(limit),
        status="missing",
        run=e.label,
        why=limit.why,
        file=f"results/{limit.audit}.json" if limit.audit else "run.json",
    )
    if e.unusable:
        remedy = "run the same command again to finish it"
        code = "unfinished" if e.path.is_dir() else "no_such_run"
        if e.purged:
            remedy, code = (
                "run it again into another folder: a purged run cannot be shown",
                "purged",
            )
        return replace(blank, missing=e.unusable, code=code, remedy=remedy)
    if limit.metric == VERDICT:
        return replace(
            blank,
            missing="the run has no audits",
            code="no_audits",
            remedy=f"fedaudit audit {e.path}",
        )
    if limit.metric == EPSILON:
        spent = _decide(blank, _epsilon_readings(limit, e), "add a protection with an accountant")
        return _with_unit(spent, limit, e)
    if limit.metric == LOSS:
        return replace(
            blank,
            missing="one run does not show the cost of its protection: that takes an unprotected "
            "run of the same federation",
            code="two_runs_needed",
            remedy=f"`fedaudit harden` measures both; or allow it: `allow=[{limit.name!r}]`",
        )
    if limit.metric in UTILITY:
        remedy = "run it again: an older version stored no standard error"
        if limit.metric not in e.metrics:
            remedy = "check the run with its truth/ folder, which holds the held-out metrics"
        return _decide(blank, _utility_readings(limit, e, policy), remedy)
    return _check_audit(limit, e, policy, blank)


def _check_audit(limit: Limit, e: Evidence, policy: Policy, blank: LimitCheck) -> LimitCheck:
    """A limit on an audit: on its verdict, an estimate, or a column per client."""
    result = e.results.get(limit.audit)
    again = f"`fedaudit.audit({str(e.path)!r}, audits=[{limit.audit!r}])`"
    if result is None:
        why = "the config requests it" if limit.audit in e.configured else "it was not run"
        missing = f"{limit.audit} has no result: {why}"
        return replace(blank, missing=missing, code="no_result", remedy=again)
    if limit.audit in e.stale:
        return replace(
            blank,
            missing=f"stale: {limit.audit} belongs to another trace "
            f"({result.trace_sha256[:12] or 'unknown'}, this run has {e.trace_sha256[:12]})",
            code="stale",
            remedy=again,
        )
    stated = result.headline is not None or limit.measure in result.estimates
    if result.need is not None and not stated:
        return _check_unmeasured(limit, e, result, result.need, blank)
    if limit.is_verdict:
        return _check_verdict(limit, result, blank)
    if limit.per == "client":
        readings = _client_readings(limit, e, result, policy)
        return _decide(blank, readings, "record more rounds, or more data of these clients")
    estimate = result.estimates.get(limit.measure)
    if estimate is None:
        return _missing_estimate(limit, result, blank)
    lack = _low_confidence(estimate, policy)
    if lack:
        remedy = f"set audits.{limit.audit}.confidence"
        return replace(blank, missing=lack, code="low_confidence", remedy=remedy)
    done = _decide(blank, _bound_readings(limit, estimate), "")
    if done.status == "failed" and estimate.one_sided:
        note = f"this interval has no upper end: limit {limit.audit}.{VERDICT} instead"
        return replace(done, remedy=note)
    return done


def _check_unmeasured(
    limit: Limit, e: Evidence, result: AuditResult, need: Need, blank: LimitCheck
) -> LimitCheck:
    """A limit on an audit that states no headline because of a need."""
    if limit.is_verdict:
        # an estimate can contradict a bound even without a headline
        verdict = _check_verdict(limit, result, blank)
        if verdict.status == "failed":
            return verdict
    if removed := removed_question(limit.metric, [e]):
        kept = f"kept by rule: {removed}"
        return replace(blank, status="passed", explanation=kept, code="nothing_left")
    words = VERDICTS[judge(result)[-1].verdict].words
    return replace(blank, missing=f"{words}: {need}", code=need.code, remedy=need.remedy)


def _decide(blank: LimitCheck, readings: Sequence[LimitReading], remedy: str) -> LimitCheck:
    """Failed if a known reading breaks its limit; else missing if a reading is missing."""
    broken = any(not r.missing and not r.kept for r in readings)
    lacking = not readings or any(r.missing for r in readings)
    return replace(
        blank,
        readings=tuple(readings),
        status="failed" if broken else "missing" if lacking else "passed",
        missing="" if readings else "no client to compare",
        code="no_value" if lacking and not broken else blank.code,
        remedy=remedy if lacking and not broken else "",
    )


def _low_confidence(estimate: Estimate, policy: Policy) -> str:
    if estimate.confidence >= policy.confidence - 1e-9:
        return ""
    return (
        f"the interval has a confidence of {100 * estimate.confidence:g} %, the policy requires "
        f"{100 * policy.confidence:g} %"
    )


def _missing_estimate(limit: Limit, result: AuditResult, blank: LimitCheck) -> LimitCheck:
    """The audit does not state the estimate: underpowered, or another reason."""
    short = [u for u in result.underpowered if u.measure and covers(u.measure, limit.measure)]
    if short:
        u = short[0]
        return replace(
            blank,
            missing=f"underpowered: {u.what} needs {u.needed:,}, has {u.have:,}",
            code="underpowered",
            remedy=f"`fedaudit.power(RUN, audits=[{limit.audit!r}])`",
        )
    also = f" ({'; '.join(map(str, result.underpowered))})" if result.underpowered else ""
    return replace(
        blank,
        missing=f"{limit.audit} does not state {limit.measure!r}{also}",
        code="not_stated",
        remedy=nearest(limit.measure, result.estimates),
    )


# -- numbers -------------------------------------------------------------------------------------


def _bound_readings(limit: Limit, e: Estimate, who: str = "") -> list[LimitReading]:
    """Compare an estimate with each bound of a limit: high end with at most, low with at least."""
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
    lost = "the audit states no chance level: set an absolute limit"
    if limit.at_most is not None:
        yield "at most", "high", limit.at_most, ""
    if limit.at_least is not None:
        yield "at least", "low", limit.at_least, ""
    if limit.at_most_times_chance is not None:
        if chance is not None and chance <= 0:
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


def _client_readings(
    limit: Limit, e: Evidence, result: AuditResult, policy: Policy
) -> list[LimitReading]:
    """One reading per client of the federation; a client without a row is missing."""
    about = column(limit.audit, limit.measure)
    assert about is not None  # load_policy checks it
    head = result.estimates.get(result.headline or "")
    confidence = float(
        result.settings.get("confidence", head.confidence if head is not None else 1.0)
    )
    out = []
    for client in dict.fromkeys([*e.clients, *result.per_client]):
        row = result.per_client.get(client)
        value = None if row is None else row.get(limit.measure)
        if row is None or value is None:
            why = "the audit has no row for it" if row is None else "has no value"
            out.append(LimitReading(who=client, missing=why))
            continue
        if isinstance(value, str):
            out.append(LimitReading(who=client, missing=f"has {value!r}, which is not a number"))
            continue
        low, high = float(value), float(value)
        method, exact = "as recorded", 1.0
        if about.has_interval:
            ends = (row.get("low"), row.get("high"))
            if not all(isinstance(x, int | float) for x in ends):
                out.append(LimitReading(who=client, missing="has no interval"))
                continue
            low, high = (float(x) for x in ends if isinstance(x, int | float))
            method, exact = "this client alone", confidence
        elif not limit.point_value and not about.exact:
            out.append(LimitReading(who=client, missing=f"has no interval ({POINT_VALUE})"))
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
        lack = _low_confidence(estimate, policy)
        out += (
            [LimitReading(who=client, missing=lack)]
            if lack
            else _bound_readings(limit, estimate, client)
        )
    return out


def _epsilon_readings(limit: Limit, e: Evidence) -> list[LimitReading]:
    """Largest promised epsilon of each client, over the promises that the limit covers."""
    assert limit.at_most is not None
    chosen = {
        name: of
        for name, of in e.guarantees.items()
        if limit.protection is None or name == limit.protection
    }
    clients = list(e.clients) or sorted({c for of in chosen.values() for c in of})
    out = []
    for client in clients:
        given = [g for of in chosen.values() for c, g in of.items() if c == client]
        fit = [g for g in given if limit.unit is None or g.get("unit") == limit.unit]
        loose = [
            g
            for g in fit
            if limit.delta_at_most is not None
            and float(g.get("delta") or 0) > limit.delta_at_most * (1 + 1e-9)
        ]
        if not fit:
            what = "has no promised epsilon"
            if given:
                kinds = ", ".join(sorted({str(g.get("unit")) for g in given}))
                what = f"has no epsilon per {limit.unit}, only per {kinds}"
            elif limit.protection:
                what = f"has no epsilon from {limit.protection}"
            out.append(LimitReading(who=client, missing=what))
        elif loose:
            worst = max(float(g["delta"]) for g in loose)
            out.append(
                LimitReading(
                    who=client,
                    missing=f"has its epsilon at delta {worst:g}, the limit requires at most "
                    f"{limit.delta_at_most:g}",
                )
            )
        else:
            spent = max(float(g["epsilon"]) for g in fit)
            if math.isnan(spent):
                out.append(LimitReading(who=client, missing="has an epsilon that is not a number"))
            else:
                out.append(LimitReading(who=client, bound=spent, limit=limit.at_most))
    return out


def _promises(limit: Limit, e: Evidence) -> list[Mapping[str, Any]]:
    """The promises that a limit on epsilon covers."""
    return [
        g
        for name, given in e.guarantees.items()
        if limit.protection is None or name == limit.protection
        for g in given.values()
        if limit.unit is None or g.get("unit") == limit.unit
    ]


def _with_unit(check: LimitCheck, limit: Limit, e: Evidence) -> LimitCheck:
    """Add unit and delta to the text: an epsilon means nothing without them."""
    promises = _promises(limit, e)
    if check.missing or not promises or all(r.missing for r in check.readings):
        return check
    units = " or ".join(sorted({str(g.get("unit")) for g in promises}))
    deltas = sorted({float(g.get("delta") or 0.0) for g in promises})
    at = " or ".join(f"{d:g}" for d in deltas)
    return replace(check, explanation=f"{statement(check)} (epsilon per {units} at delta {at})")


def _utility_readings(limit: Limit, e: Evidence, policy: Policy) -> list[LimitReading]:
    value = e.metrics.get(limit.metric)
    if value is None:
        have = ", ".join(e.metric_names) or "none"
        return [LimitReading(missing=f"no held-out {limit.metric} is stored (stored: {have})")]
    estimate = e.utility(limit.metric, policy.confidence)
    if estimate is None:
        if not limit.point_value:
            return [
                LimitReading(
                    missing=f"held-out {limit.metric} {value:.4g} has no interval: no "
                    f"standard error is stored ({POINT_VALUE})"
                )
            ]
        estimate = Estimate(value=value, low=value, high=value, n=e.held_out, confidence=1.0)
        return [replace(r, estimate=None) for r in _bound_readings(limit, estimate)]
    return _bound_readings(limit, estimate)


def _check_verdict(limit: Limit, result: AuditResult, blank: LimitCheck) -> LimitCheck:
    """Check for forbidden verdicts; "no evidence" counts only if the audit could detect a leak."""
    found = judge(result)
    bad = [f for f in found if f.verdict in limit.forbidden]
    if bad:
        text = "; ".join(f"{label_of(f).words}: {f.statement}" for f in bad)
        leak = max(_leaked(f, result) for f in bad)
        return replace(blank, status="failed", explanation=text, remedy=bad[0].remedy, leak=leak)
    lack = _underpowered(limit, result, {f.verdict for f in found})
    if lack:
        return replace(
            blank,
            missing=f"underpowered: {lack}",
            code="underpowered",
            remedy=f"`fedaudit.power(RUN, audits=[{limit.audit!r}])`",
            leak=0.0,
        )
    return replace(blank, status="passed", explanation="; ".join(f.statement for f in found))


def _leaked(f: Finding, result: AuditResult) -> float:
    """Share of the way from chance to the most at which the interval's near end lies; 1 for what is
    known outright, or is no share."""
    e = f.estimate
    if f.known or e is None or e.baseline is None or max(abs(e.high), abs(e.baseline)) > 1:
        return 1.0
    if result.greater_is_leak:
        way = (e.low - e.baseline) / (1 - e.baseline) if e.baseline < 1 else 1.0
    else:
        way = (e.baseline - e.high) / e.baseline if e.baseline > 0 else 1.0
    return min(max(way, 0.0), 1.0)


def _underpowered(limit: Limit, result: AuditResult, verdicts: Collection[str]) -> str:
    """Why a result without a leak is too weak; empty if it is strong enough or has a leak."""
    seen = result.detectable
    if not {"no_evidence", "nothing_to_say"}.intersection(verdicts):
        return ""
    if seen is None:
        return "the audit found no leak and does not know the smallest leak that it can detect"
    if limit.must_detect is None:
        if "nothing_to_say" not in verdicts:
            return ""
        accepted = "" if math.isinf(seen) else f"; must_detect = {number(seen)} accepts that"
        return f"{judge(result)[-1].statement}{accepted}"
    short = seen > limit.must_detect if result.greater_is_leak else seen < limit.must_detect
    if not short:
        return ""
    return (
        f"the audit detects a leak from {number(seen)} on, the policy requires "
        f"{number(limit.must_detect)}"
    )


# -- words for limits ----------------------------------------------------------------------------


def limit_text(limit: Limit) -> str:
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
            # a loss of accuracy is written in percentage points
            shown = f"{round(100 * value, 9):g} points" if limit.metric == LOSS else f"{value:g}"
            parts.append(text.format(shown))
    if limit.unit:
        parts.append(f"per {limit.unit}")
    if limit.delta_at_most is not None:
        parts.append(f"delta at most {limit.delta_at_most:g}")
    if limit.protection:
        parts.append(f"of {limit.protection}")
    return ", ".join(parts) + (", every client" if limit.per_client else "")
