"""GRR, RAPPOR and dBitFlipPM against an independent implementation (multi-freq-ldpy).

The peer draws one report at a time; its counts are held against our exact tables, so that both the
parameters and the draws of either side are in question. `pip install multi-freq-ldpy` to run it.
"""

import numpy as np
import pytest

from fedaudit.protections.local_dp import GRR, RAPPOR, DBitFlip

pytestmark = pytest.mark.nightly

DRAWS = 40_000
K = 4


@pytest.fixture(scope="module")
def peer():
    pytest.importorskip("multi_freq_ldpy")
    import numba
    from multi_freq_ldpy.long_freq_est.dBitFlipPM import dBitFlipPM_Client
    from multi_freq_ldpy.long_freq_est.L_SUE import L_SUE_Client
    from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client

    @numba.njit
    def seed(number):
        np.random.seed(number)  # compiled code has a generator of its own

    seed(1)
    np.random.seed(1)
    return {"grr": GRR_Client, "rappor": L_SUE_Client, "dbitflip": dBitFlipPM_Client}


def p_value(counts, law):
    """Chi-square of counts against exact probabilities, rare columns taken together."""
    from scipy.special import gammaincc

    expected = law * counts.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] == 0:
        counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(gammaincc((len(counts) - 1) / 2, statistic / 2))


def counted(m, reports):
    at = {o.tobytes(): i for i, o in enumerate(m.outputs()[:, 0])}
    kind = m.outputs().dtype
    columns = [at[np.asarray(r, dtype=kind).tobytes()] for r in reports]
    return np.bincount(columns, minlength=len(at))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("value", [0, 3])
def test_grr(peer, epsilon, value):
    m = GRR(epsilon=epsilon, alphabet=K)
    reports = [peer["grr"](value, K, epsilon) for _ in range(DRAWS)]
    assert p_value(counted(m, reports), m.transition()[value]) > 1e-5


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("value", [0, 3])
def test_rappor(peer, epsilon, value):
    """Their first report at epsilon on a permanent response at 2 epsilon is our report."""
    m = RAPPOR(epsilon=epsilon, alphabet=K)
    reports = [peer["rappor"](value, K, 2 * epsilon, epsilon) for _ in range(DRAWS)]
    assert p_value(counted(m, reports), m.transition()[value]) > 1e-5


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("buckets", [1, 2, 4])
def test_dbitflip(peer, epsilon, buckets):
    m = DBitFlip(epsilon=epsilon, alphabet=K, buckets=buckets)
    reports = [peer["dbitflip"](1, K, K, buckets, epsilon) for _ in range(DRAWS)]
    assert p_value(counted(m, reports), m.transition()[1]) > 1e-5
