"""Intervals for proportions, means and resampled statistics.

Shapes: counts are integers; `units` is (n, ...), one row per independent unit. Put dependent
values (the games of one trial, the records of one client) into one row: intervals over single
values would be too narrow.

Wilson's interval needs the standard library alone; the other closed forms need `scipy.special`,
which loads much faster than `scipy.stats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import require_finite
from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.settings import Fraction, require

Array = npt.NDArray[Any]
BootstrapInterval = Literal["percentile", "bca"]

# Resamples are drawn in blocks of about this many numbers, so that memory stays bounded.
_BLOCK = 1 << 21


def check_confidence(confidence: float) -> float:
    """The error rate 1 - confidence; refuses a confidence outside (0, 1)."""
    require(Fraction, confidence=confidence, remedy="write 0.95 for 95 %")
    return 1.0 - confidence


def _check_counts(successes: int, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise UsageError(
            "a proportion needs a count out of a total",
            expected="at least one trial and 0 <= successes <= trials",
            got=f"{successes} of {n}",
            remedy="pass the number of successes first, the number of trials second",
        )


# --- proportions -----------------------------------------------------------------------------


def wilson(
    successes: int, n: int, confidence: float = 0.95, *, baseline: float | None = None
) -> Estimate:
    """Wilson's score interval of a proportion: `successes` of `n` independent trials."""
    alpha = check_confidence(confidence)
    _check_counts(successes, n)
    z = NormalDist().inv_cdf(1.0 - alpha / 2.0)
    share = successes / n
    low, high = _wilson_bounds(share, n, z)
    return Estimate(
        value=share,
        low=low,
        high=high,
        n=int(n),  # counts often arrive as numpy integers, which JSON refuses
        confidence=confidence,
        baseline=baseline,
        method="Wilson",
    )


def clustered_share(
    successes: npt.ArrayLike,
    trials: npt.ArrayLike,
    confidence: float = 0.95,
    *,
    baseline: float | None = None,
) -> Estimate:
    """Share of successes over k clusters of correlated trials, (k,) and (k,).

    Wilson's interval at the effective number of trials n / deff, where the design effect
    deff >= 1 is the variance of the share between clusters over that of independent trials. If all
    trials agree, that variance is zero and uninformative; then a cluster counts as one trial.
    """
    alpha = check_confidence(confidence)
    h, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    _check_counts(int(h.sum()), int(n.sum()))
    k, total = len(n), float(n.sum())
    share = float(h.sum() / total)
    effect = design_effect(h, n)
    z, m = NormalDist().inv_cdf(1.0 - alpha / 2.0), total / effect
    low, high = _wilson_bounds(share, m, z)
    return Estimate(
        value=share,
        low=low,
        high=high,
        n=k,
        confidence=confidence,
        baseline=baseline,
        method=f"Wilson over {k} clusters (design effect {effect:.2g})",
    )


def design_effect(successes: npt.ArrayLike, trials: npt.ArrayLike) -> float:
    """Clustered trials worth one independent trial, at least 1: (k,) and (k,).

    The mean cluster size if all trials agree, since the effect cannot be estimated then.
    """
    h, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    k, total = len(n), float(n.sum())
    share = float(h.sum() / total)
    if share in (0.0, 1.0) or k < 2:
        return max(1.0, total / k)
    between = float(((h - share * n) ** 2).sum()) * k / (k - 1) / total**2
    return max(1.0, between / (share * (1 - share) / total))


def _wilson_bounds(share: float, n: float, z: float) -> tuple[float, float]:
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the interval touches 0 or 1 exactly, whatever the rounding.
    low = 0.0 if share == 0.0 else max(0.0, centre - half)
    high = 1.0 if share == 1.0 else min(1.0, centre + half)
    return low, high


