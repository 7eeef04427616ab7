"""The published bounds hold, and a bound broken on purpose is reported."""

from dataclasses import replace

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import lemmas
from fedaudit.reporting.findings import judge, judge_all
from fedaudit.stats.intervals import wilson


@pytest.fixture(scope="module")
def surveyed(play):
    played = play()
    audit, guess, members = played.survey(checked_rounds=2, checked_records=4, records=24)
    return audit, guess, played.truth.with_members(members)


def with_paths(guess, change):
    rounds = tuple(
        replace(r, segments={p: change(path) for p, path in r.segments.items()})
        for r in guess.rounds
    )
    return replace(guess, rounds=rounds)


def scored(audit, guess, truth):
    return audit.score(guess, truth, np.random.default_rng(0))


def test_the_bounds_hold_on_a_smooth_model(surveyed):
    audit, guess, truth = surveyed
    result = scored(audit, guess, truth)
    names = {"j_beyond_theorem_1", "j_beyond_lemma_7", "increment_beyond_lemma_6"}
    assert set(result.bounds) == names
    for name in names:
        assert result.estimates[name].high < 0
    assert [f.verdict for f in judge(result)] == ["leak"]
    assert len(guess.rounds[0].segments) == 3
    curve = result.curves["bound check"]
    assert (np.array(curve["remainder"]) <= curve["L |u|^2 / 2"]).all()
    np.testing.assert_allclose(curve["remainder"], curve["by quadrature"], atol=1e-6)
    # the curvature along u bounds it more sharply
    along = np.array(curve["sup |u' Hess u| / 2"])
    assert (along < curve["L |u|^2 / 2"]).all()
    beyond = result.estimates["increments_beyond_lemma_6 (the curvature along u)"]
    assert beyond.n == len(along) // 4  # four records of each update
    over = np.array(curve["remainder"]) > along + np.array(curve["its error"])
    assert beyond.value == pytest.approx(over.mean())


def test_a_constant_that_is_too_small_is_the_top_finding(surveyed):
    audit, guess, truth = surveyed
    broken = with_paths(guess, lambda p: replace(p, smoothness=p.smoothness * 1e-3))
    result = scored(audit, broken, truth)
    first = judge_all([result])[0]
    assert first.verdict == "disagreement"
    assert "Hessian" in first.remedy
    verdicts = [f.verdict for f in judge(result)]
    assert verdicts.count("disagreement") >= 2
    assert verdicts[-1] == "leak"


def test_what_the_numerical_error_can_explain_is_no_disagreement(surveyed):
    audit, guess, truth = surveyed
    unsure = with_paths(
        guess, lambda p: replace(p, smoothness=p.smoothness * 1e-3, error=p.error + 10.0)
    )
    assert [f.verdict for f in judge(scored(audit, unsure, truth))] == ["leak"]


def test_the_worst_is_what_is_surely_outside(surveyed):
    """A larger excess within its error must not hide a smaller one beyond its own."""
    _, guess, _ = surveyed
    first = next(iter(guess.rounds[0].segments))
    size = np.abs(guess.rounds[0].segments[first].increment).max()

    def change(path, off, error):
        n = len(path.slope)
        return replace(
            path, increment=path.slope + off, error=np.full(n, error), smoothness=np.zeros(n)
        )

    paths = dict(guess.rounds[0].segments)
    names = list(paths)
    paths[names[0]] = change(paths[names[0]], 5.0 + size, 50.0)
    for name in names[1:]:
        paths[name] = change(paths[name], 1.0, 1e-6)
    survey = replace(guess.rounds[0], segments=paths)
    others = tuple(replace(r, segments={}) for r in guess.rounds[1:])
    found, _ = lemmas.bound_checks(
        replace(guess, rounds=(survey, *others)), np.ones_like(guess.present)
    )
    assert found["increment_beyond_lemma_6"].low == pytest.approx(1.0, abs=1e-3)
    assert found["j_beyond_theorem_1"].low > 0


def test_violations_of_the_published_constant_are_counted_by_update(surveyed):
    audit, guess, _ = surveyed
    tight = with_paths(guess, lambda p: replace(p, calibrated=0.0 * p.calibrated))
    published = "increments_beyond_lemma_6 (the published L)"
    found = lemmas.violations(tight, audit)[published]
    assert (found.value, found.n) == (1.0, 6)  # updates: four records of one share a segment
    loose = with_paths(guess, lambda p: replace(p, calibrated=1e6 + 0 * p.calibrated))
    found = lemmas.violations(loose, audit)[published]
    assert found.value == 0.0
    assert found.high == pytest.approx(wilson(0, 6).high)
    assert found.baseline == 0.0
    flat = with_paths(guess, lambda p: replace(p, directional=0 * p.directional))
    along = lemmas.violations(flat, audit)["increments_beyond_lemma_6 (the curvature along u)"]
    assert (along.value, along.n) == (1.0, 6)
    rough = with_paths(guess, lambda p: replace(p, directional=None, smoothness=None))
    assert [*lemmas.violations(rough, audit)] == [published]
    assert lemmas.violations(with_paths(guess, lambda p: replace(p, norm=0.0)), audit) == {}


def test_alignment_of_the_update_with_the_mean_score(surveyed):
    _, guess, _ = surveyed
    path = next(iter(guess.rounds[0].segments.values()))
    inside = np.array([True, False, True, True])
    g = lemmas.geometry(path, inside)
    block = path.products[np.ix_(inside, inside)]
    assert g["score"] == pytest.approx(np.sqrt(block.mean()))
    assert g["mean"] == pytest.approx(path.slope[inside].mean())
    assert -1 <= g["gamma"] <= 1
    assert g["gamma"] * g["score"] * path.norm == pytest.approx(g["mean"])
    assert lemmas.geometry(path, ~inside & inside) == {}


def test_what_lemma_8_says_is_counted(surveyed):
    """Along the mean score vector, with an odd spread: the printed condition holds, J does not."""
    _, guess, _ = surveyed

    def planted(path):
        slope = np.array([10.0, -1.0, -1.0, -1.0])
        return replace(
            path, norm=1.0, slope=slope, increment=slope, smoothness=np.zeros(4),
            products=np.full((4, 4), slope.mean() ** 2), remainder=np.zeros(4), error=np.zeros(4),
        )  # fmt: skip

    member = np.ones_like(guess.present)
    (note,) = lemmas.conditions(with_paths(guess, planted), member)
    assert "holds for 6 of 6" in note
    assert "(J <= 0 in 6 of them)" in note
    assert note.endswith("sound form for 0")


def test_lemma_6_is_reached_within_a_factor_of_ten(surveyed):
    """Its constant is the largest curvature in any direction; that along u is nearly reached."""
    audit, guess, truth = surveyed
    curve = scored(audit, guess, truth).curves["bound check"]
    remainder = np.array(curve["remainder"])
    assert 0.1 < (remainder / np.array(curve["L |u|^2 / 2"])).max() < 1
    assert 0.9 < (remainder / np.array(curve["sup |u' Hess u| / 2"])).max() < 1.01
