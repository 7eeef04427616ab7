"""From a folder to a report: what stands at its top, whose names, and what is refused."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits import facts_of
from fedaudit.errors import TraceError, UsageError
from fedaudit.protections import Clip, UpdateNoise
from fedaudit.setup.catalogue import AUDITS
from fedaudit.study.cards import card, read_card
from fedaudit.study.chapters import chapter_at, report, write_study
from fedaudit.study.seal import seal
from fedaudit.study.summary import _held_out
from fedaudit.trace import SERVER, Recorder, Trace, Truth, TruthRecorder

SMALL = {
    "seed": 987_654_321_123,
    "data": {"name": "gaussian-mixture", "records": 120, "dimension": 6},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "protections": {"shuffle": {}, "dp_sgd": {"noise_multiplier": 1.0}},
}
BARE = {**SMALL, "protections": {}}
FORMS = ("report.html", "report.md", "results.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    study.run(SMALL, out)
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def told(folder):
    return json.loads((folder / "results.json").read_text())["chapters"]


def test_clients_have_pseudonyms_in_every_form_and_names_if_asked_for(copy):
    run = report(copy)
    for form in FORMS:
        text = (copy / form).read_text()
        assert "client-0" not in text
        assert "client 4" in text or form == "report.md"
    assert list(run.chapter.clients) == [f"client {i}" for i in range(1, 5)]
    assert "client-03" in (copy / "results" / "fingerprint.json").read_text()
    named = report(copy, names=True)
    assert "client 4" not in repr(named.chapter)
    assert set(told(copy)[0]["clients"]) == set(named.chapter.clients)


def test_the_report_carries_promises_evidence_and_config_without_the_seed(finished):
    (chapter,) = told(finished)
    promised = chapter["guarantees"]["dp_sgd"]
    assert set(promised) == set(chapter["clients"])
    assert all(g["unit"] == "record" and g["trust"] for g in promised.values())
    assert chapter["trust"] == {"shuffle": "the shuffler", "dp_sgd": "the client's own code"}
    assert chapter["evidence"]["trace sha256"] == Trace.open(finished).sha256
    assert "result of fingerprint, sha256" in chapter["evidence"]
    assert "run truth/config.toml" in chapter["evidence"]["again"]
    assert "seed" not in tomllib.loads(chapter["config"])
    for form in FORMS:
        assert str(SMALL["seed"]) not in (finished / form).read_text()


def test_folders_of_the_users_disk_are_not_shown(copy):
    config = copy / "config.toml"
    config.write_text(config.read_text() + '\n[other]\npath = "/home/someone/secret/t.csv"\n')
    seal(copy, "config")
    report(copy)
    text = (copy / "report.html").read_text()
    assert "someone" not in text
    assert "t.csv" in text


def test_an_unfinished_run_is_reported_and_marked(tmp_path):
    class Stop(Exception):
        pass

    def stop(stage, done, total, note):
        if (stage, done) == ("train", 2):
            raise Stop

    with pytest.raises(Stop):
        study.run(BARE, tmp_path / "run", progress=stop)
    run = study.audit(tmp_path / "run", ["coverage"])
    first, second = run.chapter.notices
    assert first.startswith("Unfinished: 2 of 3 rounds")
    assert second == "Unfinished: no result yet of fingerprint."
    html = (tmp_path / "run" / "report.html").read_text()
    assert html.index("Unfinished: 2 of 3 rounds") < html.index("<main")
    assert "Unfinished: 2 of 3 rounds" in (tmp_path / "run" / "report.md").read_text()
    whole = study.run(BARE, tmp_path / "run")
    assert whole.chapter.notices == []


def test_a_trace_without_truth_is_reported_blind(copy):
    shutil.rmtree(copy / "truth")
    run = study.audit(copy)
    assert [n.split(":")[0] for n in run.chapter.notices] == ["Blind"]
    found = {f.audit: f for f in run.findings}
    assert found["fingerprint"].estimate is None
    assert found["fingerprint"].verdict == "unscored"
    html = (copy / "report.html").read_text()
    assert html.index("Blind: the trace comes without truth") < html.index("<main")
    (notice,) = run.chapter.notices
    guessed = {r.audit.replace("_", " ") for r in run.results if r.per_client}
    assert "fingerprint" in guessed
    for r in run.results:
        name = r.audit.replace("_", " ")
        if facts_of(r.audit).needs_truth:
            ran = name in notice.partition(" are shown below")[0]
            assert ran is (found[r.audit].verdict == "unscored")
    # which messages are said to be one client's: every message of a round in one group
    (linked,) = [r for r in run.results if r.audit == "fingerprint"]
    members = [place for row in linked.per_client.values() for place in row["messages"].split()]
    assert len(members) == len(set(members)) == 4 * 3
    for form in ("report.html", "report.md"):
        text = (copy / form).read_text()
        assert linked.per_client["group 1"]["messages"] in text


MODEL = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(3, 2))
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A trace of other software, which has no truth; records of its clients; and its model."""
    rng = np.random.default_rng(3)
    like = {"0.weight": np.zeros((2, 3), np.float32), "0.bias": np.zeros(2, np.float32)}
    recorder = Recorder(tmp_path / "theirs", like=like)
    for _ in range(2):
        with recorder.round() as wire:
            for k in range(4):
                wire.send("model", SERVER, f"site-{k}", like)
            for k in range(4):
                update = {n: rng.normal(size=v.shape).astype(np.float32) for n, v in like.items()}
                wire.send("delta", f"site-{k}", SERVER, update)
    recorder.close()
    lines = ["a,b,c,outcome,site"]
    for i in range(96):
        owner = f"site-{i % 4}" if i < 48 else "nobody"  # no party: nobody trained on it
        lines.append(",".join([*(f"{v:.3f}" for v in rng.normal(size=3)), str(i // 4 % 2), owner]))
    (tmp_path / "records.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "theirmodel.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def given(folder):
    return {
        "data": folder / "records.csv",
        "model": "theirmodel:build",
        "columns": {"label": "outcome", "client": "site"},
    }


def test_members_that_were_given_with_the_records_are_no_truth_that_went(foreign, capsys):
    from fedaudit.cli.output import print_run

    audits = ["fingerprint", "two_stage_membership"]
    run = study.audit(foreign / "theirs", audits, **given(foreign))
    assert {r.audit for r in run.results if r.estimates and not r.known} == {"two_stage_membership"}
    print_run(run, False, False)
    printed = " ".join(capsys.readouterr().out.split())
    page, plain = ((run.path / form).read_text() for form in FORMS[:2])
    for text in (printed, page, plain):
        assert "has been removed since" not in text
        assert "Blind:" not in text
        assert "two stage membership was scored against the given records (" in text
        assert "(--data)" not in text  # a Python call has no options
    assert "membership is scored against the given records (`data`)" in run.summary["truth"]
    # what was stored says so as well
    assert report(run.path).chapter.notices == run.chapter.notices
    # without the records nothing is scored, and the report says that
    blind = study.audit(foreign / "theirs", audits, out=foreign / "blind")
    assert blind.chapter.notices[0].startswith("Blind:")
    assert "given records" not in blind.summary["truth"]


def test_the_report_says_the_command_that_led_to_it(foreign, copy):
    def again(path):
        return report(path).chapter.evidence["again"]

    run = study.audit(foreign / "theirs", ["two_stage_membership"], **given(foreign))
    typed = (
        "fedaudit audit TRACE --only two_stage_membership --data records.csv "
        "--model theirmodel:build --label outcome --client site"
    )
    assert again(run.path) == typed
    assert str(foreign) not in (run.path / "report.html").read_text()
    # the results of another command stay in the report, and so does the command
    study.audit(foreign / "theirs", ["coverage"], seed=5)
    assert again(run.path) == f"{typed}; then fedaudit audit TRACE --only coverage --seed 5"
    # a replay has no config
    shuffled = study.audit(foreign / "theirs", ["fingerprint"], as_if=["shuffle"])
    assert again(shuffled.path) == "fedaudit audit TRACE --only fingerprint --as shuffle"
    replayed = study.audit(copy, ["coverage"], as_if=[Clip(bound=0.5), "secure_sum"])
    assert again(replayed.path) == (
        "fedaudit audit RUN --only coverage --as clip:bound=0.5 --as secure_sum"
    )
    # one that was written before commands were kept names what stands in its trace
    (replayed.path / "audit.json").unlink()
    seal(replayed.path, "config")
    assert again(replayed.path) == "fedaudit audit TRACE --as clip --as secure_sum"
    # a run is run again, whether it was audited again since or not
    study.audit(copy)
    assert again(copy).startswith("fedaudit run truth/config.toml")
    assert "then" not in again(copy)


def test_accuracy_of_a_model_without_the_protection_is_not_shown_as_if_it_had_it(copy):
    assert report(copy).summary["held out"].startswith("accuracy 0.")
    noise = UpdateNoise(clip=1.0, noise_multiplier=0.5)
    noised = study.audit(copy, ["coverage"], as_if=[noise])
    assert noised.summary["held out"] == (
        "not known: the model was trained without update_noise, and training was not rerun"
    )
    assert noised.metrics == {}
    assert Truth.open(noised.path / "truth").metrics(3) == {}
    assert "accuracy" not in (noised.path / "report.md").read_text().split("| question")[0]
    # a sum leaves the model as it was
    summed = study.audit(copy, ["coverage"], as_if=["secure_sum"])
    assert summed.summary["held out"] == report(copy).summary["held out"]


def test_the_first_line_names_the_data_and_what_is_learnt(finished):
    line = told(finished)[0]["summary"]["data"]
    assert line.endswith("; to predict its class")
    assert "(gaussian-mixture)" in line
    truth = json.loads((finished / "truth" / "truth.json").read_text())
    facts = truth.get("facts", truth)
    own = sum(len(c["records"]) for c in facts["clients"].values())
    assert f"{own:,} records with the clients and {facts['held_out']:,} held out" in line
    # the decision comes first, the facts of the run after it
    assert line in (finished / "report.md").read_text()


def test_what_looks_at_all_records_is_said_to_be_outside_every_promise(copy):
    truth = Truth.open(copy / "truth").facts
    pooled = "columns standardised over all training records: 3 of 5"
    note = "missing values filled over all records: 'age' 31"
    TruthRecorder(copy / "truth", {**truth, "notes": [note, pooled]})
    seal(copy, "truth")
    summary = report(copy).summary
    assert summary["noted"].startswith(note)
    assert summary["noted"].count("no epsilon covers that") == 2
    assert "no epsilon covers that" in (copy / "report.md").read_text()


def test_held_out_figures_have_interval_size_and_baseline():
    metrics = {"accuracy": 0.75, "loss": 2.0, "loss_error": 0.1}
    said = _held_out(metrics, 100, {"accuracy": 0.5, "loss": 0.69})
    assert "by guessing 0.500" in said
    assert "loss 2.000 [1.804, 2.196] at 95 % (normal interval, n = 100), by guessing 0.690" in said
    text = _held_out({"loss": 2.7, "loss_error": 0.06}, 16, {}, vocabulary=1000)
    assert text.endswith("uniform over 1,000 tokens 6.908")
    assert "over the windows of 16 texts" in text


def test_an_empty_run_is_refused(copy, tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TraceError):
        report(tmp_path / "nothing")
    Recorder(tmp_path / "begun" / "trace", like={"w": np.zeros(3, dtype=np.float32)})
    with pytest.raises(TraceError, match="nothing has been recorded"):
        report(tmp_path / "begun")
    with pytest.raises(UsageError, match="nothing to report"):
        write_study(tmp_path / "study", [])
    shutil.rmtree(copy / "results")
    seal(copy, "results")
    with pytest.raises(TraceError, match="no results yet"):
        chapter_at(copy)


def test_a_study_puts_chapters_on_one_page(finished, tmp_path):
    other = study.run(BARE, tmp_path / "bare").path
    chapters = [
        chapter_at(other, federation="mixture", variant="unprotected"),
        chapter_at(finished, federation="mixture", variant="DP-SGD"),
    ]
    shown = write_study(tmp_path / "study", chapters)
    assert [c.title for c in shown] == ["mixture, unprotected", "mixture, DP-SGD"]
    assert {f.name for f in (tmp_path / "study").iterdir()} == set(FORMS)
    assert [c["variant"] for c in told(tmp_path / "study")] == ["unprotected", "DP-SGD"]
    html = (tmp_path / "study" / "report.html").read_text()
    assert html.count('<table class="matrix') == 1


def test_a_study_that_cannot_be_written_is_refused(finished, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        write_study(tmp_path / "file", [chapter_at(finished)])


# -- cards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("audit", AUDITS)
def test_every_audit_has_a_card_with_its_differences(audit):
    found = card(audit)
    assert {"Question", "Vantage", "Differs"} <= set(found)
    for paragraphs in found.values():
        for text in paragraphs:
            assert text == " ".join(text.split())
            assert ".py" not in text
            assert not text.startswith("-")


def test_a_card_is_read_as_it_is_written():
    text = """Who?

Question: one line
that goes on.
Paper: [X] Section 2. One file per part:

    theory.py   closed forms

Differs:
- first
  thing
- second: `code`

Shapes: (n,)

Read `features` first.
"""
    assert read_card(text) == {
        "Question": ("One line that goes on.",),
        "Paper": ("[X] Section 2.",),
        "Differs": ("First thing", "Second: code"),
        "Shapes": ("(n,)",),
    }
    counted = read_card("Differs: (1) one; (2) two (see 3).\n")
    assert counted["Differs"] == ("(1) one;", "(2) two (see 3).")
