"""The built-in base model: made once, the same every time, and the shipped one is what it says."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed
from fedaudit.tasks import pretraining
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.pretraining import SHIPPED, Pretraining, pretrained
from fedaudit.tasks.task import seeded

SMALL = Pretraining(width=8, depth=1, heads=2, length=8, vocabulary_size=60, steps=4, batch_size=4)


def test_the_base_is_made_once_and_the_same_every_time(tmp_path, monkeypatch):
    first, words = pretrained(SMALL, cache=tmp_path / "a")
    again, _ = pretrained(SMALL, cache=tmp_path / "b")
    for p, q in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
    (stored,) = (tmp_path / "a").iterdir()
    torn = stored.read_bytes()[:100]
    (tmp_path / "b" / stored.name).write_bytes(torn)
    mended, _ = pretrained(SMALL, cache=tmp_path / "b")
    assert torch.equal(mended.head.weight, first.head.weight)

    def never(*_):
        raise AssertionError("trained although it is in the cache")

    monkeypatch.setattr("fedaudit.tasks.pretraining._pretrain", never)
    cached, same = pretrained(SMALL, cache=tmp_path / "a")
    assert torch.equal(cached.head.weight, first.head.weight)
    assert same == words
    assert len(words) == 60
    with pytest.raises(AssertionError, match="although"):
        pretrained(dataclasses.replace(SMALL, steps=5), cache=tmp_path / "a")


def test_pretraining_learns(tmp_path):
    wanted = dataclasses.replace(SMALL, steps=60, learning_rate=1e-2)
    from fedaudit.data.builtin import load

    trained, words = pretrained(wanted, cache=tmp_path)
    text = load("docs", seed=Seed(0)).x[0]
    tokens = torch.tensor(words.encode(text)[:225]).view(-1, 9)

    def loss(model):
        with torch.no_grad():
            out = model(tokens[:, :-1])
        return float(F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()))

    untrained = seeded(Seed(0), "weights", TinyGPT, 60, 8, 8, 1, 2)
    assert loss(trained) < loss(untrained) - 0.5


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"width": 9}, {"learning_rate": 0.0}, {"batch_size": 0}]
)
def test_pretraining_settings_are_checked(bad):
    with pytest.raises(ConfigError, match="pretraining"):
        dataclasses.replace(SMALL, **bad)


def test_shipped_models_are_small():
    assert sum(f.stat().st_size for f in SHIPPED.iterdir()) < 2_000_000


@pytest.mark.parametrize("wanted", [Pretraining(), Pretraining(width=64, depth=2)])
def test_a_shipped_model_is_trained_and_of_its_settings(wanted):
    model, vocabulary, texts = pretraining._initial(wanted)
    tokens = torch.tensor(vocabulary.encode(" ".join(texts))[: 41 * 8]).view(8, 41)

    def loss():
        with torch.no_grad():
            return float(F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]))

    before, corpus = loss(), pretraining._hash(texts)
    if not pretraining._load_shipped(model, wanted, corpus):
        pytest.skip("the documentation of this Python is another than the shipped models saw")
    assert loss() < before - 2.0
    assert not pretraining._load_shipped(model, wanted, "the hash of another corpus")
    assert not pretraining._load_shipped(model, dataclasses.replace(wanted, steps=601), corpus)


def test_a_corpus_of_another_python_is_trained_on_anew(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(pretraining, "_hash", lambda texts: "another")
    monkeypatch.setattr(pretraining, "_pretrain", lambda *given: trained.append(given))
    pretrained(cache=tmp_path)
    assert len(trained) == 1
