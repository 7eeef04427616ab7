"""Games with the clients of a run: what protections leave of the answer."""

import math

import numpy as np
import pytest
from scipy import stats


@pytest.mark.parametrize("adversary", ["fc", "auto"])
@pytest.mark.parametrize("how", ["secure_sum", "shuffle", "secure_aggregation"])
def test_a_sum_or_a_shuffle_hides_neither_membership_nor_whose(audited, how, adversary):
    """One planted model for all: is it in the federation? One detector each: with whom?"""
    result = audited({"recorded": 30, "adversary": adversary}, **{how: {}})
    assert result.estimates["success"].value == 1.0
    assert result.estimates["success"].n == 30
    named = result.estimates["right_client_named"]
    assert named.value == 1.0
    assert named.baseline == pytest.approx(1 / 6)
    assert any("as one sum or without names" in note for note in result.notes)


def test_local_dp_is_felt_in_the_federation_too(audited):
    """The union of all clients' records: more of them, and a noisy one is found by chance."""
    strong = audited({"recorded": 60}, local_dp={"epsilon": 0.1}, secure_sum={})
    assert strong.estimates["success"].low < 0.5 < strong.estimates["success"].high


def test_dp_sgd_leaves_what_one_gaussian_step_allows(audited):
    """An exact match moves one number by C beside noise z C: success Phi(1 / 2z)."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": 0.5})
    e, top = result.estimates["success"], result.bounds["one step of DP-SGD"]
    expected = 0.5 * (1 + math.erf(1.0 / math.sqrt(2)))
    assert e.low <= expected <= e.high
    assert top.value == pytest.approx(0.5 * (1 + math.erf(2.0 / math.sqrt(2))))
    assert e.low <= top.value
    assert result.estimates["success (gradient in the clear)"].value == 1.0
    # what is drawn is what the headline measures; nothing is said of single clients
    drawn, bare, ceiling = result.curves.values()
    assert [*result.curves] == [
        "ROC (as uploads arrive)",
        "ROC (without the protection of uploads)",
        "true positive ceiling (step of DP-SGD)",
    ]
    assert all(np.diff(ceiling["as played"]) >= 0)
    assert max(bare["true positive rate"]) == 1.0
    x, y = (np.array(drawn[f"{which} positive rate"]) for which in ("false", "true"))
    assert np.trapezoid(y, x) == pytest.approx(result.estimates["auc"].value, abs=0.02)
    assert not result.per_client


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.82), (0.5, 0.65)])
def test_a_shuffler_beside_noise_is_read_by_all_rows(audited, noise, least):
    """The largest of K noisy uploads is always large: rows are weighed by their likelihood."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": noise}, shuffle={}).estimates
    success, area = result["success"], result["auc"]
    assert success.value >= least
    # of scores with this AUC that are normal, the best cut is right so often
    implied = stats.norm.cdf(stats.norm.ppf(area.value) / math.sqrt(2))
    assert success.low - 0.02 <= implied <= success.high + 0.02
    assert abs(result["true_positive_rate"].value - result["true_negative_rate"].value) < 0.25
    assert result["right_client_named"].low > 1 / 6


def test_a_shuffler_beside_noise_that_drowns_everything_is_chance(audited):
    """Neither yes every time nor no every time, and no leak."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": 20.0}, shuffle={})
    e = result.estimates["success"]
    assert e.low <= 0.5 <= e.high
    assert 0.05 < result.estimates["true_positive_rate"].value < 0.95
    assert any("any adversary can reach" in u.what for u in result.underpowered)


@pytest.mark.parametrize("mixed", [{}, {"shuffle": {}}])
def test_noise_on_updates_leaves_what_one_gaussian_allows(audited, mixed):
    """A match fills the clipping bound of a whole update, whatever else is in it."""
    result = audited({"recorded": 400}, update_noise={"noise_multiplier": 0.5}, **mixed)
    e, top = result.estimates["success"], result.bounds["one noisy update"]
    if not mixed:
        assert e.low <= stats.norm.cdf(1.0) <= e.high
    assert e.value > 0.65
    assert e.low <= top.value == pytest.approx(stats.norm.cdf(2.0))


def test_more_noise_in_training_never_reads_as_more_leak(audited):
    areas = [
        audited({"recorded": 120}, dp_sgd={"noise_multiplier": z}).estimates["auc"]
        for z in (0.2, 1.0, 5.0)
    ]
    assert areas[1].low <= areas[0].high
    assert areas[2].low <= areas[1].high
    assert areas[0].low > areas[2].high


def test_attention_refuses_noise(audited):
    result = audited({"adversary": "attention"}, dp_sgd={"noise_multiplier": 0.5})
    assert result.need.code == "noisy_uploads"


@pytest.mark.parametrize(
    "mechanism",
    [
        {"mechanism": "rappor", "epsilon": 4.0, "alphabet": 16, "hashes": 2, "filter_bits": 32},
        {"mechanism": "grr", "epsilon": 12.0, "alphabet": 5000},
        {"mechanism": "rappor", "epsilon": 20.0, "alphabet": 3000},
        {"mechanism": "bitrand", "epsilon": 8.0, "bits": 40, "integer_bits": 5},
    ],
    ids=["bloom", "large-grr", "large-rappor", "40-bits"],
)
def test_mechanisms_whose_law_is_not_written_out_are_played_too(audited, mechanism):
    own = {"games": 100, "simulated": 100, "universe": 60, "recorded": 20, "records": 4}
    result = audited({**own, "local_dp": mechanism})
    assert result.status == "ok"
    assert any("20 of 20 games" in note for note in result.notes)
    assert result.estimates["success"].n == 100
