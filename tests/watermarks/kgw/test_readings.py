"""Three readings of a model that learnt a mark, and of models that did not."""

import numpy as np
import pytest
import torch

from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.kgw import GreenScore, HashedLists
from fedaudit.watermarks.score import CalibratedScore, differential

V = 60


def probes(rng, count=40, length=20):
    return rng.integers(0, V, size=(count, length)).tolist()


def learnt(rng, lists, key, amount, models=1):
    """Logits of a clean model (1, d) and of models that lean to the green tokens of a key."""
    clean = rng.normal(scale=1.5, size=(1, V, V))
    noise = rng.normal(scale=0.3, size=(models, V, V))
    green = lists.tables([key], np.arange(V)[:, None])[0]
    rows = clean + noise + amount * green
    return torch.from_numpy(clean.reshape(1, -1)), torch.from_numpy(rows.reshape(models, -1))


@pytest.mark.parametrize(("mode", "amount"), [("mass", 0.1), ("reading", 1.0), ("generation", 0.5)])
def test_a_model_that_learnt_the_mark_is_found(bigram, mode, amount):
    rng = np.random.default_rng(0)
    lists = HashedLists(vocabulary=V)
    score = GreenScore(reader=bigram(V), lists=lists, key=1234, mode=mode, unused=200)
    assert isinstance(score, CalibratedScore)
    clean, rows = learnt(rng, lists, 1234, amount)
    benign = clean + torch.from_numpy(rng.normal(scale=0.3, size=(1, V * V)))
    found = differential(score, clean, torch.cat([rows, benign]), probes(rng))
    assert found.z_score[0] > 3
    assert found.p_value[0] < 0.02
    assert found.z_score[1] < 3


def test_mass_sees_what_counting_does_not(bigram):
    rng = np.random.default_rng(3)
    lists = HashedLists(vocabulary=V)
    clean, rows = learnt(rng, lists, 9, 0.1)
    asked = probes(rng)
    z = {
        mode: differential(
            GreenScore(reader=bigram(V), lists=lists, key=9, mode=mode), clean, rows, asked
        ).z_score[0]
        for mode in ("mass", "generation")
    }
    assert z["mass"] > 4
    assert z["generation"] < 3


@pytest.mark.parametrize("width", [1, 2])
def test_contexts_are_tallied_as_by_a_dictionary(bigram, width, monkeypatch):
    monkeypatch.setattr("fedaudit.watermarks.kgw.readings._READ_AT_ONCE", 1)  # one text at a time
    rng = np.random.default_rng(4)
    rows = torch.from_numpy(rng.normal(size=(2, V * V)))
    texts = [[int(t) for t in rng.integers(0, 6, n)] for n in (12, 9, 12, 5)]
    reader = bigram(V)
    score = GreenScore(reader=reader, lists=HashedLists(vocabulary=V, width=width), key=1)
    contexts, counts, p = score.tally(rows, texts)
    seen: dict[tuple[int, ...], list[np.ndarray]] = {}
    for text in texts:
        likely = np.exp(reader.log_probabilities(rows, np.array([text])))[:, 0]
        for at in range(width - 1, len(text)):
            seen.setdefault(tuple(text[at - width + 1 : at + 1]), []).append(likely[:, at])
    assert [tuple(map(int, c)) for c in contexts] == sorted(seen)
    for context, count, mean in zip(contexts, counts, p.transpose(1, 0, 2), strict=True):
        own = seen[tuple(map(int, context))]
        assert count == len(own)
        np.testing.assert_allclose(mean, np.mean(own, axis=0), rtol=1e-5)


def test_benign_models_raise_alarms_at_the_stated_rate_only(bigram):
    rng = np.random.default_rng(5)
    lists = HashedLists(vocabulary=V)
    asked = probes(rng, 10)
    p = []
    for key in range(10):
        clean, rows = learnt(rng, lists, key, 0.0, models=40)
        score = GreenScore(reader=bigram(V), lists=lists, key=key, unused=99)
        p += differential(score, clean, rows, asked).p_value.tolist()
    assert len(p) == 400
    # models of one clean model share its key: ten clusters, so the spread is a wide one
    assert np.mean(np.array(p) <= 0.05) < 0.12
    assert 0.35 < np.mean(p) < 0.65


def test_all_models_share_their_random_numbers_and_keys_one_run(bigram):
    rng = np.random.default_rng(0)
    lists = HashedLists(vocabulary=V)
    clean, rows = learnt(rng, lists, 1, 0.5)
    score = GreenScore(reader=bigram(V), lists=lists, key=1, mode="generation", unused=30)
    asked = probes(rng, 8, 4)
    both = torch.cat([clean, clean, rows])
    own, null = score.with_null(both, asked)
    assert own[0] == own[1]
    np.testing.assert_array_equal(null[0], null[1])
    np.testing.assert_array_equal(own, score(both, asked))
    np.testing.assert_array_equal(null, score.by_key(both, asked, score.unused_keys))
    assert 1 not in score.unused_keys


def test_prompts_do_not_score_themselves(bigram):
    """A model that repeats its prompt gives no pair that counts."""
    lists = HashedLists(vocabulary=V)
    step = np.full((V, V), -20.0)
    step[np.arange(V), (np.arange(V) + 1) % V] = 20.0  # counts upwards
    row = torch.from_numpy(step.reshape(1, -1))
    asked = [list(range(V))]  # all pairs but the last stand in the prompt
    once = GreenScore(reader=bigram(V), lists=lists, key=1, mode="generation", steps=V)
    every = GreenScore(
        reader=bigram(V), lists=lists, key=1, mode="generation", steps=V, distinct=False
    )
    assert len(once._generated(row, asked)[0]) == 1
    assert len(every._generated(row, asked)[0]) == V


def test_bad_input_is_refused(bigram):
    lists = HashedLists(vocabulary=V)
    reader = bigram(V, longest=10)
    row = torch.zeros(1, V * V)
    with pytest.raises(UsageError, match="not longer than the context"):
        GreenScore(reader=reader, lists=lists, key=1, mode="generation", steps=1)
    with pytest.raises(UsageError, match="another vocabulary"):
        GreenScore(reader=reader, lists=HashedLists(vocabulary=V + 1), key=1)
    score = GreenScore(reader=reader, lists=lists, key=1, seed=Seed(1))
    with pytest.raises(UsageError, match="there are no"):
        score(row, [])
    with pytest.raises(UsageError, match="does not fit"):
        score(row, [list(range(11))])
