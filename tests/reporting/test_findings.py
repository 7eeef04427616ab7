"""The rules that turn numbers into verdicts, and the words they may never use."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import fedaudit
from fedaudit.audits import AUDITS, facts_of
from fedaudit.audits.facts import Words
from fedaudit.protections.declared import in_force
from fedaudit.reporting import findings, rules
from fedaudit.reporting.findings import interval, judge, judge_all, number, settled
from fedaudit.results import AuditResult, Bound, Estimate, FamilyTest, Finding, Need
from fedaudit.stats import roc
from fedaudit.stats.combine import holm
from fedaudit.stats.intervals import clopper_pearson, wilson


def result(value=0.5, low=0.4, high=0.6, *, baseline=0.1, audit="fingerprint", **more):
    return AuditResult(
        audit=audit,
        question="Is it so?",
        vantage="server",
        headline="score",
        estimates={
            "score": Estimate(value=value, low=low, high=high, n=30, baseline=baseline, method="m")
        },
        source="[Fingerprint] Section 3",
        **more,
    )


def unmeasured(status="not_applicable", need=None, **more):
    need = need or Need(code="something", what="x")
    return AuditResult(audit="a", question="?", vantage="server", status=status, need=need, **more)


def clients(found=9, many=8, **more):
    """One client of several with `found` of its 9 links, the others with one."""
    rows = {}
    for i in range(many):
        hits = found if i == 2 else 1
        own = wilson(hits, 9)
        row = {"links": 9, "found": hits, "share": own.value, "low": own.low, "high": own.high}
        rows[f"client-{i:02d}"] = {**row, "chance": 0.1, **more}
    return rows


def several(p, level=0.025):
    """A test of two readings, of which the headline decided."""
    return FamilyTest(adjusted={"score": p}, decided="score", level=level)


def verdicts(*results):
    return [f.verdict for f in judge_all(results)]


def test_a_leak_needs_the_whole_interval_beyond_the_baseline():
    assert verdicts(result(low=0.11)) == ["leak"]
    assert verdicts(result(low=0.1, detectable=0.2)) == ["no_evidence"]
    assert verdicts(result(value=0.9, low=0.05, high=1.0, detectable=0.2)) == ["no_evidence"]


def test_which_side_is_bad_is_the_results_to_say():
    assert verdicts(result(0.05, 0.01, 0.09, greater_is_leak=False)) == ["leak"]
    less = {"greater_is_leak": False, "detectable": 0.09}
    assert verdicts(result(0.05, 0.01, 0.11, **less)) == ["no_evidence"]
    assert verdicts(result(0.5, 0.4, 0.6, **less)) == ["no_evidence"]


def test_a_test_over_several_readings_decides_and_names_the_reading():
    own = result(0.56, 0.49, 0.62, baseline=0.5, detectable=0.58)
    auc = Estimate(value=0.605, low=0.549, high=0.661, n=30, baseline=0.5)
    both = {**own.estimates, "auc": auc}
    test = FamilyTest(adjusted={"score": 0.04, "auc": 0.0002}, decided="auc", level=0.025)
    (found,) = judge(replace(own, estimates=both, test=test))
    assert (found.verdict, found.measure) == ("leak", "score")
    assert found.cited == (
        "L5: auc 0.605 decides with p = 0.0002 after correction for 2 readings, at most 0.025"
    )
    assert "What decided is auc 0.605 [0.549, 0.661] at 95 %, chance 0.5" in found.statement
    quiet = FamilyTest(adjusted={"score": 0.04, "auc": 0.3}, decided="score", level=0.025)
    (found,) = judge(replace(own, estimates=both, test=quiet))
    assert found.verdict == "no_evidence"
    assert "score 0.56 comes closest with p = 0.04" in found.because
    (found,) = judge(replace(own, estimates=both, test=quiet, detectable=None))
    assert found.verdict == "nothing_to_say"
    assert "score 0.56 comes closest with p = 0.04" in found.because
    with pytest.raises(ValueError, match="not all are estimated"):
        replace(own, test=test)


def test_a_test_survives_json():
    made = result(test=several(0.01))
    assert AuditResult.from_json(made.to_json()) == made


def test_no_baseline_means_zero():
    assert verdicts(result(low=0.01, baseline=None)) == ["leak"]
    assert verdicts(result(low=0.0, baseline=None, detectable=0.1)) == ["no_evidence"]


def test_no_evidence_states_what_would_have_been_seen():
    (found,) = judge(result(low=0.05, detectable=0.25))
    assert "25.0 %" in found.statement
    (found,) = judge(result(low=0.05))
    assert "not known" in found.statement


def test_a_missing_need_is_named_with_its_remedy():
    need = Need(code="named", what="senders are named", got="names", remedy="put a shuffler before")
    (found,) = judge(unmeasured(need=need))
    assert (found.verdict, found.rule, found.code) == ("not_applicable", "A1", "named")
    assert found.statement == "Senders are named; got names."
    assert found.remedy == "put a shuffler before"
    assert found.estimate is None


def test_a_disagreement_with_theory_comes_first():
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)", assumes="no noise")
    odd = result(low=0.4, bounds={"ceiling": upper})
    plain = result(audit="coverage", low=0.2)
    found = judge_all([plain, odd])
    assert [f.verdict for f in found] == ["disagreement", "leak", "leak"]
    assert "ceiling" in found[0].statement
    assert found[0].source == "[X] Eq. (1)"
    assert "no noise" in found[0].remedy


@pytest.mark.parametrize(
    ("kind", "value", "contradicts"),
    [
        ("upper", 0.33, True),
        ("upper", 0.36, False),  # beyond the interval, but one in 300 is not rare enough
        ("upper", 0.4, False),
        ("lower", 0.67, True),
        ("lower", 0.64, False),
        ("reference", 0.0, False),
        ("reference", 1.0, False),
    ],
)
def test_only_a_theorem_can_be_contradicted_and_only_by_the_whole_interval(
    kind, value, contradicts
):
    bound = Bound(value=value, kind=kind, of="score", source="[X] Eq. (1)")
    got = verdicts(result(bounds={"b": bound}))
    assert ("disagreement" in got) is contradicts


def test_bounds_of_one_audit_share_one_error():
    """What refutes one bound of one is not enough for one of eight; an audit's own error is."""
    one = Bound(value=0.33, kind="upper", of="score", source="[X] Eq. (1)")
    kept = {f"kept {i}": replace(one, value=0.9) for i in range(7)}
    assert "disagreement" in verdicts(result(bounds={"b": one}))
    assert "disagreement" not in verdicts(result(bounds={"b": one, **kept}))
    own = result(audit="epsilon", bounds={"b": one, **kept}, settings={"false_alarms": 0.001})
    assert "disagreement" in verdicts(own)


