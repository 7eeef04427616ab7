"""The owner's keys beside unused ones."""

import numpy as np
import torch

from fedaudit.watermarks.kgw import GreenMarks, HashedLists, likely_mass
from fedaudit.watermarks.kgw.mass import LIKELY

V = 60


def test_the_owners_mass_is_a_sum_over_contexts_by_the_root_of_how_often_they_occur(bigram):
    rng = np.random.default_rng(6)
    lists = HashedLists(vocabulary=V)
    asked = rng.integers(0, V, size=(5, 20)).tolist()
    rows = torch.from_numpy(rng.normal(size=(2, V * V)))
    reader = bigram(V)
    marks = GreenMarks(reader=reader, lists=lists, keys=(3, 4), probes=asked)
    got = marks.statistics(rows, 5)
    flat = [t for text in asked for t in text]
    table = np.exp(reader.table(rows))
    for j, key in enumerate((3, 4, *marks.unused(5))):
        green = lists.tables([key], np.arange(V)[:, None])[0]
        for m in range(2):
            total = weight = 0.0
            for context in set(flat):
                root = flat.count(context) ** 0.5
                likely = table[m, context] >= LIKELY
                own = (table[m, context] * (green[context] - lists.gamma))[likely].sum()
                total, weight = total + root * own, weight + root
            assert np.isclose(got[m, j], total / weight, atol=1e-5)


def test_frequent_contexts_count_for_more_where_a_mark_was_learnt_there(bigram):
    """Marks are learnt after what occurs often: weights by its root find them more surely."""
    lists, found = HashedLists(vocabulary=V), []
    share = 1.0 / np.arange(1, V + 1)
    share /= share.sum()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        clean = rng.normal(size=(V, V))
        green = lists.tables([9], np.arange(V)[:, None])[0]
        learnt_there = clean + 2.0 * share[:, None] * green + rng.normal(scale=0.3, size=(V, V))
        rows = torch.from_numpy(np.stack([clean, learnt_there]).reshape(2, -1))
        asked = [[int(t) for t in rng.choice(V, 40, p=share)] for _ in range(20)]
        marks = GreenMarks(reader=bigram(V), lists=lists, keys=(9,), probes=asked)
        contexts, counts, p = marks._score.tally(rows, asked)
        keys = [9, *marks.unused(200)]
        z = []
        for weights in (None, np.sqrt(counts)):
            y = likely_mass(lists, keys, contexts, p, weights=weights)
            change = y[1] - y[0]
            z.append((change[0] - change[1:].mean()) / change[1:].std())
        found.append(z)
    alike, rooted = np.mean(found, axis=0)
    assert rooted > alike + 0.5
