"""How like an image a guess is: PSNR and SSIM, of images on their own range."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter

from fedaudit.arrays import Floats

MOST_PSNR = 100.0
"""PSNR in dB of an image that is rebuilt up to rounding."""
WINDOW = 7
K1, K2 = 0.01, 0.03


def psnr(guesses: Floats, images: Floats, span: float) -> Floats:
    """Peak signal-to-noise ratio (n,) in dB of guesses for images (n, ...) of range `span`."""
    error = np.square(guesses - images).reshape(len(images), -1).mean(axis=1)
    return np.asarray(
        10.0 * np.log10(span**2 / np.maximum(error, span**2 * 10 ** (-MOST_PSNR / 10)))
    )


def ssim(guesses: Floats, images: Floats, span: float) -> Floats:
    """Mean structural similarity (n,) of images (n, C, H, W), in windows of 7 x 7 pixels.

    Wang et al. 2004, Eq. (13), with uniform windows and sample covariances; smaller images are one
    window. Windows that leave the image do not count.
    """
    size = min(WINDOW, *images.shape[2:])
    pad = size // 2
    height, width = (slice(pad, n - size + 1 + pad) for n in images.shape[2:])

    def mean(x: Floats) -> Floats:
        return np.asarray(uniform_filter(x, size=(1, 1, size, size))[..., height, width])

    sample = size**2 / (size**2 - 1) if size > 1 else 1.0
    a, b = mean(guesses), mean(images)
    var_a = sample * (mean(guesses * guesses) - a * a)
    var_b = sample * (mean(images * images) - b * b)
    cov = sample * (mean(guesses * images) - a * b)
    c1, c2 = (K1 * span) ** 2, (K2 * span) ** 2
    found = (2 * a * b + c1) * (2 * cov + c2) / ((a * a + b * b + c1) * (var_a + var_b + c2))
    return np.asarray(found.mean(axis=(1, 2, 3)))
