"""One battery over every discrete mechanism: the law, the draws, the budgets and the decoders."""

import itertools
from dataclasses import fields

import numpy as np
import pytest
from scipy.stats import chisquare

from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.protections.local_dp import (
    GRR,
    MECHANISMS,
    OME,
    RAPPOR,
    BitRand,
    DBitFlip,
    Gaussian,
    Laplace,
    make,
)
from fedaudit.protections.local_dp.mechanism import LARGEST_TABLE

DISCRETE = {
    "grr": GRR(epsilon=1.2, alphabet=5),
    "rappor": RAPPOR(epsilon=1.5, alphabet=4),
    "rappor-bloom": RAPPOR(epsilon=1.5, alphabet=6, filter_bits=5, hashes=2),
    "rappor-fpq": RAPPOR(
        permanent_noise=0.4, one_from_zero=0.2, one_from_one=0.7, alphabet=5, filter_bits=6,
        hashes=2, hash_seed=3,
    ),
    "dbitflip": DBitFlip(epsilon=1.5, alphabet=4),
    "dbitflip-3": DBitFlip(epsilon=1.5, alphabet=5, buckets=3),
    "dbitflip-1": DBitFlip(epsilon=1.5, alphabet=4, buckets=1),
    "bitrand": BitRand(epsilon=3.0, bits=4),
    "ome": OME(epsilon=2.0, bits=4, alpha=3.0),
}  # fmt: skip
EVERY = pytest.mark.parametrize("m", DISCRETE.values(), ids=DISCRETE)


def vars_of(m):
    return {f.name: getattr(m, f.name) for f in fields(m)}


def columns(m, reports):
    """Which column of the exact table every report (n, ...) of one feature is."""
    at = {o.tobytes(): i for i, o in enumerate(m.outputs()[:, 0])}
    kind = m.outputs().dtype
    return np.array([at[np.ascontiguousarray(r, dtype=kind).tobytes()] for r in reports])


def p_value(counts, law):
    """Of counts against exact probabilities; columns that are hardly expected are one."""
    expected = law * counts.sum()
    small = expected < 5
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 1:
            counts, expected = counts[:-1], expected[:-1]
            expected = expected * counts.sum() / expected.sum()
    return chisquare(counts, expected).pvalue


@EVERY
def test_draws_follow_the_exact_table(m):
    table = m.transition()
    assert table.shape == (m.alphabet, len(m.outputs()))
    assert np.allclose(table.sum(axis=1), 1.0, atol=1e-12)
    for v in range(m.alphabet):
        rng = np.random.default_rng(100 + v)
        reports = m.perturb(np.full((20_000, 1), v), rng)[:, 0]
        counts = np.bincount(columns(m, reports), minlength=table.shape[1])
        assert p_value(counts, table[v]) > 1e-4, v


@EVERY
def test_a_test_of_this_size_would_see_a_small_error(m):
    """The chi-square above is no formality: probabilities that are 5 % off are refused."""
    rng = np.random.default_rng(7)
    law = m.transition()[0]
    wrong = law * np.where(np.arange(len(law)) % 2, 1.05, 0.95)
    wrong /= wrong.sum()
    counts = rng.multinomial(200_000, wrong)
    assert p_value(counts, law) < 1e-4


@EVERY
def test_likelihoods_are_the_logarithm_of_the_table(m):
    two = MECHANISMS[m.name](**{**vars_of(m), "features": 2})
    one = two.transition()  # of one feature; that of BitRand and OME depends on their number
    outputs = m.outputs()
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.integers(m.alphabet, size=2)
        i, j = rng.integers(len(outputs), size=2)
        report = np.stack([outputs[i, 0], outputs[j, 0]])[None]
        expected = np.log(one[x[0], i]) + np.log(one[x[1], j])
        assert two.log_likelihood(report, x)[0] == pytest.approx(expected)
        assert two.log_likelihood(report, x[None])[0] == pytest.approx(expected)


