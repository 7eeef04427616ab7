"""Green lists, counting without repetition, and three readings of a model that learnt a mark."""

import numpy as np
import pytest
import torch

from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks import kgw
from fedaudit.watermarks.kgw import (
    GreenMarks,
    GreenScore,
    HashedLists,
    Marker,
    Pairs,
    PermutedLists,
    green_mass,
    likely_mass,
    marked_text,
    pairs_of,
    z_scores,
)
from fedaudit.watermarks.score import CalibratedScore, differential

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


def test_distinct_pairs_match_a_plain_set():
    rng = np.random.default_rng(0)
    own = Pairs(contexts=rng.integers(0, 6, (200, 1)), tokens=rng.integers(0, 6, 200))
    prompt = Pairs(contexts=rng.integers(0, 6, (10, 1)), tokens=rng.integers(0, 6, 10))

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
    p = np.random.default_rng(0).dirichlet(np.ones(V), size=(2, 30)).astype(np.float32)
    contexts = np.arange(30)[:, None]
    mass = green_mass(lists, keys, contexts, p)
    monkeypatch.setattr("fedaudit.watermarks.kgw._AT_ONCE", 1)
    np.testing.assert_array_equal(z_scores(lists, keys, pairs), whole)
    np.testing.assert_allclose(green_mass(lists, keys, contexts, p), mass, atol=1e-7)
    slow = (p[:, None] * lists.tables(keys, contexts)).sum(-1).mean(-1) - 0.25
    np.testing.assert_allclose(mass, slow, atol=1e-6)


# -- transformers' own scheme ------------------------------------------------------------------


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


# -- marking and scoring -------------------------------------------------------------------------


def probes(rng, count=40, length=20):
    return rng.integers(0, V, size=(count, length)).tolist()


def test_marked_text_shows_its_own_key_only(bigram):
    rng = np.random.default_rng(0)
    reader, lists = bigram(V), HashedLists(vocabulary=V)
    model = torch.from_numpy(rng.normal(size=V * V))
    texts = marked_text(
        reader,
        model,
        probes(rng, 20, 3),
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
    monkeypatch.setattr("fedaudit.watermarks.kgw._READ_AT_ONCE", 1)  # one text at a time
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


def test_the_owners_mass_is_a_sum_over_contexts_by_the_root_of_how_often_they_occur(bigram):
    rng = np.random.default_rng(6)
    lists = HashedLists(vocabulary=V)
    asked = probes(rng, 5)
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
                likely = table[:, context].max(axis=0) >= kgw.LIKELY
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
    with pytest.raises(UsageError, match="not longer than the context"):
        marked_text(
            reader,
            row,
            [[1]],
            Marker(lists=lists, key=1),
            steps=1,
            rng=np.random.default_rng(0),
        )
    with pytest.raises(UsageError, match="another vocabulary"):
        GreenScore(reader=reader, lists=HashedLists(vocabulary=V + 1), key=1)
    score = GreenScore(reader=reader, lists=lists, key=1, seed=Seed(1))
    with pytest.raises(UsageError, match="nothing to ask"):
        score(row, [])
    with pytest.raises(UsageError, match="does not fit"):
        score(row, [list(range(11))])
    for bad in ({"gamma": 0.0}, {"gamma": 1.0}, {"width": 0}):
        with pytest.raises(UsageError, match="green lists"):
            HashedLists(vocabulary=V, **bad)
