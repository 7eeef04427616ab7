"""The round loop, top to bottom.

One method per shape of federation (`_star`, `_hierarchy`, `_gossip`), each a list of numbered
steps; `Federation.run` runs them, records the messages on the wire, and saves checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.accounting import Exposure
from fedaudit.arrays import Indices
from fedaudit.federation.aggregate import ServerOptimiser, mixing_among, weighted_sum
from fedaudit.federation.checks import check_examples, check_parts
from fedaudit.federation.local.lowrank import LowRankTrainer
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.federation.protected import protected_data, protected_trainer
from fedaudit.federation.requests import Request, RoundLoop, run_rounds
from fedaudit.federation.resume import FederationState, restore, save
from fedaudit.federation.rounds import Rounds
from fedaudit.federation.topology import Topology
from fedaudit.federation.wire import as_carried, next_step, record_models, record_uploads
from fedaudit.hooks import Hook, Uploads, declaration_of
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.rows import empty_rows, take_rows
from fedaudit.tasks.task import Examples, Task
from fedaudit.trace.ledger import QUERY, query_layout
from fedaudit.trace.recorder import MODEL, Recorder, RoundWriter
from fedaudit.trace.schema import AGGREGATOR, PUBLIC, SERVER, SHUFFLER
from fedaudit.trace.truth import TruthRecorder

RoundProgress = Callable[[int, dict[str, float]], None]

RoundSteps = Generator[Request, Tensor, tuple[dict[int, str], npt.NDArray[np.float32]]]


@dataclass
class Federation:
    """Clients, a task, and the rules of training.

    `party`: names of the clients on the wire (pseudonyms). `region` (K,): organisation numbers for
    hierarchies. `protections` act in the given order. `probe`: the adversary's hook. `test`:
    held-out examples for the metrics of each round. `tier`: how clients train (`local.trainer`).
    """

    task: Task
    data: ClientData
    rounds: Rounds
    training: Training
    seed: Seed
    topology: Topology | None = None
    region: Indices | None = None
    protections: Sequence[Hook] = ()
    probe: Hook | None = None
    test: Examples | None = None
    tier: str = "auto"
    party: tuple[str, ...] = ()
    _trainer: Trainer | LowRankTrainer = field(init=False, repr=False)
    _data: ClientData = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.data.sizes)
        if not self.party:
            width = max(2, len(str(count - 1)))
            self.party = tuple(f"client-{i:0{width}d}" for i in range(count))
        hooks = [*self.protections, *([self.probe] if self.probe else [])]
        check_parts(
            count,
            party=self.party,
            region=self.region,
            topology=self.topology,
            rounds=self.rounds,
            hooks=hooks,
        )
        if self.rounds.aggregation == "fedavg":
            for protection in self.protections:
                protection.check_round(self.rounds.taking_part(count))
        self._data = protected_data(self.data, self.protections, self.seed)
        check_examples(self._data.sizes)
        self._trainer = self.trainer_for(1)

    @property
    def clients_data(self) -> ClientData:
        """The clients' training data, after protections that act on data."""
        return self._data

    def trainer_for(self, copies: int) -> Trainer | LowRankTrainer:
        """The trainer of these clients, or of `copies` copies of them with the same protections."""
        return protected_trainer(
            self.task,
            self.training,
            self.protections,
            self.seed,
            clients=len(self.party),
            copies=copies,
            persons=self.data.person is not None,
            tier=self.tier,
        )

    def _broadcast(self, model: Tensor, clients: Indices, number: int) -> Tensor:
        for hook in (*self.protections, *([self.probe] if self.probe else [])):
            if hook.acts_at("broadcast"):
                model = hook.broadcast(
                    model, receivers=clients, round_number=number, seed=self.seed
                )
        return model

    def exposures(self) -> tuple[Exposure, ...]:
        """Steps, rounds and sampling rate of every client over the whole run, for the accountant.

        Without Poisson sampling no amplification holds: the rate is then 1.
        """
        training = self._trainer.training
        taking_part = np.zeros(len(self.party), dtype=np.int64)
        for number in range(1, self.rounds.rounds + 1):
            taking_part[self._participants(number)] += 1
        return tuple(
            Exposure(
                sampling_rate=training.expected_batch(int(n)) / int(n)
                if training.sampling == "poisson"
                else 1.0,
                steps=training.steps_for(int(n)),
                rounds=int(t),
            )
            for n, t in zip(self._data.sizes, taking_part, strict=True)
        )

    # -- the loop ----------------------------------------------------------------------------

    def run(
        self,
        recorder: Recorder | None = None,
        truth: TruthRecorder | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        keep_raw: bool = False,
        progress: RoundProgress | None = None,
    ) -> Tensor:
        """Run all rounds (or those that are missing) and return the final model (d,).

        With a recorder, every round is written before the next begins; with a checkpoint, a run
        that was killed continues after its last complete round and ends with the same trace.
        """
        rounds = self.round_loop(
            recorder, truth, checkpoint=checkpoint, keep_raw=keep_raw, progress=progress
        )
        return run_rounds(rounds, lambda r: self.train(r.sent, r.clients, r.number))

    def replay_draws(self) -> None:
        """Note which steps draw which canaries, as a run does, without training."""
        for number in range(1, self.rounds.rounds + 1):
            self._trainer.replay_draws(self._participants(number), self._data, number)

    def train(self, sent: Tensor, clients: Indices, number: int) -> Tensor:
        """Train `clients` in one round: their updates (n, d)."""
        return self._trainer.train(sent, clients, self._data, number)

    def round_loop(
        self,
        recorder: Recorder | None = None,
        truth: TruthRecorder | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        keep_raw: bool = False,
        progress: RoundProgress | None = None,
    ) -> RoundLoop:
        """All rounds as a generator: yields training requests, receives updates, returns the final
        model. The caller chooses who trains: see `federation.requests`."""
        state = restore(checkpoint, recorder, truth, self.task)
        server = ServerOptimiser(
            self.rounds.server_learning_rate, self.rounds.server_momentum, state.velocity
        )
        one_round = {
            "fedavg": self._star,
            "hierarchical": self._hierarchy,
            "gossip": self._gossip,
        }[self.rounds.aggregation]

        def run_round(number: int) -> Generator[Request, Tensor, dict[str, float]]:
            # a separate function, so that the memory of a round is freed before the next one
            clients = self._participants(number)
            with recorder.round() if recorder is not None else nullcontext() as wire:
                senders, raw = yield from one_round(state, server, clients, number, wire)
                if wire is not None and number == self.rounds.rounds:
                    self._release(state, wire)
                metrics = self._metrics(state) if truth is not None or progress is not None else {}
                if truth is not None:
                    names = [self.party[c] for c in clients]
                    truth.round(number, senders, raw if keep_raw else None, names, metrics)
            return metrics

        for number in range(state.round + 1, self.rounds.rounds + 1):
            metrics = yield from run_round(number)
            state.round, state.velocity = number, server.velocity
            save(checkpoint, state)
            if progress is not None:
                progress(number, metrics)
        if recorder is not None:
            recorder.close()
        return state.models.mean(dim=0)

    def _participants(self, number: int) -> Indices:
        count = len(self.party)
        take = self.rounds.taking_part(count)
        if take == count:
            return np.arange(count)
        order = np.argsort(self.seed.bits("participants", number, np.arange(count)))
        return np.sort(order[:take])

    def _metrics(self, state: FederationState) -> dict[str, float]:
        if self.test is None:
            return {}
        return self.task.metrics(state.models.mean(dim=0), self.test, self.seed)

    def _release(self, state: FederationState, wire: RoundWriter) -> None:
        last = next_step(wire)
        wire.send("model", SERVER, PUBLIC, state.models.mean(dim=0).numpy(), step=last)

    # -- one round of each shape -------------------------------------------------------------

    def _star(
        self,
        state: FederationState,
        server: ServerOptimiser,
        clients: Indices,
        number: int,
        wire: RoundWriter | None,
    ) -> RoundSteps:
        # 1. the server sends the model; probes may plant another one for each receiver
        sent = self._broadcast(state.models[0], clients, number)
        if wire is not None:
            self._record_downlink(wire, sent, clients, [SERVER] * len(clients), step=0)
        # 2. clients train
        deltas = yield Request(sent, clients, number)
        # 3. protections act on the uploads, then the uploads cross the wire
        uploads = self._uploads(state, deltas, clients, number, sent)
        senders = self._record_uploads(wire, uploads, sent, clients, SERVER, step=1)
        if not uploads.total_weight:
            return senders, deltas.numpy()  # a secure sum failed: the model stays as it is
        # 4. the server sums; noise goes on the sum, before the division
        total = weighted_sum(uploads.rows, uploads.weights)
        for hook in self.protections:
            if hook.acts_at("aggregate"):
                total = hook.aggregate(total, round_number=number, seed=self.seed)
        # 5. the server takes a step
        state.models = server.step(state.models[0], total / uploads.total_weight).unsqueeze(0)
        return senders, deltas.numpy()

    def _hierarchy(
        self,
        state: FederationState,
        server: ServerOptimiser,
        clients: Indices,
        number: int,
        wire: RoundWriter | None,
    ) -> RoundSteps:
        assert self.region is not None
        region = self.region[clients]
        hubs = [f"region-{r}" for r in region]
        # 1. the root sends the model to the regions, the regions to their clients
        sent = self._broadcast(state.models[0], clients, number)
        if wire is not None:
            # a probe that plants one model per client acts at the regions
            root = sent if sent.dim() == 1 else state.models[0]
            row = wire.put_once(MODEL, root.numpy())
            involved = sorted(set(hubs))
            wire.send_rows("model", [SERVER] * len(involved), involved, row, step=0)
            self._record_downlink(wire, sent, clients, hubs, step=1)
        # 2. clients train
        deltas = yield Request(sent, clients, number)
        # 3. every region receives its clients' uploads
        senders: dict[int, str] = {}
        means, totals, numbers = [], [], []
        for r in np.unique(region):
            inside = np.flatnonzero(region == r)
            start = sent if sent.dim() == 1 else take_rows(sent, inside)
            uploads = self._uploads(
                state, take_rows(deltas, inside), clients[inside], number, start
            )
            senders |= self._record_uploads(
                wire, uploads, start, clients[inside], f"region-{r}", step=2
            )
            total = weighted_sum(uploads.rows, uploads.weights)
            means.append(total / (uploads.total_weight or 1.0))  # 0: its sum failed
            totals.append(uploads.total_weight)
            numbers.append(int(r))
        rows, weights = torch.stack(means), np.array(totals)
        # 4. regions send their means to the root, weighted by their total weight
        if wire is not None:
            names = [f"region-{r}" for r in numbers]
            wire.send_rows(
                "delta",
                names,
                [SERVER] * len(names),
                rows.numpy(),
                step=next_step(wire),
                weights=list(weights),
            )
        if not weights.any():
            return senders, deltas.numpy()  # the secure sums of all regions failed
        total = weighted_sum(rows, weights)
        for hook in self.protections:
            if hook.acts_at("aggregate"):
                total = hook.aggregate(total, round_number=number, seed=self.seed)
        # 5. the root takes a step
        state.models = server.step(state.models[0], total / weights.sum()).unsqueeze(0)
        return senders, deltas.numpy()

    def _gossip(
        self,
        state: FederationState,
        server: ServerOptimiser,
        clients: Indices,
        number: int,
        wire: RoundWriter | None,
    ) -> RoundSteps:
        assert self.topology is not None
        n = len(self.party)
        if len(state.models) == 1:
            # 0. all nodes start from the same model
            if wire is not None:
                everyone = np.arange(n)
                self._record_downlink(wire, state.models[0], everyone, [SERVER] * n, step=0)
            state.models = empty_rows(n, state.models.shape[1]).copy_(state.models)
        # 1. the nodes that take part train from their own models
        deltas = yield Request(take_rows(state.models, clients), clients, number)
        trained = empty_rows(*state.models.shape).copy_(state.models)
        trained.index_add_(0, torch.from_numpy(clients), deltas)
        # 2. each sends its model to the neighbours that take part
        mixing = mixing_among(self.topology.metropolis_weights(), clients)
        senders: dict[int, str] = {}
        if wire is not None:
            for i in clients:
                near = [j for j in np.flatnonzero(mixing[:, i]) if j != i]
                if not near:
                    continue  # no neighbour takes part: nothing crosses the wire
                row = wire.put(MODEL, trained[i : i + 1].numpy())
                first = wire.send_rows(
                    "model",
                    [self.party[i]] * len(near),
                    [self.party[j] for j in near],
                    row,
                    step=1,
                    weights=[float(mixing[j, i]) for j in near],
                )
                senders |= {first + a: self.party[i] for a in range(len(near))}
        # 3. every node mixes what it received: x_i <- sum_j W_ij x_j
        weights = torch.from_numpy(mixing).to(trained.dtype)
        state.models = torch.matmul(weights, trained, out=empty_rows(*trained.shape))
        return senders, deltas.numpy()

    # -- the wire ----------------------------------------------------------------------------

    def _uploads(
        self, state: FederationState, deltas: Tensor, clients: Indices, number: int, sent: Tensor
    ) -> Uploads:
        """The uploads as deltas, even if the wire carries models: a protection always acts on a
        client's own contribution."""
        sizes = self._data.sizes[clients]
        by_size = self.rounds.weighting == "size"
        weights = sizes.astype(np.float64) if by_size else np.ones(len(clients))
        uploads = Uploads(
            rows=deltas,
            senders=tuple(self.party[c] for c in clients),
            weights=weights,
            origin=clients,
            total_weight=float(weights.sum()),
            metadata=tuple({"examples": int(s)} for s in sizes) if by_size else (),
            memory=state.memory,
            model=sent if sent.dim() == 1 else None,
        )
        for hook in self.protections:
            if hook.acts_at("upload"):
                uploads = hook.upload(uploads, round_number=number, seed=self.seed)
        return uploads

    def _record_downlink(
        self, wire: RoundWriter, sent: Tensor, clients: Indices, senders: list[str], *, step: int
    ) -> None:
        record_models(wire, sent, senders, [self.party[c] for c in clients], step=step)

    def _record_uploads(
        self,
        wire: RoundWriter | None,
        uploads: Uploads,
        sent: Tensor,
        clients: Indices,
        receiver: str,
        *,
        step: int,
    ) -> dict[int, str]:
        """Record the uploads; returns message index -> true sender."""
        uploads = as_carried(uploads, sent, clients, self.rounds.wire)
        if wire is None:
            return {}
        return record_uploads(wire, uploads, receiver, self.party, step=step)

    def layouts(self) -> dict[str, Layout]:
        """Layouts for a recorder: the model, and queries if a protection requests sums."""
        found = {MODEL: self.task.layout}
        if any(p.asks for p in self.protections):
            found[QUERY] = query_layout(self.party)
        for hook in self.protections:
            found |= hook.layouts
        return found

    def about(self) -> dict[str, Any]:
        """The arguments of a recorder for this federation."""
        return {
            "layouts": self.layouts(),
            "federation": self.describe(),
            "declared": [declaration_of(p) for p in self.protections],
            "task": self.task.settings,
        }

    def describe(self) -> dict[str, Any]:
        """Parties and topology, for the manifest of a trace."""
        hubs = [SERVER]
        if self.rounds.aggregation == "hierarchical" and self.region is not None:
            hubs += [f"region-{r}" for r in np.unique(self.region)]
        extra = [SHUFFLER] if any(p.between == SHUFFLER for p in self.protections) else []
        extra += [AGGREGATOR] if any(p.asks for p in self.protections) else []
        edges = [] if self.topology is None else [list(e) for e in self.topology.edges]
        return {
            "aggregation": self.rounds.aggregation,
            "topology": "star" if self.topology is None else self.topology.kind,
            "hubs": hubs,
            "clients": list(self.party),
            "parties": [*hubs, *extra, *self.party],
            "edges": edges,
            "organisations": None if self.region is None else [int(r) for r in self.region],
        }
