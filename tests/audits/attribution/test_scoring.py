"""Differential scores, Stouffer over a client's rounds, z-scores against unused keys."""

import numpy as np
import pytest

from fedaudit.audits.attribution import scoring
from fedaudit.errors import UsageError


def test_stouffer_runs_over_the_rounds_a_client_took_part_in():
    z = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 4.0]])
    assert np.allclose(scoring.stouffer_by_client(z), [9 / np.sqrt(3), 6 / np.sqrt(2)])
    assert np.isnan(scoring.stouffer_by_client(np.array([[1.0, np.nan]]))).tolist() == [False, True]


def test_a_common_shift_of_the_score_cancels():
    """Lemma 12 of the paper."""
    rng = np.random.default_rng(0)
    rows, reference = rng.standard_normal((4, 3)), rng.standard_normal(3)
    assert np.allclose(
        scoring.differential(rows + 7.0, reference + 7.0), scoring.differential(rows, reference)
    )


def test_keys_are_standardised_against_unused_ones():
    z = scoring.standardised(np.arange(10.0).reshape(2, 5), 2)
    assert np.allclose(z[0], ([0, 1] - np.mean([2, 3, 4])) / np.std([2, 3, 4], ddof=1))
    with pytest.raises(UsageError, match="all score the same"):
        scoring.standardised(np.ones((1, 9)), 1)
