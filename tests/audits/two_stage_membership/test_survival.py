"""Stage I of many clients at once against one client after the other; degenerate rounds."""

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import theory
from fedaudit.audits.two_stage_membership.survival import (
    contributions,
    energy,
    noise_floor,
    server_rate,
    survival,
)
from fedaudit.errors import NotApplicable


def rows(seed=0, clients=7, width=60):
    return np.random.default_rng(seed).normal(size=(clients, width)).astype(np.float32)


def test_all_clients_at_once_equal_one_after_the_other():
    updates, weights = rows(), np.arange(1.0, 8.0)
    parts = contributions(updates, weights)
    found = survival(parts, noise=0.3)
    total = (weights[:, None] * updates.astype(np.float64)).sum(0) / weights.sum()
    np.testing.assert_allclose(parts.moved, total, rtol=1e-5, atol=1e-7)
    for k in range(7):
        u = weights[k] / weights.sum() * updates[k].astype(np.float64)
        b = total - u
        size, back, moved = (float(np.linalg.norm(v)) for v in (u, b, total))
        lam = float(u @ b) / (size * back)
        expected = {
            "own": size,
            "background": back,
            "moved": moved,
            "alignment": lam,
            "magnitude_ratio": back / size,
            "ratio": size / moved,
            "snr": size / 0.3,
            "blind": size / np.sqrt(back**2 + 60 * 0.3**2),
        }
        for name, value in expected.items():
            assert getattr(found, name)[k] == pytest.approx(value, rel=1e-5), name
        assert found.ratio[k] == pytest.approx(
            float(theory.survival_ratio(back / size, lam)), rel=1e-4
        )
        assert moved**2 == pytest.approx(float(theory.aggregate_energy(size, back, lam)))


def test_what_the_server_added_is_background():
    updates = rows(1)
    moved = updates.mean(0) + 0.5 * rows(2)[0]
    parts = contributions(updates, np.ones(7), moved, scale=1.0)
    k = 3
    b = moved - updates[k] / 7
    assert survival(parts).background[k] == pytest.approx(np.linalg.norm(b), rel=1e-5)
    assert parts.residual == pytest.approx(
        np.linalg.norm(0.5 * rows(2)[0]) / np.linalg.norm(moved), rel=1e-5
    )


# -- the server's rate ----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 3.0])
def test_a_server_that_steps_at_another_rate_is_noticed(rate):
    updates = rows(3)
    moved = (rate * updates.mean(0)).astype(np.float32)
    parts = contributions(updates, np.ones(7), moved)
    assert parts.scale == pytest.approx(rate, rel=1e-5)
    np.testing.assert_allclose(parts.u.sum(0), moved, rtol=1e-4, atol=1e-6)
    assert parts.residual < 1e-5


def test_rounding_and_noise_do_not_pass_for_a_rate():
    total = rows(4, width=5000)[0].astype(np.float64)
    assert server_rate(total, (total + 1e-6 * total[::-1]).astype(np.float32)) == 1.0
    rng = np.random.default_rng(5)
    size = np.linalg.norm(total)
    fits = []
    for sigma in (0.01, 0.1, 1.0, 10.0):
        for _ in range(50):
            noisy = (total + sigma * size * rng.normal(size=5000)).astype(np.float32)
            fits.append(server_rate(total, noisy))
    # without the guard, noise alone would change most rates
    assert np.mean(np.array(fits) == 1.0) >= 0.98


def test_a_model_that_went_the_other_way_or_did_not_move_has_no_rate():
    total = rows(6)[0].astype(np.float64)
    assert server_rate(total, -total.astype(np.float32)) == 1.0
    assert server_rate(total, np.zeros(60, np.float32)) == 1.0
    assert server_rate(np.zeros(60), total.astype(np.float32)) == 1.0


# -- degenerate rounds ----------------------------------------------------------------------------


def test_updates_that_cancel_exactly():
    u = rows(7)[0]
    found = survival(contributions(np.stack([u, -u]), [1, 1]), noise=0.1)
    assert np.isnan(found.ratio).all()
    np.testing.assert_allclose(found.alignment, -1.0, atol=1e-9)
    assert (found.snr > 0).all()
    assert noise_floor("noise", 0.1, contributions(np.stack([u, -u]), [1, 1]))[0] == np.inf


def test_what_rounding_leaves_of_a_mean_is_no_movement():
    """Five equal models, averaged in single precision: dW is not 0 to the last bit."""
    model = 10 * rows(20, width=4000)[0]
    mean = (sum([model / np.float32(3.0)] * 3) - model).astype(np.float32)
    assert np.linalg.norm(mean) > 0
    still = contributions(
        np.zeros((3, 4000), np.float32), np.ones(3), mean, before=float(np.linalg.norm(model))
    )
    assert not still.moved.any()
    assert still.residual == 0.0
    assert np.isnan(survival(still).ratio).all()
    # updates that cancel up to rounding
    u = rows(21, width=4000)[:2] / 3
    both = np.concatenate([u, -u, u.sum(0)[None], -u.sum(0)[None]])
    assert np.isnan(survival(contributions(both, [3, 3, 3, 3, 1, 1])).ratio).all()
    # a small step is a step
    small = (1e-4 * u[0]).astype(np.float32)
    both = contributions(np.stack([small, small]), [1, 1], small, before=float(np.linalg.norm(u)))
    assert survival(both).ratio == pytest.approx(0.5, rel=1e-4)


