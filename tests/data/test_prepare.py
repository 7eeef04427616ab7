from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.data.builtin import load
from fedaudit.data.dataset import Dataset
from fedaudit.data.prepare import is_table, split, standardise
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed


def made(y: list[int], **owners: tuple[str, ...]) -> Dataset:
    """Record i has the single feature i, so that records can be recognised."""
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Dataset(name="made", kind="features", x=x, y=np.array(y, dtype=np.int64), **owners)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=80),
    st.floats(0.15, 0.85),
    st.integers(0, 2**32),
)
def test_parts_are_disjoint_complete_and_stratified(y: list[int], f: float, root: int) -> None:
    data = made(y)
    if max(map(y.count, y)) == 1:
        return  # every record is the only one of its class: refused, as tested below
    train, test = split(data, test_fraction=f, seed=Seed(root))
    ids = np.concatenate([train.x[:, 0], test.x[:, 0]])
    assert np.array_equal(np.sort(ids), np.arange(len(y)))
    # classes of one record stay in training, and the others make up for them
    alone = sum(y.count(c) == 1 for c in set(y))
    for c in set(y):
        share = y.count(c) * f
        # one for rounding, one for the record that keeps a class in training
        assert abs((test.y == c).sum() - share) <= 2 + alone
        assert (train.y == c).any()


def test_split_is_a_function_of_the_seed() -> None:
    data = load("digits", seed=Seed(0))
    first, again, other = (split(data, test_fraction=0.2, seed=Seed(s))[1] for s in (1, 1, 2))
    assert np.array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)
    assert len(first) == round(0.2 * 1797)
    shares = np.bincount(first.y) / np.bincount(data.y)
    assert np.abs(shares - 0.2).max() < 0.01


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=10, max_size=60),
    st.integers(0, 99),
)
def test_a_person_never_stands_on_both_sides(rows: list[tuple[int, int]], root: int) -> None:
    data = made([c for c, _ in rows], person=tuple(f"p{p}" for _, p in rows))
    if len(set(data.person or ())) < 5:
        return
    try:
        train, test = split(data, test_fraction=0.4, seed=Seed(root))
    except DataError:
        return  # classes with one person each leave nothing to hold out
    assert not set(train.person or ()) & set(test.person or ())
    assert len(train) + len(test) == len(data)


def test_every_client_keeps_training_records() -> None:
    owners = tuple(f"c{i // 2}" for i in range(40))
    train, test = split(made([0] * 40, client=owners), test_fraction=0.5, seed=Seed(3))
    assert set(train.client or ()) == set(owners)
    assert len(test) == 20


def test_own_held_out_part_is_used_when_no_fraction_is_given() -> None:
    own = made([0, 1])
    data = replace(made([0, 1] * 10), test=own)
    train, test = split(data, test_fraction=None, seed=Seed(0))
    assert test is own
    assert len(train) == 20
    assert train.test is None
    train, test = split(data, test_fraction=0.25, seed=Seed(0))
    assert (len(train), len(test)) == (15, 5)
    train, test = split(made([0, 1] * 10), test_fraction=None, seed=Seed(0))
    assert (len(train), len(test)) == (16, 4)


def test_own_part_with_a_shared_person_is_refused() -> None:
    data = replace(made([0, 1], person=("a", "b")), test=made([0, 1], person=("b", "c")))
    with pytest.raises(DataError, match="'b' in both"):
        split(data, test_fraction=None, seed=Seed(0))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2, True])
def test_wrong_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="test_fraction"):
        split(made([0, 1] * 5), test_fraction=fraction, seed=Seed(0))


def test_too_small_to_split_is_refused() -> None:
    with pytest.raises(DataError, match="too small"):
        split(made([0]), test_fraction=0.5, seed=Seed(0))
    with pytest.raises(DataError, match="too small"):
        split(made([0, 1, 2]), test_fraction=0.5, seed=Seed(0))
    with pytest.raises(DataError, match="persons"):
        split(made([0] * 9, person=("a",) * 9), test_fraction=0.5, seed=Seed(0))


def test_standardise_uses_the_training_part_alone() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1e4, 3.0, size=(200, 3)).astype(np.float32)
    x[:, 1] = 0.1  # constant, and not a float32 number
    x[:, 2] = rng.random(200) < 0.03
    train = Dataset(
        name="t", kind="features", x=x, y=np.zeros(200, np.int64), columns=("a", "b", "c")
    )
    test = replace(train, x=x + np.float32(10.0))
    a, b = standardise(train, test)
    twin = (x[:, 0].astype(np.float64) - x[:, 0].mean(dtype=np.float64)) / x[:, 0].std(
        dtype=np.float64
    )
    np.testing.assert_allclose(a.x[:, 0], twin, atol=1e-5)
    np.testing.assert_allclose(a.x[:, 1], 0.0, atol=1e-6)
    np.testing.assert_array_equal(a.x[:, 2], x[:, 2])
    np.testing.assert_allclose(
        b.x[:, 0] - a.x[:, 0], 10.0 / x[:, 0].std(dtype=np.float64), rtol=1e-3
    )
    assert a.x.dtype == np.float32
    with pytest.raises(DataError, match="text"):
        standardise(load("docs", seed=Seed(0)), load("docs", seed=Seed(0)))


def test_only_tables_are_standardised_by_default() -> None:
    wanted = {
        n: is_table(load(n, seed=Seed(0))) for n in ("breast-cancer", "digits", "one-hot", "docs")
    }
    assert wanted == {"breast-cancer": True, "digits": False, "one-hot": False, "docs": False}
