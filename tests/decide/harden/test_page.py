"""Text, tables and figures of a hardening."""

import csv
import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedaudit.decide.gate.outcome import LimitCheck, LimitReading
from fedaudit.decide.harden import page as words
from fedaudit.decide.harden import tradeoff
from fedaudit.decide.harden.outcome import Hardened, Point
from fedaudit.results import Estimate

RISK = "fingerprint.linkage_accuracy"


def estimate(value, half, **more):
    return Estimate(value=value, low=value - half, high=value + half, n=40, **more)


def check(limit, bound, most):
    return LimitCheck(
        limit=limit,
        metric=limit,
        rule=f"at most {most}",
        status="passed" if bound <= most else "failed",
        readings=(LimitReading(bound=bound, limit=most),),
    )


def point(label, risk, cost, level=0.0, **more):
    return Point(
        label=label,
        series=label.partition(" (")[0],
        level=level,
        trusted=("the shuffler",),
        checks=(check(RISK, risk + 0.1, 0.5), check("accuracy_loss", cost + 0.02, 0.1)),
        cost=estimate(cost, 0.02),
        utility=estimate(0.9 - cost, 0.03),
        risks={RISK: estimate(risk, 0.1, baseline=0.2)},
        runs=2,
        folders=("ab12",),
        **more,
    )


PROMISE = "per person at delta 1e-05"
POINTS = (
    point("shuffle", 0.9, 0.0),
    point("shuffle, DP-SGD (z = 1)", 0.35, 0.05, 1.0, epsilon=4.0, promise=PROMISE, noise="z = 1"),
    point("shuffle, DP-SGD (z = 8)", 0.2, 0.4, 8.0, epsilon=float("inf")),
    Point(label="secure sum", series="secure sum", failed="it needs deltas\n  got: models"),
)
FRESH = point("shuffle, DP-SGD (z = 1)", 0.38, 0.06, 1.0, epsilon=4.0)
FOUND = Hardened(
    path="out",
    limits=((RISK, "at most 0.5"), ("accuracy_loss", "at most 0.1")),
    points=POINTS,
    chosen=POINTS[1],
    confirmed=FRESH,
    searched=3,
    seeds=2,
    config="out/hardened.toml",
    policy="out/policy.toml",
)
LOST = replace(
    FOUND,
    chosen=None,
    confirmed=None,
    nearest=POINTS[2],
    conflicts=((RISK, "accuracy_loss"),),
    instead={RISK: POINTS[0]},
)


def test_the_outcome_states_figures_of_fresh_seeds_and_warns_of_selection():
    text = "\n".join(words.summary(FOUND))
    assert "6.0 points of accuracy lost [4.0, 8.0], at 95 %" in text  # not the search's 5.0
    assert "best of 3 measured protections" in text
    assert "2 fresh seeds" in text
    assert "trusts the shuffler" in text


def test_conflicting_limits_are_named_with_their_relaxation():
    text = "\n".join(words.summary(LOST))
    assert f"no measured protection keeps {RISK} (at most 0.5) and accuracy_loss" in text
    assert "accuracy_loss at most 42 points instead of 10 points" in text
    assert f"without {RISK}: shuffle" in text
    assert f"{RISK} at most 1 instead of 0.5" in text


def test_an_unconfirmed_candidate_is_marked():
    unsure = replace(FOUND, confirmed=None, stopped="The time budget was spent.")
    text = "\n".join(words.summary(unsure))
    assert "before its test on fresh seeds" in text
    assert not unsure.succeeded
    assert "Two seeds give a very wide interval" in text
    empty = replace(LOST, points=(), nearest=None, conflicts=(), instead={}, seeds=1)
    assert words.summary(empty) == ["the time budget ended before the first measurement."]


