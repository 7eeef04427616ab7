"""The six places where a protection or a probe can act.

    data       once per client before round 1: local differential privacy lives here
    broadcast  the model on its way to a receiver
    gradient   per example, before anything is summed
    step       the sum over one batch
    upload     what leaves a client, and who is said to have sent it
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

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.accounting import Exposure, Guarantee
    from fedaudit.randomness import Seed

Indices = npt.NDArray[np.int64]

PLACES = ("data", "broadcast", "gradient", "step", "upload", "aggregate")


@dataclass(frozen=True)
class Leg:
    """A hop on which a message was sealed: who handed how many bytes to whom is all that shows.

    `kind` of message where it is not that of the uploads; `query` the number of the question that
    it belongs to, if there are several in a round.
    """

    sender: str
    receiver: str
    size: int
    kind: str | None = None
    query: int | None = None


@dataclass(frozen=True)
class Question:
    """A sum that was asked for through secure aggregation, and what came back.

    `clients` (n,) whose updates are in the sum (or would have been); `row` (d,) the answer, None if
    there was none; `metadata` of the question (why it was refused), `told` of its answer.
    """

    clients: Indices
    row: Tensor | None
    metadata: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    told: Mapping[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Uploads:
    """What leaves the clients in one round, as the receiver will see it.

    `rows` (n, d); `senders` (n,) as written on the wire; `weights` (n,) what the aggregate
    multiplies a row by; `kind` of message; `metadata` (n,) whatever else travels in the clear;
    `origin` (n,) the client each row truly comes from, for the truth alone (-1: no single one);
    `total_weight` what the sum is divided by (0: the sum failed, and there is no row); `legs`
    sealed hops before the last one; `questions` all sums that were asked for, in order, where there
    is a ledger of them. Question 0 is then the training aggregate, and its answer is `rows` itself.
    """

    rows: Tensor
    senders: tuple[str, ...]
    weights: npt.NDArray[np.float64]
    origin: Indices
    total_weight: float
    kind: str = "delta"
    metadata: tuple[Mapping[str, float | int | str | bool], ...] = ()
    legs: tuple[Leg, ...] = field(default=())
    questions: tuple[Question, ...] = field(default=())


class Hook:
    """Does nothing in all six places. Override the ones where the hook acts.

    `name` is the word in a config; `covers` names what of an upload it protects, so that a trace
    can be checked for what left a client beside it: "parameter", "buffer", "weight", "metadata",
    "sender". `trust` says who must be honest for it to hold.
    """

    name: ClassVar[str] = ""
    covers: ClassVar[tuple[str, ...]] = ()
    trust: ClassVar[str] = ""

    #: bound on the norm of one example's gradient; the trainer clips in its kernel
    clip_norm: float | None = None
    #: whose gradient is clipped: one example's, or the sum over a record's or a person's examples
    clip_unit: str = "record"
    #: whether sums are asked for by name: a recording then holds a ledger of questions
    asks: ClassVar[bool] = False
    #: "poisson" where the guarantee needs it; None leaves the config's choice
    sampling: ClassVar[Literal["shuffle", "poisson"] | None] = None

    def declare(self) -> dict[str, Any]:
        """What is announced in the manifest of a trace: public by nature."""
        return {"name": self.name, "covers": list(self.covers), "trust": self.trust}

    def check_clients(self, count: int) -> None:
        """Raise if this hook does not fit a federation of `count` clients."""

    def check_round(self, count: int) -> None:
        """The same for `count` uploads that are aggregated together."""

    def resolved(self, exposures: Sequence[Exposure]) -> Hook:
        """This hook with whatever depends on the federation filled in (a target epsilon)."""
        return self

    def repeated(self, copies: int) -> Hook:
        """This hook for `copies` federations side by side: client c of copy s is s * K + c."""
        return self

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee | None:
        """What one client is promised after its exposure; None if nothing is promised."""
        return None

    def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
        """One client's examples, once, before the first round."""
        return x, y

    def broadcast(
        self, model: Tensor, *, receivers: Indices, round_number: int, seed: Seed
    ) -> Tensor:
        """The model (d,) for all receivers; return (d,), or (K, d) for a row each."""
        return model

    def gradient(self, each: Tensor) -> Tensor:
        """Per-example gradients (K, B, d)."""
        return each

    def step(
        self, sums: Tensor, *, clients: Indices, round_number: int, step: int, seed: Seed
    ) -> None:
        """The sums (K, d) of one batch of each client, changed in place."""

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        """What leaves the clients."""
        return uploads

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        """The weighted sum over clients (d,)."""
        return total

    def acts_at(self, place: str) -> bool:
        """Whether this hook overrides a place."""
        return getattr(type(self), place) is not getattr(Hook, place)
