"""A grid times seeds: one table, resumable, failures apart, independent of the workers."""

import csv
import json
import math

import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.study.sweep import Axis, Sweep, cells, headline_figure, headlines, over_seeds, sweep

SMALL = ("federation.rounds=2", "federation.clients=4", "audits.fingerprint.methods=['greedy']")


def rows(path):
    with open(path / "sweep.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep")
    grid = ["federation.clients=3,4", "training.learning_rate=0.05,0.1"]
    return sweep(None, grid, path, seeds=2, overrides=SMALL, workers=2)


def test_every_point_and_measure_has_a_mean_an_interval_and_its_chance(finished):
    table = rows(finished.path)
    linkage = [r for r in table if r["measure"] == "fingerprint.linkage_accuracy"]
    assert {(r["federation.clients"], r["training.learning_rate"]) for r in linkage} == {
        ("3", "0.05"),
        ("3", "0.1"),
        ("4", "0.05"),
        ("4", "0.1"),
    }
    for r in linkage:
        assert 0 <= float(r["low"]) <= float(r["value"]) <= float(r["high"]) <= 1
        assert float(r["chance"]) == pytest.approx(1 / int(r["federation.clients"]))
        assert r["seeds"] == "2"
    accuracy = [r for r in table if r["measure"] == "held_out.accuracy"]
    assert len(accuracy) == 4
    for r in accuracy:
        assert float(r["low"]) < float(r["value"]) < float(r["high"])
        assert 0.05 < float(r["chance"]) < 0.2, "ten classes"
    figure = (finished.path / "sweep.svg").read_text(encoding="utf-8")
    assert figure.startswith("<svg")
    assert "stroke-dasharray" in figure, "chance, which differs with the clients"
    page = (finished.path / "sweep.md").read_text("utf-8")
    assert "fingerprint.linkage_accuracy" in page
    assert ", chance 0.333 |" in page
    assert ", chance 0.250 |" in page
    assert not list((finished.path / "cells").glob("*/trace"))


def test_a_second_run_does_nothing_again_and_says_so(finished):
    grid = ["federation.clients=3,4", "training.learning_rate=0.05,0.1"]
    again = sweep(None, grid, finished.path, seeds=2, overrides=SMALL, workers=1)
    assert again.reused == 8
    assert again.rows == finished.rows


@pytest.mark.parametrize("keep_traces", [False, True])
def test_cells_whose_folders_were_exchanged_are_run_again(tmp_path, keep_traces):
    def swept():
        grid = ["training.learning_rate=0.05,0.1"]
        return sweep(
            None, grid, tmp_path, overrides=("seed=3", *SMALL), workers=1, keep_traces=keep_traces
        )

    first = swept()
    one, other = sorted((tmp_path / "cells").iterdir())
    one.rename(tmp_path / "cells" / "between")
    other.rename(one)
    (tmp_path / "cells" / "between").rename(other)
    again = swept()
    assert (again.reused, again.failed) == (0, ())
    assert again.rows == first.rows
    assert swept().reused == 2


def test_the_number_of_workers_changes_nothing(finished, tmp_path):
    alone = sweep(None, ["federation.clients=3"], tmp_path, seeds=1, overrides=SMALL, workers=1)
    values = {r["measure"]: r["value"] for r in alone.rows}
    cell = next(
        json.loads((finished.path / "cells" / c.name / "cell.json").read_text("utf-8"))
        for c in cells(None, [Axis.parse("federation.clients=3")], 1, SMALL)
    )
    assert values == {k: v[0] for k, v in cell["measured"].items()}


def test_a_failed_cell_is_reported_and_does_not_stop_the_others(tmp_path):
    grid = ["federation.clients=3,5000"]
    done = sweep(None, grid, tmp_path, overrides=SMALL, workers=1)
    assert [label for label, _ in done.failed] == ["federation.clients=5000 (seed 1 of 1)"]
    assert "5000 clients" in done.failed[0][1]
    assert {r["federation.clients"] for r in done.rows} == {3}


def test_a_diverged_cell_leaves_the_table_standing(tmp_path):
    grid = ["training.learning_rate=0.1,1e9"]
    done = sweep(None, grid, tmp_path, overrides=SMALL, workers=1)
    fine = [r for r in done.rows if r["training.learning_rate"] == 0.1]
    assert any(r["measure"] == "held_out.loss" for r in fine)
    assert (tmp_path / "sweep.csv").exists()


def test_identical_cells_are_run_once():
    axis = [Axis.parse("federation.clients=3,4"), Axis.parse("seed=1")]
    named = [c.name for c in cells(None, axis, 1)]
    assert len(set(named)) == 2


@pytest.mark.parametrize("text", ["federation.clients", "=3", "a=", "federation.clients=3,3"])
def test_a_grid_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        Axis.parse(text)


