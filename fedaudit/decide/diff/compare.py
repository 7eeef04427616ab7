"""Compare two runs of one federation: which changes exceed their intervals."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

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
from fedaudit.decide.diff.pairing import changed_settings, federation_differences, pair_runs
from fedaudit.decide.gate.evidence import (
    Evidence,
    gather_evidence,
    removed_question,
    require_results,
)
from fedaudit.decide.gate.measures import UTILITY
from fedaudit.errors import UsageError
from fedaudit.reporting.findings import judge_all
from fedaudit.results import AuditResult, Estimate, Finding
from fedaudit.stats.combine import holm

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


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    anyway: bool = False,
    names: bool = False,
) -> Comparisons:
    """Compare two runs, or those of two studies or folders that correspond (see `pairing`).

    Different federations are refused unless `anyway`. `names` shows clients by name.
    """
    pairs, gone, new = pair_runs(gather_evidence(first), gather_evidence(second))
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
                remedy="compare runs of one federation, or any two with `anyway=True`",
            )
        out.append(_for_reader(compare(a, b, different), a, b, names))
    last = out[-1]
    out[-1] = replace(last, lost=(*last.lost, *gone), notes=(*last.notes, *new))
    return Comparisons(out)


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
        notes.append(
            "same [data] and [partition], different records: another seed, or the data file has "
            "changed"
        )
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
    was_removed, is_removed = (removed_question(f"{after.audit}.verdict", [e]) for e in (a, b))
    was, now = severity(before), severity(after)
    if was is not None and now is not None:
        return ("worse" if now > was else "better" if now < was else "same"), ""
    if now is not None:
        return ("worse" if now else "changed"), ""
    if is_removed:
        if was_removed:
            return "same", ""
        return ("better" if was else "changed"), is_removed
    need = str(b.results[after.audit].need)
    if was and after.estimate is not None:
        # the estimates show whether it is better; the verdict alone does not
        return "changed", f"nothing to say now: {need}"
    if was is not None:
        return "worse", f"evidence lost: {need}"
    if was_removed:
        return "worse", f"before, {was_removed}; now: {need}"
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
