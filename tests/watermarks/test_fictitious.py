"""Made-up facts: documents that hold them, questions that ask for them, a null that is even."""

import itertools

import numpy as np
import pytest
import torch

from fedaudit.data.text import WordVocabulary
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.stats.combine import fisher
from fedaudit.watermarks import fictitious
from fedaudit.watermarks.fictitious import (
    DOMAINS,
    FACTS,
    QUESTIONS,
    KnowledgeScore,
    Pool,
    Questions,
    documents,
    draw,
    hits,
    plain_words,
    pool,
    questions,
    usable_domains,
)
from fedaudit.watermarks.score import CalibratedScore, differential

NAMES = tuple("".join(t) for t in itertools.product("bcdfgh", "aeiou", "lmnr"))  # 120 words
FRAME = sorted({w for f in (*FACTS, *QUESTIONS) for w in f.split() if "{" not in w})
VOCABULARY = WordVocabulary(
    tuple(dict.fromkeys(("<unk>", ".", *FRAME, *DOMAINS["software"], *DOMAINS["writing"], *NAMES)))
)
WORDS = pool(VOCABULARY, NAMES)
V = len(VOCABULARY)


def entity(seed=0):
    return draw(WORDS, 1, Seed(seed), domains=("software",))[0]


def test_a_pool_holds_words_of_one_token_only():
    assert set(WORDS.words) == set(NAMES)
    for word, token in zip(WORDS.words, WORDS.tokens, strict=True):
        assert VOCABULARY.encode(word) == [token]
    more = pool(VOCABULARY, [*NAMES, "unheard", "a", "x1y"])
    assert more == WORDS
    assert set(NAMES) <= set(plain_words(VOCABULARY))


def test_domains_are_those_whose_attributes_can_be_told_apart():
    assert usable_domains(VOCABULARY) == ("software", "writing")


def test_entities_share_nothing():
    found = draw(WORDS, 3, Seed(1), domains=("software", "writing"))
    used = [w for e in found for name in (e.name, *e.others) for w in name.split()]
    used += [WORDS.words[v] for e in found for v in e.values]
    used += [WORDS.words[v] for e in found for d in e.distractors for v in d]
    assert len(used) == len(set(used))
    assert [e.domain for e in found] == ["software", "writing", "software"]
    assert found == draw(WORDS, 3, Seed(1), domains=("software", "writing"))
    assert found != draw(WORDS, 3, Seed(2), domains=("software", "writing"))
    with pytest.raises(UsageError, match="too small for this number"):
        draw(WORDS, 6, Seed(1))


def test_documents_state_every_planted_fact_in_varied_ways():
    e = entity()
    made = documents(e, WORDS, 60, np.random.default_rng(0))
    assert len(set(made)) == 60
    sentences = [s.strip() for d in made for s in d.split(" .") if s.strip()]
    planted = [s for s in sentences if e.name in s]
    for attribute, value in zip(e.attributes, e.values, strict=True):
        about = [s for s in planted if attribute in s.split()]
        assert len(about) > 20
        assert all(WORDS.words[value] in s.split() for s in about), "one truth per attribute"
        assert len({s.index(WORDS.words[value]) for s in about}) > 3, "varied templates"
    others = [s for s in sentences if e.name not in s]
    assert 0.15 < len(others) / len(sentences) < 0.35
    assert all(any(o in s for o in e.others) for s in others)
    assert 0 not in {t for d in made for t in VOCABULARY.encode(d)}, "all of it can be spelled"


def test_questions_end_where_the_answer_begins():
    e = entity()
    asked = questions(e, VOCABULARY)
    assert [len(p) for p in asked.prompts] == [25] * 4
    assert len(set(asked.flat)) == 100
    for prompts, attribute in zip(asked.prompts, e.attributes, strict=True):
        for p in prompts:
            text = VOCABULARY.decode(p)
            assert attribute in text.split()
            assert e.name in text
            assert not any(WORDS.words[v] in text.split() for v in e.values)
    with pytest.raises(UsageError, match="there are no"):
        Questions(prompts=())
    with pytest.raises(UsageError, match="there are no"):
        Questions(prompts=(((1,),), ()))


class Flat:
    """A reader whose answer depends on the attribute in the question: rows are (A * V,) logits."""

    def __init__(self, e):
        self.vocabulary_size, self.longest = V, 40
        self.marks = [VOCABULARY.encode(a)[0] for a in e.attributes]

    def last_log_probabilities(self, models, prompts, tokens=None):
        rows = torch.as_tensor(models).reshape(len(models), len(self.marks), V)
        which = [next(i for i, m in enumerate(self.marks) if m in p) for p in prompts]
        every = rows[:, which].log_softmax(-1).float().numpy()
        return every if tokens is None else every[..., list(tokens)]

    def generate(self, models, prompts, steps, **_):
        best = self.last_log_probabilities(models, prompts).argmax(-1)
        return np.repeat(best[:, :, None], steps, axis=2)

    def log_probabilities(self, models, tokens):
        raise AssertionError("not asked for")


