"""A null from unused secrets: calibrated, and refused where it is missing."""

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.watermarks.score import calibrate, check_prompts


def test_calibration_is_the_rank_and_the_distance_among_unused_secrets():
    rng = np.random.default_rng(0)
    null = rng.normal(3.0, 2.0, size=(2, 500))
    found = calibrate([3.0, 13.0], null)
    assert found.z_score == pytest.approx(
        [(v - row.mean()) / row.std(ddof=1) for v, row in zip([3.0, 13.0], null, strict=True)]
    )
    assert found.p_value[0] == (1 + (null[0] >= 3.0).sum()) / 501
    assert found.p_value[1] == 1 / 501
    assert found.unused == 500


def test_p_values_are_even_when_nothing_is_planted():
    rng = np.random.default_rng(1)
    # heavy tails and a scale of its own in each row: no normal distribution anywhere
    draws = rng.standard_t(3, size=(2000, 100)) * rng.uniform(0.1, 10, size=(2000, 1))
    p = calibrate(draws[:, 0], draws[:, 1:]).p_value
    for level in (0.01, 0.05, 0.2):
        spread = 4 * np.sqrt(level * (1 - level) / len(p))
        assert abs((p <= level).mean() - level) < spread + 0.01


def test_a_model_that_equals_its_reference_says_nothing():
    found = calibrate([0.0], np.zeros((1, 30)))
    assert found.z_score[0] == 0
    assert found.p_value[0] == 1


@pytest.mark.parametrize("shape", [(2, 19), (3, 100), (2,)])
def test_too_small_a_null_is_refused(shape):
    with pytest.raises(UsageError, match="null distribution"):
        calibrate([1.0, 2.0], np.zeros(shape))


@pytest.mark.parametrize("prompts", [[], [[1], []]])
def test_an_empty_set_of_prompts_is_refused(prompts):
    with pytest.raises(UsageError, match="there are no"):
        check_prompts(prompts)
