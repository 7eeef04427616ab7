"""A folder is about one set of data, one piece of code and one config: others are refused."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedaudit import foreign
from fedaudit.decide.harden import harden
from fedaudit.errors import DataError
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.setup.config import load
from fedaudit.setup.identity import (
    check_and_store,
    code_identity,
    code_named_in,
    files_named_in,
    identity_of,
)
from fedaudit.study.auditing import _asked
from fedaudit.study.reuse import WORDS, differing
from fedaudit.study.sweep import sweep

CONFIG = """
seed = 1
[data]
path = "patients.csv"
label = "sick"
client = "hospital"
[partition]
kind = "by_owner"
[task]
kind = "mlp"
hidden = [3]
[federation]
rounds = 2
[audits.coverage]
"""


def table(rows, hospitals=4):
    rng = np.random.default_rng(0)
    lines = ["age,dose,sick,hospital"]
    for i in range(rows):
        a, b = rng.normal(size=2)
        lines.append(f"{a:.3f},{b:.3f},{int(a > 0)},h{i % hospitals}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text(table(80))
    Path("c.toml").write_text(CONFIG)
    return tmp_path


def halved(text):
    lines = text.splitlines()
    return "\n".join(lines[: len(lines) // 2]) + "\n"


def without_two_hospitals(text):
    return "\n".join(line for line in text.splitlines() if line[-2:] not in ("h2", "h3")) + "\n"


def other_owners(text):
    return text.replace(",h0\n", ",hX\n").replace(",h1\n", ",h0\n").replace(",hX\n", ",h1\n")


def one_cell(text):
    return text.replace(text.splitlines()[7].split(",")[0], "0.125", 1)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (halved, "39 records where there were 80"),
        (without_two_hospitals, "2 clients where there were 4"),
        (other_owners, "with other contents"),
        (one_cell, "with other contents"),
    ],
)
def test_data_that_changed_under_a_finished_run(home, in_process, change, said, quiet):
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    before = Path("run/report.html").read_bytes()
    file = Path("patients.csv")
    file.write_text(change(file.read_text()))
    done = in_process("run", "c.toml", "--out", "run", *quiet)
    assert done.code == 3
    assert said in done.err
    assert "--fresh" in done.err
    assert Path("run/report.html").read_bytes() == before
    assert in_process("run", "c.toml", "--out", "run", "-q", "--fresh").code == 0
    assert in_process("verify", "run").code == 0


def test_names_and_times_do_not_count(home, in_process):
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    text = Path("patients.csv").read_text()
    Path("patients.csv").unlink()
    Path("patients.csv").write_text(text.replace("\n", "\r\n"))  # the same records, saved anew
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    Path("patients.csv").rename("moved.csv")
    Path("c.toml").write_text(CONFIG.replace("patients.csv", "moved.csv"))
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0


def test_fresh_keeps_nothing_old(home, in_process):
    Path("c.toml").write_text(CONFIG + "[audits.fingerprint]\n")
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    Path("run/notes.txt").write_text("of the user")
    Path("c.toml").write_text(CONFIG)
    Path("patients.csv").write_text(table(60))
    assert in_process("run", "c.toml", "--out", "run", "-q", "--fresh").code == 0
    assert [f.name for f in Path("run/results").iterdir()] == ["coverage.json"]
    assert "fingerprint" not in Path("run/results.json").read_text()
    assert Path("run/notes.txt").exists()


def test_fresh_leaves_a_folder_alone_that_is_not_ours(home, in_process):
    Path("mine/trace").mkdir(parents=True)
    Path("mine/trace/thesis.txt").write_text("years of work")
    assert in_process("run", "c.toml", "--out", "mine", "-q", "--fresh").code == 3
    assert Path("mine/trace/thesis.txt").read_text() == "years of work"


def test_a_study_whose_data_changed(home, in_process):
    Path("c.toml").write_text(
        CONFIG + '[compare]\nbase = "plain"\n[compare.clipped.protections.clip]\nbound = 1.0\n'
    )
    assert in_process("run", "c.toml", "--out", "s", "-q").code == 0
    file = Path("patients.csv")
    file.write_text(halved(file.read_text()))
    done = in_process("run", "c.toml", "--out", "s", "-q")
    assert (done.code, "data (" in done.err) == (3, True)
    assert in_process("run", "c.toml", "--out", "s", "-q", "--fresh").code == 0
    assert "80 records" not in Path("s/report.md").read_text()


def test_a_sweep_and_a_search_whose_data_changed(home):
    def swept(**more):
        return sweep("c.toml", ["training.learning_rate=0.1,0.2"], "sw", workers=1, **more)

    policy = {"limit": [{"metric": "accuracy", "at_least": 0.1}]}

    def searched(**more):
        return harden("c.toml", "h", policy=policy, workers=1, curve=0, only=["shuffle"], **more)

    assert swept().reused == 0
    assert swept().reused == 2
    file = Path("patients.csv")
    text = file.read_text()
    file.write_text(halved(text))
    with pytest.raises(DataError, match="made of something else"):
        swept()
    again = swept(fresh=True)
    assert (again.reused, again.failed) == (0, ())
    file.write_text(text)
    with pytest.raises(DataError, match="made of something else"):
        swept()
    searched()
    file.write_text(halved(text))
    with pytest.raises(DataError, match="made of something else"):
        searched()
    searched(fresh=True)


EDGES = "0 1\n1 2\n2 3\n"


def test_an_edge_list_that_changed_under_a_finished_run(home, in_process):
    Path("edges.txt").write_text(EDGES)
    Path("c.toml").write_text(CONFIG + '[topology]\nkind = "edge_list"\npath = "edges.txt"\n')
    first = in_process("run", "c.toml", "--out", "run", "-q")
    assert first.code == 0, first.err
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    Path("edges.txt").write_text(EDGES + "0 2\n0 3\n")
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert (done.code, "edges.txt" in done.err) == (3, True)
    Path("edges.txt").unlink()
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert (done.code, "edges.txt (nothing there)" in done.err) == (3, True)
    Path("edges.txt").write_text(EDGES)
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0


def test_files_and_folders_that_settings_name(home):
    Path("models").mkdir()
    Path("models/a.bin").write_text("1")
    Path("word").write_text("1")
    named = {"task": {"kind": "mlp", "at": ["./models"], "factory": "m:f"}, "x": {"y": "word"}}
    before = files_named_in(named)
    assert list(before) == ["task.at = ./models", "x.y = word"]
    assert files_named_in({"trace": {"purpose": "/"}, "at": "./"}) == {}, "too much, and it grows"
    Path("models/a.bin").rename("models/b.bin")
    Path("word").write_text("2")
    after = files_named_in(named)
    assert all(before[k] != after[k] for k in before)


def test_a_file_of_an_audit_counts_for_its_result(home):
    """Redone by a run and an audit; a sweep, which keeps no trace, is refused."""
    audit = find(AUDITS, "audit", "topology_inference")(corpus="theirs.csv")
    asked = []
    for text in (table(80), table(60), None):
        Path("theirs.csv").write_text(text or "")
        if text is None:
            Path("theirs.csv").unlink()
        asked.append(_asked(audit, 1, None, Path("run")))
    assert len({a["files"] for a in asked}) == 3
    assert differing(asked[0], asked[1]) == WORDS["files"]
    Path("theirs.csv").write_text(table(80))
    assert _asked(audit, 1, None, Path("run")) == asked[0]
    assert "files" not in _asked(type(audit)(), 1, None, Path("run"))
    config = load(
        {**load("c.toml").raw, "audits": {"topology_inference": {"corpus": "theirs.csv"}}}
    )
    check_and_store(Path("s"), [config], begun=False, audits=True)
    check_and_store(Path("r"), [config], begun=False)
    Path("theirs.csv").write_text(table(60))
    check_and_store(Path("r"), [config], begun=True)
    with pytest.raises(DataError, match="something else"):
        check_and_store(Path("s"), [config], begun=True, audits=True)


MODEL = """
from torch import nn
from sizes import HIDDEN

