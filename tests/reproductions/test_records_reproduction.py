"""Published settings of inversion and membership: pieces that can be checked, and the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.audits.membership import attack
from reproductions.records import experiments, page, peers

ROOT = Path(experiments.__file__).parents[2]
STORED = json.loads(Path(experiments.__file__).with_name("results.json").read_text())


def test_the_page_is_that_of_the_stored_results(tmp_path):
    page.write(STORED, tmp_path / "records.md")
    for name in ("records.md", "records-lira.svg"):
        kept = (ROOT / "docs" / "reproductions" / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == kept


def test_the_network_is_the_published_one():
    torch.manual_seed(42)
    net = experiments.lenet()
    assert sum(p.numel() for p in net.parameters()) == 15_826
    assert max(float(p.detach().abs().max()) for p in net.parameters()) <= 0.5
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_features_of_a_table_are_right_column_by_column():
    blocks = experiments.features(("age", "ward=a", "ward=b", "ward=c"))
    assert [b.tolist() for b in blocks] == [[0], [1, 2, 3]]
    record, spread = np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4)
    guesses = np.array([[1.3, 0.2, 0.6, 0.2], [1.4, 0.9, 0.1, 0.0], [1.0, 0.9, 0.1, 0.0]])
    found = experiments.right_share(guesses, record, blocks, spread)
    np.testing.assert_allclose(found, [1.0, 0.0, 0.5])


def test_every_model_is_a_target_whose_own_scores_are_no_shadow():
    rng = np.random.default_rng(0)
    odds, inside = rng.normal(size=(9, 40)), rng.random((9, 40)) < 0.5
    for target in (0, 4):
        others = [s for s in range(9) if s != target][:8]
        found = experiments.statistic("online", target, 8, odds, odds, inside)
        expected = attack.lira(odds[target], odds[others], inside[others])
        np.testing.assert_array_equal(found, expected)
        offline = experiments.statistic("offline", target, 8, odds, odds, inside)
        out = np.where(inside[others], np.nan, odds[others])
        mean = np.nanmean(out, axis=0)
        usable = np.isfinite(offline)
        order = (odds[target] - mean)[usable]
        assert np.corrcoef(order, offline[usable])[0, 1] == pytest.approx(1.0)


def test_quality_matches_guesses_one_to_one():
    x = torch.rand(1, 2, 1, 8, 8)
    case = peers.Case(torch.nn.Identity(), x, torch.zeros(1, 2), "image")
    swapped = x[0].flip(0).flatten(1).double().numpy()
    assert peers.quality(case, [swapped]) == [100.0, 100.0]
    one = np.repeat(swapped[:1], 2, axis=0)
    assert sorted(peers.quality(case, [one]))[0] < 20
