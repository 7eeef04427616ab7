"""Honest federations of many kinds, all runs of a kind at once.

Five clients train two local epochs in batches of 20, and the server joins their models. Runs of a
kind differ in records, initial weights, order and learning rate; their clients are trained as one
stack of models, in place of one after the other.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from fedaudit.data import builtin
from fedaudit.protections.guard import LocalSteps
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from fedaudit.tasks.lora import adapted
from reproductions.guard.honest import words

CLIENTS, RECORDS, EPOCHS, BATCH = 5, 100, 2, 20
ALL = ("all-linear",)
State = dict[str, Tensor]


@dataclass(frozen=True)
class Behaved:
    """Models of an honest run, oldest first, and the first client's records and local steps."""

    states: list[State]
    own: tuple[Tensor, Tensor]
    build: Callable[[], nn.Module]
    local: LocalSteps


KINDS: tuple[tuple[str, str, str], ...] = (
    ("mlp", "digits", "sgd"),
    ("mlp", "digits", "momentum"),
    ("mlp", "digits", "adam"),
    ("mlp", "digits", "weight decay"),
    ("mlp", "digits", "lasso"),
    ("mlp", "digits", "noise"),
    ("mlp", "digits", "fedprox"),
    ("mlp", "digits", "fedadam"),
    ("mlp", "digits", "unlike clients"),
    ("tanh mlp", "digits", "sgd"),
    ("deep mlp", "digits", "sgd"),
    ("wide mlp", "digits", "sgd"),
    ("tiny mlp", "digits", "sgd"),
    ("identity mlp", "digits", "sgd"),
    ("monotone mlp", "breast-cancer", "sgd"),
    ("batch norm", "digits", "sgd"),
    ("mlp", "breast-cancer", "sgd"),
    ("mlp", "breast-cancer", "adam"),
    ("mlp", "wine", "sgd"),
    ("mlp", "docs", "sgd"),
    ("mlp", "words", "adam"),
    ("cnn", "digits", "sgd"),
    ("cnn", "digits", "adam"),
    ("plain cnn", "digits", "sgd"),
    ("depthwise", "digits", "sgd"),
    ("gru", "digits", "adam"),
    ("vit", "digits", "adam"),
    ("adapters", "digits", "adam"),
)
"""(model, data, training) of honest runs."""


# -- data and models -------------------------------------------------------------------------------


@lru_cache
def pool(data: str) -> tuple[Tensor, Tensor]:
    """All records of a data set; columns of tables are standardised."""
    if data == "docs":
        return _paragraphs()
    if data == "words":
        rng = np.random.default_rng(0)
        made = [words(rng) for _ in range(4)]
        x, y = (np.concatenate([getattr(d, k) for d in made]) for k in ("x", "y"))
    elif data == "wine":
        from sklearn.datasets import load_wine

        x, y = load_wine(return_X_y=True)
    else:
        loaded = builtin.load(data, seed=Seed(0))
        x, y = np.asarray(loaded.x), np.asarray(loaded.y)
    records, labels = torch.as_tensor(x).float(), torch.as_tensor(y).long()
    if data in ("wine", "breast-cancer"):
        records = (records - records.mean(0)) / records.std(0).clamp(min=1e-6)
    return records, labels