@EVERY
@pytest.mark.parametrize("features", [1, 2])
def test_the_worst_case_equals_brute_force_over_all_pairs_and_outputs(m, features):
    """Every two records, every report: nothing is assumed of where the maximum lies."""
    whole = MECHANISMS[m.name](**{**vars_of(m), "features": features})
    one = np.log(whole.transition())
    records = list(itertools.product(range(m.alphabet), repeat=features))
    best = 0.0
    for x, other in itertools.product(records, repeat=2):
        # reports of independent features: the largest ratio of a product over all outputs
        ratios = np.zeros(1)
        for a, b in zip(x, other, strict=True):
            ratios = np.add.outer(ratios, one[a] - one[b]).ravel()
        best = max(best, float(ratios.max()))
    assert whole.worst_case_epsilon() == pytest.approx(best, rel=1e-9)


@EVERY
def test_the_worst_pair_attains_the_worst_case(m):
    table = np.log(m.transition())
    x, other = (int(v[0]) for v in m.worst_pair())
    assert (table[x] - table[other]).max() == pytest.approx(m.worst_case_epsilon())


@EVERY
def test_unbiased_estimates_have_the_input_as_their_expectation(m):
    """By the exact law, not by draws."""
    seen = m.unbiased(m.outputs())[:, 0]  # (outputs, ...)
    mean = m.transition() @ seen
    codes = np.arange(m.alphabet)
    if isinstance(m, RAPPOR):
        expected = m.filters
    elif isinstance(m, BitRand | OME):
        expected = (codes[:, None] >> np.arange(m.bits - 1, -1, -1)) & 1
    else:
        expected = np.eye(m.alphabet)
    assert np.allclose(mean, expected, atol=1e-9)


@EVERY
@pytest.mark.parametrize("decoder", ["likelihood", "published"])
def test_decoding_follows_its_closed_form(m, decoder):
    if getattr(m, "filter_bits", None) is not None:
        with pytest.raises(UsageError, match="closed form"):
            m.decoded_transition(decoder=decoder)
        return
    table = m.decoded_transition(decoder=decoder)
    assert np.allclose(table.sum(axis=1), 1.0, atol=1e-12)
    for v in (0, m.alphabet - 1):
        rng = np.random.default_rng(5)
        reports = m.perturb(np.full((20_000, 1), v), rng)
        decoded = m.decode(reports, rng, decoder=decoder)[:, 0]
        assert p_value(np.bincount(decoded, minlength=m.alphabet), table[v]) > 1e-4


@EVERY
def test_drawing_decoded_values_at_once_has_the_same_law(m):
    rng = np.random.default_rng(11)
    for v in (0, m.alphabet - 1):
        codes = np.full(20_000, v)
        at_once = np.bincount(m.draw_decoded(codes, rng), minlength=m.alphabet)
        if getattr(m, "filter_bits", None) is None:
            assert p_value(at_once, m.decoded_transition()[v]) > 1e-4
        else:
            apart = np.bincount(m.decode(m.draw(codes, rng), rng), minlength=m.alphabet)
            pooled = (at_once + apart) / 2
            excess = ((at_once - pooled) ** 2 / np.maximum(pooled, 1)).sum() * 2
            assert excess < 4 * m.alphabet


@EVERY
def test_the_likeliest_code_is_decoded(m):
    """Against every code's own likelihood, over all outputs."""
    table = m.transition()
    best = table.max(axis=0)
    for s in range(3):
        decoded = m.decode(m.outputs(), np.random.default_rng(s))[:, 0]
        assert np.allclose(table[decoded, np.arange(len(best))], best)


@EVERY
def test_the_default_decoder_prefers_no_code(m):
    """Over all codes alike, a decoder without bias reports all codes alike (one-hot and GRR)."""
    if getattr(m, "filter_bits", None) is not None or isinstance(m, OME):
        pytest.skip("its own law favours codes")
    mean = m.decoded_transition().mean(axis=0)
    assert np.allclose(mean, 1 / m.alphabet)


