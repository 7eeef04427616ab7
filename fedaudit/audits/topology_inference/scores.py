"""Accuracy of the guesses: losses, lifts, ranks, and what each channel adds.

    calibration loss   L(g, p) = mean_i (g_i - p_i)^2
    lift               L(mean, p) - L(g, p): above 0 if a channel beats one guess for all
    top-k recovery     |top-k(g) and top-k(p)| / k, expected over random orders of ties
    AUROC              of g for y_i = [p_i > tau]; from 20 clients on, and only if both y occur

[TopologyAwareDP] Table I. Lift is stated against the true mean of the federation (published, but
unknown to an adversary) and against the mean of the shadows (known to it).

One run gives n clients: its intervals resample clients, and hold for clients of this run only.
The verdict on one run is a permutation test over all channels (`channel_test`), exact for any
number of clients; a bootstrap of few clients is not. It also limits the low end of a lift: it is
above 0 only if guesses fit p better than they fit permuted p. With n clients no p-value lies below
1 / n!: four clients can never show anything at 2.5 %. Shadow federations can (`over_shadows`):
there are as many as are trained.

Shapes: `p` and guesses (n,); a bootstrap's stack (r, n, columns).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import intervals, roc
from fedaudit.stats.max_t import MaxT, from_values

FEWEST_FOR_AUROC = 20
RESAMPLES = 2000
EXACT_CLIENTS = 7
"""Up to this many clients, all orders are counted."""

CONTRIBUTIONS = {
    "topology_contribution": ("A1", "A2-full"),
    "structure_part": ("A2-org", "A2-full"),
    "organisation_part": ("A2-topo", "A2-full"),
}
"""L(first) - L(second): the loss that more knowledge saves. [TopologyAwareDP] Section III-D"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run: true p, guesses by channel, and the mean of the shadows."""

    p: Floats
    guesses: Mapping[str, Floats]
    shadow_mean: float


def loss(guess: npt.ArrayLike, p: npt.ArrayLike) -> float:
    """Mean squared error."""
    wrong = np.asarray(guess, dtype=np.float64) - np.asarray(p, dtype=np.float64)
    return float(np.mean(wrong**2))


def lift(guess: npt.ArrayLike, p: npt.ArrayLike, mean: float | None = None) -> float:
    """L(mean, p) - L(guess, p); `mean` is that of `p` unless given."""
    truth = np.asarray(p, dtype=np.float64)
    return loss(float(truth.mean()) if mean is None else mean, truth) - loss(guess, truth)


def in_top(values: npt.ArrayLike, k: int) -> Floats:
    """Chance of every entry to be among the k largest of its row, ties in random order.

    (..., n) to (..., n); rows sum to k.
    """
    x = np.asarray(values, dtype=np.float64)
    edge = -np.partition(-x, k - 1, axis=-1)[..., k - 1 : k]
    above, level = x > edge, x == edge
    left = k - above.sum(axis=-1, keepdims=True)
    return np.asarray(above + level * (left / level.sum(axis=-1, keepdims=True)))


def top_recovery(guess: npt.ArrayLike, p: npt.ArrayLike, k: int) -> Any:
    """Share of the true top k among the guessed top k, expected over orders of ties; (..., n)."""
    return (in_top(guess, k) * in_top(p, k)).sum(axis=-1) / k


# -- one run ---------------------------------------------------------------------------------------


def _stacked_lift(stack: Floats) -> Floats:
    p, guess = stack[:, :, 0], stack[:, :, 1]
    return np.asarray(p.var(axis=1) - ((guess - p) ** 2).mean(axis=1))


def _stacked_explained(stack: Floats) -> Floats:
    variance = stack[:, :, 0].var(axis=1)
    gained = _stacked_lift(stack)
    # a resample of equal clients explains nothing
    return np.divide(gained, variance, out=np.zeros_like(gained), where=variance > 0)


def lift_over_clients(
    guess: Floats, p: Floats, *, rng: np.random.Generator, confidence: float = 0.95
) -> Estimate:
    """Lift against the true mean, resampling clients; a permutation test limits its low end."""
    return _with_permutation_test(_stacked_lift, 1.0, guess, p, rng, confidence)


def explained_over_clients(
    guess: Floats, p: Floats, *, rng: np.random.Generator, confidence: float = 0.95
) -> Estimate:
    """Lift / Var(p): the share of the variance between clients that is explained; at most 1."""
    return _with_permutation_test(_stacked_explained, float(p.var()), guess, p, rng, confidence)


def _with_permutation_test(
    statistic: Callable[[Floats], Floats],
    unit: float,
    guess: Floats,
    p: Floats,
    rng: np.random.Generator,
    confidence: float,
) -> Estimate:
    found = intervals.bootstrap(
        np.stack([p, guess], axis=1),
        statistic,
        rng=rng,
        resamples=RESAMPLES,
        confidence=confidence,
        baseline=0.0,
    )
    assert isinstance(found, Estimate)
    null = permuted_lifts(guess, p, rng) / unit
    # the observed order counts as one more permutation
    rank = int(np.ceil((1 - (1 - confidence) / 2) * (len(null) + 1)))
    edge = float(np.sort(null)[rank - 1]) if rank <= len(null) else np.inf
    above = found.value - edge
    if not above > 1e-12:  # equal but for the last bits, or no order is rare enough
        above = 0.0
    low = min(found.low, above, found.value)
    return replace(
        found,
        low=low,
        high=max(found.high, found.value),
        method="bootstrap over clients, permutation test",
    )


