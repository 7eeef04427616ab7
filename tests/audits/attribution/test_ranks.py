"""Ranks are exact, tails follow Student, and `needed` is the score that reaches a level."""

import numpy as np
import pytest

from fedaudit.audits.attribution import ranks


def test_p_values_by_rank_and_by_tail(carried):
    null = np.arange(99.0)
    found = ranks.p_values(np.concatenate([[50.0, 98.0, 1000.0], null])[None], 3)
    assert np.allclose(found.p[0, :2], [(1 + 49) / 100, 2 / 100])
    assert np.isclose(found.p[0, 2], carried(1000.0, null))
    assert found.tail.tolist() == [[False, False, True]]
    assert found.floor == 0.01


def test_few_unused_keys_or_such_that_score_alike_carry_no_tail():
    few = ranks.p_values(np.r_[1000.0, np.arange(49.0)][None], 1)
    assert few.p[0, 0] == few.floor
    assert not few.tail.any()
    alike = ranks.p_values(np.r_[1000.0, np.zeros(98), -1.0][None], 1)
    assert alike.p[0, 0] == alike.floor


@pytest.mark.parametrize("unused", [59, 299, 999])
@pytest.mark.parametrize("level", [0.02, 0.05 / 30, 0.05 / 750])
def test_what_is_needed_is_where_a_p_value_reaches_the_level(unused, level):
    rng = np.random.default_rng(0)
    null = rng.laplace(size=(5, unused))
    far = ranks.needed(np.concatenate([np.zeros((5, 2)), null], axis=1), 2, level)
    score = null.mean(axis=1) + far * null.std(axis=1, ddof=1)
    for step, reached in ((1e-6, True), (-1e-6, False)):
        own = np.concatenate([(score + step)[:, None], null], axis=1)
        assert ((ranks.p_values(own, 1).p[:, 0] <= level) == reached).all()
    assert np.isinf(ranks.needed(np.ones((1, 40)) * np.arange(40), 0, level)).all() == (
        level < 1 / 41
    )


def test_the_worse_of_two_keeps_what_belongs_to_it():
    one, other = (ranks.p_values(np.array([[own, *range(99)]]), 1) for own in (98.0, 50.0))
    both = one.worse(other, but=None)
    assert (both.p[0, 0], both.distance[0, 0]) == (other.p[0, 0], other.distance[0, 0])
    assert one.worse(other, but=0).p[0, 0] == one.p[0, 0]
    assert np.isclose(one.distance[0, 0], (98 - 49) / np.arange(99).std(ddof=1))
