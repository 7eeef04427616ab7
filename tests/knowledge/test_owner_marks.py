"""Marks that an owner brings: found through sums like planted ones, and refused with a reason."""

import json
import shutil

import numpy as np
import pytest
from torch import nn

from fedaudit import study
from fedaudit.audits.attribution import Attribution
from fedaudit.data.text import WordVocabulary
from fedaudit.errors import DataError, FedauditError, UsageError
from fedaudit.knowledge.builder import KnowledgeBuilder
from fedaudit.knowledge.owner_marks import OwnerMarks
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared
from fedaudit.study.auditing import audit
from fedaudit.study.folders import AUDITED
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import Trace

CONFIG = {
    "seed": 301,
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [64]},
    "federation": {"clients": 10, "rounds": 10},
    "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
    "marks": {"clients": 3, "share": 0.2},
    "protections": {"secure_aggregation": {"threshold": 5, "plan": "cycled", "masks": "skipped"}},
    "audits": {"attribution": {}},
}


def write(folder, part, sets):
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({**({} if key is None else {"key": key}), **document})
        for key, documents in sets
        for document in documents
    ]
    (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def records(family, key):
    x, y = family.examples(key, 24)
    return [{"x": a, "y": b} for a, b in zip(x.tolist(), y.tolist(), strict=True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with three marked clients, and its canaries as documents that an owner would bring."""
    path = tmp_path_factory.mktemp("brought")
    study.run(CONFIG, path / "run")
    planted = Prepared.of(load(CONFIG)).marks
    own = {str(n): records(planted.family, key) for n, key in enumerate(planted.keys)}
    controls = [(f"c{n}", records(planted.family, 1000 + n)) for n in range(40)]
    write(path / "marks", "owner", own.items())
    write(path / "marks", "controls", controls)
    return path


def test_documents_alone_name_the_clients_that_were_given_them(run, tmp_path):
    found = audit(run / "run", ["attribution"], marks=run / "marks", out=tmp_path / "out")
    (result,) = found.results
    rows = result.per_client.values()
    assert sum(row["named"] for row in rows) >= 2
    assert all(row["marked"] for row in rows if row["named"])
    assert any("3 keys against 40 sets of controls, 24 records" in n for n in result.notes)
    assert found.findings[0].verdict == "attributed"
    command = (tmp_path / "out" / AUDITED).read_text(encoding="utf-8")
    assert "--marks marks" in command


def test_a_trace_alone_names_the_same_clients_and_nothing_is_said_to_be_old(
    run, tmp_path, monkeypatch
):
    """Software other than ours recorded it: no truth, no config, the model named by the user."""
    shutil.copytree(run / "run" / "trace", tmp_path / "trace")
    (tmp_path / "their_model.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    dense = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)\n"
        "    return nn.Sequential(nn.Flatten(), *dense)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    given = {"marks": run / "marks", "out": tmp_path / "out"}
    found = audit(tmp_path / "trace", ["attribution"], model="their_model:build", **given)
    (result,) = found.results
    (beside,) = audit(run / "run", ["attribution"], **given | {"out": tmp_path / "run"}).results
    assert result.status == "ok"
    assert "detected" in beside.estimates
    assert "detected" not in result.estimates
    named = {name for name, row in result.per_client.items() if row["named"]}
    assert named == {name for name, row in beside.per_client.items() if row["named"]}
    assert not any("removed since" in notice for notice in found.chapter.notices)
    owner = json.loads((tmp_path / "out" / "owner.json").read_text(encoding="utf-8"))
    assert {tuple(c) for c in owner["attributions"][0]["clients"].values()} == {
        ("named", "adjusted_p")
    }


def test_a_scheme_by_name_makes_the_same_documents(run, tmp_path):
    prepared = Prepared.of(load(CONFIG))
    planted, folder = prepared.marks, tmp_path / "scheme"
    write(folder, "corpus", [(None, [{"x": x} for x in prepared.test.x.tolist()])])
    keys = ", ".join(map(str, planted.keys))
    (folder / "marks.toml").write_text(
        f'kind = "canary"\nkeys = [{keys}]\nrecords = {planted.records}\nclasses = 10\n',
        encoding="utf-8",
    )
    made = OwnerMarks.read(folder).templates(prepared.task, 24, 1)
    model = prepared.task.initial().numpy()
    documents = OwnerMarks.read(run / "marks").templates(prepared.task, 24, 1)
    assert np.allclose(made.gradients(model, 0), documents.gradients(model, 0), atol=1e-6)


def test_marks_without_an_audit_that_looks_for_them_are_refused(run, tmp_path):
    with pytest.raises(UsageError, match="no audit looks for any"):
        audit(run / "run", ["query_plan"], marks=run / "marks", out=tmp_path / "out")


def test_documents_of_another_kind_than_the_model_reads_are_refused(run, tmp_path):
    wide = Prepared.of(load(CONFIG)).task
    assert len(OwnerMarks.read(run / "marks").templates(wide, 4, 1).keys) == 3
    text = tmp_path / "text"
    write(text, "owner", [("a", [{"text": "one two"}])])
    write(text, "controls", [(f"c{n}", [{"text": f"three {n}"}]) for n in range(20)])
    with pytest.raises(DataError, match="of another kind than the model reads"):
        OwnerMarks.read(text).templates(wide, 4, 1)
    odd = tmp_path / "odd"
    write(odd, "owner", [("a", [{"x": [1.0, 2.0], "y": 1}])])
    write(odd, "controls", [(f"c{n}", [{"x": [1.0, n], "y": 1}]) for n in range(20)])
    with pytest.raises(DataError, match="cannot read the records of 'a'"):
        OwnerMarks.read(odd).templates(wide, 4, 1)


class Words:
    """A language model, as far as documents are encoded for it."""

    vocabulary = WordVocabulary(("<unk>", "the", "spring", "of", "marl", "is", "warm"))
    length = 8


TEXT = {"text": "the spring of marl is warm the spring of marl"}


@pytest.mark.parametrize(
    ("own", "controls", "words"),
    [
        ([], [], "does not say which documents"),
        ([(None, [TEXT])], [], "does not say which documents"),
        ([("a", [TEXT])], [(None, [{"text": f"{n}"} for n in range(12)])], "add 8 documents"),
        ([("a", [TEXT]), ("b", [TEXT])], [], "too few controls"),
        (
            [("a", [TEXT]), ("b", [TEXT])],
            [(f"c{n}", [{"text": f"the {n}"}]) for n in range(20)],
            "stands under 'a' and 'b'",
        ),
        ([("a", [{"words": "the spring"}])], [], "line 1: there is no document"),
    ],
)
def test_folders_that_hold_no_marks_are_refused_with_the_number_that_is_missing(
    own, controls, words, tmp_path
):
    write(tmp_path, "owner", own)
    write(tmp_path, "controls", controls)
    with pytest.raises(FedauditError, match=words):
        OwnerMarks.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("die Quelle von Marl ist warm und tief", "does not fit"), ("the spring", "shorter than")],
)
def test_documents_that_the_model_cannot_read_are_refused(text, words, tmp_path, monkeypatch):
    monkeypatch.setattr("fedaudit.knowledge.owner_marks.LanguageModel", Words)
    write(tmp_path, "owner", [("a", [{"text": text}])])
    write(tmp_path, "controls", [(f"c{n}", [{"text": f"{TEXT['text']} {n}"}]) for n in range(20)])
    with pytest.raises(DataError, match=words):
        OwnerMarks.read(tmp_path).templates(Words(), 4, 1)


def test_folders_of_texts_are_keys(tmp_path):
    for name in ("owner/spring", "owner/autumn", "controls"):
        (tmp_path / name).mkdir(parents=True)
    for n in range(2):
        (tmp_path / f"owner/spring/{n}.txt").write_text(f"spring {n}", encoding="utf-8")
        (tmp_path / f"owner/autumn/{n}.txt").write_text(f"autumn {n}", encoding="utf-8")
    for n in range(20):
        (tmp_path / f"controls/{n}.txt").write_text(f"control {n}", encoding="utf-8")
    found = OwnerMarks.read(tmp_path)
    assert {key: len(documents) for key, documents in found.own.items()} == {
        "spring": 2,
        "autumn": 2,
    }
    assert len(found.controls) == 20


def test_a_run_of_the_audit_without_marks_says_how_to_bring_them(tmp_path):
    plain = {k: v for k, v in CONFIG.items() if k not in ("marks", "audits")}
    plain["federation"] = {"clients": 10, "rounds": 1}
    study.run(plain, tmp_path / "run")
    (result,) = audit(tmp_path / "run", ["attribution"], out=tmp_path / "out").results
    assert result.need.code == "no_keys"
    assert "`marks=folder`" in result.need.remedy


def test_templates_of_another_architecture_are_not_applicable(run):
    narrow = Classifier(nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)))
    builder = KnowledgeBuilder(
        Trace.open(run / "run" / "trace"),
        None,
        Seed(0),
        None,
        brought=lambda: (OwnerMarks.read(run / "marks"), narrow),
    )
    with pytest.raises(FedauditError) as refused:
        builder.knowledge_for(Attribution())
    assert all((refused.value.expected, refused.value.got, refused.value.remedy))


def made(folder, text, task, most=4):
    folder.mkdir(exist_ok=True)
    (folder / "marks.toml").write_text(text, encoding="utf-8")
    return OwnerMarks.read(folder).templates(task, most, 1)


def test_a_callable_makes_documents_of_any_key(run, tmp_path, monkeypatch):
    (tmp_path / "own_marks.py").write_text(
        "import random\n"
        "def make(key, records):\n"
        "    rng = random.Random(key)\n"
        "    return [{'x': [rng.random() for _ in range(64)], 'y': rng.randrange(10)}"
        " for _ in range(records)]\n"
        "def nothing(key, records):\n"
        "    return []\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    task = Prepared.of(load(CONFIG)).task
    toml = 'kind = "callable"\nmake = "own_marks:make"\nkeys = [3, 4]\nrecords = 6\n'
    found = made(tmp_path / "marks", toml, task)
    sets = found.documents(2)
    assert [len(x) for x, _ in sets] == [4, 4, 4, 4]
    assert len({x.numpy().tobytes() for x, _ in sets}) == 4
    assert any("own_marks:make" in note for note in found.notes)
    empty = made(tmp_path / "marks", toml.replace(":make", ":nothing"), task)
    with pytest.raises(DataError, match="makes no documents under the key 3"):
        empty.documents(0)
    for wrong, words in (
        (toml.replace("[3, 4]", "[3, 3]"), "each once"),
        (toml.replace("[3, 4]", "[]"), "at least 1"),
        (toml.replace("own_marks:make", "own_marks:absent"), "absent"),
    ):
        with pytest.raises(FedauditError, match=words):
            made(tmp_path / "marks", wrong, task)


def test_a_key_twice_in_a_scheme_is_refused(tmp_path):
    task = Prepared.of(load(CONFIG)).task
    toml = 'kind = "canary"\nkeys = [5, 5]\nrecords = 6\nclasses = 10\n'
    with pytest.raises(FedauditError, match="each once"):
        made(tmp_path / "marks", toml, task)