def test_a_mistake_shows_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="noise_multiplyer"):
        sweep(None, ["protections.dp_sgd.noise_multiplyer=1,2"], tmp_path)
    with pytest.raises(UsageError, match="seeds"):
        sweep(None, ["federation.clients=3"], tmp_path, seeds=0)


def test_bare_words_and_numbers_are_values():
    assert Axis.parse("partition.kind=iid,by_label").values == ("iid", "by_label")
    assert Axis.parse("a.b=0,0.5").values == (0, 0.5)


def test_intervals_over_seeds_are_never_narrower_than_the_runs_leave_them():
    value, low, high, _ = over_seeds([(1.0, 0.8, 1.0), (1.0, 0.8, 1.0)])
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(1 - 0.2 / 2**0.5)
    _, low, high, _ = over_seeds([(0.2, 0.1, 0.3), (0.8, 0.7, 0.9)])
    assert (low, high) == (0.0, 1.0)
    assert over_seeds([(0.5, 0.4, 0.6)])[:3] == (0.5, 0.4, 0.6)


SCORE = """
def score(task, parameters, x, y, noise):
    return {sign}task.losses(parameters, x, y, noise)
"""


def test_cells_count_for_the_users_own_code_and_failed_audits_are_tried_again(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "swept_score.py"
    small = (
        *("data.name=gaussian-mixture", "data.records=120", "data.dimension=8", "data.classes=4"),
        *("federation.rounds=2", "seed=3", "audits.two_stage_membership.checked_rounds=0"),
        "audits.two_stage_membership.score_by=swept_score:score",
    )

    def swept():
        return sweep(None, ["federation.clients=4"], tmp_path / "out", overrides=small, workers=1)

    file.write_text("def score(*_):\n    raise ValueError('not yet')\n", encoding="utf-8")
    for _ in range(2):
        broken = swept()
        ((label, why),) = broken.failed
        assert label == "federation.clients=4 (seed 1 of 1)"
        assert "two_stage_membership" in why
        assert broken.reused == 0
        # what the other audits found counts
        assert {str(r["measure"]).split(".")[0] for r in broken.rows} >= {"fingerprint"}
    found = []
    for sign in ("-", ""):
        file.write_text(SCORE.format(sign=sign), encoding="utf-8")
        done = swept()
        assert (done.failed, done.reused) == ((), 0)
        assert swept().reused == 1
        found.append({r["measure"]: r["value"] for r in done.rows})
    assert found[0] != found[1]


def test_an_epsilon_without_bound_is_shown_as_such(tmp_path):
    guard = "protections={update_noise={clip=1.0, noise_multiplier=1.0, accountant='rdp'}}"
    grid = ["protections.update_noise.noise_multiplier=0.0,1.0"]
    found = sweep(None, grid, tmp_path, overrides=(*SMALL, guard), workers=1)
    largest = {
        r["protections.update_noise.noise_multiplier"]: r["value"]
        for r in found.rows
        if r["measure"] == "epsilon.largest"
    }
    assert largest[0.0] == math.inf
    assert 0 < largest[1.0] < math.inf
    assert "| ∞ |" in (tmp_path / "sweep.md").read_text("utf-8")


def test_the_page_shows_headlines():
    names = ["a.x", "a.y", "a.x (joint)", "a.y (joint)", "held_out.loss", "epsilon.largest"]
    assert headlines(names) == ["a.x", "a.x (joint)", "held_out.loss", "epsilon.largest"]


def test_the_page_shows_what_audits_declare_beside_their_headlines():
    audits = {
        "two_stage_membership": ["membership_auc", "ts_mia", "stage_1_survival", "j_on_members"],
        "fingerprint": ["linkage_accuracy", "purity (greedy)", "rand_index"],
    }
    shown = headlines([f"{audit}.{name}" for audit, names in audits.items() for name in names])
    assert [name.split(".")[1] for name in shown] == [
        "membership_auc", "ts_mia", "j_on_members", "linkage_accuracy", "purity (greedy)",
    ]  # fmt: skip


def test_the_figure_shows_the_first_measure_that_is_no_check_of_the_declaration(tmp_path):
    def drawn(*measures):
        at = {"value": 0.5, "low": 0.4, "high": 0.6, "chance": None}
        rows = tuple({"k": k, "measure": m, **at} for k in (1, 2) for m in measures)
        made = Sweep(path=tmp_path, columns=(), rows=rows, failed=(), reused=0)
        return headline_figure(made, [Axis("k", (1, 2))])

    checked, counted = "coverage.kinds_outside_protection", "query_plan.smallest_exposed_group"
    assert drawn(checked) is None
    assert counted in drawn(checked, counted, "fingerprint.linkage_accuracy")
