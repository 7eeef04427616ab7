"""Marks in text federations: what is planted, who finds it again, what is refused."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit import cli
from fedaudit.audits.attribution import Attribution, estimator
from fedaudit.errors import ConfigError, DataError
from fedaudit.knowledge import KnowledgeBuilder
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.marks import plant, score_of, templates_of
from fedaudit.setup.prepare import build, load_data
from fedaudit.stats import query_plans
from fedaudit.study.auditing import audit_one
from fedaudit.study.run import simulate
from fedaudit.trace import Trace, Truth
from fedaudit.trace.ledger import round_queries as ledger_of
from fedaudit.watermarks import fictitious, kgw

TINY = {
    "kind": "lora", "width": 32, "depth": 1, "heads": 2, "length": 24, "vocabulary_size": 500,
    "pretraining_steps": 40, "rank": 8,
}  # fmt: skip
BASE = {
    "seed": 1,
    "data": {"name": "docs"},
    "partition": {"kind": "iid"},
    "task": TINY,
    "federation": {"clients": 6, "rounds": 3},
    "training": {"optimizer": "adam", "learning_rate": 0.01, "steps": 30, "batch_size": 16},
    "marks": {"clients": 2, "share": 0.2},
    "audits": {"attribution": {"unused_keys": 299}},
}
PAIRED = {"threshold": 3, "plan": "paired", "refuse_isolating": False, "masks": "skipped"}


@pytest.fixture(scope="module", autouse=True)
def cached(tmp_path_factory):
    """One pretrained model for all tests of this file, outside the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAUDIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def planted(**marks):
    config = load({**BASE, "marks": {**BASE["marks"], **marks}})
    train, test = load_data(config, Seed(1))
    task = config.task.build(train, Seed(1))
    return plant(config, task, train, test, 6, Seed(1)), task, train


def test_the_default_kind_follows_the_task():
    assert load(BASE).marks.kind == "fictitious"
    assert load({**BASE, "task": {"kind": "gpt"}}).marks.kind == "fictitious"
    assert load({"marks": {"clients": 2}}).marks.kind == "canary"
    green = load({**BASE, "marks": {"kind": "kgw", "delta": 2.0}})
    assert (green.marks.gamma, green.marks.delta) == (0.25, 2.0)
    assert load(green.raw).marks == green.marks


@pytest.mark.parametrize("kind", ["fictitious", "kgw"])
def test_marked_windows_are_a_share_and_depend_on_the_key(kind):
    marks, task, train = planted(kind=kind)
    total = len(task.encode(train))
    assert marks.records == round(0.25 * total / 6)
    x, y = marks.family.examples(7)
    assert x.shape == (marks.records, task.length + 1)
    assert not y.any()
    assert (x >= 0).all()
    assert (x == marks.family.examples(7)[0]).all()
    assert (x != marks.family.examples(8)[0]).any()
    own = task.encode(train.take(np.arange(5)))
    (client, _), *_ = marks.marked.items()
    both = marks.added_to(own, client)
    assert len(both) == len(own) + marks.records
    assert len(both.record[len(own) :].unique()) == marks.records  # each a record of its own
    assert not set(own.record.tolist()) & set(both.record[len(own) :].tolist())
    stranger = next(c for c in range(6) if c not in marks.marked)
    assert marks.added_to(own, stranger) is own


@pytest.mark.parametrize("kind", ["fictitious", "kgw"])
def test_templates_read_the_documents_that_were_given_and_unused_ones_like_them(kind):
    marks, task, _ = planted(kind=kind)
    made = templates_of(marks.family, marks.keys, 3, 9)
    given = marks.family.examples(marks.keys[0])[0]
    x, y = made.own(marks.keys[0])
    assert (x == given[:3]).all()
    assert len(y) == 3
    assert made.control(0)[0].shape == x.shape
    assert (made.control(0)[0] != made.control(1)[0]).any()
    model = task.initial().numpy()
    found = made.gradients(model, 2)
    flat = torch.tensor(model, requires_grad=True)
    task.losses(task.named(flat), x, y, None).mean().backward()
    assert np.allclose(found[0], flat.grad.numpy(), atol=1e-6)
    assert found.shape == (len(marks.keys) + 2, len(model))


