"""What recording adds to a round of Flower: the same strategy with and without, taking turns.

    python benchmarks/flower_recording.py [--runtime ray] [--nodes 8] [--hidden 128] [--repeats 5]

One app, one process of the server, one set of workers: FedAvg alone and FedAvg inside a
RecordingStrategy start one after the other, and the ratio of their median times is the figure. The
clients train one epoch on digits. `--runtime process` is the driver without Ray: nothing is sent
anywhere, so that recording weighs most there. `--hidden 16384` makes a model of a million numbers.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.flower import QUIET, require

os.environ.update(QUIET)
require()

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from fedaudit.flower import RecordingStrategy, run_in_process  # noqa: E402


def model(hidden: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def write_data(file: Path) -> None:
    """Digits in a file that every worker reads: a function that keeps them cannot be sent."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(file, x=(digits.data / 16).astype(np.float32), y=digits.target)


class Complete(FedAvg):
    """FedAvg that does not go on when a client has failed: a round without work is fast."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        received = list(replies)
        failed = [m for m in received if m.has_error()]
        if failed or len(received) != self.min_train_nodes:
            reason = failed[0].error.reason if failed else "no reply"
            raise RuntimeError(f"{len(failed)} of {self.min_train_nodes} clients failed: {reason}")
        return super().aggregate_train(server_round, received)


def client_app(hidden: int, file: Path) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import torch
        from torch.nn import functional

        torch.set_num_threads(1)
        own = slice(
            int(context.node_config["partition-id"]),
            None,
            int(context.node_config["num-partitions"]),
        )
        with np.load(file) as digits:
            x, y = torch.tensor(digits["x"][own]), torch.tensor(digits["y"][own])
        net = model(hidden)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for rows in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(x)})
        records = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    return app


def server_app(
    given: argparse.Namespace, folder: Path, seconds: dict[str, list[float]]
) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(model(given.hidden).state_dict())
        count = given.nodes

        def once(name: str, turn: int) -> float:
            strategy: Any = Complete(
                fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count
            )
            if name == "recorded":
                strategy = RecordingStrategy(strategy, folder / f"trace-{turn}")
            begin = time.perf_counter()
            strategy.start(grid=grid, initial_arrays=start, num_rounds=given.rounds)
            return time.perf_counter() - begin

        for turn in range(given.repeats + 1):
            for name in ("plain", "recorded") if turn % 2 else ("recorded", "plain"):
                took = once(name, turn)
                if turn:  # the first turn starts workers and warms caches up
                    seconds[name].append(took)

    return app


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", choices=("ray", "process"), default="ray")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    width = sum(p.numel() for p in model(given.hidden).parameters())
    cores = os.cpu_count() or 1
    print(
        f"{given.nodes} nodes, {width:,} numbers, {given.rounds} rounds a start, {given.runtime}; "
        f"cores {cores}, load average {os.getloadavg()[0]:.2f}"
    )
    seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "digits.npz"
        write_data(file)
        server = server_app(given, Path(made), seconds)
        if given.runtime == "process":
            run_in_process(server, client_app(given.hidden, file), given.nodes)
        else:
            from flwr.simulation import run_simulation

            run_simulation(
                server_app=server,
                client_app=client_app(given.hidden, file),
                num_supernodes=given.nodes,
                backend_config={
                    "init_args": {
                        "address": "local",
                        "num_cpus": cores,
                        "include_dashboard": False,
                    },
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                },
            )
    base = statistics.median(seconds["plain"])
    for name, took in seconds.items():
        median = statistics.median(took)
        each = median / given.rounds * 1e3
        print(f"  {name:<10} {each:9.1f} ms a round {median / base:8.3f}x")
    print(f"load average {os.getloadavg()[0]:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
