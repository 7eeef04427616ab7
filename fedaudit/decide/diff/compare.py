"""Compare two runs of one federation: which changes exceed their intervals."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, NamedTuple

from fedaudit.audits import facts_of
from fedaudit.audits.facts import GREATER, LESS, UNKNOWN
from fedaudit.decide.diff.outcome import (
    SIGNIFICANCE,
    Change,
    ClientChanges,
    Comparison,
    Comparisons,
    Difference,
    EpsilonChange,
    VerdictChange,
)
from fedaudit.decide.gate.evidence import (
    Evidence,
    gather_evidence,
    nothing_to_link,
    require_results,
)
from fedaudit.decide.gate.measures import UTILITY
from fedaudit.errors import UsageError
from fedaudit.reporting.findings import judge_all
from fedaudit.results import AuditResult, Estimate, Finding
from fedaudit.stats.combine import holm
from fedaudit.study.folders import is_study

SHOWN_CLIENTS = 3


class MeasurePair(NamedTuple):
    """One measure in two runs; `worse` is the direction that is worse, `who` a client."""

    audit: str
    measure: str
    first: Estimate
    second: Estimate
    worse: int
    headline: bool = False
    who: str = ""


SEVERITY = {"no_evidence": 0, "attributed": 1, "leak": 1, "disagreement": 3}
"""Rank of the verdicts that conclude. A leak known outright ranks 2, see `severity`."""

KNOWN_OUTRIGHT = "known_outright"
"""Shown instead of "leak" if the leak needs no attack."""

FEDERATION = ("data", "partition", "task")
"""Config sections that define the federation."""


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    anyway: bool = False,
    names: bool = False,
) -> Comparisons:
    """Compare two runs, or the runs of two studies by federation and variant.

    Different federations are refused unless `anyway`. `names` shows clients by name.
    """
    if is_study(first) != is_study(second):
        one, other = (first, second) if is_study(first) else (second, first)
        raise UsageError(
            "a study and a single run cannot be compared",
            expected="two runs, or two studies",
            got=f"{one} is a study of several runs, {other} is one run",
            remedy=f"name one run inside {one}",
        )
    sides = gather_evidence(first), gather_evidence(second)
    gone: list[str] = []
    new: list[str] = []
    if not is_study(first):
        pairs = [(sides[0][0], sides[1][0])]
    else:
        pairs, gone, new = _pair_runs(*sides)
    require_results([e for pair in pairs for e in pair if e.purged or not e.unusable])
    out = []
    for a, b in pairs:
        different = federation_differences(a, b)
        if different and not anyway:
            raise UsageError(
                "the two runs belong to different federations"
                + (f" ({a.label})" if a.label else ""),
                expected="two runs of the same clients, data and task",
                got="; ".join(different),
                remedy="compare runs of one federation, or use --anyway to compare two federations",
            )
        out.append(_for_reader(compare(a, b, different), a, b, names))
    last = out[-1]
    out[-1] = replace(last, lost=(*last.lost, *gone), notes=(*last.notes, *new))
    return Comparisons(out)


def _pair_runs(
    first: Sequence[Evidence], second: Sequence[Evidence]
) -> tuple[list[tuple[Evidence, Evidence]], list[str], list[str]]:
    """Pairs of runs with the same name; runs of the first study only; runs of the second only."""
    there = {(e.federation, e.variant): e for e in second}
    here = {(e.federation, e.variant): e for e in first}
    pairs = [(e, there[name]) for name, e in here.items() if name in there]
    gone = [f"only in the first study: {here[n].label}" for n in here if n not in there]
    new = [f"only in the second study: {there[n].label}" for n in there if n not in here]
    if not pairs:
        raise UsageError(
            "the two studies have no run in common",
            expected="runs of the same federation and variant in both",
            got=f"{', '.join(e.label for e in first)} and {', '.join(e.label for e in second)}",
            remedy="compare single runs by their folders",
        )
    return pairs, gone, new


def federation_differences(a: Evidence, b: Evidence) -> tuple[str, ...]:
    """Differences in clients, model, task or data of two federations; settings do not count."""
    out = []
    if (a.unusable and not a.clients) or (b.unusable and not b.clients):
        return ()
    if set(a.clients) != set(b.clients):
        out.append(
            f"{len(a.clients)} and {len(b.clients)} clients"
            if len(a.clients) != len(b.clients)
            else f"{len(set(a.clients) - set(b.clients))} of {len(a.clients)} clients have "
            "different names"
        )
    if a.layout != b.layout:
        out.append(f"different models ({_size(a)} and {_size(b)} numbers)")
    elif a.task.get("kind") != b.task.get("kind"):
        out.append(f"different tasks ({a.task.get('kind')} and {b.task.get('kind')})")
    same_records = a.data_sha256 and a.data_sha256 == b.data_sha256
    if not same_records:
        known = a.config and b.config
        for section in FEDERATION[:2]:
            keys = changed_settings(
                {section: a.config.get(section, {})}, {section: b.config.get(section, {})}
            )
            if known and keys:
                shown = ", ".join(f"{k} ({x} and {y})" for k, x, y in keys[:3])
                out.append(f"different {section}: {shown}")
        if not known and a.data_sha256 and b.data_sha256:
            out.append("different records")
    return tuple(out)


def _size(e: Evidence) -> str:
    return f"{sum(math.prod(shape) for _, shape in e.layout):,}"


def changed_settings(
    first: Mapping[str, Any], second: Mapping[str, Any], at: str = ""
) -> list[tuple[str, str, str]]:
    """(key, first value, second value) of every setting that differs."""
    out = []
    for key in dict.fromkeys([*first, *second]):
        a, b = first.get(key), second.get(key)
        if a == b and (key in first) == (key in second):
            continue
        if isinstance(a, Mapping | None) and isinstance(b, Mapping | None) and (a or b):
            out += changed_settings(a or {}, b or {}, f"{at}{key}.")
        else:
            out.append(
                (f"{at}{key}", _setting_text(a, key in first), _setting_text(b, key in second))
            )
    # an empty section, such as "shuffle", is a difference too
    for key in dict.fromkeys([*first, *second]):
        empty = {} in (first.get(key), second.get(key))
        if empty and (key in first) != (key in second):
            row = (f"{at}{key}", _presence(key in first), _presence(key in second))
            out = [r for r in out if r[0] != row[0]] + [row]
    return out


def _setting_text(value: Any, there: bool) -> str:
    return json.dumps(value, default=str) if there else "not set"


def _presence(there: bool) -> str:
    return "there" if there else "not set"


# -- differences ---------------------------------------------------------------------------------


def difference(a: Estimate, b: Estimate) -> tuple[float, float, float, float]:
    """Second minus first, its interval (low, high), and the error level at which it ends at 0.

    MOVER (Zou and Donner 2008; Newcombe 1998 for proportions): with d = b - a,
    low = d - sqrt((b - l_b)^2 + (u_a - a)^2), high = d + sqrt((u_b - b)^2 + (a - l_a)^2).
    The error level assumes a normal distribution.
    """
    if a.value == b.value:
        d = 0.0
    else:
        d = b.value - a.value
    if math.isinf(d):
        return d, d, d, 0.0
    low = d - math.hypot(b.value - b.low, a.high - a.value)
    high = d + math.hypot(b.high - b.value, a.value - a.low)
    if d == 0.0:
        return d, low, high, 1.0
    half = d - low if d > 0 else high - d
    if half == 0.0:
        return d, low, high, 0.0
    if math.isinf(half):
        return d, low, high, 1.0
    confidence = min(a.confidence, b.confidence)
    # two exact numbers have no error level
    if confidence >= 1.0:
        return d, low, high, 0.0 if low > 0 or high < 0 else 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return d, low, high, max(2.0 * NormalDist().cdf(-z * abs(d) / half), sys.float_info.min)


def _change(d: float, adjusted: float, worse: int) -> Change:
    if d == 0.0 or adjusted > SIGNIFICANCE:
        return "same"
    if worse == UNKNOWN:
        return "changed"
    return "worse" if (d > 0) == (worse == GREATER) else "better"


def _corrected(found: Sequence[MeasurePair]) -> list[Difference]:
    """Differences of one family, with Holm's correction over the family."""
    if not found:
        return []
    parts = [difference(x.first, x.second) for x in found]
    adjusted = [p for *_, p in parts]
    # exact numbers are not tests and do not count in the correction
    tests = [i for i, x in enumerate(found) if adjusted[i] and _is_measured(x.first, x.second)]
    if tests:
        for i, q in zip(tests, holm([adjusted[i] for i in tests]), strict=True):
            adjusted[i] = float(q)
    return [
        Difference(
            audit=x.audit,
            measure=x.measure,
            first=x.first,
            second=x.second,
            value=d,
            low=low,
            high=high,
            p=p,
            adjusted=q,
            change=_change(d, q, x.worse),
            headline=x.headline,
            who=x.who,
        )
        for x, (d, low, high, p), q in zip(found, parts, adjusted, strict=True)
    ]


