"""Canary sets: a key gives one set, scores are those of the formula, unused keys are alike."""

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError, UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.canary import Canaries, CanaryMarks, Marking

CORPUS = np.random.default_rng(0).random((40, 1, 3, 3)).astype(np.float32)
SETS = Canaries(corpus=CORPUS, classes=4, records=6)


def linear(rows, x):
    """Models as rows of a (9, 4) matrix."""
    return torch.einsum("mdc,nd->mnc", rows.view(len(rows), 9, 4), x.flatten(1))


def test_a_key_gives_one_set_of_values_that_the_corpus_has():
    x, y = SETS.draw(7)
    again, _ = SETS.draw(7)
    other, _ = SETS.draw(8)
    assert x.shape == (6, 1, 3, 3)
    assert y.shape == (6,)
    assert np.array_equal(x, again)
    assert not np.array_equal(x, other)
    flat, columns = x.reshape(6, -1), CORPUS.reshape(40, -1)
    assert all(flat[i, f] in columns[:, f] for i in range(6) for f in range(9))


@pytest.mark.parametrize("statistic", ["margin", "loss"])
def test_scores_equal_the_mean_over_records(statistic):
    marks = CanaryMarks(canaries=SETS, keys=(3, 5), logits=linear, statistic=statistic)
    rows = np.random.default_rng(1).standard_normal((3, 36)).astype(np.float32)
    got = marks.statistics(rows, 4)
    assert got.shape == (3, 6)
    for m, row in enumerate(rows):
        for s, key in enumerate((3, 5, *marks.unused(4))):
            x, y = SETS.draw(key)
            logits = x.reshape(6, 9) @ row.reshape(9, 4)
            own = logits[np.arange(6), y]
            rest = logits.mean(1) if statistic == "margin" else np.log(np.exp(logits).sum(1))
            assert np.isclose(got[m, s], (own - rest).mean(), atol=1e-5)


def test_the_margin_of_unused_keys_is_zero_on_average_whatever_the_model():
    marks = CanaryMarks(canaries=SETS, keys=(), logits=linear)
    row = 5 + np.random.default_rng(2).standard_normal((1, 36))
    null = marks.statistics(row, 3000)[0]
    assert abs(null.mean()) < 4 * null.std() / np.sqrt(3000)
    assert len(set(marks.unused(3000))) == 3000


def test_who_is_marked_follows_the_seed_and_every_key_is_used_once():
    marking = Marking(clients=3)
    found = marking.marked(10, Seed(1))
    assert found == marking.marked(10, Seed(1))
    assert found != marking.marked(10, Seed(2))
    assert len(set(found.values())) == 3
    assert Marking(clients=2, keys=(11, 12)).owner_keys(Seed(1)) == (11, 12)
    spare = Marking(clients=1, spare=2)
    assert len(spare.owner_keys(Seed(1))) == 3
    assert [*spare.marked(10, Seed(1)).values()] == [spare.owner_keys(Seed(1))[0]]
    assert Marking(share=0.2).set_size(1000, 10) == 25  # 25 of 125 are a fifth


def test_bad_input():
    with pytest.raises(ConfigError, match="two clients"):
        Marking(clients=2, keys=(5, 5))
    with pytest.raises(ConfigError, match="do not fit"):
        Marking(clients=3, keys=(5, 6))
    with pytest.raises(ConfigError, match=r"marks\.share"):
        Marking(share=1.0)
    with pytest.raises(ConfigError, match="all clients"):
        Marking(clients=4).marked(4, Seed(1))
    with pytest.raises(UsageError, match="cannot be drawn"):
        Canaries(corpus=CORPUS, classes=1, records=5)
    with pytest.raises(UsageError, match="no keys"):
        CanaryMarks(canaries=SETS, keys=(), logits=linear).statistics(np.zeros((1, 36)), 0)
