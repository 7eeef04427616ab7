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
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.accounting import Exposure, Guarantee
    from fedaudit.layout import Layout
    from fedaudit.randomness import Seed
    from fedaudit.stats.query_plans import PairedQueries


PLACES = ("data", "broadcast", "gradient", "step", "upload", "aggregate")
STATED = (
    "only_sums",
    "hides_senders",
    "exact_afterwards",
    "limits_units",
    "randomises_records",
)
"""Facts that the declaration of a user's own protection states; fedaudit's have them by name."""
ADDED = "added_noise"
"""The same for its noise: place, multiplier and scale."""


@dataclass(frozen=True)
class Leg:
    """A hop of a sealed message: only sender, receiver and size are visible.

    `kind`: kind of message, if it differs from that of the uploads. `query`: number of its query,
    if a round has several. `weight` and `metadata`: what travels beside it in the clear.
    """

    sender: str
    receiver: str
    size: int
    kind: str | None = None
    query: int | None = None
    weight: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SumQuery:
    """A sum requested through secure aggregation, and its answer.

    `clients` (n,): clients in the sum, or those requested. `row` (d,): the answer, None if the
    query was refused or failed. `metadata`: of the query (why it was refused). `answer_metadata`:
    of the answer. `layout`: what the answer's numbers are, "model" or the name of another layout.
    """

    clients: Indices
    row: Tensor | None
    metadata: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    answer_metadata: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    layout: str = "model"