def test_tables_hold_every_point_with_its_interval():
    page = words.markdown(FOUND)
    row = r"| chosen | shuffle, DP-SGD (z = 1) | 5.0 \[3.0, 7.0\] | 0.35 \[0.25, 0.45\] | 4"
    assert f"{row} per person at delta 1e-05 |" in page
    assert "| failed | secure sum | it needs deltas |" in page
    assert "(chance 0.2)" in page
    assert "tradeoff.svg" in page
    rows = list(csv.DictReader(io.StringIO(words.csv_text(FOUND))))
    (risk,) = [r for r in rows if r["number"] == RISK and r["level"] == "8.0"]
    ends = [float(risk[name]) for name in ("value", "low", "high")]
    assert ends == pytest.approx([0.2, 0.1, 0.3])
    # search and fresh figures are both there
    assert len([r for r in rows if r["number"] == RISK and r["level"] == "1.0"]) == 2
    plain = json.loads(json.dumps(words.plain(FOUND), allow_nan=False))
    assert plain["points"][2]["epsilon"] == "inf"
    assert plain["points"][1]["promise"] == PROMISE
    assert {r["promise"] for r in rows if r["number"] == "epsilon"} == {PROMISE, ""}
    assert plain["confirmed"]["risks"][RISK]["value"] == 0.38


def test_the_figure_has_both_intervals_the_limits_and_the_choice():
    assert tradeoff.figure_names(FOUND) == {"tradeoff.svg": RISK}
    drawing = tradeoff.figure(FOUND, RISK)
    root = ElementTree.fromstring(drawing)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    named = {"chance", "at most 0.5", "at most 10 points", "chosen", "chosen, on fresh seeds"}
    assert named <= {*texts}
    assert {"fingerprint: linkage accuracy", "points of held-out accuracy lost"} <= {*texts}
    # one cross per point with a risk, and the fresh one
    crosses = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if "V" in p.get("d")]
    assert len(crosses) == 4
    assert all("H" in p.get("d") for p in crosses)
    with pytest.raises(ValueError, match="no measured point"):
        tradeoff.figure(FOUND, "epsilon")


def test_a_missing_number_is_the_largest_excess():
    none = LimitCheck(limit="epsilon", metric="epsilon", rule="", status="missing", missing="none")
    lacking = Point(label="x", series="x", checks=(none,))
    assert lacking.excess > POINTS[2].excess > POINTS[1].excess == 0


def test_the_terminal_shows_the_table_and_the_outcome():
    from rich.console import Console

    console = Console(width=200, file=io.StringIO())
    words.show(console, LOST)
    text = console.file.getvalue()
    assert "nearest" in text
    assert "0.35 [0.25, 0.45]" in text
    assert "instead of 10 points" in text
    narrow = Console(width=80, file=io.StringIO())
    words.show(narrow, LOST)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    # no word of the table is broken: each cell's words stand in it whole
    table = " ".join(lines[: lines.index("")]).split()
    for p in LOST.points:
        assert {*p.label.split()} <= {*table}
    many = replace(LOST, points=tuple(replace(POINTS[0], label=f"p{i}") for i in range(20)))
    words.show(narrow, many)
    assert "and 12 more: see harden.md" in narrow.file.getvalue()


def test_the_figure_does_not_call_an_unconfirmed_point_chosen():
    def legend(found):
        root = ElementTree.fromstring(tradeoff.figure(found, RISK))
        return {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}

    unsure = legend(replace(FOUND, confirmed=None))
    assert "best so far, not confirmed" in unsure
    assert "chosen" not in unsure
    lost = legend(LOST)
    assert "nearest, breaks limits" in lost
    assert "chosen" not in lost


def test_no_interval_ends_at_the_edge_of_the_figure():
    root = ElementTree.fromstring(tradeoff.figure(FOUND, RISK))
    ends = [
        float(p.get("d").rpartition("H")[2])
        for p in root.iter("{http://www.w3.org/2000/svg}path")
        if "H" in p.get("d")
    ]
    lines = root.iter("{http://www.w3.org/2000/svg}line")
    edge = max(float(line.get("x2")) for line in lines)
    assert max(ends) < edge - 5


def test_noise_for_whole_clients_says_what_it_rules_out():
    noisy = replace(
        POINTS[1],
        promise="per client at delta 1e-05",
        risks={"attribution.detected": estimate(0.1, 0.1, baseline=0.05)},
    )
    said = "\n".join(words.summary(replace(FOUND, points=(noisy,))))
    assert "exclude each other" in said
    per_person = replace(noisy, promise=PROMISE)
    for points in (POINTS, (per_person,)):
        assert "exclude each other" not in "\n".join(words.summary(replace(FOUND, points=points)))
