"""Terminal text and JSON of a comparison."""

import io
import json
from dataclasses import replace

from rich.console import Console

from fedaudit.decide.diff.outcome import Comparison, Difference, EpsilonChange, VerdictChange
from fedaudit.decide.diff.page import plain_diff, show_diff, summary
from fedaudit.results import Estimate

A = Estimate(value=0.2, low=0.1, high=0.3, n=50)
B = Estimate(value=0.6, low=0.5, high=0.7, n=50)


def difference(change, measure="linkage", headline=True, value=0.4):
    return Difference(
        audit="fingerprint",
        measure=measure,
        first=A,
        second=B,
        value=value,
        low=value - 0.1,
        high=value + 0.1,
        p=0.001,
        adjusted=0.002,
        change=change,
        headline=headline,
    )


def shown(comparison, everything=False):
    out = io.StringIO()
    show_diff(Console(file=out, width=100), [comparison], everything)
    return out.getvalue()


MIXED = Comparison(
    run="digits, DP",
    first="one",
    second="two",
    differences=(
        difference("worse"),
        difference("same", "purity", headline=False),
        difference("better", "rand", headline=False, value=-0.4),
    ),
    epsilon=(
        EpsilonChange(protection="dp_sgd", unit="record", first=(1.0, 2.0), second=None, worse=4),
    ),
    settings=(("federation.rounds", "3", "[red]4"),),
    verdicts=(
        VerdictChange(audit="fingerprint", first="no_evidence", second="leak", change="worse"),
    ),
    lost=("coverage: only in the first run",),
)


def test_unchanged_estimates_are_counted_and_shown_on_request():
    assert "purity" not in shown(MIXED)
    assert "1 other estimates unchanged" in shown(MIXED)
    assert "purity" in shown(MIXED, everything=True)


def test_the_text_names_every_kind_of_change():
    text = shown(MIXED)
    assert "+0.4 [0.3, 0.5]" in text
    assert "-0.4 [-0.5, -0.3]" in text
    assert (
        "dp_sgd, epsilon per record: 1 to 2 before, nothing promised now; 4 clients worse" in text
    )
    assert "no evidence before, leak now (worse)" in text
    assert "evidence lost: coverage: only in the first run" in text
    assert "[red]4" in text  # a user's setting is text, not markup
    assert summary(MIXED) == (
        "1 worse, 1 better, 1 unchanged within the intervals, 1 verdict worse, evidence lost: 1"
    )


def test_a_lost_promise_alone_makes_a_run_worse():
    assert Comparison(run="", first="", second="", epsilon=MIXED.epsilon).worse
    assert not Comparison(run="", first="", second="").worse


def test_a_worse_verdict_or_lost_evidence_alone_makes_a_run_worse():
    assert Comparison(run="", first="", second="", verdicts=MIXED.verdicts).worse
    assert Comparison(run="", first="", second="", lost=MIXED.lost).worse
    better = VerdictChange(audit="fingerprint", first="leak", second="no_evidence", change="better")
    assert not Comparison(run="", first="", second="", verdicts=(better,)).worse
    (c,) = plain_diff([MIXED])["comparisons"]
    assert c["verdicts"][0]["change"] == "worse"
    assert c["lost"] == ["coverage: only in the first run"]


def test_json_is_strict_where_epsilon_is_infinite():
    endless = EpsilonChange(protection="x", unit="record", first=(1.0, float("inf")), second=None)
    raw = plain_diff([Comparison(run="", first="a", second="b", epsilon=(endless,))])
    (c,) = json.loads(json.dumps(raw, allow_nan=False))["comparisons"]
    assert c["epsilon"][0]["first"] == [1.0, "inf"]


def test_every_measure_shows_its_chance_level():
    one, other = replace(A, baseline=0.25), replace(B, baseline=0.125)
    same = replace(difference("worse"), first=one, second=replace(B, baseline=0.25))
    apart = replace(difference("worse", "rand"), first=one, second=other)
    text = shown(Comparison(run="", first="a", second="b", differences=(same, apart)))
    assert "(chance 0.25)" in text
    assert "(chance 0.25 /" in text
    plain = plain_diff([Comparison(run="", first="a", second="b", differences=(same,))])
    assert plain["comparisons"][0]["estimates"][0]["first"]["chance"] == 0.25


def test_nothing_is_cut_off_in_eighty_columns():
    long = replace(difference("worse", "kinds_outside_protection"), low=-0.12345, high=0.98765)
    out = io.StringIO()
    comparison = Comparison(run="", first="a", second="b", differences=(long,))
    show_diff(Console(file=out, width=80), [comparison], True)
    rows = [line for line in out.getvalue().splitlines() if "│" in line]
    assert all(len(line) <= 80 for line in rows)
    cells = " ".join(line.rpartition("│")[2].strip() for line in rows)
    assert "[-0.123," in cells
    assert "0.988]" in cells