def test_a_bound_that_is_just_reached_is_hardly_ever_doubted():
    """Exact: of all games won by a fair coin, at most one in a thousand doubts either bound."""
    games, chance = 400, 0.5
    doubted = 0.0
    for won in range(games + 1):
        e = clopper_pearson(won, games, 0.95, baseline=chance)
        bounds = {
            kind: Bound(value=chance, kind=kind, of="score", source="[X] Eq. (1)")
            for kind in ("upper", "lower")
        }
        made = result(bounds=bounds)
        found = findings.refuted(replace(made, estimates={"score": e}))
        doubted += float(scipy.stats.binom.pmf(won, games, chance)) * bool(found)
    assert 2e-4 < doubted <= 1e-3


def test_findings_are_sorted_worst_first_and_otherwise_keep_their_order():
    na, fine = unmeasured(), result(low=0.0, audit="b", detectable=0.2)
    weak = result(low=0.0, audit="e", detectable=0.9)
    leak_c, leak_d = result(audit="c"), result(audit="d")
    found = judge_all([na, fine, weak, leak_c, leak_d])
    assert [f.audit for f in found] == ["c", "d", "e", "b", "a"]


def test_numbers_come_with_interval_and_baseline():
    for f in judge_all([result(), result(low=0.0, audit="new_audit"), result(audit="coverage")]):
        assert f.estimate is not None
        assert f.estimate.baseline is not None
        assert f.rule
        assert f.source


def test_the_rule_that_is_printed_is_the_rule_that_was_used():
    (leak,) = judge(result(low=0.2))
    assert (leak.rule, leak.because) == ("L1", "the low end of the interval is above 10.0 %")
    (none,) = judge(result(low=0.0, detectable=0.3))
    assert none.cited == "E1: the low end of the interval is not above 10.0 %"


def test_clients_that_the_audits_test_covers_count_by_its_adjusted_p():
    rows = clients(found=9)
    for name, p in zip(rows, [0.9, 0.8, 0.026, 0.01, 0.9, 0.9, 0.9, 0.9], strict=True):
        rows[name]["p"] = p
    found = judge(result(low=0.0, detectable=0.2, per_client=rows, test=several(0.01)))
    assert [(f.rule, f.client) for f in found] == [("L5", None)]
    found = judge(result(low=0.0, detectable=0.2, per_client=rows, test=several(0.3)))
    assert [(f.rule, f.client) for f in found] == [("L3", "client-03"), ("E3", None)]


