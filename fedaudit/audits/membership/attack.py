"""LiRA and RMIA on arrays: scores of a target and of shadows in, one statistic per record out."""

from __future__ import annotations

import numpy as np

from fedaudit.arrays import Bools, Floats

FEWEST_OF_ONE_SIDE = 2
"""Shadows with (and without) a record that a mean and a spread need."""
OWN_SPREAD_FROM = 32
"""Shadows of one side from which on every record gets its own spread."""
_SMALLEST = 1e-6  # a spread below this is rounding


def lira(target: Floats, shadows: Floats, inside: Bools | None) -> Floats:
    """Evidence for membership (...,) of records. [LiRA] Algorithm 1

    `target` (...,) and `shadows` (S, ...): log-odds of each record; NaN where a model is missing.
    `inside` (S, ...): whether a shadow trained on the record; None: none did (offline), then the
    evidence is the number of spreads above the mean. NaN where too few shadows have a score.
    """
    out_mean, out_spread = _normal(shadows, np.isfinite(shadows) & ~_or_false(inside, shadows))
    if inside is None:
        return np.asarray((target - out_mean) / out_spread)
    in_mean, in_spread = _normal(shadows, np.isfinite(shadows) & inside)
    return _log_density(target, in_mean, in_spread) - _log_density(target, out_mean, out_spread)


def _or_false(inside: Bools | None, like: Floats) -> Bools:
    return np.zeros(like.shape, dtype=bool) if inside is None else inside


def _normal(values: Floats, use: Bools) -> tuple[Floats, Floats]:
    """Mean and spread (...,) of the used values (S, ...); one spread for all records if few."""
    count = use.sum(axis=0)
    enough = count >= FEWEST_OF_ONE_SIDE
    mean = np.where(use, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(use, np.square(values - mean), 0.0).sum(axis=0)
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    if enough.any() and count[enough].min() < OWN_SPREAD_FROM:
        pooled = np.sqrt(squares[enough].sum() / (count[enough] - 1).sum())
        spread = np.full(spread.shape, pooled)
    return np.where(enough, mean, np.nan), np.where(enough, np.maximum(spread, _SMALLEST), np.nan)


def _log_density(x: Floats, mean: Floats, spread: Floats) -> Floats:
    return np.asarray(-0.5 * np.square((x - mean) / spread) - np.log(spread))


def rmia(
    target: Floats,
    shadows: Floats,
    population: Floats,
    population_shadows: Floats,
    *,
    offline_a: float | None = None,
) -> Floats:
    """Share (...,) of population records z with LR(x, z) >= 1 (RMIA).

    LR(x, z) = (Pr(x | model) / Pr(x)) / (Pr(z | model) / Pr(z)), Pr(.) the mean over shadows.
    `target` (...,) and `shadows` (S, ...): log-probabilities of x; `population` (Z,) and
    `population_shadows` (S, Z) those of z. `offline_a`: no shadow trained on x, whose mean with
    models that did is taken as ((1 + a) mean + 1 - a) / 2.
    """
    prior = _log_mean(shadows)
    if offline_a is not None:
        prior = np.logaddexp(np.log1p(offline_a) + prior, np.log1p(-offline_a)) - np.log(2.0)
    ratio = target - prior
    others = np.sort(population - _log_mean(population_shadows))
    return np.searchsorted(others, ratio, side="right") / len(others)


def _log_mean(values: Floats) -> Floats:
    """log of the mean of exp(values) over the first axis."""
    return np.asarray(np.logaddexp.reduce(values, axis=0) - np.log(len(values)))


def summed(evidence: Floats) -> Floats:
    """Sum (P, n) of evidence (T, P, n) over rounds; NaN for a record without any."""
    found = np.isfinite(evidence)
    total = np.where(found, evidence, 0.0).sum(axis=0)
    return np.where(found.any(axis=0), total, np.nan)