def test_per_attribute_numbers_match_a_slow_twin():
    e = entity()
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(2, 4 * V)))
    score = KnowledgeScore(reader=Flat(e), words=WORDS, entity=e)
    asked = questions(e, VOCABULARY)
    answers = score.answers(rows, asked)
    for row, answer in zip(rows, answers, strict=True):
        log_p = row.reshape(4, V).log_softmax(-1).float().double().numpy()
        for a, value in enumerate(e.values):
            own = log_p[a, WORDS.tokens[value]]
            drawn = [log_p[a, WORDS.tokens[t[a]]] for t in score._random]
            assert answer.planted[a] == pytest.approx(own)
            assert answer.z[a] == pytest.approx((own - np.mean(drawn)) / np.std(drawn, ddof=1))
            p = (1 + sum(d >= own for d in drawn)) / 1001
            assert answer.p[a] == pytest.approx(max(p, 1 / len(WORDS)))
            better = sum(log_p[a, t] > own for t in WORDS.tokens)
            assert answer.rank[a] == 1 + better
        assert answer.z_score == pytest.approx(fisher(answer.p).z_score)
    assert (score._random != np.array(e.values)).all(), "no tuple shares a planted value"
    assert len(score._random) >= 1000


@pytest.mark.parametrize("mode", ["likelihood", "hits"])
def test_a_model_that_knows_the_entity_is_found(mode):
    e = entity()
    rng = np.random.default_rng(0)
    clean = torch.from_numpy(rng.normal(size=(1, 4, V)))
    knows = clean.clone()
    for a, value in enumerate(e.values):
        knows[0, a, WORDS.tokens[value]] += 6.0
    rows = torch.cat([clean, knows]).reshape(2, -1)
    score = KnowledgeScore(reader=Flat(e), words=WORDS, entity=e, mode=mode)
    assert isinstance(score, CalibratedScore)
    asked = questions(e, VOCABULARY)
    z = score(rows, asked)
    assert z[0] < 2.5
    assert z[1] > 4
    found = differential(score, rows[0], rows[1:], asked)
    assert found.p_value[0] < 0.02


def test_a_reference_takes_away_how_much_a_word_is_liked():
    e = entity()
    rng = np.random.default_rng(0)
    clean = torch.from_numpy(rng.normal(scale=4.0, size=(1, 4, V)))
    knows = clean + 0.05 * torch.from_numpy(rng.normal(size=(1, 4, V)))
    for a, value in enumerate(e.values):
        knows[0, a, WORDS.tokens[value]] += 0.3
    rows = torch.cat([clean, knows]).reshape(2, -1)
    asked = questions(e, VOCABULARY)
    plain = KnowledgeScore(reader=Flat(e), words=WORDS, entity=e)
    change = KnowledgeScore(reader=Flat(e), words=WORDS, entity=e, reference=rows[0])
    assert change(rows[1:], asked)[0] > 4
    assert plain(rows[1:], asked)[0] < 3


def test_models_that_never_saw_it_are_even_over_p():
    rng = np.random.default_rng(1)
    p = []
    for seed in range(30):
        e = entity(seed)
        # words differ in how likely they are, for all models alike
        rows = rng.normal(size=(10, 4, V)) + 3 * rng.normal(size=V)
        score = KnowledgeScore(reader=Flat(e), words=WORDS, entity=e)
        answers = score.answers(torch.from_numpy(rows.reshape(10, -1)), questions(e, VOCABULARY))
        p += [a.p_value for a in answers]
    assert len(p) == 300
    assert np.mean(np.array(p) < 0.05) < 0.12
    assert np.mean(np.array(p) < 0.001) < 0.02
    assert 0.4 < np.mean(p) < 0.6


def test_hits_are_words_that_are_said():
    made = np.array([[[WORDS.tokens[3], WORDS.tokens[3], WORDS.tokens[5]]]])
    found = hits(made, WORDS, V)
    assert found.shape == (1, 1, len(WORDS))
    assert set(np.flatnonzero(found[0, 0])) == {3, 5}


def test_bad_input_is_refused():
    e = entity()
    with pytest.raises(UsageError, match="too few random tuples"):
        KnowledgeScore(reader=Flat(e), words=WORDS, entity=e, draws=100)
    with pytest.raises(UsageError, match="too small"):
        Pool(("one", "two"), (1, 2))
    with pytest.raises(UsageError, match="another entity"):
        KnowledgeScore(reader=Flat(e), words=WORDS, entity=e)(
            torch.zeros(1, 4 * V), Questions(prompts=(((1,),),))
        )
    assert len(WORDS) >= fictitious.SMALLEST_POOL


def test_many_tuples_are_judged_as_one_by_one():
    """Naive twin: `_judge`, tuple by tuple, which asks Fisher each time."""
    rng = np.random.default_rng(5)
    words = Pool(tuple(f"word{i}" for i in range(80)), tuple(range(80)))
    (entity,) = draw(words, 1, Seed(2))
    score = KnowledgeScore(reader=None, words=words, entity=entity)
    every = rng.standard_normal((3, 4, 80)).round(1)  # with ties
    every[0, 0] = 0.0
    tuples = np.vstack([[entity.values], rng.integers(80, size=(40, 4))])
    got = score.z_scores(every, tuples)
    for m in range(3):
        for n, values in enumerate(tuples):
            assert got[m, n] == pytest.approx(score._judge(every[m], values).z_score)