def test_every_finding_follows_from_a_rule_of_the_table_with_its_verdict():
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)")
    lower = Bound(value=0.9, kind="lower", of="score", source="[X] Eq. (2)")
    every = [
        result(bounds={"u": upper, "l": lower}),
        result(low=0.0, detectable=0.2),
        result(low=0.0),
        result(low=0.0, per_client=clients()),
        result(0.05, 0.01, 0.09, greater_is_leak=False),
        result(0.05, 0.01, 0.2, greater_is_leak=False, detectable=0.09),
        result(known=True),
        result(audit="attribution"),
        result(audit="epsilon"),
        result(low=0.0, test=several(0.01)),
        result(low=0.0, test=several(0.2), detectable=0.2),
        replace(
            result(audit="query_plan", low=0.0),
            estimates={
                **result(low=0.0).estimates,
                "recoverable_if_updates_persist": Estimate(value=0.1, low=0.1, high=0.1, n=9),
            },
        ),
        *(unmeasured(status) for status in rules.UNMEASURED),
    ]
    found = judge_all(every)
    assert {f.rule for f in found} == set(rules.RULES)
    assert {f.verdict for f in found} == set(rules.VERDICTS)
    for f in found:
        assert rules.RULES[f.rule].verdict == f.verdict


def test_what_is_known_outright_is_a_leak_whatever_its_interval_says():
    (found,) = judge(result(1.0, 1.0, 1.0, known=True, notes=("it stands there",)))
    assert (found.verdict, found.rule, found.known) == ("leak", "K1", True)
    assert rules.label_of(found).words == "known outright"
    (found,) = judge(result(1.0, 0.0, 1.0, known=True))
    assert (found.verdict, found.known) == ("leak", True)


def test_a_status_follows_from_the_verdict():
    """A result that could not have alarmed says so itself; one that found anything does not."""
    weak = result(low=0.0, detectable=0.9)
    said = settled(weak)
    assert (said.status, said.need.code) == ("nothing_to_say", "underpowered")
    assert judge(said) == judge(weak)
    assert settled(said) == said
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)")
    for found in (
        result(),
        result(low=0.0, detectable=0.2),
        result(low=0.0, detectable=0.9, per_client=clients()),
        result(0.5, 0.4, 0.6, baseline=0.5, bounds={"u": upper}),
        unmeasured(),
    ):
        assert settled(found) == found


def test_no_wording_changes_a_verdict(monkeypatch):
    """Every text of the table is replaced: verdicts, rules, clients and codes stay."""
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)")
    every = [
        result(bounds={"u": upper}),
        *(result(low=0.0, detectable=d) for d in (0.2, 0.9, None)),
        result(low=0.0, detectable=0.2, per_client=clients()),
        *(result(audit=a, low=low) for a in AUDITS for low in (0.2, 0.0)),
        *(replace(result(0, 0, 0, baseline=0, audit=a), detectable=1.0) for a in AUDITS),
        *(unmeasured(s, Need(code=c, what="x")) for s in rules.UNMEASURED for c in rules.NEEDS),
    ]

    def facts():
        return [(f.verdict, f.rule, f.client, f.measure, f.code) for f in judge_all(every)]

    before = facts()
    monkeypatch.setattr(findings, "words_for", lambda *_: Words(measure="", leak="", known=""))
    monkeypatch.setattr(rules, "NEEDS", {})
    monkeypatch.setattr(findings, "POWER", dict.fromkeys(rules.POWER, ""))
    other = {k: replace(r, of_one="") for k, r in rules.RULES.items()}
    monkeypatch.setattr(findings, "RULES", other)
    assert facts() == before


def test_how_numbers_are_printed():
    assert number(0.123456) == "0.123"
    assert number(3) == "3"
    assert number(0.5, percent=True) == "50.0 %"
    assert number(-0.0001, percent=True) == "0.0 %"
    assert number(-0.01, percent=True) == "-1.0 %"
    assert number(math.inf) == "infinite"
    assert interval(Estimate(value=1, low=1, high=1, n=3, confidence=1.0)) == "1 [1, 1], exact"
    wide = Estimate(value=0.5, low=0, high=1, n=3, confidence=0.999)
    assert interval(wide, percent=True) == "50.0 % [0.0 %, 100.0 %] at 99.9 %"


