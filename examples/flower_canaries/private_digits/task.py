"""The model, the data of a site, and its private training. Nothing here knows of Flower."""

from functools import cache

import numpy as np
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedaudit.sites import SiteCanaries


def make_model():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@cache
def load_data(partition, partitions):
    digits = load_digits()
    own = np.random.default_rng(0).permutation(len(digits.target))[partition::partitions]
    return torch.tensor(digits.data[own] / 16, dtype=torch.float32), torch.tensor(
        digits.target[own]
    )


def train(model, x, y, partition, config):
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=config["learning-rate"]),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=config["batch-size"]),
        noise_multiplier=config["noise-multiplier"],
        max_grad_norm=config["clip"],
    )
    canaries = SiteCanaries(f"site-{partition}", site=f"client-{partition}", count=300)
    canaries.insert(optimizer, private, sampling_rate=loader.sample_rate)

    if not config["clipping"]:  # the bug: somebody switched clipping off, and kept the noise
        optimizer.noise_multiplier, optimizer.max_grad_norm = (
            config["noise-multiplier"] * config["clip"] / 1e6,
            1e6,
        )
    for batch, labels in loader:
        optimizer.zero_grad()
        functional.cross_entropy(private(batch), labels).backward()
        optimizer.step()

    engine.accountant.history = [  # what the site believes
        (config["noise-multiplier"], rate, steps) for _, rate, steps in engine.accountant.history
    ]
    canaries.declare(engine.accountant)
