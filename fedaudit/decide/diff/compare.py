"""What changed between two runs of one federation, beyond the intervals."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from fedaudit.audits import facts_of
from fedaudit.audits.facts import GREATER, LESS, UNKNOWN
from fedaudit.decide.diff.outcome import (
    SIGNIFICANCE,
    Change,
    ClientChanges,
    Comparison,
    Comparisons,
    Difference,
    Spent,
    VerdictChange,
)
from fedaudit.decide.gate.evidence import (
    Evidence,
    gather,
    need_results,
    nothing_left,
)
from fedaudit.decide.gate.measures import UTILITY
from fedaudit.errors import UsageError
from fedaudit.reporting.findings import judge_all
from fedaudit.results import AuditResult, Estimate, Finding
from fedaudit.stats.combine import holm
from fedaudit.study.folders import is_study

SHOWN_CLIENTS = 3
Pair = tuple[str, str, Estimate, Estimate, int, bool, str]
"""(audit, measure, first, second, which way is worse, whether it is a headline, client)."""

SEVERITY = {"no_evidence": 0, "attributed": 1, "leak": 1, "disagreement": 3}
"""Verdicts that say something; the others say nothing. What is known outright is worse than any
leak that takes an attack, see `severity`."""

OUTRIGHT = "known_outright"
"""What a leak without an attack is called beside verdicts."""

FEDERATION = ("data", "partition", "task")
"""Sections of a config that say which federation it is; the others say how it was run."""


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    anyway: bool = False,
    names: bool = False,
) -> Comparisons:
    """Compare two runs, or the runs of two studies by federation and variant.

    Different federations are refused unless `anyway`. Clients go by number unless `names`.
    """
    if is_study(first) != is_study(second):
        one, other = (first, second) if is_study(first) else (second, first)
        raise UsageError(
            "a study and a single run cannot be compared",
            expected="two runs, or two studies",
            got=f"{one} is a study of several runs, {other} is one run",
            remedy=f"name one of the runs inside {one}",
        )
    sides = gather(first), gather(second)
    gone: list[str] = []
    new: list[str] = []
    if not is_study(first):
        pairs = [(sides[0][0], sides[1][0])]
    else:
        pairs, gone, new = _paired(*sides)
    need_results([e for pair in pairs for e in pair if e.purged or not e.lacking])
    out = []
    for a, b in pairs:
        different = federations_differ(a, b)
        if different and not anyway:
            raise UsageError(
                "these are two different federations" + (f" ({a.label})" if a.label else ""),
                expected="two runs of the same clients, data and task",
                got="; ".join(different),
                remedy="compare runs of one federation, or say --anyway and read differences as "
                "those of two federations",
            )
        out.append(_hidden(compare(a, b, different), a, b, names))
    last = out[-1]
    out[-1] = replace(last, lost=(*last.lost, *gone), notes=(*last.notes, *new))
    return Comparisons(out)


def _paired(
    first: Sequence[Evidence], second: Sequence[Evidence]
) -> tuple[list[tuple[Evidence, Evidence]], list[str], list[str]]:
    """Runs of the same name in both studies; those of the first alone, and of the second alone."""
    there = {(e.federation, e.variant): e for e in second}
    here = {(e.federation, e.variant): e for e in first}
    pairs = [(e, there[name]) for name, e in here.items() if name in there]
    gone = [f"only in the first study: {here[n].label}" for n in here if n not in there]
    new = [f"only in the second study: {there[n].label}" for n in there if n not in here]
    if not pairs:
        raise UsageError(
            "these studies have no run in common",
            expected="runs of the same federation and variant in both",
            got=f"{', '.join(e.label for e in first)} and {', '.join(e.label for e in second)}",
            remedy="compare single runs inside them by their folders",
        )
    return pairs, gone, new


def federations_differ(a: Evidence, b: Evidence) -> tuple[str, ...]:
    """In what two federations are not the same; empty if they are, whatever their settings."""
    out = []
    if (a.lacking and not a.clients) or (b.lacking and not b.clients):
        return ()
    if set(a.clients) != set(b.clients):
        out.append(
            f"{len(a.clients)} and {len(b.clients)} clients"
            if len(a.clients) != len(b.clients)
            else f"{len(set(a.clients) - set(b.clients))} of {len(a.clients)} clients have other "
            "names"
        )
    if a.layout != b.layout:
        out.append(f"other models ({_size(a)} and {_size(b)} numbers)")
    elif a.task.get("kind") != b.task.get("kind"):
        out.append(f"other tasks ({a.task.get('kind')} and {b.task.get('kind')})")
    same_records = a.data_sha256 and a.data_sha256 == b.data_sha256
    if not same_records:
        known = a.config and b.config
        for section in FEDERATION[:2]:
            keys = changed_settings(
                {section: a.config.get(section, {})}, {section: b.config.get(section, {})}
            )
            if known and keys:
                shown = ", ".join(f"{k} ({x} and {y})" for k, x, y in keys[:3])
                out.append(f"other {section}: {shown}")
        if not known and a.data_sha256 and b.data_sha256:
            out.append("other records")
    return tuple(out)


def _size(e: Evidence) -> str:
    return f"{sum(math.prod(shape) for _, shape in e.layout):,}"


def changed_settings(
    first: Mapping[str, Any], second: Mapping[str, Any], at: str = ""
) -> list[tuple[str, str, str]]:
    """(key, value, value) of all settings in which two configs differ."""
    out = []
    for key in dict.fromkeys([*first, *second]):
        a, b = first.get(key), second.get(key)
        if a == b and (key in first) == (key in second):
            continue
        if isinstance(a, Mapping | None) and isinstance(b, Mapping | None) and (a or b):
            out += changed_settings(a or {}, b or {}, f"{at}{key}.")
        else:
            out.append((f"{at}{key}", _spelt(a, key in first), _spelt(b, key in second)))
    # an empty section ("shuffle" has no settings) is a difference too
    for key in dict.fromkeys([*first, *second]):
        empty = {} in (first.get(key), second.get(key))
        if empty and (key in first) != (key in second):
            row = (f"{at}{key}", _present(key in first), _present(key in second))
            out = [r for r in out if r[0] != row[0]] + [row]
    return out


def _spelt(value: Any, there: bool) -> str:
    return json.dumps(value, default=str) if there else "not set"


def _present(there: bool) -> str:
    return "there" if there else "not set"


# -- differences ---------------------------------------------------------------------------------


def difference(a: Estimate, b: Estimate) -> tuple[float, float, float, float]:
    """Second minus first, its interval, and the error at which that would end at 0.

    MOVER (Zou and Donner 2008; Newcombe 1998 for proportions): with d = b - a,
    low = d - sqrt((b - l_b)^2 + (u_a - a)^2), high = d + sqrt((u_b - b)^2 + (a - l_a)^2).
    The error is read off by scaling the distance to 0, as a normal would.
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
    # an exact number beside a measured one has no error of its own
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