def build():
    return nn.Sequential(nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
"""


@pytest.fixture
def own_model(home, monkeypatch):
    Path("ownmodel.py").write_text(MODEL)
    Path("sizes.py").write_text("HIDDEN = 3\n")
    Path("c.toml").write_text(
        CONFIG.replace('kind = "mlp"\nhidden = [3]', 'kind = "module"\nfactory = "ownmodel:build"')
    )
    yield
    for name in ("ownmodel", "sizes"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("file", ["ownmodel.py", "sizes.py"])
def test_code_that_changed_under_a_finished_run(own_model, in_process, file):
    """The module itself, or one that it imports."""
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert done.code == 0, done.err
    Path(file).write_text(Path(file).read_text() + "# edited\n")
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert (done.code, "code of ownmodel:build" in done.err) == (3, True)
    assert in_process("run", "c.toml", "--out", "run", "-q", "--fresh").code == 0


@pytest.mark.parametrize(
    ("by", "file", "edited"),
    [
        ('HIDDEN = __import__("sizes").HIDDEN', "sizes.py", "HIDDEN = 3  # edited\n"),
        (
            'from importlib import import_module as get\nHIDDEN = get("sizes").HIDDEN',
            "sizes.py",
            "HIDDEN = 1 + 2\n",
        ),
        ('with open("net.json") as f:\n    HIDDEN = len(f.read())', "net.json", "[2]"),
        ('from pathlib import Path\nHIDDEN = len(Path("net.json").read_text())', "net.json", "[2]"),
    ],
)
def test_files_that_code_names_as_text_are_part_of_it(own_model, in_process, by, file, edited):
    Path("net.json").write_text("[1]")
    Path("log.txt").write_text("")
    own = MODEL.replace("from sizes import HIDDEN", by)
    Path("ownmodel.py").write_text(own + 'open("log.txt", "w").close()\n')
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert done.code == 0, done.err
    Path("log.txt").write_text("what the code writes is not part of it")
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    Path(file).write_text(edited)
    done = in_process("run", "c.toml", "--out", "run", "-q")
    assert (done.code, "code of ownmodel:build" in done.err) == (3, True)


def test_code_of_libraries_does_not_count(own_model):
    before = code_identity("ownmodel:build")
    assert len(before) == 64
    # of an installed package only the module that is named
    assert code_identity("json:loads") != code_identity("json.decoder:JSONDecoder")
    assert list(foreign.source_files("json:loads")) == ["json"]
    assert code_named_in({"a": ["x:y", "no code"], "b": {"c": "p.q:r.s"}}) == ["p.q:r.s", "x:y"]


def test_digests_stay_in_the_truth(home, in_process):
    assert in_process("run", "c.toml", "--out", "run", "-q").code == 0
    (data,) = identity_of([load("c.toml")])["data"].values()
    for file in Path("run").rglob("*"):
        if file.is_file() and b"" + data["sha256"].encode() in file.read_bytes():
            assert file.parent.name == "truth"


def test_a_study_does_not_mix_two_sets_of_data(home, in_process, monkeypatch):
    """One part is done, the data change: the other part must not be trained on them."""
    text = CONFIG + '[compare]\nbase = "plain"\n[compare.clipped.protections.clip]\nbound = 1.0\n'
    Path("c.toml").write_text(text)
    assert in_process("run", "c.toml", "--out", "s", "-q").code == 0
    shutil.rmtree("s/c-clipped")
    file = Path("patients.csv")
    whole = file.read_text()
    file.write_text(halved(whole))
    assert in_process("run", "c.toml", "--out", "s", "-q").code == 3
    assert not Path("s/c-clipped").exists()
    file.write_text(whole)
    assert in_process("run", "c.toml", "--out", "s", "-q").code == 0


def test_a_folder_that_forgot_what_it_is_about_is_refused(home):
    check_and_store(Path("f"), [load("c.toml")], begun=False)
    Path("f/truth/identity.json").unlink()
    with pytest.raises(DataError, match="not known"):
        check_and_store(Path("f"), [load("c.toml")], begun=True)
