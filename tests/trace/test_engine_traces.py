"""Engine traces: updates on the wire equal the clients' updates."""

from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.dataset import Dataset
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.federation.topology import build
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP
from fedaudit.trace import PUBLIC, SERVER, WIRETAP, Recorder, Trace, Truth, TruthRecorder

K, PER, SEED = 6, 8, Seed(5)


def run(folder: Path, *, topology: str = "star", shuffle: bool = False, **rounds) -> None:
    rng = np.random.default_rng(0)
    data = Dataset(
        name="blobs",
        kind="features",
        x=rng.standard_normal((K * PER, 4)).astype(np.float32),
        y=rng.integers(0, 3, K * PER),
        classes=("a", "b", "c"),
    )
    task = MLP(hidden=(5,)).build(data, SEED)
    parts = []
    for c in range(K):
        own = task.encode(data.take(np.arange(c * PER, (c + 1) * PER)))
        parts.append((own.x, own.y))
    options = {"sizes": (3, 2, 1)} if topology == "hierarchical" else {}
    graph = build(topology, K, SEED, **options)
    federation = Federation(
        task=task,
        data=ClientData.join(parts),
        rounds=Rounds(clients=K, rounds=3, **rounds),
        training=Training(batch_size=4),
        seed=SEED,
        topology=graph,
        region=None if graph.organisations is None else np.array(graph.organisations),
        protections=(Shuffle(),) if shuffle else (),
    )
    recorder = Recorder(
        folder / "trace", layouts={"model": task.layout}, federation=federation.describe()
    )
    truth = TruthRecorder(folder / "truth", {})
    final = federation.run(recorder, truth, keep_raw=True)
    released = Trace.open(folder).seen_by(PUBLIC).released()
    assert np.array_equal(released, final.numpy())


def distance(folder: Path, party: str) -> float:
    """Largest difference between what `party` sees and what the sender computed."""
    largest = 0.0
    view, truth = Trace.open(folder).seen_by(party), Truth.open(folder)
    for number in view.rounds:
        got, senders = view.updates(number), truth.senders(number)
        names, raw = truth.raw_updates(number)
        assert len(got.rows) == len(names)
        for row, message in zip(got.rows, got.messages.tolist(), strict=True):
            own = raw[names.index(senders[message])]
            largest = max(largest, float(np.abs(row - own).max()))
    return largest


@pytest.mark.parametrize(
    ("party", "options"),
    [
        (SERVER, {}),
        (SERVER, {"participation": 0.5, "wire": "model"}),
        (SERVER, {"shuffle": True, "wire": "model"}),
        (SERVER, {"shuffle": True}),
        (WIRETAP, {"topology": "hierarchical", "aggregation": "hierarchical"}),
        (WIRETAP, {"topology": "hierarchical", "aggregation": "hierarchical", "wire": "model"}),
        (WIRETAP, {"topology": "hierarchical", "aggregation": "hierarchical", "shuffle": True}),
        (WIRETAP, {"topology": "ring", "aggregation": "gossip"}),
    ],
)
def test_updates_are_the_clients_own(tmp_path: Path, party: str, options: dict) -> None:
    run(tmp_path, **options)
    tolerance = 1e-6 if options.get("aggregation") != "gossip" else 1e-5
    assert distance(tmp_path, party) <= tolerance


def test_the_root_of_a_hierarchy_sees_regions(tmp_path: Path) -> None:
    run(tmp_path, topology="hierarchical", aggregation="hierarchical")
    trace, truth = Trace.open(tmp_path), Truth.open(tmp_path)
    got = trace.seen_by(SERVER).updates(1)
    assert got.senders == ("region-0", "region-1", "region-2")
    region = np.array(trace.manifest.federation["organisations"])
    _, raw = truth.raw_updates(1)
    for r in range(3):
        assert np.allclose(got.rows[r], raw[region == r].mean(axis=0), atol=1e-6)
