"""The attribution reproduction: a run, the trade-off, a page that says what was measured."""

import json

import numpy as np

from reproductions.attribution import page, run, setting, text_page


def test_a_federation_is_played_as_the_setting_says():
    played = setting.play(seed=3, rounds=2, marked=2)
    assert played.models.shape == (3, played.updates.shape[2])
    assert played.updates.shape[:2] == (2, 10)
    assert played.marked.sum() == 2
    # the model moves by the mean update, so both are what they are called
    moved = played.models[1] - played.models[0]
    assert np.allclose(moved, played.updates[0].mean(axis=0), atol=1e-5)
    assert played.gradients.shape == (2, 2, played.updates.shape[2])


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
    for name in (written.name, "attribution-trade-off.svg"):
        assert (run.PAGE / name).read_text() == (tmp_path / name).read_text()


def test_text_is_played_by_both_aggregations_and_all_methods_read_it(monkeypatch):
    """On a model of a few numbers: what is checked is that sums, models and updates fit."""
    tiny = {
        "kind": "lora", "rank": 2, "width": 16, "depth": 1, "heads": 2, "length": 16,
        "vocabulary_size": 300, "pretraining_steps": 5,
    }  # fmt: skip
    monkeypatch.setitem(setting.TEXT, "task", tiny)
    for kind, way in (("fictitious", "fedit"), ("kgw", "flora")):
        found = run.methods(1, 39, kind=kind, aggregation=way, steps=2, rounds=3, prompts=4)
        assert set(text_page.METHODS) <= set(found)
        assert found["calibrated"]["marked"] == 3
    played = setting.play(seed=1, kind="kgw", aggregation="flora", steps=2, rounds=1, prompts=4)
    moved = played.models[1] - played.models[0]
    assert np.allclose(moved, played.updates[0].mean(axis=0), atol=1e-5)
    cells = {"seeds": [1], "measured": {"text/kgw/flora/1": found}}
    assert "green lists, FLoRA" in "\n".join(text_page.lines(cells))


def test_everything_on_the_page_has_a_piece_that_measures_it():
    measured = set(run.pieces(quick=False))
    assert set(page.PUBLISHED) <= measured
    assert set(text_page.CELLS) <= measured
    assert set(run.pieces(quick=True)) < measured
