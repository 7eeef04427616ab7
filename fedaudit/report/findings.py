"""From results to verdicts and sentences, by the table in `rules`. Nothing else judges.

    disagreement    the interval of an estimate lies beyond an upper (or below a lower) bound:
                    theory and measurement disagree, and that is the top finding
    leak            the interval of the headline lies wholly on the bad side of its baseline
    no_evidence     it does not; the smallest effect that would have been seen is stated
    not_applicable  a need of the audit is missing; the need is named

There is no "safe".
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedaudit.report.rules import GENERIC, RULES, VERDICTS, WORDS, Words
from fedaudit.results import AuditResult, Bound, Estimate, Finding

REMEDY = ". Try: "
"""Between what is missing and what to do about it in `AuditResult.not_applicable`."""

BLIND = "no truth"
"""How `not_applicable` begins where an attack guessed and nothing could be scored."""
FAILED = "this audit failed: "
"""How `not_applicable` begins where an audit ended in an error."""

ORDER = {verdict: i for i, verdict in enumerate(VERDICTS)}


def number(value: float, percent: bool = False) -> str:
    """A number as a report prints it."""
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    if percent:
        # a small negative number is no "-0.0"
        return f"{round(100 * value, 1) + 0.0:.1f} %"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.3g}"


def interval(e: Estimate, percent: bool = False) -> str:
    """`value [low, high]` with the confidence where it is not exact."""
    text = f"{number(e.value, percent)} [{number(e.low, percent)}, {number(e.high, percent)}]"
    return f"{text}, exact" if e.confidence >= 1 else f"{text} at {100 * e.confidence:g} %"


def against(e: Estimate, percent: bool = False) -> str:
    """The baseline in words: what no leak at all would give, where the design has such a value."""
    return "none" if e.baseline is None else number(e.baseline, percent)


def words_for(audit: str) -> Words:
    return WORDS.get(audit, GENERIC)


def contradicts(bound: Bound, estimate: Estimate) -> bool:
    """Whether the whole interval lies beyond the bound."""
    if bound.kind == "upper":
        return estimate.low > bound.value
    return bound.kind == "lower" and estimate.high < bound.value


def judge(result: AuditResult) -> list[Finding]:
    """All findings of one result: disagreements with theory first."""
    words = words_for(result.audit)
    found = []
    for name, bound in result.bounds.items():
        estimate = result.estimates.get(bound.of)
        if estimate is not None and contradicts(bound, estimate):
            found.append(
                Finding(
                    verdict="disagreement",
                    audit=result.audit,
                    vantage=result.vantage,
                    question=result.question,
                    statement=f"{bound.of} was measured at {interval(estimate)}, beyond the "
                    f"{bound.kind} bound {name} = {number(bound.value)}.",
                    rule=RULES["D1" if bound.kind == "upper" else "D2"].said(),
                    measure=bound.of,
                    estimate=estimate,
                    source=bound.source,
                    remedy=f"check the bound's assumption: {bound.assumes or 'none stated'}",
                )
            )
    found.append(_headline(result, words))
    return found


def _why(missing: str) -> str:
    """The rule by which nothing was measured."""
    if missing.startswith(FAILED):
        return "A3"
    return "A2" if missing.startswith(BLIND) else "A1"


def _headline(result: AuditResult, words: Words) -> Finding:
    if result.not_applicable is not None or result.headline is None:
        missing = result.not_applicable or "the audit gave no estimate"
        missing, _, remedy = missing.partition(REMEDY)
        return Finding(
            verdict="not_applicable",
            audit=result.audit,
            vantage=result.vantage,
            question=result.question,
            statement=missing[:1].upper() + missing[1:] + ("" if missing.endswith(".") else "."),
            rule=RULES[_why(missing)].said(),
            source=result.source,
            remedy=remedy,
        )
    estimate = result.estimates[result.headline]
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    if result.greater_is_leak:
        leak = estimate.low > baseline
        rule = RULES["L1" if leak else "E1"]
    else:
        leak = estimate.high < baseline
        rule = RULES["L2" if leak else "E2"]
    filled = {
        "value": number(estimate.value, words.percent),
        "baseline": number(baseline, words.percent),
        "notes": "; ".join(result.notes) or "nothing that was named",
    }
    statement = (words.leak if leak else words.no_evidence).format(**filled)
    if not leak:
        statement += (
            " How small a leak would have been seen is not known."
            if result.detectable is None
            else f" The {'smallest' if result.greater_is_leak else 'largest'} value that would "
            f"have been seen as a leak is {number(result.detectable, words.percent)}."
        )
    return Finding(
        verdict="leak" if leak else "no_evidence",
        audit=result.audit,
        vantage=result.vantage,
        question=result.question,
        statement=statement,
        rule=rule.said(baseline=filled["baseline"]),
        measure=result.headline,
        estimate=estimate,
        source=result.source,
        remedy=words.remedy if leak else "",
    )


def judge_all(results: Iterable[AuditResult]) -> list[Finding]:
    """Findings of all results, worst first, otherwise in the order given."""
    found = [f for result in results for f in judge(result)]
    return sorted(found, key=lambda f: ORDER[f.verdict])
