import numpy as np
import pytest
import torch

from fedaudit.audits.active_membership import probe
from fedaudit.audits.active_membership.games import Universe
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.trace import MemoryRecorder


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def local(mechanism, epsilon, **settings):
    return LocalDP(mechanism=mechanism, epsilon=epsilon, **settings)


@pytest.fixture
def universe_of():
    """A universe of records (m, r) behind a mechanism: universe_of(x, "grr", 2.0, alphabet=5)."""

    def make(x, mechanism=None, epsilon=1.0, **settings):
        x = np.asarray(x, dtype=np.float64)
        hook = None if mechanism is None else local(mechanism, epsilon, **settings)
        return Universe.of(x, channel_of(hook, x.shape[1]))

    return make


@pytest.fixture
def symbols(universe_of):
    """GRR on records that are one of `alphabet` values: symbols(alphabet, epsilon)."""

    def make(alphabet, epsilon):
        values = np.linspace(0.0, 1.0, alphabet)[:, None]
        return universe_of(values, "grr", epsilon, alphabet=alphabet)

    return make


@pytest.fixture
def play():
    return _play


def _play(adversary, played, values, seed, protections=()):
    """One game per client of one federation; the recorded trace and what clients trained on."""
    parts = [
        (torch.from_numpy(values[rows]).float(), torch.zeros(len(rows), dtype=torch.int64))
        for rows in played.data
    ]
    federation = Federation(
        task=adversary.task(classes=10),
        data=ClientData.join(parts),
        rounds=Rounds(rounds=1),
        training=Training(
            learning_rate=adversary.rate(len(played.data[0]), 10), steps=1, batch_size=0
        ),
        seed=Seed(seed),
        protections=protections,
        probe=probe.Planting(adversary.rows(played.target, classes=10)),
    )
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    federation.run(recorder)
    shown = federation.clients_data.x.double().numpy()
    return recorder.trace(), shown.reshape(*played.data.shape, -1)