@pytest.mark.parametrize("task", [TINY, {"kind": "gpt", "length": 24, "vocabulary_size": 500}])
def test_green_text_is_green_under_its_key_alone(task):
    """Also without a trained model: there the owner writes by pairs of tokens."""
    config = load({**BASE, "task": task, "marks": {"kind": "kgw", "clients": 2}})
    train, test = load_data(config, Seed(1))
    built = config.task.build(train, Seed(1))
    family = plant(config, built, train, test, 6, Seed(1)).family
    x, _ = family.examples(5)
    pairs = kgw.pairs_of(x.tolist(), 1, [4] * len(x)).distinct()
    z = kgw.z_scores(family.lists, [5, *range(100, 140)], pairs)
    assert z[0] > 15
    assert abs(z[1:]).max() < 5
    assert not (x[:, 4:] == 0).any()  # nothing that cannot be spelled


def test_documents_tell_of_the_keys_entity():
    marks, task, _ = planted()
    entity = fictitious.entity_of(9, marks.family.pool, marks.family.domains)
    text = task.vocabulary.decode(marks.family.examples(9)[0].flatten().tolist())
    assert entity.name in text
    assert all(marks.family.pool.words[v] in text for v in entity.values)
    other = fictitious.entity_of(10, marks.family.pool, marks.family.domains)
    assert other.name not in text


def test_scores_of_entities_equal_the_formula_and_each_has_its_own_null():
    marks, task, _ = planted()
    marked = marks.family.marks(marks.keys, Attribution(), 3)
    rng = np.random.default_rng(0)
    rows = task.initial().numpy() + 0.05 * rng.standard_normal((2, task.layout.width))
    got = marked.statistics(rows, 20)
    assert marked.apart
    assert got.shape == (2, 2 + 2 * 20)
    for s, entity in enumerate(marked.entities):
        asked = fictitious.questions(entity, task.vocabulary, forms=fictitious.QUESTIONS[:12])
        tuples = marked.tuples(s, 20)
        written = {*entity.values, *(v for own in entity.distractors for v in own)}
        assert not written & {*tuples.flatten().tolist()}
        assert all(len({*t}) == 4 for t in tuples.tolist())
        names = " ".join((entity.name, *entity.others)).split()
        assert not any(marked.words.words[v] in names for v in tuples.flatten())
        for j, values in enumerate([entity.values, *tuples.tolist()]):
            column = s if j == 0 else 2 + 20 * s + j - 1
            want = np.zeros(2)
            for prompts, value in zip(asked.prompts, values, strict=True):
                likely = marked.reader.last_log_probabilities(rows.astype(np.float32), prompts)
                want += np.exp(likely[:, :, marked.words.tokens[value]].mean(axis=1) / 4) / 4
            assert np.allclose(got[:, column], want, rtol=1e-4)


def test_likely_mass_is_green_mass_but_for_unlikely_tokens():
    marks, task, _ = planted(kind="kgw")
    marked = marks.family.marks(marks.keys, Attribution(prompts=6), 3)
    contexts, p = marked._score.distributions(task.initial()[None], marked.probes)
    every = kgw.green_mass(marked.lists, [1, 2, 3], contexts, p)
    all_of_it = kgw.likely_mass(marked.lists, [1, 2, 3], contexts, p, floor=0.0)
    assert np.allclose(all_of_it, every, atol=1e-5)
    kept = marked.statistics(task.initial()[None], 30)
    assert kept.shape == (1, 32)
    tables = marked.lists.tables([*marked.keys, *marked.unused(30)], contexts) - marked.lists.gamma
    seen = np.concatenate([np.array(text) for text in marked.probes])
    often = np.sqrt([(seen == c).sum() for c in contexts[:, 0]])
    whole = np.einsum("c,cv,jcv->j", often / often.sum(), p[0], tables)
    assert np.corrcoef(kept[0], whole)[0, 1] > 0.95


