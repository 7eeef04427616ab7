"""The model, the data of a site, and one site's training. Nothing here knows of Flower."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


def make_model():
    """A network of one hidden layer: 64 pixels in, 10 digits out."""
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@cache
def load_data(partition, partitions):
    """The records of one site (three quarters to train on, the rest to test on).

    Sites see some digits more often than others, as sites do.
    """
    digits = load_digits()
    rng = np.random.default_rng(0)
    favourite = digits.target % partitions
    anywhere = rng.integers(0, partitions, len(favourite))
    site = np.where(rng.random(len(favourite)) < 0.7, favourite, anywhere)
    own = rng.permutation(np.flatnonzero(site == partition))
    x = torch.tensor(digits.data[own] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[own])
    cut = len(own) * 3 // 4
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def train(model, x, y, epochs, rate, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())
