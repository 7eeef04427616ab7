"""Sums by weight, the server's step, and who mixes with whom."""

import numpy as np
import pytest
import torch

from fedaudit.federation import topology
from fedaudit.federation.aggregate import ServerOptimiser, mixing_among, weighted_sum
from fedaudit.randomness import Seed


def test_weighted_sum_is_a_sum() -> None:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    weights = np.array([1.0, 2.0, 0.0, 5.0])
    expected = sum(float(w) * r for w, r in zip(weights, rows, strict=True))
    torch.testing.assert_close(weighted_sum(rows, weights), expected)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_server_steps_like_sgd_on_the_negative_delta(momentum: float) -> None:
    draw = torch.Generator().manual_seed(1)
    start = torch.randn(5, generator=draw)
    p = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([p], lr=0.3, momentum=momentum)
    server, model = ServerOptimiser(0.3, momentum), start
    for _ in range(4):
        delta = torch.randn(5, generator=draw)
        p.grad = -delta
        sgd.step()
        model = server.step(model, delta)
    torch.testing.assert_close(model, p.detach())


@pytest.mark.parametrize("kind", ["ring", "erdos_renyi", "barabasi_albert", "hierarchical"])
def test_restricted_mixing_is_doubly_stochastic(kind: str) -> None:
    weights = topology.build(kind, 12, Seed(1)).metropolis_weights()
    draw = np.random.default_rng(1)
    for size in (1, 2, 5, 11, 12):
        clients = np.sort(draw.choice(12, size, replace=False))
        mixing = mixing_among(weights, clients)
        assert mixing.min() >= 0
        np.testing.assert_allclose(mixing.sum(axis=0), 1.0)
        np.testing.assert_allclose(mixing.sum(axis=1), 1.0)
        outside = np.setdiff1d(np.arange(12), clients)
        np.testing.assert_array_equal(mixing[outside], np.eye(12)[outside])
        between = np.ix_(clients, clients)
        off = ~np.eye(size, dtype=bool)
        np.testing.assert_array_equal(mixing[between][off], weights[between][off])
