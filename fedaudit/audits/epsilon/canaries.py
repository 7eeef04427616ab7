"""Canaries, what was declared about them, and a rehearsal that holds both.

The adversary knows every canary and every declaration. It does not know the coins, which decide
which canaries were inserted: those are truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Exposure, PrivacyCurve, Relation, privacy_curve
from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.layout import Layout
from fedaudit.trace import View

Kind = Literal["dense", "layer", "record", "client"]
KINDS: tuple[Kind, ...] = ("dense", "layer", "record", "client")
Release = Literal["steps", "sums", "uploads", "models"]
"""Where declared noise is read: sums of steps inside an upload, or inside the movement of the
model; single uploads, or the movement of the model."""

Gradients = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""Model (d,) -> gradients (n, d) of the record canaries, in their order."""
FINENESS = 1.02
"""Ratio of neighbouring noise multipliers in a search for the least noise that is not refuted."""

BEYOND = 2_000.0
"""Expected privacy loss, in nats, beyond what any number of guesses can refute."""


@dataclass(frozen=True, kw_only=True)
class CanaryVectors:
    """m canaries; those of gradients are unit vectors on few columns of the model.

    `columns` (m, s) and `unit` (m, s): where a vector is not zero, and its values (0 where it has
    fewer columns). No two share a column, so all are exactly orthogonal. `norm` (m,): its norm over
    the declared clip. `client` (m,): who would insert it. `kind` (m,): dense, layer or record.
    `tensor` (m,): the tensor that holds all its columns, -1 if several do; `tensors` names them.
    """

    columns: Indices
    unit: npt.NDArray[np.float32]
    norm: Floats
    client: Indices
    kind: npt.NDArray[np.str_]
    tensor: Indices
    tensors: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.norm)

    @property
    def is_record(self) -> Bools:
        return np.asarray(self.kind == "record")

    def with_records(self, norms: Floats, clients: int) -> CanaryVectors:
        """These canaries and records of the given sizes, dealt to clients in turn."""
        n, wide = len(norms), self.columns.shape[1]
        return replace(
            self,
            columns=np.concatenate([self.columns, np.zeros((n, wide), dtype=np.int64)]),
            unit=np.concatenate([self.unit, np.zeros((n, wide), dtype=np.float32)]),
            norm=np.concatenate([self.norm, norms]),
            client=np.concatenate([self.client, np.arange(n) % clients]),
            kind=np.concatenate([self.kind, np.full(n, "record")]),
            tensor=np.concatenate([self.tensor, np.full(n, -1)]),
        )

    def along(self, rows: npt.NDArray[np.floating[Any]]) -> Floats:
        """Products of rows (n, d) with every canary's unit vector: (n, m)."""
        out = np.empty((len(rows), len(self)))
        for i, row in enumerate(rows):
            out[i] = (row[self.columns] * self.unit).sum(axis=1)
        return out


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is declared of one client: noise `multiplier` x `clip` on the sum of every step.

    `records`: the number of units that the noise protects: the client's records or persons, or all
    clients. `once`: noise is added once to a sum over clients, not by each of them.
    """

    exposure: Exposure
    multiplier: float
    clip: float
    epsilon: float
    delta: float
    unit: str
    relation: Relation
    records: int
    once: bool = False

    @property
    def schedule(self) -> tuple[Any, ...]:
        """Clients of one schedule have one curve, and their coins may be pooled."""
        return self.exposure, self.multiplier, self.delta, self.relation

    def curve(self, step: float = 0) -> PrivacyCurve:
        """The curve of the declared schedule with `step` x 2 % less noise."""
        z, e = self.multiplier * FINENESS**-step, self.exposure
        if e.total * e.sampling_rate > 2 * z * z * BEYOND:
            return PrivacyCurve(np.zeros(1), np.zeros(1), np.inf)
        return privacy_curve(self.exposure, z, relation=self.relation)

    def epsilon_of_share(self, share: float) -> float:
        """The least epsilon of this schedule, with any noise, at which a share of coins can be
        guessed correctly: (1 + TV) / 2 reaches it."""
        low, high = -240, 240
        if 2 * share - 1 <= self.curve(low).total_variation:
            return 0.0
        while high - low > 1:
            middle = (low + high) // 2
            short = self.curve(middle).total_variation < 2 * share - 1
            low, high = (middle, high) if short else (low, middle)
        return self.curve(low).epsilon_at(self.delta, below=True)


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A run of the federation with canaries, as the adversary sees it.

    `promises`: of every client, in the order of `clients`. `scale` (K,): learning rate over the
    divisor of a batch sum, if an upload is minus this times the sum of all noisy sums; None for
    optimisers with a memory. `batches` (n, 5): round, step, client, real examples drawn, and their
    expected number. `gradients`: those of the record canaries. `notes`: remarks for the reader.
    `single`: every example is a unit of privacy. `held`: keeps a folder. `release`: where the noise
    is read. For whole clients, a batch is a client's part in a round; `server`: learning rate and
    momentum of the server. `weights` (K,): of clients in a sum.
    """

    view: View
    canaries: CanaryVectors
    promises: tuple[Promise, ...]
    clients: tuple[str, ...]
    scale: Floats | None
    batches: Indices
    gradients: Gradients | None = None
    single: bool = True
    notes: tuple[str, ...] = ()
    release: Release = "steps"
    server: tuple[float, float] = (1.0, 0.0)
    weights: Floats = field(default_factory=lambda: np.ones(1))
    held: Any = None

    @property
    def moves(self) -> Floats:
        """How far one clip moves each client's upload: (K,)."""
        clip = np.array([p.clip for p in self.promises])
        return clip if self.scale is None else clip * self.scale

    @property
    def powers(self) -> Floats:
        """Variance of the declared noise in each client's upload, per number: (K,)."""
        z = np.array([p.multiplier for p in self.promises])
        steps = np.array([p.exposure.steps for p in self.promises])
        return np.asarray(steps * np.square(z * self.moves))