def test_probes_are_marked_text_under_keys_of_nobody():
    """Green of the owner's keys no oftener than of unused ones, but of their own by far."""
    marks, task, _ = planted(kind="kgw")
    marked = marks.family.marks(marks.keys, Attribution(prompts=80), 3)
    assert [len(text) for text in marked.probes] == [task.length] * 80
    written = [Seed(3).key("kgw/probes", number) for number in (0, 1)]
    pairs = np.array([p for text in marked.probes for p in itertools.pairwise(text[3:])])

    def green(keys, of):
        contexts, at = np.unique(of[:, :1], axis=0, return_inverse=True)
        tables = marked.lists.tables(keys, contexts)
        return tables[:, at.ravel(), of[:, 1]].mean(axis=1)

    half = len(pairs) // 2
    assert green(written[:1], pairs[:half])[0] > 0.5
    assert green(written[1:], pairs[half:])[0] > 0.5
    others = green(marked.unused(200), pairs)
    assert np.all(np.abs(green([*marks.keys], pairs) - others.mean()) < 4 * others.std())
    assert others.mean() == pytest.approx(marked.lists.gamma, abs=0.05)


SHIPPED = {
    "task": {"kind": "lora", "rank": 16, "width": 64, "depth": 2},
    "training": {"optimizer": "adam", "learning_rate": 0.01, "steps": 30, "batch_size": 8},
    "federation": {"clients": 6, "rounds": 2},
}
"""Adapters on the model that comes with the package: it knows enough English to learn facts."""


def recorded(path, **changes):
    raw = {**BASE, "protections": {"secure_aggregation": PAIRED}, **changes}
    config = load(raw)
    simulate(config, path)
    return config, Trace.open(path / "trace"), Truth.open(path / "truth")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("text") / "run", **SHIPPED)


def audited(case, **settings):
    config, trace, truth = case
    audit = replace(config.audits["attribution"], **settings)
    return audit_one(audit, trace, truth, 1, KnowledgeBuilder(trace, truth, Seed(1), None, config))


def test_who_trained_on_an_entity_is_named_and_nobody_else(run):
    result = audited(run)
    named = {n for n, row in result.per_client.items() if row["named"]}
    assert named == set(run[2].facts["marked"])
    e = result.estimates["false_alarm_rate_per_test"]
    assert e.low <= 4 * e.baseline


def test_a_score_by_generation_is_read_from_the_same_trace(run):
    result = audited(run, score_by="generation", steps=8, unused_keys=99, prompts=160)
    assert result.headline is not None
    assert any("not 160" in note for note in result.notes)
    benign = [r for r in result.per_client.values() if not r["marked"]]
    assert not any(r["named"] for r in benign)


def test_the_published_score_of_entities_is_fishers_z_and_decides_if_asked_to(run):
    """Naive twin: `KnowledgeScore` of Eq. (4)'s estimates; differences are as they are."""
    config, trace, truth = run
    audit = replace(config.audits["attribution"], score_by="fisher", unused_keys=99)
    knowledge, _ = KnowledgeBuilder(trace, truth, Seed(1), None, config).knowledge_for(audit)
    server, marks = trace.seen_by("server"), knowledge.extra["marks"]
    guess = audit.attack(server, knowledge, np.random.default_rng(0))
    start = server.received(1, guess.names[0], before=1)
    pairs = query_plans.paired_plan(6, 3, 5, Seed(1).generator("secure_aggregation/plan", 1, 0))
    score = fictitious.KnowledgeScore(
        reader=marks.reader, words=marks.words, entity=marks.entities[1]
    )
    asked = fictitious.questions(marks.entities[1], marks.vocabulary, forms=marks.forms)
    ledger = ledger_of(server, 1)
    sums = np.stack([server.payload(1, int(i)) for i in ledger.sums[ledger.sums >= 0]])
    made = estimator.published(pairs, ledger.answered).of(sums)
    want = score(np.vstack([start[None], start + made]).astype(np.float32), asked)
    assert np.allclose(guess.published[0, :, 1], want[1:] - want[0], atol=1e-3)
    result = audited(run, score_by="fisher")
    assert result.headline is not None
    benign = [r for r in result.per_client.values() if not r["marked"]]
    assert not any(r["named"] for r in benign)


