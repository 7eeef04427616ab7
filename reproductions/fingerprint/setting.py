"""One federation of a tiny language model: its data, its pretrained model, its recorded rounds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.data import builtin
from fedaudit.data.text import WordVocabulary, windows
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.stacked import Stacked
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook, Uploads
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.language_model import LanguageModel
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import Examples, seeded
from fedaudit.trace import Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.recorder import MODEL

PRETRAINED = Seed(7)
NOT_PROSE = {
    "site-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pydoc_data",
    "entities.py",
}
FROZEN = 1e-4  # server learning rate at which the global model hardly moves


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of everything. `train` windows per client must be a multiple of `steps` of a round.

    q = 1/16 is published for 20 Newsgroups, 1/8 for EmpatheticDialogue.
    """

    corpora: tuple[str, ...] = ("docs", "newsgroups", "sotu")
    clients: tuple[int, ...] = (3, 5, 10, 20)
    seeds: tuple[int, ...] = (1, 2)
    rounds: int = 10
    long_rounds: int = 16
    curve_rounds: int = 12
    train: int = 32
    steps: int = 16
    held: int = 8
    length: int = 40
    words: int = 400
    width: int = 16
    heads: int = 4
    depth: int = 4
    pretraining_steps: int = 400
    pretraining_batch: int = 32
    clips: tuple[float, ...] = (0.25, 0.5, 0.9)
    noises: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5)
    delta: float = 1e-4

    @property
    def most(self) -> int:
        return max(self.clients)

    @property
    def batch(self) -> int:
        return self.train // self.steps


FULL = Scale()
QUICK = Scale(
    corpora=("docs",),
    clients=(3, 5),
    seeds=(1, 2),
    rounds=3,
    long_rounds=4,
    curve_rounds=2,
    train=16,
    held=4,
    words=100,
    width=8,
    heads=2,
    pretraining_steps=10,
    pretraining_batch=8,
    clips=(0.5,),
    noises=(0.0, 1.0),
)


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Clients' windows (n, length + 1), windows that belong to nobody, and the model."""

    name: str
    owners: tuple[str, ...]
    train: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    rest: Tensor
    task: LanguageModel


def _owned(name: str) -> tuple[Sequence[str], Sequence[str]]:
    """Owners and texts of a data set."""
    data = builtin.load(name, seed=PRETRAINED)
    assert isinstance(data.x, tuple)
    return data.client or tuple(data.classes[i] for i in data.y), data.x


def standard_library() -> tuple[Sequence[str], Sequence[str]]:
    """Modules of this Python's standard library, each the client that owns its source.

    Natural clients in any number, on any machine. Tables of numbers and tests are left out.
    """
    root, owners, texts = Path(os.__file__).parent, [], []
    for file in sorted(root.rglob("*.py")):
        within = file.relative_to(root)
        if not NOT_PROSE & set(within.parts):
            owners.append(str(within))
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
    return owners, texts


def corpus(name: str, scale: Scale, start: Tensor | None = None) -> Corpus:
    """The owners of data set `name` that hold enough windows, a fixed number from each.

    What no client holds goes into `rest`, up to as many windows again as the clients have: text
    for pretraining. With `start`, the model begins there.
    """
    owner, texts = standard_library() if name == "stdlib" else _owned(name)
    vocabulary = WordVocabulary.build(texts, size=scale.words)
    pieces: dict[str, list[npt.NDArray[np.int64]]] = {}
    for who, text in zip(owner, texts, strict=True):
        pieces.setdefault(who, []).append(windows(vocabulary.encode(text), scale.length))
    need = scale.train + scale.held
    owned = {who: np.concatenate(w) for who, w in pieces.items()}
    enough = sorted(who for who, w in owned.items() if len(w) >= need)
    train, held, rest = [], [], [w for who, w in owned.items() if len(w) < need]
    for i, who in enumerate(enough):
        order = PRETRAINED.generator("windows", i).permutation(len(owned[who]))
        train.append(torch.from_numpy(owned[who][order[: scale.train]]))
        held.append(torch.from_numpy(owned[who][order[scale.train : need]]))
        rest.append(owned[who][order[need:]])
    others = np.concatenate(rest)
    others = others[PRETRAINED.generator("others").permutation(len(others))[:6000]]
    module = seeded(
        PRETRAINED,
        "weights",
        TinyGPT,
        len(vocabulary),
        scale.length,
        scale.width,
        scale.depth,
        scale.heads,
    )
    settings = {"kind": "gpt", "width": scale.width, "depth": scale.depth, "heads": scale.heads}
    task = LanguageModel(module, vocabulary, scale.length, settings)
    if start is not None:
        torch.nn.utils.vector_to_parameters(start, module.parameters())
    return Corpus(
        name=name,
        owners=tuple(enough),
        train=tuple(train),
        held=tuple(held),
        rest=torch.from_numpy(others),
        task=task,
    )


