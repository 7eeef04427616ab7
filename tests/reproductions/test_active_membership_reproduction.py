"""The reproduction runs at a tiny scale; its page holds what was measured and says what was not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.adversary import AttentionAdversary
from fedaudit.audits.active_membership.games import Universe
from fedaudit.audits.active_membership.patterns import Embedding, from_table, identity
from fedaudit.knowledge.probing import channel_of
from reproductions.active_membership import embedding, experiments, page, run, text
from reproductions.active_membership.figures import figures
from reproductions.active_membership.results import Results, cell
from reproductions.active_membership.setting import FULL, QUICK, Patched, local

WANTED = (
    "floor/one-hot/5 20",
    "fc/digits/grr 4",
    "spread/digits/bitrand 7.5",
    "decoder/digits/rappor",
    "budget/512 features/5",
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
    written = page.write(measured, tmp_path, ["cifar10"], lacking).read_text()
    own = measured["measured"]["fc/digits/grr 4"]
    assert cell(own["tuned"]) in written
    assert cell(own["accuracy"]) in written
    found = measured["measured"]["attention/digits/4 4 bitrand 6"]
    assert cell(found["success"]) in written
    assert "`cifar10` was skipped" in written
    for key in lacking:
        assert f"`{key}`" in written
    assert "0.6756 | 0.7065 | 0.8010" in written  # figure 13 at epsilon 6
    assert (tmp_path / "active_membership-grr.svg").read_text().startswith("<svg")
    assert (tmp_path / "active_membership-digits.svg").read_text().startswith("<svg")


def test_the_page_in_the_documentation_is_that_of_the_stored_results() -> None:
    results = run.load(run.HERE / "results.json", FULL)
    assert results["measured"], "stored results are of another scale"
    lacking = [p.key for p in experiments.pieces(FULL) if p.key not in results["measured"]]
    stored = (run.PAGE / "active_membership.md").read_text(encoding="utf-8")
    assert page.render(results, [], lacking) == stored
    drawn = figures(Results(results))
    for name, svg in drawn.items():
        assert (run.PAGE / name).read_text(encoding="utf-8") == svg, name
        assert f"({name})" in stored
    pictures = {p.name for p in run.PAGE.glob("active_membership-*.svg")}
    assert pictures == set(drawn)


def test_bounds_stand_on_the_right_side(measured: dict) -> None:
    own = measured["measured"]["fc/digits/grr 4"]
    assert own["theorem 1"][1] <= own["theory"][2] + 1e-9
    assert own["tuned"][1] <= own["theorem 2"]
    assert own["claimed"] == pytest.approx(own["exact"])


def test_a_wider_spread_of_features_leaves_the_ball_less_often(measured: dict) -> None:
    found = measured["measured"]["spread/digits/bitrand 7.5"]
    assert found["2"]["radius"] == pytest.approx(2 * found["1"]["radius"], rel=0.01)
    assert found["2"]["P_M"][0] <= found["1"]["P_M"][2]


def test_bitwise_mechanisms_spend_what_is_known(measured: dict) -> None:
    found = measured["measured"]["budget/512 features/5"]
    assert found["bitrand, l = 10"]["exact"] == pytest.approx(9239, abs=1)
    assert found["ome, l = 10"]["exact"] == pytest.approx(35342, abs=1)
    for name in ("grr, 8 levels", "rappor, 8 levels", "dbitflip, 8 levels"):
        assert found[name]["exact"] == found[name]["claimed"] == 5 * 512


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
    for count in ("49", "144"):
        for batch in (10, 20, 40):
            assert f"attention/cifar10/{count} {batch} bitrand 3" in keys
    for mechanism in ("grr", "rappor", "dbitflip"):
        for epsilon in (8, 6, 4, 2):
            assert f"text/newsgroups/attention {mechanism} {epsilon}" in keys


def test_the_projection_is_orthogonal_and_fixed() -> None:
    first, again = embedding.projection(40, 8), embedding.projection(40, 8)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first.T @ first, np.eye(8), atol=1e-6)


def test_patterns_that_are_records_already_are_not_changed() -> None:
    x = np.random.default_rng(0).normal(size=(5, 12))
    np.testing.assert_array_equal(Patched(x, 3, 4).identity(x), identity(3, 4)(x))


# -- text -----------------------------------------------------------------------------------------


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """An embedding layer of nine tokens, eight places and six dimensions."""
    rng = np.random.default_rng(3)
    return {
        "word": rng.normal(size=(9, 6)),
        "position": rng.normal(size=(8, 6)),
        "kind": rng.normal(size=(2, 6)),
        "gain": rng.random(6) + 0.5,
        "bias": rng.normal(size=6),
    }


@pytest.fixture
def tokens(arrays: dict[str, np.ndarray]) -> Embedding:
    """Five of its tokens in four places."""
    return from_table(text.embedded(arrays, np.array([8, 2, 5, 0, 1]), 4))


def test_the_embedding_layer_is_that_of_the_model(arrays: dict[str, np.ndarray]) -> None:
    import torch

    chosen = np.array([8, 2, 5])
    got = text.embedded(arrays, chosen, 4)
    layer = torch.nn.LayerNorm(6, eps=1e-12, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(arrays["gain"]))
        layer.bias.copy_(torch.from_numpy(arrays["bias"]))
        for place in range(4):
            summed = arrays["word"][chosen] + arrays["position"][place + 1] + arrays["kind"][0]
            want = layer(torch.from_numpy(summed)).numpy()
            np.testing.assert_allclose(got[place], want, atol=1e-12)


def test_rows_hold_the_first_words_of_the_alphabet() -> None:
    number = {"sun": 0, "moon": 1, "star": 2}
    texts = ["the moon and the sun shine", "star", "moon sun star", "no word of it"]
    np.testing.assert_array_equal(text.rows_of(texts, number, 2), [[1, 0]])
    np.testing.assert_array_equal(text.rows_of(texts, number, 1), [[1], [2]])


def test_distances_of_tokens_are_those_of_embedded_records(tokens: Embedding) -> None:
    rng = np.random.default_rng(4)
    x = np.unique(rng.integers(0, 5, (60, 4)), axis=0).astype(float)
    universe = Universe.of(x, channel_of(local("grr", 2.0, 0.0, 4.0, levels=5), 4))
    data = text.Text(x, tuple("abcde"), tokens)
    played = games.challenge(len(universe), 5, 40, rng)
    got = text.closest(universe, data.apart, played, np.random.default_rng(5))
    shown = universe.perturbed(played.data.ravel(), np.random.default_rng(5))
    apart = tokens(shown).reshape(40, 5, -1) - tokens(universe.values[played.target]).reshape(
        40, 1, -1
    )
    np.testing.assert_allclose(got, np.abs(apart).sum(axis=2).min(axis=1))


def test_attention_takes_tokens_as_patterns(tokens: Embedding) -> None:
    rng = np.random.default_rng(6)
    x = np.zeros((16, 4))
    x[np.arange(16), np.arange(16) // 4] = 1 + np.arange(16) % 4
    made = AttentionAdversary.prepare(Universe.of(x), tokens, 3, rng, beta=1.0, simulated=60)
    places = np.arange(len(made.universe))
    own = made.universe.values[places, made.pattern]
    assert len(places) == 16
    for i, place in enumerate(made.pattern):
        assert (made.universe.values[:, place] == own[i]).sum() == 1  # nobody else has it there
    want = tokens.table[made.pattern, own.astype(int)]
    np.testing.assert_array_equal(made.targets(places), want)
