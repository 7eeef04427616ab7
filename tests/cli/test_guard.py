"""`fedaudit guard` as a user meets it."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fedaudit.audits.active_membership.probe import Planting
from fedaudit.data import builtin
from fedaudit.data.partition import Iid
from fedaudit.decide.received import own_records
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook
from fedaudit.layout import Layout
from fedaudit.protections.guard import GuardReport
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import Recorder
from fedaudit.trace.truth import TruthRecorder
from reproductions.guard import planted, plants, rounds

SEED = Seed(3)


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    """Run `fedaudit guard ...` in this process and in an empty folder: code, out, err."""
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: in_process("guard", *arguments)


def honest(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {k: v.numpy().copy() for k, v in models.mlp(64, (128, 64), 10).state_dict().items()}


def bad(seed=0):
    rng = np.random.default_rng(seed)
    return planted.fully_connected(rng, planted.records("digits"), hidden=128)


class OneRound(Planting):
    """Plants in the second round only."""

    def broadcast(self, model, *, receivers, round_number, seed):
        if round_number != 2:
            return Hook.broadcast(
                self, model, receivers=receivers, round_number=round_number, seed=seed
            )
        return super().broadcast(model, receivers=receivers, round_number=round_number, seed=seed)


def small(*widths):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = models.mlp(widths[0], widths[1:-1], widths[-1])
        return {k: v.numpy().copy() for k, v in module.state_dict().items()}


def federated(path, probe=None, rounds=3):
    """A federation of three clients on digits, and its recorder."""
    data = builtin.load("digits", seed=SEED)
    data = data.take(np.arange(90))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task = Classifier(models.mlp(64, (128, 64), 10))
    split = Iid().partition(data, 3, SEED)
    parts = [task.encode(split.client_data(data, c)) for c in range(3)]
    federation = Federation(
        task=task,
        data=ClientData.join([(p.x, p.y) for p in parts]),
        rounds=Rounds(clients=3, rounds=rounds),
        training=Training(learning_rate=0.05),
        seed=SEED,
        probe=probe,
    )
    recorder = Recorder(path, layouts=federation.layouts(), federation=federation.describe())
    return federation, recorder


def record(path, probe=None, rounds=3):
    federation, recorder = federated(path, probe, rounds)
    federation.run(recorder)


def flat(state):
    return np.concatenate([v.ravel() for v in state.values()]).astype(np.float32)


def test_a_planted_file_ends_with_4_and_an_honest_one_with_0(command, tmp_path):
    save_file(bad(), tmp_path / "bad.safetensors")
    np.savez(tmp_path / "good.npz", **honest(1))
    code, out, _ = command("bad.safetensors")
    assert code == 4
    assert "PLANTED: p = 0.0067 among 149 honest runs" in out
    assert "! one_entry" in out
    assert "1.weight" in out
    code, out, _ = command("good.npz")
    assert code == 0
    assert "no evidence" in out
    assert "can pass them" in out
    code, out, _ = command("bad.safetensors", "--previous", "good.npz", "--json")
    assert code == 4
    report = GuardReport.from_json(out)
    assert "rewritten" in {c.name for c in report.checks}


def test_a_trace_is_checked_round_by_round_as_its_clients_see_it(command, tmp_path):
    record(tmp_path / "good")
    assert command("good")[0] == 0
    record(tmp_path / "bad", OneRound(flat(bad())))
    code, out, _ = command("bad")
    assert code == 4
    assert "of 9 received models were flagged (3 clients, 3 rounds)" in out
    assert "round 2, to client-00, client-01, client-02" in out
    code, out, _ = command("bad", "--client", "client-01", "--json")
    seen = json.loads(out)
    assert [(s["party"], s["round"], s["sender"]) for s in seen] == [
        ("client-01", t, "server") for t in (1, 2, 3)
    ]
    assert [s["verdict"] for s in seen][:2] == ["no_evidence", "planted"]


def test_different_models_to_different_clients(command, tmp_path):
    rows = np.stack([flat(honest(0)), flat(bad()), flat(honest(2))])
    record(tmp_path / "t", OneRound(rows), rounds=2)
    code, out, _ = command("t", "--json")
    assert code == 4
    planted_to = [s["party"] for s in json.loads(out) if s["round"] == 2]
    alarms = {
        s["party"]: {c["name"] for c in s["checks"] if c["value"] > c["threshold"]}
        for s in json.loads(out)
        if s["round"] == 2
    }
    assert len(planted_to) == 3
    assert "one_entry" in alarms["client-01"]
    # the others got a model that has nothing to do with the last one
    assert "one_entry" not in alarms["client-00"]


def test_own_records(command, tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "from fedaudit.tasks import models\n\n"
        "def build():\n    return models.mlp(64, (128, 64), 10)\n\n"
        "def number():\n    return 3\n"
        "def absent():\n    return open('weights.bin')\n"
        "def wide(n):\n    return models.mlp(n, (), 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    save_file(honest(1), tmp_path / "m.safetensors")
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 64)).astype(np.float32), rng.integers(0, 10, 30)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    both = ("--data", "mine.npz", "--model", "own_model:build")
    code, out, err = command("m.safetensors", *both, "--label", "y", "--json")
    assert code == 5, err  # without earlier models nobody can tell whether it was altered
    assert {"silent", "one_record"} <= {c.name for c in GuardReport.from_json(out).checks}
    record(tmp_path / "t", rounds=1)
    code, out, err = command("t", *both, "--label", "y", "--json")
    assert code == 0, err
    assert "silent" in {c["name"] for c in json.loads(out)[0]["checks"]}
    code, _, err = command("m.safetensors", "--data", "mine.npz")
    assert code == 2
    assert "go together" in err
    code, _, err = command("m.safetensors", *both[:3], "own_model:number", "--label", "y")
    assert code == 2
    assert "does not build a model" in err
    for factory, said in (
        ("absent", "No such file or directory: 'weights.bin' (own_model.py:"),
        ("wide", "wide(n): missing a required argument: 'n'"),
    ):
        code, _, err = command("m.safetensors", *both[:3], f"own_model:{factory}", "--label", "y")
        assert code == 2
        assert said in err


def test_earlier_models_and_own_records_show_an_alteration(command, tmp_path, monkeypatch):
    (tmp_path / "flat_model.py").write_text(
        "from fedaudit.tasks import models\n\ndef build():\n    return models.mlp(64, (128,), 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = rounds.honest_run("mlp", "digits", seed=5, rounds=4)
    for t, state in enumerate(run.states):
        save_file({k: v.numpy() for k, v in state.items()}, tmp_path / f"{t}.safetensors")
    x, y = run.own
    np.savez(tmp_path / "mine.npz", x=x.flatten(1).numpy(), y=y.numpy())
    (planted_state,), target = plants.one_bias(run, 0, np.random.default_rng(0))
    save_file({k: v.numpy() for k, v in planted_state.items()}, tmp_path / "bad.safetensors")
    own = ("--data", "mine.npz", "--label", "y", "--model", "flat_model:build")
    earlier = [a for t in range(4) for a in ("--previous", f"{t}.safetensors")]
    code, out, err = command("4.safetensors", *own, *earlier)
    assert code == 0, err
    assert "No unit changed beyond what 3 earlier rounds show" in out
    code, out, err = command("bad.safetensors", *own, *earlier)
    assert code == 4, err
    assert "This model was altered" in out
    assert f"record {target}, exactly (unit" in out
    code, out, _ = command("bad.safetensors", *own, "--json")
    assert code == 5
    report = GuardReport.from_json(out)
    assert target in {r.record for r in report.exposure.exposed}
    assert command("bad.safetensors", *own, "--max-exposed", 0)[0] == 4
    assert command("bad.safetensors", *own, "--max-exposed", 100)[0] == 5
    record(tmp_path / "t", rounds=1)
    code, _, err = command("t", *own, "--max-exposed", 0)
    assert code == 2
    assert "exposure is measured on a single model" in err
    for wrong, said in (
        (("--max-exposed", -1, *own), "max_exposed"),
        (("--max-exposed", 0), "counts own records"),
        (("--learning-rate", 0, *own), "learning_rate"),
        (("--epochs", 0, *own), "epochs"),
    ):
        code, _, err = command("bad.safetensors", *wrong)
        assert code == 2
        assert said in err


def test_a_calibration_of_ones_own(command, tmp_path):
    for run in range(24):
        folder = tmp_path / "runs" / f"run-{run:02d}"
        folder.mkdir(parents=True)
        for t in range(2):
            save_file(honest(100 * run + t), folder / f"{t}.safetensors")
    code, out, err = command("--calibrate", "runs", "--out", "own.json")
    assert code == 0, err
    assert "20 honest runs are ranked, for levels from 0.048" in out
    save_file(bad(), tmp_path / "bad.safetensors")
    assert command("bad.safetensors", "--calibration", "own.json", "--level", 0.05)[0] == 4
    code, out, _ = command("bad.safetensors", "--calibration", "own.json")
    assert code == 5  # neither found nor not
    assert "NOTHING TO SAY" in out
    assert "99 are needed" in out
    record(tmp_path / "traces" / "a")
    record(tmp_path / "traces" / "b")
    assert command("--calibrate", "traces", "--out", "t.json")[0] == 0
    assert command("--calibrate", "empty")[0] == 3


def test_a_calibration_has_the_checks_on_own_records(command, tmp_path, monkeypatch):
    (tmp_path / "seen_model.py").write_text(
        "from fedaudit.tasks import models\n\n"
        "def build():\n    return models.mlp(64, (128, 64), 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for run in range(24):
        (tmp_path / "runs" / f"{run:02d}").mkdir(parents=True)
        save_file(honest(run), tmp_path / "runs" / f"{run:02d}" / "0.safetensors")
    rng = np.random.default_rng(0)
    # the records of one client may all be of one class
    rows = ["y," + ",".join(f"f{i}" for i in range(64))]
    rows += ["7," + ",".join(f"{v:.3f}" for v in rng.random(64)) for _ in range(12)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    own = ("--data", "mine.csv", "--label", "y", "--model", "seen_model:build")
    code, _, err = command("--calibrate", "runs", "--out", "own.json", *own)
    assert code == 0, err
    save_file(honest(99), tmp_path / "m.safetensors")
    at = ("--calibration", "own.json", "--level", 0.05, "--json")
    code, out, err = command("m.safetensors", *own, *at)
    assert code in (4, 5), err
    assert {"silent", "one_record"} <= {c.name for c in GuardReport.from_json(out).checks}


def test_a_class_that_is_a_number_keeps_it(tmp_path, monkeypatch):
    """A client without class 0: its classes are not counted from 0 again."""
    (tmp_path / "some_model.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Linear(2, 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.csv").write_text("a,b,y\n" + "1,2,7\n2,1,3\n" * 5)
    own = own_records(tmp_path / "mine.csv", "some_model:build", "y")
    assert own["data"][1].tolist() == [7, 3] * 5


def test_a_run_that_diverged_stands_for_no_honest_one(command, tmp_path):
    for run in range(3):
        (tmp_path / "runs" / f"{run}").mkdir(parents=True)
        state = honest(run)
        if run == 1:
            state["1.weight"][0, 0] = np.nan
        save_file(state, tmp_path / "runs" / f"{run}" / "0.safetensors")
    code, _, err = command("--calibrate", "runs", "--out", "own.json")
    assert code == 3
    assert "run 1 cannot be used: an honest model contains values that are not finite" in err
    assert not (tmp_path / "own.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.safetensors"], 3, "there is no model at none.safetensors"),
        (["model.pt"], 3, "has an unknown file type"),
        (["torn.safetensors"], 3, "cannot be read"),
        (["small.npz"], 3, "no tensor that can be checked"),
        (["good.npz", "--previous", "other.npz"], 3, "does not fit"),
        (["good.npz", "--level", "2"], 2, "level is out of range"),
        (["good.npz", "--client", "a"], 2, "a single model has no clients"),
        (["good.npz", "--calibration", "none.json"], 3, "is not a calibration"),
        ([], 2, "nothing to check"),
    ],
)
def test_bad_input(command, tmp_path, arguments, code, message):
    (tmp_path / "model.pt").write_bytes(b"x")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    np.savez(tmp_path / "small.npz", bias=np.zeros(4, np.float32))
    np.savez(tmp_path / "good.npz", **honest(0))
    np.savez(tmp_path / "other.npz", **{"1.weight": np.zeros((2, 2), np.float32)})
    got, _, err = command(*arguments)
    assert got == code
    assert message in err


def test_weights_that_are_not_finite_are_flagged(command, tmp_path):
    state = honest(0)
    state["1.weight"][0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", **state)
    code, out, _ = command("nan.npz")
    assert code == 4
    assert "NOT FINITE" in out


def test_a_model_of_narrow_layers_ends_with_5(command, tmp_path):
    np.savez(tmp_path / "narrow.npz", **small(8, 6, 2))
    code, out, _ = command("narrow.npz")
    assert code == 5
    assert out.startswith("NOTHING TO SAY")
    assert "one_entry" in out  # which checks, and how far they reach
    code, out, _ = command("narrow.npz", "--json")
    assert code == 5
    report = GuardReport.from_json(out)
    assert report.verdict == "nothing_to_say"
    assert [x.name for x in report.unexamined] == ["1.weight", "3.weight"]
    # beside the model before it every row can be seen to turn
    assert command("narrow.npz", "--previous", "narrow.npz")[0] == 0


def test_layers_of_which_nothing_can_be_said_are_counted_first(command, tmp_path):
    np.savez(tmp_path / "part.npz", **small(64, 8, 10))
    code, out, _ = command("part.npz")
    assert code == 5
    assert "in part on 1.weight (8 x 64)" in out
    assert "nothing to say on 3.weight (10 x 8)" in out
    np.savez(tmp_path / "part.npz", **small(64, 32, 10))
    code, out, _ = command("part.npz")
    assert code == 0
    assert out.startswith("no evidence in 1 of 2 layers; 1 not examined in full: p = ")
    assert "in part on 3.weight (10 x 32)" in out


def test_a_trace_of_narrow_models_ends_with_5(command, tmp_path):
    """The first model of each client has none before it; later ones are compared."""
    layouts = {"model": Layout.of([("1.weight", (6, 8)), ("1.bias", (6,))])}
    rng = np.random.default_rng(0)
    row = rng.normal(size=54).astype(np.float32)
    recorder = Recorder(tmp_path / "t", layouts=layouts)
    for _ in range(2):
        with recorder.round() as r:
            for client in ("a", "b"):
                r.send("model", "server", client, row)
        row = row + np.float32(0.01) * rng.normal(size=54).astype(np.float32)
    recorder.close()
    code, out, _ = command("t", "--json")
    assert code == 5
    assert {(s["round"], s["verdict"]) for s in json.loads(out)} == {
        (1, "nothing_to_say"),
        (2, "no_evidence"),
    }
    assert "nothing can be said of 2" in command("t")[1]


@pytest.mark.parametrize(
    "file", ["trace/round-00001", "truth/round-00001", "checkpoint/state-00001"]
)
def test_files_of_a_run_are_refused_and_the_run_is_looked_at_instead(command, tmp_path, file):
    federation, recorder = federated(tmp_path / "run" / "trace", rounds=1)
    truth = TruthRecorder(tmp_path / "run" / "truth", {})
    federation.run(recorder, truth=truth, checkpoint=tmp_path / "run" / "checkpoint")
    code, _, err = command(f"run/{file}.safetensors")
    assert code == 3
    assert "is not a model" in err
    remedy = err.rsplit("fedaudit guard ", 1)[1].split()[0]
    assert command(remedy)[0] == 0


def test_records_are_refused_as_a_model(command, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.random((90, 64)), y=rng.integers(0, 10, 90))
    code, _, err = command("mine.npz")
    assert code == 3
    assert "is not a model" in err
    assert "--data" in err
