"""Text that is written under a marker."""

import numpy as np
import pytest
import torch

from fedaudit.errors import UsageError
from fedaudit.watermarks.kgw import HashedLists, Marker, marked_text, pairs_of, z_scores

V = 60


def test_marked_text_shows_its_own_key_only(bigram):
    rng = np.random.default_rng(0)
    reader, lists = bigram(V), HashedLists(vocabulary=V)
    model = torch.from_numpy(rng.normal(size=V * V))
    texts = marked_text(
        reader,
        model,
        rng.integers(0, V, size=(20, 3)).tolist(),
        Marker(lists=lists, key=1234),
        steps=30,
        rng=rng,
        temperature=1.0,
        top_p=1.0,
    )
    assert all(len(t) == 33 for t in texts)
    scores = z_scores(lists, [1234, *range(200)], pairs_of(texts, 1, [3] * 20).distinct())
    assert scores[0] > 8
    assert np.abs(scores[1:]).max() < 4.5


def test_text_without_a_whole_context_is_refused(bigram):
    with pytest.raises(UsageError, match="not longer than the context"):
        marked_text(
            bigram(V, longest=10),
            torch.zeros(1, V * V),
            [[1]],
            Marker(lists=HashedLists(vocabulary=V), key=1),
            steps=1,
            rng=np.random.default_rng(0),
        )
