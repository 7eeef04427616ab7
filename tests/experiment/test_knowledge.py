"""What an adversary brings: matched records without answers, known noise, files of others."""

import csv
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError, NotApplicable, UsageError
from fedaudit.experiment import audit, run
from fedaudit.experiment.build import build
from fedaudit.experiment.config import load
from fedaudit.experiment.knowledge import (
    Desk,
    Records,
    candidates,
    noise_of,
    of_config,
    of_files,
    of_run,
)
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import GPT, MLP
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import PUBLIC, SERVER, MemoryRecorder, MemoryTruth, Recorder, Trace

SMALL = {
    "seed": 3,
    "data": {"name": "digits", "test_fraction": 0.3},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 5, "rounds": 2},
}


def played(**sections):
    """(config, trace, truth) of a small federation."""
    config = load(SMALL | sections)
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        declared=[p.declare() for p in federation.protections],
        task=federation.task.settings,
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    return config, recorder.trace(), truth


@pytest.fixture(scope="module")
def small():
    config, trace, truth = played()
    return config, trace, truth, of_config(config, trace, truth)


def rows_of(x):
    return [row.tobytes() for row in np.ascontiguousarray(x).reshape(len(x), -1)]


def table(x, y, client=None):
    return Dataset(
        name="table", kind="features", x=np.asarray(x, np.float32), y=np.asarray(y, np.int64),
        classes=("a", "b", "c"), client=client,
    )  # fmt: skip


def random_records(counts, others, seed=0, **more):
    """Records of clients with the given labels, and others."""
    rng = np.random.default_rng(seed)
    own = {n: table(rng.normal(size=(len(y), 4)), y) for n, y in counts.items()}
    nobody = table(rng.normal(size=(len(others), 4)), others)
    task = MLP(hidden=(3,)).build(nobody, Seed(0))
    return Records(task, own, nobody, **more)


# -- matching -------------------------------------------------------------------------------------


def test_records_of_a_run_are_those_its_clients_trained_on(small):
    from fedaudit.experiment.build import load_data

    config, _, truth, records = small
    train, test = load_data(config, Seed(config.seed))
    for party, facts in truth.clients.items():
        assert rows_of(records.own[party].x) == rows_of(train.x[facts["records"]])
    assert rows_of(records.others.x) == rows_of(test.x)


@pytest.mark.parametrize("most", [3, 20, 10_000])
def test_candidates_are_matched_by_client_and_class(small, most):
    records = small[3]
    pools, members, _ = candidates(records, most, Seed(1))
    nobodys = []
    for party, pool in pools.items():
        inside = members[party]
        assert inside.sum() == (~inside).sum() <= most
        y = pool.y.numpy()
        np.testing.assert_array_equal(
            np.bincount(y[inside], minlength=10), np.bincount(y[~inside], minlength=10)
        )
        rows = rows_of(pool.x.numpy())
        own = dict(zip(rows_of(records.own[party].x), records.own[party].y, strict=True))
        for row, label, mine in zip(rows, y, inside, strict=True):
            assert (row in own) == mine
            if mine:
                assert own[row] == label
        nobodys += [row for row, mine in zip(rows, inside, strict=True) if not mine]
        assert len({*rows}) == len(rows)
    assert len({*nobodys}) == len(nobodys)
    assert {*nobodys} <= {*rows_of(records.others.x)}


def test_the_classes_asked_about_are_those_a_client_holds():
    """Few candidates of many records: a sample of all classes, not the first ones in order."""
    labels = np.repeat([0, 1, 2], [100, 200, 100])
    records = random_records({"a": labels, "b": labels}, np.repeat([0, 1, 2], 400))
    pools, _, _ = candidates(records, 80, Seed(2))
    for pool in pools.values():
        shares = np.bincount(pool.y.numpy(), minlength=3) / len(pool)
        np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.15)


def test_no_client_takes_all_held_out_records_of_a_class():
    records = random_records({n: [0] * 50 for n in "abcde"}, [0] * 50)
    _, members, _ = candidates(records, 64, Seed(3))
    assert [int(members[n].sum()) for n in "abcde"] == [10] * 5


def test_order_gives_no_answer_and_the_seed_decides(small):
    positions = []
    for s in range(30):
        _, members, _ = candidates(small[3], 20, Seed(s))
        positions += [np.flatnonzero(m).mean() / (len(m) - 1) for m in members.values()]
    assert np.mean(positions) == pytest.approx(0.5, abs=0.03)
    a, b = candidates(small[3], 20, Seed(4)), candidates(small[3], 20, Seed(4))
    for party in a[0]:
        assert torch.equal(a[0][party].x, b[0][party].x)
        np.testing.assert_array_equal(a[1][party], b[1][party])