@dataclass(frozen=True)
class Uploads:
    """The uploads of one round, as the receiver sees them.

    `rows` (n, d). `senders` (n,): as written on the wire. `weights` (n,): factor of each row in the
    aggregate. `kind`: of the messages. `metadata` (n,): sent in the clear with each row. `origin`
    (n,): the true client of each row, recorded in the truth only (-1: no single client).
    `total_weight`: divisor of the sum (0: the sum failed, and there is no row). `legs`: sealed hops
    before the last one. `queries`: all sums requested in this round, in order, if the protection
    keeps a ledger. Query 0 is then the training aggregate, and its answer is `rows`. `memory`: what
    hooks keep from round to round, as JSON values under their names; checkpoints hold it. `model`
    (d,): what all clients received, None if it is not known or each received another.
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
    memory: dict[str, Any] = field(default_factory=dict, compare=False)
    model: Tensor | None = None


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

    @classmethod
    def stated(cls, declared: Mapping[str, Any]) -> AddedNoise | None:
        """The noise that a declaration itself states; None without any."""
        own = declared.get(ADDED)
        if own is None:
            return None
        z = own["multiplier"]
        multiplier = tuple(map(float, z)) if isinstance(z, list | tuple) else float(z)
        return cls(own["place"], multiplier, float(own["scale"]))


@dataclass(frozen=True, kw_only=True)
class NoiseSearch:
    """How `harden` searches the noise of a protection.

    `label`: its words in a report. `low`, `high`: the least and the largest level, where no limit
    on epsilon states them. `rank`: cheaper protections come first. `unit`: what its guarantee
    covers; empty if a setting `unit` says so. `tried`: "always", or where a limit on epsilon is
    about its unit ("promised"), or where an audit with a limit advises what it does ("advised"); in
    any case where the config has it. `per_client`: it takes one multiplier for each client.
    `settings`: those where the config has none.
    """

    label: str
    low: float
    high: float
    rank: int
    unit: str = ""
    tried: Literal["always", "promised", "advised"] = "promised"
    per_client: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class Hook:
    """A hook that does nothing. Override the places where your hook acts.

    `name`: its name in a config. `covers`: the parts of an upload that it protects ("parameter",
    "buffer", "weight", "metadata", "sender"); a trace is checked for parts that left unprotected.
    `trust`: the parties who must be honest, in words; `outside_parties`: those of them other than
    the client itself. `other_names`: how names of the same protection in other software start, in
    lower case and without signs.
    """

    name: ClassVar[str] = ""
    covers: ClassVar[tuple[str, ...]] = ()
    trust: ClassVar[str] = ""
    outside_parties: ClassVar[tuple[str, ...]] = ("not stated",)
    other_names: ClassVar[tuple[str, ...]] = ()

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
    #: whether every row leaves as it came, under whatever name and in whatever order
    keeps_rows: ClassVar[bool] = False
    #: whether it accepts whole models as well as updates
    takes_models: ClassVar[bool] = False
    #: whether it needs feature bounds that are fixed before any record is seen
    fixed_domain: ClassVar[bool] = False
    #: factor by which it lengthens a training step
    slowdown: ClassVar[float] = 1.0
    #: whether it drops what few records drive of a model's units
    limits_units: ClassVar[bool] = False
    #: whether records are randomised before training
    randomises_records: ClassVar[bool] = False
    #: whether every client has to have the same weight
    equal_weights: ClassVar[bool] = False
    #: how `harden` names the way in which uploads travel behind it; empty if they travel as before
    transport: ClassVar[str] = ""
    #: how `harden` searches its noise; None if it does not
    search: ClassVar[NoiseSearch | None] = None
    #: "poisson" if the guarantee needs Poisson batches; None keeps the config's choice
    sampling: ClassVar[Literal["shuffle", "poisson"] | None] = None

    def declare(self) -> dict[str, Any]:
        """The public description of this hook: name, coverage, trust and settings."""
        return {"name": self.name, "covers": list(self.covers), "trust": self.trust}

    @property
    def own_multipliers(self) -> tuple[float, ...]:
        """Noise multipliers in the order of the clients, if each has its own; else empty."""
        return ()

    @property
    def subset_sums(self) -> bool:
        """Whether the server requests sums over parts of the clients."""
        return False

    @property
    def draws_pairs(self) -> bool:
        """Whether the server draws pairs of subset sums, one pair of groups per client."""
        return False

    def paired_queries(
        self, count: int, round_number: int, seed: Seed, part: int = 0
    ) -> tuple[PairedQueries, ...]:
        """The pairs of subset sums that the server draws in a round.

        Queries are rows of positions among `count` clients; `part` is a region of a hierarchy.
        """
        return ()

    def queries(self, clients: int) -> int:
        """Approximate number of sums requested in a round of `clients` clients."""
        return 0

    @classmethod
    def trusted(cls, declared: Mapping[str, Any], *, clients: int) -> str:
        """Who must be honest among so many clients, of a hook that declares `declared`."""
        return str(declared.get("trust", ""))

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise | None:
        """The noise of a hook that declares `declared`, in a round of `clients`; None without any.

        A trace holds declarations, not hooks, and other software declares the same protections.
        """
        return AddedNoise.stated(declared)

    def remarks(self, count: int = 0) -> tuple[str, ...]:
        """Warnings about these settings, shown before a run.

        `count`: uploads that are aggregated together; 0 if that is not known.
        """
        return ()

    def check_clients(self, count: int) -> None:
        """Raise if this hook does not fit a federation of `count` clients."""

    def check_round(self, count: int) -> None:
        """Raise if this hook does not fit `count` uploads that are aggregated together."""

    def resolved(self, exposures: Sequence[Exposure]) -> Hook:
        """This hook with settings computed from the federation (noise for a target epsilon)."""
        return self

    def for_layout(self, layout: Layout) -> Hook:
        """This hook for models of these tensors, if it acts on parts of them."""
        return self

    def with_documents(self, owner: Any, seed: Seed) -> Hook:
        """This hook for a run in which an owner gave marked documents away; None: nobody did.

        `owner`: a `watermarks.templates.OwnerDocuments`.
        """
        return self

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layouts of its messages, beside models and queries."""
        return {}

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
        """Change the gradients (K, B, d) of the examples of a batch; weightless ones are 0."""
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


def declaration_of(hook: Hook) -> dict[str, Any]:
    """The declaration of a hook in a trace.

    A hook from outside fedaudit also states its facts and its noise: readers of the trace do not
    have its class. Rounding is not stated, because it depends on the number of clients.
    """
    own = hook.declare()
    if type(hook).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return own
    added = hook.noise(own, clients=1)
    noise = {} if added is None or added.place == "rounding" else {ADDED: asdict(added)}
    return own | {fact: True for fact in STATED if getattr(hook, fact)} | noise