def test_findings_survive_json():
    everything = [
        result(),
        result(value=math.inf, low=1.0, high=math.inf, baseline=0.0),
        unmeasured(),
    ]
    for f in judge_all(everything):
        text = json.dumps(f.to_dict(), allow_nan=False)
        assert Finding.from_dict(json.loads(text)) == f


def test_no_verdict_says_safe():
    """Absence of evidence is all a measurement can give."""
    words = re.compile(r"\b(safe|safely|secure\b(?! sum)|harmless|no risk|guaranteed)", re.I)
    said = [
        text
        for w in [*(facts_of(a).words for a in AUDITS), Words()]
        for text in (w.leak, w.no_evidence, w.known, w.weak, w.remedy, w.measure)
    ]
    said += [r.text + r.of_one for r in rules.RULES.values()]
    said += [label.words for label in rules.VERDICTS.values()]
    assert [text for text in said if words.search(text)] == []
    root = Path(fedaudit.__file__).parent
    sources = [
        file
        for pattern in ("reporting/*.py", "decide/*/page.py", "allocate/page.py")
        for file in root.glob(pattern)
    ]
    assert len(sources) > 20
    for file in sources:
        code = file.read_text(encoding="utf-8").replace('There is no "safe".', "")
        assert not re.search(r"\bsafe\b", code, re.I), file
    for f in judge_all([result(low=0.0), result(audit="coverage", low=0.0, baseline=0.0)]):
        assert not words.search(f.statement)


# -- single clients -------------------------------------------------------------------------------


def test_a_client_above_chance_is_named_though_the_federation_is_not():
    single, whole = judge(result(0.2, 0.05, 0.4, detectable=0.2, per_client=clients()))
    assert (single.verdict, whole.verdict) == ("leak", "no_evidence")
    assert (single.rule, single.measure, single.client) == ("L3", "score", "client-02")
    assert single.because == (
        "client-02 on its own lies above 10.0 % after correction for 8 clients"
    )
    assert single.estimate.value == 1.0
    assert single.estimate.n == 9
    assert "client-02" in single.statement
    assert "client-01" not in single.statement
    assert single.remedy


def test_the_correction_is_for_the_number_of_clients():
    """Four of nine links: striking for one client, not for the most striking of many."""
    p = float(scipy.stats.binom.sf(3, 9, 0.1))
    assert 0.025 / 20 < p < 0.025 / 2
    few, many = (result(low=0.0, detectable=0.2, per_client=clients(4, many=n)) for n in (3, 30))
    assert verdicts(few) == ["leak", "no_evidence"]
    assert verdicts(many) == ["no_evidence"]


def test_p_values_of_clients_are_exact_where_they_are_counted():
    rows = clients(6)
    found = findings.clients_above(result(low=0.0, per_client=rows))
    raw = [float(scipy.stats.binom.sf(r["found"] - 1, 9, 0.1)) for r in rows.values()]
    assert found["client-02"][1] == pytest.approx(holm(raw)[2])


def auc_rows(value=0.73, low=0.597, high=0.862, many=8):
    plain = {"members_asked": 28, "AUC": 0.5, "low": 0.35, "high": 0.65, "chance": 0.5}
    rows = {f"client-{i:02d}": plain for i in range(many)}
    return rows | {"client-06": {**plain, "AUC": value, "low": low, "high": high}}


def test_one_exposed_hospital_of_eight():
    """AUC 0.73 of 28 members and 28 others is 2.95 standard deviations of chance above one half."""
    of = {"audit": "two_stage_membership", "baseline": 0.5, "detectable": 0.576}
    single, whole = judge(result(0.516, 0.44, 0.592, per_client=auc_rows(), **of))
    assert (single.rule, single.client) == ("L3", "client-06")
    assert whole.rule == "E1"
    assert single.estimate.n == 56
    p = float(scipy.stats.norm.sf(0.23 / math.sqrt(57 / (12 * 28 * 28))))
    shown = float(re.search(r"p = ([\d.e-]+) after", single.statement)[1])
    assert shown == pytest.approx(8 * p, rel=0.05)
    (none,) = judge(result(0.516, 0.44, 0.592, per_client=auc_rows(0.696, 0.558, 0.835), **of))
    assert none.verdict == "no_evidence"