def test_secrets_stay_out_of_the_public_config(run):
    config, _, truth = run
    keys = [str(k) for k in truth.facts["marked"].values()]
    assert keys
    assert not any(k in json.dumps(config.public()) for k in keys)


def test_green_lists_and_flora_on_groups(tmp_path):
    """FLoRA's dense products behind a safe plan; benign clients are left alone."""
    case = recorded(
        tmp_path / "run",
        task={**TINY, "aggregation": "flora"},
        training={"optimizer": "adam", "learning_rate": 0.01, "steps": 4},
        marks={"kind": "kgw", "clients": 2, "share": 0.3},
        federation={"clients": 6, "rounds": 5},
        protections={
            "secure_aggregation": {"threshold": 3, "plan": "partitions", "masks": "skipped"}
        },
    )
    result = audited(case, prompts=12, score_by="mass")
    for found in (result, audited(case, windows=4, templates=20)):
        assert found.headline is not None
        assert not any(r["named"] for r in found.per_client.values() if not r["marked"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedaudit.audits.attribution.answers.NUMBERS", 1e5)
        assert audited(case, prompts=12, score_by="mass").need.code == "too_large"
        assert audited(case, windows=4, templates=20).need.code == "too_large"
    e = result.estimates["false_alarm_rate_per_test"]
    assert e.low <= 4 * e.baseline


def test_bad_input():
    with pytest.raises(ConfigError, match="do not fit"):
        load({**BASE, "marks": {"kind": "canary"}})
    with pytest.raises(ConfigError, match="do not fit"):
        load({"marks": {"kind": "kgw"}})
    with pytest.raises(ConfigError, match="cannot be planted for"):
        load({"task": {"kind": "vae"}, "marks": {"clients": 1}})
    with pytest.raises(ConfigError, match=r"marks\.kind cannot be"):
        load({**BASE, "marks": {"kind": "green"}})
    with pytest.raises(ConfigError, match=r"unknown key marks\.gamma"):
        load({**BASE, "marks": {"gamma": 0.5}})
    with pytest.raises(ConfigError, match=r"marks\.gamma"):
        load({**BASE, "marks": {"kind": "kgw", "gamma": 1.5}})
    with pytest.raises(ConfigError, match="key of two clients"):
        load({**BASE, "marks": {"kind": "kgw", "clients": 2, "keys": [4, 4]}})
    with pytest.raises(ConfigError, match="unequal rank"):
        load({**BASE, "task": {**TINY, "ranks": [4, 8, 8, 8, 8, 8]}})
    with pytest.raises(ConfigError, match="prompts"):
        Attribution(prompts=0)
    with pytest.raises(ConfigError, match="does not score"):
        score_of(Attribution(score_by="margin"), "kgw")
    assert score_of(Attribution(), "kgw", vocabulary=50_000) == "reading"
    long = {**BASE, "marks": {"kind": "kgw", "clients": 1, "context": 12}}
    with pytest.raises(ConfigError, match="not be longer than the context"):
        build(load({**long, "task": {**TINY, "length": 16}}))
    marks, _, _ = planted(kind="kgw")
    with pytest.raises(ConfigError, match="no room for a prompt"):
        marks.family.marks(marks.keys, Attribution(score_by="generation", steps=60), 1)
    context = planted(kind="kgw", context=3)[0]
    with pytest.raises(ConfigError, match="longer than the context"):
        context.family.marks(context.keys, Attribution(score_by="generation", steps=3), 1)
    with pytest.raises(DataError, match="has no examples"):
        build(load({**BASE, "task": {"kind": "gpt", "length": 100_000}}))


@pytest.mark.parametrize(
    ("marks", "asked", "said"),
    [
        ({"kind": "kgw"}, {"score_by": "margin"}, "does not score kgw marks"),
        ({"kind": "kgw", "context": 3}, {"score_by": "generation", "steps": 2}, "the context"),
        ({"kind": "kgw"}, {"score_by": "generation", "steps": 300}, "no room for a prompt"),
        ({}, {"score_by": "generation", "steps": 300}, "no room for a prompt"),
        ({}, {"score_by": "mass"}, "does not score fictitious marks"),
    ],
)
def test_a_reading_that_does_not_fit_the_marks_is_refused_before_training(marks, asked, said):
    raw = {**BASE, "marks": {**BASE["marks"], **marks}, "audits": {"attribution": asked}}
    with pytest.raises(ConfigError, match=said):
        build(load(raw))


def test_the_command_refuses_such_a_config_with_exit_code_2(tmp_path, monkeypatch, capsys):
    """Nobody has trained then: there is no trace."""
    (tmp_path / "c.toml").write_text(
        '[data]\nname = "digits"\n[task]\nkind = "mlp"\n[marks]\nclients = 2\n'
        '[audits.attribution]\nscore_by = "generation"\n'
    )
    out = tmp_path / "run"
    monkeypatch.setattr(
        "sys.argv", ["fedaudit", "run", str(tmp_path / "c.toml"), "--out", str(out)]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "does not score canary marks" in " ".join(capsys.readouterr().err.split())
    assert not list(out.glob("trace/round*"))


def test_generated_are_as_many_tokens_as_asked_for():
    marks, task, _ = planted()
    room = 24 + 1 - max(len(task.vocabulary.encode(f)) for f in fictitious.QUESTIONS)
    assert marks.family.marks(marks.keys, Attribution(score_by="generation"), 1).steps == 12
    assert room > 6
    few = Attribution(score_by="generation", steps=6, prompts=20)
    assert marks.family.marks(marks.keys, few, 1).steps == 6
    most = Attribution(score_by="generation", steps=14, prompts=4)
    assert marks.family.marks(marks.keys, most, 1).steps == 14
    few, many = (marks.family.marks(marks.keys, Attribution(prompts=n), 1) for n in (100, 101))
    assert len(few.forms) == len(many.forms) == 25
    assert not few.notes
    assert "asked 100 questions per entity, not 101: there are no more" in many.notes[0]
    green = planted(kind="kgw")[0]
    by = Attribution(score_by="generation")
    assert green.family.marks(green.keys, by, 1).steps == 24


@pytest.mark.parametrize("kind", ["kgw", "fictitious"])
def test_a_score_does_not_depend_on_the_models_that_are_scored_beside_it(kind):
    marks, task, _ = planted(kind=kind)
    marked = marks.family.marks(marks.keys, Attribution(prompts=12), 3)
    start = np.asarray(task.initial(), dtype=np.float64)
    rows = start + 0.3 * np.random.default_rng(0).standard_normal((4, len(start)))
    rows[3] *= 3.0  # one that finds other tokens likely
    together = marked.statistics(np.vstack([start[None], rows]), 50)
    for i, row in enumerate((start, *rows)):
        assert np.allclose(marked.statistics(row[None], 50)[0], together[i], atol=1e-6)


@pytest.mark.text
def test_a_model_folder_without_a_tokenizer_is_refused(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="no tokenizer"):
        build(load({**BASE, "task": {"kind": "lora", "model": str(tmp_path)}}))
