"""The budget equation is solved to the last digits, whatever the leverages."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.protections.noise_allocation import solver
from fedaudit.protections.noise_allocation.solver import solve, spent, variances

A = 100 / (2 * 32**2)


def residual(leverage, coefficient, budget):
    root = solve(leverage, coefficient, budget)
    return abs(spent(variances(leverage, coefficient, root)) / budget - 1)


def exact_gap(leverage, coefficient, budget, digits=60):
    """The naive twin: bisection of y = K - max l with sixty digits."""
    with localcontext() as context:
        context.prec = digits
        c = [Decimal(v) for v in np.broadcast_to(coefficient, len(leverage)).tolist()]
        ell = [Decimal(v) for v in leverage.tolist()]
        top, u = max(ell), Decimal(budget)
        low, high = Decimal(0), sum(c) / u
        for _ in range(190):
            y = (low + high) / 2
            total = sum(a / (y + top - v) for a, v in zip(c, ell, strict=True))
            low, high = (y, high) if total > u else (low, y)
        return (low + high) / 2


def by_bisection(leverage, budget):
    """What the paper describes: bisection of K in floating-point numbers."""
    low = leverage.max()
    high = low + A * len(leverage) / budget
    while low < (middle := (low + high) / 2) < high:
        if np.sum(A / (middle - leverage)) > budget:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.parametrize("budget", [1e-4, 0.05, 3.0, 1e6])
@pytest.mark.parametrize("shape", ["spread", "dominant", "ties", "weighted"])
def test_equals_sixty_digits(shape, budget):
    rng = np.random.default_rng(5)
    leverage = rng.lognormal(sigma=2, size=12)
    coefficient = A
    if shape == "dominant":
        leverage[3] = 1e7
    if shape == "ties":
        leverage[:6] = leverage.max()
    if shape == "weighted":
        coefficient = rng.lognormal(sigma=2, size=12)
    exact = exact_gap(leverage, coefficient, budget)
    found = solve(leverage, coefficient, budget)
    assert abs(Decimal(found.gap) / exact - 1) < Decimal("4e-15")
    assert found.worst_case == pytest.approx(float(exact + Decimal(leverage.max())), rel=1e-15)


def test_equals_bisection_where_bisection_can():
    leverage = np.random.default_rng(0).exponential(size=500)
    for budget in (0.01, 0.5, 10.0):
        found = solve(leverage, A, budget).worst_case
        assert found == pytest.approx(by_bisection(leverage, budget), rel=1e-13)


def test_one_dominant_client_keeps_all_digits_where_bisection_keeps_two():
    leverage = np.random.default_rng(1).random(1000)
    leverage[500] = 1000.0
    budget = 5e9
    assert residual(leverage, A, budget) < 1e-14
    k = by_bisection(leverage, budget)
    assert abs(np.sum(A / (k - leverage)) / budget - 1) > 1e-3


@pytest.mark.parametrize("n", [solver.BLOCK, solver.BLOCK + 1, 5 * solver.BLOCK + 17, 1_000_000])
@pytest.mark.parametrize("per_client", [1e-6, 0.01, 1e3])
def test_many_clients_in_blocks(n, per_client):
    rng = np.random.default_rng(n)
    leverage = rng.lognormal(sigma=1.5, size=n)
    found = solve(leverage, A, n * per_client)
    assert residual(leverage, A, n * per_client) < 1e-14
    assert found.passes <= 6
    # the order of clients, hence of blocks, does not matter
    again = solve(np.sort(leverage), A, n * per_client)
    assert again.gap == pytest.approx(found.gap, rel=1e-14)


def test_one_coefficient_for_all_equals_as_many_equal_ones():
    for n in (50, solver.BLOCK + 50):
        leverage = np.random.default_rng(2).random(n)
        one, many = solve(leverage, A, 2.0), solve(leverage, np.full(n, A), 2.0)
        assert one.gap == pytest.approx(many.gap, rel=1e-14)


numbers = st.floats(min_value=0, max_value=1e9, allow_subnormal=False)


@settings(max_examples=300, deadline=None)
@given(
    leverage=st.lists(numbers, min_size=2, max_size=40),
    coefficients=st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=40, max_size=40),
    scalar=st.booleans(),
    budget=st.floats(min_value=1e-9, max_value=1e9),
)
def test_any_input_meets_the_budget_within_known_limits(leverage, coefficients, scalar, budget):
    ell = np.array(leverage)
    c = coefficients[0] if scalar else np.array(coefficients[: ell.size])
    root = solve(ell, c, budget)
    each = np.broadcast_to(c, ell.shape)
    total = math.fsum((each / (root.gap + (ell.max() - ell))).tolist())
    assert abs(total / budget - 1) < 1e-14
    assert each[ell.argmax()] / budget * (1 - 1e-14) <= root.gap
    assert root.gap <= each.sum() / budget * (1 + 1e-14)


@settings(max_examples=100, deadline=None)
@given(
    leverage=st.lists(numbers, min_size=2, max_size=20),
    budget=st.floats(min_value=1e-6, max_value=1e6),
    factor=st.floats(min_value=1.001, max_value=100),
)
def test_a_larger_budget_lowers_the_worst_case(leverage, budget, factor):
    ell = np.array(leverage)
    assert solve(ell, A, budget * factor).gap < solve(ell, A, budget).gap