@pytest.mark.parametrize(("many", "records"), [(8, 5), (8, 12), (20, 28)])
def test_clients_are_rarely_named_by_chance(many, records):
    """Scores that know nothing: hardly ever is any of all clients named, at most in 2.5 %."""
    rng = np.random.default_rng(3)
    member = np.repeat([True, False], records)
    named, draws = 0, 120
    for _ in range(draws):
        rows = {}
        for i in range(many):
            own = roc.auc(rng.normal(size=2 * records), member)
            row = {"AUC": own.value, "low": own.low, "high": own.high, "chance": 0.5}
            rows[f"client-{i:02d}"] = {"members_asked": records, **row}
        quiet = result(0.5, 0.4, 0.6, audit="two_stage_membership", baseline=0.5, per_client=rows)
        named += len(judge(quiet)) > 1
    assert scipy.stats.binom.sf(named - 1, draws, 0.025) > 1e-3


def test_a_perfect_client_counts_by_its_pairs():
    """The low end 0.025^(1/m) stands for m disjoint pairs, each right by chance half the time."""
    of = {"audit": "two_stage_membership", "baseline": 0.5}
    rows = auc_rows(1.0, 0.025 ** (1 / 12), 1.0)
    many = result(0.5, 0.4, 0.6, per_client=rows, **of)
    few = result(0.5, 0.4, 0.6, per_client=auc_rows(1.0, 0.025 ** (1 / 6), 1.0), **of)
    above = findings.clients_above(many)
    assert above["client-06"][1] == pytest.approx(8 * 0.5**12)
    assert findings.clients_above(few) == {}


def test_clients_that_were_measured_otherwise_are_no_finding():
    """Games with gradients in the clear say nothing of what a shuffled federation gives away."""
    clear = Estimate(value=1.0, low=0.9, high=1.0, n=100, baseline=0.5)
    plain = result(0.5, 0.4, 0.6, audit="active_membership", baseline=0.5, detectable=0.6)
    row = {"share": 1.0, "low": 0.95, "high": 1.0, "games": 100}
    seen = replace(plain, per_client={"a": row, "b": row})
    assert [f.verdict for f in judge(seen)] == ["leak", "no_evidence"]
    other = {**plain.estimates, "success (gradient in the clear)": clear}
    assert [f.verdict for f in judge(replace(seen, estimates=other))] == ["no_evidence"]


def test_a_leak_of_all_needs_no_line_for_one():
    assert verdicts(result(per_client=clients())) == ["leak"]


# -- power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detectable", "rule"), [(0.15, "E1"), (0.45, "E1"), (0.47, "N1"), (0.95, "N1"), (None, "N1")]
)
def test_without_power_there_is_nothing_to_say(detectable, rule):
    (found,) = judge(result(low=0.0, detectable=detectable))
    assert found.verdict == ("no_evidence" if rule == "E1" else "nothing_to_say")
    assert found.rule == rule


def test_power_is_held_against_the_bound():
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)")
    (weak,) = judge(result(0.1, 0.0, 0.2, detectable=0.2, bounds={"b": upper}))
    assert "only a large leak, from 20.0 % on" in weak.because
    (none,) = judge(result(0.1, 0.0, 0.2, detectable=0.3, bounds={"b": upper}))
    assert "at or above the bound of 30.0 %" in none.because
    assert "hardly have found anything" in none.statement
    (fine,) = judge(result(0.1, 0.0, 0.2, detectable=0.15, bounds={"b": upper}))
    assert fine.rule == "E1"


def test_an_exact_count_has_all_the_power_there_is():
    zero = Estimate(value=0, low=0, high=0, n=9, confidence=1.0, baseline=0)
    counted = replace(result(audit="coverage"), estimates={"score": zero}, detectable=1.0)
    assert judge(counted)[0].rule == "E1"


@pytest.mark.parametrize("more", [True, False])
def test_a_count_that_nobody_could_have_seen_says_nothing(more):
    """Whichever side is bad, and whether the count is exact or one of so many at least."""
    at_least = Estimate(value=2, low=2 - 2 * more, high=9, n=9, baseline=2.0)
    exact = replace(at_least, low=2, high=2, confidence=1.0)
    worse = math.inf if more else -math.inf
    for e in (at_least, exact):
        plain = replace(result(audit="attribution"), estimates={"score": e}, greater_is_leak=more)
        first = 3.0 if more else 1.0
        for seen, rule in (
            (first, "E1" if more else "E2"), (None, "N1"), (worse, "N1"),
        ):  # fmt: skip
            (found,) = judge(replace(plain, detectable=seen))
            quiet = "nothing_to_say" if rule == "N1" else "no_evidence"
            assert (found.verdict, found.rule) == (quiet, rule)
            assert ("high end" in found.because) is not more
    (found,) = judge(replace(plain, detectable=None))
    assert "not known" in found.statement
    (found,) = judge(replace(plain, detectable=worse))
    assert "No leak of any size would have been seen" in found.statement


