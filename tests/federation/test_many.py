"""Federations that run as one computation end where they would end one by one."""

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError
from fedaudit.federation import topology
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.many import run_many
from fedaudit.federation.rounds import Rounds
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import mlp
from fedaudit.tasks.task import seeded
from fedaudit.trace import MemoryRecorder, MemoryTruth

CLIENTS = 4


def shadows(count, protections=(), aggregation="fedavg", participation=1.0):
    graph = topology.build("ring", CLIENTS, Seed(1)) if aggregation == "gossip" else None
    out = []
    for s in range(count):
        g = torch.Generator().manual_seed(s)
        parts = [
            (torch.rand(8 + c, 6, generator=g), torch.randint(0, 3, (8 + c,), generator=g))
            for c in range(CLIENTS)
        ]
        out.append(
            Federation(
                task=Classifier(seeded(Seed(1), "w", mlp, 6, (5,), 3)),
                data=ClientData.join(parts),
                rounds=Rounds(
                    clients=CLIENTS, rounds=3, aggregation=aggregation, participation=participation
                ),
                training=Training(batch_size=4, learning_rate=0.2),
                seed=Seed(7 + s),
                topology=graph,
                region=np.array([0, 0, 1, 1]) if aggregation == "hierarchical" else None,
                protections=protections,
            )
        )
    return out


@pytest.mark.parametrize("aggregation", ["fedavg", "hierarchical", "gossip"])
@pytest.mark.parametrize(
    "protections",
    [(), (DPSGD(noise_multiplier=1.0),), (DPSGD(noise_multiplier=(0.5, 1.0, 1.5, 2.0)),)],
)
def test_results_do_not_depend_on_how_many_run_at_once(aggregation, protections):
    ends = [
        torch.stack(run_many(shadows(3, protections, aggregation), at_once=n)) for n in (1, 2, None)
    ]
    for other in ends[1:]:
        torch.testing.assert_close(ends[0], other, rtol=0, atol=1e-5)
    assert (ends[0][0] - ends[0][1]).abs().max() > 1e-3


def test_the_first_of_many_is_the_federation_alone():
    (alone,) = shadows(1, (DPSGD(noise_multiplier=1.0),))
    together = run_many(shadows(3, (DPSGD(noise_multiplier=1.0),)))
    torch.testing.assert_close(alone.run(), together[0], rtol=0, atol=1e-5)


def test_noise_of_two_shadows_is_not_correlated():
    many = shadows(2, (DPSGD(noise_multiplier=50.0, clip=1.0),))
    recorders = [MemoryRecorder(layouts=f.layouts(), federation=f.describe()) for f in many]
    run_many(many, recorders)
    a, b = (r.trace().seen_by("server").updates(1).rows.ravel() for r in recorders)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a))


def test_each_keeps_its_own_wire_and_truth():
    many = shadows(3, (Shuffle(),), participation=0.5)
    recorders = [MemoryRecorder(layouts=f.layouts(), federation=f.describe()) for f in many]
    truths = [MemoryTruth({"shadow": i}) for i in range(3)]
    rounds = []
    run_many(many, recorders, truths, progress=lambda done, total: rounds.append((done, total)))
    assert rounds == [(1, 3), (2, 3), (3, 3)]
    orders = set()
    for recorder, truth in zip(recorders, truths, strict=True):
        view = recorder.trace().seen_by("server")
        assert all(len(view.updates(t).rows) == 2 for t in view.rounds)
        orders.add(tuple(tuple(truth.senders(t).values()) for t in view.rounds))
    assert len(orders) == 3


def test_unlike_federations_are_refused():
    a, b = shadows(1)[0], shadows(1, (Shuffle(),))[0]
    with pytest.raises(ConfigError, match="different protections"):
        run_many([a, b])
    with pytest.raises(ConfigError, match="no federations"):
        run_many([])
