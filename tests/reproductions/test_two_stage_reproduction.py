"""The reproduction runs at a tiny scale; its page holds the published and the measured figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.randomness import Seed
from fedaudit.tasks.models import mlp_vae
from fedaudit.tasks.vae import Autoencoder
from reproductions.two_stage import drawings, experiments, faults, geometry, page, results, run
from reproductions.two_stage.experiments import RATE, TRIALS
from reproductions.two_stage.setting import FULL, QUICK, SCENARIOS, audit_of, config_of

PUBLISHED = json.loads((run.HERE / "published.json").read_text(encoding="utf-8"))
KEYS = (
    "surface/synthetic//1",
    "bound/digits/start/1",
    "alignment/digits/start/1",
    "example/digits//1",
    "trajectory/digits/non-IID/1",
    "batches/digits/IID/1",
    "faults/digits/IID/1",
    "noise/digits/0.1/1",
    "many/digits/8/1",
    "cancel/digits//1",
)


@pytest.fixture(scope="module")
def measured() -> dict:
    """One piece of every kind, in this process."""
    scale = replace(QUICK, epochs=1)
    chosen = [p for p in experiments.pieces(scale) if p.key in KEYS]
    assert {p.key for p in chosen} == {*KEYS}
    found = {p.key: experiments.measure(p, scale) for p in chosen}
    return {"scale": experiments.described(scale), "measured": json.loads(json.dumps(found))}


def test_page_holds_published_and_measured_figures(measured: dict, tmp_path: Path) -> None:
    lacking = ["trajectory/digits/IID/1", "trajectory/digits/IID/2"]
    text = page.write(measured, run.HERE / "published.json", tmp_path, ["mnist"], lacking)
    text = text.read_text()
    found = [measured["measured"]["trajectory/digits/non-IID/1"]]
    assert results.estimate(found, results.ATTACK) in text
    assert page.around(results.trajectories(found)) in text
    assert PUBLISHED["figure 4"]["non-IID"] in text
    assert "6.7 % [5.1, 8.7]" in text
    assert "`mnist` was skipped" in text
    assert "trajectory/digits (2)" in text
    for name in (
        "survival",
        "power",
        "bound-digits",
        "alignment-digits",
        "cancel",
        "faults-digits",
        "non-iid-digits",
        "example-digits",
    ):
        assert (tmp_path / f"two_stage-{name}.svg").read_text().startswith("<svg xmlns")
        assert f"(two_stage-{name}.svg)" in text
    assert "None" not in text
    assert "nan" not in text


def test_another_published_figure_gives_another_page(measured: dict) -> None:
    changed = json.loads(json.dumps(PUBLISHED))
    changed["figure 5"]["mean SUR"] = 0.91
    assert "0.91 (0.20 to 0.27)" in page.render(measured, changed, [])
    assert "0.91 (0.20 to 0.27)" not in page.render(measured, PUBLISHED, [])


def test_a_page_can_be_written_at_any_time(measured: dict) -> None:
    """Whatever has not been measured yet is left out."""
    for key in ("", *KEYS):
        some = {k: v for k, v in measured["measured"].items() if k == key}
        assert page.render({**measured, "measured": some}, PUBLISHED, []).startswith("# Two-stage")
        drawings.drawings(results.Results({**measured, "measured": some}))


def test_results_survive_storing_and_other_scales_do_not_mix(
    measured: dict, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    run.save(file, measured)
    assert json.loads(file.read_text()) == measured
    scale = replace(QUICK, epochs=1)
    assert run.load(file, scale)["measured"] == measured["measured"]
    assert run.load(file, QUICK)["measured"] == {}


def test_the_full_scale_is_the_published_one() -> None:
    config = config_of("digits", FULL, 1)
    assert (config.federation.clients, config.federation.rounds) == (5, 20)
    training = config.training
    assert (training.optimizer, training.learning_rate, training.epochs) == ("adam", 1e-3, 3)
    assert audit_of("digits").threshold == 0.1
    assert len(FULL.seeds) == 5
    assert SCENARIOS == {"IID": "iid", "non-IID": "by_label", "inverted": "inverted"}
    scenarios = {p.variant for p in experiments.pieces(FULL) if p.experiment == "trajectory"}
    assert scenarios == set(SCENARIOS)


def test_risk_by_hand() -> None:
    rounds = {"sur": [[0.2, 0.05], [0.2, 0.3]], "j": [[0.1, 0.1], [-0.1, 0.2]]}
    found = [{"rounds": rounds}]
    assert results.hits(found).tolist() == [[[1.0, 0.0], [0.0, 1.0]]]
    assert results.trajectories(found).tolist() == [[0.5, 0.5]]
    assert results.trajectories(found, client=0).tolist() == [[1.0, 0.0]]


def test_a_band_is_students_interval_over_seeds() -> None:
    from scipy import stats

    curves = np.random.default_rng(3).normal(size=(5, 4))
    middle, low, high = results.band(curves)
    t = stats.t.interval(0.95, 4, curves.mean(axis=0), stats.sem(curves, axis=0))
    np.testing.assert_allclose(np.stack([middle, low, high]), [curves.mean(axis=0), *t])
    assert all((b == curves[0]).all() for b in results.band(curves[:1]))


def test_seeds_that_agree_claim_no_certainty() -> None:
    """Five seeds of 20 rounds and 5 clients, all at risk: five observations, not a certainty."""
    from fedaudit.stats.intervals import wilson
    from reproductions.two_stage.page import around

    everyone = np.ones((5, 20, 5))
    assert results.share(everyone).low == pytest.approx(wilson(5, 5).low)
    assert around(everyone) == "1.00 [0.57, 1.00]"
    middle, low, high = results.band(everyone)
    assert (middle == 1.0).all()
    assert low == pytest.approx(np.full(20, wilson(5, 5).low))
    assert (high == 1.0).all()
    # independent clients and rounds are worth what they count
    mixed = (np.random.default_rng(3).random((5, 20, 5)) < 0.6).astype(float)
    assert results.share(mixed).high - results.share(mixed).low < 0.15


def test_published_violations_come_from_the_split(measured: dict) -> None:
    """Whichever half does not hold the largest ratio is violated; curvature never is."""
    found = measured["measured"]["bound/digits/start/1"]["violated"]
    both = np.add(found["published"], found["swapped"])
    assert (both >= 1).all()
    assert sum(found["curvature"]) == 0


def test_every_cancelled_pair_passes_the_published_stage() -> None:
    found = geometry.surface(40, Seed(1))
    assert found["points"] == 1600
    assert found["worst"] < 1e-9
    assert found["cancelled"] == found["cancelled above tau"] > 0
    assert found["least in the cancelled region"] > 1 / 0.3


def test_power_by_trial_is_the_formula(measured: dict) -> None:
    found = measured["measured"]["cancel/digits//1"]
    for formula, trial in zip(found["power"], found["found"], strict=True):
        assert trial == pytest.approx(formula, abs=4 * 0.5 / math.sqrt(TRIALS))
    error = math.sqrt(RATE * (1 - RATE) / TRIALS)
    assert np.allclose(found["false"], RATE, atol=4.5 * error)
    assert found["lambda"][-1] < found["lambda"][0] < 0
    assert found["sur"][-1] > found["sur"][0]


def test_faults_do_what_they_say() -> None:
    torch.manual_seed(0)
    task = Autoencoder(mlp_vae(9, 5, 2, 2))
    clients = [(torch.rand(6, 1, 3, 3), torch.arange(6) % 2) for _ in range(2)]

    def ran(rounds: int = 1, **wrong: bool) -> dict[str, np.ndarray]:
        return faults.trajectory(
            task, clients, rounds=rounds, epochs=2, faults=faults.Faults(**wrong), seed=Seed(1)
        )

    mended = ran()
    assert np.array_equal(mended["j"], ran()["j"])
    # the first client of the first round finds no state; the second one finds the first's
    shared = ran(shared_optimiser=True)
    assert not np.allclose(shared["sur"], mended["sur"])
    # training is the same, the scores are not
    unequal = ran(unequal_noise=True)
    assert np.array_equal(unequal["sur"], mended["sur"])
    assert np.abs(unequal["j"] - mended["j"]).min() > 1e-4
    # small steps move scores by little, other random numbers by much
    assert np.abs(mended["j"]).max() < np.abs(unequal["j"]).max()
    assert not np.allclose(ran(scaled_twice=True)["j"], mended["j"])
    assert not np.allclose(ran(squared_error=True)["j"], mended["j"])


def test_the_squared_error_by_hand() -> None:
    task = faults.SquaredError(mlp_vae(4, 3, 2, 0))
    zero, x = torch.zeros(1, 2), torch.tensor([[0.5, 0.5, 1.0, 0.0]])
    loss = task.criterion((torch.zeros(1, 4), zero + 1, zero), x, torch.zeros(1))
    assert float(loss) == pytest.approx(0.25 + 0.25 + 1.0)
