"""Attribution over rounds and its leakage: least squares, simulated power, closed forms."""

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.stats import plan_design, query_algebra, query_plans
from fedaudit.stats.plan_design import Scores


def drawing(clients, size, seed=0):
    generator = np.random.default_rng(seed)
    return lambda rounds: query_plans.random_partitions(clients, size, rounds, generator)


def test_regression_is_least_squares_and_knows_who_is_identifiable():
    for rounds in (3, 9, 14):
        plan = drawing(10, 5, rounds)(rounds)
        rows = plan.reshape(-1, 10).astype(float)
        fit = plan_design.regression(plan)
        assert np.allclose(fit.coefficients, np.linalg.pinv(rows), atol=1e-9)
        assert tuple(np.flatnonzero(fit.identifiable)) == query_algebra.recoverable(rows)
        assert np.allclose(fit.deviation, np.linalg.norm(fit.coefficients, axis=1))


def test_simulated_power_is_the_closed_form_and_false_alarms_are_at_the_level():
    scores = Scores(effect=1.0, marked=3, error=0.05)
    draw = drawing(10, 5, 1)
    for rounds in (12, 25):
        found = plan_design.power(draw, rounds, scores, np.random.default_rng(2), runs=400)
        closed = np.mean([plan_design.expected_power(draw(rounds), scores) for _ in range(300)])
        assert found.detected.low - 0.02 <= closed <= found.detected.high + 0.02
        assert found.false_alarms.low <= 0.05 <= found.false_alarms.high
        assert found.false_alarms.baseline == 0.05


def test_after_two_rounds_and_in_fixed_groups_nobody_is_flagged():
    """Two cuts give three independent sums for four cells: no unit vector is in the row space."""
    scores, generator = Scores(effect=5.0), np.random.default_rng(3)
    early = plan_design.power(drawing(10, 5), 2, scores, generator, runs=20)
    assert early.detected.value == early.false_alarms.value == 0
    later = plan_design.power(drawing(10, 5), 8, scores, generator, runs=100)
    assert 0 < later.detected.value < 0.5  # some, but not all, before round nine
    kept = plan_design.power(
        lambda t: query_plans.fixed_groups(10, 5, t, generator), 60, scores, generator, runs=20
    )
    assert kept.detected.value == 0


def test_rounds_needed_reach_the_wanted_error_and_fewer_do_not():
    scores = Scores(effect=1.0, marked=3, error=0.05)
    needed = plan_design.rounds_needed(drawing(10, 5, 4), scores, first=9, most=400)
    assert needed.low <= needed.rounds <= needed.high

    def mean_power(rounds):
        draw = drawing(10, 5, 5)
        return np.mean([plan_design.expected_power(draw(rounds), scores) for _ in range(200)])

    assert mean_power(needed.high + 2) > 0.95 > mean_power(needed.low - 2)
    stronger = Scores(effect=3.0, marked=3, error=0.05)
    assert (
        plan_design.rounds_needed(drawing(10, 5, 4), stronger, first=9, most=400).rounds
        < needed.rounds
    )
    never = plan_design.rounds_needed(
        lambda t: query_plans.fixed_groups(10, 5, t, np.random.default_rng(0)),
        scores, first=9, most=40,
    )  # fmt: skip
    assert (never.rounds, never.most) == (None, 40)


def simulated(rounds, d, persistence, seed):
    """A plan, its sums (T G, d), and every client's mean update (K, d), ten clients."""
    generator = np.random.default_rng(seed)
    plan = query_plans.random_partitions(10, 5, rounds, generator)
    own = generator.standard_normal((10, d))
    fresh = generator.standard_normal((rounds, 10, d))
    x = np.sqrt(persistence) * own + np.sqrt(1 - persistence) * fresh
    return plan, np.einsum("tgk,tkd->tgd", plan, x).reshape(-1, d), x.mean(axis=0)


def cosines(guess, true):
    size = np.linalg.norm(guess, axis=1) * np.linalg.norm(true, axis=1)
    return (guess * true).sum(axis=1) / size


