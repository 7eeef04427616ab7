"""The words for an allocation: nothing is promised that does not hold, and all are named."""

import io
import re

import pytest
from rich.console import Console

from fedaudit.allocate.page import figure, show, statements


def row(client, **more):
    plain = {
        "client": client,
        "records": 1000,
        "leverage": 1.0,
        "sigma": 0.1,
        "noise_multiplier": 3.2,
        "uniform_noise_multiplier": 3.0,
        "epsilon": 0.5,
        "uniform_epsilon": 0.6,
        "published_before": 8.0,
        "published_after": 6.0,
        "dataset_before": 700.0,
        "dataset_after": 600.0,
        "most_there_is": 6.9,
        "vacuous": True,
        "less_noise_than_uniform": False,
    }
    return {**plain, **more}


def document(*rows, **more):
    plain = {
        "leverage": "size, to unit mean",
        "objective": "published",
        "steps_per_round": [1],
        "budget": 0.05,
        "budget_counts": "equal",
        "delta": 1e-5,
        "accountant": "pld",
        "epsilon_rounded": 1.0,
        "least_amplified_multiplier": 0.05,
        "low_multiplier": 0.3,
        "worst_case": 6.0,
        "uniform_worst_case": 8.0,
        "gap": 2.0,
        "scales": [
            {"scale": s, "worst_case": 4.0 + s, "uniform_worst_case": 6.0 + s} for s in (0.5, 1, 2)
        ],
        "model_noise": {"equal": {"ratio": 1.0}, "size": {"ratio": 1.41}},
        "window": None,
        "lone_members": [],
        "clients": list(rows) or [row("a"), row("b")],
    }
    return {**plain, **more}


def words(*rows, **more):
    return dict(statements(document(*rows, **more)))


def test_the_published_bound_is_never_called_a_guarantee():
    for objective in ("published", "dataset"):
        for about, text in statements(document(objective=objective)):
            for found in re.finditer("guarantee", text):
                assert text[: found.start()].endswith("not a "), (about, text)
        assert "not a guarantee" in words(objective=objective)["published"]
    assert "safe" not in " ".join(words().values())


def test_scales_and_gain_are_printed():
    said = words()
    assert "K* = 6 nats, uniform noise 8: 2 nats less (25.0 %)" in said["worst case"]
    assert "0.5 x: 4.5 (uniform noise 6.5), 1 x: 5 " in said["scale"]
    assert "2 x: 6 " in said["scale"]
    assert "uniform allocation" in words(gap=0.0)["worst case"]


def test_everyone_who_pays_is_named():
    worse = row("c", epsilon=0.7, less_noise_than_uniform=True)
    assert "1 of 2 clients" in words(row("a"), worse)["who pays"]
    assert "c (0.6 to 0.7)" in words(row("a"), worse)["who pays"]
    assert "no client" in words()["who pays"]
    many = [row(f"c{i}", less_noise_than_uniform=True) for i in range(30)]
    said = words(*many)["who pays"]
    assert "c19" in said
    assert "and 10 more (all in allocation.json)" in said


def test_without_sizes():
    gone = ("records", "epsilon", "uniform_epsilon", "most_there_is", "vacuous")
    rows = [{k: v for k, v in row(n).items() if k not in gone} for n in ("a", "b")]
    rows[0]["less_noise_than_uniform"] = True
    said = words(*rows, delta=None, model_noise={"equal": {"ratio": 1.0}})
    assert "`size_column`" in said["record level"]
    assert "cannot be compared with" in said["dataset level"]
    assert "a (multiplier 3 to 3.2)" in said["who pays"]


def test_vacuous_bounds_are_called_so():
    assert "Vacuous for 2 of 2 clients" in words()["dataset level"]
    tight = row("a", dataset_after=2.0, vacuous=False)
    assert "Vacuous for 1 of 2" in words(tight, row("b"))["dataset level"]
    assert "Below ln(n + 1) nats" in words(tight, tight)["dataset level"]
    assert "vacuous for 1 of 2" in words(row("a", published_after=7.0), row("b"))["published"]


@pytest.mark.parametrize(
    ("about", "more", "part"),
    [
        ("too little", {"clients": [row("a", noise_multiplier=0.2), row("b")]}, "below 0.3 for 1"),
        ("delta", {"delta": 0.01}, "above 1 / records for 2 of 2"),
        ("lone members", {"lone_members": ["b"]}, "alone in their group: b"),
        ("amplification", {"clients": [row("a", noise_multiplier=0.01), row("b")]}, "0.05"),
        ("record level", {"epsilon_rounded": 1.015}, "within 1.5 %"),
        ("record level", {"accountant": "rdp"}, "Renyi"),
        ("published", {"steps_per_round": [1, 7]}, "counts a round as one step"),
        ("model noise", {"budget_counts": "size"}, "counts the noise in the average"),
        ("model noise", {}, "1.41 x that of uniform noise weighted by size"),
    ],
)
def test_warnings(about, more, part):
    rows = more.pop("clients", ())
    assert part in words(*rows, **more)[about]
    if about in ("too little", "delta", "lone members", "amplification"):
        assert about not in words()


def test_a_window_says_whom_it_does_not_hold_off():
    window = {
        "rounds": 25,
        "published": 3.0,
        "dataset": 400.0,
        "dataset_through_models": 100.0,
        "dataset_without_window": 600.0,
        "vacuous": 2,
        "average": "size",
    }
    said = words(window=window)["window"]
    assert "after 25 rounds" in said
    assert "does not protect against the server, which reads every round" in said
    assert "vacuous for 2 of 2" in said


def shown(given, width=80):
    out = io.StringIO()
    given = {**given, "statements": [{"about": a, "text": t} for a, t in statements(given)]}
    show(Console(file=out, width=width), given)
    return out.getvalue()


def test_the_terminal():
    text = shown(document(row("a"), row("b", vacuous=False)))
    assert max(len(line) for line in text.splitlines()) <= 80
    for part in ("leverage", "sigma", "multiplier", "epsilon", "before", "after", "vacuous"):
        assert part in text
    many = shown(document(*(row(f"c{i:03}", leverage=float(i)) for i in range(60))))
    assert "and 20 more of less leverage" in many
    assert "c059" in many
    assert "c005   " not in many


def test_foreign_names_do_not_drive_the_terminal():
    assert "\x1b" not in shown(document(row("\x1b[31mred"), row("b")))


def test_figures():
    assert [figure(v) for v in (0.05, 7.09646, 7354.4, 123456.7)] == [
        "0.05",
        "7.096",
        "7354",
        "123,457",
    ]
