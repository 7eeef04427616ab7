"""pfl-research: SimulatedBackend, FederatedAveraging, PyTorchModel."""

from __future__ import annotations

import itertools
import logging
from importlib.metadata import version
from typing import Any

import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Net(nn.Module):
    """The two methods that pfl asks of a module, around the plain one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        return workload.loss(self.net, x, y)

    def metrics(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(float(workload.loss(self.net, x, y)) * len(x), len(x))}


def main() -> None:
    logging.disable(logging.INFO)
    work = workload.from_command_line()
    torch.set_num_threads(work.threads)
    parts = workload.clients(work.data)

    def shuffled(user: int) -> Dataset:
        x, y = parts[user]
        order = torch.randperm(len(x))  # pfl slices batches in order; shuffling is part of the job
        return Dataset(raw_data=[x[order], y[order]])

    everyone = itertools.cycle(range(len(parts)))
    data = FederatedDataset(shuffled, lambda: next(everyone))
    net = Net(workload.module(work.model))
    central = torch.optim.SGD(net.parameters(), lr=1.0)
    model = PyTorchModel(net, torch.optim.SGD, central)
    backend = SimulatedBackend(training_data=data, val_data=data)

    algorithm, done = FederatedAveraging(), 0

    def rounds(count: int) -> None:
        nonlocal done
        done += count  # a second run continues; pfl evaluates at its first iteration only
        algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=done,
                evaluation_frequency=1 << 30,
                train_cohort_size=len(parts),
                val_cohort_size=0,
            ),
            backend,
            model,
            NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=work.rate,
                local_batch_size=work.batch,
            ),
            NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )

    workload.timed(work, lambda: rounds(1), lambda: rounds(work.rounds), pfl=version("pfl"))


if __name__ == "__main__":
    main()
