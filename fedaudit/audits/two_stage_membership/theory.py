"""Closed forms and bounds of the two stages. Arrays broadcast; scalars stay scalars."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats


def phi(z: npt.ArrayLike) -> Floats:
    """Centred sigmoid, 1/4-Lipschitz, within (-1/2, 1/2). [TwoStage] Eq. (13)"""
    # tanh keeps full precision near 0 and does not overflow
    return np.asarray(0.5 * np.tanh(0.5 * np.asarray(z, dtype=np.float64)))


def survival_ratio(magnitude_ratio: npt.ArrayLike, alignment: npt.ArrayLike) -> Floats:
    """SUR = 1 / sqrt(1 + r^2 + 2 r lambda), r = |B|/|u|. [TwoStage] Eq. (9)

    Infinite where the sum cancels exactly.
    """
    r = np.asarray(magnitude_ratio, dtype=np.float64)
    lam = np.asarray(alignment, dtype=np.float64)
    # (1 - r)^2 + 2 r (1 + lambda) has no cancellation near r = 1, lambda = -1
    energy = (1.0 - r) ** 2 + 2.0 * r * (1.0 + lam)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(np.maximum(energy, 0.0)))


def aggregate_energy(
    own: npt.ArrayLike, background: npt.ArrayLike, alignment: npt.ArrayLike
) -> Floats:
    """|dW|^2 = |u|^2 + |B|^2 + 2 |u| |B| lambda. [TwoStage] Eq. (7), Lemma 2"""
    u, b = np.asarray(own, dtype=np.float64), np.asarray(background, dtype=np.float64)
    return np.asarray(u * u + b * b + 2.0 * u * b * np.asarray(alignment, dtype=np.float64))


def detection_power(snr: npt.ArrayLike, false_positive_rate: float) -> Floats:
    """Power of the test for a known shift u in Gaussian noise: Phi(SNR - z_{1-fpr}).

    Ours, beside [TwoStage] Eq. (10): with B known, dW - B is u + noise or noise alone, and the
    likelihood-ratio test depends on <u, dW - B> / (|u| sigma) only. SNR = |u| / sigma; infinite
    without noise.
    """
    from scipy.special import ndtr, ndtri

    return np.asarray(ndtr(np.asarray(snr, dtype=np.float64) - ndtri(1.0 - false_positive_rate)))


def remainder_bound(smoothness: npt.ArrayLike, norm: npt.ArrayLike) -> Floats:
    """|delta - <H(0), u>| <= L |u|^2 / 2. [TwoStage] Eq. (19), Lemma 6"""
    return np.asarray(0.5 * np.asarray(smoothness) * np.asarray(norm, dtype=np.float64) ** 2)


def advantage_slack(smoothness: npt.ArrayLike, norm: npt.ArrayLike) -> Floats:
    """J = E[phi(<H(0), u>)] +- L |u|^2 / 8. [TwoStage] Eq. (23), Theorem 1"""
    return remainder_bound(smoothness, norm) / 4.0


def mean_score_slack(
    variance: npt.ArrayLike, smoothness: npt.ArrayLike, norm: npt.ArrayLike
) -> Floats:
    """J = phi(|s| |u| gamma) +- (sqrt(Var)/4 + L |u|^2 / 8). [TwoStage] Lemma 7

    The lemma itself is in words; the formula stands at the end of its proof.
    """
    spread = np.sqrt(np.maximum(np.asarray(variance, dtype=np.float64), 0.0)) / 4.0
    return np.asarray(spread + advantage_slack(smoothness, norm))


def published_condition(
    norm: float, score_norm: float, alignment: float, smoothness: float
) -> bool:
    """|u| < 2 |s| gamma / L and gamma > 0, as printed: not sufficient.

    [TwoStage] Eq. (26), Lemma 8
    """
    if alignment <= 0:
        return False
    return smoothness == 0 or norm < 2.0 * score_norm * alignment / smoothness


def sound_condition(
    directional_mean: float, variance: float, smoothness: float, norm: float
) -> bool:
    """phi(<s, u>) > sqrt(Var)/4 + L |u|^2 / 8: J > 0 follows. Ours, from [TwoStage] Lemma 7"""
    return bool(phi(directional_mean) > mean_score_slack(variance, smoothness, norm))


def published_smoothness(errors: npt.ArrayLike, norms: npt.ArrayLike) -> float:
    """L_cal = max 2 err / |v|^2 over calibration points. [TwoStage] Section 6.2"""
    e, v = np.asarray(errors, dtype=np.float64), np.asarray(norms, dtype=np.float64)
    usable = v > 0
    return float((2.0 * e[usable] / v[usable] ** 2).max()) if usable.any() else math.nan
