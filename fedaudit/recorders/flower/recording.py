"""Record a Flower run: from the server's side by a strategy, from a client's side by a mod."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedaudit.accounting import check_delta
from fedaudit.errors import UsageError
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import Content, content_of, named, single
from fedaudit.recorders.flower.protections import DELTA, declared_by
from fedaudit.recorders.flower.tape import WEIGHT, Heard, Keep, Sends, Sent, Tape, party
from fedaudit.trace import SERVER

ARRAYS = "arrays"
"""The record in which Flower's strategies send the model, unless they are told otherwise."""


class RecordingStrategy(Strategy):
    """A strategy that does what another one does, and writes a trace of it.

    `strategy` is any of Flower's message-based strategies; `path` a new folder. Everything passes
    through unchanged: messages, replies, results and failures. Put it outside of other wrappers,
    where it sees what the server sees; inside one, it sees what that one hands on, and does not
    know what is released.

    `tensors`, `dtype` and `sketch` select what of an upload is kept, `purpose` and `retention` are
    written into the manifest (see `tape.Keep`). `sends` says what a reply holds, a "model", a
    "delta" or a "gradient". Nodes are called node-ID; with `name_by="partition-id"` a node that
    tells this metric is called after it. `task` describes the model for audits. `delta` is that of
    what a DP wrapper promises, which reports tell. `resume` goes on with a trace after its last
    complete round.
    """

    def __init__(
        self,
        strategy: Strategy,
        path: str | os.PathLike[str],
        *,
        tensors: str | Sequence[str] = "*",
        dtype: str | None = None,
        sketch: int | None = None,
        purpose: str = "",
        retention: str = "",
        task: Mapping[str, Any] | None = None,
        sends: Sends = "model",
        name_by: str | None = None,
        delta: float = DELTA,
        resume: bool = False,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UsageError(
                "this is not one of Flower's message-based strategies",
                expected="an object of flwr.serverapp.strategy.Strategy",
                got=type(strategy).__name__,
                remedy="RecordingLegacyStrategy records those of flwr.server.strategy",
            )
        self.strategy = strategy
        self._key = str(getattr(strategy, "arrayrecord_key", ARRAYS))
        self._tape = Tape(
            path,
            Keep(tensors=tensors, dtype=dtype, sketch=sketch, purpose=purpose, retention=retention),
            about={"aggregation": type(strategy).__name__, "software": f"flwr {require()}"},
            declared=declared_by(strategy, check_delta(delta)),
            task=task,
            weight_key=str(getattr(strategy, "weighted_by_key", WEIGHT)),
            sends=sends,
            name_by=name_by,
            resume=resume,
        )

    @property
    def path(self) -> Path:
        return self._tape.path

    def __getattr__(self, name: str) -> Any:
        # whatever else the wrapped strategy offers (fraction_train, weighted_by_key, ...)
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)

    # -- what passes through ---------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._sent(self.strategy.configure_train, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._heard(self.strategy.aggregate_train, server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def start(self, *args: Any, **settings: Any) -> Result:
        """The wrapped strategy's own loop, its two training methods leading through here."""
        with self._listening():
            result = self.strategy.start(*args, **settings)
        self._tape.close(named(result.arrays) if result.arrays else None)
        return result

    def close(self) -> None:
        """Mark the trace complete; `start` does this by itself."""
        self._tape.close()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        inner = self.strategy
        leading: dict[str, Any] = {
            "configure_train": partial(self._sent, inner.configure_train),
            "aggregate_train": partial(self._heard, inner.aggregate_train),
        }
        own = {name: vars(inner)[name] for name in leading if name in vars(inner)}
        vars(inner).update(leading)
        try:
            yield
        finally:
            for name in leading:
                del vars(inner)[name]
            vars(inner).update(own)

    # -- what is written -------------------------------------------------------------------------

    def _sent(
        self,
        configure: Callable[..., Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        messages = list(configure(server_round, arrays, config, grid))
        # one content goes to many nodes: it is read once
        read: dict[tuple[int, ...], Content] = {}
        sent = []
        for m in messages:
            same = (id(m.content), *(id(r) for r in m.content.values()))
            if same not in read:
                read[same] = content_of(m.content, self._key)
            sent.append(Sent(m.metadata.dst_node_id, read[same], m))
        alone = None if messages else Content(named(arrays))
        self._tape.begin(server_round, sent, list(grid.get_node_ids()), alone)
        return messages

    def _heard(
        self,
        aggregate: Callable[..., tuple[ArrayRecord | None, MetricRecord | None]],
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        # before the strategy has them: some change the replies, others raise
        self._tape.hear([self._read(reply) for reply in received])
        return aggregate(server_round, received)

    def _read(self, reply: Message) -> Heard:
        node, answers = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            return Heard(node, None, why, answers)
        return Heard(node, content_of(reply.content, self._key, self._tape.like), "", answers)


def record_mod(
    path: str | os.PathLike[str],
    *,
    tensors: str | Sequence[str] = "*",
    dtype: str | None = None,
    purpose: str = "",
    retention: str = "",
) -> Mod:
    """A mod that records, at one node, what this node received and what it sent.

    Every run and node gets a folder of its own under `path`, `run-ID/node-ID`. Give it first, so
    that it sees what really leaves: mods after it (noise, clipping) have acted by then.
    """

    def recorded(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        # read before the app has it: what is received may be changed in place
        received = content_of(message.content, ARRAYS)
        own = party(context.node_id)
        tape = Tape(
            Path(path) / f"run-{context.run_id}" / own,
            Keep(tensors=tensors, dtype=dtype, purpose=purpose, retention=retention),
            about={"parties": [SERVER, own], "software": f"flwr {require()}"},
            resume=True,
        )
        tape.begin(1, [Sent(context.node_id, received)])
        try:
            reply = call_next(message, context)
        except Exception as error:
            tape.hear([Heard(context.node_id, None, str(single(str(error))))])
            raise
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            tape.hear([Heard(context.node_id, None, why)])
        else:
            sent = content_of(reply.content, ARRAYS, received.model)
            tape.hear([Heard(context.node_id, sent)])
        return reply

    return recorded