def pretrain(text: Corpus, scale: Scale) -> tuple[Tensor, list[float]]:
    """The model after some steps of Adam on text that no client holds; loss at the two ends."""
    module = text.task.module
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    draws = PRETRAINED.torch_generator("pretraining")
    losses = []
    for step in range(scale.pretraining_steps):
        optimiser.param_groups[0]["lr"] = 3e-3 * (1 - step / scale.pretraining_steps)
        rows = torch.randint(len(text.rest), (scale.pretraining_batch,), generator=draws)
        x = text.rest[rows]
        loss = text.task.criterion(module(x[:, :-1].clamp_min(0)), x, x[:, 0]).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    tail = max(1, len(losses) // 20)
    return text.task.initial(), [losses[0], sum(losses[-tail:]) / tail]


def gradient_norms(text: Corpus, count: int = 8) -> npt.NDArray[np.float64]:
    """Norms of the gradients of `count` training windows of every client, at the start."""
    kernel, start, out = Stacked(text.task), text.task.initial().unsqueeze(0), []
    for x in text.train:
        own = x[:count].unsqueeze(0)
        zeros = torch.zeros(own.shape[:2], dtype=torch.int64)
        each = kernel.per_example(start, own, zeros, torch.ones(own.shape[:2]), None)
        out.append(each[0].norm(dim=1).numpy())
    return np.concatenate(out).astype(np.float64)


# -- one federation -------------------------------------------------------------------------------


class SameEveryRound(Seed):
    """A seed whose batches do not depend on the round: the published determinism, on purpose.

    Noise, shuffles and participation still differ from round to round.
    """

    def bits(self, purpose: str, *coordinates: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        if purpose in ("batches", "poisson"):
            coordinates = (0, *coordinates[1:])  # the round stands first
        return super().bits(purpose, *coordinates)


@dataclass(frozen=True, kw_only=True)
class CarriedMomentum(Hook):
    """Clients that keep a momentum buffer from round to round, and upload the buffer."""

    name = "carried_momentum"
    covers = ()
    trust = "the client's own code"
    momentum: float = 0.9
    buffers: dict[int, Tensor] = field(default_factory=dict)

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        for row, client in zip(uploads.rows, uploads.origin.tolist(), strict=True):
            row += self.momentum * self.buffers.get(client, torch.zeros_like(row))
            self.buffers[client] = row.clone()
        return uploads


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one federation differs from the ordinary one."""

    clients: int
    rounds: int
    server_rate: float = FROZEN
    learning_rate: float = 0.1
    momentum: float = 0.0
    carried: bool = False
    participation: float = 1.0
    same_batches: bool = False
    clip: float | None = None
    noise: float = 0.0
    measure: bool = False


@dataclass(frozen=True)
class Recorded:
    """A recorded federation: its trace, who sent what, and held-out loss after every round."""

    trace: Trace
    truth: Truth
    losses: tuple[float, ...]


def federate(
    text: Corpus, plan: Plan, scale: Scale, seed: int, use: Callable[[Recorded], object]
) -> object:
    """Run one federation into a temporary folder and hand the recording to `use`."""
    draws = (SameEveryRound if plan.same_batches else Seed)(seed)
    who = _chosen(text, plan.clients, seed)
    zeros = torch.zeros(scale.train, dtype=torch.int64)
    held = torch.cat([text.held[i] for i in who])
    none = torch.zeros(len(held), dtype=torch.int64)
    guards: list[Hook] = [CarriedMomentum()] if plan.carried else []
    if plan.clip is not None:
        # an example is one window of a document: the unit of the published epsilons
        dp = DPSGD(noise_multiplier=plan.noise, clip=plan.clip, delta=scale.delta, unit="example")
        guards.insert(0, dp)
    federation = Federation(
        task=text.task,
        data=ClientData.join([(text.train[i], zeros) for i in who]),
        rounds=Rounds(
            rounds=plan.rounds,
            participation=plan.participation,
            server_learning_rate=plan.server_rate,
        ),
        training=Training(
            learning_rate=plan.learning_rate, momentum=plan.momentum, batch_size=scale.batch
        ),
        seed=draws,
        protections=(*guards, Shuffle()),
        test=Examples(held, none, torch.arange(len(held))) if plan.measure else None,
    )
    losses: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fingerprint-") as folder:
        recorder = Recorder(
            Path(folder) / "trace",
            layouts={MODEL: text.task.layout},
            federation=federation.describe(),
            declared=[p.declare() for p in federation.protections],
            task=text.task.settings,
            tensors=("*mlp*weight",),
        )
        truth = TruthRecorder(Path(folder) / "truth", {})
        if federation.test is not None:
            losses.append(
                text.task.metrics(text.task.initial(), federation.test, federation.seed)["loss"]
            )
        federation.run(
            recorder,
            truth,
            progress=lambda _, metrics: losses.append(metrics["loss"]) if plan.measure else None,
        )
        trace = Trace.open(Path(folder) / "trace")
        return use(Recorded(trace, Truth.open(Path(folder) / "truth"), tuple(losses)))


def _chosen(text: Corpus, count: int, seed: int) -> Sequence[int]:
    order = Seed(seed).generator("clients").permutation(len(text.owners))
    return sorted(order[:count].tolist())
