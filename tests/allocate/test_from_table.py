"""Allocations from a table: the published setting, and what the options do."""

import re

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.protections.noise_allocation import allocate as allocate_noise
from fedaudit.protections.noise_allocation import leverage, shares

NAMES = ("Zagreb", "Aachen", "Malmo", "Brno", "Turin", "Cork")
SIZES = np.array([9930, 3163, 2691, 1807, 655, 351])


def test_sizes_are_the_published_setting(allocated, table):
    found = allocated(table, size_column="n", rounds=100)
    assert found.clients == NAMES
    assert found.allocation.worst_case == pytest.approx(7.096461855, abs=1e-9)
    assert found.document["leverage"] == "size, to unit mean"
    first = found.document["clients"][0]
    assert first["client"] == "Zagreb"
    assert first["records"] == 9930
    assert first["published_before"] == pytest.approx(9.063117539, abs=1e-9)
    assert first["published_after"] == pytest.approx(7.096461855, abs=1e-9)
    assert [r["less_noise_than_uniform"] for r in found.document["clients"]] == [False] + [True] * 5


def test_options_reach_the_allocation(allocated, table):
    found = allocated(
        table,
        size_column="n",
        weights="size",
        optimise="dataset",
        steps_per_round="epoch",
        delta=1e-6,
        budget=0.5,
    ).allocation
    expected = allocate_noise(
        leverage.from_size(SIZES),
        rounds=10,
        batch_size=32,
        budget=0.5,
        budget_weights=shares(SIZES) ** 2,
        sizes=SIZES,
        delta=1e-6,
        steps_per_round=-(-SIZES // 32),
        optimise="dataset",
        accountant="rdp",
    )
    np.testing.assert_array_equal(found.sigma_squared, expected.sigma_squared)
    np.testing.assert_array_equal(found.epsilon, expected.epsilon)
    assert found.objective == "dataset"


def test_a_target_gives_its_budget(allocated, table):
    found = allocated(table, size_column="n", budget=None, target_worst_case=5.0)
    assert found.allocation.worst_case == pytest.approx(5.0, rel=1e-12)
    assert found.document["target_worst_case"] == 5.0
    assert found.document["budget"] == found.allocation.budget


def test_progress_is_reported_where_it_is_long(allocated, table, monkeypatch):
    seen = []
    allocated(table, size_column="n", progress=lambda *a: seen.append(a))
    assert seen == []
    monkeypatch.setattr("fedaudit.allocate.from_table.WORTH_A_BAR", 6)
    allocated(table, size_column="n", progress=lambda *a: seen.append(a))
    assert seen == [("epsilon", i, 6, "") for i in range(1, 7)] * 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"size_column": "n", "budget": None}, UsageError, "neither"),
        ({"size_column": "n", "target_worst_case": 5.0}, UsageError, "both"),
        ({"size_column": "n", "budget": -1.0}, UsageError, "above 0"),
        ({"size_column": "n", "batch_size": 400}, UsageError, "'Cork' has 351"),
        ({"group_column": "region", "weights": "size"}, UsageError, "`size_column`"),
        ({"group_column": "region", "steps_per_round": "epoch"}, UsageError, "`size_column`"),
        ({"group_column": "region", "delta": 1e-5}, UsageError, "sizes"),
        ({"size_column": "n", "window": 0}, UsageError, "window is out of range"),
    ],
)
def test_bad_input(refused, given, error, words):
    assert re.search(words, refused(error, **given))