@pytest.mark.parametrize("persistence", [0.0, 0.5, 0.9, 1.0])
def test_the_price_across_rounds_against_simulated_updates(persistence):
    plan, sums, true = simulated(15, 4000, persistence, 6)
    estimate = np.linalg.pinv(plan.reshape(-1, 10).astype(float)) @ sums
    closed = plan_design.persistence_cosine(plan, persistence)
    assert np.abs(cosines(estimate, true) - closed).max() < 0.06


@pytest.mark.parametrize("persistence", [0.3, 2 / 3, 1.0])
def test_the_best_linear_guess_against_simulation_and_least_squares(persistence):
    plan, sums, true = simulated(10, 6000, persistence, 8)
    guess = plan_design.best_guess([*plan], persistence) @ sums
    closed = plan_design.persistence_cosine(plan, persistence, best=True)
    assert np.abs(cosines(guess, true) - closed).max() < 0.05
    plain = plan_design.persistence_cosine(plan, persistence)
    assert (closed >= plain - 1e-9).all()
    if persistence == 1:
        assert np.allclose(closed, plain)


def test_more_rounds_never_read_as_less_leakage():
    """Least squares fails this: it amplifies noise near the first identifying round."""
    draw = drawing(10, 5, 9)
    plans = {t: [draw(t) for _ in range(40)] for t in (5, 10, 20)}
    best, plain = (
        [np.mean([plan_design.persistence_cosine(p, 0.3, best=b) for p in plans[t]]) for t in plans]
        for b in (True, False)
    )
    assert best[0] < best[1] < best[2]
    assert plain[1] < plain[0]


def test_the_price_at_the_two_ends():
    draw = drawing(10, 5, 7)
    partitions = np.mean([plan_design.persistence_cosine(draw(20), 0.9).mean() for _ in range(60)])
    assert partitions == pytest.approx(0.97, abs=0.015)
    fixed = query_plans.fixed_groups(10, 5, 20, np.random.default_rng(0))
    # groups of five: one of five equal directions, whatever persists
    for persistence in (0.0, 0.9, 1.0):
        assert np.allclose(plan_design.persistence_cosine(fixed, persistence), 1 / np.sqrt(5))
    alone = np.ones((20, 1, 10))
    assert np.allclose(plan_design.persistence_cosine(alone, 0.9), 1 / np.sqrt(10))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Scores(effect=0.0),
        lambda: Scores(marked=0),
        lambda: Scores(error=0.5),
        lambda: plan_design.persistence_cosine(np.ones((2, 1, 3)), 1.2),
        lambda: plan_design.power(
            drawing(10, 5), 2, Scores(marked=10), np.random.default_rng(0), runs=1
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(UsageError):
        call()


def test_a_client_is_tested_without_every_other_one_and_needs_no_full_rank():
    """Naive twin: the contrast of j without i by projecting i's column out of j's."""
    plan = query_plans.cycled_partitions(10, 5, 10, np.random.default_rng(0)).astype(float)
    found = plan_design.Contrasts.of(plan)
    rows = (plan - plan.mean(axis=1, keepdims=True)).reshape(-1, 10)
    assert np.linalg.matrix_rank(rows) < 9
    assert np.allclose(found.information, rows.T @ rows)
    for j, i in ((0, 1), (3, 7), (9, 2)):
        a, b = rows[:, j], rows[:, i]
        kept = a - b * max(a @ b, 0) / (b @ b)
        assert found.left[j, i] == pytest.approx(kept @ a)
    assert found.testable.all()
    fixed = query_plans.fixed_groups(10, 5, 10, np.random.default_rng(0))
    assert not plan_design.Contrasts.of(fixed).testable.any()


def test_the_power_of_that_test_by_simulation_and_by_its_bound():
    rng = np.random.default_rng(1)

    def draw(t):
        return query_plans.cycled_partitions(10, 5, t, rng)

    scores = plan_design.Scores(effect=1.5, marked=3, error=0.05)
    found = plan_design.contrast_power(draw, 10, scores, rng, runs=400)
    bound = plan_design.expected_contrast_power(draw(10), scores)
    assert found.detected.low <= bound
    assert found.detected.value >= bound - 0.25
    assert found.false_alarms.low <= 0.05
