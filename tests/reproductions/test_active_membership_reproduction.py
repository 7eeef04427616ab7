"""The reproduction runs at a tiny scale; its page holds what was measured and says what was not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproductions.active_membership import embedding, experiments, page, run
from reproductions.active_membership.setting import FULL, QUICK

WANTED = (
    "floor/one-hot/5 20",
    "fc/digits/grr 4",
    "attention/digits/4 4 bitrand 6",
    "beta/digits/4 4 bitrand 6",
)


@pytest.fixture(scope="module")
def measured() -> dict:
    chosen = [p for p in experiments.pieces(QUICK) if p.key in WANTED]
    assert len(chosen) == len(WANTED)
    return {
        "scale": QUICK.described(),
        "measured": {p.key: experiments.measure(p, QUICK) for p in chosen},
    }


def test_page_holds_what_was_measured_and_names_what_was_not(
    measured: dict, tmp_path: Path
) -> None:
    lacking = [p.key for p in experiments.pieces(QUICK) if p.key not in measured["measured"]]
    text = page.write(measured, tmp_path, ["cifar10"], lacking).read_text()
    own = measured["measured"]["fc/digits/grr 4"]
    assert page.cell(own["tuned"]) in text
    assert page.cell(own["accuracy"]) in text
    found = measured["measured"]["attention/digits/4 4 bitrand 6"]
    assert page.cell(found["success"]) in text
    assert "`cifar10` was skipped" in text
    assert "Not measured yet" in text
    assert "0.6756 | 0.7065 | 0.8010" in text  # figure 13 at epsilon 6
    assert "were not run" in text
    assert (tmp_path / "active_membership-grr.svg").read_text().startswith("<svg")
    assert (tmp_path / "active_membership-digits.svg").read_text().startswith("<svg")


def test_bounds_stand_on_the_right_side(measured: dict) -> None:
    own = measured["measured"]["fc/digits/grr 4"]
    assert own["theorem 1"][1] <= own["theory"][2] + 1e-9
    assert own["tuned"][1] <= own["theorem 2"]
    assert own["claimed"] == pytest.approx(own["exact"])


def test_results_survive_storing_and_other_scales_do_not_mix(
    measured: dict, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    run.save(file, measured)
    assert json.loads(file.read_text()) == measured
    assert run.load(file, QUICK)["measured"] == measured["measured"]
    assert run.load(file, replace(QUICK, records=5))["measured"] == {}


def test_the_full_plan_has_the_published_design() -> None:
    assert (FULL.trials, FULL.games, FULL.records) == (20, 200, 64)
    keys = [p.key for p in experiments.pieces(FULL)]
    assert len(keys) == len(set(keys))
    assert "fc/cifar10/bitrand 7.5" in keys
    assert "attention/cifar10/144 40 bitrand 3" in keys


def test_the_projection_is_orthogonal_and_fixed() -> None:
    first, again = embedding.projection(40, 8), embedding.projection(40, 8)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first.T @ first, np.eye(8), atol=1e-6)
