"""What a client's updates can tell of its class mix p_i: the published bound, a sound one, epsilon.

published   T / (2 sigma_i^2 |B|^2) + l_i                               [TopologyAwareDP] Eq. (2)
dataset     k_i T'_i / (2 sigma_i^2) + l_i,  k_i = 1 + (1 - q_i) / |B|, at most ln(n_i + 1)
record      (epsilon, delta) for one record, by the accountant

with T rounds, T'_i local steps over all of them, expected batch |B|, q_i = |B| / n_i, and noise
sigma_i C on the *mean* of a batch (the multiplier of DP-SGD libraries is z_i = sigma_i |B|).

Differs: the published bound takes the change that *one record* makes to the mean (C / |B|) for
what the *whole data set* may change, which is |B|^2 too small; it counts a round as one step; and
its proof drops the other clients' later updates, which depend on this client's earlier ones. It is
kept under its name and is no guarantee. Sound: the clipped mean lies within C of zero, so a step
tells at most KL(N(m, sigma^2 C^2) || N(0, sigma^2 C^2)) <= 1 / (2 sigma^2) nats; a Poisson batch
divided by its expected size has E |m|^2 <= C^2 (1 + (1 - q) / |B|). Conditioned on the whole
history and on the other clients' data every step adds at most that. p_i is a share of n_i records,
so no more than ln(n_i + 1) nats can be told at all: a bound above that is vacuous.

Both totals contain l_i, and hold only if l_i is at least I(p_i; D_-i), which no proxy is proved to
be. The mechanism term alone needs no leverage: it bounds I(p_i; updates | D_-i), what the updates
tell somebody who knows every other client's data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Accountant, Exposure, check_delta, epsilon
from fedaudit.arrays import Floats, Indices
from fedaudit.errors import UsageError

Watch = Callable[[int, int], None]
"""(done, total): called as epsilons are computed."""


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

    `steps` are the local steps T' of all rounds, one number or (n,). In library units, with
    z = sigma |B|, this is T' |B|^2 / (2 z^2).

    Formal guarantees: bounds I(p_i; all uploads | the other clients' data) if noise is independent
    over clients, rounds and steps, batches are Poisson samples divided by their expected size (or
    of fixed size), and clients keep no other state from round to round.
    """
    t = np.asarray(steps, dtype=np.float64)
    return np.asarray(t * poisson_factor(batch_size, sizes) / 2.0 / sigma_squared)


def most_there_is(sizes: npt.ArrayLike) -> Floats:
    """ln(n_i + 1) (n,): the entropy of a share of n_i records is never more, in nats."""
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
        """(n,) where the sound bound says no more than that p_i is a share; None without sizes."""
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
    """Every bound for clients with noise sigma_i C on the mean; one variance for all, or (n,)."""
    ell = np.asarray(leverage, dtype=np.float64)
    s2 = np.broadcast_to(np.asarray(sigma_squared, dtype=np.float64), ell.shape)
    steps = rounds * np.asarray(steps_per_round, dtype=np.float64)
    told = mechanism(s2, steps=steps, batch_size=batch_size, sizes=sizes)
    return Bounds(
        published=published(s2, ell, rounds=rounds, batch_size=batch_size),
        mechanism=told,
        dataset=told + ell,
        cap=None if sizes is None else most_there_is(sizes),
    )


