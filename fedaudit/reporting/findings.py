"""From results to verdicts and sentences, by the table in `rules`. Nothing else judges.

    disagreement    the interval of an estimate lies beyond an upper (or below a lower) bound, by
                    more than one audit in a thousand would by chance: the top finding
    leak            the interval of the headline lies wholly on the bad side of its baseline
                    or that of single clients does, after correction for their number; or one of
                    several readings does in a test over all of them; or what is asked about is
                    known outright
    attributed      the same of attribution: an owner found who trained on marked records
    no_evidence     it does not; the smallest effect that would have been seen is stated
    nothing_to_say  hardly any effect would have been seen, or too little was recorded
    unscored        the attack guessed, and there is no truth to score it with
    not_applicable  the question does not arise; the need is named
    failed          the audit ended in an error

A verdict follows from `status`, numbers and the `Decision` that the audit declares, never from
words. There is no "safe".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from fedaudit.audits import facts_of
from fedaudit.audits.facts import Decision, Words
from fedaudit.reporting.rules import (
    GUESSED,
    POWER,
    RULES,
    UNMEASURED,
    VERDICTS,
    WEAK,
    words_of_need,
)
from fedaudit.results import AuditResult, Bound, Estimate, Finding, Need, Verdict
from fedaudit.stats.combine import holm
from fedaudit.stats.intervals import LEAST, p_beyond

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


def words_for(audit: str, headline: str | None = None) -> Words:
    return facts_of(audit).words_of(headline)


def decision_for(audit: str) -> Decision:
    return facts_of(audit).decision


def contradicts(bound: Bound, estimate: Estimate) -> bool:
    """Whether the whole interval lies beyond the bound."""
    if bound.kind == "upper":
        return estimate.low > bound.value
    return bound.kind == "lower" and estimate.high < bound.value


DOUBT = 0.001
"""Largest chance that a result doubts its theory although all of its bounds hold. An interval at
95 % lies beyond a bound that is just reached in one of forty audits, and an audit has several."""


def refuted(result: AuditResult) -> dict[str, float]:
    """Bound that a measurement refutes -> its p-value, corrected for all bounds of the result.

    Holm at DOUBT. An audit that has divided an error of its own among its bounds
    (`Decision.bounds_error`) is taken at that: each interval decides as it is.
    """
    held = {n: b for n, b in result.bounds.items() if b.kind in ("upper", "lower")}
    pairs = {n: (b, result.estimates[b.of]) for n, b in held.items()}
    raw = {n: p_beyond(e, b.value) if contradicts(b, e) else 1.0 for n, (b, e) in pairs.items()}
    own = result.settings.get(decision_for(result.audit).bounds_error)
    if isinstance(own, int | float):
        return {n: raw[n] for n, (b, e) in pairs.items() if contradicts(b, e)}
    adjusted = dict(zip(raw, map(float, holm(list(raw.values()))), strict=True)) if raw else {}
    return {n: p for n, p in adjusted.items() if p <= DOUBT}


def judge(result: AuditResult, in_force: Collection[str] | None = None) -> list[Finding]:
    """All findings of one result: disagreements with theory first.

    `in_force`: names and facts of the protections that are (`protections.declared.in_force`), so
    that nothing is advised that is done already.
    """
    words = words_for(result.audit, result.headline)
    shared = {
        "audit": result.audit,
        "vantage": result.vantage,
        "question": words.question(result.question, in_force),
        "arrived": result.arrived,
        "expected": result.expected,
    }
    found = []
    for name, p in refuted(result).items():
        bound, rule = result.bounds[name], "D1" if result.bounds[name].kind == "upper" else "D2"
        estimate = result.estimates[bound.of]
        found.append(
            _finding(
                rule,
                shared,
                because=RULES[rule].said(p=f"{p:.2g}"),
                statement=f"{bound.of} was measured at {interval(estimate)}, beyond the "
                f"{bound.kind} bound {name} = {number(bound.value)}."
                + (f" {bound.suspect}" if bound.suspect else ""),
                measure=bound.of,
                estimate=estimate,
                source=bound.source,
                remedy=f"check the bound's assumption: {bound.assumes or 'none stated'}",
            )
        )
    if result.headline is None:
        return [*found, _unmeasured(result, shared)]
    headline = _headline(result, words, shared, in_force)
    if headline.verdict in ("no_evidence", "nothing_to_say"):
        found += _beside(result, words, shared, in_force)
        found += _single_clients(result, words, shared, in_force)
    return [*found, headline]


def settled(result: AuditResult) -> AuditResult:
    """The same result, of status "nothing_to_say" where its numbers could not have alarmed."""
    if result.status != "ok":
        return result
    worst = judge_all([result])[0]
    if worst.verdict != "nothing_to_say":
        return result
    need = Need(
        code="underpowered",
        what=worst.because,
        remedy=f"`fedaudit.power(RUN, audits=[{result.audit!r}])`",
    )
    return replace(result, status="nothing_to_say", need=need)


def _finding(rule: str, shared: Mapping[str, Any], because: str = "", **about: Any) -> Finding:
    """A finding by a rule, which says of this result why it applies."""
    made = RULES[rule]
    return Finding(
        verdict=made.verdict, rule=rule, because=because or made.said(), **shared, **about
    )


def _unmeasured(result: AuditResult, shared: Mapping[str, Any]) -> Finding:
    """The finding of a result without a headline, by its status."""
    assert result.need is not None
    missing, remedy = words_of_need(result.need, result.vantage)
    if result.status == "blind" and result.per_client:
        missing = GUESSED
    return _finding(
        UNMEASURED[result.status],
        shared,
        statement=missing[:1].upper()
        + missing[1:]
        + ("" if missing.endswith(".") else ".")
        + _measured_beside(result),
        code=result.need.code,
        source=result.source,
        remedy=remedy,
    )


def _measured_beside(result: AuditResult) -> str:
    """Sentences on what was measured although the audit's own question was not."""
    facts, said = facts_of(result.audit), ""
    percent = words_for(result.audit).percent
    for name, e in result.estimates.items():
        measure = facts.measure(name)
        if facts.shows(name) and measure is not None:
            said += f" Measured instead, {measure.words}: {interval(e, percent)}, chance "
            said += f"{against(e, percent)}."
    return said


