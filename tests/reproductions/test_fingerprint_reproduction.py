"""The reproduction runs at a tiny scale; its page holds the published and the measured figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.randomness import Seed
from reproductions.fingerprint import experiments, linking, page, run, wide
from reproductions.fingerprint.setting import QUICK, Plan, SameEveryRound, corpus, federate

PUBLISHED = json.loads((run.HERE / "published.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Two pieces of the quick version, in this process."""
    folder = tmp_path_factory.mktemp("pretrained")
    start = experiments.prepare("docs", QUICK, folder)
    chosen = [
        p
        for p in experiments.pieces(QUICK)
        if p.seed == 1 and (p.experiment == "base" or p.key == "grid/docs/0.5 1/1")
    ]
    assert len(chosen) == 2
    return {
        "scale": experiments.described(QUICK),
        "start": {"docs": start},
        "epsilons": experiments.epsilons(QUICK),
        "measured": {p.key: experiments.measure(p, QUICK, folder, start) for p in chosen},
    }


def test_page_holds_published_and_measured_figures(measured: dict, tmp_path: Path) -> None:
    text = page.write(measured, run.HERE / "published.json", tmp_path, ["sotu"]).read_text()
    own = measured["measured"]["base/docs//1"]["clients"]["greedy"]
    assert page.cell(linking.merge([own])) in text
    assert page.printed(PUBLISHED["table 3"]["5"]["greedy"]) in text
    assert page.printed(PUBLISHED["table 11"]["100 1"]["kmeans"]) in text
    assert "`sotu` was skipped" in text
    assert (tmp_path / "fingerprint-rounds.svg").read_text().startswith("<svg")


def test_another_published_figure_gives_another_page(measured: dict) -> None:
    changed = json.loads(json.dumps(PUBLISHED))
    changed["table 3"]["5"]["greedy"] = [0.123, 0.456, 0.789]
    assert "0.123 / 0.456 / 0.789" in page.render(measured, changed, [])
    assert "0.123 / 0.456 / 0.789" not in page.render(measured, PUBLISHED, [])


def test_published_epsilons_cover_one_round(measured: dict) -> None:
    values = measured["epsilons"]["News 1"]
    assert values["rdp 1"] == pytest.approx(PUBLISHED["epsilon"]["News"]["1"], abs=0.01)
    assert values["rdp 10"] > 2 * values["rdp 1"]


def test_published_tables_are_consistent() -> None:
    """No DP of tables 10 and 11 is the last row of table 2 and the 20 clients of table 3."""
    assert PUBLISHED["table 10"]["no DP"]["greedy"] == PUBLISHED["table 2"]["20"]["greedy"]
    assert PUBLISHED["table 11"]["no DP"]["greedy"] == PUBLISHED["table 3"]["20"]["greedy"]
    highest = [row["greedy"][2] for row in PUBLISHED["table 10"].values()]
    assert max(highest) == pytest.approx(np.log(20), abs=1e-3)


def test_results_survive_storing_and_other_scales_do_not_mix(
    measured: dict, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    run.save(file, measured)
    assert json.loads(file.read_text()) == measured
    assert run.load(file, QUICK)["measured"] == measured["measured"]
    assert run.load(file, replace(QUICK, rounds=4))["measured"] == {}


def test_measurements_from_another_start_are_dropped() -> None:
    results = {
        "start": {"docs": {"norms": 1}},
        "measured": {"base/docs//1": {}, "base/sotu//1": {}},
    }
    run.begin(results, "docs", {"norms": 1})
    assert len(results["measured"]) == 2
    run.begin(results, "docs", {"norms": 2})
    assert list(results["measured"]) == ["base/sotu//1"]


def test_same_batches_every_round_send_the_same_update_while_the_model_stands_still() -> None:
    text = corpus("docs", QUICK)
    plan = Plan(clients=3, rounds=2, server_rate=1e-9, same_batches=True)

    def cosines(recorded: object) -> np.ndarray:
        rows, senders = linking.rows_of(recorded, linking.tensors())  # type: ignore[arg-type]
        again = [senders[1].index(s) for s in senders[0]]
        return np.einsum("ij,ij->i", rows[0], rows[1][again])

    repeated = federate(text, plan, QUICK, 1, cosines)
    fresh = federate(text, replace(plan, same_batches=False), QUICK, 1, cosines)
    assert np.all(np.asarray(repeated) > 0.999)
    assert np.all(np.asarray(fresh) < 0.999)


def test_only_batches_are_repeated() -> None:
    ours, plain = SameEveryRound(3), Seed(3)
    assert ours.bits("batches", 1, 5) == ours.bits("batches", 2, 5)
    assert ours.bits("dp_sgd", 5, 1, 0) == plain.bits("dp_sgd", 5, 1, 0)
    assert ours.bits("dp_sgd", 5, 1, 0) != ours.bits("dp_sgd", 5, 2, 0)


def test_merging_seeds_keeps_the_spread_between_them() -> None:
    alike = linking.merge([{"purity": [0.5, 0.1]}, {"purity": [0.5, 0.1]}])["purity"]
    apart = linking.merge([{"purity": [0.4, 0.1]}, {"purity": [0.6, 0.1]}])["purity"]
    assert alike == pytest.approx([0.5, 0.1])
    assert apart[0] == pytest.approx(0.5)
    assert apart[1] == pytest.approx(np.sqrt(0.1**2 + 1.96**2 * 0.02))


def test_cells_between_chance_and_one_are_named() -> None:
    """K = 5: one noise level of two lies between; epsilon grows as noise falls."""
    scale = replace(wide.WIDE, clients=(5,), noises=(0.0, 0.25, 1.0))
    methods = {m: {"purity": [1.0, 0.0]} for m in wide.SHOWN}
    level = linking.chance(5, scale.rounds)["purity"]
    at = {"0": 1.0, "0.25": (1 + level) / 2, "1": level}
    measured = {
        f"trade_off/stdlib/5 {z}/1": {**methods, "greedy": {"purity": [value, 0.02]}}
        for z, value in at.items()
    }
    start = {"pretraining": [6.0, 3.0], "norms": {"0.5": 5.0}, "owners": 9, "numbers": 10}
    results = page.Results(
        {"scale": experiments.described(scale), "start": {"stdlib": start}, "measured": measured}
    )
    text = wide.section(results, scale)
    assert f"at z = 0.25 ({at['0.25']:.3f} ± 0.020)." in text
    assert f"| z = 1 | {wide.spent(scale, 1.0):.2f} |" in text
    assert wide.spent(scale, 0.25) > wide.spent(scale, 1.0)
    assert "wide" not in page.render({**results.raw, "start": {}}, PUBLISHED, [])