def _paragraphs(length: int = 60, vocabulary: int = 300, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Pieces of the language reference as bags of its most frequent words; the class is the part
    of the reference that a piece comes from."""
    texts = [str(t).lower().split() for t in builtin.load("docs", seed=Seed(0)).x]
    most = Counter(w for t in texts for w in t if w.isalpha()).most_common(vocabulary)
    number = {w: i for i, (w, _) in enumerate(most)}
    rows, labels = [], []
    for at, text in enumerate(texts):
        for low in range(0, len(text) - length, length):
            counts = Counter(number[w] for w in text[low : low + length] if w in number)
            row = torch.zeros(vocabulary)
            row[list(counts)] = torch.tensor(list(counts.values()), dtype=torch.float32)
            rows.append(row)
            labels.append(at * classes // len(texts))
    return torch.stack(rows), torch.tensor(labels)


class RowsInTurn(nn.Module):
    """A GRU over the rows of an image."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.side = side
        self.rows = nn.GRU(side, 24, batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rows(x.reshape(len(x), -1, self.side))[0][:, -1])
        return out


@lru_cache
def _pretrained(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small vision transformer after 40 steps on records of `digits`, for adapters."""
    x, y = pool("digits")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = models.TinyViT(shape, 4, 32, 2, 4, classes)
        optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
        for _ in range(40):
            rows = torch.randint(len(x), (64,))
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x[rows]), y[rows]))
            optimiser.step()
    return module


def build(kind: str, inputs: int, classes: int) -> nn.Module:
    side = int(inputs**0.5)
    shape = (1, side, side)
    if kind == "cnn":
        return models.cnn(shape, (8, 16), classes)
    if kind in ("plain cnn", "depthwise"):
        groups = 8 if kind == "depthwise" else 1
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
            nn.Conv2d(8, 32, 3, padding=1, groups=groups), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (side // 2) ** 2, classes),
        )  # fmt: skip
    if kind == "gru":
        return RowsInTurn(side, classes)
    if kind == "vit":
        return models.TinyViT(shape, 4, 32, 2, 4, classes)
    if kind == "adapters":
        return adapted(_pretrained(shape, classes), rank=4, scale=2.0, patterns=ALL, seed=Seed(0))
    if kind == "batch norm":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, classes),
        )  # fmt: skip
    hidden = {"deep mlp": (64, 64, 64), "wide mlp": (1024,), "tiny mlp": (8,)}.get(kind, (128,))
    made = models.mlp(inputs, hidden, classes, "tanh" if kind == "tanh mlp" else "relu")
    first = made[1]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        if kind == "identity mlp":
            first.weight[:inputs] += torch.eye(inputs)
        if kind == "monotone mlp":
            for name, p in made.named_parameters():
                if name.endswith("weight"):
                    p.abs_()
    return made


# -- training --------------------------------------------------------------------------------------


def honest_run(kind: str, data: str, seed: int, rounds: int, training: str = "sgd") -> Behaved:
    """One run."""
    return honest_runs(kind, data, [seed], rounds, training)[0]


def honest_runs(
    kind: str, data: str, seeds: Sequence[int], rounds: int, training: str = "sgd"
) -> list[Behaved]:
    """Runs of these seeds, of `rounds` rounds each."""
    x, y = pool(data)
    inputs, classes = x[0].numel(), int(y.max()) + 1
    size = min(RECORDS, len(x) // CLIENTS)
    made = partial(build, kind, inputs, classes)
    parts, initial, rates, orders = [], [], [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rates.append(float(np.exp(rng.uniform(-3.5, -1.2))))
        rows = torch.as_tensor(rng.permutation(len(x))[: CLIENTS * size])
        if training == "unlike clients":
            rows = rows[y[rows].argsort(stable=True)]
        parts.append(rows.view(CLIENTS, size))
        orders.append(rng)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            initial.append(made())
    several = _Stack(initial, torch.stack(parts), torch.tensor(rates), training, orders)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attention under vmap is told to be slow
        for _ in range(rounds):
            several.round(x, y)
    return [
        Behaved(
            [{k: v[r] for k, v in state.items()} for state in several.states],
            (x[parts[r][0]], y[parts[r][0]]),
            made,
            LocalSteps(learning_rate=rates[r], epochs=EPOCHS, batch_size=BATCH),
        )
        for r in range(len(seeds))
    ]


class _Stack:
    """R runs of K clients as one stack of models."""

    def __init__(
        self,
        initial: Sequence[nn.Module],
        parts: Tensor,
        rates: Tensor,
        training: str,
        orders: Sequence[np.random.Generator],
    ) -> None:
        self.parts, self.orders, self.training = parts, orders, training
        self.rates = rates.repeat_interleave(CLIENTS)
        self.base = copy.deepcopy(initial[0]).to("meta")
        self.monotone = training == "sgd" and all(
            bool((p >= 0).all()) for m in initial for n, p in m.named_parameters() if "weight" in n
        )
        self.trained = [n for n, p in self.base.named_parameters() if p.requires_grad]
        parameters, buffers = stack_module_state(list(initial))
        state = {k: v.detach().clone() for k, v in {**parameters, **buffers}.items()}
        self.states: list[State] = [state]
        self.server: dict[str, tuple[Tensor, Tensor]] = {}

    def round(self, x: Tensor, y: Tensor) -> None:
        received = {k: v.repeat_interleave(CLIENTS, 0) for k, v in self.states[-1].items()}
        answers = self._trained(received, x, y)
        self.states.append(self._joined(received, answers))

    def _trained(self, received: State, x: Tensor, y: Tensor) -> State:
        """Answers (R K, ...) of all clients."""
        state = {k: v.clone() for k, v in received.items()}
        gradient = vmap(grad(self._loss), randomness="different")
        memory: dict[str, Any] = {}
        size = self.parts.shape[2]
        for _ in range(EPOCHS):
            order = np.stack(
                [np.stack([rng.permutation(size) for _ in range(CLIENTS)]) for rng in self.orders]
            )
            shuffled = self.parts.gather(2, torch.as_tensor(order)).flatten(0, 1)
            for rows in torch.split(shuffled, BATCH, dim=1):
                own = {k: state[k] for k in self.trained}
                rest = {k: v for k, v in state.items() if k not in own}
                g = gradient(own, rest, x[rows], y[rows])
                self._step(state, g, received, memory)
        if self.training == "noise":
            for k in self.trained:
                generator = torch.Generator().manual_seed(len(self.states))
                noise = torch.randn(state[k].shape, generator=generator)
                moved = (state[k] - received[k]).flatten(1).norm(dim=1) / state[k][0].numel() ** 0.5
                state[k] = state[k] + noise * _along(moved, noise)
        return state

    def _loss(self, own: State, rest: State, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(functional_call(self.base, {**own, **rest}, (x,)), y)
        if self.training == "lasso":
            loss = loss + 1e-3 * sum(p.abs().sum() for p in own.values())
        return loss

    def _step(self, state: State, g: State, received: State, memory: dict[str, Any]) -> None:
        memory["step"] = memory.get("step", 0) + 1
        for k, each in g.items():
            rate = _along(self.rates, each)
            if self.training == "weight decay":
                each = each + 0.01 * state[k]
            if self.training == "fedprox":
                each = each + 0.1 * (state[k] - received[k])
            if self.training == "momentum":
                each = memory[k] = 0.9 * memory.get(k, 0.0) + each
                rate = rate / 5
            if self.training == "adam":
                each = _adam(memory, k, each, memory["step"])
                rate = rate / 30
            state[k] = state[k] - rate * each
            if self.monotone and k.endswith("weight"):
                state[k] = state[k].clamp(min=0.0)

    def _joined(self, received: State, answers: State) -> State:
        """The next model of every run: the mean of its answers, or Adam along their change."""
        out = {}
        for k, v in answers.items():
            before = self.states[-1][k]
            mean = v.view(-1, CLIENTS, *v.shape[1:]).float().mean(1)
            if self.training == "fedadam" and k in self.trained:
                m, s = self.server.get(k, (torch.zeros_like(mean), torch.zeros_like(mean)))
                change = mean - before
                m, s = 0.9 * m + 0.1 * change, 0.99 * s + 0.01 * change.square()
                self.server[k] = m, s
                mean = before + 0.01 * m / (s.sqrt() + 1e-3)
            out[k] = mean.to(before.dtype)
        return out


def _along(rates: Tensor, like: Tensor) -> Tensor:
    return rates.view(-1, *[1] * (like.dim() - 1))


def _adam(memory: dict[str, Any], k: str, g: Tensor, step: int) -> Tensor:
    m, s = memory.get(k, (torch.zeros_like(g), torch.zeros_like(g)))
    memory[k] = m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g.square()
    return m / (1 - 0.9**step) / ((s / (1 - 0.999**step)).sqrt() + 1e-8)


def answer(run: Behaved, state: Mapping[str, Tensor]) -> nn.Module:
    """The module of a run with these tensors."""
    module = run.build()
    module.load_state_dict(dict(state))
    return module
