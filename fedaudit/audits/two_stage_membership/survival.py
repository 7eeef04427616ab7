"""Stage I of all clients of a round at once: how much of an update survives in the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Rows
from fedaudit.audits.two_stage_membership.theory import aggregate_energy
from fedaudit.errors import NotApplicable

ROUNDINGS = 2.0
"""Movement up to this many rounding errors of the inputs counts as none."""


@dataclass(frozen=True)
class Contributions:
    """Weighted updates u_k = p_k dw_k (K, d) of one round and what the model moved by, dW (d,).

    `scale`: the server's factor on the mean (its learning rate). `residual`: |dW - sum u| / |dW|,
    from noise or momentum that the server added. [TwoStage] Eqs. (1), (2)
    """

    u: Rows
    moved: Rows
    scale: float
    residual: float


def contributions(
    updates: Rows,
    weights: npt.ArrayLike,
    moved: Rows | None = None,
    scale: float | None = None,
    before: float = 0.0,
) -> Contributions:
    """u_k = p_k dw_k with p_k = weight / sum of weights; dW as observed, or their sum.

    `scale`: the server's learning rate if known, otherwise fitted to dW. `before`: norm of the
    model before the round. Movement within single-precision rounding of it and of the updates
    counts as dW = 0.
    """
    p = np.asarray(weights, dtype=np.float64)
    if not p.sum() > 0:
        raise NotApplicable(
            "the weights of a round's updates do not define a mean",
            code="no_mean",
            expected="weights with a positive sum",
            got=f"a sum of {p.sum():g} over {len(p)} updates",
            remedy="record each update's weight in the aggregate",
        )
    u = updates * (p / p.sum()).astype(np.float32)[:, None]
    total = u.sum(axis=0, dtype=np.float64)
    lengths = np.sqrt(np.einsum("kd,kd->k", u, u, dtype=np.float64))
    rounding = ROUNDINGS * float(np.finfo(np.float32).eps) * (before + float(lengths.sum()))
    if float(np.linalg.norm(total if moved is None else moved)) <= rounding:
        rate = 1.0 if scale is None else scale
        return Contributions(_times(u, rate), np.zeros(u.shape[1], np.float32), rate, 0.0)
    if moved is None:
        rate = 1.0 if scale is None else scale
        return Contributions(_times(u, rate), (rate * total).astype(np.float32), rate, 0.0)
    rate = server_rate(total, moved) if scale is None else scale
    size = float(np.linalg.norm(moved))
    left = float(np.linalg.norm(moved - rate * total))
    return Contributions(_times(u, rate), moved, rate, left / size if size > 0 else 0.0)


def _times(u: Rows, rate: float) -> Rows:
    return u if rate == 1.0 else u * np.float32(rate)


def server_rate(total: Floats, moved: Rows) -> float:
    """The server's rate along the mean update (d,), by least squares from dW (d,).

    Returns 1, the usual rate, unless the fit differs from 1 by more than rounding and by more than
    noise on the aggregate explains (four standard errors).
    """
    energy = float(total @ total)
    if energy == 0:
        return 1.0
    rate = float(total @ moved.astype(np.float64)) / energy
    left = float(np.linalg.norm(moved - rate * total))
    error = left / math.sqrt(energy * len(total))
    return 1.0 if rate <= 0 or abs(rate - 1.0) <= max(1e-4, 4.0 * error) else rate


@dataclass(frozen=True)
class Survival:
    """Stage I of K clients, each (K,). Undefined values are NaN: lambda of a zero vector, SUR of a
    zero sum.

    `own` |u|, `background` |B|, `moved` |dW|, `alignment` lambda (Eq. 5), `magnitude_ratio`
    r = |B|/|u|, `ratio` SUR (Eq. 8), `snr` |u|/sigma with B known (infinite without noise), `blind`
    |u| / `spread`, sqrt(|B|^2 + d sigma^2): a heuristic without B (recorded noise is part of B too
    and then counts twice, which is conservative).

    If u itself contains noise, `snr` and `blind` are one draw, never below 0: pure noise looks like
    a signal half of the time, more so in a larger model. Average `snr_squared` instead: under pure
    noise it is below 0 as often as above. `snr_error` is its standard error.
    """

    own: Floats
    background: Floats
    moved: Floats
    alignment: Floats
    magnitude_ratio: Floats
    ratio: Floats
    snr: Floats
    snr_squared: Floats
    snr_error: Floats
    blind: Floats
    spread: Floats


def survival(parts: Contributions, noise: float = 0.0, own_noise: npt.ArrayLike = 0.0) -> Survival:
    """Stage I for every client of a round. [TwoStage] Eqs. (4)-(9)

    `noise`: sigma per coordinate of dW. `own_noise` (K,): the part of it inside u_k itself; its
    energy is subtracted from |u|^2 before SNR. Uses inner products of u with dW only:
    |B|^2 = |dW|^2 - 2 <u, dW> + |u|^2, in double precision.
    """
    u, w = parts.u, parts.moved.astype(np.float64)
    own2 = np.einsum("kd,kd->k", u, u, dtype=np.float64)
    cross = np.array([float(row.astype(np.float64) @ w) for row in u])
    moved2 = float(w @ w)
    background2 = np.maximum(moved2 - 2.0 * cross + own2, 0.0)
    # the difference of nearly equal numbers is rounding, not background
    background2 = np.where(background2 < 1e-12 * max(moved2, 1e-300), 0.0, background2)
    own, background = np.sqrt(own2), np.sqrt(background2)
    moved = np.full(len(u), np.sqrt(moved2))
    with np.errstate(divide="ignore", invalid="ignore"):
        alignment = np.where(own * background > 0, (cross - own2) / (own * background), np.nan)
        ratio = np.where(moved > 0, own / moved, np.nan)
        magnitude = np.where(own > 0, background / own, np.inf)
        d = u.shape[1]
        inside = np.broadcast_to(np.square(own_noise, dtype=np.float64), own2.shape)
        signal2 = own2 - d * inside
        signal = np.sqrt(np.maximum(signal2, 0.0))
        sure = np.where(own > 0, np.inf, 0.0)
        snr = signal / noise if noise > 0 else sure
        squared = signal2 / noise**2 if noise > 0 else sure
        # |u + e|^2 of Gaussian e: a noncentral chi^2 of d degrees in units of its variance
        variance = 2.0 * d * inside**2 + 4.0 * inside * np.maximum(signal2, 0.0)
        error = np.sqrt(variance) / noise**2 if noise > 0 else np.zeros_like(own)
        spread = np.sqrt(background2 + d * noise**2)
        blind = np.where(spread > 0, signal / spread, sure)
    return Survival(
        own=own,
        background=background,
        moved=moved,
        alignment=np.clip(alignment, -1.0, 1.0),
        magnitude_ratio=magnitude,
        ratio=ratio,
        snr=snr,
        snr_squared=squared,
        snr_error=error,
        blind=blind,
        spread=spread,
    )


@dataclass(frozen=True)
class Energy:
    """Parts of |dW|^2, as shares of it, each (K,): |u|^2, |B|^2, 2 <u, B>, and their `total`, 1 up
    to rounding. NaN in a round without movement. [TwoStage] Eq. (7), Lemma 2"""

    own: Floats
    background: Floats
    shared: Floats
    total: Floats


def energy(stage: Survival) -> Energy:
    """The energy decomposition of every client's round."""
    own, background = stage.own, stage.background
    # lambda of a zero vector is undefined, and its shared energy is zero
    alignment = np.where(own * background > 0, stage.alignment, 0.0)
    total = aggregate_energy(own, background, alignment)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.where(stage.moved > 0, stage.moved**2, np.nan)
        return Energy(
            own=own**2 / unit,
            background=background**2 / unit,
            shared=(total - own**2 - background**2) / unit,
            total=total / unit,
        )


def noise_floor(
    threshold: float | Literal["noise"], noise: float, parts: Contributions
) -> tuple[float, str]:
    """tau and its rule. [TwoStage] Eq. (10), Remark 1

    Given, or derived ("noise"): u survives if it is larger than the noise in the sum,
    |u| > sigma sqrt(d), which in units of |dW| is SUR > sigma sqrt(d) / |dW|.
    """
    if threshold != "noise":
        return threshold, "given"
    size = float(np.linalg.norm(parts.moved))
    if size == 0:
        return np.inf, "the model did not move"
    return noise * float(np.sqrt(parts.u.shape[1])) / size, "sigma sqrt(d) / |dW|"