def test_inverted_clients_are_asked_about_inverted_records():
    config, trace, truth = played(partition={"kind": "inverted", "target": 1})
    records = of_config(config, trace, truth)
    assert records.inverted == {*records.own} - {"client-01"}
    pools, members, _ = candidates(records, 10, Seed(5))
    plain, mirrored = {*rows_of(records.others.x)}, {*rows_of(1 - records.others.x)}
    for party, pool in pools.items():
        inside, rows = members[party], rows_of(pool.x.numpy())
        own = {*rows_of(records.own[party].x)}
        assert all(row in own for row, mine in zip(rows, inside, strict=True) if mine)
        expected = plain if party == "client-01" else mirrored
        assert all(row in expected for row, mine in zip(rows, inside, strict=True) if not mine)


def test_natural_owners_are_matched_with_their_own_held_out_records():
    rng = np.random.default_rng(6)
    owners = tuple("st"[i % 2] for i in range(40))
    nobody = table(rng.normal(size=(40, 4)), [0] * 40, owners)
    own = {f"client-{i}": table(rng.normal(size=(9, 4)), [0] * 9) for i in range(2)}
    task = MLP(hidden=(3,)).build(nobody, Seed(0))
    records = Records(task, own, nobody, owner={"client-0": "s", "client-1": "gone"})
    pools, members, notes = candidates(records, 64, Seed(6))
    assert [*pools] == ["client-0"]
    of_s = {*rows_of(nobody.x[::2])}
    outside = pools["client-0"].x.numpy()[~members["client-0"]]
    assert {*rows_of(outside)} <= of_s
    assert any("1 clients have no record" in n for n in notes)


def test_a_document_is_asked_about_once():
    rng = np.random.default_rng(7)

    def texts(n, seed):
        words = ["one", "two", "three", "four", "five"]
        r = np.random.default_rng(seed)
        return Dataset(
            name="t", kind="text", x=tuple(" ".join(r.choice(words, 40)) for _ in range(n)),
            y=np.zeros(n, np.int64),
        )  # fmt: skip

    own = {f"client-{i}": texts(6, i) for i in range(2)}
    nobody = texts(20, 9)
    task = GPT(width=8, depth=1, heads=2, length=8).build(nobody, Seed(0))
    examples = task.encode(own["client-0"])
    assert len(examples) > 6  # a document gives several windows
    pools, members, _ = candidates(Records(task, own, nobody), 64, Seed(int(rng.integers(9))))
    for party, pool in pools.items():
        assert members[party].sum() == 6
        assert len(pool) == 12


# -- doubles --------------------------------------------------------------------------------------


def overlapping(share, inverted=()):
    """Held-out records of which client b trained on a share (or, inverted, on 1 - x of it)."""
    records = random_records({"a": [0] * 20, "b": [1] * 20}, [0, 1] * 20)
    x, count = records.others.x, int(share * 40)
    mine = records.own["b"].x.copy()
    mine[:count] = x[1 : 2 * count : 2]
    own = {"a": records.own["a"], "b": table(1 - mine if inverted else mine, [1] * 20)}
    return Records(records.task, own, records.others, frozenset(inverted))


def test_a_few_held_out_records_that_were_trained_on_are_left_out():
    records = overlapping(0.1)
    pools, members, notes = candidates(records, 64, Seed(8))
    assert notes == ("4 held-out records that a client trained on too were left out",)
    trained = {row for own in records.own.values() for row in rows_of(own.x)}
    for party, pool in pools.items():
        outside = rows_of(pool.x.numpy()[~members[party]])
        assert not trained & {*outside}


def test_many_are_the_wrong_file():
    with pytest.raises(NotApplicable, match="overlap members") as error:
        candidates(overlapping(0.5), 64, Seed(9))
    assert "20 of 40" in error.value.got


def test_doubles_of_inverted_clients_are_seen_through():
    with pytest.raises(NotApplicable, match="overlap members"):
        candidates(overlapping(0.5, inverted=("b",)), 64, Seed(10))


def test_minus_zero_is_zero():
    records = random_records({"a": [0] * 4}, [0] * 20)
    own, x = np.zeros((4, 4), np.float32), records.others.x.copy()
    x[0] = -0.0
    pools, _, notes = candidates(
        Records(records.task, {"a": table(own, [0] * 4)}, table(x, [0] * 20)), 64, Seed(11)
    )
    assert notes[0].startswith("1 held-out")
    assert len(pools["a"]) == 8


