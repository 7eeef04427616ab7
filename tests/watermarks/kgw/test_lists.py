"""Green lists: fair coin flips, the same token by token and as tables."""

import numpy as np
import pytest
import torch

from fedaudit.errors import UsageError
from fedaudit.watermarks.kgw import HashedLists, Marker, SelfHashedLists, lists_of
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


# -- lists of other software -----------------------------------------------------------------------


def published_green(key, table_seed, before, token, size):
    """Naive twin: one token, as WatermarkingConfig and lm-watermarking define `selfhash`."""
    table = torch.randperm(1_000_003, generator=torch.Generator().manual_seed(table_seed))
    window = torch.tensor([*before, token])
    pairs = key * (table[window] + 1) * (table[token] + 1)
    rng = torch.Generator().manual_seed(pairs.min().item() % (2**64 - 1))
    return token in torch.randperm(V, generator=rng)[:size].tolist()


@pytest.mark.parametrize(
    ("scheme", "context", "window", "table_seed"),
    [
        ("lm-watermarking selfhash", 1, 4, 2971215073),
        ("transformers selfhash", 3, 3, None),
        ("transformers selfhash", 1, 1, None),
    ],
)
def test_self_hashed_lists_are_the_published_ones(scheme, context, window, table_seed):
    key = 15485863
    lists = lists_of(scheme, V, 0.25, context)
    rng = np.random.default_rng(0)
    contexts, tokens = rng.integers(V, size=(30, lists.width)), rng.integers(V, size=30)
    found = lists.green([key], contexts, tokens)[0]
    before = [row[lists.width - (window - 1) :].tolist() for row in contexts]
    naive = [
        published_green(key, table_seed or key, b, int(t), V // 4)
        for b, t in zip(before, tokens, strict=True)
    ]
    assert found.tolist() == naive
    assert np.array_equal(lists.tables([key], contexts[:2])[0, 1, tokens[1]], found[1])


def test_a_self_hashed_marker_raises_green_candidates_alone():
    lists = SelfHashedLists(vocabulary=V)
    marker = Marker(lists=lists, key=7, delta=2.0)
    tokens, logits = torch.randint(V, (3, 6)), torch.randn(3, V)
    raised = (marker(tokens, logits) - logits).numpy()
    tables = lists.tables([7], tokens[:, -3:].numpy())[0]
    top = np.zeros((3, V), dtype=bool)
    np.put_along_axis(top, logits.topk(40).indices.numpy(), True, axis=1)
    assert np.allclose(raised, 2.0 * (tables & top), atol=1e-6)


def test_simple_1_is_lefthash_and_keys_count():
    one, other = (lists_of(s, V, 0.25, 1) for s in ("lm-watermarking simple_1", "hashed"))
    contexts = np.arange(5)[:, None]
    left = lists_of("transformers lefthash", V, 0.25, 1)
    assert np.array_equal(one.tables([3], contexts), left.tables([3], contexts))
    assert (one.tables([3], contexts) != other.tables([3], contexts)).any()
    assert (one.tables([3], contexts) != one.tables([4], contexts))[:, 1:].any()