def test_survival_rises_toward_cancellation_and_the_shift_test_does_not():
    u = rows(8, width=400)[0].astype(np.float64)
    across = rows(9, width=400)[1].astype(np.float64)
    across -= (across @ u) / (u @ u) * u
    across *= np.linalg.norm(u) / np.linalg.norm(across)
    ratios, powers = [], []
    for lam in (0.0, -0.5, -0.9, -0.99, -0.999):
        b = lam * u + np.sqrt(1 - lam**2) * across
        both = np.stack([u, b]).astype(np.float32) * 2
        found = survival(contributions(both, [1, 1]), noise=float(np.linalg.norm(u)) / 2)
        ratios.append(found.ratio[0])
        powers.append(float(theory.detection_power(found.snr[0], 0.05)))
    assert (np.diff(ratios) > 0).all()
    assert ratios[3] == pytest.approx(7.071, rel=1e-2)
    np.testing.assert_allclose(powers, powers[0], rtol=1e-5)


def test_a_zero_update_and_a_client_alone():
    updates = rows(10)
    updates[2] = 0
    found = survival(contributions(updates, np.ones(7)), noise=0.2)
    assert (found.own[2], found.ratio[2], found.snr[2]) == (0.0, 0.0, 0.0)
    assert np.isnan(found.alignment[2])
    assert found.magnitude_ratio[2] == np.inf
    alone = survival(contributions(rows(11, clients=1), [3.0]))
    assert (alone.background[0], alone.magnitude_ratio[0]) == (0.0, 0.0)
    assert alone.ratio[0] == pytest.approx(1.0)
    assert np.isnan(alone.alignment[0])
    assert alone.snr[0] == np.inf


def test_nothing_moves_at_all():
    found = survival(contributions(np.zeros((3, 5), np.float32), np.ones(3)))
    assert np.isnan(found.ratio).all()
    assert (found.snr == 0).all()
    assert (found.blind == 0).all()


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0]])
def test_weights_that_make_no_mean_are_refused(weights):
    with pytest.raises(NotApplicable, match="do not define a mean"):
        contributions(rows(12, clients=2), weights)


# -- noise ----------------------------------------------------------------------------------------


def test_noise_inside_an_update_is_no_signal():
    rng = np.random.default_rng(13)
    sigma, d = 0.05, 40_000
    noise = sigma * rng.normal(size=(4, d))
    signal = np.zeros(d)
    signal[0] = 40.0
    updates = (noise + np.stack([signal, 0 * signal, 0 * signal, 0 * signal])).astype(np.float32)
    own = np.full(4, sigma / 4)
    found = survival(contributions(updates, np.ones(4)), noise=sigma / 2, own_noise=own)
    assert found.snr[0] == pytest.approx(10.0 / (sigma / 2), rel=0.01)
    # |noise| alone is 2.5 per update: it would look like a signal of 100 sigma
    assert (found.snr[1:] < 20).all()


def test_more_noise_never_reads_as_more_survival():
    parts = contributions(rows(14), np.ones(7))
    snrs = [survival(parts, noise=s).snr for s in (0.01, 0.1, 1.0, 10.0)]
    blind = [survival(parts, noise=s).blind for s in (0.0, 0.01, 0.1, 1.0, 10.0)]
    assert (np.diff(snrs, axis=0) < 0).all()
    assert (np.diff(blind, axis=0) < 0).all()


def test_the_noise_floor_and_its_rule():
    parts = contributions(rows(15), np.ones(7))
    assert noise_floor(0.1, 5.0, parts) == (0.1, "given")
    tau, rule = noise_floor("noise", 0.02, parts)
    assert tau == pytest.approx(0.02 * np.sqrt(60) / np.linalg.norm(parts.moved), rel=1e-6)
    assert "sigma" in rule
    # in units of |dW|: above tau means above the noise
    found = survival(parts)
    np.testing.assert_array_equal(found.ratio > tau, found.own > 0.02 * np.sqrt(60))


def test_energy_adds_up_to_what_the_model_moved_by():
    rng = np.random.default_rng(3)
    parts = contributions(rng.normal(size=(5, 30)).astype(np.float32), np.arange(1.0, 6))
    found = energy(survival(parts))
    w = parts.moved.astype(np.float64)
    for k, u in enumerate(parts.u.astype(np.float64)):
        rest = w - u
        assert found.own[k] == pytest.approx(u @ u / (w @ w), rel=1e-5)
        assert found.background[k] == pytest.approx(rest @ rest / (w @ w), rel=1e-5)
        assert found.shared[k] == pytest.approx(2 * u @ rest / (w @ w), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(found.total, 1.0, rtol=1e-6)


def test_energy_of_updates_that_cancel_or_are_nothing():
    u = np.array([[1.0, 0.0], [-0.9, 0.0], [0.0, 0.0]], dtype=np.float32)
    found = energy(survival(contributions(u, np.ones(3))))
    assert found.own[0] == pytest.approx(100.0, rel=1e-4)
    assert found.shared[0] == pytest.approx(-180.0, rel=1e-4)
    np.testing.assert_allclose(found.total, 1.0, rtol=1e-3)
    assert (found.own[2], found.shared[2]) == (0.0, 0.0)
    still = energy(survival(contributions(np.array([[1.0], [-1.0]], np.float32), np.ones(2))))
    assert np.isnan(still.total).all()