@pytest.mark.parametrize(("bound", "rule"), [(20, "E1"), (9, "N1"), (4, "N1"), (3, "N1")])
def test_a_count_is_held_against_its_bound(bound, rule):
    e = Estimate(value=0, low=0, high=bound, n=9, baseline=0.0)
    most = Bound(value=bound, kind="upper", of="score", source="[X] Eq. (1)")
    bounded = replace(result(audit="attribution"), estimates={"score": e}, bounds={"b": most})
    (found,) = judge(replace(bounded, detectable=4.0))
    assert found.rule == rule
    (found,) = judge(replace(bounded, detectable=1.0))
    assert found.rule == "E1"


@pytest.mark.parametrize(
    ("detectable", "rule"), [(0.45, "E2"), (0.31, "E2"), (0.29, "N1"), (0.0, "N1"), (None, "N1")]
)
def test_power_is_asked_for_where_less_is_worse_too(detectable, rule):
    (found,) = judge(
        result(0.5, 0.3, 0.7, baseline=0.5, greater_is_leak=False, detectable=detectable)
    )
    quiet = "nothing_to_say" if rule == "N1" else "no_evidence"
    assert (found.verdict, found.rule) == (quiet, rule)


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "open_ended"), [(3, 7, True), (5, 5, False), (2, 3, False), (7, 8, False)]
)
def test_a_proven_range_across_the_baseline_leaves_it_open(more, low, high, open_ended):
    e = Estimate(value=high, low=low, high=high, n=9, confidence=1.0, baseline=5)
    ranged = replace(result(audit="query_plan"), estimates={"score": e}, greater_is_leak=more)
    (found,) = judge(replace(ranged, detectable=6.0 if more else 4.0))
    assert (found.verdict == "nothing_to_say") is open_ended
    assert ("undecided" in found.statement) is open_ended
    assert (found.verdict == "leak") is (low > 5 if more else high < 5)


# -- advice and needs -----------------------------------------------------------------------------


def test_nothing_is_advised_that_is_done_already():
    leak = result(audit="two_stage_membership", low=0.2)
    (plain,) = judge(leak, ())
    (summed,) = judge(leak, in_force([{"name": "secure_aggregation"}]))
    (noisy,) = judge(leak, in_force([{"name": "shuffle"}, {"name": "dp_sgd"}]))
    assert "secure sum" in plain.remedy
    assert "secure sum" not in summed.remedy
    assert "add noise at the clients (DP-SGD)" in summed.remedy
    assert "more noise in DP-SGD" in noisy.remedy
    assert "add noise at the clients" not in noisy.remedy
    for audit in AUDITS:
        words = facts_of(audit).words
        for known in ((), ("dp_sgd",), ("local_dp",), ("secure_sum", "dp_sgd", "local_dp")):
            assert words.advised(in_force({"name": n} for n in known)), audit


def test_local_dp_is_asked_about_and_advised_only_where_it_is_in_use():
    asked = replace(
        result(audit="active_membership", low=0.2), question="Can it, even under local DP?"
    )
    (without,), (with_it,) = judge(asked, ("hides_senders",)), judge(asked, ("randomises_records",))
    assert without.question == "Can it?"
    assert "local DP" not in without.remedy
    assert with_it.question == "Can it, even under local DP?"
    assert "local DP" in with_it.remedy


def test_a_missing_need_is_said_in_plain_words():
    def of(code, what, expected="", got="", remedy=""):
        need = Need(code=code, what=what, expected=expected, got=got, remedy=remedy)
        (found,) = judge(unmeasured(need=need, source="s"))
        return found

    unseen = of(
        "no_single_updates",
        "server sees no single client's update in round 1",
        "messages of kind delta",
        "20 x model, 201 x query",
        "this is what a secure sum withholds",
    )
    assert "201" not in unseen.statement
    assert unseen.statement.startswith("The server gets no update of a single client")
    assert "audit a variant" in unseen.remedy
    other = of("no_rounds", "the trace has no rounds", "at least one", "none", "let it run")
    assert other.statement == "The trace has no rounds. It needs at least one; found: none."
    assert other.remedy == "let it run"
