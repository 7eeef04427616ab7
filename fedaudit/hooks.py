"""The six places where a protection or a probe can act.

    data       once per client before round 1: local differential privacy lives here
    broadcast  the model on its way to a receiver
    gradient   per example, before anything is summed
    step       the sum over one batch
    upload     what leaves a client, under which sender name
    aggregate  the sum over clients, before it is divided

A protection is a hook held by an honest party, a probe is a hook held by the adversary. The wire is
recorded between the two: after all protections of an upload, after all probes of a broadcast.
Noise goes on sums; the engine divides afterwards, so a sensitivity is never rescaled by accident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.accounting import Exposure, Guarantee
    from fedaudit.randomness import Seed


PLACES = ("data", "broadcast", "gradient", "step", "upload", "aggregate")


@dataclass(frozen=True)
class Leg:
    """A hop of a sealed message: only sender, receiver and size are visible.

    `kind`: kind of message, if it differs from that of the uploads. `query`: number of its query,
    if a round has several.
    """

    sender: str
    receiver: str
    size: int
    kind: str | None = None
    query: int | None = None


@dataclass(frozen=True)
class SumQuery:
    """A sum requested through secure aggregation, and its answer.

    `clients` (n,): clients in the sum, or those requested. `row` (d,): the answer, None if the
    query was refused or failed. `metadata`: of the query (why it was refused). `answer_metadata`:
    of the answer.
    """

    clients: Indices
    row: Tensor | None
    metadata: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    answer_metadata: Mapping[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Uploads:
    """The uploads of one round, as the receiver sees them.

    `rows` (n, d). `senders` (n,): as written on the wire. `weights` (n,): factor of each row in the
    aggregate. `kind`: of the messages. `metadata` (n,): sent in the clear with each row. `origin`
    (n,): the true client of each row, recorded in the truth only (-1: no single client).
    `total_weight`: divisor of the sum (0: the sum failed, and there is no row). `legs`: sealed hops
    before the last one. `queries`: all sums requested in this round, in order, if the protection
    keeps a ledger. Query 0 is then the training aggregate, and its answer is `rows`.
    """

    rows: Tensor
    senders: tuple[str, ...]
    weights: npt.NDArray[np.float64]
    origin: Indices
    total_weight: float
    kind: str = "delta"
    metadata: tuple[Mapping[str, float | int | str | bool], ...] = ()
    legs: tuple[Leg, ...] = field(default=())
    queries: tuple[SumQuery, ...] = field(default=())


@dataclass(frozen=True)
class AddedNoise:
    """Noise that a protection adds: each number's standard deviation is `multiplier` x `scale`.

    `place`: it is added to the batch sum of every local step ("step"), to every upload ("upload"),
    to the sum over clients ("aggregate"), or by rounding an upload times its weight over the
    largest weight ("rounding"). `multiplier`: one for all clients, or one per client in their
    order. `scale`: the clip norm, or the rounding step.
    """

    place: Literal["step", "upload", "aggregate", "rounding"]
    multiplier: float | tuple[float, ...]
    scale: float

    @classmethod
    def declared_at(
        cls, place: Literal["step", "upload", "aggregate"], declared: Mapping[str, Any]
    ) -> AddedNoise:
        """Noise of the declared multiplier and clip norm."""
        z = declared.get("noise_multiplier") or 0.0
        multiplier = tuple(map(float, z)) if isinstance(z, list | tuple) else float(z)
        return cls(place, multiplier, float(declared.get("clip") or 0.0))


class Hook:
    """A hook that does nothing. Override the places where your hook acts.

    `name`: its name in a config. `covers`: the parts of an upload that it protects ("parameter",
    "buffer", "weight", "metadata", "sender"); a trace is checked for parts that left unprotected.
    `trust`: the parties who must be honest.
    """

    name: ClassVar[str] = ""
    covers: ClassVar[tuple[str, ...]] = ()
    trust: ClassVar[str] = ""

    #: bound on the norm of one example's gradient; the trainer clips in its kernel
    clip_norm: float | None = None
    #: the unit of clipping: one example's gradient, or the sum over a record or a person
    clip_unit: str = "record"
    #: whether the server requests sums over named clients; the trace then holds a ledger of queries
    asks: ClassVar[bool] = False
    #: whether only sums leave, no single update
    only_sums: ClassVar[bool] = False
    #: whether single updates leave without their senders' names
    hides_senders: ClassVar[bool] = False
    #: the party between clients and server, if there is one
    between: ClassVar[str] = ""
    #: whether it changes neither sum nor training: it can be applied to a stored trace exactly
    exact_afterwards: ClassVar[bool] = False
    #: whether it accepts whole models as well as updates
    takes_models: ClassVar[bool] = False
    #: whether it needs feature bounds that are fixed before any record is seen
    fixed_domain: ClassVar[bool] = False
    #: factor by which it lengthens a training step
    slowdown: ClassVar[float] = 1.0
    #: "poisson" if the guarantee needs Poisson batches; None keeps the config's choice
    sampling: ClassVar[Literal["shuffle", "poisson"] | None] = None

    def declare(self) -> dict[str, Any]:
        """The public description of this hook, written to the manifest of a trace."""
        return {"name": self.name, "covers": list(self.covers), "trust": self.trust}

    @property
    def own_multipliers(self) -> tuple[float, ...]:
        """Noise multipliers in the order of the clients, if each has its own; else empty."""
        return ()

    @property
    def subset_sums(self) -> bool:
        """Whether the server requests sums over parts of the clients."""
        return False

    def queries(self, clients: int) -> int:
        """Approximate number of sums requested in a round of `clients` clients."""
        return 0

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise | None:
        """The noise of a hook that declares `declared`, in a round of `clients`; None without any.

        A trace holds declarations, not hooks, and other software declares the same protections.
        """
        return None

    def remarks(self) -> tuple[str, ...]:
        """Warnings about these settings, shown before a run."""
        return ()

    def check_clients(self, count: int) -> None:
        """Raise if this hook does not fit a federation of `count` clients."""

    def check_round(self, count: int) -> None:
        """Raise if this hook does not fit `count` uploads that are aggregated together."""

    def resolved(self, exposures: Sequence[Exposure]) -> Hook:
        """This hook with settings computed from the federation (noise for a target epsilon)."""
        return self

    def repeated(self, copies: int) -> Hook:
        """This hook for `copies` federations side by side: client c of copy s is s * K + c."""
        return self

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee | None:
        """The formal guarantee of one client after its exposure; None if there is none."""
        return None

    def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
        """Change one client's examples; called once, before the first round."""
        return x, y

    def broadcast(
        self, model: Tensor, *, receivers: Indices, round_number: int, seed: Seed
    ) -> Tensor:
        """Change the model (d,) sent to all receivers; return (d,), or (K, d) for one row each."""
        return model

    def gradient(self, each: Tensor) -> Tensor:
        """Change per-example gradients (K, B, d)."""
        return each

    def step(
        self, sums: Tensor, *, clients: Indices, round_number: int, step: int, seed: Seed
    ) -> None:
        """Change the batch sums (K, d) of the clients, in place."""

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        """Change the uploads of a round."""
        return uploads

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        """Change the weighted sum over clients (d,)."""
        return total

    def acts_at(self, place: str) -> bool:
        """Whether this hook overrides a place."""
        return getattr(type(self), place) is not getattr(Hook, place)
