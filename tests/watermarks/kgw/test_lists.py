"""Green lists: fair coin flips, the same token by token and as tables."""

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.watermarks.kgw import HashedLists
from fedaudit.watermarks.kgw.lists import blocks

V = 60


def test_tables_and_single_tokens_agree():
    lists = HashedLists(vocabulary=V, width=2)
    contexts = np.array([[1, 2], [2, 1], [5, 5], [1, 2]])
    tables = lists.tables([7, 8, 2**63], contexts)
    assert tables.shape == (3, 4, V)
    for token in range(V):
        every = np.full(4, token)
        np.testing.assert_array_equal(
            lists.green([7, 8, 2**63], contexts, every), tables[:, :, token]
        )
    np.testing.assert_array_equal(tables[:, 0], tables[:, 3])
    assert (tables[:, 0] != tables[:, 1]).any(), "the order of a context counts"
    assert (tables[0] != tables[1]).any(), "the key counts"


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5])
def test_pairs_are_fair_and_independent_coin_flips(gamma):
    lists = HashedLists(vocabulary=V, gamma=gamma)
    contexts = np.arange(100)[:, None]
    t = lists.tables(list(range(200)), contexts).astype(float)
    n = t.size
    assert abs(t.mean() - gamma) < 4 * np.sqrt(gamma * (1 - gamma) / n)
    # neighbours along every axis (key, context, token) are uncorrelated
    for axis in range(3):
        low, high = np.delete(t, -1, axis), np.delete(t, 0, axis)
        r = np.mean((low - gamma) * (high - gamma)) / (gamma * (1 - gamma))
        assert abs(r) < 4 / np.sqrt(low.size)


def test_keys_come_in_blocks_that_fit(monkeypatch):
    monkeypatch.setattr("fedaudit.watermarks.kgw.lists._AT_ONCE", 10)
    keys = list(range(7))
    assert list(blocks(keys, 4)) == [[0, 1], [2, 3], [4, 5], [6]]
    assert list(blocks(keys, 0)) == [keys]
    assert list(blocks(keys, 100)) == [[k] for k in keys]


@pytest.mark.parametrize("bad", [{"gamma": 0.0}, {"gamma": 1.0}, {"width": 0}])
def test_lists_that_cannot_be_drawn_are_refused(bad):
    with pytest.raises(UsageError, match="green lists"):
        HashedLists(vocabulary=V, **bad)
