"""One address, one number; other addresses, other numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedaudit.errors import UsageError
from fedaudit.randomness import Seed

SEED = Seed(20240229)
N = 20_000
words = st.integers(0, 2**63 - 1)
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def reference(root: int, purpose: str, *coordinates: int) -> int:
    """The definition in plain integers: a chain of splitmix64 steps."""
    import hashlib

    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    key = root.to_bytes(8, "little")
    word = hashlib.blake2b(purpose.encode(), key=key, digest_size=8).digest()
    h = mix((int.from_bytes(word, "little") + golden) & mask)
    for c in coordinates:
        h = mix((h + (c + 1) * golden) & mask)
    return h


@quick
@given(st.integers(0, 2**64 - 1), st.text(max_size=9), st.lists(words, max_size=4))
def test_bits_follow_the_definition(root: int, purpose: str, coordinates: list[int]) -> None:
    assert int(Seed(root).bits(purpose, *coordinates)) == reference(root, purpose, *coordinates)


@quick
@given(st.lists(words, min_size=1, max_size=5), st.lists(words, min_size=1, max_size=5), words)
def test_any_shape_of_call_gives_the_same_bits(a: list[int], b: list[int], c: int) -> None:
    grid = SEED.bits("x", np.array(a)[:, None], np.array(b)[None, :], c)
    assert grid.shape == (len(a), len(b))
    for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b)):
        one = SEED.bits("x", x, y, c)
        assert one.shape == ()
        assert one == grid[i, j]
        assert SEED.key("x", x, y, c) == int(grid[i, j]) >> 1
    flat = SEED.bits("x", np.repeat(a, len(b)), np.tile(b, len(a)), np.full(len(a) * len(b), c))
    assert np.array_equal(flat.reshape(grid.shape), grid)


def test_the_dtype_of_a_coordinate_does_not_matter() -> None:
    expected = SEED.bits("x", np.arange(100))
    for dtype in (np.uint8, np.int32, np.uint32, np.int64, np.uint64):
        assert np.array_equal(SEED.bits("x", np.arange(100).astype(dtype)), expected)
    assert np.array_equal(SEED.bits("x", list(range(100))), expected)
    assert SEED.bits("x", np.array([], dtype=np.int64)).shape == (0,)


def test_known_values() -> None:
    """Golden values: changing them changes every run."""
    assert int(Seed(0).bits("batches", 1, 2, 3)) == 3793397701293139978
    assert Seed(7).key("shuffle", 1) == 7696498818785538466
    assert Seed(0).generator("noise", 4).integers(10**9) == 130953679


def test_uniform_lies_in_the_unit_interval_and_is_uniform() -> None:
    u = SEED.uniform("flat", np.arange(N))
    assert 0 <= u.min() < u.max() < 1
    counts = np.bincount((u * 50).astype(int), minlength=50)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    low = np.bincount((SEED.bits("flat", np.arange(N)) & np.uint64(63)).astype(int), minlength=64)
    assert stats.chisquare(low).pvalue > 1e-3


def test_every_bit_is_a_fair_coin() -> None:
    bits = np.unpackbits(SEED.bits("coins", np.arange(N)).view(np.uint8).reshape(N, 8), axis=1)
    z = (bits.mean(axis=0) - 0.5) * 2 * np.sqrt(N)
    assert np.abs(z).max() < 4.5  # 64 coins: beyond this once in 2,000 seeds


@pytest.mark.parametrize("axis", range(3))
def test_neighbours_along_any_coordinate_are_uncorrelated(axis: int) -> None:
    """Client, round and step: neighbouring addresses are independent."""
    shape = [27, 27, 27]
    grid = SEED.uniform("steps", *np.ix_(*(np.arange(n) for n in shape)))
    a = np.take(grid, range(26), axis=axis).reshape(-1)
    b = np.take(grid, range(1, 27), axis=axis).reshape(-1)
    assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a)) < 4
    # nor do two together: a chi2 test of independence on an 8 x 8 table
    table = np.histogram2d(a, b, bins=8)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_purposes_and_seeds_are_uncorrelated() -> None:
    base = SEED.uniform("noise", np.arange(N))
    for other in (
        SEED.uniform("noises", np.arange(N)),
        SEED.uniform("shuffle", np.arange(N)),
        Seed(SEED.root + 1).uniform("noise", np.arange(N)),
        SEED.uniform("noise", np.arange(N), 0),
        SEED.uniform("noise", 0, np.arange(N)),
    ):
        assert abs(np.corrcoef(base, other)[0, 1]) * np.sqrt(N) < 4


def test_addresses_do_not_collide() -> None:
    grid = SEED.bits("a", *np.ix_(np.arange(50), np.arange(50), np.arange(50)))
    others = [SEED.bits("b", np.arange(10_000)), SEED.bits("a", np.arange(50), np.arange(50))]
    everything = np.concatenate([grid.reshape(-1), *(o.reshape(-1) for o in others)])
    assert len(np.unique(everything)) == len(everything)
    assert SEED.bits("a", 1, 2) != SEED.bits("a", 2, 1)
    assert SEED.bits("a") != SEED.bits("a", 0)


def test_generators_differ_by_address_and_repeat() -> None:
    addresses = [("a", ()), ("b", ()), ("a", (0,)), ("a", (1,)), ("a", (0, 0)), ("a", (1, 0))]
    for make in (
        lambda seed, p, c: seed.generator(p, *c).standard_normal(4).tobytes(),
        lambda seed, p, c: tuple(
            float(v) for v in __import__("torch").rand(4, generator=seed.torch_generator(p, *c))
        ),
    ):
        drawn = [make(s, p, c) for s in (Seed(1), Seed(2)) for p, c in addresses]
        assert len(set(drawn)) == len(drawn)
        assert drawn == [make(s, p, c) for s in (Seed(1), Seed(2)) for p, c in addresses]


def test_what_would_share_an_address_is_refused() -> None:
    for coordinate in (1.5, np.array([0.0, 1.0]), "a", 2**64):
        with pytest.raises(UsageError, match="whole numbers"):
            SEED.bits("x", coordinate)
    for root in (-1, 2**64):
        with pytest.raises(UsageError, match="out of range"):
            Seed(root)
    assert Seed(np.int64(7)).bits("x") == Seed(7).bits("x")


def test_a_torch_generator_has_the_state_of_its_address() -> None:
    """The state is written whole: numpy's Mersenne twister with the same words draws the same."""
    import torch

    words = SEED.bits("noise", 3, 4, np.arange(624)) & np.uint64(0xFFFFFFFF)
    twin = np.random.MT19937()
    twin.state = {
        "bit_generator": "MT19937",
        "state": {"key": words.astype(np.uint32), "pos": 624},
    }
    ours = torch.rand(1500, generator=SEED.torch_generator("noise", 3, 4))
    theirs = (twin.random_raw(1500) & ((1 << 24) - 1)) / 2.0**24
    np.testing.assert_array_equal(ours.numpy(), theirs.astype(np.float32))


