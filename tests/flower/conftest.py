"""Small federations for Flower: least squares in numpy, one ClientApp for all nodes."""

import logging
import os
import random

import numpy as np
import pytest

from fedaudit.flower import QUIET

os.environ.update(QUIET)


@pytest.fixture(autouse=True)
def quiet():
    """Flower logs every step of a strategy."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def data(partition):
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(12 + partition, 5)).astype(np.float32)
    centre = np.linspace(-1, 1, 5) * (partition + 1)
    return x, (x @ centre).astype(np.float32)


def step(arrays, partition):
    """One pass of gradient descent of a client: named arrays in, named arrays out."""
    x, y = data(partition)
    w, b = arrays["layer.weight"].astype(np.float32), arrays["layer.bias"].astype(np.float32)
    for _ in range(3):
        error = x @ w[0] + b[0] - y
        w = w - 0.05 * (error[:, None] * x).mean(axis=0)[None].astype(np.float32)
        b = b - np.float32(0.05 * error.mean())
    out = {"layer.weight": w.astype(np.float32), "layer.bias": b.astype(np.float32)}
    if "norm.num_batches_tracked" in arrays:
        out["norm.num_batches_tracked"] = np.int64(arrays["norm.num_batches_tracked"]) + 3
    return {k: np.asarray(v) for k, v in out.items()}


class Apps:
    """ClientApps and starting points; `behave(partition, round, arrays)` may change a reply."""

    @staticmethod
    def start(counter=False):
        from flwr.app import Array, ArrayRecord

        arrays = {
            "layer.weight": np.zeros((1, 5), dtype=np.float32),
            "layer.bias": np.zeros(1, dtype=np.float32),
        }
        if counter:
            arrays["norm.num_batches_tracked"] = np.asarray(np.int64(0))
        return ArrayRecord({k: Array(v) for k, v in arrays.items()})

    @staticmethod
    def client(behave=None, mods=None, metrics=None):
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp(mods=mods)

        @app.train()
        def train(message, context):
            partition = int(context.node_config["partition-id"])
            arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
            out = step(arrays, partition)
            number = message.content["config"]["server-round"]
            if behave is not None:
                out = behave(partition, number, out)
            told = {"num-examples": len(data(partition)[0]), "loss": 0.5, **(metrics or {})}
            if "partition-id" in told:
                told["partition-id"] = partition
            records = {
                "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in out.items()}),
                "metrics": MetricRecord(told),
            }
            return Message(RecordDict(records), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            return Message(
                RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}),
                reply_to=message,
            )

        return app

    @staticmethod
    def server(strategy, results, rounds=3, counter=False, grids=None):
        from flwr.serverapp import ServerApp

        app = ServerApp()

        @app.main()
        def main(grid, context):
            if grids is not None:
                grid = grids(grid)
            results.append(
                strategy.start(
                    grid=grid, initial_arrays=Apps.start(counter), num_rounds=rounds, timeout=600
                )
            )

        return app

    @staticmethod
    def run(strategy, *, nodes=4, rounds=3, counter=False, grids=None, seed=0, **client):
        """The result of a strategy after a run in this process."""
        from fedaudit.flower import run_in_process

        random.seed(seed)  # Flower draws nodes and noise from the global generators
        np.random.seed(seed)
        results = []
        run_in_process(
            Apps.server(strategy, results, rounds, counter, grids), Apps.client(**client), nodes
        )
        return results[0]


@pytest.fixture(scope="session")
def apps():
    return Apps


@pytest.fixture(scope="session")
def one_step():
    return step