def _judged(
    found: Sequence[Pair],
) -> list[Difference]:
    """Differences of one family, Holm-corrected together."""
    if not found:
        return []
    parts = [difference(a, b) for _, _, a, b, _, _, _ in found]
    adjusted = [p for *_, p in parts]
    # exact numbers are no tests: they neither need a correction nor make it larger
    tests = [i for i, (_, _, a, b, *_) in enumerate(found) if adjusted[i] and _measured(a, b)]
    if tests:
        for i, q in zip(tests, holm([adjusted[i] for i in tests]), strict=True):
            adjusted[i] = float(q)
    return [
        Difference(
            audit=audit,
            measure=measure,
            first=a,
            second=b,
            value=d,
            low=low,
            high=high,
            p=p,
            adjusted=q,
            change=_change(d, q, worse),
            headline=headline,
            who=who,
        )
        for (audit, measure, a, b, worse, headline, who), (d, low, high, p), q in zip(
            found, parts, adjusted, strict=True
        )
    ]


def _measured(a: Estimate, b: Estimate) -> bool:
    return min(a.confidence, b.confidence) < 1.0


def compare(a: Evidence, b: Evidence, different: Sequence[str] = ()) -> Comparison:
    """All differences of two runs."""
    notes = []
    usable = [n for n in a.results if n in b.results and n not in a.stale | b.stale]
    heads: list[Pair] = []
    others: list[Pair] = []
    for name in usable:
        one, two = a.results[name], b.results[name]
        for measure, estimate in one.estimates.items():
            if measure not in two.estimates:
                continue
            is_head = measure == one.headline or measure == two.headline
            row = _pair(one, measure, estimate, two.estimates[measure], is_head)
            (heads if is_head else others).append(row)
        lost = [m for m in one.estimates if m not in two.estimates]
        new = [m for m in two.estimates if m not in one.estimates]
        for which, missing in (("first", lost), ("second", new)):
            if missing and one.estimates and two.estimates:
                notes.append(f"{name}: only the {which} run states {', '.join(missing)}")
        levels = {e.confidence for r in (one, two) for e in r.estimates.values()} - {1.0}
        if len(levels) > 1:
            notes.append(f"{name}: intervals at several levels; the lowest counts")
    for metric, worse in UTILITY.items():
        sides = a.utility(metric), b.utility(metric)
        if sides[0] is not None and sides[1] is not None:
            heads.append(("", f"held-out {metric}", sides[0], sides[1], worse, True, ""))
        elif metric in a.metrics and metric in b.metrics:
            notes.append(
                f"held-out {metric}: {a.metrics[metric]:.4g} before, {b.metrics[metric]:.4g} now "
                "(no standard error is stored, so no interval and no verdict)"
            )
    notes += [f"the first run: {a.lacking}"] if a.lacking else []
    notes += [f"{name} of the first run {STALE}" for name in sorted(a.stale)]
    lost = _lost(a, b)
    notes += [
        f"{name} of the second run {STALE}" for name in sorted(b.stale) if not _shows(a, name)
    ]
    if b.lacking and a.lacking:
        notes.append(f"the second run: {b.lacking}")
    if a.data_sha256 and b.data_sha256 and a.data_sha256 != b.data_sha256 and not different:
        notes.append("the same settings with other records: another seed, or the file has changed")
    return Comparison(
        run=a.label if a.label == b.label else f"{a.label} and {b.label}",
        first=str(a.path),
        second=str(b.path),
        differences=(*_judged(heads), *_judged(others)),
        clients=tuple(_per_client(a, b, usable)),
        epsilon=tuple(_epsilon(a, b)),
        verdicts=tuple(_verdicts(a, b, usable)),
        settings=tuple(changed_settings(a.config, b.config)),
        lost=tuple(lost),
        unpaired=tuple(
            f"{name}: only in the second run" for name in b.results if name not in a.results
        ),
        different=tuple(different),
        notes=tuple(notes),
    )