def permuted_lifts(guess: Floats, p: Floats, rng: np.random.Generator, count: int = 1999) -> Floats:
    """Lifts of the same guesses with `p` permuted across clients, (count,)."""
    permuted = rng.permuted(np.broadcast_to(p - p.mean(), (count, len(p))), axis=1)
    # L(mean) - L(g) = 2 cov(g, p) - mean (g - mean)^2, and only the first term changes
    fixed = float(np.mean((guess - p.mean()) ** 2))
    return np.asarray(2.0 * (permuted @ (guess - guess.mean())) / len(p) - fixed)


def channel_test(
    guesses: Mapping[str, Floats], p: Floats, rng: np.random.Generator, count: int = 9999
) -> MaxT:
    """Max-T test over channels: p belongs to the clients in random order.

    One reading per channel, the part of its lift that the order changes, 2 cov(g, p). All orders
    of up to `EXACT_CLIENTS` clients, else `count` random ones and the true one.
    """
    g = np.stack([own - own.mean() for own in guesses.values()], axis=1)
    centred = p - p.mean()
    exact = len(p) <= EXACT_CLIENTS
    if exact:
        orders = np.array(list(itertools.permutations(range(len(p)))))
        permuted = centred[orders]
    else:
        permuted = rng.permuted(np.broadcast_to(centred, (count, len(p))), axis=1)
        permuted = np.concatenate([centred[None], permuted])
    read = 2.0 / len(p) * g
    return from_values(centred @ read, permuted @ read, exact=exact)


def fewest_clients(level: float) -> int:
    """The fewest clients whose orders can give a p-value of at most `level`."""
    return next(n for n in itertools.count(1) if math.factorial(n) * level >= 1)


def mean_over_clients(
    values: Floats, *, rng: np.random.Generator, confidence: float, baseline: float | None
) -> Estimate:
    """Mean of one number per client, resampling clients."""
    found = intervals.bootstrap(
        values, rng=rng, resamples=RESAMPLES, confidence=confidence, baseline=baseline
    )
    assert isinstance(found, Estimate)
    return replace(found, method="bootstrap over clients")


def top_over_clients(
    guess: Floats, p: Floats, k: int, *, rng: np.random.Generator, confidence: float
) -> Estimate:
    """Top-k recovery, resampling clients; chance is k / n."""
    found = intervals.bootstrap(
        np.stack([p, guess], axis=1),
        lambda stack: np.asarray(top_recovery(stack[:, :, 1], stack[:, :, 0], k)),
        rng=rng,
        resamples=RESAMPLES,
        confidence=confidence,
        baseline=k / len(p),
    )
    assert isinstance(found, Estimate)
    return replace(
        found,
        # a resample repeats clients, whose ranks tie: the value may lie outside
        low=min(found.low, found.value),
        high=max(found.high, found.value),
        method="bootstrap over clients",
    )


def auroc(
    guess: Floats, p: Floats, threshold: float, confidence: float = 0.95
) -> Estimate | Underpowered:
    """How well guesses rank clients with p above `threshold` before the others."""
    if len(p) < FEWEST_FOR_AUROC:
        return Underpowered(what="AUROC (clients)", have=len(p), needed=FEWEST_FOR_AUROC)
    above = p > threshold
    if above.all() or not above.any():
        which = "above" if above.all() else "at or below"
        what = f"AUROC (not applicable: all clients lie {which} {threshold:.3g})"
        return Underpowered(what=what, have=0, needed=2)
    return roc.auc(guess, above, confidence=confidence)


# -- several federations ---------------------------------------------------------------------------


def lifts_by_federation(guess: Floats, p: Floats) -> Floats:
    """Lift of every federation against its own mean, (F, n) and (F, n) to (F,)."""
    return np.asarray(p.var(axis=1) - ((guess - p) ** 2).mean(axis=1))


def not_above_zero(values: Floats) -> float:
    """One-sided p-value of "the mean is not above 0" over federations (t test), (F,)."""
    from scipy.special import stdtr

    spread = float(values.std(ddof=1))
    if spread == 0.0:
        return 1.0 if values.mean() <= 0 else float(np.finfo(np.float64).tiny)
    t = float(values.mean()) / (spread / np.sqrt(len(values)))
    return max(float(stdtr(len(values) - 1, -t)), float(np.finfo(np.float64).tiny))


def over_federations(
    values: Floats, *, rng: np.random.Generator, confidence: float, what: str = "shadows"
) -> Estimate:
    """Mean of one number per federation, resampling federations."""
    found = intervals.bootstrap(
        values, rng=rng, resamples=RESAMPLES, confidence=confidence, baseline=0.0
    )
    assert isinstance(found, Estimate)
    return replace(found, method=f"bootstrap over {what}")


def over_shadows(
    values: Floats, channels: int, *, rng: np.random.Generator, confidence: float
) -> Estimate:
    """Mean of one share per shadow federation, of the best of `channels`.

    The interval holds for the choice (Bonferroni) and for few federations (not narrower than
    Student's).
    """
    each = 1.0 - (1.0 - confidence) / channels
    found = over_federations(values, rng=rng, confidence=each)
    student = intervals.mean(values, each)
    assert isinstance(student, Estimate)
    return replace(
        found,
        low=min(found.low, student.low),
        high=min(max(found.high, student.high), 1.0),  # nothing explains more than all
        confidence=confidence,
        method="bootstrap over shadows, not narrower than t, Bonferroni over channels",
    )