def _headline(
    result: AuditResult,
    words: Words,
    shared: Mapping[str, Any],
    in_force: Collection[str] | None,
) -> Finding:
    assert result.headline is not None
    estimate, more = result.estimates[result.headline], result.greater_is_leak
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    rule, weak = _rule(result)
    filled = {
        "value": number(estimate.value, words.percent),
        "baseline": number(baseline, words.percent),
        "notes": "; ".join(result.notes) or "nothing that was named",
        "first": result.notes[0] if result.notes else "nothing that was named",
    }
    found = RULES[rule].verdict in ("leak", "attributed")
    text = words.known if rule == "K1" else words.leak if found else words.no_evidence
    power = "" if weak is None else weak.said(words)
    if result.need is not None:
        power = result.need.what if weak is None else power
    tested = _tested(result)
    unseen = "E3" if tested else "E1" if more else "E2"
    because = RULES[rule].said(
        baseline=filled["baseline"],
        power=power,
        unseen=RULES[unseen].said(baseline=filled["baseline"], **tested),
        **tested,
    )
    return _finding(
        rule,
        shared,
        because=because,
        statement=text.format(**filled)
        + (_decided_by(result) if found else "" if rule == "E4" else _seen(result, words, weak)),
        measure=result.headline,
        known=rule == "K1",
        estimate=estimate,
        source=result.source,
        remedy=words.advised(in_force, known=rule == "K1") if found else "",
    )


