"""The reproduction runs at a tiny scale; its page holds the published and the measured figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.audits.topology_inference import scores
from fedaudit.results import Estimate, Underpowered
from reproductions.topology import elsewhere, experiments, page, run, setting, utility
from reproductions.topology.setting import QUICK
from reproductions.topology.several_runs import over_runs

PUBLISHED = json.loads((run.HERE / "published.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured() -> dict:
    """A few pieces of the quick version, in this process."""
    keys = ("gap/ring", "gap/hierarchical", "gap/ER p=0.5", "pareto/A", "pareto/C", "channels/1")
    chosen = [p for p in experiments.pieces(QUICK) if p.key in keys]
    chosen += [p for p in experiments.pieces(QUICK, ("utility",)) if p.variant.startswith("2 ")]
    assert len(chosen) == len(keys) + 4
    return {
        "scale": setting.described(QUICK),
        "measured": {p.key: experiments.measure(p, QUICK, PUBLISHED) for p in chosen},
    }


def test_published_degrees_give_the_published_gaps(measured: dict) -> None:
    for name in ("ring", "hierarchical", "ER p=0.5"):
        own = measured["measured"][f"gap/{name}"]["published degrees"]
        known = PUBLISHED["figure 3"]["gap"][name]
        np.testing.assert_allclose(own, [known[f"{e:g}"] for e in experiments.ETAS], atol=6e-4)
    assert measured["measured"]["gap/ring"]["mean"] == [0.0] * 4


def test_published_pareto_gaps(measured: dict) -> None:
    at = experiments.BUDGETS.index(0.05)
    for name in ("A", "C"):
        cell = measured["measured"][f"pareto/{name}"]["100"]
        gap = cell["uniform"][at] - cell["allocated"][at]
        assert gap == pytest.approx(PUBLISHED["figure 4"][name]["largest gap"], abs=1e-3)


def test_pairs_differ_in_the_size_of_their_noise_alone(measured: dict) -> None:
    pairs = [v for k, v in measured["measured"].items() if k.startswith("utility/")]
    again = utility.pair(QUICK, 2, 0.25, 1)
    assert again == measured["measured"]["utility/2 0.25 1"]
    row = utility.row(pairs)
    assert row["n"] == 4
    assert row["low"] <= row["difference"] <= row["high"]
    same = [{"uniform": 80.0 + i, "allocated": 80.0 + i} for i in range(5)]
    assert utility.row(same)["equivalent"]
    far = [{"uniform": 80.0, "allocated": 82.0 + 0.1 * i} for i in range(5)]
    assert not utility.row(far)["equivalent"]


def test_targets_share_the_split_and_nothing_else() -> None:
    config = setting.config_of(QUICK, 0.5, 1.0)
    (a, first), (b, second) = (setting.dealt(config, s) for s in (0, 1))
    assert not np.array_equal(first, second)
    assert first.sum() == second.sum()
    np.testing.assert_array_equal(a.task.initial(), b.task.initial())
    trace, _ = setting.recorded(a, first)
    shadows = setting.shadows_of(config, trace, QUICK)
    rows = {r.tobytes() for r in np.concatenate([a.data.x.numpy(), b.data.x.numpy()])}
    assert not rows & {r.tobytes() for r in np.asarray(shadows.corpus.x)}


def test_page_holds_published_and_measured_figures(measured: dict, tmp_path: Path) -> None:
    text = page.write(measured, PUBLISHED, tmp_path, ["channels/0"]).read_text()
    own = measured["measured"]["channels/1"]["all"]["lift"]["org"]
    assert page.number(own) in text
    assert "1.967, 21.7 %" in text
    assert "C, T = 100 (published)" in text
    assert "Not measured yet: 1 pieces (channels)" in text
    assert (tmp_path / "topology-pareto-A.svg").read_text().startswith("<svg")
    # no link to a figure that is not there
    drawn = {p.name for p in tmp_path.glob("*.svg")}
    linked = {w.split(")")[0] for w in text.split("](")[1:] if w.split(")")[0].endswith(".svg")}
    assert linked == drawn


def test_another_published_figure_gives_another_page(measured: dict) -> None:
    changed = json.loads(json.dumps(PUBLISHED))
    changed["figure 4"]["A"]["largest gap"] = 1.234
    assert "1.234, 21.7 %" in page.render(measured, changed)
    assert "1.234, 21.7 %" not in page.render(measured, PUBLISHED)


def test_results_survive_storing_and_other_scales_do_not_mix(
    measured: dict, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    run.save(file, measured)
    stored = json.loads(file.read_text())
    assert stored["measured"].keys() == measured["measured"].keys()
    assert run.load(file, QUICK)["measured"] == stored["measured"]
    assert run.load(file, replace(QUICK, rounds=4))["measured"] == {}


def test_the_stored_page_is_what_the_stored_results_give() -> None:
    """The page in the repository claims only what results.json holds."""
    results = json.loads((run.HERE / "results.json").read_text(encoding="utf-8"))
    scale = setting.FULL
    assert results["scale"] == setting.described(scale)
    lacking = [p.key for p in experiments.pieces(scale) if p.key not in results["measured"]]
    stored = (run.PAGE / "topology.md").read_text(encoding="utf-8")
    assert page.render(results, PUBLISHED, lacking) == stored


def test_other_data_are_paired_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file with a client column, by way of the config; the census itself is not fetched here."""

    def people(path: Path, records: int) -> int:
        rng = np.random.default_rng(1)
        with open(path, "w", encoding="utf-8") as file:
            file.write("age,hours,occupation,income\n")
            for i in range(records):
                y = int(rng.integers(2))
                age, hours = rng.normal(size=2) + y
                site = "abc"[0 if i % 2 else 1 + i % 3 % 2]
                file.write(f"{age:.4f},{hours:.4f},{site},{'>50K' if y else '<=50K'}\n")
        return 3

    monkeypatch.setattr(elsewhere, "write_people", people)
    small = replace(elsewhere.OWN["adult"], records=900)
    monkeypatch.setitem(elsewhere.OWN, "adult", small)
    first, again = (elsewhere.pair("adult", QUICK, 6, 0.5, 1) for _ in range(2))
    assert first == again
    assert first["gap"] > 0  # sites of unequal size
    assert 40 < first["uniform"] <= 100
    assert first["uniform"] != first["allocated"]
    keys = [f"elsewhere/adult 25 {u:g} {s}" for u in QUICK.budgets for s in QUICK.utility_seeds]
    pairs = {k: {**first, "allocated": first["uniform"] + 0.1 * i} for i, k in enumerate(keys)}
    text = page.table_2(pairs, setting.described(QUICK), PUBLISHED)
    assert "| adult, T = 25 |" in text