def test_many_generators_at_once_are_those_of_their_addresses() -> None:
    import torch

    many = SEED.torch_generators("noise", np.arange(5), 7)
    for c, generator in enumerate(many):
        alone = SEED.torch_generator("noise", c, 7)
        assert torch.equal(torch.randn(9, generator=generator), torch.randn(9, generator=alone))


def test_addresses_that_share_32_bits_do_not_share_their_noise() -> None:
    """torch's manual_seed keeps 32 bits: two of many addresses would draw alike."""
    import torch

    keys = (SEED.bits("noise", np.arange(200_000)) >> np.uint64(1)).astype(np.uint64)
    low = keys & np.uint64(0xFFFFFFFF)
    order = np.argsort(low, kind="stable")
    twins = np.flatnonzero(low[order][1:] == low[order][:-1])
    assert len(twins)
    a, b = int(order[twins[0]]), int(order[twins[0] + 1])
    first, second = SEED.torch_generators("noise", [a, b])
    assert not torch.equal(torch.randn(8, generator=first), torch.randn(8, generator=second))


def test_one_purpose_tells_nothing_of_another() -> None:
    """The chain can be inverted back to a purpose's first word, which is a hash."""
    begin = {p: reference(5, p) for p in ("weights", "dp_sgd")}
    assert begin["weights"] != begin["dp_sgd"]
    assert reference(6, "weights") ^ begin["weights"] != reference(6, "dp_sgd") ^ begin["dp_sgd"]