def place_canaries(
    layout: Layout,
    *,
    kinds: Sequence[Kind],
    norms: Sequence[float],
    count: int,
    clients: int,
    trained: int,
    rng: np.random.Generator,
) -> CanaryVectors:
    """Blocks of random signs on columns of their own: `layer` ones first, `dense` ones on the rest.

    A layer canary lies within one tensor; every tensor gets as many, at most one on two columns.
    A dense canary lies in as many tensors as have room, with the same power in each: clipping of
    each tensor by itself leaves sqrt(number of tensors) times the clip of it, the most there is.
    """
    entries = [e for e in layout.entries if e.offset + e.size <= trained]
    placed = _Placed()
    free = np.ones(trained, dtype=bool)
    count = min(count, trained // 2)
    width = max(1, trained // count)
    if "layer" in kinds:
        share = count // 4 if "dense" in kinds else count
        each = max(1, share // max(1, len(entries)))
        for t, e in enumerate(entries):
            number = min(each, max(1, e.size // 2))
            wide = max(1, min(width, e.size // 2 // number))
            for i in range(number):
                at = e.offset + i * wide + np.arange(wide)
                free[at] = False
                placed.add(at, "layer", t)
    if "dense" in kinds:
        number = max(1, count - len(placed.at))
        free_in = [e.offset + np.flatnonzero(free[e.offset : e.offset + e.size]) for e in entries]
        for at, tensors in _spread(free_in, number, rng):
            placed.add(at, "dense", tensors[0] if len(set(tensors)) == 1 else -1, tensors)
    return placed.drawn(norms, clients, tuple(e.name for e in entries), rng)


def _spread(
    free: Sequence[Indices], number: int, rng: np.random.Generator
) -> Iterator[tuple[Indices, list[int]]]:
    """Columns of `number` canaries and the tensor of each column, from free columns per tensor.

    A tensor with fewer free columns than canaries serves some of them, chosen at random.
    """
    blocks: list[list[tuple[Indices, int]]] = [[] for _ in range(number)]
    for t, columns in enumerate(free):
        served = rng.permutation(number)[: len(columns)]
        wide = len(columns) // max(1, len(served))
        mixed = rng.permutation(columns)
        for i, canary in enumerate(served):
            blocks[canary].append((mixed[i * wide : (i + 1) * wide], t))
    for own in filter(None, blocks):
        yield np.concatenate([at for at, _ in own]), [t for at, t in own for _ in at]


@dataclass
class _Placed:
    """Blocks of columns, as they are placed."""

    at: list[Indices] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    tensor: list[int] = field(default_factory=list)
    size: list[Floats] = field(default_factory=list)

    def add(self, at: Indices, kind: str, tensor: int, tensors: Sequence[int] = ()) -> None:
        """One canary; `tensors`: of each column, where there are several, of the same power."""
        each = np.unique(tensors or [tensor] * len(at), return_inverse=True)[1]
        columns = np.bincount(each)
        self.at.append(at)
        self.kind.append(kind)
        self.tensor.append(tensor)
        self.size.append(1 / np.sqrt(columns[each] * len(columns)))

    def drawn(
        self,
        norms: Sequence[float],
        clients: int,
        tensors: tuple[str, ...],
        rng: np.random.Generator,
    ) -> CanaryVectors:
        """The canaries on these blocks, with random signs; clients and norms take turns."""
        m, wide = len(self.at), max((len(at) for at in self.at), default=1)
        columns, unit = np.zeros((m, wide), dtype=np.int64), np.zeros((m, wide), dtype=np.float32)
        for k, at in enumerate(self.at):
            signs = rng.choice([-1.0, 1.0], size=len(at))
            columns[k, : len(at)] = at
            unit[k, : len(at)] = signs * self.size[k]
        order = rng.permutation(m)
        turn = np.empty(m, dtype=np.int64)
        turn[order] = np.arange(m)
        sizes = np.asarray(norms, dtype=np.float64)
        # layer canaries ask which tensor is not clipped: only a large one tells
        kind = np.array(self.kind, dtype=np.str_)
        layer = kind == "layer"
        return CanaryVectors(
            columns=columns,
            unit=unit,
            norm=np.where(layer, sizes.max(), sizes[turn // clients % len(sizes)]),
            client=turn % clients,
            kind=kind,
            tensor=np.array(self.tensor, dtype=np.int64),
            tensors=tensors,
        )
