"""Clients that lost records or have few are counted and named, from the file to the report."""

import json
from dataclasses import asdict

import pytest

from fedaudit.data import files, partition, prepare
from fedaudit.data.shortage import Shortage, shortage
from fedaudit.errors import FormatError
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.study import run, study
from fedaudit.study.init import init


def table(path, sizes, holes=None):
    """A CSV with given records per hospital, `holes` of them with a missing value."""
    owned = [(name, i) for name, n in sizes.items() for i in range(n)]
    rows = [
        f"{i * 37 % 11},{'' if i < (holes or {}).get(name, 0) else i % 7},{name},{'yn'[at % 2]}"
        for at, (name, i) in enumerate(owned)
    ]
    path.write_text("a,b,hospital,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


SIZES = {"Zagreb": 60, "Aachen": 50, "Malmo": 3, "Brno": 20, "Cork": 40, "Turin": 1}
HOLES = {"Brno": 20, "Cork": 25, "Zagreb": 2}


def found(path, batch=16, clients=None, **settings):
    data = files.read(path, label="y", client="hospital", **settings)
    train, _ = prepare.split(data, test_fraction=None, seed=Seed(1))
    return shortage(train, partition.ByOwner().partition(train, clients, Seed(1)), batch)


def test_every_kind_is_found(tmp_path):
    short = found(table(tmp_path / "d.csv", SIZES, HOLES), missing="drop")
    assert short.lost == {"Brno": 20}
    assert short.reduced == {"Cork": (40, 15)}
    assert set(short.small) == {"Cork", "Malmo"}
    assert short.single == ("Turin",)
    assert short.left_out == {}
    assert len(short.lines()) == 4
    assert Shortage.from_plain(json.loads(json.dumps(asdict(short)))) == short


def test_nothing_is_said_where_nothing_is_short(tmp_path):
    short = found(table(tmp_path / "d.csv", {"a": 60, "b": 60}))
    assert short == Shortage()
    assert short.lines() == []


def test_owners_beyond_the_asked_number_are_named(tmp_path):
    short = found(table(tmp_path / "d.csv", {"a": 60, "b": 60, "c": 30}), clients=2)
    assert list(short.left_out) == ["c"]


def test_a_batch_of_all_records_has_a_limit_too(tmp_path):
    short = found(table(tmp_path / "d.csv", {"a": 60, "b": 3}), batch=0)
    assert list(short.small) == ["b"]


def test_whole_clients_are_held_out_where_each_has_one_record(tmp_path):
    sizes = {f"d{i:03d}": 1 for i in range(900)}
    short = found(table(tmp_path / "d.csv", sizes))
    assert len(short.lost) == 180
    assert len(short.single) == 720
    assert {*short.lost, *short.single} == {*sizes}
    assert all(len(line) < 500 for line in short.lines())  # many names are cut short


@pytest.mark.parametrize("wrong", [{}, {"lost": 3}, {**asdict(Shortage()), "reduced": {"a": 1}}])
def test_a_truth_that_says_something_else_is_refused(wrong):
    with pytest.raises(FormatError):
        Shortage.from_plain(wrong)


def test_init_plan_and_report_name_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "d.csv", SIZES, HOLES)
    chosen = init(
        tmp_path / "d.csv",
        tmp_path / "fedaudit.toml",
        label="y",
        client="hospital",
        missing="drop",
    )
    told = [str(choice.value) for choice in chosen.choices if choice.kind == "note"]
    assert [sum(name in line for line in told) for name in ("Brno", "Cork", "Malmo", "Turin")] == [
        1,
        2,
        1,
        1,
    ]
    changes = ["federation.rounds=2", "task.hidden=[4]"]
    parts = study.plan([tmp_path / "fedaudit.toml"], overrides=changes)
    planned = study.describe(parts, study.estimate_costs(parts))
    for name in ("Brno", "Cork", "Malmo", "Turin"):
        assert any("note: " in line and name in line for line in planned)
    raw = {**load(tmp_path / "fedaudit.toml", overrides=changes).raw, "audits": {"coverage": {}}}
    done = run(raw, tmp_path / "run")
    assert done.chapter is not None
    assert len(done.chapter.data_notes) == 4
    said = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    for name in SIZES:
        assert name not in json.dumps(said)
    named = study.report_one(tmp_path / "run", names=True)
    assert named.chapter is not None
    for name in ("Brno", "Cork", "Malmo", "Turin"):
        assert any(name in notice for notice in named.chapter.data_notes)
