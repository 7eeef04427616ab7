"""From results to verdicts and sentences, by the table in `rules`. Nothing else judges.

    disagreement    the interval of an estimate lies beyond an upper (or below a lower) bound:
                    theory and measurement disagree, and that is the top finding
    leak            the interval of the headline lies wholly on the bad side of its baseline
                    or that of single clients does, after correction for their number
    no_evidence     it does not; the smallest effect that would have been seen is stated, and
                    rule E3 says where hardly any would
    not_applicable  a need of the audit is missing; the need is named

There is no "safe".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import NormalDist

from fedaudit.report.rules import GENERIC, GUESSED, POWER, RULES, VERDICTS, WEAK, WORDS, Words, need
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


def judge(result: AuditResult, in_force: Collection[str] | None = None) -> list[Finding]:
    """All findings of one result: disagreements with theory first.

    `in_force`: names of the protections that are, so that nothing is advised that is done already.
    """
    words = words_for(result.audit)
    question = words.question(result.question, in_force)
    found = []
    for name, bound in result.bounds.items():
        estimate = result.estimates.get(bound.of)
        if estimate is not None and contradicts(bound, estimate):
            found.append(
                Finding(
                    verdict="disagreement",
                    audit=result.audit,
                    vantage=result.vantage,
                    question=question,
                    statement=f"{bound.of} was measured at {interval(estimate)}, beyond the "
                    f"{bound.kind} bound {name} = {number(bound.value)}.",
                    rule=RULES["D1" if bound.kind == "upper" else "D2"].said(),
                    measure=bound.of,
                    estimate=estimate,
                    source=bound.source,
                    remedy=f"check the bound's assumption: {bound.assumes or 'none stated'}",
                )
            )
    headline = _headline(result, words, question, in_force)
    if headline.verdict == "no_evidence":
        found += _single_clients(result, words, question, in_force)
    return [*found, headline]


def _why(missing: str) -> str:
    """The rule by which nothing was measured."""
    if missing.startswith(FAILED):
        return "A3"
    return "A2" if missing.startswith(BLIND) else "A1"


def _headline(
    result: AuditResult, words: Words, question: str, in_force: Collection[str] | None
) -> Finding:
    if result.not_applicable is not None or result.headline is None:
        missing = result.not_applicable or "the audit gave no estimate"
        rule = RULES[_why(missing)]
        missing, _, remedy = missing.partition(REMEDY)
        if rule.id == "A1":
            missing, remedy = need(missing, remedy, result.vantage)
        elif rule.id == "A2" and result.per_client:
            missing = GUESSED
        return Finding(
            verdict="not_applicable",
            audit=result.audit,
            vantage=result.vantage,
            question=question,
            statement=missing[:1].upper() + missing[1:] + ("" if missing.endswith(".") else "."),
            rule=rule.said(),
            source=result.source,
            remedy=remedy,
        )
    estimate = result.estimates[result.headline]
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    more = result.greater_is_leak
    leak = estimate.low > baseline if more else estimate.high < baseline
    power = "" if leak else powerless(result, words)
    if leak:
        rule = RULES["L1" if more else "L2"]
    else:
        rule = RULES["E3" if power else "E1" if more else "E2"]
    filled = {
        "value": number(estimate.value, words.percent),
        "baseline": number(baseline, words.percent),
        "notes": "; ".join(result.notes) or "nothing that was named",
        "first": result.notes[0] if result.notes else "nothing that was named",
    }
    statement = (words.leak if leak else words.no_evidence).format(**filled)
    if not leak:
        statement += _seen(result, words, power)
    return Finding(
        verdict="leak" if leak else "no_evidence",
        audit=result.audit,
        vantage=result.vantage,
        question=question,
        statement=statement,
        rule=rule.said(
            baseline=filled["baseline"],
            power=power,
            end="low" if more else "high",
            side="above" if more else "below",
        ),
        measure=result.headline,
        estimate=estimate,
        source=result.source,
        remedy=words.advised(in_force) if leak else "",
    )


# -- power ----------------------------------------------------------------------------------------


def powerless(result: AuditResult, words: Words) -> str:
    """Why a result that shows no leak could hardly have shown one; empty where it could.

    A count has all the power there is where the first number beyond the baseline would have been
    seen. An exact value leaves nothing to be seen, an exact range on both sides of the baseline
    leaves everything open. Distances count towards the bad side, whichever that is.
    """
    assert result.headline is not None
    estimate, seen = result.estimates[result.headline], result.detectable
    if undecided(result):
        ends = {e: number(getattr(estimate, e), words.percent) for e in ("low", "high")}
        return POWER["undecided"].format(**ends)
    counts, exact = words.counted is not None, estimate.confidence >= 1
    if seen is None:
        return POWER["unknown"] if counts or not exact else ""
    worse = 1 if result.greater_is_leak else -1
    if seen == worse * math.inf:
        return POWER["nothing"]
    baseline = estimate.baseline if estimate.baseline is not None else 0.0
    reach = worse * (seen - baseline)
    if reach <= 1 if counts else exact:
        return ""
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
    filled = {
        "seen": number(seen, words.percent),
        "most": number(baseline + worse * most, words.percent),
        "side": "above" if worse > 0 else "below",
    }
    if bounds and reach >= min(bounds):
        return POWER["beyond"].format(**filled)
    if most > 0 and reach >= WEAK * most:
        return POWER["large"].format(**filled)
    return ""


def undecided(result: AuditResult) -> bool:
    """Whether the headline is a proven range, no point, with its baseline inside: no chance is in
    it, and yet either side may be true."""
    if result.headline is None:
        return False
    e = result.estimates[result.headline]
    baseline = e.baseline if e.baseline is not None else 0.0
    across = e.low <= baseline < e.high if result.greater_is_leak else e.low < baseline <= e.high
    return e.confidence >= 1 and across


def _seen(result: AuditResult, words: Words, power: str) -> str:
    """What would have been seen where nothing was, as the end of a statement."""
    seen = result.detectable
    if seen is None:
        return " How small a leak would have been seen is not known."
    if math.isinf(seen):
        return " No leak of any size would have been seen: the audit cannot say."
    most = "smallest" if result.greater_is_leak else "largest"
    text = (
        f" The {most} value that would have been seen as a leak is {number(seen, words.percent)}."
    )
    far = [float(v) for row in result.per_client.values() if (v := row.get("named_from"))]
    if far:  # a count says nothing of how strong a mark has to be
        text = (
            f" Clients are named whose mark stands out by {max(far):.1f} deviations of unused keys "
            "or more; weaker marks may have gone unseen."
        )
    if undecided(result):
        e = result.estimates[result.headline or ""]
        ends = f"{number(e.low, words.percent)} to {number(e.high, words.percent)}"
        return f" The search ended undecided: it may be anything from {ends}.{text}"
    if power:
        text += " That is so much that the audit could hardly have found anything."
    return text


# -- single clients -------------------------------------------------------------------------------

NAMED = 5
"""Clients that a statement names."""


def _single_clients(
    result: AuditResult, words: Words, question: str, in_force: Collection[str] | None
) -> list[Finding]:
    """Clients that lie above chance on their own where the federation as a whole does not."""
    own = clients_above(result, words)
    if not own:
        return []
    first = next(iter(own.values()))[0]
    base = number(first.baseline or 0.0, words.percent)
    many = sum(_client(result, words, row) is not None for row in result.per_client.values())
    names = list(own)[:NAMED]
    each = [
        f"{name}: {interval(own[name][0], words.percent)} (p = {own[name][1]:.2g} after Holm's "
        "correction)"
        for name in names
    ]
    more = f" and {len(own) - NAMED} more" if len(own) > NAMED else ""
    several = len(own) > 1
    return [
        Finding(
            verdict="leak",
            audit=result.audit,
            vantage=result.vantage,
            question=question,
            statement=f"The federation as a whole shows no leak, but {len(own)} of {many} clients "
            f"on {'their' if several else 'its'} own {'lie' if several else 'lies'} above "
            f"{words.against} ({base}). {'; '.join(each)}{more}.",
            rule=RULES["L3"].said(
                clients=f"{', '.join(names)}{more} on {'their' if several else 'its'} own "
                f"{'lie' if several else 'lies'}",
                baseline=base,
                many=str(many),
            ),
            measure=f"{result.headline} of {names[0]}",
            estimate=first,
            source=result.source,
            remedy=words.advised(in_force),
        )
    ]


def clients_above(result: AuditResult, words: Words) -> dict[str, tuple[Estimate, float]]:
    """Client -> (its own value, p after Holm's correction), the most striking first.

    A client counts as the federation does by rule L1: at the error that its interval leaves above
    its low end, which Holm's correction divides among all clients that have an interval.
    """
    if not words.own or words.unlike in result.estimates or not result.greater_is_leak:
        return {}
    known = {name: _client(result, words, row) for name, row in result.per_client.items()}
    own = {name: e for name, e in known.items() if e is not None}
    if not own:
        return {}
    from fedaudit.stats.combine import holm

    raw = [_p_value(e, words, result.per_client[name]) for name, e in own.items()]
    adjusted = dict(zip(own, map(float, holm(raw)), strict=True))
    limit = {name: (1 - e.confidence) / 2 for name, e in own.items()}
    above = [
        name
        for name, e in own.items()
        if e.low > (e.baseline or 0.0) and adjusted[name] <= limit[name]
    ]
    return {name: (own[name], adjusted[name]) for name in sorted(above, key=adjusted.__getitem__)}


def _client(
    result: AuditResult, words: Words, row: Mapping[str, float | int | str | None]
) -> Estimate | None:
    """A client's own value of the headline's measure, where it has one with an interval."""
    assert result.headline is not None
    headline = result.estimates[result.headline]
    value, low, high = (row.get(c) for c in (words.own, "low", "high"))
    if not all(isinstance(v, int | float) for v in (value, low, high)):
        return None
    asked, chance = row.get(words.asked), row.get("chance")
    return Estimate(
        value=float(value or 0.0),
        low=float(low or 0.0),
        high=float(high or 0.0),
        n=int(asked) * (1 + words.ranked) if isinstance(asked, int | float) else 0,
        confidence=headline.confidence,
        baseline=float(chance) if isinstance(chance, int | float) else headline.baseline,
        method="of one client",
    )


def _p_value(e: Estimate, words: Words, row: Mapping[str, float | int | str | None]) -> float:
    """How often chance alone would give a client so much, or more; never zero.

    Exact (binomial) from counts. Otherwise from the interval: normal in the distance to its low
    end; at the end of the scale, where that end is error^(1/m) for m disjoint pairs, chance^m. An
    interval from few records is too narrow: an AUC must also stand out by its deviation without a
    leak, sqrt((2 m + 1) / 12) / m for m members and as many others (Mann and Whitney 1947).
    """
    baseline = e.baseline or 0.0
    if e.value <= baseline:
        return 1.0
    found, tried = (row.get(c) for c in words.hits) if words.hits is not None else (None, None)
    if isinstance(found, int) and isinstance(tried, int) and 0 < baseline < 1:
        from scipy.special import bdtrc

        return max(float(bdtrc(found - 1, tried, baseline)) if found else 1.0, LEAST)
    error, normal = (1 - e.confidence) / 2, NormalDist()
    if e.value <= e.low:
        p = error  # an interval without width says how sure it claims to be, no more
    elif e.value >= 1.0 and 0 < e.low < 1 and 0 < baseline < 1:
        p = float(baseline ** (math.log(error) / math.log(e.low)))
    else:
        deviation = (e.value - e.low) / normal.inv_cdf(1 - error)
        p = normal.cdf(-(e.value - baseline) / deviation)
    asked = row.get(words.asked)
    if words.ranked and isinstance(asked, int) and asked > 0:
        deviation = math.sqrt((2 * asked + 1) / 12) / asked
        p = max(p, normal.cdf(-(e.value - baseline) / deviation))
    return max(p, LEAST)


LEAST = 1e-300
"""The smallest p-value that is told from none."""


def judge_all(
    results: Iterable[AuditResult], in_force: Collection[str] | None = None
) -> list[Finding]:
    """Findings of all results, worst first, otherwise in the order given."""
    found = [f for result in results for f in judge(result, in_force)]
    return sorted(found, key=lambda f: ORDER[f.verdict])
