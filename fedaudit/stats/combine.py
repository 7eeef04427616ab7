"""Combine several tests: Stouffer and Fisher; correct for their number: Holm.

Combined tests must be independent; Holm's correction holds under any dependence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Combined:
    """`tests` independent one-sided tests as one: its statistic, p-value and z-score.

    A p-value smaller than the smallest float reads as that float, so `z_score` stays finite.
    """

    statistic: float
    p_value: float
    z_score: float
    tests: int


def stouffer(z_scores: npt.ArrayLike) -> Floats:
    """sum(z) / sqrt(T) over the first axis of `z_scores` (T, ...) -> (...).  [FedAttr] Eq. (8)

    Standard normal under the null, if every z-score is. NaN marks a test that was not made; where
    none was made the result is NaN.
    """
    z = np.asarray(z_scores, dtype=np.float64)
    tests = (~np.isnan(z)).sum(axis=0)
    total = np.nansum(z, axis=0)
    return np.divide(total, np.sqrt(tests), out=np.full(total.shape, np.nan), where=tests > 0)


def fisher(p_values: npt.ArrayLike) -> Combined:
    """-2 sum(ln p) over `p_values` (k,), chi-squared with 2k degrees of freedom under the null."""
    from scipy.special import chdtrc, ndtri

    p = _p_values(p_values)
    statistic = float(-2.0 * np.log(p).sum())
    combined = max(float(chdtrc(2 * len(p), statistic)), float(np.finfo(np.float64).tiny))
    # ndtri(p) = -z stays exact for small p; ndtri(1 - p) would round to infinity
    z = float("-inf") if combined >= 1.0 else -float(ndtri(combined))
    return Combined(statistic=statistic, p_value=combined, z_score=z, tests=len(p))


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's adjusted p-values (k,), in the order given: reject where <= the error rate.

    Controls the chance of any false rejection, whatever the dependence between the tests.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def _vector(what: str, values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or not np.isfinite(x).all():
        raise UsageError(
            f"{what} must form a vector",
            expected="shape (k,), k >= 1, finite",
            got=f"shape {x.shape}",
            remedy="leave out tests that gave no number",
        )
    return x


def _p_values(values: npt.ArrayLike) -> Floats:
    p = _vector("p-values", values)
    if (p <= 0).any() or (p > 1).any():
        raise UsageError(
            "a p-value is out of range",
            expected="0 < p <= 1",
            got=f"values from {p.min():g} to {p.max():g}",
            remedy="count permutations as (b + 1) / (m + 1), which is never zero",
        )
    return p


def two_halves(readings: float, clients: float) -> tuple[float, float]:
    """Factors of the p-values of two halves of a family, by Holm's correction.

    The half with the smaller p-value counts twice. The other one counts once if the first is
    significant at any level at which the other could be: it has the larger p-value, so its adjusted
    one must not be below the first's.
    """
    if readings <= clients:
        return 2.0, max(1.0, 2.0 * readings / clients) if clients > 0 else 2.0
    return max(1.0, 2.0 * clients / readings), 2.0