# -- an observation window -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """Bounds (n,) against an observer who holds the key of one window of rounds.

    `rounds_seen`: rounds whose uploads are read one by one. `published`: Eq. (2) with those rounds
    alone. `dataset`: sound; the other rounds still reach the observer through the models, `models`
    of its nats. `cap`: ln(n_i + 1) or None.
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
    """Bounds where keys are changed after `window` rounds, T_max  [TopologyAwareDP] Section V-A.

    For an observer of the wire who gets the key of one window, never for the server, which reads
    all rounds.

    Differs: the paper counts the window's rounds alone. But the model that a window begins with
    was made from all rounds before, so the sound bound counts those too, through the average:
    a round of s steps then tells at most s^2 p_i^2 k_i / (2 sum_{j != i} p_j^2 sigma_j^2) nats
    (own noise is added to the sum where s = 1), and never more than in plain sight. This needs
    `model_weights` p (n,) of an average over all clients, plain SGD and one learning rate; without
    them nothing is gained over no window at all.
    """
    if window < 1:
        raise UsageError(
            "the observation window is too short",
            expected="at least 1 round",
            got=str(window),
            remedy="say after how many rounds keys are changed",
        )
    ell = np.asarray(leverage, dtype=np.float64)
    s2 = np.broadcast_to(np.asarray(sigma_squared, dtype=np.float64), ell.shape)
    s = np.broadcast_to(np.asarray(steps_per_round, dtype=np.float64), ell.shape)
    seen = min(window, rounds)
    plain = mechanism(s2, steps=s, batch_size=batch_size, sizes=sizes)  # one round, in plain sight
    averaged = plain
    if model_weights is not None:
        p2 = np.asarray(model_weights, dtype=np.float64) ** 2
        noise = p2 * s2
        total = float(noise.sum())
        # rounding must not invent noise where one client has nearly all of it
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
        cap=None if sizes is None else most_there_is(sizes),
    )


# -- record level ----------------------------------------------------------------------------------

LEAST_MULTIPLIER = 0.05
"""Below it the accountants' grids are too coarse, and epsilon is taken without amplification."""

_MOST_CELLS = 5e6  # of a privacy loss distribution that is still worth its memory


@dataclass(frozen=True)
class Epsilons:
    """Epsilon of every client (n,). `rounded`: the largest factor by which sampling rates were
    raised and multipliers lowered to group like clients (1: every client by itself)."""

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
    most: int = 256,
    watch: Watch | None = None,
) -> Epsilons:
    """Epsilon at `delta` of one record of each client, all steps of all rounds.

    Poisson batches with q_i = |B| / n_i. Equal schedules are computed once. More than `most`
    different ones are grouped, like with like, and a group gets the epsilon of its largest rate,
    most steps and least noise: never too small.
    """
    check_delta(delta)
    n = np.asarray(sizes, dtype=np.float64)
    z = np.broadcast_to(np.asarray(noise_multiplier, dtype=np.float64), n.shape)
    s = np.broadcast_to(np.asarray(steps_per_round, dtype=np.int64), n.shape)
    q = np.minimum(batch_size / n, 1.0)
    table, which, factor = _grouped(np.stack([q, z, s.astype(np.float64)], axis=1), most)
    found = np.empty(len(table))
    for i, (rate, noise, steps) in enumerate(table):
        schedule = Exposure(sampling_rate=float(rate), steps=math.ceil(steps), rounds=rounds)
        found[i] = _epsilon(schedule, float(noise), delta, accountant)
        if watch is not None:
            watch(i + 1, len(table))
    return Epsilons(found[which], factor)


def _grouped(rows: Floats, most: int) -> tuple[Floats, Indices, float]:
    """Distinct (q, z, steps), the number of each row's, and the largest factor of a rounding."""
    if len(rows) <= 100_000:
        table, which = np.unique(rows, axis=0, return_inverse=True)
        if len(table) <= most:
            return table, which.reshape(-1).astype(np.int64), 1.0
    logs = np.log(rows)
    logs -= logs.min(axis=0)
    # cells of equal ratio; rates and multipliers mostly move together, along a line of cells
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
    # the worst of each group's own members: nearer than the edge of its cell
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
        # sampling only ever lowers epsilon, so leaving it out is on the careful side
        whole = Exposure(sampling_rate=1.0, steps=schedule.steps, rounds=schedule.rounds)
        return epsilon(whole, z, delta, by="rdp")
    cells = schedule.total * schedule.sampling_rate / (2 * z * z) / (1e-3 if z >= 0.3 else 0.05)
    return epsilon(schedule, z, delta, by=by if cells <= _MOST_CELLS else "rdp")
