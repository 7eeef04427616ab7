"""A trace in memory equals the trace of the same run on disk."""

import numpy as np
import pytest

from fedaudit.errors import NotObservable, UsageError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import mlp
from fedaudit.tasks.task import seeded
from fedaudit.trace import MemoryRecorder, MemoryTruth, Recorder, Trace, Truth, TruthRecorder


def federation(protections=()):
    import torch

    g = torch.Generator().manual_seed(3)
    parts = [
        (torch.rand(9 + c, 6, generator=g), torch.randint(0, 3, (9 + c,), generator=g))
        for c in range(4)
    ]
    return Federation(
        task=Classifier(seeded(Seed(1), "w", mlp, 6, (5,), 3)),
        data=ClientData.join(parts),
        rounds=Rounds(clients=4, rounds=3),
        training=Training(batch_size=4),
        seed=Seed(5),
        protections=protections,
    )


def recorders(f, path):
    about = {
        "layouts": f.layouts(),
        "federation": f.describe(),
        "declared": [p.declare() for p in f.protections],
    }
    return (
        (Recorder(path / "trace", **about), TruthRecorder(path / "truth", {"a": 1})),
        (MemoryRecorder(**about), MemoryTruth({"a": 1})),
    )


@pytest.mark.parametrize("protections", [(), (Shuffle(),)])
def test_memory_and_disk_hold_the_same(tmp_path, protections):
    f = federation(protections)
    (disk, disk_truth), (memory, memory_truth) = recorders(f, tmp_path)
    f.run(disk, disk_truth, keep_raw=True)
    f.run(memory, memory_truth, keep_raw=True)
    stored, held = Trace.open(tmp_path / "trace"), memory.trace()
    truth = Truth.open(tmp_path / "truth")
    assert list(stored.rounds) == list(held.rounds) == [1, 2, 3]
    assert stored.parties() == held.parties()
    for number in stored.rounds:
        assert stored.messages(number) == held.messages(number)
        a, b = (t.seen_by("server").updates(number) for t in (stored, held))
        assert np.array_equal(a.rows, b.rows)
        assert a.senders == b.senders
        assert truth.senders(number) == memory_truth.senders(number)
        assert np.array_equal(truth.raw_updates(number)[1], memory_truth.raw_updates(number)[1])
    assert np.array_equal(stored.seen_by("public").released(), held.seen_by("public").released())


def test_views_of_memory_are_as_narrow(tmp_path):
    f = federation()
    memory = MemoryRecorder(layouts=f.layouts(), federation=f.describe())
    f.run(memory, MemoryTruth({}))
    with pytest.raises(NotObservable):
        memory.trace().seen_by("network").updates(1)
    with pytest.raises(UsageError, match="no round 9"):
        memory.trace().messages(9)
    with pytest.raises(ValueError, match="read-only"):
        memory.trace().seen_by("server").updates(1).rows[0, 0] = 1.0


def test_raw_updates_that_were_not_kept_are_refused():
    f = federation()
    truth = MemoryTruth({})
    f.run(None, truth)
    with pytest.raises(UsageError, match="raw updates were not kept"):
        truth.raw_updates(1)


def test_answers_to_one_audit_do_not_reach_another():
    truth = MemoryTruth({"a": 1})
    one = truth.with_members({"client-0": np.array([True])})
    two = truth.with_members({"client-0": np.array([False])})
    assert one.members["client-0"].all()
    assert not two.members["client-0"].any()
    assert truth.members == {}
