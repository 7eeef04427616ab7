"""Bounds on what a client's updates reveal about its class mix p_i, and epsilons per record.

published   T / (2 sigma_i^2 |B|^2) + l_i                               [TopologyAwareDP] Eq. (2)
dataset     k_i T'_i / (2 sigma_i^2) + l_i,  k_i = 1 + (1 - q_i) / |B|, at most ln(n_i + 1)
record      (epsilon, delta) for one record, by the accountant

with T rounds, T'_i local steps over all of them, expected batch |B|, q_i = |B| / n_i, and noise
sigma_i C on the *mean* of a batch, g = (1/|B|) sum clip(grad, C) + N(0, sigma_i^2 C^2 I)
[TopologyAwareDP] Eq. (1) (the multiplier of DP-SGD libraries is z_i = sigma_i |B|).

Differs: the published bound is not a guarantee and is kept under its name. It uses the change that
*one record* makes to the mean (C / |B|) in place of the change by the *whole data set*, which is
|B|^2 too small. It counts a round as one step. Its proof drops the other clients' later updates,
which depend on this client's earlier ones.

The sound bound: the clipped mean lies within C of zero, so a step reveals at most
KL(N(m, sigma^2 C^2) || N(0, sigma^2 C^2)) <= 1 / (2 sigma^2) nats; a Poisson batch divided by its
expected size has E |m|^2 <= C^2 (1 + (1 - q) / |B|). Conditioned on the whole history and on the
other clients' data, every step adds at most that. p_i is a share of n_i records, so its entropy is
at most ln(n_i + 1) nats: a larger bound is vacuous.

Both totals contain l_i, and hold only if l_i is at least I(p_i; D_-i), which is not proved for any
proxy. The mechanism term alone needs no leverage: it bounds I(p_i; updates | D_-i), the information
that updates give to an observer who knows every other client's data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Accountant, Exposure, check_delta, epsilon
from fedaudit.arrays import Floats, Indices
from fedaudit.settings import Count, require

Watch = Callable[[int, int], None]
"""Progress callback (done, total) of the epsilons."""


def published(sigma_squared: Floats, leverage: Floats, *, rounds: int, batch_size: int) -> Floats:
    """T / (2 sigma^2 |B|^2) + l (n,) in nats  [TopologyAwareDP] Eq. (2). Not a guarantee."""
    return rounds / (2.0 * batch_size**2) / sigma_squared + leverage


def poisson_factor(batch_size: int, sizes: npt.ArrayLike | None = None) -> Floats | float:
    """1 + (1 - q) / |B| (n,) >= E |mean|^2 / C^2 of Poisson batches; 1 + 1 / |B| without sizes."""
    if sizes is None:
        return 1.0 + 1.0 / batch_size
    q = np.minimum(batch_size / np.asarray(sizes, dtype=np.float64), 1.0)
    return np.asarray(1.0 + (1.0 - q) / batch_size)


def mechanism(
    sigma_squared: Floats,
    *,
    steps: npt.ArrayLike,
    batch_size: int,
    sizes: npt.ArrayLike | None = None,
) -> Floats:
    """The sound dataset-level term: T' (1 + (1 - q) / |B|) / (2 sigma^2) (n,) in nats.

    `steps`: local steps T' of all rounds, one number or (n,). In library units, with z = sigma |B|,
    this is T' |B|^2 / (2 z^2).

    Formal guarantees: bounds I(p_i; all uploads | the other clients' data) if noise is independent
    over clients, rounds and steps, batches are Poisson samples divided by their expected size (or
    of fixed size), and clients keep no other state from round to round.
    """
    t = np.asarray(steps, dtype=np.float64)
    return np.asarray(t * poisson_factor(batch_size, sizes) / 2.0 / sigma_squared)


def entropy_cap(sizes: npt.ArrayLike) -> Floats:
    """ln(n_i + 1) (n,): the largest entropy of a share of n_i records, in nats."""
    return np.log1p(np.asarray(sizes, dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """All bounds of every client, each (n,), in nats.

    `dataset` is the sound total before its cap; `cap` is ln(n_i + 1), None without sizes.
    """

    published: Floats
    mechanism: Floats
    dataset: Floats
    cap: Floats | None

    @property
    def vacuous(self) -> npt.NDArray[np.bool_] | None:
        """(n,) whether the sound bound reaches the cap and bounds nothing; None without sizes."""
        return None if self.cap is None else self.dataset >= self.cap


def bounds(
    sigma_squared: npt.ArrayLike,
    leverage: npt.ArrayLike,
    *,
    rounds: int,
    batch_size: int,
    steps_per_round: npt.ArrayLike = 1,
    sizes: npt.ArrayLike | None = None,
) -> Bounds:
    """All bounds for noise sigma_i C on the mean; `sigma_squared`: one for all clients, or (n,)."""
    ell = np.asarray(leverage, dtype=np.float64)
    s2 = np.broadcast_to(np.asarray(sigma_squared, dtype=np.float64), ell.shape)
    steps = rounds * np.asarray(steps_per_round, dtype=np.float64)
    from_updates = mechanism(s2, steps=steps, batch_size=batch_size, sizes=sizes)
    return Bounds(
        published=published(s2, ell, rounds=rounds, batch_size=batch_size),
        mechanism=from_updates,
        dataset=from_updates + ell,
        cap=None if sizes is None else entropy_cap(sizes),
    )


# -- an observation window -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """Bounds (n,) against an observer who holds the key of one window of rounds.

    `rounds_seen`: rounds whose single uploads the observer reads. `published`: Eq. (2) with those
    rounds alone. `dataset`: the sound bound; `models` of its nats come from the other rounds,
    through the models. `cap`: ln(n_i + 1) or None.
    """

    rounds_seen: int
    published: Floats
    dataset: Floats
    models: Floats
    cap: Floats | None


def windowed(
    sigma_squared: npt.ArrayLike,
    leverage: npt.ArrayLike,
    *,
    rounds: int,
    window: int,
    batch_size: int,
    steps_per_round: npt.ArrayLike = 1,
    sizes: npt.ArrayLike | None = None,
    model_weights: npt.ArrayLike | None = None,
) -> Windowed:
    """Bounds if keys change after `window` rounds, T_max  [TopologyAwareDP] Section V-A.

    For an observer of the wire who gets the key of one window, never for the server, which reads
    all rounds.

    Differs: the paper counts the window's rounds alone. But the first model of a window depends on
    all earlier rounds, so the sound bound counts those too, through the average: a round of s steps
    reveals at most s^2 p_i^2 k_i / (2 sum_{j != i} p_j^2 sigma_j^2) nats (the sum includes the
    client's own noise if s = 1), and never more than a single upload. This needs `model_weights` p
    (n,) of an average over all clients, plain SGD and one learning rate; without them a window
    gains nothing.
    """
    require(Count, remedy="give the number of rounds between key changes", window=window)
    ell = np.asarray(leverage, dtype=np.float64)
    s2 = np.broadcast_to(np.asarray(sigma_squared, dtype=np.float64), ell.shape)
    s = np.broadcast_to(np.asarray(steps_per_round, dtype=np.float64), ell.shape)
    seen = min(window, rounds)
    plain = mechanism(
        s2, steps=s, batch_size=batch_size, sizes=sizes
    )  # one round of single uploads
    averaged = plain
    if model_weights is not None:
        p2 = np.asarray(model_weights, dtype=np.float64) ** 2
        noise = p2 * s2
        total = float(noise.sum())
        # rounding must not create noise if one client has nearly all of it
        rest = np.maximum(total * (1 - 1e-13) - noise, 0.0)
        with np.errstate(divide="ignore"):
            mixed = s**2 * p2 * poisson_factor(batch_size, sizes) / 2.0
            mixed = mixed / np.where(s == 1, total, rest)
        averaged = np.minimum(plain, mixed)
    models = (rounds - seen) * averaged
    return Windowed(
        rounds_seen=seen,
        published=published(s2, ell, rounds=seen, batch_size=batch_size),
        dataset=seen * plain + models + ell,
        models=models,
        cap=None if sizes is None else entropy_cap(sizes),
    )


# -- record level ----------------------------------------------------------------------------------

LEAST_MULTIPLIER = 0.05
"""Below this multiplier the accountants' grids are too coarse; amplification is then ignored."""

_MOST_CELLS = 5e6  # largest privacy loss distribution, in cells


@dataclass(frozen=True)
class Epsilons:
    """Epsilon of every client (n,). `rounded`: the largest factor by which grouping raised sampling
    rates or steps, or lowered multipliers (1: no grouping)."""

    values: Floats
    rounded: float


def record_epsilons(
    noise_multiplier: npt.ArrayLike,
    *,
    sizes: npt.ArrayLike,
    batch_size: int,
    rounds: int,
    delta: float,
    steps_per_round: npt.ArrayLike = 1,
    accountant: Accountant = "pld",
    most_groups: int = 256,
    watch: Watch | None = None,
) -> Epsilons:
    """Epsilon at `delta` of one record of each client, over all steps of all rounds.

    Poisson batches with q_i = |B| / n_i. Equal schedules are computed once. More than `most_groups`
    different schedules are grouped by similarity; a group gets the epsilon of its largest rate,
    most steps and least noise, which is never too small.
    """
    check_delta(delta)
    n = np.asarray(sizes, dtype=np.float64)
    z = np.broadcast_to(np.asarray(noise_multiplier, dtype=np.float64), n.shape)
    s = np.broadcast_to(np.asarray(steps_per_round, dtype=np.int64), n.shape)
    q = np.minimum(batch_size / n, 1.0)
    table, which, factor = _grouped(np.stack([q, z, s.astype(np.float64)], axis=1), most_groups)
    found = np.empty(len(table))
    for i, (rate, noise, steps) in enumerate(table):
        schedule = Exposure(sampling_rate=float(rate), steps=math.ceil(steps), rounds=rounds)
        found[i] = _epsilon(schedule, float(noise), delta, accountant)
        if watch is not None:
            watch(i + 1, len(table))
    return Epsilons(found[which], factor)


def _grouped(rows: Floats, most: int) -> tuple[Floats, Indices, float]:
    """Distinct (q, z, steps), the index of each row's, and the largest rounding factor."""
    if len(rows) <= 100_000:
        table, which = np.unique(rows, axis=0, return_inverse=True)
        if len(table) <= most:
            return table, which.reshape(-1).astype(np.int64), 1.0
    logs = np.log(rows)
    logs -= logs.min(axis=0)
    # cells of equal ratio; rates and multipliers are correlated, so few cells are occupied
    width = max(1e-3, float(logs.max()) / most)
    while True:
        key = np.zeros(len(rows), dtype=np.int64)
        for column in logs.T:
            cell = (column / width).astype(np.int64)
            key = key * (int(cell.max()) + 1) + cell
        _, which = np.unique(key, return_inverse=True)
        which = which.reshape(-1).astype(np.int64)
        groups = int(which.max()) + 1
        if groups <= most:
            break
        width *= 1.2
    # the worst values of each group's members: tighter than the edge of its cell
    table = np.empty((groups, 3))
    table[:, 0] = table[:, 2] = -math.inf
    table[:, 1] = math.inf
    np.maximum.at(table[:, 0], which, rows[:, 0])
    np.minimum.at(table[:, 1], which, rows[:, 1])
    np.maximum.at(table[:, 2], which, rows[:, 2])
    factor = max(
        float((table[which, 0] / rows[:, 0]).max()),
        float((rows[:, 1] / table[which, 1]).max()),
        float((table[which, 2] / rows[:, 2]).max()),
    )
    return table, which, factor


def _epsilon(schedule: Exposure, z: float, delta: float, by: Accountant) -> float:
    if z < LEAST_MULTIPLIER:
        # sampling lowers epsilon, so ignoring it is conservative
        whole = Exposure(sampling_rate=1.0, steps=schedule.steps, rounds=schedule.rounds)
        return epsilon(whole, z, delta, by="rdp")
    cells = schedule.total * schedule.sampling_rate / (2 * z * z) / (1e-3 if z >= 0.3 else 0.05)
    return epsilon(schedule, z, delta, by=by if cells <= _MOST_CELLS else "rdp")