def test_classes_that_nobody_holds_out_cannot_be_asked_about():
    records = random_records({"a": [2] * 5, "b": [0] * 5}, [0] * 10)
    pools, _, notes = candidates(records, 64, Seed(12))
    assert [*pools] == ["b"]
    assert notes == ("1 clients have no record that could be matched: not asked about",)
    with pytest.raises(NotApplicable, match="can be matched"):
        candidates(random_records({"a": [2] * 5}, [0] * 10), 64, Seed(13))


# -- noise ----------------------------------------------------------------------------------------


def test_no_declared_noise_is_none(small):
    config, trace, truth, _ = small
    assert noise_of(trace, truth, config) is None


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_noise_of_uploads_as_measured(participation):
    part = {"clients": 5, "rounds": 2, "participation": participation, "weighting": "size"}
    noisy = {"update_noise": {"noise_multiplier": 2.0, "clip": 0.5}}
    config, trace, truth = played(federation=part, protections=noisy)
    noise = noise_of(trace, truth, config)
    updates = trace.seen_by(SERVER).updates(1)
    assert len(updates.senders) == max(2, round(5 * participation))
    share = updates.weights / updates.weights.sum()
    # clipped to 0.5, each number of an upload is noise of deviation 1 but for a trace of signal
    for name, p, row in zip(updates.senders, share, updates.rows, strict=True):
        assert noise.own[name] == pytest.approx(p * row.std(), rel=0.1)
    assert noise.aggregate == pytest.approx((share @ updates.rows).std(), rel=0.1)
    assert "update_noise" in noise.rule


@pytest.mark.parametrize("hidden", [False, True])
def test_noise_of_every_round_goes_by_its_own_weights(hidden):
    """Others take part in every round, with other shares in the mean."""
    part = {"clients": 8, "rounds": 5, "participation": 0.4, "weighting": "size"}
    noisy = {"update_noise": {"noise_multiplier": 2.0, "clip": 0.5}}
    noisy |= {"shuffle": {}} if hidden else {}
    mixed = {"kind": "dirichlet", "alpha": 0.1}
    config, trace, truth = played(seed=4, federation=part, protections=noisy, partition=mixed)
    noise = noise_of(trace, truth, config)
    stated, view = [], trace.seen_by(SERVER)
    for number in view.rounds:
        updates = view.updates(number)
        sigma, own = noise.in_round(updates.senders, updates.weights)
        share = updates.weights / updates.weights.sum()
        np.testing.assert_allclose(own, share * updates.rows.std(axis=1), rtol=0.1)
        assert sigma == pytest.approx((share @ updates.rows).std(), rel=0.1)
        stated.append(sigma)
    if not hidden:
        assert max(stated) > 1.05 * min(stated)
    assert noise.clip == 0.5


def test_noise_on_the_sum_is_divided_by_those_who_took_part():
    noisy = {"central_dp": {"noise_multiplier": 3.0, "clip": 0.5}}
    config, trace, truth = played(protections=noisy)
    noise = noise_of(trace, truth, config)
    for count in (2, 5):
        sigma, own = noise.in_round(["client-00"] * count, np.ones(count))
        assert sigma == pytest.approx(1.5 / count)
        assert not own.any()


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_noise_of_an_honest_server_as_measured(participation):
    part = {"clients": 5, "rounds": 1, "participation": participation}
    noisy = {"central_dp": {"noise_multiplier": 3.0, "clip": 0.5}}
    config, trace, truth = played(federation=part, protections=noisy)
    noise = noise_of(trace, truth, config)
    view = trace.seen_by(SERVER)
    first = next(i for i, m in view.indexed(1) if m.kind == "model")
    added = view.released() - view.payload(1, first) - view.updates(1).rows.mean(0)
    assert noise.aggregate == pytest.approx(float(added.std()), rel=0.1)
    assert not noise.own


def test_noise_of_training_as_measured():
    """DP-SGD with much noise: updates are sums of independent steps, to first order."""
    noisy = {"dp_sgd": {"noise_multiplier": [4.0, 8.0, 16.0, 4.0, 8.0], "clip": 0.01}}
    config, trace, truth = played(protections=noisy, training={"epochs": 2, "learning_rate": 0.05})
    noise = noise_of(trace, truth, config)
    updates = trace.seen_by(SERVER).updates(1)
    for name, row in zip(updates.senders, updates.rows, strict=True):
        assert noise.own[name] == pytest.approx(row.std() / 5, rel=0.15)
    assert noise.aggregate == pytest.approx(updates.rows.mean(0).std(), rel=0.15)


@pytest.mark.parametrize("known", [True, False])
def test_noise_whose_size_cannot_be_told_is_said_to_be_there(known):
    adam = {"optimizer": "adam", "learning_rate": 0.01}
    config, trace, truth = played(protections={"dp_sgd": {}}, training=adam)
    noise = noise_of(trace, truth, config if known else None)
    assert not noise.complete
    assert "of unknown size" in noise.rule