def _tested(result: AuditResult) -> dict[str, str]:
    """What the rules on several readings say of a result; empty without such a test."""
    test = result.test
    if test is None:
        return {}
    many, clients = len(test.adjusted), len(_tested_clients(result))
    family = f"{many} reading{'' if many == 1 else 's'}"
    if clients:
        family += f" and {clients} client{'' if clients == 1 else 's'}"
    return {
        "reading": f"{test.decided} {number(result.estimates[test.decided].value)}",
        "p": f"{test.p_value:.2g}",
        "many": family,
        "level": f"{test.level:g}",
    }


def _tested_clients(result: AuditResult) -> dict[str, float]:
    """Client -> its p-value in the test over several readings, adjusted for all of them."""
    column = decision_for(result.audit).client_p
    if result.test is None or not column:
        return {}
    found = {name: row.get(column) for name, row in result.per_client.items()}
    return {name: float(p) for name, p in found.items() if isinstance(p, int | float)}


def _decided_by(result: AuditResult) -> str:
    """Sentence on the reading that decided where it is not the headline."""
    test = result.test
    if test is None or test.decided == result.headline or result.known:
        return ""
    e = result.estimates[test.decided]
    return (
        f" What decided is {test.decided} {interval(e)}, chance {against(e)} (adjusted "
        f"p = {test.p_value:.2g})."
    )


BEYOND: Mapping[Verdict, str] = {"attributed": "T1", "no_evidence": "E4"}
"""Rule of a value beyond its baseline for audits whose verdict on it is no leak
(`Decision.found`)."""


def _rule(result: AuditResult) -> tuple[str, Powerless | None]:
    """The rule that decides a result with a headline, and why it could not have alarmed."""
    assert result.headline is not None
    if result.known:
        return "K1", None
    estimate, more = result.estimates[result.headline], result.greater_is_leak
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    test = result.test
    beyond = estimate.low > baseline if more else estimate.high < baseline
    if test is not None:
        beyond = test.significant
    if beyond and result.status == "ok":
        special = BEYOND.get(decision_for(result.audit).found)
        several = test is not None
        return special or ("L5" if several else "L1" if more else "L2"), None
    weak = powerless(result)
    if weak is not None or result.status == "nothing_to_say":
        return "N1", weak
    return ("E3" if test is not None else "E1" if more else "E2"), None


# -- power ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Powerless:
    """Why a result could hardly have shown a leak: the kind (of `rules.POWER`), from which value on
    it would have, the most that is possible, and on which side that is."""

    kind: str
    seen: float = math.nan
    most: float = math.nan
    side: str = "above"
    low: float = math.nan
    high: float = math.nan

    def said(self, words: Words) -> str:
        figures = {k: getattr(self, k) for k in ("seen", "most", "low", "high")}
        filled = {k: number(v, words.percent) for k, v in figures.items() if not math.isnan(v)}
        return POWER[self.kind].format(side=self.side, **filled)


def powerless(result: AuditResult) -> Powerless | None:
    """Why a result that shows no leak could hardly have shown one; None where it could.

    A count has all the power there is where the first number beyond the baseline would have been
    seen. An exact value leaves nothing to be seen, an exact range on both sides of the baseline
    leaves everything open. Distances count towards the bad side, whichever that is.
    """
    assert result.headline is not None
    estimate, seen = result.estimates[result.headline], result.detectable
    if result.undecided:
        return Powerless("undecided", low=estimate.low, high=estimate.high)
    counts, exact = decision_for(result.audit).counts, estimate.confidence >= 1
    if seen is None:
        return Powerless("unknown") if counts or not exact else None
    worse = 1 if result.greater_is_leak else -1
    if seen == worse * math.inf:
        return Powerless("nothing")
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    reach = worse * (seen - baseline)
    if reach <= 1 if counts else exact:
        return None
    kind = "upper" if worse > 0 else "lower"
    bounds = [
        worse * (b.value - baseline)
        for b in result.bounds.values()
        if b.of == result.headline and b.kind == kind
    ]
    values = (baseline, estimate.low, estimate.high, seen)
    if worse > 0:
        scale = [] if counts or max(values) > 1 else [1.0 - baseline]
    else:
        scale = [] if min(values) < 0 else [baseline]
    most = min([*bounds, *scale], default=math.inf)
    side = "above" if worse > 0 else "below"
    weak = Powerless("beyond", seen=seen, most=baseline + worse * most, side=side)
    if bounds and reach >= min(bounds):
        return weak
    return replace(weak, kind="large") if most > 0 and reach >= WEAK * most else None


