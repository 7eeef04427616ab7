"""Record a Flower run: at the server with a strategy, at a client with a mod."""

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
from fedaudit.recorders.flower.tape import WEIGHT, Reply, Sends, Sent, Tape, TapeOptions, party
from fedaudit.trace import SERVER

ARRAYS = "arrays"
"""The record in which Flower's strategies send the model by default."""


class RecordingStrategy(Strategy):
    """Wraps a strategy and writes a trace of it.

    `strategy` is any of Flower's message-based strategies; `path` a new folder. Messages, replies,
    results and failures pass through unchanged. Put it outside of other wrappers, where it sees
    what the server sees. Inside a wrapper, it sees only what that wrapper passes on, and not the
    released model.

    `tensors`, `dtype` and `sketch` select the recorded parts of an upload; `purpose` and
    `retention` go into the manifest (see `tape.TapeOptions`). `sends`: a reply holds a "model", a
    "delta" or a "gradient". Nodes are named node-ID; with `name_by="partition-id"`, after that
    metric of their replies. `task` describes the model for audits. `delta` is that of a DP
    wrapper's guarantee in reports. `resume` continues a trace after its last complete round.
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
            TapeOptions(
                tensors=tensors, dtype=dtype, sketch=sketch, purpose=purpose, retention=retention
            ),
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
        # all other attributes of the wrapped strategy (fraction_train, weighted_by_key, ...)
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)

    # -- Flower's interface ----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._configure(self.strategy.configure_train, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._aggregate(self.strategy.aggregate_train, server_round, replies)

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
        """Run the wrapped strategy's own loop, with its two training methods recorded."""
        with self._listening():
            result = self.strategy.start(*args, **settings)
        self._tape.close(named(result.arrays) if result.arrays else None)
        return result

    def close(self) -> None:
        """Mark the trace complete; `start` does this itself."""
        self._tape.close()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        inner = self.strategy
        leading: dict[str, Any] = {
            "configure_train": partial(self._configure, inner.configure_train),
            "aggregate_train": partial(self._aggregate, inner.aggregate_train),
        }
        own = {name: vars(inner)[name] for name in leading if name in vars(inner)}
        vars(inner).update(leading)
        try:
            yield
        finally:
            for name in leading:
                del vars(inner)[name]
            vars(inner).update(own)

    # -- recording -------------------------------------------------------------------------------

    def _configure(
        self,
        configure: Callable[..., Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        messages = list(configure(server_round, arrays, config, grid))
        # many nodes share one content: read it once
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

    def _aggregate(
        self,
        aggregate: Callable[..., tuple[ArrayRecord | None, MetricRecord | None]],
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        # record before the strategy acts: some strategies change the replies, others raise
        self._tape.record_replies([self._read(reply) for reply in received])
        return aggregate(server_round, received)

    def _read(self, reply: Message) -> Reply:
        node, answers = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            return Reply(node, None, why, answers)
        return Reply(node, content_of(reply.content, self._key, self._tape.like), "", answers)


def record_mod(
    path: str | os.PathLike[str],
    *,
    tensors: str | Sequence[str] = "*",
    dtype: str | None = None,
    purpose: str = "",
    retention: str = "",
) -> Mod:
    """A mod that records the messages that a node received and sent.

    Every run and node gets a folder `run-ID/node-ID` under `path`. Put it first in the list of
    mods, so that it records replies after all other mods (noise, clipping) have acted.
    """

    def recorded(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        # read before the app runs: it may change the message in place
        received = content_of(message.content, ARRAYS)
        own = party(context.node_id)
        tape = Tape(
            Path(path) / f"run-{context.run_id}" / own,
            TapeOptions(tensors=tensors, dtype=dtype, purpose=purpose, retention=retention),
            about={"parties": [SERVER, own], "software": f"flwr {require()}"},
            resume=True,
        )
        tape.begin(1, [Sent(context.node_id, received)])
        try:
            reply = call_next(message, context)
        except Exception as error:
            tape.record_replies([Reply(context.node_id, None, str(single(str(error))))])
            raise
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            tape.record_replies([Reply(context.node_id, None, why)])
        else:
            sent = content_of(reply.content, ARRAYS, received.model)
            tape.record_replies([Reply(context.node_id, sent)])
        return reply

    return recorded
