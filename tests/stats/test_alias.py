"""Alias tables reproduce their distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedaudit.stats.alias import Alias, BitWords, word_probabilities


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda p: sum(p) > 1e-3))
@settings(deadline=None)
def test_tables_hold_the_distribution(weights):
    p = np.array(weights) / sum(weights)
    table = Alias.of(p)
    held = table.keep.copy()
    np.add.at(held, table.other, 1.0 - table.keep)
    assert np.allclose(held / len(p), p, atol=1e-12)


def test_draws_follow_the_tables():
    p = np.array([0.5, 0.0, 0.3, 0.19, 0.01])
    seen = np.bincount(Alias.of(p).draw((100, 500), np.random.default_rng(0)).ravel(), minlength=5)
    assert seen[1] == 0
    assert chisquare(seen[p > 0], p[p > 0] * 50_000).pvalue > 1e-4


@pytest.mark.parametrize("bits", [1, 10, 11, 25])
def test_words_hold_every_bit_once(bits):
    sure = np.tile([0.0, 1.0], (bits, 1))
    assert BitWords.of(sure).draw((3,), np.random.default_rng(0)).tolist() == [(1 << bits) - 1] * 3
    first = np.tile([1.0, 0.0], (bits, 1))
    first[0] = [0.0, 1.0]
    assert BitWords.of(first).draw((2,), np.random.default_rng(0)).tolist() == [1 << (bits - 1)] * 2


def test_word_probabilities_are_products_of_bits():
    law = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert word_probabilities(law) == pytest.approx([0.18, 0.72, 0.02, 0.08])