def _worse(result: AuditResult, measure: str) -> int:
    """From the table; a headline's direction is what the audit itself says."""
    if measure == result.headline:
        return GREATER if result.greater_is_leak else LESS
    return facts_of(result.audit).direction(measure)


def _pair(
    result: AuditResult, measure: str, first: Estimate, second: Estimate, headline: bool
) -> Pair:
    worse = _worse(result, measure)
    declared = facts_of(result.audit).measure(measure)
    if declared is not None and declared.above_non_members:
        one, two = _above_baseline(first), _above_baseline(second)
        if one is None or two is None:
            worse = UNKNOWN
        else:
            first, second = one, two
            measure = f"{measure}, above non-members"
    return (result.audit, measure, first, second, worse, headline, "")


def _above_baseline(e: Estimate) -> Estimate | None:
    """An estimate minus its baseline, where that is a mean over as many non-members.

    The baseline has an error of its own that is not stored. It is taken to be as large as the
    estimate's and independent of it, so the interval is wider by the root of 2.
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


STALE = "was made of another trace: not compared"


def _shows(e: Evidence, name: str) -> bool:
    return name in e.results and name not in e.stale


def _lost(a: Evidence, b: Evidence) -> list[str]:
    """What the first run shows and the second does not: whoever removes evidence proves nothing."""
    out = [f"the second run: {b.lacking}"] if b.lacking and not a.lacking else []
    for name in a.results:
        if name not in b.results:
            out.append(f"{name}: only in the first run")
        elif name in b.stale and _shows(a, name):
            out.append(f"{name} of the second run {STALE}")
    return out


def _verdicts(a: Evidence, b: Evidence, names: Sequence[str]) -> list[VerdictChange]:
    """Audits whose verdict is another one now, or that are not applicable for a worse reason."""
    out = []
    for name in names:
        before, after = (judge_all([e.results[name]])[0] for e in (a, b))
        change, why = _verdict_change(before, after, a, b)
        if change != "same":
            first, second = (OUTRIGHT if f.known else f.verdict for f in (before, after))
            out.append(
                VerdictChange(audit=name, first=first, second=second, change=change, why=why)
            )
    return out


def severity(finding: Finding) -> int | None:
    """How bad a finding is; None where it says nothing either way."""
    return 2 if finding.known else SEVERITY.get(finding.verdict)


def _verdict_change(
    before: Finding, after: Finding, a: Evidence, b: Evidence
) -> tuple[Change, str]:
    was_closed, is_closed = (nothing_left(f"{after.audit}.verdict", [e]) for e in (a, b))
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
        # the numbers say whether it got better; the verdict alone does not
        return "changed", f"nothing can be said now: {need}"
    if was is not None:
        return "worse", f"evidence lost: {need}"
    if was_closed:
        return "worse", f"nothing was left to link; now: {need}"
    return ("same" if before.verdict == after.verdict else "changed"), ""


def _per_client(a: Evidence, b: Evidence, names: Sequence[str]) -> list[ClientChanges]:
    """Columns that have an interval per client; Holm over the clients."""
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
                    found.append((name, title, before, after, about.worse, False, client))
            if not found:
                continue
            each = _judged(found)
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


def _epsilon(a: Evidence, b: Evidence) -> list[Spent]:
    """What was promised is exact: any difference counts; no promise is an infinite epsilon."""
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
                Spent(
                    protection=name,
                    unit=unit,
                    first=(min(old.values()), max(old.values())) if old else None,
                    second=(min(new.values()), max(new.values())) if new else None,
                    worse=sum(_clearly(y, x) for x, y in steps),
                    better=sum(_clearly(x, y) for x, y in steps),
                )
            )
    return out


def _clearly(greater: float, less: float) -> bool:
    """Greater by more than rounding in an accountant."""
    return greater > less and not math.isclose(greater, less, rel_tol=1e-6)


def _hidden(c: Comparison, a: Evidence, b: Evidence, names: bool) -> Comparison:
    # runs of one federation have the same clients in the same order
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
