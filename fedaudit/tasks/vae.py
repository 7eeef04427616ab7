"""Generation: a variational autoencoder, negative evidence lower bound per example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.data.dataset import Dataset
from fedaudit.errors import DataError
from fedaudit.tasks.models import ConditionalVAE
from fedaudit.tasks.task import Examples, Task, as_tensor, refuse_text


class Autoencoder(Task):
    """Bernoulli reconstruction plus KL to a standard normal, in nats, for x in [0, 1]."""

    kind = "vae"
    module: ConditionalVAE

    def encode(self, dataset: Dataset) -> Examples:
        refuse_text(dataset, "an autoencoder")
        assert not isinstance(dataset.x, tuple)
        low, high = float(dataset.x.min()), float(dataset.x.max())
        if low < 0 or high > 1:
            raise DataError(
                f"dataset {dataset.name!r} does not fit an autoencoder",
                expected="values in [0, 1]",
                got=f"values from {low:g} to {high:g}",
                remedy="scale the features, and leave data.standardise off",
            )
        n = len(dataset)
        return Examples(as_tensor(dataset.x), as_tensor(dataset.y), torch.arange(n))

    def inputs(self, x: Tensor, y: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        assert noise is not None, "an autoencoder's loss needs noise"
        return x, y, noise

    def noise_shape(self) -> tuple[int, ...]:
        return (self.module.latent,)

    def criterion(self, output: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits, mean, log_variance = output
        lead = y.dim()
        target = x.flatten(lead)
        reconstruction = F.binary_cross_entropy_with_logits(
            logits.flatten(lead), target, reduction="none"
        ).sum(-1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return reconstruction + divergence