def _is_measured(a: Estimate, b: Estimate) -> bool:
    return min(a.confidence, b.confidence) < 1.0


def compare(a: Evidence, b: Evidence, different: Sequence[str] = ()) -> Comparison:
    """All differences between two runs."""
    notes: list[str] = []
    usable = [n for n in a.results if n in b.results and n not in a.stale | b.stale]
    heads: list[MeasurePair] = []
    others: list[MeasurePair] = []
    for name in usable:
        one, two = a.results[name], b.results[name]
        for measure, estimate in one.estimates.items():
            if measure not in two.estimates:
                continue
            is_head = measure == one.headline or measure == two.headline
            pair = _pair(one, measure, estimate, two.estimates[measure], is_head)
            (heads if is_head else others).append(pair)
        lost = [m for m in one.estimates if m not in two.estimates]
        new = [m for m in two.estimates if m not in one.estimates]
        for which, missing in (("first", lost), ("second", new)):
            if missing and one.estimates and two.estimates:
                notes.append(f"{name}: only the {which} run states {', '.join(missing)}")
        levels = {e.confidence for r in (one, two) for e in r.estimates.values()} - {1.0}
        if len(levels) > 1:
            notes.append(f"{name}: confidence levels differ; the lowest counts")
    for metric, worse in UTILITY.items():
        sides = a.utility(metric), b.utility(metric)
        if sides[0] is not None and sides[1] is not None:
            heads.append(MeasurePair("", f"held-out {metric}", sides[0], sides[1], worse, True))
        elif metric in a.metrics and metric in b.metrics:
            notes.append(
                f"held-out {metric}: {a.metrics[metric]:.4g} before, {b.metrics[metric]:.4g} now "
                "(no interval and no verdict: no standard error is stored)"
            )
    notes += [f"the first run: {a.unusable}"] if a.unusable else []
    notes += [f"{name} of the first run {STALE}" for name in sorted(a.stale)]
    lost = _lost_evidence(a, b)
    notes += [
        f"{name} of the second run {STALE}" for name in sorted(b.stale) if not _has_current(a, name)
    ]
    if b.unusable and a.unusable:
        notes.append(f"the second run: {b.unusable}")
    if a.data_sha256 and b.data_sha256 and a.data_sha256 != b.data_sha256 and not different:
        notes.append("same settings, different records: another seed, or the data file has changed")
    return Comparison(
        run=a.label if a.label == b.label else f"{a.label} and {b.label}",
        first=str(a.path),
        second=str(b.path),
        differences=(*_corrected(heads), *_corrected(others)),
        clients=tuple(_client_changes(a, b, usable)),
        epsilon=tuple(_epsilon_changes(a, b)),
        verdicts=tuple(_verdict_changes(a, b, usable)),
        settings=tuple(changed_settings(a.config, b.config)),
        lost=tuple(lost),
        unpaired=tuple(
            f"{name}: only in the second run" for name in b.results if name not in a.results
        ),
        different=tuple(different),
        notes=tuple(notes),
    )


