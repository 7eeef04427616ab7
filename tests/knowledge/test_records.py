"""Models and records that are named in files: traces of other software."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.knowledge import (
    candidates,
    of_files,
)
from fedaudit.randomness import Seed
from fedaudit.study import audit
from fedaudit.tasks.catalogue import MLP
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import PUBLIC, SERVER, Recorder, Trace


def by_name(done):
    return {r.audit: r for r in done.results}


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


def test_the_same_question_is_kept_and_another_is_asked_again(shell, elsewhere, tamper):
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
        done = shell("audit", "trace", *both, "--quiet")
        assert (done.code, "data" in done.err) == (3, True)
        assert shell("audit", "trace", *both, "--quiet", "--fresh").code == 0
        module.write_text(code + "# edited\n")
        done = shell("audit", "trace", *both, "--quiet")
        assert (done.code, "code of the model" in done.err) == (3, True)
        assert shell("audit", "trace", *both, "--quiet", "--fresh").code == 0
        assert not asked_again()
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


def test_senders_of_shuffled_foreign_rows_are_named(shell, elsewhere):
    """Batch normalisation between the weights, whole models on the wire."""
    ask = ("--only", "reidentification", *ASK[2:])
    done = shell("audit", "trace", *ask, "--as", "shuffle", "--out", "named", "--quiet")
    assert done.code == 0, done.err
    stored = json.loads((elsewhere / "named/results/reidentification.json").read_text())["result"]
    rate = stored["estimates"]["naming_rate"]
    assert rate["value"] == 1.0
    assert rate["baseline"] == 0.25
    (elsewhere / "named/truth").rename(elsewhere / "named-away")
    done = shell("audit", "named/trace", *ask, "--out", "guessed", "--quiet")
    assert done.code == 0, done.err
    stored = json.loads((elsewhere / "guessed/results/reidentification.json").read_text())["result"]
    assert stored["status"] == "blind"
    assert sorted(stored["per_client"]) == [f"hospital {c}" for c in "ABCD"]


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
    assert "Records were given (--data), but two stage membership did not run on them" in said
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
    with pytest.raises(DataError, match="which client owns"):
        of_files(trace, "table.csv", model="foreign_model:build", settings={"label": "sick"})
    text = (elsewhere / "table.csv").read_text()
    for old, new, words in (
        ("hospital", "clinic", "no records of clients"),
        ("held-out,", "hospital A,", "no held-out records"),
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
        assert any("no records of hospital A were given" in n for n in records.notes)
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
        "records of 'hospital E' (96) count as held out: the trace has no client of that name",
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
    assert result.status == "ok"
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
    assert "`model=" in error.value.remedy
    assert "foreign_model" not in sys.modules


def test_a_task_that_the_manifest_names_is_built(tmp_path):
    """A published trace of ours and a table: the manifest says what the model is."""
    data = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    held = Dataset(
        name="t", kind="features", x=data, y=np.array([0, 1, 2] * 10), classes=("a", "b", "c")
    )
    task = MLP(hidden=(4,)).build(held, Seed(0))
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
