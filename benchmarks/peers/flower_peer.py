"""Flower's simulation engine on Ray: Message API, FedAvg, one virtual client per CPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Counted(FedAvg):
    """FedAvg that does not go on when a client has failed: a round without work is fast."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        failed = [m for m in received if m.has_error()]
        if failed or len(received) != self.min_train_nodes:
            reason = failed[0].error.reason if failed else "no reply"
            raise RuntimeError(f"{len(failed)} of {self.min_train_nodes} clients failed: {reason}")
        return super().aggregate_train(server_round, received)


def client_app(work: workload.Workload) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = workload.clients(work.data)[int(context.node_config["partition-id"])]
        model = workload.kept_module(work.model)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        workload.train_client(model, x, y, work)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(x)}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def server_app(work: workload.Workload, result: dict[str, Any]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        count = len(workload.clients(work.data))

        def rounds(number: int) -> None:
            strategy = Counted(
                fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count
            )
            start = ArrayRecord(workload.module(work.model).state_dict())
            strategy.start(grid=grid, initial_arrays=start, num_rounds=number)

        rounds(1)  # workers start, import torch and read the data
        for _ in range(work.repeat):
            begin = time.perf_counter()
            rounds(work.rounds)
            result["seconds"].append(time.perf_counter() - begin)

    return app


def main(work: workload.Workload) -> None:
    logging.disable(logging.WARNING)
    result: dict[str, Any] = {"seconds": []}
    run_simulation(
        server_app=server_app(work, result),
        client_app=client_app(work),
        num_supernodes=len(workload.clients(work.data)),
        backend_config={
            "init_args": {"num_cpus": work.threads, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    workload.report(work, result["seconds"], flwr=version("flwr"), ray=version("ray"))


if __name__ == "__main__":
    main(workload.from_command_line())
