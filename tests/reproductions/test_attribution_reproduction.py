"""The attribution reproduction: a run, the trade-off, a page that says what was measured."""

import dataclasses
import json

import numpy as np

from reproductions.attribution import cells, page, recorded, run, setting, text_page

TINY = {
    "kind": "lora", "rank": 2, "width": 16, "depth": 1, "heads": 2, "length": 16,
    "vocabulary_size": 300, "pretraining_steps": 5,
}  # fmt: skip


def test_a_federation_is_played_as_the_setting_says():
    played = setting.play(seed=3, rounds=2, marked=2)
    assert played.models.shape == (3, played.updates.shape[2])
    assert played.updates.shape[:2] == (2, 10)
    assert played.marked.sum() == 2
    # the model moves by the mean update, so both are what they are called
    moved = played.models[1] - played.models[0]
    assert np.allclose(moved, played.updates[0].mean(axis=0), atol=1e-5)
    assert played.gradients.shape == (2, 2, played.updates.shape[2])


def test_a_shorter_run_is_the_beginning_of_a_longer_one():
    shelf = run.Shelf()
    longer = shelf.play(seed=3, rounds=3, marked=2)
    before = shelf._run
    kept = shelf.play(seed=3, rounds=2, marked=2)
    assert shelf._run is before, "nothing was trained again"
    alone = setting.play(seed=3, rounds=2, marked=2)
    for name in ("models", "updates", "gradients", "marked"):
        assert np.array_equal(getattr(kept, name), getattr(alone, name)), name
    assert kept.quality == alone.quality == longer.quality[:2]
    other = shelf.play(seed=4, rounds=2, marked=2)
    assert not np.array_equal(other.updates, kept.updates)


def test_owners_whose_keys_nobody_used_are_counted_on_all_clients():
    played = setting.play(seed=3, rounds=2, marked=2)
    found = setting.read(setting.plan_of("published", played, run._rng(3)), played, unused=199)
    null = run.pretended(found, played)
    assert null["owners"] == 199 // (2 * 2)
    assert null["benign"] == null["owners"] * 10
    assert null["owners alarmed"] <= null["alarms"]
    assert null["owners alarmed"] / null["owners"] < 0.25
    # one of its own keys among them is an alarm, and not a false one
    planted = found.scores.copy()
    planted[:, 2:4] = planted[:, :2]
    seen = run.pretended(dataclasses.replace(found, scores=planted), played)
    assert seen["owners alarmed"] >= null["owners alarmed"] + 1


def test_masking_of_draws_is_what_table_2_says():
    found = run.masking(1, 0, draws=2000)
    assert set(found) == set(page.MASKING)
    for name, (expected, _) in page.MASKING.items():
        assert abs(found[name]["expected"] - expected) < 5e-4
        assert abs(found[name]["drawn"] / expected - 1) < 0.05
    text = "\n".join(page._masking({"seeds": [1], "measured": {"masking/1": found}}))
    assert "| 10, 5, 5 | 0.889, 0.444 | 0.889, 0.444 |" in text


def test_the_page_says_what_was_measured_and_no_more(tmp_path):
    found = run.trade_off(1, 99, rounds=4)
    assert found["published"]["smallest"] == 1
    assert found["safe"]["smallest"] == 5
    assert found["safe"]["queries"] * 20 < found["published"]["queries"]
    cell = run.swept(1, 99, repeats=2)
    results = {"seeds": [1], "unused": 99, "measured": {"trade-off/10/1": found, "M/2/1": cell}}
    text = page.write(results, tmp_path).read_text()
    assert "10 rounds" in text
    assert "20 rounds" not in text
    assert "M = 2" in text
    assert "methods on the same runs" not in text
    assert "Marked text" not in text
    assert (tmp_path / "attribution-trade-off.svg").read_text().count("<circle") == 8
    assert json.loads(json.dumps(results)) == results


def test_the_page_in_the_docs_is_what_the_results_give(tmp_path):
    results = json.loads((run.HERE / "results.json").read_text())
    written = page.write(results, tmp_path)
    for name in (written.name, "attribution-trade-off.svg", "attribution-trade-off-text.svg"):
        assert (run.PAGE / name).read_text() == (tmp_path / name).read_text()


def test_text_is_played_by_both_aggregations_and_all_methods_read_it(monkeypatch, tmp_path):
    """On a model of a few numbers: what is checked is that sums, models and updates fit."""
    monkeypatch.setitem(setting.TEXT, "task", TINY)
    for kind, way in (("fictitious", "fedit"), ("kgw", "flora")):
        found = run.methods(1, 39, kind=kind, aggregation=way, steps=2, rounds=3, prompts=4)
        assert set(text_page.METHODS) <= set(found)
        assert found["calibrated"]["marked"] == 3
    played = setting.play(seed=1, kind="kgw", aggregation="flora", steps=2, rounds=1, prompts=4)
    moved = played.models[1] - played.models[0]
    assert np.allclose(moved, played.updates[0].mean(axis=0), atol=1e-5)
    kept = {"seeds": [1], "measured": {"text/kgw/flora/1": found}}
    text = "\n".join(text_page.lines(kept, tmp_path))
    assert text.count("| green lists, FLoRA |") == 4
    for part in ("How far marked clients stand out", "False alarms of the calibrated reading"):
        assert part in text


def test_where_not_all_take_part_the_package_plans_and_audits(monkeypatch, tmp_path):
    monkeypatch.setitem(setting.TEXT, "task", TINY)
    monkeypatch.setitem(setting.TEXT, "training", {"steps": 1, "batch_size": 2})
    found = recorded.partial(1, 99, c=0.7, clients=12, rounds=3)
    assert found["published"]["marked"] == found["calibrated"]["marked"] == 4
    assert found["published"]["benign"] == 8
    assert np.isfinite([found["z_marked"], found["z_benign"]]).all()
    assert found["published"]["hits"] + found["published"]["alarms"] <= 12
    text = "\n".join(
        text_page.lines({"seeds": [1], "measured": {"tiny/part/0.7/1": found}}, tmp_path)
    )
    assert "70 % take part | 100 / 0 |" in text


def test_everything_on_the_page_has_a_piece_that_measures_it():
    measured = set(run.pieces(quick=False))
    swept = (*cells.CANARY, *cells.TINY, *cells.PARTIAL, *cells.GREEN)
    assert {cell.name for cell in swept} <= measured
    assert len({cell.name for cell in swept}) == len(swept)
    assert set(text_page.CELLS) <= measured
    assert set(run.pieces(quick=True)) < measured
