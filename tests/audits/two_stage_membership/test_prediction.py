"""Does the risk predict the attack? Null, power, and the ranks of scipy."""

import html
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import prediction, theory
from fedaudit.audits.two_stage_membership.risk import Contribution
from fedaudit.randomness import Seed
from fedaudit.results import Estimate
from fedaudit.stats import roc

J_FORETELLS, RISK_PREDICTS = (f"rank_correlation ({risk})" for risk in ("J", "TS-MIA"))


def part(party, number, delta, member, evidence, classes):
    """A client's update of one round that survives."""
    return Contribution(
        round=number,
        party=party,
        client=int(party, 36),
        row=0,
        survey=SimpleNamespace(stage_one=SimpleNamespace(ratio=np.array([1.0])), threshold=0.1),
        delta=delta,
        member=member,
        deviation=None,
        evidence=evidence,
        classes=classes,
    )


AUDIT = SimpleNamespace(confidence=0.95, sample=4)


def federation_of(rng, clients, rounds, pairs, leak=0.0):
    """Clients that differ in how far scores rise, records that keep their luck from round to
    round, evidence that leans on increments. `leak` is the largest shift of members."""
    member = np.arange(2 * pairs) < pairs
    classes = np.tile(np.arange(pairs) % 3, 2)
    parts = []
    for c in range(clients):
        level, shift = 0.3 * rng.normal(), leak * rng.random()
        record = rng.normal(size=2 * pairs)
        for t in range(rounds):
            delta = level + record + 0.7 * rng.normal(size=2 * pairs) + shift * member
            evidence = 0.6 * delta + 0.8 * rng.normal(size=2 * pairs)
            parts.append(part(f"{c:03d}", t, delta, member, evidence=evidence, classes=classes))
    return parts


def test_ranks_of_columns_and_rank_correlation_are_those_of_scipy():
    from scipy.stats import rankdata, spearmanr

    rng = np.random.default_rng(12)
    member = np.array([True] * 5 + [False] * 5)
    parts = []
    for name in "abcdef":
        for t in (1, 2):
            delta = rng.normal(size=10)
            parts.append(part(name, t, delta, member, evidence=delta, classes=np.zeros(10, int)))
    table = np.round(rng.normal(size=(30, 4)), 1)
    np.testing.assert_array_equal(prediction._midranks_of_columns(table), rankdata(table, axis=0))
    # two halvings each way: the mean of the correlations of the two columns
    groups = [
        g[..., [0, 2]]
        for g in prediction.crossed(parts, AUDIT, Seed(int(rng.integers(2**63)))).values()
    ]
    found = prediction._correlation(groups, 0.95, rng)
    both = np.concatenate(groups)
    naive = [spearmanr(*both[:, s].T).statistic for s in range(2 * prediction.SPLITS)]
    assert found.value == pytest.approx(float(np.mean(naive)))
    same = np.zeros((4, 2))
    assert (prediction._column_ranks(same) == 0).all()


@pytest.mark.parametrize(("clients", "rounds"), [(4, 3), (8, 1)])
def test_exchangeable_members_give_no_correlation_of_risk_and_attack(clients, rounds):
    """On the same records J and the AUC rise and fall together, even without a leak."""
    rng = np.random.default_rng(21)
    values, same, outside, count = [], [], 0, 40
    for _ in range(count):
        parts = federation_of(rng, clients, rounds, 12)
        found = prediction.prediction(parts, AUDIT, Seed(int(rng.integers(2**63))))[J_FORETELLS]
        values.append(found.value)
        outside += not found.low <= 0 <= found.high
        both = np.array(
            [
                (theory.phi(c.delta[c.member]).mean(), roc.plain_auc(c.delta, c.member))
                for c in parts
            ]
        )
        same += [*prediction._products(*(prediction._column_ranks(both[:, [i]]) for i in (0, 1)))]
    # 5 % of 40 is 2; 8 or more would happen once in 1,500
    assert outside <= 7
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(count)
    assert np.mean(same) > 5 * np.std(same) / np.sqrt(count)


