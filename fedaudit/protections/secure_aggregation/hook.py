"""The protection `secure_aggregation` of a config: uploads are masked, the server receives sums.

`[protections.secure_aggregation]` runs the protocol once per round for the training aggregate, and
once more for every subset of `plan`. The trace records what is visible on the wire: the queries,
the size of every masked upload, the answers.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.hooks import AddedNoise, Hook, Leg, SumQuery, Uploads
from fedaudit.protections.clip import needs_deltas
from fedaudit.protections.secure_aggregation.aggregator import (
    ClientThreshold,
    LedgerEntry,
    SecureAggregator,
)
from fedaudit.protections.secure_aggregation.graph import COMPLETE_UP_TO, Graph, Neighbours, Quorum
from fedaudit.protections.secure_aggregation.ledger import Budget, Cosine
from fedaudit.protections.secure_aggregation.refusals import QueryRefused, TooFewLeft
from fedaudit.protections.secure_aggregation.ring import RingQuantiser
from fedaudit.protections.secure_aggregation.scalars import (
    NOISE_EXCLUDES,
    ScalarRelease,
    ScalarSettings,
)
from fedaudit.protections.secure_aggregation.server import RunPlan
from fedaudit.randomness import Seed
from fedaudit.settings import Count, PositiveFinite, Share, ShareBelowOne, Whole, checked
from fedaudit.stats import query_plans
from fedaudit.trace.schema import AGGREGATOR, ANONYMOUS, RELEASE, SCALARS, UNANSWERED

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.layout import Layout
    from fedaudit.watermarks.templates import OwnerDocuments

SubsetPlan = Literal["none", "cycled", "groups", "swapped", "partitions", "paired"]


class _WeightedUpdates(Mapping[int, npt.NDArray[np.float64]]):
    """Client -> its update times its share, followed by its weight; computed on access."""

    def __init__(self, uploads: Uploads, shares: npt.NDArray[np.float64], unit: float) -> None:
        self._rows: npt.NDArray[Any] = uploads.rows.numpy()
        self.shares = shares
        self._last = uploads.weights * unit
        self._at = {int(c): i for i, c in enumerate(uploads.origin)}

    def of(self, rows: npt.NDArray[Any]) -> _WeightedUpdates:
        """The same clients and weights with other rows (n, m), which hold their share already."""
        found = copy.copy(self)
        found._rows, found.shares = rows, np.ones(len(rows))
        return found

    def __getitem__(self, client: int) -> npt.NDArray[np.float64]:
        i = self._at[client]
        return np.append(self._rows[i] * self.shares[i], self._last[i])

    def __iter__(self) -> Iterator[int]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


RINGS = {"2^32": 32, "2^64": 64}
"""Declared modulus -> bits."""


@dataclass(frozen=True, kw_only=True)
@checked("protections.secure_aggregation")
class SecureAggregation(ScalarSettings, Hook):
    """Mask every upload so that only sums over at least `threshold` clients can be opened.

    `bound`: largest absolute value of any number in an update. `dropout`: probability that a client
    drops out before its upload, and again before unmasking.

    `plan` requests subset sums beside the training aggregate: five balanced partitions, one a
    round and then again ("cycled"), fixed "groups", groups in which a fraction `swap` of the
    clients changes groups every round ("swapped"), fresh random "partitions", or the published
    "paired" subsets ([FedAttr] Eq. (3)) with `repeats` of each kind per target. `subset_size`: size
    of the groups, or N of the pairs (default: the threshold).
    `quorum`: shares that restore a secret, see `ClientRules`.
    `refuse_isolating` refuses queries that together with others would isolate fewer than
    `threshold` clients.

    `max_cosine` or `max_partitions` gives the clients a `Budget` across rounds (the other limit at
    its default), for updates that keep a share `persistence` from round to round.

    With `release = "scalars"` these subset sums hold inner products with gradients of an owner's
    documents only: see `scalars`.

    `masks = "skipped"` computes the same sums and costs without keys and masks, for long
    simulations; `record_seconds` adds times to the trace, which then differs from run to run.
    """

    name: ClassVar[str] = "secure_aggregation"
    covers: ClassVar[tuple[str, ...]] = ("parameter", "buffer", "weight", "metadata", "sender")
    trust: ClassVar[str] = (
        "the clients' keys; fewer than a third of clients collude (beyond 100: 5 %)"
    )
    other_names: ClassVar[tuple[str, ...]] = ("secureaggregation", "secagg")
    asks: ClassVar[bool] = True
    only_sums: ClassVar[bool] = True
    transport: ClassVar[str] = "secure sum"
    between: ClassVar[str] = AGGREGATOR
    outside_parties: ClassVar[tuple[str, ...]] = (AGGREGATOR,)

    threshold: ClientThreshold = 5
    modulus_bits: Literal[32, 64] = 32
    bound: PositiveFinite = 16.0
    dropout: ShareBelowOne = 0.0
    plan: SubsetPlan = "none"
    subset_size: Count | None = None
    repeats: Count = 5
    swap: Share = 0.25
    refuse_isolating: bool = True
    quorum: Quorum = "two_thirds"
    max_cosine: Cosine | None = None
    max_partitions: Whole | None = None
    persistence: Share = 2 / 3
    masks: Literal["real", "skipped"] = "real"
    record_seconds: bool = False
    scalars: ScalarRelease | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.check_release(self.plan)
        if self.plan != "none" and self.size < self.threshold:
            raise ConfigError(
                "the plan requests subsets below the threshold, which would all be refused",
                expected=f"subset_size of at least threshold = {self.threshold}",
                got=str(self.size),
                remedy=f"set threshold = {self.size}, and refuse_isolating = false where the plan "
                "needs it",
            )

    @property
    def size(self) -> int:
        """Clients in a group of the plan, or N of the pairs."""
        return self.threshold if self.subset_size is None else self.subset_size

    def declare(self) -> dict[str, Any]:
        own = {
            "threshold": self.threshold,
            "modulus": f"2^{self.modulus_bits}",
            "bytes_per_number": self.modulus_bits // 8,
            "bound": self.bound,
            "plan": self.plan,
            "refuse_isolating": self.refuse_isolating,
            "quorum": self.quorum,
            "masks": self.masks,
        }
        if self.budget is not None:
            own["budget"] = asdict(self.budget)
        if self.scalars is not None:
            own |= self.scalars.declare()
        return {**super().declare(), **own}

    @property
    def budget(self) -> Budget | None:
        """What all rounds together may tell about a client; None: no limit."""
        if self.max_cosine is None and self.max_partitions is None:
            return None
        asked = Budget(persistence=self.persistence)
        if self.max_cosine is not None:
            asked = replace(asked, max_cosine=self.max_cosine)
        if self.max_partitions is not None:
            asked = replace(asked, max_partitions=self.max_partitions)
        return asked

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise | None:
        """Rounding to the ring, uniform within a step; None if the ring is not declared."""
        bits = RINGS.get(str(declared.get("modulus")))
        if bits is None or not declared.get("bound"):
            return None
        step = RingQuantiser(float(declared["bound"]), clients, bits).step
        return AddedNoise("rounding", 1.0 / math.sqrt(12.0), step)

    @classmethod
    def trusted(cls, declared: Mapping[str, Any], *, clients: int) -> str:
        """As `trust`, counted for so many clients; other software states its own."""
        if "masks" not in declared:
            return super().trusted(declared, clients=clients)
        complete = clients <= COMPLETE_UP_TO
        most = (clients - 1) // 3 if complete else clients - Neighbours().honest(clients)
        return f"the clients' keys; at most {most} of {clients} colluding"

    @property
    def subset_sums(self) -> bool:
        return self.plan != "none"

    def queries(self, clients: int) -> int:
        return 2 * clients * self.repeats if self.plan == "paired" else clients

    def remarks(self, count: int = 0) -> tuple[str, ...]:
        drawn: tuple[str, ...] = ()
        if count > COMPLETE_UP_TO:
            ask = Neighbours()
            drawn = (
                f"secure_aggregation, {ask.colluding:.0%} colluding and {ask.dropout:.0%} gone: "
                f"{self._graph(count)}",
            )
        if self.scalar_noise:
            return (*drawn, NOISE_EXCLUDES)
        if not self.draws_pairs or not self.refuse_isolating:
            return drawn
        return (
            *drawn,
            "the published pairs reveal every update: with refuse_isolating = true most of them "
            "are refused, and little can be attributed",
        )

    def check_clients(self, count: int) -> None:
        self._fits(
            count,
            "there are fewer clients than a secure sum needs",
            got=f"{count} clients",
            remedy="use more clients, or a lower threshold",
        )

    def check_round(self, count: int) -> None:
        self._fits(
            count,
            "fewer clients take part in a round than a secure sum needs",
            got=f"{count} in one aggregate",
            remedy="raise federation.participation, use larger regions, or a lower threshold",
        )
        most = self._graph(count).largest_threshold(Neighbours())
        if self.threshold > most:
            raise ConfigError(
                "clients would refuse this threshold: a sparse graph cannot keep it",
                expected=f"at most {most} of {count} clients: that many are surely in the sum",
                got=f"threshold = {self.threshold}",
                remedy=f"protections.secure_aggregation.threshold = {most}",
            )

    def _graph(self, count: int) -> Graph:
        """The graph of a round of so many clients."""
        plan = RunPlan(
            round=1,
            length=1,
            threshold=self.threshold,
            quorum=self.quorum,
            complete=self.subset_sums or None,
        )
        return plan.graph_of(count)

    def _fits(self, count: int, problem: str, *, got: str, remedy: str) -> None:
        """Raise ConfigError if `count` clients are too few for the threshold or the plan."""
        if count < self.threshold:
            least = f"at least protections.secure_aggregation.threshold = {self.threshold}"
            raise ConfigError(problem, expected=least, got=got, remedy=remedy)
        if self.plan == "paired":
            query_plans.check_pairs(count, self.size, self.repeats)
        elif self.plan != "none":
            query_plans.group_count(count, self.size)

    def with_documents(self, owner: OwnerDocuments | None, seed: Seed) -> SecureAggregation:
        if self.release == "sums":
            return self
        if owner is None or not owner.keys:
            raise ConfigError(
                "scalars are products with gradients on an owner's documents, and there are none",
                expected="[marks], whose documents the owner commits to",
                got="a run without marks",
                remedy='add [marks], or protections.secure_aggregation.release = "sums"',
            )
        bound = replace(self)
        made = ScalarRelease.of(owner, self, self.threshold, seed)
        object.__setattr__(bound, "scalars", made)
        return bound

    @property
    def layouts(self) -> dict[str, Layout]:
        return {} if self.scalars is None else {SCALARS: self.scalars.terms.layout}

    @property
    def draws_pairs(self) -> bool:
        return self.plan == "paired"

    def paired_queries(
        self, count: int, round_number: int, seed: Seed, part: int = 0
    ) -> tuple[query_plans.PairedQueries, ...]:
        fresh = seed.generator("secure_aggregation/plan", round_number, part)
        return query_plans.paired_plan(count, self.size, self.repeats, fresh)

    def subsets(self, count: int, round_number: int, seed: Seed, part: int = 0) -> list[Indices]:
        """The plan of one round: positions among `count` clients, no subset twice.

        `part` distinguishes the regions of a hierarchy.
        """
        fixed = seed.generator("secure_aggregation/plan", 0, part)
        fresh = seed.generator("secure_aggregation/plan", round_number, part)
        if self.plan == "none":
            return []
        if self.plan == "cycled":
            five = query_plans.balanced_partitions(count, self.size, query_plans.CYCLE, fixed)
            rows = five[(round_number - 1) % query_plans.CYCLE]
        elif self.plan == "groups":
            rows = query_plans.fixed_groups(count, self.size, 1, fixed)[0]
        elif self.plan == "swapped":
            rows = query_plans.swapped_groups(
                count, self.size, round_number, fixed, fraction=self.swap
            )[-1]
        elif self.plan == "partitions":
            rows = query_plans.random_partitions(count, self.size, 1, fresh)[0]
        else:
            pairs = self.paired_queries(count, round_number, seed, part)
            rows = np.concatenate([p.queries for p in pairs])
        _, first = np.unique(rows, axis=0, return_index=True)
        return [np.flatnonzero(rows[i]) for i in np.sort(first)]

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        needs_deltas(self.name, uploads)
        self._check(uploads)
        cap = float(uploads.weights.max())
        shares = uploads.weights / cap
        aggregator = SecureAggregator(
            threshold=self.threshold,
            bound=self.bound,
            modulus_bits=self.modulus_bits,
            refuse_isolating=self.refuse_isolating,
            masks=self.masks == "real",
            quorum=self.quorum,
            budget=self.budget,
            history=uploads.memory.setdefault(self.name, []),
            draw=seed.generator("secure_aggregation/neighbours", round_number).bytes,
            complete=self.subset_sums,
        )
        # send the weight as one more number, in units of the ring, so that the sum of weights is
        # exact
        unit = RingQuantiser(self.bound, len(uploads.rows), self.modulus_bits).step
        weighted = _WeightedUpdates(uploads, shares, unit)
        aggregator.begin(round_number, weighted, _digest(uploads))
        gone = self._gone(uploads.origin, round_number, seed)
        names = dict(zip(map(int, uploads.origin), uploads.senders, strict=True))
        everybody = [int(c) for c in uploads.origin]
        total, entry = self._ask(aggregator, round_number, everybody, gone)
        queries = [replace(self._sum_query(aggregator, entry, total, cap), row=None)]
        legs = _legs(entry, names)
        if total is None:
            return self._failed(uploads, queries, legs)
        part = int(uploads.origin.min())
        refused = self._release_scalars(aggregator, weighted, uploads, round_number, seed)
        for subset in self.subsets(len(everybody), round_number, seed, part):
            members = [everybody[i] for i in subset]
            if refused:
                about = {UNANSWERED: refused, RELEASE: SCALARS}
                queries.append(SumQuery(np.array(members, dtype=np.int64), None, about))
                continue
            answer, entry = self._ask(aggregator, round_number, members, gone)
            queries.append(self._sum_query(aggregator, entry, answer, cap, self.release))
            legs += _legs(entry, names)
        return replace(
            uploads,
            rows=_tensor(total[:-1] * cap, uploads.rows).unsqueeze(0),
            senders=(AGGREGATOR,),
            weights=np.ones(1),
            origin=np.array([-1], dtype=np.int64),
            total_weight=float(np.rint(total[-1] / unit)),
            kind="sum",
            metadata=({"query": 0, **queries[0].answer_metadata},),
            legs=(*uploads.legs, *legs),
            queries=tuple(queries),
        )

    def _release_scalars(
        self,
        aggregator: SecureAggregator,
        weighted: _WeightedUpdates,
        uploads: Uploads,
        round_number: int,
        seed: Seed,
    ) -> str:
        """Let clients hand in products instead of updates; why they refuse, or nothing.

        The round's ledger goes on: the training aggregate counts against sums of products too.
        """
        if self.scalars is None:
            return ""
        if uploads.model is None:
            return "scalars were refused: clients received different models"
        try:
            units = self.scalars.units(uploads.model.numpy())
        except QueryRefused as error:
            return error.what
        draw = [
            seed.generator("secure_aggregation/scalar_noise", round_number, int(c))
            for c in uploads.origin
        ]
        rows = self.scalars.products(units, uploads.rows.numpy(), weighted.shares, draw)
        aggregator.begin(round_number, weighted.of(rows), _digest(uploads))
        return ""

    def _check(self, uploads: Uploads) -> None:
        """Raise ConfigError for uploads that the protocol cannot carry, before masking."""
        if ANONYMOUS in uploads.senders:
            raise ConfigError(
                "secure aggregation needs named senders",
                expected="uploads under their senders' names",
                got="anonymous uploads",
                remedy="remove the shuffle: secure aggregation leaves nothing to shuffle",
            )
        self.check_round(len(uploads.rows))
        weights = uploads.weights
        if not (weights > 0).all() or (weights != np.rint(weights)).any():
            raise ConfigError(
                "secure aggregation needs whole-number weights",
                expected="numbers of examples, or 1 for all",
                got=f"weights from {weights.min():g} to {weights.max():g}",
                remedy='federation.weighting = "equal" or "size"',
            )

    def _gone(
        self, clients: Indices, round_number: int, seed: Seed
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Clients that drop out of this round before their upload, and after it."""
        if not self.dropout:
            return frozenset(), frozenset()
        draws = seed.uniform(
            "secure_aggregation/dropout", round_number, clients[None], np.arange(2)[:, None]
        )
        before, after = (frozenset(clients[row < self.dropout].tolist()) for row in draws)
        return before, after

    def _ask(
        self,
        aggregator: SecureAggregator,
        round_number: int,
        clients: list[int],
        gone: tuple[frozenset[int], frozenset[int]],
    ) -> tuple[Any, LedgerEntry]:
        """The answer (d + 1,) or None, and its ledger entry, which gives the reason."""
        total = None
        with suppress(QueryRefused, TooFewLeft):  # the ledger has the reason; training continues
            total = aggregator.query(
                round_number, clients, gone_before_upload=gone[0], gone_before_reveal=gone[1]
            )
        return total, aggregator.ledger.entries[-1]

    def _sum_query(
        self,
        aggregator: SecureAggregator,
        entry: LedgerEntry,
        answer: Any,
        cap: float,
        release: str = "sums",
    ) -> SumQuery:
        answer_metadata: dict[str, float | int | str | bool] = {}
        if entry.answered:
            answer_metadata["error"] = aggregator.stored_error(answer[:-1], cap, len(entry.members))
            if self.record_seconds:
                answer_metadata["seconds"] = entry.seconds
        metadata = {} if entry.answered else {UNANSWERED: entry.reason}
        row = None if answer is None else answer[:-1] * cap
        about = SumQuery(
            clients=np.array(entry.members or entry.asked, dtype=np.int64),
            row=None if row is None else _tensor(row, None),
            metadata=metadata,
            answer_metadata=answer_metadata,
        )
        if release == "sums":
            return about
        import torch

        exact = None if row is None else torch.from_numpy(row)
        return replace(about, row=exact, metadata={**metadata, RELEASE: SCALARS}, layout=SCALARS)

    def _failed(self, uploads: Uploads, queries: list[SumQuery], legs: list[Leg]) -> Uploads:
        """Uploads of a round whose sum failed: no row, so the model does not change."""
        return replace(
            uploads,
            rows=uploads.rows[:0],
            senders=(),
            weights=np.zeros(0),
            origin=np.zeros(0, dtype=np.int64),
            total_weight=0.0,
            kind="sum",
            metadata=(),
            legs=(*uploads.legs, *legs),
            queries=tuple(queries),
        )


def _digest(uploads: Uploads) -> str:
    """Of the model that all clients received; empty where they received different ones."""
    if uploads.model is None:
        return ""
    return hashlib.sha256(uploads.model.numpy().tobytes()).hexdigest()


def _tensor(values: Any, like: Tensor | None) -> Tensor:
    import torch

    return torch.from_numpy(values).to(torch.float32 if like is None else like.dtype)


def _legs(entry: LedgerEntry, names: dict[int, str]) -> list[Leg]:
    """The sealed hops of a query: bytes that each client sent and received."""
    up = [Leg(names[c], AGGREGATOR, n, "masked", entry.query) for c, n in entry.sent.items()]
    down = [Leg(AGGREGATOR, names[c], n, "masked", entry.query) for c, n in entry.received.items()]
    return [*up, *down]