def test_runs_are_compared_in_pairs_and_corrected():
    rng = np.random.default_rng(13)
    runs = []
    for _ in range(12):
        p = rng.random(20)
        runs.append(
            scores.Outcome(
                p=p,
                guesses={
                    "A1": rng.random(20),
                    "A2-full": p + 0.05 * rng.normal(size=20),
                    "A2-org": p + 0.2 * rng.normal(size=20),
                    "A2-topo": rng.random(20),
                },
                shadow_mean=0.5,
            )
        )
    found = over_runs(runs, rng=rng)
    full, one = found["lift (A2-full)"], found["lift (A1)"]
    assert isinstance(full.estimate, Estimate)
    assert full.estimate.low > 0
    assert full.p_value == pytest.approx(7 / 2001)  # the smallest possible, times seven tests
    few = over_runs(runs[:4], rng=rng)
    assert few["lift (A2-full)"].p_value == pytest.approx(7 / 16)  # four runs of one sign
    assert one.estimate.high < 0
    assert one.p_value == 1.0
    gained = found["topology_contribution"].values
    each = [
        scores.loss(o.guesses["A1"], o.p) - scores.loss(o.guesses["A2-full"], o.p) for o in runs
    ]
    np.testing.assert_allclose(gained, each)
    alone = over_runs(runs[:1], rng=rng)
    assert isinstance(alone["lift (A1)"].estimate, Underpowered)