@EVERY
def test_draws_take_any_shape_and_follow_the_seed(m):
    codes = np.random.default_rng(1).integers(m.alphabet, size=(3, 2, 4))
    a, b = (m.draw(codes, np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(a, b)
    assert a.shape[:3] == codes.shape
    assert m.draw_decoded(codes, np.random.default_rng(9)).shape == codes.shape
    records = MECHANISMS[m.name](**{**vars_of(m), "features": 4}).perturb(
        codes[0], np.random.default_rng(9)
    )
    assert records.shape[:2] == (2, 4)


SETTINGS = {
    "grr": {"alphabet": 3},
    "rappor": {"alphabet": 3},
    "dbitflip": {"alphabet": 3},
    "bitrand": {},
    "ome": {},
    "laplace": {},
    "gaussian": {},
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_epsilon_is_a_finite_number_above_zero(name, epsilon):
    with pytest.raises(ConfigError, match="epsilon"):
        make(name, {**SETTINGS[name], "epsilon": epsilon})


@pytest.mark.parametrize("name", ["grr", "rappor", "dbitflip"])
def test_an_alphabet_of_one_hides_nothing(name):
    with pytest.raises(ConfigError, match="nothing to hide"):
        make(name, {"epsilon": 1.0, "alphabet": 1})


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("epsilon", [1e-6, 900.0])
def test_extreme_epsilons_neither_overflow_nor_warn(name, epsilon):
    m = make(name, {**SETTINGS[name], "epsilon": epsilon, "features": 3})
    # with enough Gaussian noise delta alone is all that is spent
    assert (0.0 if m.delta else 1e-12) <= m.worst_case_epsilon() < np.inf
    x, other = m.worst_pair()
    report = m.perturb(np.stack([x, other]), np.random.default_rng(0))
    ratio = m.log_likelihood(report, x) - m.log_likelihood(report, other)
    assert np.isfinite(ratio).all()
    if not m.delta:
        assert np.abs(ratio).max() <= m.worst_case_epsilon() * (1 + 1e-9)


@pytest.mark.parametrize("name", MECHANISMS)
def test_claims_are_per_record(name):
    """r features at epsilon each claim r epsilon; BitRand and OME claim epsilon for all."""
    one, many = (
        make(name, {**SETTINGS[name], "epsilon": 2.0, "features": r}).claimed_epsilon
        for r in (1, 512)
    )
    assert one == pytest.approx(2.0)
    assert many == pytest.approx(2.0 if name in ("bitrand", "ome") else 1024.0)


def test_records_that_do_not_fit_are_refused():
    m = GRR(epsilon=1.0, alphabet=3, features=2)
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="codes"):
        m.perturb(np.zeros((4, 2)), rng)
    with pytest.raises(UsageError, match=r"\(n, 2\)"):
        m.perturb(np.zeros((4, 3), int), rng)
    for wrong in (-1, 3):
        with pytest.raises(DataError, match="alphabet"):
            m.perturb(np.full((4, 2), wrong), rng)
    with pytest.raises(UsageError, match="published"):
        m.decode(np.zeros((4, 2), int), rng, decoder="publish")
    with pytest.raises(ConfigError, match="features"):
        GRR(epsilon=1.0, alphabet=3, features=0)
    assert m.perturb(np.zeros((0, 2), int), rng).shape == (0, 2)


@pytest.mark.parametrize(
    "m",
    [
        GRR(epsilon=1.0, alphabet=1 << 12),
        RAPPOR(epsilon=1.0, alphabet=40),
        DBitFlip(epsilon=1.0, alphabet=40),
        BitRand(epsilon=1.0, bits=20),
    ],
    ids=lambda m: m.name,
)
def test_tables_that_would_not_fit_are_refused_with_another_way(m):
    assert m.alphabet**2 > LARGEST_TABLE or m.name in ("rappor", "dbitflip")
    with pytest.raises(UsageError, match="too large"):
        m.transition()


def test_making_a_mechanism_refuses_what_does_not_belong_to_it():
    with pytest.raises(ConfigError, match="unknown mechanism"):
        make("gr", {})
    with pytest.raises(ConfigError, match="no setting 'bits'"):
        make("grr", {"epsilon": 1.0, "alphabet": 2, "bits": 3})
    with pytest.raises(ConfigError, match="needs alphabet"):
        make("grr", {"epsilon": 1.0})


def test_every_mechanism_bears_its_name():
    assert set(MECHANISMS) == {"grr", "rappor", "dbitflip", "bitrand", "ome", "laplace", "gaussian"}
    assert all(c.name == name for name, c in MECHANISMS.items())
    assert {Laplace, Gaussian} <= set(MECHANISMS.values())
