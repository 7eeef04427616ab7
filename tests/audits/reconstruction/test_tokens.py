"""Tokens named by an embedding's update: naive twin, null, power, noise, views."""

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.reconstruction import Prior, Reconstruction, tokens
from fedaudit.audits.reconstruction.facts import ALL_TOKENS, PLACED, TOKENS
from fedaudit.audits.reconstruction.layers import EmbeddingEnd, embedding_end
from fedaudit.errors import NotApplicable
from fedaudit.layout import Layout
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.language_model import LanguageModel
from fedaudit.tasks.models import TinyGPT
from fedaudit.trace import ANONYMOUS, NETWORK, PUBLIC, SERVER, MemoryRecorder, MemoryTruth
from fedaudit.trace.schema import AGGREGATOR

VOCABULARY, LENGTH, WIDTH, RATE = 200, 9, 8, 0.1


class Bag(nn.Module):
    """Mean of token vectors, then a linear layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.out(self.table(x).mean(-2))


def language_model():
    torch.manual_seed(0)
    return LanguageModel(
        TinyGPT(VOCABULARY, LENGTH - 1, WIDTH, 1, 2), range(VOCABULARY), LENGTH - 1
    )


def classifier():
    torch.manual_seed(0)
    return Classifier(Bag())


class Texts:
    """`clients` clients read `size` texts each in two steps; as many texts stay out."""

    def __init__(self, task, clients=6, size=2, seed=0, *, learnt=True, noise=0.0, sender=None):
        rng = np.random.default_rng(seed)
        self.task, self.sizes = task, {f"c{i}": size for i in range(clients)}
        x = torch.from_numpy(rng.integers(0, VOCABULARY, (clients, 2 * size, LENGTH)))
        y = torch.zeros(clients, 2 * size, dtype=torch.int64)
        read = x[:, :size] if learnt else torch.from_numpy(
            rng.integers(0, VOCABULARY, (clients, size, LENGTH))
        )  # fmt: skip
        start = task.initial()
        rows = [self.trained(start, a) for a in read]
        rows = [r + noise * torch.from_numpy(rng.normal(size=len(r))).float() for r in rows]
        layout = Layout.of([(e.name, e.shape) for e in task.layout.entries])
        recorder = MemoryRecorder(layouts={"model": layout})
        with recorder.round() as wire:
            for name in self.sizes:
                wire.send("model", SERVER, name, self.named(start))
            if sender == AGGREGATOR:
                wire.send("sum", AGGREGATOR, SERVER, self.named(sum(rows)))
            else:
                for name, row in zip(self.sizes, rows, strict=True):
                    wire.send("delta", sender or name, SERVER, self.named(row))
            wire.send("model", SERVER, PUBLIC, self.named(start + sum(rows) / clients))
        self.trace = recorder.trace()
        members = {n: np.arange(2 * size) < size for n in self.sizes}
        pools = {n: (x[i].numpy(), y[i].numpy()) for i, n in enumerate(self.sizes)}
        self.truth = MemoryTruth({}).with_members(members, pools)
        self.x, self.read = x.numpy(), read.numpy()
        flat = np.zeros(LENGTH)
        self.prior = Prior(
            low=flat,
            high=flat + VOCABULARY - 1,
            middle=flat,
            shape=(LENGTH,),
            sizes=self.sizes,
            discrete=True,
        )

    def trained(self, start, x):
        p = start
        for _ in range(2):
            p = p.detach().requires_grad_(True)
            y = torch.zeros(len(x), dtype=torch.int64)
            (slope,) = torch.autograd.grad(
                self.task.losses(self.task.named(p), x, y, None).mean(), [p]
            )
            p = p - RATE * slope
        return p.detach() - start

    def named(self, row):
        return {name: value.numpy() for name, value in self.task.named(row.detach()).items()}

    def guessed(self, vantage=SERVER):
        known = Knowledge(task=self.task, extra={"prior": self.prior})
        rng = np.random.default_rng(0)
        return Reconstruction().attack(self.trace.seen_by(vantage), known, rng)

    def audited(self, vantage=SERVER, seed=0):
        rng = np.random.default_rng(seed)
        return Reconstruction().score(self.guessed(vantage), self.truth, rng)


@pytest.mark.parametrize("make", [language_model, classifier])
def test_naive_an_update_names_exactly_the_tokens_that_were_read(make):
    federation = Texts(make())
    guess = federation.guessed()
    read = federation.read if guess.last_is_read else federation.read[..., :-1]
    for used, texts in zip(guess.used, read, strict=True):
        assert set(np.flatnonzero(used)) == set(texts.ravel())


@pytest.mark.parametrize("make", [language_model, classifier])
def test_power_all_tokens_of_every_text_are_named(make):
    result = Texts(make()).audited()
    assert result.headline == ALL_TOKENS
    assert result.estimates[ALL_TOKENS].value == 1.0
    assert result.estimates[ALL_TOKENS].baseline == 0.0
    assert result.estimates[TOKENS].value == 1.0
    assert result.estimates[TOKENS].baseline < 0.3
    assert result.test.significant
    assert all(c["precision"] == 1.0 for c in result.per_client.values())


def test_null_texts_that_nobody_read_alarm_at_most_at_the_level():
    task = classifier()
    results = [Texts(task, seed=s, learnt=False).audited(seed=s) for s in range(60)]
    assert sum(r.test.significant for r in results) <= 5  # 60 at 2.5 %: more in one of 250


def test_monotone_more_noise_never_names_more():
    task = classifier()
    shares = [Texts(task, noise=z).audited().estimates[TOKENS].value for z in (0, 0.005, 0.02, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[-1] < 0.3


def test_noise_that_moves_every_row_names_few_tokens_that_nobody_read():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1, 20_000, 32)).astype(np.float32)
    rows[0, :10] *= 5
    found = np.flatnonzero(tokens.named_tokens(rows, 0.0)[0])
    assert set(range(10)) <= set(found)
    assert len(found) <= 12


def test_a_client_that_reads_most_of_the_vocabulary_still_names_what_it_read():
    federation = Texts(classifier(), clients=2, size=60)
    shares = federation.guessed().used.mean(axis=1)
    assert np.all(shares > 0.5)
    for used, texts in zip(federation.guessed().used, federation.read, strict=True):
        assert set(np.flatnonzero(used)) == set(texts.ravel())


def test_rows_without_names_and_sums_name_the_tokens_of_all_clients():
    task = classifier()
    for sender, rows in ((ANONYMOUS, 6), (AGGREGATOR, 1)):
        federation = Texts(task, sender=sender)
        guess = federation.guessed()
        assert len(guess.used) == rows
        assert set(guess.sender) == {""}
        assert set(np.flatnonzero(guess.used.any(axis=0))) == set(federation.read.ravel())
        assert federation.audited().estimates[ALL_TOKENS].value == 1.0


def test_vantage_who_sees_no_model_cannot_ask():
    with pytest.raises(NotApplicable):
        Texts(classifier()).audited(NETWORK)


def test_padding_is_no_token_of_a_text():
    guess = Texts(classifier()).guessed()
    guess.used[:] = False
    guess.used[:, 7] = True
    x = np.array([[7, 7, -100], [7, 8, -100]])
    share, whole = tokens.found_share(guess, ["c0"], x, np.zeros(2, int))
    np.testing.assert_allclose(share, [1.0, 0.5])
    assert [*whole] == [True, False]


def test_a_frozen_embedding_names_nothing():
    class Frozen(Bag):
        def __init__(self):
            super().__init__()
            self.register_buffer("fixed", self.table.weight.detach().clone())
            del self.table

        def forward(self, x):
            return self.out(nn.functional.embedding(x, self.fixed).mean(-2))

    with pytest.raises(NotApplicable) as error:
        Texts(Classifier(Frozen())).guessed()
    assert error.value.code == "no_trained_embedding"


def test_embeddings_are_found_by_running_the_model():
    x, y = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.zeros(1, dtype=torch.int64)
    assert embedding_end(language_model(), x, y) == EmbeddingEnd("tokens.weight", False, "position")
    assert embedding_end(classifier(), x, y) == EmbeddingEnd("table.weight", True)


# -- order ----------------------------------------------------------------------------------------


def test_a_single_text_is_read_in_order_whatever_the_number_of_steps():
    texts = Texts(language_model(), size=1)
    texts_read = texts.read[:, 0, :-1]
    np.testing.assert_array_equal(texts.guessed().placed, texts_read)
    result = texts.audited()
    assert result.estimates[PLACED].value == 1.0
    assert result.estimates[PLACED].baseline < 0.1


def test_repeated_tokens_are_placed_by_least_squares():
    rng = np.random.default_rng(1)
    moves, order = rng.normal(size=(8, 12)), np.array([3, 1, 3, 3, 0, 1, 2, 3])
    table = np.stack([moves[order == t].sum(axis=0) for t in range(5)])
    named = np.array([True, True, True, True, False])
    found = tokens.placed_tokens(table, moves, named, 8)
    np.testing.assert_array_equal(found, order)
    # with fewer columns than positions, those that occur once
    found = tokens.placed_tokens(table[:, :4], moves[:, :4], named, 8)
    once = np.isin(order, [0, 2])
    np.testing.assert_array_equal(found[once], order[once])


def test_null_several_texts_or_noise_place_nothing():
    assert (Texts(language_model(), size=2).guessed().placed < 0).mean() > 0.9
    noisy = Texts(language_model(), size=1, noise=1e-2).guessed()
    assert (noisy.placed >= 0).mean() < 0.1


def test_without_trained_positions_no_order_is_claimed():
    assert (Texts(classifier(), size=1).guessed().placed < 0).all()
