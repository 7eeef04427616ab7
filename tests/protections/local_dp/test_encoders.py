"""Encoders: what they keep, what they lose, and what they refuse."""

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.protections.local_dp import BitRand
from fedaudit.protections.local_dp.bits import split_bits
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, OneHot, Patches, Quantiser

RANGED = [Interval(), Quantiser(alphabet=5), FloatBits(bits=8, integer_bits=0)]


# -- floats to bits -------------------------------------------------------------------------------


def test_bits_of_a_known_number():
    """l = 10, m = 5: sign, five integer bits, four of the fraction; -5.25 is 1 00101 0100."""
    encoder = FloatBits(bits=10, integer_bits=5)
    code = encoder.encode([-5.25, 5.25, 0.03]).values
    assert [f"{c:010b}" for c in code] == ["1001010100", "0001010100", "0000000000"]
    assert encoder.decode(code).tolist() == [-5.25, 5.25, 0.0]
    assert split_bits(code[0], 10).tolist() == [1, 0, 0, 1, 0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(("bits", "integer_bits"), [(10, 5), (20, 5), (20, 4), (2, 1), (9, 0)])
def test_numbers_come_back_within_half_a_step_with_their_sign(bits, integer_bits):
    encoder = FloatBits(bits=bits, integer_bits=integer_bits)
    x = np.random.default_rng(0).uniform(encoder.low, encoder.high, size=1000)
    back = encoder.decode(encoder.encode(x).values)
    assert np.abs(back - x).max() <= 0.5 / encoder.scale + 1e-12
    assert np.array_equal(np.signbit(back), np.signbit(x))


def test_every_code_decodes_to_a_number_that_encodes_to_it():
    """So the worst pair of codes is a pair of real records: no code is out of reach."""
    encoder = FloatBits(bits=8, integer_bits=3)
    codes = np.arange(256)
    assert np.array_equal(encoder.encode(encoder.decode(codes)).values, codes)
    m = BitRand(epsilon=2.0, bits=8, features=3)
    for record in m.worst_pair():
        assert np.array_equal(encoder.encode(encoder.decode(record)).values, record)


def test_overflow_is_clipped_and_leaves_the_neighbours_alone():
    encoder = FloatBits(bits=10, integer_bits=5, outside="clip")
    encoded = encoder.encode([1.0, 99.0, -99.0, 2.0])
    assert encoded.clipped == 2
    assert encoder.decode(encoded.values).tolist() == [1.0, encoder.high, encoder.low, 2.0]
    assert encoder.high == 511 / 16


def test_floats_of_unbiased_bits_are_unbiased():
    """By the exact law of BitRand: the mean over all reports of the estimate is the number."""
    encoder, m = FloatBits(bits=6, integer_bits=2), BitRand(epsilon=2.0, bits=6)
    estimates = encoder.from_bits(m.unbiased(m.outputs()))[:, 0]
    assert m.transition() @ estimates == pytest.approx(encoder.decode(np.arange(64)), abs=1e-9)
    assert encoder.from_bits(split_bits(np.arange(64), 6)) == pytest.approx(
        encoder.decode(np.arange(64))
    )


def test_bits_join_to_what_was_split():
    codes = np.random.default_rng(1).integers(1 << 20, size=(3, 4))
    assert np.array_equal(split_bits(codes, 20) @ (1 << np.arange(19, -1, -1)), codes)


@pytest.mark.parametrize("wrong", [{"bits": 1}, {"bits": 60}, {"bits": 8, "integer_bits": 8}])
def test_bits_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match="bits"):
        FloatBits(**wrong)


# -- levels and bounds ----------------------------------------------------------------------------


