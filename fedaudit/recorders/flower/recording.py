"""Record a Flower run: at the server with a strategy, at a client with a mod."""

from __future__ import annotations

import inspect
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

from fedaudit.errors import LimitBroken, UsageError
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import (
    NAMES,
    SITE,
    Content,
    Named,
    answer_of,
    content_of,
    named,
    single,
    take_site,
)
from fedaudit.recorders.flower.declared import DELTA, declared_by
from fedaudit.recorders.flower.tape import (
    RUN_ID,
    WEIGHT,
    Reply,
    Sends,
    Sent,
    Tape,
    TapeOptions,
    party,
)
from fedaudit.recorders.watching import watch_of
from fedaudit.trace import SERVER
from fedaudit.trace.limits import FAULTS, RecordingLimits, log, log_stop, reason_of

ARRAYS = "arrays"
"""The record in which Flower's strategies send the model by default."""


class RecordingStrategy(Strategy):
    """Wraps a strategy and writes a trace of it.

    `strategy` is any of Flower's message-based strategies; `path` a new folder. Messages, replies,
    results and failures pass through unchanged. Put it outside of other wrappers, where it sees
    what the server sees. Inside a wrapper, it sees only what that wrapper passes on, and not the
    released model.

    `tensors`, `dtype` and `sketch` select the recorded parts of an upload, `limits` the rounds and
    the size; `purpose` and `retention` go into the manifest (see `tape.TapeOptions`). `sends`: a
    reply holds a "model", a "delta" or a "gradient". Nodes are named node-ID, or as they tell by
    `site_name_mod`, or by a metric of their replies (`name_by`), which is taken out before the
    strategy averages. `task` describes the model for audits. `delta` is that of a DP wrapper's
    guarantee in reports. `resume` continues a trace after its last complete round. "{run_id}" in
    `path` is replaced.

    `policy`: limits that are checked after every round (docs/watch.md). A broken one is logged;
    with `stop=True` it ends the federation, before the round is averaged.
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
        limits: RecordingLimits | None = None,
        policy: Any = None,
        stop: bool = False,
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
                tensors=tensors,
                dtype=dtype,
                sketch=sketch,
                purpose=purpose,
                retention=retention,
                limits=limits or RecordingLimits(),
            ),
            about={"aggregation": type(strategy).__name__, "software": f"flwr {require()}"},
            declared=declared_by(strategy, delta),
            task=task,
            weight_key=str(getattr(strategy, "weighted_by_key", WEIGHT)),
            sends=sends,
            name_by=name_by,
            resume=resume,
        )
        self._weight_key = str(getattr(strategy, "weighted_by_key", WEIGHT))
        self._name_by, self._last = name_by, 0
        self._watch = watch_of(policy, stop)

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
        received = list(replies)
        for reply in received:
            if reply.has_content():
                take_site(reply.content, self._name_by, self._weight_key)
        return self.strategy.aggregate_evaluate(server_round, received)

    def summary(self) -> None:
        self.strategy.summary()

    def start(self, *args: Any, **settings: Any) -> Result:
        """Run the wrapped strategy's own loop, with its two training methods recorded."""
        own_loop = type(self.strategy).start is not Strategy.start
        given = inspect.signature(self.strategy.start).bind(*args, **settings)
        given.apply_defaults()
        # the last round waits for the model that is released: it is written once
        self._last = 0 if own_loop else int(given.arguments["num_rounds"])
        with self._listening():
            result = self.strategy.start(*args, **settings)
        self._tape.close(_model_of(result.arrays))
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
        self._tape.locate(grid.run.run_id)
        messages = list(configure(server_round, arrays, config, grid))
        # many nodes share one content: read it once
        read: dict[tuple[int, ...], Content] = {}
        sent = []
        for m in messages:
            same = (id(m.content), *(id(r) for r in m.content.values()))
            if same not in read:
                # a first model that cannot be recorded is refused, a later one is noted
                reading = answer_of if self._tape.like else content_of
                read[same] = reading(m.content, self._key)
            sent.append(Sent(m.metadata.dst_node_id, read[same], m))
        alone = None if messages or self._tape.like else Content(named(arrays))
        self._tape.begin(server_round, sent, _nodes(grid), alone)
        return messages

    def _aggregate(
        self,
        aggregate: Callable[..., tuple[ArrayRecord | None, MetricRecord | None]],
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        # read before the strategy acts: some strategies change the replies, others raise
        read = [self._read(reply) for reply in received]
        if server_round != self._last:
            self._tape.record_replies(read)
            self._check()
            return aggregate(server_round, received)
        released: ArrayRecord | None = None
        try:
            found = aggregate(server_round, received)
            released = found[0]
        finally:
            self._tape.record_replies(read, _model_of(released))
        self._check()
        return found

    def _check(self) -> None:
        """Hold what is recorded against the policy."""
        if self._watch is None or self._tape.stopped:
            return
        try:
            self._watch.after_round(self.path)
        except LimitBroken:
            self._tape.close()
            raise

    def _read(self, reply: Message) -> Reply:
        node, answers = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            return Reply(node, None, why, answers)
        site = take_site(reply.content, self._name_by, self._weight_key)
        content = answer_of(reply.content, self._key, self._tape.like)
        return Reply(node, content, "", answers, site)


def _nodes(grid: Grid) -> list[int]:
    """All nodes; none where the SuperLink does not say, which is no reason to end a run."""
    try:
        return list(grid.get_node_ids())
    except FAULTS as error:
        log.warning("fedaudit does not know which nodes there are: %s", reason_of(error))
        return []


def _model_of(arrays: ArrayRecord | None) -> Named | None:
    """A released model by name; None if there is none, or none that a trace can hold."""
    try:
        return named(arrays) if arrays else None
    except UsageError:
        return None


def site_name_mod(key: str = "partition-id", name: str = "") -> Mod:
    """A mod by which a node tells its name: `name`, or the value of `key` in its node config.

    The name travels in a record of its own, not among the metrics, and the recording strategy
    takes it out on arrival: nothing averages it. A site that restarts keeps its name.
    """

    def naming(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        own = name or context.node_config.get(key)
        if reply.has_content() and own is not None:
            reply.content[NAMES] = ConfigRecord({SITE: own})
        return reply

    return naming


def record_mod(
    path: str | os.PathLike[str],
    *,
    tensors: str | Sequence[str] = "*",
    dtype: str | None = None,
    purpose: str = "",
    retention: str = "",
) -> Mod:
    """A mod that records the messages that a node received and sent.

    Every run and node gets a folder `run-ID/node-ID` under `path`; a path with "{run_id}" gets the
    number there instead. Put it first in the list of mods, so that it records replies after all
    other mods (noise, clipping) have acted. What cannot be recorded is logged, and trained on.
    """

    def recorded(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        own = party(context.node_id)
        folder = _folder(path, context.run_id) / own
        try:
            # read before the app runs: it may change the message in place
            received = content_of(message.content, ARRAYS)
            tape = Tape(
                folder,
                TapeOptions(tensors=tensors, dtype=dtype, purpose=purpose, retention=retention),
                about={"parties": [SERVER, own], "software": f"flwr {require()}"},
                # a node's process may start anew for every message: hashing all earlier rounds
                # each time would cost more with every round
                resume="lengths",
            )
            tape.begin(1, [Sent(context.node_id, received)])
        except FAULTS as error:
            log_stop(folder, 0, error)
            return call_next(message, context)
        try:
            reply = call_next(message, context)
        except Exception as error:
            tape.record_replies([Reply(context.node_id, None, str(single(str(error))))])
            raise
        if reply.has_error():
            why = str(single(reply.error.reason or f"code {reply.error.code}"))
            tape.record_replies([Reply(context.node_id, None, why)])
        else:
            sent = answer_of(reply.content, ARRAYS, received.model)
            tape.record_replies([Reply(context.node_id, sent)])
        return reply

    return recorded


def _folder(path: str | os.PathLike[str], run_id: int) -> Path:
    text = os.fspath(path)
    if RUN_ID in text:
        return Path(text.replace(RUN_ID, str(run_id)))
    return Path(text) / f"run-{run_id}"