def in_half_precision(config, folder):
    """The trace of a config in float16."""
    federation, facts = build(config)
    about = {"layouts": federation.layouts(), "federation": federation.describe()}
    federation.run(Recorder(folder, dtype="float16", **about), MemoryTruth(facts))
    return Trace.open(folder)


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("hidden", [False, True])
def test_rounding_of_a_trace_in_half_precision_as_measured(tmp_path, rate, hidden):
    """The step of the model minus the sum of the updates is nothing but rounding."""
    sections = {
        "federation": {"clients": 5, "rounds": 2, "weighting": "size", "server_learning_rate": rate}
    }
    config = load(SMALL | sections | ({"protections": {"shuffle": {}}} if hidden else {}))
    trace = in_half_precision(config, tmp_path / "half")
    noise = noise_of(trace, None, config)
    _, exact, _ = played(**sections)
    assert noise.complete
    assert noise.rule == "quantisation: recorded in float16, rounding step / sqrt(12)"
    view, full = trace.seen_by(SERVER), exact.seen_by(SERVER)
    updates = view.updates(1)
    share = updates.weights / updates.weights.sum()
    sent = [view.received(n, "client-00", before=1).astype(np.float64) for n in (1, 2)]
    left = (sent[1] - sent[0]) / rate - share @ updates.rows.astype(np.float64)
    assert noise.aggregate == pytest.approx(float(left.std()), rel=0.1)
    if hidden:
        assert [*noise.own] == trace.manifest.federation["clients"]
        return
    # a few large numbers bear most of it: all clients together, and a wide margin
    off = share * np.linalg.norm(updates.rows - full.updates(1).rows, axis=1)
    stated = [noise.own[name] for name in updates.senders]
    width = trace.layout.width
    assert np.linalg.norm(stated) == pytest.approx(np.linalg.norm(off) / width**0.5, rel=0.25)
    assert noise_of(exact, None, config) is None


def test_half_precision_of_a_trace_that_names_no_clients(tmp_path):
    """Whole models from other software: every upload is read against the model that was sent."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=2000).astype(np.float32)
    recorder = Recorder(tmp_path / "trace", like={"w": start}, dtype="float16")
    with recorder.round() as wire:
        for name in ("A", "B"):
            wire.send("model", SERVER, name, {"w": start})
        ups = {n: start + rng.normal(size=2000).astype(np.float32) for n in ("A", "B")}
        for name, up in ups.items():
            wire.send("model", name, SERVER, {"w": up})
    trace = Trace.open(tmp_path / "trace")
    noise = noise_of(trace)
    rows = trace.seen_by(SERVER).updates(1).rows
    for name, row in zip(("A", "B"), rows, strict=True):
        off = (row - (ups[name] - start)).std()
        assert noise.own[name] == pytest.approx(float(off) / 2, rel=0.1)
    assert noise.aggregate > np.sqrt(sum(v**2 for v in noise.own.values()))


@pytest.mark.parametrize("weighting", ["equal", "size"])
def test_rounding_of_a_secure_sum_as_measured(weighting):
    """A ring of few steps, so that rounding stands out of single precision."""
    part = {"clients": 5, "rounds": 1, "weighting": weighting}
    ring = {"secure_aggregation": {"threshold": 3, "bound": 1e5}}
    config, trace, truth = played(federation=part, protections=ring)
    noise = noise_of(trace, truth, config)
    _, plain, _ = played(federation=part)
    ended = [t.seen_by(SERVER).released().astype(np.float64) for t in (trace, plain)]
    # what no client moved at all is not rounded either
    moving = (plain.seen_by(SERVER).updates(1).rows != 0).all(axis=0)
    assert moving.sum() > 300
    off = float((ended[0] - ended[1])[moving].std())
    assert noise.aggregate == pytest.approx(off, rel=0.15)
    assert noise.rule.startswith("quantisation: secure_aggregation")
    assert noise.complete
    # other software may not say how fine its ring is
    trace.manifest.declared[0].pop("bound")
    assert noise_of(trace, truth, config) is None


# -- the desk -------------------------------------------------------------------------------------


def test_the_desk_hands_out_what_is_needed_and_keeps_the_answers(small):
    config, trace, truth, records = small
    loaded = []

    def load_records():
        loaded.append(1)
        return records

    desk = Desk(trace, truth, Seed(1), load_records, config)
    plain = SimpleNamespace(needs=())
    assert desk.knowledge_for(plain) == (Knowledge(), truth)
    assert not loaded
    for most in (8, 4):
        known, answers = desk.knowledge_for(TwoStageMembership(records=most))
        assert {len(p) for p in known.candidates.values()} == {2 * most}
        assert {p: len(m) for p, m in answers.members.items()} == {
            p: len(c) for p, c in known.candidates.items()
        }
    assert len(loaded) == 1
    with pytest.raises(NotApplicable, match="no records to ask about"):
        Desk(trace, truth, Seed(1), None).knowledge_for(TwoStageMembership())


# -- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def csv_run(tmp_path_factory):
    """A run on a table of its own, with a membership audit."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    lines = [[*np.round(rng.normal(size=3), 4), int(rng.integers(2))] for _ in range(160)]
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "y"], *lines])
    config = {
        "data": {"path": str(folder / "table.csv"), "label": "y", "test_fraction": 0.5},
        "partition": {"kind": "iid"},
        "task": {"kind": "mlp", "hidden": [16]},
        "federation": {"clients": 4, "rounds": 2},
        "training": {"epochs": 30, "learning_rate": 0.5, "batch_size": 4},
        "audits": {"coverage": {}, "two_stage_membership": {"checked_rounds": 0}},
    }
    return folder, config, run(config, folder / "run")


