"""Samples follow the distribution of their tables."""

import numpy as np
import pytest

from fedaudit.audits.active_membership.channel import Codebook
from fedaudit.audits.active_membership.draws import (
    BLOCK,
    BitSampler,
    SymmetricSampler,
    TableSampler,
    random_words,
)
from fedaudit.errors import UsageError


def law_of(keep, other):
    """The distribution that alias tables give."""
    m = len(keep)
    out = keep.copy()
    np.add.at(out, other, 1.0 - keep)
    return out / m


@pytest.mark.parametrize("bits", [1, 4, 10, 11, 20])
def test_words_are_drawn_bit_by_bit_law(bits, rng):
    """The stored tables equal the product distribution of the bits to 2^-30."""
    p = rng.uniform(0.0, 1.0, bits)
    p[0] = 0.0  # never
    flips = BitSampler.of(p)
    first = 0
    for table, width in zip(flips.tables, flips.widths, strict=True):
        coin = (table >> np.uint32(BLOCK)).astype(np.float64) / 2.0 ** (32 - BLOCK)
        other = (table & np.uint32((1 << BLOCK) - 1)).astype(np.int64)
        law = law_of(coin, other)
        expected = np.ones(1)
        for q in p[first : first + width]:
            expected = np.outer(expected, (1 - q, q)).ravel()
        np.testing.assert_allclose(law[: 1 << width], expected, atol=2.0**-30)
        assert law[1 << width :].sum() == 0.0
        first += width
    words = flips.draw(60_000, rng)
    seen = ((words[:, None] >> np.arange(bits - 1, -1, -1).astype(np.uint32)) & 1).mean(axis=0)
    assert (np.abs(seen - p) <= 4.5 * np.sqrt(p * (1 - p) / 60_000) + 1e-12).all()


def test_parts_of_a_word_are_its_bits(rng):
    flips = BitSampler.of(np.full(20, 0.5))
    assert flips.widths == (10, 10)
    assert flips.draw_part(1, 1000, rng).max() < 1 << 10


def test_rows_follow_the_table(rng):
    table = rng.dirichlet(np.full(5, 0.4), size=7)
    table[3] = [0, 0, 1, 0, 0]
    codes = np.repeat(np.arange(7, dtype=np.int32), 30_000)
    drawn = TableSampler.of(table).draw(codes, rng).reshape(7, -1)
    for row, law in zip(drawn, table, strict=True):
        seen = np.bincount(row, minlength=5) / len(row)
        assert (np.abs(seen - law) <= 4.5 * np.sqrt(law * (1 - law) / len(row)) + 1e-12).all()


def test_random_words_are_as_many_as_asked_for(rng):
    assert [len(random_words(n, rng)) for n in (0, 1, 2, 7)] == [0, 1, 2, 7]


def test_a_codebook_has_one_law_of_a_fitting_size():
    with pytest.raises(UsageError, match="one law"):
        Codebook(step=1.0, encode=np.asarray)
    with pytest.raises(UsageError, match="too many bits"):
        Codebook(step=1.0, encode=np.asarray, ones=np.full((2, 31), 0.5))


def test_a_symmetric_law_needs_no_table(rng):
    made = SymmetricSampler(5000, 0.6)
    codes = rng.integers(0, 5000, 40_000).astype(np.int32)
    out = made.draw(codes, rng)
    assert out.dtype == np.int32
    assert out.min() >= 0
    assert out.max() < 5000
    assert (out == codes).mean() == pytest.approx(0.6, abs=4.5 * np.sqrt(0.24 / 40_000))
    small = SymmetricSampler(4, 0.4).draw(np.full(40_000, 2, dtype=np.int32), rng)
    share = np.bincount(small, minlength=4) / 40_000
    np.testing.assert_allclose(share, [0.2, 0.2, 0.4, 0.2], atol=4.5 * np.sqrt(0.24 / 40_000))
