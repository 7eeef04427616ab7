"""Prepared: data, assignment, task and marks are made once, and again where files changed."""

import os

import numpy as np
import pytest

from fedaudit.decide.harden import harden
from fedaudit.setup import prepare
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared, build
from fedaudit.study import run as run_one
from fedaudit.study.forecast import estimate_cost
from fedaudit.study.study import run

DIGITS = {
    "seed": 4,
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 2},
    "audits": {"two_stage_membership": {"records": 8}, "fingerprint": {}},
}

LINKS = "fingerprint.linkage_accuracy <= 1.5 x chance"


@pytest.fixture
def loads(monkeypatch):
    """Every reading of records, counted."""
    seen = []
    original = prepare.load_data

    def counted(config, seed):
        seen.append(config)
        return original(config, seed)

    monkeypatch.setattr(prepare, "load_data", counted)
    return seen


def test_a_study_reads_its_data_once(loads, tmp_path):
    compare = {"base": "plain", "shuffled": {"protections": {"shuffle": {}}}}
    done = run({**DIGITS, "compare": compare}, out=tmp_path / "study")
    assert len(done.runs) == 2
    assert {r.audit for r in done.runs[0].results} == set(DIGITS["audits"])
    assert len(loads) == 1


def test_forecast_and_federation_share_what_is_prepared(loads):
    made = Prepared(load(DIGITS))
    assert estimate_cost(made) is not None
    federation, facts = build(made)
    assert federation.task is made.task
    assert facts["data_sha256"] == made.data_sha256
    assert len(loads) == 1
    assert made.new_task() is not made.task


def test_only_configs_with_the_same_data_and_seed_share():
    first = Prepared(load(DIGITS))
    same = Prepared(load({**DIGITS, "federation": {"clients": 3}}), beside=first)
    other = Prepared(load({**DIGITS, "seed": 5}), beside=first)
    assert same.train is first.train
    assert other.train is not first.train
    assert not np.array_equal(other.train.x, first.train.x)


def test_a_file_that_changed_is_read_again(tmp_path):
    file = tmp_path / "t.csv"
    rows = [f"{i},{i % 3},{i % 2}" for i in range(40)]
    file.write_text("\n".join(["a,b,y", *rows]))
    config = load({**DIGITS, "data": {"path": str(file), "label": "y"}})
    made = Prepared(config)
    assert made.current() is made  # nothing is read yet
    before = made.data_sha256
    assert made.current() is made
    file.write_text("\n".join(["a,b,y", *rows[::-1], "7,7,1"]))
    os.utime(file, ns=(1, 1))
    again = made.current()
    assert again is not made
    assert again.data_sha256 != before


def test_a_search_reads_the_data_once_per_seed(loads, tmp_path):
    """The choice is measured again on a second seed: two loads, however many runs."""
    config = {**DIGITS, "audits": {"fingerprint": {}}}
    found = harden(config, tmp_path / "out", limits=[LINKS], workers=1, curve=0)
    assert sum(len(p.folders) for p in found.points) >= 3
    assert sorted(c.seed for c in loads) == [4, 5]


def test_flower_records_from_the_data_that_the_run_prepared(loads, tmp_path):
    pytest.importorskip("flwr")
    from fedaudit.recorders.flower.engine import client_app, server_app
    from fedaudit.recorders.flower.inprocess import run_in_process
    from fedaudit.recorders.flower.runtime import record
    from fedaudit.study.remote import federation_of, train_one

    def engine(prepared, path, progress):
        failed = []
        play = server_app(lambda grid, _: record(grid, prepared, path, progress, 30.0), failed)
        run_in_process(play, client_app(train_one), 4)
        assert not failed

    federation_of.cache_clear()
    run_one({**DIGITS, "audits": {"two_stage_membership": {"records": 8}}}, tmp_path, engine=engine)
    # once for server and audits, once for the nodes, which know only the text of the experiment
    assert len(loads) == 2