def by_name(done):
    return {r.audit: r for r in done.results}


def test_a_run_audits_its_own_records(csv_run):
    folder, _, done = csv_run
    result = by_name(done)["two_stage_membership"]
    assert result.estimates["membership_auc"].value > 0.6
    assert "two_stage_membership" in (folder / "run" / "report.html").read_text()


def tamper(folder, name="two_stage_membership"):
    """Mark a stored result: what is kept bears the mark, what is done again does not."""
    file = folder / "results" / f"{name}.json"
    stamped = json.loads(file.read_text())
    stamped["result"]["notes"] = ["kept"]
    file.write_text(json.dumps(stamped))


def test_results_of_a_run_are_kept_and_done_again_for_other_settings(csv_run):
    folder, config, _ = csv_run
    tamper(folder / "run")
    assert by_name(run(config, folder / "run"))["two_stage_membership"].notes == ("kept",)
    other = config | {"audits": {"two_stage_membership": {"checked_rounds": 0, "sample": 8}}}
    assert by_name(run(other, folder / "run"))["two_stage_membership"].notes != ("kept",)


def test_what_if_the_run_had_been_summed_or_shuffled(csv_run):
    folder, _, _ = csv_run
    for hook, words in (("secure_sum", "not observable"), ("shuffle", "senders are hidden")):
        done = audit(folder / "run", ["two_stage_membership"], as_if=[hook])
        (result,) = done.results
        assert any(words in n for n in result.notes)


def test_data_that_changed_or_are_gone_are_a_missing_need(csv_run):
    folder, _, _ = csv_run
    file, other = folder / "table.csv", {"two_stage_membership": {"records": 8}}
    before = file.read_text()
    try:
        lines = before.splitlines()
        file.write_text("\n".join([lines[0], *reversed(lines[1:])]))
        (result,) = audit(folder / "run", other, out=folder / "changed").results
        assert "not those that the run trained on" in result.not_applicable
        file.unlink()
        done = audit(folder / "run", {"coverage": {}, **other}, out=folder / "gone")
        found = by_name(done)
        assert "cannot be read" in found["two_stage_membership"].not_applicable
        assert found["coverage"].not_applicable is None
    finally:
        file.write_text(before)
    (result,) = audit(folder / "run", other, out=folder / "back").results
    assert result.not_applicable is None


def test_without_its_private_config_a_run_has_no_records(csv_run, tmp_path):
    trace = Trace.open(csv_run[0] / "run" / "trace")
    with pytest.raises(NotApplicable, match="no records to ask about") as error:
        of_run(tmp_path, trace)
    assert "--data" in error.value.remedy


# -- traces of other software ---------------------------------------------------------------------

MODULE = """\
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))

def narrow():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
"""


def arrays(state):
    return {k: v.detach().numpy().copy() for k, v in state.items()}