def smallest_share_above(baseline: float, n: int, confidence: float = 0.95) -> float:
    """The smallest share of n independent trials whose Wilson interval lies above `baseline`.

    Infinite if even n of n does not: the sample is too small. So it is an `AuditResult.detectable`.
    """
    z = NormalDist().inv_cdf(1.0 - check_confidence(confidence) / 2.0)
    for successes in range(n + 1):
        if _wilson_bounds(successes / n, n, z)[0] > baseline:
            return successes / n
    return math.inf


def clopper_pearson_bounds(
    successes: npt.ArrayLike, n: npt.ArrayLike, tail: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Exact one-sided bounds, each wrong with probability at most `tail`; vectorised.

    `successes` and `n` broadcast to the shape of both results.
    """
    from scipy.special import betaincinv

    count, total = np.broadcast_arrays(
        np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    )
    if (count < 0).any() or (count > total).any() or (total < 1).any():
        raise UsageError(
            "a proportion needs a count out of a total",
            expected="at least one trial and 0 <= successes <= trials",
            got=f"successes {count.min():g} to {count.max():g} of {total.min():g} or more",
            remedy="pass the number of successes first, the number of trials second",
        )
    # max(..., 1) keeps the beta parameters valid at the ends, which the last line overwrites.
    low = betaincinv(np.maximum(count, 1.0), total - count + 1.0, tail)
    high = betaincinv(count + 1.0, np.maximum(total - count, 1.0), 1.0 - tail)
    return np.where(count <= 0, 0.0, low), np.where(count >= total, 1.0, high)


def clopper_pearson(
    successes: int, n: int, confidence: float = 0.95, *, baseline: float | None = None
) -> Estimate:
    """Clopper and Pearson's exact interval: covers at least at its level for every n."""
    alpha = check_confidence(confidence)
    _check_counts(successes, n)
    low, high = clopper_pearson_bounds(successes, n, alpha / 2.0)
    return Estimate(
        value=successes / n,
        low=float(low),
        high=float(high),
        n=int(n),  # counts often arrive as numpy integers, which JSON refuses
        confidence=confidence,
        baseline=baseline,
        method="Clopper-Pearson",
    )


LEAST = 1e-300
"""The smallest p-value that is told from none."""


def p_beyond(e: Estimate, at: float) -> float:
    """One-sided p-value of an estimate if the true value is `at`, from its interval; never zero.

    Exact (binomial) where the interval is Clopper and Pearson's. Otherwise normal in the distance
    to the end on the side of `at`; at the end of the scale, where that end is error^(1/m) for m
    successes, chance^m. An interval without width says how sure it claims to be, no more. An exact
    value either equals `at` or refutes it.
    """
    if e.value == at:
        return 1.0
    above = e.value > at
    end = e.low if above else e.high
    if e.confidence >= 1:
        return LEAST if (end > at if above else end < at) else 1.0
    error = 1 - e.confidence if e.one_sided else (1 - e.confidence) / 2
    count = round(e.value * e.n)
    if e.n and _is_clopper_pearson(e, count) and 0 <= at <= 1:
        from scipy.special import bdtr, bdtrc

        beyond = bdtrc(count - 1, e.n, at) if above else bdtr(count, e.n, at)
        return max(float(beyond), LEAST)
    if end == e.value or not math.isfinite(end):
        return error
    if not above:  # the mirrored scale
        e = replace(e, value=1 - e.value, low=1 - e.high, high=1 - e.low)
        at, end = 1 - at, 1 - end
    if e.value >= 1.0 and 0 < end < 1 and 0 < at < 1:
        return max(float(at ** (math.log(error) / math.log(end))), LEAST)
    deviation = (e.value - end) / NormalDist().inv_cdf(1 - error)
    return max(NormalDist().cdf(-(e.value - at) / deviation), LEAST)


def _is_clopper_pearson(e: Estimate, count: int) -> bool:
    whole = 0 <= count <= e.n and math.isclose(count, e.value * e.n, abs_tol=1e-6)
    if e.one_sided or not whole:
        return False
    low, high = clopper_pearson_bounds(count, e.n, (1 - e.confidence) / 2)
    return math.isclose(float(low), e.low, abs_tol=1e-9) and math.isclose(
        float(high), e.high, abs_tol=1e-9
    )


def clustered_exact(
    successes: npt.ArrayLike,
    trials: npt.ArrayLike,
    confidence: float = 0.95,
    *,
    baseline: float | None = None,
) -> Estimate:
    """`clustered_share` with Clopper and Pearson's interval at the effective number of trials.

    That number and its successes are rounded towards the wider interval.
    """
    alpha = check_confidence(confidence)
    h, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    _check_counts(int(h.sum()), int(n.sum()))
    share, effect = float(h.sum() / n.sum()), design_effect(h, n)
    m = max(1, math.floor(n.sum() / effect + 1e-9))
    low, _ = clopper_pearson_bounds(math.floor(share * m + 1e-9), m, alpha / 2.0)
    _, high = clopper_pearson_bounds(math.ceil(share * m - 1e-9), m, alpha / 2.0)
    return Estimate(
        value=share,
        low=float(low),
        high=float(high),
        n=len(n),
        confidence=confidence,
        baseline=baseline,
        method=f"Clopper-Pearson over {len(n)} clusters (design effect {effect:.2g})",
    )


# --- means and resampling --------------------------------------------------------------------


def mean(
    values: npt.ArrayLike, confidence: float = 0.95, *, baseline: float | None = None
) -> Estimate | Underpowered:
    """Student's t interval of a mean over `values` (n,), for independent, roughly normal values."""
    from scipy.special import stdtrit

    alpha = check_confidence(confidence)
    x = _finite(values)
    if x.ndim != 1:
        raise UsageError(
            "a mean needs one value per unit",
            expected="shape (n,)",
            got=f"shape {x.shape}",
            remedy="average each unit's row first, or use `bootstrap` over rows",
        )
    if len(x) < 2:
        return Underpowered(what="an interval for a mean", have=len(x), needed=2)
    centre = float(x.mean())
    spread = float(x.std(ddof=1)) / math.sqrt(len(x))
    half = float(stdtrit(len(x) - 1, 1.0 - alpha / 2.0)) * spread
    return Estimate(
        value=centre,
        low=centre - half,
        high=centre + half,
        n=len(x),
        confidence=confidence,
        baseline=baseline,
        method="t",
    )


def _stack_mean(stack: Array) -> Array:
    return stack.mean(axis=tuple(range(1, stack.ndim)))


def bootstrap(
    units: npt.ArrayLike,
    statistic: Callable[[Array], Array] = _stack_mean,
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    interval: BootstrapInterval = "percentile",
    confidence: float = 0.95,
    baseline: float | None = None,
) -> Estimate | Underpowered:
    """Bootstrap interval of a statistic, resampling whole rows of `units` (n, ...).

    `statistic` maps a stack (r, n, ...) of resamples to (r,) values; the default is the mean of
    all entries. A row is an independent unit: put each cluster into one row.
    `interval="bca"` corrects bias and skew, at the cost of n more evaluations (jackknife).
    """
    alpha = check_confidence(confidence)
    require(BootstrapInterval, interval=interval)
    if resamples < 100:
        raise UsageError(
            "too few resamples for an interval",
            expected="at least 100",
            got=str(resamples),
            remedy="leave the default of 2000",
        )
    rows = _finite(units)
    n = rows.shape[0] if rows.ndim else 0
    if n < 2:
        return Underpowered(what="a bootstrap interval", have=n, needed=2)
    value = float(_call(statistic, rows[None])[0])
    block = max(1, _BLOCK // max(1, rows.size))
    draws = np.empty(resamples)
    for start in range(0, resamples, block):
        stop = min(resamples, start + block)
        picks = rng.integers(0, n, size=(stop - start, n))
        draws[start:stop] = _call(statistic, rows[picks])
    tails = np.array([alpha / 2.0, 1.0 - alpha / 2.0])
    if interval == "bca":
        tails = _bca_tails(value, draws, _jackknife(rows, statistic), tails)
    low, high = np.quantile(draws, tails)
    return Estimate(
        value=value,
        low=float(low),
        high=float(high),
        n=n,
        confidence=confidence,
        baseline=baseline,
        method=f"bootstrap ({'BCa' if interval == 'bca' else interval}, {resamples} resamples)",
    )


def cluster_mean(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    interval: BootstrapInterval = "percentile",
    confidence: float = 0.95,
    baseline: float | None = None,
    share: bool = False,
) -> Estimate | Underpowered:
    """Mean of `values` (N,) with an interval that resamples whole clusters of any size.

    `clusters` (N,) names the cluster of each value; the estimate's `n` counts clusters. A mean is a
    ratio of totals, so each cluster enters as its row (sum, count). With `share`, values lie
    between 0 and 1 and often all agree, which makes every resample equal: the interval is then the
    wider of the bootstrap and `clustered_share`.
    """
    x = _finite(values)
    names, where = np.unique(np.asarray(clusters), return_inverse=True)
    if x.ndim != 1 or where.shape != x.shape:
        raise UsageError(
            "values and clusters do not fit",
            expected=f"clusters of shape {x.shape[:1]}",
            got=f"values {x.shape}, clusters {where.shape}",
            remedy="pass two vectors of equal length",
        )
    totals = np.bincount(where, weights=x, minlength=len(names))
    counts = np.bincount(where, minlength=len(names)).astype(np.float64)
    found = bootstrap(
        np.stack([totals, counts], axis=1),
        lambda stack: stack[:, :, 0].sum(axis=1) / stack[:, :, 1].sum(axis=1),
        rng=rng,
        resamples=resamples,
        interval=interval,
        confidence=confidence,
        baseline=baseline,
    )
    if not share or isinstance(found, Underpowered):
        return found
    scored = clustered_share(totals, counts, confidence)
    assert found.low is not None
    assert found.high is not None
    assert scored.low is not None
    assert scored.high is not None
    return replace(
        found,
        low=min(found.low, scored.low),
        high=max(found.high, scored.high),
        method=f"the wider of {found.method} over clusters and {scored.method}",
    )


def _call(statistic: Callable[[Array], Array], stack: Array) -> npt.NDArray[np.float64]:
    out = np.asarray(statistic(stack), dtype=np.float64)
    if out.shape != stack.shape[:1]:
        raise UsageError(
            "a bootstrap statistic must give one number per resample",
            expected=f"shape {stack.shape[:1]} for a stack of shape {stack.shape}",
            got=f"shape {out.shape}",
            remedy="reduce over all axes but the first",
        )
    return out


def _jackknife(rows: Array, statistic: Callable[[Array], Array]) -> npt.NDArray[np.float64]:
    """The statistic without each row in turn: (n,)."""
    n = rows.shape[0]
    out = np.empty(n)
    block = max(1, _BLOCK // max(1, rows.size))
    everyone = np.arange(n - 1)
    for start in range(0, n, block):
        left_out = np.arange(start, min(n, start + block))
        # row numbers 0..n-1 without `left_out`: later ones shift by one
        picks = everyone[None, :] + (everyone[None, :] >= left_out[:, None])
        out[left_out] = _call(statistic, rows[picks])
    return out


def _bca_tails(value: float, draws: Array, jackknife: Array, tails: Array) -> Array:
    """Efron's bias-corrected and accelerated quantile levels."""
    from scipy.special import ndtr, ndtri

    below = (np.count_nonzero(draws < value) + np.count_nonzero(draws <= value)) / (2 * len(draws))
    pull = jackknife.mean() - jackknife
    size = float((pull**2).sum())
    if size == 0.0 or not 0.0 < below < 1.0:
        # A constant statistic needs no correction: the percentile interval is exact.
        return tails
    bias = float(ndtri(below))
    acceleration = float((pull**3).sum()) / (6.0 * size**1.5)
    shifted = bias + ndtri(tails)
    return np.asarray(ndtr(bias + shifted / (1.0 - acceleration * shifted)))


def _finite(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    require_finite(x, "values of an interval", remedy="leave them out and say how many")
    return x
