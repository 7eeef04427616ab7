"""Features over rounds."""

import numpy as np
import pytest

from fedaudit.audits.topology_inference import features as ft
from fedaudit.trace import WIRETAP


def test_summaries_are_those_of_numpy():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, 3, 2)).astype(np.float32)
    x[2, 0] = x[5, 0] = np.nan
    x[1:, 2] = np.nan
    out, labels = ft.summarise(x, ("norm", "other"), rounds=None)
    at = {label: out[:, i] for i, label in enumerate(labels)}
    for client in range(2):
        rounds = np.flatnonzero(np.isfinite(x[:, client, 1]))
        values = x[rounds, client, 1].astype(float)
        assert at["mean, other"][client] == pytest.approx(values.mean(), abs=1e-5)
        assert at["std, other"][client] == pytest.approx(values.std(), abs=1e-5)
        assert at["trend, other"][client] == pytest.approx(
            np.polyfit(rounds, values, 1)[0], abs=1e-5
        )
        assert at["last, other"][client] == pytest.approx(values[-1], abs=1e-6)
    assert at["trend, other"][2] == 0.0  # one round has no slope
    assert at["norm, round 1"][2] == x[0, 2, 0]
    assert np.isnan(at["norm, round 3"][0])
    early, _ = ft.summarise(x, ("norm", "other"), rounds=2)
    again, _ = ft.summarise(x[:2], ("norm", "other"))
    np.testing.assert_array_equal(early, again)


def test_published_features_are_a_part_of_all(toy):
    trace, _ = toy(np.random.default_rng(6))
    seen = ft.observe(
        trace.seen_by(WIRETAP),
        ft.Place.of(trace.seen_by(WIRETAP).federation),
        classes=toy.classes,
        sensitive=(0,),
    )
    every, all_names = ft.summarise(seen.values, seen.names)
    few, names = ft.summarise(seen.values, seen.names, which="published")
    assert set(names) < set(all_names)
    assert not any("class" in n or "update" in n or "to the mean" in n for n in names)
    np.testing.assert_array_equal(few[:, 0], every[:, all_names.index(names[0])])
    own, near = (ft.summarise(seen.values, seen.names, which=w)[1] for w in ("own", "neighbours"))
    assert sorted([*own, *near]) == sorted(all_names)
    assert near
    assert all("neighbours" in n for n in near)
