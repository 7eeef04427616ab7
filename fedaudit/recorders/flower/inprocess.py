"""Run a Flower app in one process, without Ray or a SuperLink: for quick audits and tests.

    run_in_process(server_app, client_app, nodes=4)        # as flwr.simulation.run_simulation
    run_app("path/to/app", nodes=4)                        # the app of a pyproject.toml

The ClientApp receives messages as over a wire: copies, one at a time, in the order of sending. A
ClientApp that raises becomes an error reply, as in Flower. This module uses two private parts of
Flower (the id of a message and the identity of a task); hence the supported versions are pinned.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedaudit import foreign, settings
from fedaudit.errors import UsageError
from fedaudit.files import parse_toml
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.project import read_project

FIRST_NODE = 1000
"""Identifier of the node that holds partition 0; the others count up from here."""
RUN = 1

Values = dict[str, Any]


class InProcessGrid(Grid):
    """A grid whose nodes are calls of one ClientApp, each with a context of its own."""

    def __init__(
        self, client_app: ClientApp, nodes: int, run_config: Mapping[str, Any] | None = None
    ) -> None:
        require()
        settings.require(settings.Count, nodes=nodes, remedy="nodes=4")
        self._app, self._run = client_app, Run.create_empty(RUN)
        self._contexts = {
            FIRST_NODE + i: Context(
                run_id=RUN,
                node_id=FIRST_NODE + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        # servers of the older API send from several threads
        self._one_at_a_time = threading.Lock()

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = str(uuid4())
            message.metadata.__dict__["_message_id"] = number
            with self._one_at_a_time:
                self._replies[number] = self._answer(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(n) for n in message_ids if n in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        """The reply of the node's ClientApp, which shares no objects with the sender."""
        make: Any = Message  # `metadata` is not part of the public signature
        arrived = make(copy.deepcopy(message.content), metadata=copy.copy(message.metadata))
        context = self._contexts.get(message.metadata.dst_node_id)
        try:
            if context is None:
                raise LookupError(f"no node {message.metadata.dst_node_id}")
            reply = self._app(arrived, context)
            if reply.has_content():
                reply.content = copy.deepcopy(reply.content)
        except Exception as error:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            why = f"{type(error).__name__}: {error}"
            reply = Message(Error(code=code, reason=why), reply_to=message)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        return reply


@contextmanager
def as_server() -> Iterator[None]:
    """Messages created inside come from the server."""
    names = ("_task_id", "_run_id", "_node_id")
    before = [getattr(TaskIdentity, n) for n in names]
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(TaskIdentity, name, value)


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    *,
    run_config: Mapping[str, Any] | None = None,
) -> InProcessGrid:
    """Run a ServerApp with `nodes` nodes that run the ClientApp; node i holds partition i."""
    grid = InProcessGrid(client_app, nodes, run_config)
    context = Context(
        run_id=RUN,
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )
    with as_server():
        server_app(grid, context)
    return grid


# -- apps in a folder -----------------------------------------------------------------------------


def parse_settings(texts: Sequence[str]) -> Values:
    """Parse `key=value` with TOML values; anything else is text."""
    out: Values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                "a setting could not be read", expected="key=value", got=repr(text), remedy="a=1"
            )
        try:
            out[key.strip()] = parse_toml(f"value = {value}")["value"]
        except ValueError:
            out[key.strip()] = value
    return out


def run_app(
    folder: str | os.PathLike[str],
    nodes: int,
    *,
    run_config: Mapping[str, Any] | None = None,
) -> InProcessGrid:
    """Run the app of a folder. Its code is imported: run only what you would run with Flower."""
    app = read_project(folder)
    config = app.config
    unknown = sorted(set(run_config or {}) - set(config))
    if unknown:
        raise UsageError(
            "the app's run config has no such key",
            expected=", ".join(sorted(config)) or "none",
            got=", ".join(unknown),
            remedy="add it to [tool.flwr.app.config]",
        )
    root = Path(folder)
    with _importable(root):
        return run_in_process(
            _load(app.server),
            _load(app.client),
            nodes,
            run_config={**config, **(run_config or {})},
        )


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import the app's modules from its folder, and unload them afterwards."""
    before = set(sys.modules)
    place = str(folder.resolve())
    sys.path.append(place)  # last: no file of the app hides an installed module
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(place)
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if origin.startswith(place + os.sep):
                del sys.modules[name]


def _load(reference: str) -> Any:
    """Load "module:object". Importing runs the app's own code; an error names its place there."""
    return foreign.load(
        reference, expected="an app object", example='serverapp = "server:app"', default="app"
    )
