"""Counting without repetition, and the z-scores of what was counted."""

import numpy as np
import pytest
import torch

from fedaudit.watermarks.kgw import (
    HashedLists,
    Marker,
    PermutedLists,
    TokenPairs,
    pairs_of,
    z_scores,
)

V = 60


def test_distinct_pairs_match_a_plain_set():
    rng = np.random.default_rng(0)
    own = TokenPairs(contexts=rng.integers(0, 6, (200, 1)), tokens=rng.integers(0, 6, 200))
    prompt = TokenPairs(contexts=rng.integers(0, 6, (10, 1)), tokens=rng.integers(0, 6, 10))

    def as_set(p):
        return {tuple(map(int, row)) for row in p.whole()}

    found = own.distinct(without=prompt)
    assert as_set(found) == as_set(own) - as_set(prompt)
    assert len(found) == len(as_set(found))
    assert as_set(own.distinct()) == as_set(own)


def test_pairs_of_text_start_where_asked():
    found = pairs_of([[1, 2, 3, 4], [5, 6]], 2, [3, 0])
    np.testing.assert_array_equal(found.whole(), [[2, 3, 4]])
    assert len(pairs_of([], 1)) == 0


def test_repetition_fakes_a_mark_and_counting_once_does_not():
    rng = np.random.default_rng(0)
    lists = HashedLists(vocabulary=V)
    loop = rng.integers(0, V, 12)
    texts = [np.tile(loop, 20).tolist(), rng.integers(0, V, 100).tolist()]
    keys = list(range(2000))
    every = pairs_of(texts, 1)
    repeated, once = z_scores(lists, keys, every), z_scores(lists, keys, every.distinct())
    assert repeated.std() > 3
    assert (repeated > 4).mean() > 0.05, "a clean text passes the published threshold"
    assert once.std() == pytest.approx(1.0, abs=0.07)
    assert abs(once.mean()) < 0.1
    assert (once > 4).sum() <= 2


def test_z_score_is_the_published_formula():
    lists = HashedLists(vocabulary=V)
    pairs = pairs_of([list(range(V))], 1)
    green = int(lists.green([3], pairs.contexts, pairs.tokens).sum())
    total = len(pairs)
    expected = (green - 0.25 * total) / (total * 0.25 * 0.75) ** 0.5
    assert z_scores(lists, [3], pairs)[0] == pytest.approx(expected)
    assert z_scores(lists, [3, 4], pairs_of([], 1)).tolist() == [0, 0]


def test_blocks_of_keys_change_nothing(monkeypatch):
    lists = HashedLists(vocabulary=V)
    pairs = pairs_of([list(range(V))], 1)
    keys = list(range(50))
    whole = z_scores(lists, keys, pairs)
    monkeypatch.setattr("fedaudit.watermarks.kgw.lists._AT_ONCE", 1)
    np.testing.assert_array_equal(z_scores(lists, keys, pairs), whole)


@pytest.mark.text
def test_permuted_lists_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    from transformers.generation.logits_process import WatermarkLogitsProcessor

    key = 15485863
    lists = PermutedLists(vocabulary=V)
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, V, size=(5, 40)))
    logits = torch.from_numpy(rng.normal(size=(5, V))).float()
    peer = WatermarkLogitsProcessor(V, "cpu", greenlist_ratio=0.25, bias=3.0, hashing_key=key)
    ours = Marker(lists=lists, key=key)
    assert torch.equal(ours(tokens, logits), peer(tokens, logits))

    config = transformers.GPT2Config(vocab_size=V, bos_token_id=V)
    marking = transformers.WatermarkingConfig(greenlist_ratio=0.25, bias=3.0, hashing_key=key)
    for once in (False, True):
        detector = transformers.WatermarkDetector(
            config, "cpu", marking, ignore_repeated_ngrams=once
        )
        theirs = detector(tokens, return_dict=True).z_score
        mine = []
        for row in tokens.tolist():
            pairs = pairs_of([row], 1)
            mine.append(z_scores(lists, [key], pairs.distinct() if once else pairs)[0])
        np.testing.assert_allclose(mine, theirs)
