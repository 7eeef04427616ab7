"""The rules by which a result becomes a verdict, and the words for it. Nothing else judges.

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
from dataclasses import dataclass

from fedaudit.results import AuditResult, Bound, Estimate, Finding

REMEDY = ". Try: "
"""Between what is missing and what to do about it in `AuditResult.not_applicable`."""

ORDER = {"disagreement": 0, "leak": 1, "no_evidence": 2, "not_applicable": 3}


@dataclass(frozen=True)
class Words:
    """How one audit's headline reads.

    `{value}`, `{baseline}` and `{notes}` (the result's own remarks) are filled in.
    """

    measure: str
    leak: str
    no_evidence: str
    remedy: str
    percent: bool = False


WORDS = {
    "active_membership": Words(
        measure="share of games in which the server was right, members and others alike",
        leak="With planted weights the server is right about a record in {value} of games (chance "
        "{baseline}): one gradient tells whether the record is in a client's data.",
        no_evidence="With planted weights the server is right about a record in {value} of games, "
        "which chance ({baseline}) can explain.",
        remedy="check received models before training, add noise at the clients (DP-SGD), or "
        "choose local DP with a smaller exact budget",
        percent=True,
    ),
    "attribution": Words(
        measure="clients that are named as having trained on marked records",
        leak="{value} clients are named as having trained on marked records, all of them rightly "
        "but for the stated error rate: {notes}.",
        no_evidence="No client is named as having trained on marked records.",
        remedy="if this is unwanted: fewer subset sums, larger groups, or noise at the clients; "
        "what the sums give away besides is in the query_plan audit",
    ),
    "fingerprint": Words(
        measure="links between neighbouring rounds that were right",
        leak="{value} of a client's updates were linked to its next one (chance {baseline}): "
        "shuffling hides names, not content.",
        no_evidence="{value} of a client's updates were linked to its next one, which chance "
        "({baseline}) can explain.",
        remedy="add noise at the clients (DP-SGD), or let only a secure sum leave",
        percent=True,
    ),
    "two_stage_membership": Words(
        measure="area under the ROC curve of the membership attack",
        leak="An attack on the recorded round tells records that a client trained on from matched "
        "others with AUC {value} (chance {baseline}).",
        no_evidence="The membership attack reaches AUC {value}, which chance ({baseline}) can "
        "explain.",
        remedy="add noise at the clients (DP-SGD), train fewer local epochs, or let only a secure "
        "sum leave",
    ),
    "topology_inference": Words(
        measure="share of the spread of class mixes between clients that an observer explains",
        leak="An observer of the wire explains {value} of how clients differ in their share of the "
        "sensitive classes ({baseline}: no better than one guess for all).",
        no_evidence="An observer of the wire explains {value} of how clients differ in their share "
        "of the sensitive classes, which chance ({baseline}) can explain.",
        remedy="noise against the parameter channel (DP-SGD hides records, a class mix needs far "
        "more); against place and organisation no noise helps: see what_if",
        percent=True,
    ),
    "coverage": Words(
        measure="kinds of data that left a client outside every declared protection",
        leak="Outside every declared protection left: {notes}.",
        no_evidence="Everything that left a client falls under a declared protection.",
        remedy="declare a protection that covers them, or stop sending them",
    ),
    "query_plan": Words(
        measure="clients in the smallest group that some combination of answers exposes",
        leak="Combined, the answers expose a group of {value} below the threshold of {baseline}: "
        "{notes}.",
        no_evidence="No combination of a round's answers was found to involve fewer than {value} "
        "clients (threshold {baseline}).",
        remedy="ask for disjoint groups (`fedaudit plan design`), or let the aggregator refuse "
        "such queries (refuse_isolating = true)",
    ),
}
GENERIC = Words(
    measure="headline estimate",
    leak="The estimate {value} lies beyond what no leak would give ({baseline}).",
    no_evidence="The estimate {value} is compatible with no leak ({baseline}).",
    remedy="see the audit's page",
)


def number(value: float, percent: bool = False) -> str:
    """A number as a report prints it."""
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    if percent:
        return f"{100 * value:.1f} %"
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
                    rule=f"the interval lies wholly beyond a {bound.kind} bound",
                    measure=bound.of,
                    estimate=estimate,
                    source=bound.source,
                    remedy=f"check the bound's assumption: {bound.assumes or 'none stated'}",
                )
            )
    found.append(_headline(result, words))
    return found


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
            rule="a need of the audit is not met",
            source=result.source,
            remedy=remedy,
        )
    estimate = result.estimates[result.headline]
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    if result.greater_is_leak:
        leak = estimate.low > baseline
        ends = ("low", "above")
    else:
        leak = estimate.high < baseline
        ends = ("high", "below")
    word = "" if leak else "not "
    rule = f"the {ends[0]} end of the interval is {word}{ends[1]} {number(baseline, words.percent)}"
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
        rule=rule,
        measure=result.headline,
        estimate=estimate,
        source=result.source,
        remedy=words.remedy if leak else "",
    )


def judge_all(results: Iterable[AuditResult]) -> list[Finding]:
    """Findings of all results, worst first, otherwise in the order given."""
    found = [f for result in results for f in judge(result)]
    return sorted(found, key=lambda f: ORDER[f.verdict])
