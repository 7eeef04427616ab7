"""Generalised randomised response: published probabilities."""

import math

import pytest

from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp import GRR


@pytest.mark.parametrize(("epsilon", "alphabet"), [(6.0, 100), (0.5, 2), (3.0, 64)])
def test_probabilities_are_those_of_the_definition(epsilon, alphabet):
    m = GRR(epsilon=epsilon, alphabet=alphabet)
    total = math.exp(epsilon) + alphabet - 1
    assert m.truth == pytest.approx(math.exp(epsilon) / total)
    assert m.lie == pytest.approx(1 / total)


def test_published_size():
    """512 features at 5 each cost 2,560, not 5."""
    m = GRR(epsilon=5.0, alphabet=100, features=512)
    assert m.claimed_epsilon == m.worst_case_epsilon() == 2560.0


@pytest.mark.parametrize("epsilon", ["1", None, True, [1.0], 1j])
def test_an_epsilon_that_is_no_number_is_refused_in_words(epsilon):
    with pytest.raises(ConfigError, match="epsilon is out of range"):
        GRR(epsilon=epsilon, alphabet=4)