@pytest.mark.parametrize("alphabet", [2, 3, 16])
def test_levels_are_evenly_spaced_with_both_bounds_among_them(alphabet):
    q = Quantiser(alphabet=alphabet, low=-1.0, high=3.0)
    assert q.levels[[0, -1]].tolist() == [-1.0, 3.0]
    x = np.random.default_rng(0).uniform(-1, 3, size=(50, 20))
    codes = q.encode(x).values
    nearest = np.abs(x[..., None] - q.levels).argmin(axis=-1)
    assert np.array_equal(codes, nearest)
    assert np.array_equal(q.encode(q.levels).values, np.arange(alphabet))


@pytest.mark.parametrize("encoder", RANGED, ids=lambda e: type(e).__name__)
def test_values_outside_are_refused_or_clipped_with_a_count(encoder):
    x = np.array([[0.5, 1.7], [-3.0, 0.25]])
    with pytest.raises(DataError, match="outside") as caught:
        encoder.encode(x)
    assert "of 4 outside" in caught.value.got
    clipping = type(encoder)(**{**vars(encoder), "outside": "clip"})
    encoded = clipping.encode(x)
    assert encoded.clipped == 2
    back = clipping.decode(encoded.values)
    assert back[0, 1] == clipping.high
    assert back[1, 0] == clipping.low
    assert encoder.encode([[0.5, 0.25]]).clipped == 0


@pytest.mark.parametrize("encoder", RANGED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("outside", ["refuse", "clip"])
def test_what_is_not_finite_is_refused_even_where_values_are_clipped(encoder, bad, outside):
    kind = type(encoder)(**{**vars(encoder), "outside": outside})
    with pytest.raises(DataError, match="not finite"):
        kind.encode([0.5, bad])


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="nothing to hide"):
        Quantiser(alphabet=1)
    with pytest.raises(ConfigError, match="bounds"):
        Quantiser(alphabet=2, low=1.0, high=0.0)
    with pytest.raises(ConfigError, match="refuse"):
        Interval(outside="drop")


# -- tokens and patches ---------------------------------------------------------------------------


def test_tokens_are_one_hot_and_come_back():
    tokens = np.array([[0, 2], [4, 1]])
    rows = OneHot(vocabulary=5).encode(tokens)
    assert rows.shape == (2, 2, 5)
    assert np.array_equal(rows, np.eye(5, dtype=np.float32)[tokens])
    assert np.array_equal(OneHot(vocabulary=5).decode(rows), tokens)
    for wrong in (-1, 5):
        with pytest.raises(DataError, match="vocabulary"):
            OneHot(vocabulary=5).encode([wrong])
    with pytest.raises(UsageError, match="whole numbers"):
        OneHot(vocabulary=5).encode([0.5])


def test_patches_are_those_of_a_convolution():
    """Projected patches equal a strided convolution with the same weights, as in a ViT."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 3, 8, 12)).astype(np.float32)
    weight = rng.normal(size=(5, 3, 4, 4)).astype(np.float32)
    position = rng.normal(size=(6, 5)).astype(np.float32)
    patches = Patches(size=4)
    ours = patches.embed(images, weight.reshape(5, -1).T, position)
    theirs = torch.nn.functional.conv2d(
        torch.from_numpy(images), torch.from_numpy(weight), stride=4
    )
    assert np.allclose(ours, theirs.flatten(2).transpose(1, 2).numpy() + position, atol=1e-4)


def test_patches_come_back_as_the_image():
    images = np.random.default_rng(1).random((2, 3, 8, 12))
    vectors = Patches(size=4).encode(images)
    assert vectors.shape == (2, 6, 48)
    assert np.array_equal(Patches(size=4).decode(vectors, height=8, width=12), images)
    with pytest.raises(DataError, match="multiples of 5"):
        Patches(size=5).encode(images)
    with pytest.raises(UsageError, match="not the patches"):
        Patches(size=4).decode(vectors, height=8, width=8)
    with pytest.raises(UsageError, match="weight"):
        Patches(size=4).embed(images, np.zeros((47, 2)))
    with pytest.raises(UsageError, match="position"):
        Patches(size=4).embed(images, np.zeros((48, 2)), np.zeros((7, 2)))
