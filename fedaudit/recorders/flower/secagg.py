"""Record Flower's own secure aggregation: the server's view of a round of SecAgg or SecAgg+.

    workflow = RecordingSecAggWorkflow(SecAggPlusWorkflow(3, 2), "trace", names=list(state_dict))
    DefaultWorkflow(fit_workflow=workflow)(grid, context)

A round's trace contains the model to every client, every client's masked vector (and the sizes of
keys and shares), the query with the members of the sum, and the opened sum. That is the sum of
weighted updates: the opened values minus the sent models. Flower masks only tensors; numbers of
examples and metrics travel in the clear and are recorded in the clear.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.common import FitIns, FitRes, Parameters, bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext
from flwr.server.client_proxy import ClientProxy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import Grid

from fedaudit.errors import UsageError
from fedaudit.layout import Layout
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import Content, Named, Scalars, single, weight_of
from fedaudit.recorders.flower.legacy import content_from, instructed
from fedaudit.recorders.flower.protections import MASKED_BY, declared_by
from fedaudit.recorders.flower.tape import WEIGHT, Reply, Sent, Tape, TapeOptions
from fedaudit.trace import AGGREGATOR, SERVER
from fedaudit.trace.ledger import QUERY, query_layout
from fedaudit.trace.recorder import RoundWriter
from fedaudit.trace.schema import FAILED, LEFT_OUT, REFUSED, STAGE, UNANSWERED

MASKED = "masked"
"""Layout of masked vectors: the masked weight, then every tensor."""
FACTOR = "masked/weight"


@dataclass
class Exchange:
    """One stage of the protocol with one client: bytes in both directions, and the reply."""

    stage: str
    node: int
    down: int
    up: int = 0
    scalars: Scalars = field(default_factory=dict)
    vector: list[npt.NDArray[Any]] | None = None
    failed: str = ""


class SecAggTape(Tape):
    """Writes rounds of secure aggregation."""

    def __init__(self, *given: Any, masked: bool, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._masked = masked
        self._columns: tuple[str, ...] = ()
        self.modulus = 1 << 32

    def declare(self, threshold: int, others: Sequence[Mapping[str, Any]]) -> None:
        """Set the declared protections; the first messages of a run show them."""
        if self._recorder is None:
            own = {
                "name": "secure_aggregation",
                "flower": self._about.get("workflow", ""),
                # weights, metrics and names are in the clear
                "covers": ["parameter", "buffer", "integer"],
                "trust": MASKED_BY,
                "threshold": threshold,
                "modulus": f"2^{self.modulus.bit_length() - 1}",
            }
            self._declared = [own, *others]

    def _layouts(self, contents: Sequence[Content]) -> dict[str, Layout]:
        layouts = super()._layouts(contents)
        self._columns = tuple(sorted(self.name(n) for n in self._nodes))
        layouts[QUERY] = query_layout(self._columns)
        dtype = "uint32" if self.modulus <= 1 << 32 else "int64"
        kept = self._vector_shapes() if self._masked else {FACTOR: (1,)}
        layouts[MASKED] = Layout.of(kept.items(), dtype=dtype)
        return layouts

    def _vector_shapes(self) -> dict[str, tuple[int, ...]]:
        return {FACTOR: (1,), **{f"masked/{k}": s for k, s in self._shapes.items()}}

    def record_sum(self, legs: Sequence[Exchange], mean: Named | None, why: str) -> None:
        """Write a round. `mean`: the opened mean, or None and `why` it was not opened."""
        self._next += 1
        if self._shapes:
            self._guarded(self._record_sum, legs, mean, why)
        self._sent = []

    def _record_sum(self, legs: Sequence[Exchange], mean: Named | None, why: str) -> None:
        masked = [leg for leg in legs if leg.stage == Stage.COLLECT_MASKED_VECTORS]
        self._learn_names([Reply(leg.node, Content({}, scalars=leg.scalars)) for leg in masked])
        recorder = self._writer([])
        # the model travels with the shares: clients that left earlier have not received it
        reached = {leg.node for leg in masked}
        chosen = [s.node for s in self._sent]
        self._sent = [s for s in self._sent if s.node in reached]
        members = {leg.node: leg for leg in masked if leg.vector is not None}
        with recorder.round() as wire:
            for at, stage in enumerate(Stage.all()):
                own = [leg for leg in legs if leg.stage == stage]
                if stage == Stage.COLLECT_MASKED_VECTORS:
                    self._write_models(wire, 2 * at)
                self._write_legs(wire, own, 2 * at)
            self._write_sum(wire, [*members] or chosen, members, mean, why)

    def _write_legs(self, wire: RoundWriter, legs: Sequence[Exchange], step: int) -> None:
        """Write what each client received in a stage besides the model, and its reply."""
        for leg in legs:
            who = self.name(leg.node)
            notes = {STAGE: leg.stage, **self._newcomer(who)}
            wire.send(MASKED, SERVER, who, None, step=step, size=leg.down, notes=notes)
        for leg in legs:
            payload, refused = self._vector(leg)
            who = self.name(leg.node)
            notes = {STAGE: leg.stage, **self._newcomer(who)}
            if leg.failed:
                notes[FAILED] = leg.failed
            if refused:
                notes[REFUSED] = refused
            wire.send(
                MASKED,
                who,
                SERVER,
                payload,
                step=step + 1,
                weight=weight_of(leg.scalars, WEIGHT),
                size=leg.up,
                metadata=leg.scalars,
                notes=notes,
            )

    def _vector(self, leg: Exchange) -> tuple[Named | None, str]:
        """A masked vector by its names in the trace, or the reason why it is not recorded."""
        if leg.vector is None:
            return None, ""
        shapes = self._vector_shapes()
        got = [a.shape for a in leg.vector]
        if got != list(shapes.values()):
            refused = f"tensors of shapes {got}, unlike the model"
            warnings.warn(f"a masked vector is not recorded: {refused}", stacklevel=2)
            return None, refused
        found = dict(zip(shapes, leg.vector, strict=True))
        return (found if self._masked else {FACTOR: found[FACTOR]}), ""

    def _write_sum(
        self,
        wire: RoundWriter,
        asked: Sequence[int | str],
        members: Mapping[int, Exchange],
        mean: Named | None,
        why: str,
    ) -> None:
        """Write the query with the members of the sum, and the sum."""
        names = [self.name(n) for n in asked]
        late = sorted(set(names) - set(self._columns))
        asks: dict[str, Any] = {QUERY: 0}
        notes: dict[str, Any] = {}
        question = None
        if late:
            # the query table has columns only for nodes that were there at the start
            notes[LEFT_OUT] = f"nodes that joined later: {', '.join(late)}"
            warnings.warn(f"a sum is not recorded: {notes[LEFT_OUT]}", stacklevel=2)
        else:
            question = {c: np.uint8(c in names) for c in self._columns}
        if mean is None:
            asks[UNANSWERED] = why
        step = 2 * len(Stage.all())
        wire.send("query", SERVER, AGGREGATOR, question, step=step, metadata=asks, notes=notes)
        if mean is None:
            return
        weights = {n: weight_of(leg.scalars, WEIGHT) for n, leg in members.items()}
        total = sum(weights.values())
        opened = {
            k: total * a.astype(np.float64) for k, a in mean.items() if k not in self._integers
        }
        for sent in self._sent:
            if sent.node in weights:
                for k, a in opened.items():
                    a -= weights[sent.node] * sent.content.model[k]
        given = {QUERY: 0, "total weight": total}
        payload = None if late else {k: a.astype(np.float32) for k, a in opened.items()}
        size = sum(a.nbytes for a in mean.values())
        wire.send(
            "sum",
            AGGREGATOR,
            SERVER,
            payload,
            step=step + 1,
            size=size,
            metadata=given,
            notes=notes,
        )


def _bytes(configs: Mapping[str, Any]) -> int:
    """Size of a record's keys and values; Flower's own count fails on an empty list."""
    values = [
        v for given in configs.values() for v in (given if isinstance(given, list) else [given])
    ]
    return sum(map(len, configs)) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in values)


class _ListeningGrid(Grid):
    """A grid that passes messages on and reports them to `note`."""

    def __init__(self, grid: Grid, note: Callable[[list[Message], list[Message]], None]) -> None:
        self._grid, self._note = grid, note

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *given: Any, **settings: Any) -> Message:
        return self._grid.create_message(*given, **settings)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        received = list(self._grid.send_and_receive(sent, timeout=timeout))
        self._note(sent, received)
        return received


class RecordingSecAggWorkflow:
    """Wraps a SecAgg(Plus)Workflow and writes a trace of it.

    Messages, results and failures pass through unchanged. Use it as the `fit_workflow`, around
    Flower's own; the trace is complete after the last round. `names` are the keys of the model's
    state dict. `masked=False` records only the first number and the size of masked vectors, since
    no audit reads them. The other settings are those of RecordingStrategy.
    """

    def __init__(
        self,
        workflow: SecAggPlusWorkflow,
        path: str | os.PathLike[str],
        *,
        names: Sequence[str] | None = None,
        masked: bool = True,
        tensors: str | Sequence[str] = "*",
        dtype: str | None = None,
        purpose: str = "",
        retention: str = "",
        task: Mapping[str, Any] | None = None,
        name_by: str | None = None,
    ) -> None:
        if not isinstance(workflow, SecAggPlusWorkflow):
            raise UsageError(
                "this is not a workflow of secure aggregation",
                expected="SecAggPlusWorkflow or SecAggWorkflow of flwr.server.workflow",
                got=type(workflow).__name__,
                remedy="RecordingLegacyStrategy records apps without secure aggregation",
            )
        self.workflow, self._names = workflow, names
        self._tape = SecAggTape(
            path,
            TapeOptions(tensors=tensors, dtype=dtype, purpose=purpose, retention=retention),
            about={"workflow": type(workflow).__name__, "software": f"flwr {require()}"},
            task=task,
            name_by=name_by,
            masked=masked,
        )
        self._legs: list[Exchange] = []
        self._begun = False

    @property
    def path(self) -> Path:
        return self._tape.path

    def __call__(self, grid: Grid, context: Context) -> None:
        if not isinstance(context, LegacyContext):
            self.workflow(grid, context)  # raises Flower's own error
            return
        self._legs, self._begun = [], False
        self._tape.add_fact("aggregation", type(context.strategy).__name__)
        try:
            with self._listening(context, list(grid.get_node_ids())):
                self.workflow(_ListeningGrid(grid, self._note), context)
        finally:
            if self._begun:  # the strategy was not called: the sum was not opened
                self._write(None, self._stopped())
        self._finish(context)

    def close(self) -> None:
        """Mark the trace complete; the last round does this itself."""
        self._tape.close()

    @contextmanager
    def _listening(self, context: LegacyContext, nodes: Sequence[int]) -> Iterator[None]:
        """Record the strategy's two methods of a round."""
        inner = context.strategy
        configure, aggregate = inner.configure_fit, inner.aggregate_fit
        others = declared_by(inner)

        def configured(
            server_round: int, parameters: Parameters, client_manager: Any
        ) -> list[tuple[ClientProxy, FitIns]]:
            chosen = configure(server_round, parameters, client_manager)
            first = not self._tape.like  # refused; what does not fit later on is noted
            sent = [
                Sent(client.node_id, content)
                for (client, _), content in zip(
                    chosen, instructed(chosen, self._names, strict=first), strict=True
                )
            ]
            model = content_from(parameters, self._names, strict=first)
            self._tape.begin(server_round, sent, nodes, model)
            self._tape.declare(self._threshold(len(sent)), others)
            self._begun = True
            return chosen

        def aggregated(
            server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: Any
        ) -> Any:
            if results:
                # all results hold the same opened mean
                mean = content_from(results[0][1].parameters, self._names)
                self._write(mean.model or None, mean.lacks)
            return aggregate(server_round, results, failures)

        leading: dict[str, Any] = {"configure_fit": configured, "aggregate_fit": aggregated}
        own = {name: vars(inner)[name] for name in leading if name in vars(inner)}
        vars(inner).update(leading)
        try:
            yield
        finally:
            for name in leading:
                del vars(inner)[name]
            vars(inner).update(own)

    def _threshold(self, clients: int) -> int:
        """Fewest clients in a sum by the workflow's rule: a number, or a fraction of shares."""
        w = self.workflow
        self._tape.modulus = w.modulus_range
        if isinstance(w.reconstruction_threshold, int):
            return w.reconstruction_threshold
        shares = w.num_shares
        if isinstance(shares, float):
            shares = round(shares * clients)
            if shares < clients and shares % 2 == 0:
                shares += 1
            if shares <= 2:
                shares = clients
        return max(round(w.reconstruction_threshold * shares), 2)

    def _note(self, sent: list[Message], received: list[Message]) -> None:
        legs = {}
        for m in sent:
            configs = m.content.config_records.get(RECORD_KEY_CONFIGS)
            if configs is None:
                continue
            stage, node = str(configs.get(Key.STAGE, "")), m.metadata.dst_node_id
            legs[node] = Exchange(stage, node, down=_bytes(configs), failed="no answer in time")
        for reply in received:
            leg = legs.get(reply.metadata.src_node_id)
            if leg is None:
                continue
            leg.failed = ""
            if reply.has_error():
                leg.failed = str(single(reply.error.reason or f"code {reply.error.code}"))
                continue
            configs = reply.content.config_records[RECORD_KEY_CONFIGS]
            leg.up = _bytes(configs)
            if leg.stage == Stage.COLLECT_MASKED_VECTORS:
                arrays: Any = configs[Key.MASKED_PARAMETERS]
                leg.vector = [bytes_to_ndarray(b) for b in arrays]
                answer = compat.recorddict_to_fitres(reply.content, True)
                leg.scalars = {k: single(v) for k, v in answer.metrics.items()}
                leg.scalars[WEIGHT] = answer.num_examples
        self._legs += legs.values()

    def _stopped(self) -> str:
        """The reason why there is no sum, as far as the messages show it."""
        if not self._legs:
            return "fewer than two clients"
        last = self._legs[-1].stage
        gone = sum(bool(leg.failed) for leg in self._legs if leg.stage == last)
        return (
            f"stopped after the stage {last}: {gone} clients did not answer"
            if gone
            else (f"stopped after the stage {last}")
        )

    def _write(self, mean: Named | None, why: str) -> None:
        self._begun = False
        self._tape.record_sum(self._legs, mean, why)

    def _finish(self, context: LegacyContext) -> None:
        if self._tape.rounds_done >= context.config.num_rounds:
            last = context.state.array_records.get(MAIN_PARAMS_RECORD)
            parameters = None if last is None else compat.arrayrecord_to_parameters(last, True)
            released = None if parameters is None else content_from(parameters, self._names).model
            self._tape.close(released or None)
