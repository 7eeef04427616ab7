"""The round loop against slow twins, what it writes on the wire, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedaudit.data.dataset import Dataset
from fedaudit.data.partition import from_settings
from fedaudit.errors import ConfigError, DataError
from fedaudit.federation import topology as topologies
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.federation.resume import FederationState, restore, save
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook, Uploads
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP, VAE
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import (
    ANONYMOUS,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Recorder,
    Trace,
    Truth,
    TruthRecorder,
)
from fedaudit.trace.recorder import MODEL

SIZES = (6, 1, 9, 4, 5, 3)
K = len(SIZES)
SEED = Seed(3)
REGION = np.array([0, 0, 1, 2, 1, 2])


def dataset(n: int = sum(SIZES)) -> Dataset:
    draw = np.random.default_rng(4)
    x = draw.random(size=(n, 5)).astype(np.float32)
    return Dataset(name="tiny", kind="features", x=x, y=draw.integers(0, 3, n))


def client_data(task: Any) -> ClientData:
    data, ends = dataset(), np.cumsum(SIZES)
    parts = [task.encode(data.take(np.arange(e - s, e))) for s, e in zip(SIZES, ends, strict=True)]
    return ClientData.join([(p.x, p.y) for p in parts])


def federation(**settings: Any) -> Federation:
    """Six clients; keys of Rounds go to the rounds, the others to the federation."""
    task = settings.pop("task", None) or MLP(hidden=(4,)).build(dataset(), SEED)
    of_rounds = {k: settings.pop(k) for k in list(settings) if k in Rounds.__dataclass_fields__}
    rounds = Rounds(**{"rounds": 3, **of_rounds})
    training = settings.pop("training", Training(learning_rate=0.3, batch_size=4))
    if rounds.aggregation == "hierarchical":
        settings.setdefault("region", REGION)
    if rounds.aggregation == "gossip":
        settings.setdefault("topology", topologies.build("ring", K, SEED))
    data = settings.pop("data", None) or client_data(task)
    return Federation(task=task, data=data, rounds=rounds, training=training, seed=SEED, **settings)


def record(fed: Federation, path: Path, **options: Any) -> tuple[Trace, Truth, Tensor]:
    recorder = Recorder(
        path / "trace",
        layouts={MODEL: fed.task.layout},
        federation=fed.describe(),
        declared=[p.declare() for p in fed.protections],
        task=fed.task.settings,
    )
    truth = TruthRecorder(path / "truth", {"seed": SEED.root})
    model = fed.run(recorder, truth, keep_raw=True, **options)
    return Trace.open(path / "trace"), Truth.open(path / "truth"), model


def twin(fed: Federation, rounds: int) -> Tensor:
    """Federated averaging written out: every client by itself, weights one by one."""
    settings = fed.rounds
    model, velocity = fed.task.initial(), torch.zeros(fed.task.layout.width)
    trainer = Trainer(fed.task, fed.training, SEED, tier="loop")
    for number in range(1, rounds + 1):
        total, weight = torch.zeros_like(model), 0.0
        for c in fed._participants(number):
            delta = trainer.train(model, np.array([c]), fed.data, number)[0]
            w = float(fed.data.sizes[c]) if settings.weighting == "size" else 1.0
            total, weight = total + w * delta, weight + w
        velocity = settings.server_momentum * velocity + total / weight
        model = model + settings.server_learning_rate * velocity
    return model


CASES: list[dict[str, Any]] = [
    {},
    {"weighting": "size"},
    {"server_learning_rate": 0.5, "server_momentum": 0.8, "weighting": "size"},
    {"participation": 0.5, "server_momentum": 0.3},
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("aggregation", ["fedavg", "hierarchical"])
@pytest.mark.parametrize("wire", ["delta", "model"])
def test_equals_federated_averaging_written_out(
    case: dict[str, Any], aggregation: str, wire: str
) -> None:
    fed = federation(aggregation=aggregation, wire=wire, **case)
    torch.testing.assert_close(fed.run(), twin(fed, 3), rtol=1e-5, atol=1e-5)


def test_unequal_weights_make_a_difference() -> None:
    a, b = federation().run(), federation(weighting="size").run()
    assert float((a - b).abs().max()) > 1e-3


def test_gossip_equals_mixing_written_out() -> None:
    fed = federation(aggregation="gossip", participation=0.7)
    w = fed.topology.metropolis_weights()
    models = [fed.task.initial() for _ in range(K)]
    trainer = Trainer(fed.task, fed.training, SEED, tier="loop")
    for number in range(1, 4):
        here = set(fed._participants(number).tolist())
        assert 0 < len(here) < K
        for c in here:
            own = trainer.train(models[c], np.array([c]), fed.data, number)[0]
            models[c] = models[c] + own
        mixed = []
        for i in range(K):
            near = [j for j in range(K) if j != i and i in here and j in here and w[i, j] > 0]
            kept = 1 - sum(w[i, j] for j in near)
            mixed.append(kept * models[i] + sum(w[i, j] * models[j] for j in near))
        models = mixed
    torch.testing.assert_close(fed.run(), torch.stack(models).mean(0), rtol=1e-5, atol=1e-5)


class Still(Hook):
    """Gradients become zero: nobody learns anything."""

    name: ClassVar[str] = "still"

    def gradient(self, each: Tensor) -> Tensor:
        return torch.zeros_like(each)


def test_gossip_without_training_keeps_the_mean_and_converges(tmp_path: Path) -> None:
    fed = federation(aggregation="gossip", rounds=40, protections=[Still()])
    d = fed.task.layout.width
    start = torch.randn(K, d, generator=SEED.torch_generator("test"))
    save(tmp_path, FederationState(0, start))
    spread = []

    def note(number: int, metrics: dict[str, float]) -> None:
        models = restore(tmp_path, None, None, fed.task).models
        torch.testing.assert_close(models.mean(0), start.mean(0), rtol=1e-5, atol=1e-5)
        spread.append(float((models - models.mean(0)).norm()))

    end = fed.run(checkpoint=tmp_path, progress=note)
    torch.testing.assert_close(end, start.mean(0), rtol=1e-5, atol=1e-5)
    # the second eigenvalue of the mixing says how fast the nodes agree
    values = np.sort(np.abs(np.linalg.eigvalsh(fed.topology.metropolis_weights())))
    assert spread[-1] <= float((start - start.mean(0)).norm()) * values[-2] ** 40 * 1.01 + 1e-5
    assert spread[-1] < 1e-3 * spread[0]


# -- who takes part ------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "count"), [(1.0, 6), (0.5, 3), (0.51, 4), (0.01, 1), (1 / 3, 2)])
def test_participation_is_right_varied_and_deterministic(share: float, count: int) -> None:
    fed = federation(participation=share)
    drawn = [tuple(fed._participants(r).tolist()) for r in range(1, 200)]
    assert all(len(set(d)) == count and d == tuple(sorted(d)) for d in drawn)
    assert drawn == [tuple(federation(participation=share)._participants(r)) for r in range(1, 200)]
    times = np.bincount(np.concatenate(drawn), minlength=K)
    expected = 199 * count / K
    assert np.abs(times - expected).max() <= 4 * np.sqrt(expected) * (count < K)


def test_absent_clients_send_and_receive_nothing(tmp_path: Path) -> None:
    fed = federation(participation=0.5)
    trace, truth, _ = record(fed, tmp_path)
    for number in trace.rounds:
        here = {fed.party[c] for c in fed._participants(number)}
        parties = {m.sender for m in trace.messages(number)}
        parties |= {m.receiver for m in trace.messages(number)}
        assert parties - {SERVER, PUBLIC} == here
        assert set(truth.raw_updates(number)[0]) == here


# -- the wire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["delta", "model"])
@pytest.mark.parametrize("weighting", ["equal", "size"])
def test_views_give_the_updates_that_were_sent(tmp_path: Path, wire: str, weighting: str) -> None:
    fed = federation(wire=wire, weighting=weighting)
    trace, truth, model = record(fed, tmp_path)
    view = trace.seen_by(SERVER)
    for number in trace.rounds:
        updates = view.updates(number)
        clients, raw = truth.raw_updates(number)
        assert updates.senders == clients == fed.party
        np.testing.assert_allclose(updates.rows, raw, atol=1e-6)
        if weighting == "size":
            np.testing.assert_array_equal(updates.weights, SIZES)
            sent = [m for m in view.messages(number) if m.receiver == SERVER]
            assert [m.metadata["examples"] for m in sent] == list(SIZES)
        assert {m.kind for m in view.messages(number) if m.receiver == SERVER} == {wire}
        senders = truth.senders(number)
        assert [senders[int(m)] for m in updates.messages] == list(fed.party)
    np.testing.assert_array_equal(trace.seen_by(PUBLIC).released(), model.numpy())


def test_a_hierarchy_shows_clients_to_regions_and_means_to_the_root(tmp_path: Path) -> None:
    fed = federation(aggregation="hierarchical", weighting="size")
    trace, truth, _ = record(fed, tmp_path)
    for number in trace.rounds:
        clients, raw = truth.raw_updates(number)
        steps = [m.step for m in trace.messages(number)]
        assert steps == sorted(steps)
        for r in range(3):
            inside = np.flatnonzero(r == REGION)
            own = trace.seen_by(f"region-{r}").updates(number)
            assert own.senders == tuple(clients[i] for i in inside)
            np.testing.assert_allclose(own.rows, raw[inside], atol=1e-6)
        root = trace.seen_by(SERVER).updates(number)
        assert root.senders == ("region-0", "region-1", "region-2")
        for r, row in enumerate(root.rows):
            inside = np.flatnonzero(r == REGION)
            expected = np.average(raw[inside], axis=0, weights=np.array(SIZES)[inside])
            np.testing.assert_allclose(row, expected, atol=1e-6)
        np.testing.assert_array_equal(
            root.weights, np.bincount(REGION, weights=np.array(SIZES, dtype=float))
        )
        everything = trace.seen_by(WIRETAP).updates(number)
        assert set(everything.senders) == set(clients)


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_gossip_updates_from_the_wire(tmp_path: Path, participation: float) -> None:
    graph = topologies.build("complete", K, SEED)
    fed = federation(aggregation="gossip", participation=participation, topology=graph, rounds=4)
    trace, truth, _ = record(fed, tmp_path)
    view = trace.seen_by(WIRETAP)
    for number in trace.rounds:
        updates = view.updates(number)
        clients, raw = truth.raw_updates(number)
        assert updates.senders == clients
        np.testing.assert_allclose(updates.rows, raw, atol=1e-5)


def test_a_gossip_node_nobody_listens_to_leaves_nothing_in_the_trace(tmp_path: Path) -> None:
    graph = topologies.build("ring", K, SEED)
    fed = federation(aggregation="gossip", participation=0.1, topology=graph)
    trace, _, _ = record(fed, tmp_path)
    assert trace.messages(2) == ()
    assert trace.block(2).shape[0] == 0
    assert [m.receiver for m in trace.messages(3)] == [PUBLIC]


def test_models_and_deltas_on_the_wire_give_the_same_model() -> None:
    for aggregation in ("fedavg", "hierarchical"):
        a = federation(aggregation=aggregation, wire="delta").run()
        b = federation(aggregation=aggregation, wire="model").run()
        assert torch.equal(a, b)


def test_a_run_that_is_recorded_trains_the_same_model(tmp_path: Path) -> None:
    for aggregation in ("fedavg", "hierarchical", "gossip"):
        _, _, model = record(federation(aggregation=aggregation), tmp_path / aggregation)
        assert torch.equal(model, federation(aggregation=aggregation).run())


def test_statistics_of_a_batch_travel_in_the_update(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    training = Training(learning_rate=0.1, batch_size=0)
    task = Classifier(module, {"kind": "module"})
    ends = np.cumsum([5, 4, 6])
    parts = [
        task.encode(dataset().take(np.arange(e - s, e)))
        for s, e in zip((5, 4, 6), ends, strict=True)
    ]
    data = ClientData.join([(p.x, p.y) for p in parts])
    fed = federation(task=task, data=data, training=training, rounds=2)
    trace, _, _ = record(fed, tmp_path)
    rows = trace.seen_by(SERVER).updates(1, "1.running_mean").rows
    linear = task.named(task.initial())
    for row, (x, _) in zip(rows, parts_of(data), strict=True):
        hidden = x @ linear["0.weight"].T + linear["0.bias"]
        np.testing.assert_allclose(row, 0.1 * hidden.detach().mean(0).numpy(), atol=1e-6)


def parts_of(data: ClientData) -> list[tuple[Tensor, Tensor]]:
    return [data.of(c) for c in range(len(data.sizes))]


# -- hooks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Log(Hook):
    """Writes down where it was called, and changes nothing."""

    name: ClassVar[str] = "log"
    who: str = "a"
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
        self.calls.append((self.who, "data", client))
        return x, y

    def broadcast(self, model: Tensor, *, receivers: Any, round_number: int, seed: Seed) -> Tensor:
        self.calls.append((self.who, "broadcast", round_number, tuple(receivers)))
        return model

    def gradient(self, each: Tensor) -> Tensor:
        self.calls.append((self.who, "gradient"))
        return each

    def step(self, sums: Tensor, *, clients: Any, round_number: int, step: int, seed: Seed) -> None:
        self.calls.append((self.who, "step", round_number, step))

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        self.calls.append((self.who, "upload", round_number, uploads.senders))
        return uploads

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        self.calls.append((self.who, "aggregate", round_number))
        return total


def test_hooks_are_called_in_their_places_and_order() -> None:
    calls: list[tuple[Any, ...]] = []
    training = Training(learning_rate=0.3, batch_size=0, epochs=2)
    fed = federation(
        rounds=2,
        training=training,
        protections=[Log(who="a", calls=calls), Log(who="b", calls=calls)],
        probe=Log(who="probe", calls=calls),
    )
    expected: list[tuple[Any, ...]] = []
    for c in range(K):
        expected += [("a", "data", c), ("b", "data", c)]
    assert calls == expected  # before the first round, once per client, the probe never
    model = fed.run()
    for number in (1, 2):
        expected += [(who, "broadcast", number, tuple(range(K))) for who in ("a", "b", "probe")]
        for s in range(2):
            expected += [("a", "gradient"), ("b", "gradient")]
            expected += [("a", "step", number, s), ("b", "step", number, s)]
        expected += [(who, "upload", number, fed.party) for who in "ab"]
        expected += [(who, "aggregate", number) for who in "ab"]
    assert calls == expected
    torch.testing.assert_close(
        model, federation(rounds=2, training=training).run(), rtol=1e-5, atol=1e-6
    )


def test_regions_upload_apart_and_the_root_aggregates_once() -> None:
    log = Log()
    fed = federation(aggregation="hierarchical", rounds=1, protections=[log])
    fed.run()
    uploads = [c[3] for c in log.calls if c[1] == "upload"]
    assert uploads == [tuple(fed.party[i] for i in np.flatnonzero(r == REGION)) for r in range(3)]
    assert [c for c in log.calls if c[1] == "aggregate"] == [("a", "aggregate", 1)]


class AddOne(Hook):
    name: ClassVar[str] = "add_one"

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        return total + 1.0


@pytest.mark.parametrize("aggregation", ["fedavg", "hierarchical"])
@pytest.mark.parametrize(("weighting", "divisor"), [("equal", K), ("size", sum(SIZES))])
def test_what_is_added_to_the_sum_is_divided(
    aggregation: str, weighting: str, divisor: int
) -> None:
    settings = {"aggregation": aggregation, "weighting": weighting, "rounds": 1}
    a = federation(**settings, server_learning_rate=0.5).run()
    b = federation(**settings, server_learning_rate=0.5, protections=[AddOne()]).run()
    torch.testing.assert_close(b - a, torch.full_like(a, 0.5 / divisor), rtol=1e-4, atol=1e-6)


class Twice(Hook):
    """Doubles what leaves a client: sees single contributions whatever the wire carries."""

    name: ClassVar[str] = "twice"

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        from dataclasses import replace

        assert uploads.kind == "delta"
        return replace(uploads, rows=2 * uploads.rows)


@pytest.mark.parametrize("wire", ["delta", "model"])
def test_upload_hooks_act_on_contributions_and_before_the_wire(tmp_path: Path, wire: str) -> None:
    fed = federation(wire=wire, protections=[Twice()], rounds=1)
    trace, truth, model = record(fed, tmp_path)
    raw = truth.raw_updates(1)[1]
    np.testing.assert_allclose(trace.seen_by(SERVER).updates(1).rows, 2 * raw, atol=1e-6)
    expected = fed.task.initial() + torch.from_numpy(2 * raw.mean(axis=0))
    torch.testing.assert_close(model, expected, rtol=1e-5, atol=1e-6)


class Plant(Hook):
    """A server that sends each client a model of its own."""

    name: ClassVar[str] = "plant"

    def broadcast(self, model: Tensor, *, receivers: Any, round_number: int, seed: Seed) -> Tensor:
        return model + 0.01 * torch.from_numpy(receivers + 1).float().unsqueeze(1)


@pytest.mark.parametrize("aggregation", ["fedavg", "hierarchical"])
@pytest.mark.parametrize("wire", ["delta", "model"])
def test_planted_models_are_on_the_wire_per_receiver(
    tmp_path: Path, aggregation: str, wire: str
) -> None:
    fed = federation(aggregation=aggregation, wire=wire, probe=Plant(), rounds=2)
    trace, truth, _ = record(fed, tmp_path)
    view = trace.seen_by(WIRETAP)
    trainer = Trainer(fed.task, fed.training, SEED, tier="loop")
    start = fed.task.initial()
    for c, name in enumerate(fed.party):
        got = view.received(1, name)
        np.testing.assert_allclose(got, start.numpy() + 0.01 * (c + 1), atol=1e-6)
        own = trainer.train(torch.tensor(got), np.array([c]), fed.data, 1)[0]
        np.testing.assert_allclose(truth.raw_updates(1)[1][c], own.numpy(), atol=1e-5)
    for number in trace.rounds:
        names, raw = truth.raw_updates(number)
        updates = view.updates(number)
        order = [names.index(s) for s in updates.senders]
        np.testing.assert_allclose(updates.rows, raw[order], atol=1e-5)


def test_a_protected_broadcast_is_what_everybody_is_sent(tmp_path: Path) -> None:
    class Shift(Hook):
        name: ClassVar[str] = "shift"

        def broadcast(
            self, model: Tensor, *, receivers: Any, round_number: int, seed: Seed
        ) -> Tensor:
            return model + 1.0

    fed = federation(aggregation="hierarchical", protections=[Shift()], rounds=1)
    trace, _, _ = record(fed, tmp_path)
    view = trace.seen_by(WIRETAP)
    for party in ("region-0", "region-1", *fed.party):
        np.testing.assert_array_equal(view.received(1, party), fed.task.initial().numpy() + 1.0)


def test_shuffled_rounds_average_the_same_and_hide_names(tmp_path: Path) -> None:
    plain = federation(aggregation="hierarchical", weighting="size").run()
    fed = federation(aggregation="hierarchical", weighting="size", protections=[Shuffle()])
    trace, truth, model = record(fed, tmp_path)
    torch.testing.assert_close(model, plain, rtol=1e-5, atol=1e-6)
    for number in trace.rounds:
        table = trace.messages(number)
        to_root = [m.step for m in table if m.receiver == SERVER]
        assert min(to_root) > max(m.step for m in table if m.sender == ANONYMOUS)
        senders = truth.senders(number)
        names, raw = truth.raw_updates(number)
        for r in range(3):
            updates = trace.seen_by(f"region-{r}").updates(number)
            assert set(updates.senders) == {ANONYMOUS}
            own = [names.index(senders[int(m)]) for m in updates.messages]
            assert sorted(own) == np.flatnonzero(r == REGION).tolist()
            np.testing.assert_allclose(updates.rows, raw[own], atol=1e-6)
        sealed = [m for m in trace.messages(number) if m.receiver == SHUFFLER]
        assert [m.sender for m in sealed] == [
            fed.party[i] for r in range(3) for i in np.flatnonzero(r == REGION)
        ]
        assert all(not m.parts for m in sealed)


# -- metrics -------------------------------------------------------------------------------------


def test_metrics_are_those_of_the_model_after_the_round(tmp_path: Path) -> None:
    task = MLP(hidden=(4,)).build(dataset(), SEED)
    test = task.encode(dataset())
    seen: list[dict[str, float]] = []
    fed = federation(task=task, test=test)
    trace, truth, model = record(fed, tmp_path, progress=lambda n, m: seen.append(m))
    assert truth.metrics(3) == seen[-1] == task.metrics(model, test, SEED)
    assert [truth.metrics(r) for r in trace.rounds] == seen


# -- bad input -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="gossip needs a graph"):
        federation(aggregation="gossip", topology=None)
    with pytest.raises(ConfigError, match="plant"):
        federation(aggregation="gossip", probe=Plant())
    with pytest.raises(ConfigError, match="6 names"):
        federation(party=("a", "b"))
    with pytest.raises(ConfigError, match='wire = "delta"'):
        federation(wire="model", probe=Plant(), protections=[Shuffle()]).run()


def test_a_client_whose_data_a_protection_empties_is_refused() -> None:
    class Drop(Hook):
        name: ClassVar[str] = "drop"

        def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
            return x[1:], y[1:]

    with pytest.raises(ConfigError, match="1 empty, the first is client 1"):
        federation(protections=[Drop()])


def test_more_clients_than_records_are_refused() -> None:
    with pytest.raises(DataError, match="at most 5 clients"):
        from_settings("iid", {}).partition(dataset(5), 6, SEED)


def test_names_of_many_clients_sort_in_their_order() -> None:
    x, y = torch.zeros(120, 5), torch.zeros(120, dtype=torch.int64)
    data = ClientData.join([(x[i : i + 1], y[i : i + 1]) for i in range(120)])
    party = federation(data=data).party
    assert party[7] == "client-007"
    assert list(party) == sorted(party)


def test_an_autoencoder_can_be_federated(tmp_path: Path) -> None:
    task = VAE(hidden=6, latent=2).build(dataset(), SEED)
    training = Training(optimizer="adam", learning_rate=0.01, batch_size=4)
    fed = federation(task=task, training=training, rounds=2)
    _, _, model = record(fed, tmp_path)
    torch.testing.assert_close(model, twin(fed, 2), rtol=1e-4, atol=1e-5)
