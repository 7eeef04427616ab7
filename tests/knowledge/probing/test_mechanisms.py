"""Mechanisms as laws: what a client trains on, drawn by the hook itself and by its codebook."""

import math

import numpy as np
import pytest

from fedaudit.errors import DataError
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP

MECHANISMS = [
    LocalDP(mechanism="grr", epsilon=2.0, alphabet=5),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4, decoder="published"),
    LocalDP(mechanism="dbitflip", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0, decoder="published"),
    LocalDP(mechanism="ome", epsilon=4.0, bits=6, integer_bits=0),
]


@pytest.mark.parametrize("hook", MECHANISMS, ids=lambda h: f"{h.mechanism}-{h.decoder}")
def test_the_codebook_has_the_law_of_the_protection(hook):
    """What a client trains on, drawn by the hook itself, against the audit's codebook."""
    rng = np.random.default_rng(3)
    channel = channel_of(hook, 2)
    book = channel.codes
    x = np.array([[0.0, 0.7]])
    codes = book.encode(x).astype(np.int32)
    slow, _ = hook.randomise(np.repeat(x, 20_000, axis=0), rng)
    drawn = book.draw(np.repeat(codes, 20_000, axis=0).ravel(), rng)
    fast = (book.origin + book.step * book.level(drawn)).reshape(20_000, 2)
    for j in range(2):
        values = np.unique(np.concatenate([slow[:, j], fast[:, j]]).round(9))
        for v in values:
            a = np.mean(np.isclose(slow[:, j], v))
            b = np.mean(np.isclose(fast[:, j], v))
            assert abs(a - b) < 4.5 * math.sqrt(2 * max(a, b, 1e-4) / 20_000)
    levels = book.level(np.arange(book.alphabet, dtype=np.int32))
    assert book.transition.shape == (book.alphabet, book.alphabet)
    np.testing.assert_allclose(book.transition.sum(axis=1), 1.0)
    mean = book.transition[codes[0, 1]] @ (book.origin + book.step * levels)
    assert slow[:, 1].mean() == pytest.approx(mean, abs=4.5 * slow[:, 1].std() / math.sqrt(20_000))


def test_budgets_are_those_of_the_mechanism():
    channel = channel_of(LocalDP(mechanism="bitrand", epsilon=5.0), 512)
    assert channel.claimed_epsilon == 5.0
    assert channel.exact_epsilon == pytest.approx(9238.859, abs=1e-2)
    assert channel_of(LocalDP(mechanism="grr", epsilon=1.5), 10).exact_epsilon == 15.0


def test_mechanisms_without_codes_stay_functions():
    for hook in (
        LocalDP(mechanism="laplace", epsilon=1.0),
        LocalDP(mechanism="grr", epsilon=1.0, decoder="unbiased"),
    ):
        assert channel_of(hook, 3).codes is None


def test_values_outside_the_encoder_are_refused_or_clipped():
    with pytest.raises(DataError, match="outside the encoder's range"):
        channel_of(LocalDP(epsilon=1.0), 1).clean(np.array([[2.0]]))
    clipped = channel_of(LocalDP(epsilon=1.0, outside="clip"), 1).clean(np.array([[2.0]]))
    assert clipped.item() == 1.0


@pytest.mark.parametrize("mechanism", ["grr", "rappor", "dbitflip"])
def test_a_large_alphabet_is_drawn_by_its_symmetric_law(mechanism):
    hook = LocalDP(mechanism=mechanism, epsilon=16.0, alphabet=2000)
    book = channel_of(hook, 1).codes
    assert book.table is None
    assert book.transition is None
    codes = np.full(20_000, 700, dtype=np.int32)
    kept = (book.draw(codes, np.random.default_rng(1)) == 700).mean()
    x = np.full((1000, 1), 700 / 1999)
    slow, _ = hook.randomise(x, np.random.default_rng(2))
    read = (np.abs(slow - x) < 1e-9).mean()
    assert kept == pytest.approx(book.symmetric[1], abs=4.5 * math.sqrt(0.25 / 20_000))
    assert read == pytest.approx(kept, abs=4.5 * math.sqrt(0.25 / 1000))
    published = LocalDP(mechanism="rappor", alphabet=2000, decoder="published")
    assert channel_of(published, 1).codes is None
