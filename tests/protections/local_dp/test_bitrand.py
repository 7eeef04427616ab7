"""BitRand: published flips, and a budget that is not the one that is claimed."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.protections.local_dp import BitRand

PUBLISHED = [  # epsilon, alpha, flips of the sign and of the last bit, exact budget; l=10, r=512
    (1.0, 0.41629440336782975, 0.29393211070940933, 0.505909082716831, 2207.1810810645784),
    (2.0, 0.21423976117347138, 0.17643942162330836, 0.5644741622887302, 3606.5060202542454),
    (5.0, 0.01975975722326754, 0.01937687487989518, 0.6401216380787592, 9238.859385886039),
]


@pytest.mark.parametrize(("epsilon", "alpha", "sign", "last", "exact"), PUBLISHED)
def test_published_flips_and_the_exact_budget(epsilon, alpha, sign, last, exact):
    m = BitRand(epsilon=epsilon, bits=10, features=512)
    assert m.alpha == pytest.approx(alpha, rel=1e-12)
    assert m.flip_probability[[0, -1]] == pytest.approx([sign, last], rel=1e-12)
    assert (np.diff(m.flip_probability) > 0).all()
    assert m.worst_case_epsilon() == pytest.approx(exact, rel=1e-12)
    assert m.claimed_epsilon == epsilon


def test_bits_that_flip_more_often_than_not_are_turned_back():
    m = BitRand(epsilon=5.0, bits=10, features=512)
    assert (m.flip_probability > 0.5).tolist() == [False] * 8 + [True] * 2
    assert m.reversed_bits == 0b11
    report = np.array([[0b1010101010] * 512])
    rng = np.random.default_rng(0)
    assert (m.decode(report, rng) == 0b1010101001).all()
    assert (m.decode(report, rng, decoder="published") == 0b1010101010).all()


@pytest.mark.parametrize("bits", [10, 20, 23])
def test_every_bit_flips_on_its_own_at_its_own_rate(bits):
    """Words are drawn some ten bits at a time: rates and pairs, within and across blocks."""
    m = BitRand(epsilon=4.0, bits=bits, features=8)
    rng = np.random.default_rng(2)
    codes = rng.integers(1 << bits, size=(25_000, 8))
    flips = codes ^ m.perturb(codes, rng)
    seen = (flips.reshape(-1, 1) >> np.arange(bits - 1, -1, -1)) & 1
    n = len(seen)
    p = m.flip_probability
    assert (np.abs(seen.mean(axis=0) - p) < 4.5 * np.sqrt(p * (1 - p) / n)).all()
    together = np.corrcoef(seen.T)[~np.eye(bits, dtype=bool)]
    assert np.abs(together).max() < 5 / np.sqrt(n)


def test_bits_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="bits"):
        BitRand(epsilon=1.0, bits=0)
    with pytest.raises(ConfigError, match="bits"):
        BitRand(epsilon=1.0, bits=64)


def test_a_bit_that_is_a_fair_coin_has_no_unbiased_estimate():
    m = BitRand(epsilon=1.0, bits=1)  # alpha = 1
    assert m.one_from_one == pytest.approx(0.5)
    with pytest.raises(UsageError, match="fair coin"):
        m.unbiased(np.zeros((3, 1), np.int64))
    assert np.isfinite(BitRand(epsilon=2.0, bits=1).unbiased(np.zeros((3, 1), np.int64))).all()
