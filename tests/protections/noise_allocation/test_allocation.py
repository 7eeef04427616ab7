"""The allocation is the published one, is optimal, meets its budget, and says who pays."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.accounting import Exposure, epsilon
from fedaudit.errors import ConfigError, DataError, FedauditError, UsageError
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.noise_allocation import (
    allocate,
    as_settings,
    budget_for,
    leverage,
    shares,
)
from fedaudit.protections.noise_allocation.allocation import coefficient

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
SITES = PUBLISHED["setting_A"]["sizes"]
BY_SIZE = leverage.from_size(SITES)


# -- published figures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", PUBLISHED["setting_A"]["rows"], ids=lambda r: f"T={r['T']} U={r['U']}"
)
def test_setting_a(row):
    """[TopologyAwareDP] Figure 4 (a), all 18 cells."""
    found = allocate(BY_SIZE, rounds=row["T"], batch_size=32, budget=row["U"])
    assert found.worst_case == pytest.approx(row["K_star"], abs=1e-9)
    assert found.uniform_worst_case == pytest.approx(row["K_uniform"], abs=1e-9)
    assert found.gap == pytest.approx(row["gap"], abs=1e-9)
    np.testing.assert_allclose(found.sigma_squared, row["sigma2"], atol=1e-9)


@pytest.mark.parametrize(
    "row", PUBLISHED["eta_sweep"]["rows"], ids=lambda r: f"{r['topology']} eta={r['eta']}"
)
def test_eta_sweep(row):
    """[TopologyAwareDP] Figure 3, all 36 cells."""
    degree = PUBLISHED["eta_sweep"]["degrees"][row["topology"]]
    values = leverage.coupled(degree, coupling=row["eta"], classes=10)
    found = allocate(values, rounds=100, batch_size=64, budget=0.5)
    assert found.worst_case == pytest.approx(row["K_star"], abs=1e-9)
    assert found.uniform_worst_case == pytest.approx(row["K_uniform"], abs=1e-9)
    assert found.gap == pytest.approx(row["gap"], abs=1e-9)
    if row["topology"] == "ring":
        assert found.gap == 0


def test_what_the_paper_does_not_say_of_setting_a():
    """Weighted by size the model gets more noise than uniform, and five of six sites less."""
    for budget, ratio in ((0.05, 1.4), (1.6, 4.7)):
        found = allocate(BY_SIZE, rounds=100, batch_size=32, budget=budget)
        allocated, uniform = found.model_noise(SITES)
        assert allocated / uniform == pytest.approx(ratio, abs=0.05)
        assert found.worse.tolist() == [1, 2, 3, 4, 5]
        equal = found.model_noise(np.ones(6))
        assert equal[0] == pytest.approx(equal[1])


# -- optimality ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6])
@pytest.mark.parametrize("n", [2, 7, 1000])
def test_equal_leverage_gives_exactly_the_uniform_allocation(value, n):
    found = allocate(np.full(n, value), rounds=100, batch_size=32, budget=0.3)
    assert (found.sigma_squared == 0.3 / n).all()
    assert (found.noise_multiplier == found.uniform_noise_multiplier).all()
    assert found.worst_case == found.uniform_worst_case
    assert found.gap == 0
    assert found.worse.size == 0


def instances():
    rng = np.random.default_rng(11)
    for n in (2, 3, 6):
        ell = rng.exponential(size=n)
        sizes = rng.integers(40, 900, size=n)
        yield ell, {"rounds": 50, "batch_size": 32, "budget": 0.2}
        yield (
            ell,
            {"rounds": 50, "batch_size": 32, "budget": 0.05, "budget_weights": shares(sizes) ** 2},
        )
        yield (
            ell,
            {
                "rounds": 5,
                "batch_size": 32,
                "budget": 40.0,
                "sizes": sizes,
                "steps_per_round": rng.integers(1, 9, size=n),
                "optimise": "dataset",
            },
        )


INSTANCES = list(instances())


@pytest.mark.parametrize(("ell", "setting"), INSTANCES)
def test_no_optimiser_does_better(ell, setting):
    from scipy.optimize import minimize

    found = allocate(ell, **setting)
    a = np.broadcast_to(found._coefficient, ell.shape)
    w = setting.get("budget_weights", np.ones(ell.size))
    scale = found.uniform_sigma_squared

    # variables: log(sigma^2 / uniform), and the slack K
    def bound(x):
        return a / scale * np.exp(-x[:-1]) + ell

    constraints = [
        {"type": "ineq", "fun": lambda x: x[-1] - bound(x)},
        {"type": "ineq", "fun": lambda x: 1 - np.sum(w * scale * np.exp(x[:-1])) / found.budget},
    ]
    start = np.r_[np.zeros(ell.size), found.uniform_worst_case]
    best = minimize(
        lambda x: x[-1],
        start,
        jac=lambda x: np.r_[np.zeros(ell.size), 1.0],
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    # whether it calls itself done or stuck at the optimum: feasible, and no lower
    assert min(np.min(c["fun"](best.x)) for c in constraints) > -1e-7
    assert best.x[-1] == pytest.approx(found.worst_case, rel=1e-6)
    np.testing.assert_allclose(np.exp(best.x[:-1]) * scale, found.sigma_squared, rtol=1e-3)
    # nor does anybody who guesses
    rng = np.random.default_rng(0)
    tries = rng.lognormal(sigma=1, size=(4000, ell.size)) * found.sigma_squared
    tries *= (found.budget / (tries @ w))[:, None]
    assert ((a / tries + ell).max(axis=1) >= found.worst_case * (1 - 1e-12)).all()


@pytest.mark.parametrize(("ell", "setting"), INSTANCES)
def test_karush_kuhn_tucker(ell, setting):
    """All bounds are active, multipliers are non-negative and sum to one, the budget is spent."""
    found = allocate(ell, **setting)
    a = np.broadcast_to(found._coefficient, ell.shape)
    w = setting.get("budget_weights", np.ones(ell.size))
    s2 = found.sigma_squared
    np.testing.assert_allclose(a / s2 + ell, found.worst_case, rtol=1e-13)
    mu = w * s2**2 / a  # from mu_i a_i / sigma_i^4 = lambda w_i, up to lambda
    mu /= mu.sum()
    price = mu * a / s2**2 / w
    np.testing.assert_allclose(price, price[0], rtol=1e-12)
    assert (mu > 0).all()
    assert np.sum(w * s2) == pytest.approx(found.budget, rel=1e-13)
    balanced = found.bounds()
    chosen = balanced.dataset if found.objective == "dataset" else balanced.published
    np.testing.assert_allclose(chosen, found.worst_case, rtol=1e-13)
    uniform = found.uniform_bounds()
    before = uniform.dataset if found.objective == "dataset" else uniform.published
    assert before.max() == pytest.approx(found.uniform_worst_case, rel=1e-13)


amounts = st.floats(min_value=0, max_value=1e4, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(amounts, min_size=2, max_size=30),
    rounds=st.integers(1, 1000),
    batch=st.integers(1, 512),
    budget=st.floats(min_value=1e-6, max_value=1e6),
)
def test_properties(values, rounds, batch, budget):
    ell = np.array(values)
    found = allocate(ell, rounds=rounds, batch_size=batch, budget=budget)
    assert found.residual < 1e-14
    assert ell.max() <= found.worst_case <= found.uniform_worst_case * (1 + 1e-12)
    assert found.gap >= 0
    # more leverage, more noise
    order = np.argsort(ell, kind="stable")
    assert (np.diff(found.sigma_squared[order]) >= 0).all()
    np.testing.assert_array_equal(found.noise_multiplier, np.sqrt(found.sigma_squared) * batch)
    # renaming clients changes nothing but the order
    turned = allocate(ell[::-1], rounds=rounds, batch_size=batch, budget=budget)
    np.testing.assert_allclose(turned.sigma_squared[::-1], found.sigma_squared, rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(amounts, min_size=2, max_size=10),
    budget=st.floats(min_value=1e-4, max_value=1e4),
    more=st.floats(min_value=1.01, max_value=10),
    who=st.integers(0, 9),
)
def test_monotone(values, budget, more, who):
    ell = np.array(values)
    plain = allocate(ell, rounds=20, batch_size=16, budget=budget)
    richer = allocate(ell, rounds=20, batch_size=16, budget=budget * more)
    assert (richer.sigma_squared > plain.sigma_squared).all()
    assert richer.worst_case <= plain.worst_case
    longer = allocate(ell, rounds=40, batch_size=16, budget=budget)
    assert longer.worst_case >= plain.worst_case
    raised = ell.copy()
    i = who % ell.size
    raised[i] = raised[i] * more + 0.1
    other = allocate(raised, rounds=20, batch_size=16, budget=budget)
    assert other.sigma_squared[i] >= plain.sigma_squared[i] * (1 - 1e-12)
    assert other.worst_case >= plain.worst_case * (1 - 1e-12)


def test_a_dominant_client_and_a_million_of_them():
    ell = np.random.default_rng(0).random(1000)
    ell[7] = 1000.0
    assert allocate(ell, rounds=100, batch_size=32, budget=5e9).residual < 1e-14
    many = np.random.default_rng(1).lognormal(size=300_000)
    found = allocate(many, rounds=100, batch_size=32, budget=3000)
    assert found.residual < 1e-14
    np.testing.assert_allclose(found.bounds().published, found.worst_case, rtol=1e-11)


# -- budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ell", "setting"), INSTANCES)
def test_the_budget_for_a_worst_case_is_the_inverse(ell, setting):
    found = allocate(ell, **setting)
    rest = {k: v for k, v in setting.items() if k != "budget"}
    assert budget_for(found.worst_case, ell, **rest) == pytest.approx(found.budget, rel=1e-12)


def test_weights_make_the_budget_the_noise_in_the_model():
    p = shares(SITES)
    found = allocate(BY_SIZE, rounds=100, batch_size=32, budget=0.001, budget_weights=p**2)
    allocated, uniform = found.model_noise(SITES)
    assert allocated == pytest.approx(0.001, rel=1e-13)
    assert uniform == pytest.approx(0.001, rel=1e-13)
    assert found.gap > 0


def test_scales():
    found = allocate(BY_SIZE, rounds=100, batch_size=32, budget=0.05)
    at = found.at_scales()
    assert list(at) == [0.5, 1.0, 2.0]
    assert at[1.0] == (found.worst_case, found.uniform_worst_case)
    for scale, (k, uniform) in at.items():
        again = allocate(scale * BY_SIZE, rounds=100, batch_size=32, budget=0.05)
        assert (k, uniform) == (again.worst_case, again.uniform_worst_case)
    assert at[0.5][0] < at[1.0][0] < at[2.0][0]


def test_the_sound_objective_is_better_at_its_own_bound():
    setting = {"rounds": 10, "batch_size": 32, "budget": 500.0, "sizes": SITES}
    published = allocate(BY_SIZE, **setting)
    sound = allocate(BY_SIZE, optimise="dataset", **setting)
    assert sound.bounds().dataset.max() < published.bounds().dataset.max()
    assert published.bounds().published.max() < sound.bounds().published.max()
    assert sound.worst_case <= sound.uniform_worst_case


def test_windows_of_an_allocation():
    found = allocate(BY_SIZE, rounds=100, batch_size=32, budget=0.05, sizes=SITES)
    short = allocate(BY_SIZE, rounds=25, batch_size=32, budget=0.05, sizes=SITES)
    seen = found.windowed(25, model_weights=SITES)
    expected = short._coefficient / found.sigma_squared + BY_SIZE
    np.testing.assert_allclose(seen.published, expected)
    assert (seen.dataset < found.bounds().dataset).all()
    same = found.windowed(25, model_weights=SITES, uniform=True)
    assert same.published.max() > seen.published.max()


# -- epsilons, and what dp_sgd makes of it ---------------------------------------------------------


def test_epsilons_before_and_after():
    found = allocate(
        BY_SIZE,
        rounds=10,
        batch_size=32,
        budget=0.05,
        sizes=SITES,
        delta=1e-5,
        steps_per_round=2,
    )
    for i, n in enumerate(SITES):
        schedule = Exposure(sampling_rate=32 / n, steps=2, rounds=10)
        assert found.epsilon[i] == epsilon(schedule, float(found.noise_multiplier[i]), 1e-5)
        uniform = epsilon(schedule, found.uniform_noise_multiplier, 1e-5)
        assert found.uniform_epsilon[i] == uniform
    assert found.worse.tolist() == np.flatnonzero(found.epsilon > found.uniform_epsilon).tolist()
    promise = found.guarantee(2)
    assert (promise.epsilon, promise.delta, promise.unit) == (found.epsilon[2], 1e-5, "record")
    assert "2 steps x 10 rounds" in promise.covers


def test_dp_sgd_takes_the_multipliers_and_promises_the_same():
    setting = {"rounds": 10, "batch_size": 32, "budget": 0.05, "sizes": SITES, "delta": 1e-6}
    found = allocate(BY_SIZE, accountant="rdp", **setting)
    protection = DPSGD(accountant="rdp", **as_settings(found))
    protection.check_clients(6)
    for i, n in enumerate(SITES):
        schedule = Exposure(sampling_rate=32 / n, steps=1, rounds=10)
        assert protection.guarantee(i, schedule).epsilon == found.epsilon[i]
        # noise z C on the sum is sigma C on the mean
        assert protection.multiplier(i) / 32 == pytest.approx(math.sqrt(found.sigma_squared[i]))
    turned = as_settings(found, [5, 4, 3, 2, 1, 0])
    assert turned["noise_multiplier"] == tuple(found.noise_multiplier[::-1].tolist())


def test_without_sizes_there_is_no_epsilon():
    found = allocate(BY_SIZE, rounds=10, batch_size=32, budget=0.05)
    assert found.epsilon is None
    assert found.uniform_epsilon is None
    with pytest.raises(UsageError, match="no epsilons"):
        found.guarantee(0)


def test_low_multipliers_are_named():
    found = allocate([1.0, 2.0, 900.0], rounds=1, batch_size=2, budget=0.05)
    assert found.low.tolist() == np.flatnonzero(found.noise_multiplier < 0.3).tolist()
    assert found.low.size > 0


def test_the_callers_array_is_not_held():
    mine = np.array([1.0, 2.0, 3.0])
    found = allocate(mine, rounds=10, batch_size=32, budget=0.05)
    mine[:] = 0
    assert found.leverage.tolist() == [1, 2, 3]


def test_coefficients():
    assert coefficient("published", rounds=100, batch_size=32) == 100 / 2048
    # steps that all take alike leave one number, and without sizes the largest factor
    assert coefficient("dataset", rounds=10, batch_size=4, steps_per_round=[3, 3]) == 30 * 1.25 / 2


# -- bad input -------------------------------------------------------------------------------------

FINE = {"leverage": [1.0, 2.0, 3.0], "rounds": 10, "batch_size": 8, "budget": 1.0}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"leverage": [1.0, -1.0, 2.0]}, DataError, "client 1"),
        ({"leverage": [1.0, math.nan, 2.0]}, DataError, "nan"),
        ({"leverage": [1.0, math.inf, 2.0]}, DataError, "inf"),
        ({"leverage": [1.0, -1.0, 2.0], "clients": ["a", "b", "c"]}, DataError, "client 'b'"),
        ({"leverage": [1.0]}, UsageError, "at least two clients"),
        ({"leverage": []}, UsageError, "at least two clients"),
        ({"budget": 0.0}, UsageError, "above 0"),
        ({"budget": -1.0}, UsageError, "above 0"),
        ({"budget": math.nan}, UsageError, "nan"),
        ({"budget": math.inf}, UsageError, "inf"),
        ({"rounds": 0}, UsageError, "rounds"),
        ({"rounds": 2.5}, UsageError, "whole number"),
        ({"batch_size": 0}, UsageError, "batch_size"),
        ({"sizes": [100, 5, 100]}, UsageError, "client 1 has 5 records"),
        ({"sizes": [100, 5, 9], "clients": ["a", "b", "c"]}, UsageError, "client 'b'"),
        ({"sizes": [100, 100]}, DataError, "3 whole numbers"),
        ({"sizes": [100, 10.5, 100]}, DataError, "10.5"),
        ({"sizes": [100, math.nan, 100]}, DataError, "nan"),
        ({"sizes": ["a", "b", "c"]}, DataError, "whole numbers"),
        ({"steps_per_round": 0}, DataError, "at least 1"),
        ({"steps_per_round": [1, 2]}, DataError, "3 whole numbers"),
        ({"budget_weights": [1.0, 0.0, 1.0]}, DataError, "above 0"),
        ({"budget_weights": [1.0, 1.0]}, DataError, "3 finite numbers"),
        ({"delta": 1e-5}, UsageError, "sizes"),
        ({"delta": 2.0, "sizes": [100, 100, 100]}, ConfigError, "delta"),
        ({"optimise": "publshed"}, UsageError, "did you mean 'published'"),
        ({"budget": 1e-320}, UsageError, "too far apart"),
        ({"budget": 1e306}, UsageError, "too far apart"),
        ({"leverage": [1e305, 1.0, 0.0]}, UsageError, "too far apart"),
    ],
)
def test_bad_input(change, error, words):
    given = {**FINE, **change}
    with pytest.raises(error, match=words) as caught:
        allocate(given.pop("leverage"), **given)
    assert isinstance(caught.value, FedauditError)
    assert "expected:" in str(caught.value)
    assert "got:" in str(caught.value)
    assert "try:" in str(caught.value)


@pytest.mark.parametrize("target", [3.0, 1.0, math.inf, math.nan])
def test_a_target_that_noise_cannot_reach(target):
    with pytest.raises(UsageError, match="largest leverage"):
        budget_for(target, [1.0, 3.0], rounds=10, batch_size=8)
