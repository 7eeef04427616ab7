"""RAPPOR: published probabilities, Bloom filters, permanent and instantaneous responses."""

import math

import numpy as np
import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.protections.local_dp import RAPPOR
from fedaudit.stats.intervals import clopper_pearson

PUBLISHED = [  # epsilon, f, p1, p2
    (2.0, 0.2384058440442351, 0.8807970779778824, 0.8033880667585181),
    (4.0, 0.03597241992418312, 0.9820137900379085, 0.8950064145964934),
    (5.0, 0.013385701848569711, 0.9933071490757152, 0.9298962834548918),
]


@pytest.mark.parametrize(("epsilon", "f", "p1", "p2"), PUBLISHED)
def test_published_probabilities(epsilon, f, p1, p2):
    m = RAPPOR(epsilon=epsilon, alphabet=8)
    assert (m.f, m.p1, m.p2) == pytest.approx((f, p1, p2), rel=1e-12)
    # both stages together keep a bit with e^(eps/2) / (1 + e^(eps/2))
    whole = m.p1 * m.p2 + (1 - m.p1) * (1 - m.p2)
    assert whole == pytest.approx(1 / (1 + math.exp(-epsilon / 2)), rel=1e-12)
    assert m.report_one == pytest.approx(whole)


def test_a_report_spends_epsilon_and_the_permanent_response_twice_that():
    m = RAPPOR(epsilon=1.5, alphabet=8, features=3)
    assert m.worst_case_epsilon() == pytest.approx(4.5)
    assert m.permanent_epsilon() == pytest.approx(9.0)
    bloom = RAPPOR(epsilon=1.5, alphabet=50, features=3, filter_bits=64, hashes=4)
    assert bloom.claimed_epsilon == pytest.approx(4 * 4.5)
    assert bloom.worst_case_epsilon() == pytest.approx(4 * 4.5)
    assert bloom.permanent_epsilon() == pytest.approx(4 * 9.0)


def test_the_deployed_parameters_cost_what_their_authors_state():
    """f = 1/2, p = 1/2, q = 3/4, two hashes, 128 bits: 4 ln 3 for ever, 1.0743 per report."""
    m = RAPPOR(
        permanent_noise=0.5, one_from_zero=0.5, one_from_one=0.75, alphabet=100, filter_bits=128,
        hashes=2,
    )  # fmt: skip
    assert m.claimed_epsilon == pytest.approx(1.0743, abs=5e-5)
    assert m.worst_case_epsilon() == pytest.approx(m.claimed_epsilon)
    assert m.permanent_epsilon() == pytest.approx(4 * math.log(3))


def test_colliding_hashes_cost_less_than_the_bound():
    """A filter of two bits cannot differ in more than two, however many hashes there are."""
    m = RAPPOR(epsilon=1.0, alphabet=30, filter_bits=2, hashes=3)
    assert m.claimed_epsilon == pytest.approx(3.0)
    counts = (m.filters[:, None, :] != m.filters[None]).sum(axis=-1)
    assert m.worst_case_epsilon() == pytest.approx(counts.max() / 2)
    assert m.worst_case_epsilon() < m.claimed_epsilon
    x, other = (int(v[0]) for v in m.worst_pair())
    assert (m.filters[x] != m.filters[other]).sum() == counts.max()


def test_filters_are_public_and_set_at_most_one_bit_per_hash():
    a, b = (RAPPOR(epsilon=1.0, alphabet=40, filter_bits=16, hashes=3) for _ in range(2))
    assert np.array_equal(a.filters, b.filters)
    assert set(a.filters.sum(axis=1)) <= {1, 2, 3}
    other = RAPPOR(epsilon=1.0, alphabet=40, filter_bits=16, hashes=3, hash_seed=1)
    assert not np.array_equal(a.filters, other.filters)
    # every position is used about as often: 120 hashes on 16 places
    assert a.filters.sum(axis=0).min() >= 1
    assert np.array_equal(RAPPOR(epsilon=1.0, alphabet=3).filters, np.eye(3))


def test_reports_on_one_permanent_response_average_to_it_and_not_to_the_value():
    """Why the permanent response is drawn once: reports never reveal more than it."""
    m = RAPPOR(epsilon=1.0, alphabet=2)
    rng = np.random.default_rng(0)
    permanent = m.permanent_response(np.zeros((200, 1), int), rng)
    reports = np.mean([m.report(permanent, rng) for _ in range(400)], axis=0)
    assert np.array_equal(reports > 0.5, permanent == 1)
    kept = clopper_pearson(int((permanent[:, 0, 0] == 1).sum()), 200, 0.9999)
    assert kept.low < m.p1 < kept.high


def test_the_published_decoder_favours_low_values_and_ours_does_not():
    m = RAPPOR(epsilon=1.0, alphabet=16)
    published = m.decoded_transition(decoder="published").mean(axis=0)
    assert published[0] > 2 / 16
    assert published[-1] < 0.1 / 16
    assert np.allclose(m.decoded_transition().mean(axis=0), 1 / 16)
    # and it is right less often for high values than for low ones
    right = np.diag(m.decoded_transition(decoder="published"))
    assert right[0] > 10 * right[-1]


def test_a_bloom_filter_is_decoded_to_a_value_that_has_it():
    m = RAPPOR(epsilon=40.0, alphabet=20, filter_bits=64, hashes=3)
    rng = np.random.default_rng(3)
    codes = rng.integers(20, size=(50, 1))
    assert np.array_equal(m.decode(m.perturb(codes, rng), rng), codes)
    with pytest.raises(UsageError, match="one-hot"):
        m.decode(m.perturb(codes, rng), rng, decoder="published")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epsilon": 1.0, "hashes": 2}, "one hash"),
        ({"epsilon": 1.0, "filter_bits": 1}, "filter_bits"),
        ({"epsilon": 1.0, "hashes": 0}, "hashes"),
        ({"epsilon": 1.0, "permanent_noise": 0.5}, "two ways"),
        ({"permanent_noise": 0.5, "one_from_zero": 0.5}, "two ways"),
        ({}, "two ways"),
        ({"permanent_noise": 0.5, "one_from_zero": 0.8, "one_from_one": 0.7}, "out of range"),
        ({"permanent_noise": 1.0, "one_from_zero": 0.2, "one_from_one": 0.7}, "out of range"),
        ({"permanent_noise": 0.0, "one_from_zero": 0.0, "one_from_one": 0.7}, "out of range"),
        ({"permanent_noise": 0.0, "one_from_zero": 0.2, "one_from_one": 1.0}, "hides nothing"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, match):
    with pytest.raises(ConfigError, match=match):
        RAPPOR(alphabet=4, **wrong)