def _worse_direction(result: AuditResult, measure: str) -> int:
    """The audit states the direction of its headline; a table has the others."""
    if measure == result.headline:
        return GREATER if result.greater_is_leak else LESS
    return facts_of(result.audit).direction(measure)


def _pair(
    result: AuditResult, measure: str, first: Estimate, second: Estimate, headline: bool
) -> MeasurePair:
    worse = _worse_direction(result, measure)
    declared = facts_of(result.audit).measure(measure)
    if declared is not None and declared.above_non_members:
        one, two = _above_baseline(first), _above_baseline(second)
        if one is None or two is None:
            worse = UNKNOWN
        else:
            first, second = one, two
            measure = f"{measure}, above non-members"
    return MeasurePair(result.audit, measure, first, second, worse, headline)


def _above_baseline(e: Estimate) -> Estimate | None:
    """An estimate minus its baseline, a mean over as many non-members.

    The error of the baseline is not stored. It is assumed equal to that of the estimate and
    independent of it, so the interval widens by sqrt(2).
    """
    if e.baseline is None:
        return None
    value = e.value - e.baseline
    return replace(
        e,
        value=value,
        low=value - math.sqrt(2.0) * (e.value - e.low),
        high=value + math.sqrt(2.0) * (e.high - e.value),
        baseline=0.0,
    )


