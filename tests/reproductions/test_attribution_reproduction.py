"""The attribution reproduction: a run, the trade-off, a page that says what was measured."""

import json

import numpy as np

from reproductions.attribution import page, run, setting


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
    assert "Methods on the same runs" not in text
    assert (tmp_path / "attribution-trade-off.svg").read_text().count("<circle") == 8
    assert json.loads(json.dumps(results)) == results


def test_everything_on_the_page_has_a_piece_that_measures_it():
    measured = set(run.pieces(quick=False))
    assert set(page.PUBLISHED) <= measured
    assert set(run.pieces(quick=True)) < measured
