"""Noise multipliers of combined Gaussian mechanisms, without an accountant."""

from __future__ import annotations


def joint_multiplier(noise_multiplier: float, clipped_count_stddev: float) -> float:
    """Multiplier of a noisy mean plus a noisy count of clipped updates: (z^-2 + (2 s)^-2)^(-1/2).

    Adaptive clipping releases both. Flower applies the inverse of this to its setting.
    """
    if noise_multiplier == 0 or clipped_count_stddev == 0:
        return 0.0
    return float((noise_multiplier**-2 + (2 * clipped_count_stddev) ** -2) ** -0.5)