STALE = "belongs to another trace: not compared"


def _has_current(e: Evidence, name: str) -> bool:
    return name in e.results and name not in e.stale


def _lost_evidence(a: Evidence, b: Evidence) -> list[str]:
    """Evidence of the first run that the second lacks: removing evidence counts as worse."""
    out = [f"the second run: {b.unusable}"] if b.unusable and not a.unusable else []
    for name in a.results:
        if name not in b.results:
            out.append(f"{name}: only in the first run")
        elif name in b.stale and _has_current(a, name):
            out.append(f"{name} of the second run {STALE}")
    return out


def _verdict_changes(a: Evidence, b: Evidence, names: Sequence[str]) -> list[VerdictChange]:
    """Audits whose verdict changed, or that are not applicable for a worse reason."""
    out = []
    for name in names:
        before, after = (judge_all([e.results[name]])[0] for e in (a, b))
        change, why = _verdict_change(before, after, a, b)
        if change != "same":
            first, second = (KNOWN_OUTRIGHT if f.known else f.verdict for f in (before, after))
            out.append(
                VerdictChange(audit=name, first=first, second=second, change=change, why=why)
            )
    return out


def severity(finding: Finding) -> int | None:
    """Rank of a finding; None for a verdict that does not conclude."""
    return 2 if finding.known else SEVERITY.get(finding.verdict)


def _verdict_change(
    before: Finding, after: Finding, a: Evidence, b: Evidence
) -> tuple[Change, str]:
    was_closed, is_closed = (nothing_to_link(f"{after.audit}.verdict", [e]) for e in (a, b))
    was, now = severity(before), severity(after)
    if was is not None and now is not None:
        return ("worse" if now > was else "better" if now < was else "same"), ""
    if now is not None:
        return ("worse" if now else "changed"), ""
    if is_closed:
        if was_closed:
            return "same", ""
        return ("better" if was else "changed"), "a protection leaves nothing to link"
    need = str(b.results[after.audit].need)
    if was and after.estimate is not None:
        # the estimates show whether it is better; the verdict alone does not
        return "changed", f"nothing to say now: {need}"
    if was is not None:
        return "worse", f"evidence lost: {need}"
    if was_closed:
        return "worse", f"nothing was left to link before; now: {need}"
    return ("same" if before.verdict == after.verdict else "changed"), ""