def test_a_risk_that_follows_the_leak_is_found_to_predict_the_attack():
    rng = np.random.default_rng(11)
    found = [
        prediction.prediction(
            federation_of(rng, 24, 2, 24, leak=3.0), AUDIT, Seed(int(rng.integers(2**63)))
        )
        for _ in range(6)
    ]
    for name in (J_FORETELLS, RISK_PREDICTS):
        assert sum(f[name].low > 0 for f in found) >= 5
        assert {f[name].baseline for f in found} == {0.0}
        assert {f[name].n for f in found} == {24}


def test_what_cannot_be_correlated_is_not():
    rng = np.random.default_rng(12)
    parts = federation_of(rng, 3, 2, 6)
    assert prediction.prediction(parts[:4], AUDIT, Seed(int(rng.integers(2**63)))) == {}
    assert prediction.prediction([], AUDIT, Seed(int(rng.integers(2**63)))) == {}
    # every draw has J > 0: TS-MIA is 1 for all clients, and predicts nothing
    sure = [replace(c, delta=np.abs(c.delta) + 1) for c in parts]
    assert [*prediction.prediction(sure, AUDIT, Seed(int(rng.integers(2**63))))] == [J_FORETELLS]
    # unlinked rows have no evidence, rounds without movement no SUR
    unlinked = [replace(c, evidence=np.full(12, np.nan)) for c in parts[:2]]
    assert (
        prediction.prediction([*unlinked, *parts[2:]], AUDIT, Seed(int(rng.integers(2**63)))) == {}
    )


def test_halves_keep_pairs_of_a_class_together():
    rng = np.random.default_rng(13)
    member = np.array([True, False, True, False, True, False, True, True])
    classes = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # class 3 has no non-members
    for _ in range(20):
        (one, other), (second, first) = prediction._halved(member, classes, rng)
        assert (set(one), set(other)) == (set(first), set(second))
        assert set(one) | set(other) == set(range(6))
        assert not set(one) & set(other)
        for half in (one, other):
            inside, outside = half[member[half]], half[~member[half]]
            assert sorted(classes[inside]) == sorted(classes[outside])
    assert prediction._halved(member[:2], classes[:2], rng) == []


def test_a_client_is_halved_alike_in_all_rounds():
    """The same round twice gives the same J and AUC in every halving."""
    rng = np.random.default_rng(14)
    parts = [replace(c, round=t) for c in federation_of(rng, 3, 1, 6) for t in (1, 2)]
    for table in prediction.crossed(parts, AUDIT, Seed(int(rng.integers(2**63)))).values():
        assert table.shape == (2, 2 * prediction.SPLITS, 3)
        np.testing.assert_array_equal(table[0][:, [0, 2]], table[1][:, [0, 2]])


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.7, "Yes: the attack does better where TS-MIA is higher"),
        (-0.2, 0.7, "Not shown"),
        (0.0, 0.7, "Not shown"),
        (-0.7, -0.1, "No, the opposite"),
    ],
)
def test_the_answer_in_words_follows_the_interval(low, high, said):
    middle = (low + high) / 2
    of = {"n": 8, "confidence": 0.95, "baseline": 0.0, "method": "by hand"}
    words = prediction.answer({RISK_PREDICTS: Estimate(value=middle, low=low, high=high, **of)})
    assert words.startswith(f"does TS-MIA predict the attack, over clients and rounds? {said}")
    assert f"{middle:.2f} [{low:.2f}, {high:.2f}] at 95 %" in words
    assert "Not measurable" in prediction.answer({})


def test_the_answer_stands_in_the_terminal_and_in_the_report(tmp_path):
    from io import StringIO

    from rich.console import Console

    from fedaudit import study
    from fedaudit.reporting.text import show_study

    config = {
        "data": {"name": "digits"},
        "task": {"kind": "mlp", "hidden": [8]},
        "federation": {"clients": 4, "rounds": 2},
        "audits": {"two_stage_membership": {"records": 8, "checked_rounds": 0}},
    }
    run = study.run(config, tmp_path / "run")
    (found,) = run.results
    (note,) = [n for n in found.notes if n.startswith("does TS-MIA predict the attack")]
    e = found.estimates[RISK_PREDICTS]
    assert f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]" in note
    screen = StringIO()
    show_study(Console(file=screen, width=2000), [run.chapter])
    assert note in screen.getvalue()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert note in html.unescape(re.sub(r"<[^>]+>", "", page))  # terms in it are links