def _seen(result: AuditResult, words: Words, weak: Powerless | None) -> str:
    """Sentence on the smallest leak that would have been seen."""
    seen = result.detectable
    if seen is None:
        return " How small a leak would have been seen is not known."
    if math.isinf(seen):
        return " No leak of any size would have been seen: the audit cannot say."
    most = "smallest" if result.greater_is_leak else "largest"
    text = (
        f" The {most} value that would have been seen as a leak is {number(seen, words.percent)}."
    )
    strength = decision_for(result.audit).strength
    far = [float(v) for row in result.per_client.values() if (v := row.get(strength))]
    if far:  # a count does not say how strong a signal must be
        text = " " + words.weak.format(strength=f"{max(far):.1f}")
    if result.undecided:
        e = result.estimates[result.headline or ""]
        ends = f"{number(e.low, words.percent)} to {number(e.high, words.percent)}"
        return f" The search ended undecided: it may be anything from {ends}.{text}"
    if weak is not None:
        text += " That is so much that the audit could hardly have found anything."
    return text


def _beside(
    result: AuditResult, words: Words, shared: Mapping[str, Any], in_force: Collection[str] | None
) -> list[Finding]:
    """Measures other than the headline that show a leak of their own."""
    out = []
    for measure, column in decision_for(result.audit).side_measures.items():
        e = result.estimates.get(measure)
        if e is None or e.low <= (e.baseline or 0.0):
            continue
        exposed = [name for name, row in result.per_client.items() if _is_one(row.get(column))]
        text = words.beside.get(measure, f"{measure} is {{value}}.")
        who = f" Among them: {', '.join(exposed[:NAMED])}." if exposed else ""
        out.append(
            _finding(
                "L4",
                shared,
                because=RULES["L4"].said(
                    measure=measure.replace("_", " "), baseline=number(e.baseline or 0.0)
                ),
                statement=text.format(value=number(e.value, True)) + who,
                measure=measure,
                client=exposed[0] if len(exposed) == 1 else None,
                estimate=e,
                source=result.source,
                remedy=words.advised(in_force),
            )
        )
    return out


def _is_one(value: float | int | str | None) -> bool:
    return isinstance(value, int | float) and math.isclose(value, 1.0, rel_tol=1e-9)


# -- single clients -------------------------------------------------------------------------------

HOLM = "Holm's correction"
NAMED = 5
"""Clients that a statement names."""


def _single_clients(
    result: AuditResult, words: Words, shared: Mapping[str, Any], in_force: Collection[str] | None
) -> list[Finding]:
    """Clients that lie above chance on their own where the federation as a whole does not."""
    own = clients_above(result)
    if not own:
        return []
    first = next(iter(own.values()))[0]
    base = number(first.baseline or 0.0, words.percent)
    many = sum(_client(result, row) is not None for row in result.per_client.values())
    names = list(own)[:NAMED]
    by = "correction for all clients and readings" if _tested_clients(result) else HOLM
    each = [
        f"{name}: {interval(own[name][0], words.percent)} (p = {own[name][1]:.2g} after {by})"
        for name in names
    ]
    more = f" and {len(own) - NAMED} more" if len(own) > NAMED else ""
    several = len(own) > 1
    lie = f"on {'their' if several else 'its'} own {'lie' if several else 'lies'}"
    return [
        _finding(
            "L3",
            shared,
            because=RULES["L3"].said(
                clients=f"{', '.join(names)}{more} {lie}", baseline=base, many=str(many)
            ),
            statement=f"The federation as a whole shows no leak, but {len(own)} of {many} clients "
            f"{lie} above {words.against} ({base}). {'; '.join(each)}{more}.",
            measure=result.headline,
            client=names[0],
            estimate=first,
            source=result.source,
            remedy=words.advised(in_force),
        )
    ]


