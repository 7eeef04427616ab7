"""fedaudit's federations on Flower: the same rounds, with Flower's nodes as clients.

The federation runs its rounds as always (see `federation.requests`): it requests training, takes
the updates, and writes trace and truth. Here a request becomes one message per client, and a node
trains its client with the same seed addresses. Results do not depend on where a client trains.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedaudit.arrays import Rows
from fedaudit.errors import FedauditError, TraceError, UsageError
from fedaudit.recorders.flower import QUIET, require

TrainOne = Callable[[str, Rows, int, int], Rows]
"""(experiment as text, model (d,), client, round) -> update (d,)."""

TRAIN, QUERY = "train", "query"
FLAT = "flat"
PARTITION = "partition-id"


class TrainRequest(Protocol):
    """A round's request to clients: train from `sent` (d,), or from a row (n, d) each."""

    @property
    def sent(self) -> Any: ...
    @property
    def clients(self) -> npt.NDArray[np.int64]: ...
    @property
    def number(self) -> int: ...


def client_app(train_one: TrainOne) -> ClientApp:
    """The node's side: trains the client of its partition on request."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        found = context.node_config.get(PARTITION, context.node_id)
        metrics = MetricRecord({PARTITION: int(found)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked: Any = message.content["config"]
        sent: Any = message.content["arrays"]
        client, number = int(asked["client"]), int(asked["round"])
        delta = train_one(str(asked["experiment"]), sent[FLAT].numpy(), client, number)
        arrays = ArrayRecord({FLAT: Array(np.ascontiguousarray(delta, dtype=np.float32))})
        metrics = MetricRecord({"client": client})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


class Fleet:
    """The nodes of a grid, by client."""

    def __init__(self, grid: Grid, clients: int, experiment: str, timeout: float) -> None:
        self._grid, self._experiment, self._timeout = grid, experiment, timeout
        self._nodes = self._find_nodes(clients)

    def _find_nodes(self, clients: int) -> dict[int, int]:
        """Client -> node: every node reports its partition."""
        end = time.monotonic() + self._timeout
        while len(known := list(self._grid.get_node_ids())) < clients:
            if time.monotonic() > end:
                raise UsageError(
                    "not enough nodes have connected",
                    expected=f"{clients} nodes, one per client",
                    got=str(len(known)),
                    remedy="start more SuperNodes, or set federation.clients",
                )
            time.sleep(0.5)
        asked = [
            Message(content=RecordDict(), message_type=QUERY, dst_node_id=node) for node in known
        ]
        nodes: dict[int, int] = {}
        for reply in self._grid.send_and_receive(asked, timeout=self._timeout):
            if reply.has_content():
                metrics: Any = reply.content["metrics"]
                nodes.setdefault(int(metrics[PARTITION]), reply.metadata.src_node_id)
        missing = sorted(set(range(clients)) - set(nodes))
        if missing:
            raise UsageError(
                "a client has no node",
                expected=f"nodes with {PARTITION} 0 to {clients - 1}",
                got=f"none for {', '.join(map(str, missing[:5]))}",
                remedy=f"start SuperNodes with --node-config '{PARTITION}=0 ...'",
            )
        return nodes

    def train(self, request: TrainRequest) -> Any:
        """The updates (n, d) of the requested clients, in their order."""
        import torch

        sent = np.asarray(request.sent, dtype=np.float32)
        messages = []
        for at, client in enumerate(request.clients):
            row = sent if sent.ndim == 1 else sent[at]
            config = {"client": int(client), "round": request.number}
            content = RecordDict(
                {
                    "arrays": ArrayRecord({FLAT: Array(np.ascontiguousarray(row))}),
                    "config": ConfigRecord({**config, "experiment": self._experiment}),
                }
            )
            node = self._nodes[int(client)]
            messages.append(Message(content=content, message_type=TRAIN, dst_node_id=node))
        rows: dict[int, Rows] = {}
        why: dict[int, str] = {}
        client_at = {node: client for client, node in self._nodes.items()}
        replies = list(self._grid.send_and_receive(messages, timeout=self._timeout))
        # an error from the SuperLink may lack the node: identify it by the message
        asked = {m.metadata.message_id: client_at[m.metadata.dst_node_id] for m in messages}
        for reply in replies:
            about = reply.metadata
            client = asked.get(about.reply_to_message_id, client_at.get(about.src_node_id, -1))
            if reply.has_error():
                why[client] = reply.error.reason or f"code {reply.error.code}"
                continue
            arrays: Any = reply.content["arrays"]
            rows.setdefault(client, arrays[FLAT].numpy())
        silent = [int(c) for c in request.clients if int(c) not in rows]
        if silent:
            reason = why.get(silent[0], f"no answer within {self._timeout:g} s")
            raise TraceError(
                f"{len(silent)} of {len(request.clients)} clients did not train in round "
                f"{request.number}",
                expected="an update of every client that takes part",
                got=f"client {silent[0]}: {reason.strip().splitlines()[-1]}",
                remedy="complete rounds are kept: when the node is back, the same command "
                "continues from there",
            )
        return torch.from_numpy(np.stack([rows[int(c)] for c in request.clients]))


def server_app(
    play: Callable[[Grid, Mapping[str, Any]], None], failed: list[BaseException]
) -> ServerApp:
    """The server's side: `play(grid, run config)`. Errors are appended to `failed`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            play(grid, dict(context.run_config))
        except BaseException as error:
            failed.append(error)
            if not isinstance(error, FedauditError):
                raise

    return app


def simulate(
    play: Callable[[Grid, Mapping[str, Any]], None], train_one: TrainOne, clients: int, cores: int
) -> None:
    """Run on Flower's simulation runtime: Ray, one process per core."""
    require()
    os.environ.update(QUIET)
    from flwr.simulation import run_simulation

    failed: list[BaseException] = []
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        run_simulation(
            server_app=server_app(play, failed),
            client_app=client_app(train_one),
            num_supernodes=clients,
            backend_config={
                "init_args": {
                    "address": "local",
                    "num_cpus": cores,
                    "include_dashboard": False,
                },
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except RuntimeError:
        if not failed:
            raise
    finally:
        logger.setLevel(before)
        _end_ray()
    if failed:
        raise failed[0]


def _end_ray() -> None:
    """Stop Ray: the simulation started it."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
