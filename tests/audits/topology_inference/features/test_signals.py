"""Signals against a slow twin, and against the updates of a real run."""

import numpy as np
import pytest

from fedaudit.audits.topology_inference import features as ft
from fedaudit.audits.topology_inference.features import Place
from fedaudit.trace import WIRETAP, MemoryRecorder, MemoryTruth


def place_of(trace):
    return Place.of(trace.seen_by(WIRETAP).federation)


def slow_signals(toy, trace, sums=False):
    """The signals by definition: one client, one round, one number after the other."""
    view, place = trace.seen_by(WIRETAP), place_of(trace)
    names = ft.signal_names(toy.layout, toy.classes, (1,))
    out = np.full((len(view.rounds), place.n, len(names)), np.nan)
    for t in view.rounds:
        updates = view.updates(t)
        own = {
            place.clients.index(s): r.astype(float)
            for s, r in zip(updates.senders, updates.rows, strict=True)
        }
        model = {c: view.received(t, place.clients[c]).astype(float) for c in own}
        if sums:
            groups = {c: [d for d in own if toy.groups[d] == toy.groups[c]] for c in own}
            model = {c: np.mean([model[d] for d in groups[c]], axis=0) for c in own}
            own = {c: np.mean([own[d] for d in groups[c]], axis=0) for c in own}
        middle = np.mean(list(own.values()), axis=0)

        def cosine(a, b):
            return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))

        for c, u in own.items():
            theta = model[c] + u
            near = [cosine(u, own[d]) for d in own if place.adjacency[c, d]]
            row = [
                np.linalg.norm(theta),
                *(np.linalg.norm(theta[e.columns]) for e in toy.layout.entries),
            ]
            row.append(np.nan if sums or not near else np.mean(near))
            row += [np.linalg.norm(u), *(np.linalg.norm(u[e.columns]) for e in toy.layout.entries)]
            row.append(cosine(u, middle))
            rows = u[toy.layout.entries[2].columns].reshape(toy.classes, -1)
            for what in (np.mean, np.linalg.norm):
                row += [what(rows[k]) for k in (1, 0, 2, 3)]
            row += [u[toy.layout.entries[3].columns][k] for k in (1, 0, 2, 3)]
            out[t - 1, c] = row
    return out


@pytest.mark.parametrize("wire", ["delta", "model"])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("sums", [False, True])
def test_signals_are_those_of_a_slow_twin(toy, wire, share, sums):
    trace, _ = toy(np.random.default_rng(3), wire=wire, share=share)
    seen = ft.observe(
        trace.seen_by(WIRETAP), place_of(trace), classes=toy.classes, sensitive=(1,), sums=sums
    )
    assert seen.seen == ("sums" if sums else "single")
    np.testing.assert_allclose(seen.values, slow_signals(toy, trace, sums), rtol=2e-4, atol=1e-5)
    assert np.isnan(seen.values[:, :, 0]).any() == (share < 1)


def test_signals_do_not_depend_on_how_tensors_are_cut(toy, monkeypatch):
    trace, _ = toy(np.random.default_rng(4))
    view, place = trace.seen_by(WIRETAP), place_of(trace)
    whole = ft.observe(view, place, classes=toy.classes, sensitive=(0,))
    monkeypatch.setattr("fedaudit.audits.topology_inference.features.rows.PIECE_BYTES", 1)
    cut = ft.observe(view, place, classes=toy.classes, sensitive=(0,))
    np.testing.assert_allclose(whole.values, cut.values, rtol=1e-5, atol=1e-6)


def engine_run(aggregation="fedavg", training=None, **sections):
    """A small run of the engine: trace, truth with raw updates, the clients' data and the task."""
    import torch

    from fedaudit.federation import topology
    from fedaudit.federation.engine import Federation
    from fedaudit.federation.local.schedule import Training
    from fedaudit.federation.local.trainer import ClientData
    from fedaudit.federation.rounds import Rounds
    from fedaudit.randomness import Seed
    from fedaudit.tasks.classifier import Classifier
    from fedaudit.tasks.models import mlp
    from fedaudit.tasks.task import seeded

    g = torch.Generator().manual_seed(1)
    parts = [
        (torch.rand(20, 6, generator=g), torch.randint(0, 3, (20,), generator=g)) for _ in range(5)
    ]
    task = Classifier(seeded(Seed(1), "w", mlp, 6, (4,), 3))
    federation = Federation(
        task=task,
        data=ClientData.join(parts),
        rounds=Rounds(clients=5, rounds=2, aggregation=aggregation),
        training=Training(**(training or {"batch_size": 4})),
        seed=Seed(2),
        topology=topology.build("line", 5, Seed(1)),
        region=np.array([0, 0, 1, 1, 1]),
        **sections,
    )
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    truth = MemoryTruth({})
    federation.run(recorder, truth, keep_raw=True)
    return recorder.trace(), truth, parts, task


def engine_signals(trace):
    return ft.observe(trace.seen_by(WIRETAP), place_of(trace), classes=3, sensitive=(0,))


@pytest.mark.parametrize("aggregation", ["gossip", "hierarchical", "fedavg"])
def test_signals_of_the_engine_are_those_of_what_clients_trained(aggregation):
    trace, truth, _, _ = engine_run(aggregation)
    seen = engine_signals(trace)
    assert seen.seen == "single"
    for t in (1, 2):
        _, raw = truth.raw_updates(t)
        norm = seen.values[t - 1, :, seen.names.index(ft.UPDATE_NORM)]
        np.testing.assert_allclose(norm, np.linalg.norm(raw, axis=1), rtol=1e-3)
    assert np.isfinite(seen.values[..., seen.names.index(ft.NORM)]).all()


@pytest.mark.parametrize("aggregation", ["hierarchical", "fedavg"])
def test_behind_a_secure_sum_clients_share_what_their_group_shows(aggregation):
    from fedaudit.protections.secure_sum import SecureSum

    trace, truth, _, _ = engine_run(aggregation, protections=(SecureSum(),))
    seen = engine_signals(trace)
    assert seen.seen == "sums"
    groups = [[0, 1], [2, 3, 4]] if aggregation == "hierarchical" else [[0, 1, 2, 3, 4]]
    _, raw = truth.raw_updates(1)
    norm = seen.values[0, :, seen.names.index(ft.UPDATE_NORM)]
    for members in groups:
        own = np.linalg.norm(raw[members].mean(axis=0))
        np.testing.assert_allclose(norm[members], own, rtol=1e-3)
    assert np.isnan(seen.values[..., seen.names.index(ft.TO_NEIGHBOURS)]).all()


def test_one_full_step_moves_a_bias_by_share_minus_prediction():
    """One step over all of a client's records: the bias signal is rate (p_c - mean softmax_c)."""
    import torch

    trace, _, parts, task = engine_run(training={"batch_size": 0, "learning_rate": 0.5})
    seen = engine_signals(trace)
    for c, (x, y) in enumerate(parts):
        with torch.no_grad():
            predicted = task.module(x).softmax(dim=1).mean(dim=0).numpy()
        for k in range(3):
            signal = seen.values[0, c, seen.names.index(f"class {k}: bias")]
            share = float((y == k).float().mean())
            assert signal == pytest.approx(0.5 * (share - predicted[k]), abs=1e-5)
