"""The probability on green tokens against slow twins."""

import numpy as np

from fedaudit.watermarks.kgw import HashedLists, green_mass

V = 60


def test_blocks_of_keys_change_nothing(monkeypatch):
    lists = HashedLists(vocabulary=V)
    keys = list(range(50))
    p = np.random.default_rng(0).dirichlet(np.ones(V), size=(2, 30)).astype(np.float32)
    contexts = np.arange(30)[:, None]
    mass = green_mass(lists, keys, contexts, p)
    monkeypatch.setattr("fedaudit.watermarks.kgw.lists._AT_ONCE", 1)
    np.testing.assert_allclose(green_mass(lists, keys, contexts, p), mass, atol=1e-7)
    slow = (p[:, None] * lists.tables(keys, contexts)).sum(-1).mean(-1) - 0.25
    np.testing.assert_allclose(mass, slow, atol=1e-6)