def train_elsewhere(folder, *, clients=4, records=24, task=None):
    """A federated loop as anybody writes it: plain torch, whole models on the wire, noise labels.

    Writes trace/, table.csv and foreign_model.py.
    """
    (folder / "foreign_model.py").write_text(MODULE)
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    scope = {}
    exec(MODULE, scope)
    module = scope["build"]()
    state = module.state_dict()
    names = [f"hospital {c}" for c in "ABCDEFG"[:clients]]
    data = {
        n: (rng.normal(size=(records, 6)).astype(np.float32), rng.integers(0, 2, records))
        for n in names
    }
    data["held-out"] = (
        rng.normal(size=(clients * records, 6)).astype(np.float32),
        rng.integers(0, 2, clients * records),
    )
    recorder = Recorder(folder / "trace", like=arrays(state), task=task or {})
    for number in range(2):
        states = []
        with recorder.round() as wire:
            for n in names:
                wire.send("model", SERVER, n, arrays(state))
            for n in names:
                module.load_state_dict(state)
                module.train()
                x, y = torch.from_numpy(data[n][0]), torch.from_numpy(data[n][1])
                optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
                for _ in range(80):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(module(x), y).backward()
                    optimiser.step()
                states.append({k: v.clone() for k, v in module.state_dict().items()})
                wire.send("model", n, SERVER, arrays(states[-1]))
            state = {
                k: torch.stack([s[k] for s in states]).float().mean(0).to(v.dtype)
                for k, v in state.items()
            }
            if number == 1:
                wire.send("model", SERVER, PUBLIC, arrays(state))
    recorder.close()
    with (folder / "table.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["where", *(f"x{i}" for i in range(6)), "sick"])
        for n, (x, y) in data.items():
            out.writerows(
                [n, *map(float, row), int(label)] for row, label in zip(x, y, strict=True)
            )
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    return train_elsewhere(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def shell(elsewhere, monkeypatch, in_process):
    """`fedaudit ...` in the folder of the foreign trace."""
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.delitem(sys.modules, "foreign_model", raising=False)
    return in_process


ASK = (
    "--only", "two_stage_membership", "--data", "table.csv", "--model", "foreign_model:build",
    "--label", "sick", "--client", "where",
)  # fmt: skip
COLUMNS = {"label": "sick", "client": "where"}


def test_a_foreign_trace_is_audited_with_a_module_and_a_table(shell, elsewhere):
    done = shell("audit", "trace", *ASK, "--json")
    assert done.code == 0, done.err
    stored = json.loads((elsewhere / "trace-audit/results/two_stage_membership.json").read_text())
    result = stored["result"]
    # noise labels, learnt by heart: statistics between the weights are put in their place
    assert result["estimates"]["membership_auc"]["low"] > 0.53
    assert [*result["per_client"]] == [f"hospital {c}" for c in "ABCD"]
    findings = json.loads((elsewhere / "trace-audit/findings.json").read_text())
    assert findings[0]["verdict"] == "leak"


def test_the_same_question_is_kept_and_another_is_asked_again(shell, elsewhere):
    both = ("--only", "coverage", *ASK)
    assert shell("audit", "trace", *both, "--quiet").code == 0
    out = elsewhere / "trace-audit"

    def asked_again(*more):
        tamper(out)
        tamper(out, "coverage")
        done = shell("audit", "trace", *both, "--quiet", *more)
        assert done.code == 0, done.err
        other = json.loads((out / "results/coverage.json").read_text())
        assert other["result"]["notes"] == ["kept"]
        stored = json.loads((out / "results/two_stage_membership.json").read_text())
        return stored["result"]["notes"] != ["kept"]

    assert not asked_again()
    table, module = elsewhere / "table.csv", elsewhere / "foreign_model.py"
    before, code = table.read_text(), module.read_text()
    try:
        # the same file by another name is the same
        table.rename(elsewhere / "renamed.csv")
        assert not asked_again("--data", "renamed.csv")
        (elsewhere / "renamed.csv").rename(table)
        table.write_text("\n".join(before.splitlines()[:-20]) + "\n")
        assert asked_again()
        module.write_text(code + "# edited\n")
        assert asked_again()
    finally:
        table.write_text(before)
        module.write_text(code)


def test_shuffled_foreign_rows_are_scored_by_the_members_alone(shell, elsewhere):
    done = shell("audit", "trace", *ASK, "--as", "shuffle", "--out", "hidden", "--quiet")
    assert done.code == 0, done.err
    stored = json.loads((elsewhere / "hidden/results/two_stage_membership.json").read_text())
    assert stored["result"]["estimates"]["membership_auc"]["low"] > 0.53
    # the rows' senders are nobody's knowledge once only the shuffled trace is left
    (elsewhere / "hidden/truth").rename(elsewhere / "put-away")
    done = shell("audit", "hidden/trace", *ASK, "--out", "blind", "--quiet")
    assert done.code == 0, done.err
    stored = json.loads((elsewhere / "blind/results/two_stage_membership.json").read_text())
    assert stored["result"]["estimates"]["membership_auc"]["low"] > 0.53
    assert "ts_mia" not in stored["result"]["estimates"]


def test_a_model_without_records_is_no_question(shell):
    done = shell("audit", "trace", "--model", "foreign_model:build")
    assert done.code == 2
    assert "--data" in done.err
    with pytest.raises(UsageError):
        audit("trace", columns={"label": "sick"})


def test_a_model_that_does_not_fit_is_a_missing_need(shell, elsewhere):
    narrow = [a.replace(":build", ":narrow") for a in ASK]
    done = shell("audit", "trace", *narrow, "--out", "narrow")
    # the only audit that was asked for cannot run on what was just typed
    assert done.code == 3
    said = " ".join(done.out.split())
    for words in ("do not fit", "0.weight", "(5, 6)", "(24, 6)"):
        assert words in said
    assert "Blind" not in said
    assert "Records were given (--data), and two stage membership did not run on them" in said
    # beside another audit that runs, it is one missing need of several
    both = shell("audit", "trace", "--only", "coverage", *narrow, "--out", "narrow")
    assert both.code == 0


def test_a_trace_alone_leaves_the_audit_out(shell):
    done = shell("audit", "trace", "--only", "two_stage_membership", "--out", "alone")
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "two stage membership did not run" in said
    assert "give records with --data" in said


def test_files_that_do_not_say_whose_records_they_hold(shell, elsewhere):
    trace = Trace.open(elsewhere / "trace")
    with pytest.raises(DataError, match="whose records"):
        of_files(trace, "table.csv", model="foreign_model:build", settings={"label": "sick"})
    text = (elsewhere / "table.csv").read_text()
    for old, new, words in (
        ("hospital", "clinic", "no records of clients"),
        ("held-out,", "hospital A,", "no records of nobody"),
    ):
        (elsewhere / "other.csv").write_text(text.replace(old, new))
        with pytest.raises(DataError, match=words) as error:
            of_files(trace, "other.csv", model="foreign_model:build", settings=COLUMNS)
        assert "hospital A" in error.value.got
    done = shell("audit", "trace", *ASK, "--data", "nowhere.csv", "--out", "missing")
    assert done.code == 3
    assert "nowhere.csv" in done.err


@pytest.mark.parametrize("word", ["public", "server", "someone else"])
def test_records_of_the_public_are_nobodys(shell, elsewhere, word):
    trace = Trace.open(elsewhere / "trace")
    text = (elsewhere / "table.csv").read_text().replace("held-out,", f"{word},")
    (elsewhere / "public.csv").write_text(text)
    records = of_files(trace, "public.csv", model="foreign_model:build", settings=COLUMNS)
    assert [*records.own] == [f"hospital {c}" for c in "ABCD"]
    assert len(records.others) == 96


@pytest.mark.parametrize(
    "slip",
    ["Hospital A", "hospital-a", "hospital  A", "hopital A", "hosptial A", "hospital B"],
)
def test_a_name_that_is_nearly_a_clients_is_refused(shell, elsewhere, slip):
    """ "hospital A" is written otherwise throughout: not one record of it would be asked about."""
    trace = Trace.open(elsewhere / "trace")
    text = (elsewhere / "table.csv").read_text().replace("hospital A,", f"{slip},")
    (elsewhere / "typo.csv").write_text(text)
    if slip == "hospital B":  # another client's name is no slip; a client without records is noted
        records = of_files(trace, "typo.csv", model="foreign_model:build", settings=COLUMNS)
        assert any("no records were given of hospital A" in n for n in records.notes)
        return
    with pytest.raises(DataError, match="nearly 'hospital A'") as error:
        of_files(trace, "typo.csv", model="foreign_model:build", settings=COLUMNS)
    assert "'held-out'" in error.value.remedy
    done = shell("audit", "trace", *ASK, "--data", "typo.csv", "--out", "typo")
    assert done.code == 3


def test_a_site_that_took_no_part_is_nobodys_and_said_to_be(shell, elsewhere):
    """ "hospital E" differs from D by a letter, and D has its own records."""
    trace = Trace.open(elsewhere / "trace")
    text = (elsewhere / "table.csv").read_text().replace("held-out,", "hospital E,")
    (elsewhere / "fifth.csv").write_text(text)
    records = of_files(trace, "fifth.csv", model="foreign_model:build", settings=COLUMNS)
    assert records.notes == (
        "records of 'hospital E' (96) were taken as nobody's: the trace has no client of that name",
    )
    _, _, notes = candidates(records, 8, Seed(0))
    assert notes[0] == records.notes[0]


def test_members_that_stand_among_the_held_out(shell, elsewhere):
    lines = (elsewhere / "table.csv").read_text().splitlines()
    again = ["held-out" + line[len("hospital A") :] for line in lines if "hospital" in line]
    (elsewhere / "twice.csv").write_text("\n".join([*lines, *again]))
    done = shell("audit", "trace", *ASK, "--data", "twice.csv", "--out", "twice")
    assert done.code == 3
    assert "overlap members" in " ".join(done.out.split())


CODER = """\
import torch
from torch import nn

class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(6, 2 * 4), nn.Linear(4, 6)

    def forward(self, x):
        mean, logvar = self.into(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
        return self.out(z), mean, logvar

def build():
    return Coder()

def elbo(task, p, x, y, noise):
    seen, mean, logvar = torch.func.functional_call(task.module, p, (x,))
    fit = -((seen - x) ** 2).sum(1)
    return fit + 0.01 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
"""


def test_a_foreign_autoencoder_is_audited_with_a_score_of_ones_own(tmp_path, monkeypatch):
    """It gives no logits: with a score nobody asks for any, without one the message says so."""
    (tmp_path / "coder.py").write_text(CODER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    rng = np.random.default_rng(2)
    scope = {"__name__": "coder"}
    exec(CODER, scope)
    module, names = scope["build"](), ["A1", "B1", "C1"]
    data = {n: rng.normal(size=(12, 6)).astype(np.float32) for n in (*names, "held-out")}
    data["held-out"] = rng.normal(size=(36, 6)).astype(np.float32)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    recorder = Recorder(tmp_path / "trace", like=arrays(state))
    for _ in range(2):
        states = []
        with recorder.round() as wire:
            for n in names:
                wire.send("model", SERVER, n, arrays(state))
            for n in names:
                module.load_state_dict(state)
                optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
                x = torch.from_numpy(data[n])
                for _ in range(150):
                    optimiser.zero_grad()
                    seen, mean, logvar = module(x)
                    kl = 0.01 * (1 + logvar - mean**2 - logvar.exp()).sum()
                    (((seen - x) ** 2).sum() - kl).backward()
                    optimiser.step()
                states.append({k: v.clone() for k, v in module.state_dict().items()})
                wire.send("model", n, SERVER, arrays(states[-1]))
        state = {k: torch.stack([s[k] for s in states]).mean(0) for k in state}
    recorder.close()
    with (tmp_path / "t.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["who", *(f"x{i}" for i in range(6)), "y"])
        for n, x in data.items():
            out.writerows(
                [n, *map(float, row), "one" if i % 2 else "two"] for i, row in enumerate(x)
            )
    given = {"data": "t.csv", "model": "coder:build", "columns": {"client": "who", "label": "y"}}
    settings = {"score_by": "coder:elbo", "smooth": True, "checked_records": 4}
    done = audit("trace", {"two_stage_membership": settings}, **given)
    result = by_name(done)["two_stage_membership"]
    assert result.not_applicable is None
    assert result.estimates["membership_auc"].low > 0.55
    assert result.bounds
    with pytest.raises(ConfigError, match="does not fit") as error:
        audit("trace", {"two_stage_membership": {}}, **given)
    assert "tuple" in error.value.got
    assert "score_by" in error.value.remedy


def test_a_manifest_does_not_decide_which_code_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    planted = {"kind": "module", "factory": "foreign_model:build"}
    train_elsewhere(tmp_path, clients=2, records=4, task=planted)
    monkeypatch.delitem(sys.modules, "foreign_model", raising=False)
    trace = Trace.open(tmp_path / "trace")
    with pytest.raises(ConfigError, match="not known") as error:
        of_files(trace, "table.csv", settings=COLUMNS)
    assert "--model" in error.value.remedy
    assert "foreign_model" not in sys.modules


def test_a_task_that_the_manifest_names_is_built(tmp_path):
    """A published trace of ours and a table: the manifest says what the model is."""
    data = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    task = MLP(hidden=(4,)).build(table(data, [0, 1, 2] * 10), Seed(0))
    names = ["client-0", "client-1"]
    for more, words in (({}, None), ({"depth": 3}, "depth")):
        folder = tmp_path / (words or "good")
        recorder = Recorder(folder, layouts={"model": task.layout}, task={**task.settings, **more})
        with recorder.round() as wire:
            for n in names:
                wire.send("model", SERVER, n, task.initial().numpy())
            for n in names:
                wire.send("delta", n, SERVER, 0.1 * np.ones(task.layout.width, np.float32))
        recorder.close()
        with (tmp_path / "t.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["who", "a", "b", "c", "y"])
            out.writerows(
                [(*names, "held-out")[i % 3], *map(float, row), i // 3 % 3]
                for i, row in enumerate(data)
            )
        asked = {"label": "y", "client": "who"}
        if words is None:
            records = of_files(Trace.open(folder), tmp_path / "t.csv", settings=asked)
            assert isinstance(records.task, Classifier)
            assert {n: len(d) for n, d in records.own.items()} == dict.fromkeys(names, 10)
        else:
            with pytest.raises(ConfigError, match=words):
                of_files(Trace.open(folder), tmp_path / "t.csv", settings=asked)