def _client_changes(a: Evidence, b: Evidence, names: Sequence[str]) -> list[ClientChanges]:
    """Changes in columns with an interval per client, Holm-corrected over the clients."""
    out = []
    for name in names:
        one, two = a.results[name], b.results[name]
        for about in facts_of(name).columns:
            title = about.name
            if not about.has_interval:
                continue
            found = []
            for client in one.per_client:
                before = _client_estimate(one, client, title)
                after = _client_estimate(two, client, title)
                if before is not None and after is not None:
                    found.append(MeasurePair(name, title, before, after, about.worse, who=client))
            if not found:
                continue
            each = _corrected(found)
            moved = sorted((d for d in each if d.change != "same"), key=lambda d: d.p)
            out.append(
                ClientChanges(
                    audit=name,
                    column=title,
                    clients=len(each),
                    worse=sum(d.change == "worse" for d in each),
                    better=sum(d.change == "better" for d in each),
                    changed=sum(d.change == "changed" for d in each),
                    most=tuple(moved[:SHOWN_CLIENTS]),
                )
            )
    return out


def _client_estimate(result: AuditResult, client: str, title: str) -> Estimate | None:
    row = result.per_client.get(client, {})
    values = [row.get(k) for k in (title, "low", "high")]
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if len(numbers) < 3:
        return None
    head = result.estimates.get(result.headline or "")
    confidence = result.settings.get("confidence", 0.95 if head is None else head.confidence)
    return Estimate(
        value=numbers[0],
        low=min(numbers[0], numbers[1]),
        high=max(numbers[0], numbers[2]),
        n=0,
        confidence=float(confidence),
    )


def _epsilon_changes(a: Evidence, b: Evidence) -> list[EpsilonChange]:
    """Changes of promised epsilons: exact, so any difference counts; no promise is infinite."""
    out = []
    for name in dict.fromkeys([*a.guarantees, *b.guarantees]):
        before, after = dict(a.guarantees.get(name, {})), dict(b.guarantees.get(name, {}))
        units = {str(g.get("unit")) for g in (*before.values(), *after.values())}
        for unit in sorted(units):
            old = {c: float(g["epsilon"]) for c, g in before.items() if g.get("unit") == unit}
            new = {c: float(g["epsilon"]) for c, g in after.items() if g.get("unit") == unit}
            everyone = {*old, *new}
            steps = [(old.get(c, math.inf), new.get(c, math.inf)) for c in everyone]
            out.append(
                EpsilonChange(
                    protection=name,
                    unit=unit,
                    first=(min(old.values()), max(old.values())) if old else None,
                    second=(min(new.values()), max(new.values())) if new else None,
                    worse=sum(_clearly_greater(y, x) for x, y in steps),
                    better=sum(_clearly_greater(x, y) for x, y in steps),
                )
            )
    return out


def _clearly_greater(greater: float, less: float) -> bool:
    """Whether `greater` exceeds `less` by more than the rounding of an accountant."""
    return greater > less and not math.isclose(greater, less, rel_tol=1e-6)


def _for_reader(c: Comparison, a: Evidence, b: Evidence, names: bool) -> Comparison:
    # both runs have the same clients in the same order
    hide = (a if a.clients else b).renaming(names).text
    return replace(
        c,
        clients=tuple(
            replace(x, most=tuple(replace(d, who=hide(d.who)) for d in x.most)) for x in c.clients
        ),
        settings=tuple((key, hide(x), hide(y)) for key, x, y in c.settings),
        verdicts=tuple(replace(v, why=hide(v.why)) for v in c.verdicts),
        lost=tuple(hide(x) for x in c.lost),
        notes=tuple(hide(n) for n in c.notes),
        different=tuple(hide(d) for d in c.different),
    )
