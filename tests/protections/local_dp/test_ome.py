"""OME: published probabilities, and a budget in which epsilon hardly counts."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp import OME


def test_published_probabilities():
    m = OME(epsilon=5.0, bits=10, features=512)
    assert m.one_from_one[::2] == pytest.approx(100 / 101)
    assert m.one_from_one[1::2] == pytest.approx(1 / (1 + 10**6))
    share = np.exp(5.0 / 5120)
    assert 1 - m.one_from_zero == pytest.approx(100 * share / (1 + 100 * share))


def test_the_exact_budget_is_not_the_claimed_one_and_hardly_depends_on_it():
    of = {e: OME(epsilon=e, bits=10, features=512).worst_case_epsilon() for e in (0.5, 5.0, 10.0)}
    assert of[5.0] == pytest.approx(35_342.24, abs=0.01)
    assert max(of.values()) - min(of.values()) < 15
    assert OME(epsilon=5.0, bits=10, features=512).claimed_epsilon == 5.0


def test_an_odd_number_of_bits_is_refused():
    with pytest.raises(ConfigError, match="even"):
        OME(epsilon=1.0, bits=9)


@pytest.mark.parametrize("alpha", [0.0, -3.0, float("inf")])
def test_alpha_is_a_finite_number_above_zero(alpha):
    with pytest.raises(ConfigError, match="alpha"):
        OME(epsilon=1.0, alpha=alpha)