def clients_above(result: AuditResult) -> dict[str, tuple[Estimate, float]]:
    """Client -> (its own value, p after correction), the most striking first.

    If one test covers readings and clients, it decides. Otherwise a client counts as the federation
    does by rule L1: at the error that its interval leaves above its low end, which Holm's
    correction divides among all clients that have an interval.
    """
    facts = decision_for(result.audit)
    differs = facts.headline_differs_with in result.estimates
    if not facts.client_value or differs or not result.greater_is_leak:
        return {}
    known = {name: _client(result, row) for name, row in result.per_client.items()}
    own = {name: e for name, e in known.items() if e is not None}
    if not own:
        return {}
    if tested := _tested_clients(result):
        assert result.test is not None
        found = [n for n in own if tested.get(n, 1.0) <= result.test.level]
        return {name: (own[name], tested[name]) for name in sorted(found, key=tested.__getitem__)}
    raw = [_p_value(e, facts, result.per_client[name]) for name, e in own.items()]
    adjusted = dict(zip(own, map(float, holm(raw)), strict=True))
    above = [
        name
        for name, e in own.items()
        if e.low > (e.baseline or 0.0) and adjusted[name] <= (1 - e.confidence) / 2
    ]
    return {name: (own[name], adjusted[name]) for name in sorted(above, key=adjusted.__getitem__)}


def _client(result: AuditResult, row: Mapping[str, float | int | str | None]) -> Estimate | None:
    """A client's own value of the headline's measure, where it has one with an interval."""
    assert result.headline is not None
    headline, facts = result.estimates[result.headline], decision_for(result.audit)
    value, low, high = (row.get(c) for c in (facts.client_value, "low", "high"))
    if not all(isinstance(v, int | float) for v in (value, low, high)):
        return None
    size, chance = row.get(facts.sample_size), row.get("chance")
    return Estimate(
        value=float(value or 0.0),
        low=float(low or 0.0),
        high=float(high or 0.0),
        n=int(size) * (1 + facts.ranked) if isinstance(size, int | float) else 0,
        confidence=headline.confidence,
        baseline=float(chance) if isinstance(chance, int | float) else headline.baseline,
        method="of one client",
    )


def _p_value(e: Estimate, facts: Decision, row: Mapping[str, float | int | str | None]) -> float:
    """How often chance alone would give a client so much, or more; never zero.

    Exact (binomial) from counts, otherwise from the interval. An interval from few records is too
    narrow: an AUC must also stand out by its deviation without a leak, sqrt((2 m + 1) / 12) / m
    for m members and as many others (Mann and Whitney 1947).
    """
    baseline = e.baseline or 0.0
    if e.value <= baseline:
        return 1.0
    counts = facts.client_counts
    found, tried = (row.get(c) for c in counts) if counts is not None else (None, None)
    if isinstance(found, int) and isinstance(tried, int) and 0 < baseline < 1:
        from scipy.special import bdtrc

        return max(float(bdtrc(found - 1, tried, baseline)) if found else 1.0, LEAST)
    p = p_beyond(e, baseline)
    members = row.get(facts.sample_size)
    if facts.ranked and isinstance(members, int) and members > 0:
        deviation = math.sqrt((2 * members + 1) / 12) / members
        p = max(p, NormalDist().cdf(-(e.value - baseline) / deviation))
    return max(p, LEAST)


def judge_all(
    results: Iterable[AuditResult], in_force: Collection[str] | None = None
) -> list[Finding]:
    """Findings of all results, worst first, otherwise in the order given."""
    found = [f for result in results for f in judge(result, in_force)]
    return sorted(found, key=lambda f: ORDER[f.verdict])
