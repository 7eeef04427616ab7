"""Noise for each client under one budget: the largest bound as small as it can be.

    min over sigma of max_i [a_i / sigma_i^2 + l_i]   with   sum_i w_i sigma_i^2 = U
                                                       [TopologyAwareDP] Eq. (3), Theorem V.3

a_i = T / (2 |B|^2) for the published bound, T'_i (1 + (1 - q_i) / |B|) / 2 for the sound one;
w_i = 1 as published, or p_i^2, which makes the budget the noise in the averaged model.

Differs: sum sigma_i^2 is no measure of utility once the average is weighted, and whoever has little
leverage ends with *less* noise than uniform: `Allocation.worse` says who pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Accountant, Exposure, Guarantee, check_delta
from fedaudit.arrays import Floats, Indices
from fedaudit.errors import DataError, UsageError, nearest
from fedaudit.protections.noise_allocation import bounds as bounded
from fedaudit.protections.noise_allocation import leverage as leverages
from fedaudit.protections.noise_allocation import solver
from fedaudit.protections.noise_allocation.bounds import Bounds, Watch, Windowed

Objective = Literal["published", "dataset"]

LOW_MULTIPLIER = 0.3
"""Below it noise on the sum hardly covers one record, and epsilons leave any useful range."""

SCALES = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Noise for n clients, and the bounds with it and with equal noise for all.

    `sigma_squared` (n,): variance on the *mean* gradient in units of C^2. `noise_multiplier` (n,):
    sigma |B|, what `dp_sgd` and DP-SGD libraries take (noise on the *sum*). `worst_case` is K*,
    `gap` is `uniform_worst_case` - K*, both of the bound named by `objective`, in nats.
    `epsilon`, `uniform_epsilon` (n,): per record, given sizes and delta.
    `residual`: |sum w sigma^2 - U| / U.
    """

    leverage: Floats
    sigma_squared: Floats
    worst_case: float
    uniform_worst_case: float
    gap: float
    noise_multiplier: Floats
    uniform_sigma_squared: float
    uniform_noise_multiplier: float
    objective: Objective
    budget: float
    budget_weights: Floats | None
    rounds: int
    batch_size: int
    steps_per_round: Indices
    sizes: Indices | None
    delta: float | None
    accountant: Accountant
    epsilon: Floats | None
    uniform_epsilon: Floats | None
    epsilon_rounded: float
    residual: float
    passes: int

    @property
    def n(self) -> int:
        return int(self.leverage.size)

    @property
    def worse(self) -> Indices:
        """Numbers of the clients with less noise than uniform, hence a larger epsilon."""
        return np.flatnonzero(self.noise_multiplier < self.uniform_noise_multiplier)

    @property
    def low(self) -> Indices:
        """Numbers of the clients whose multiplier lies below `LOW_MULTIPLIER`."""
        return np.flatnonzero(self.noise_multiplier < LOW_MULTIPLIER)

    def bounds(self) -> Bounds:
        """Published and sound bounds with this noise."""
        return self._bounds(self.sigma_squared)

    def uniform_bounds(self) -> Bounds:
        """The same with equal noise for all."""
        return self._bounds(self.uniform_sigma_squared)

    def _bounds(self, sigma_squared: npt.ArrayLike) -> Bounds:
        return bounded.bounds(
            sigma_squared,
            self.leverage,
            rounds=self.rounds,
            batch_size=self.batch_size,
            steps_per_round=self.steps_per_round,
            sizes=self.sizes,
        )

    def windowed(
        self, window: int, *, model_weights: npt.ArrayLike | None = None, uniform: bool = False
    ) -> Windowed:
        """Bounds against an observer with the key of one window of rounds: see `windowed`."""
        return bounded.windowed(
            self.uniform_sigma_squared if uniform else self.sigma_squared,
            self.leverage,
            rounds=self.rounds,
            window=window,
            batch_size=self.batch_size,
            steps_per_round=self.steps_per_round,
            sizes=self.sizes,
            model_weights=model_weights,
        )

    def model_noise(self, weights: npt.ArrayLike) -> tuple[float, float]:
        """Noise in the averaged model, sum_i p_i^2 sigma_i^2: with this noise, and uniform.

        `weights` (n,) of the average, scaled to sum to one here.
        """
        p = np.asarray(weights, dtype=np.float64)
        p2 = (p / p.sum()) ** 2
        return solver.spent(self.sigma_squared, p2), float(p2.sum()) * self.uniform_sigma_squared

    def at_scales(self, scales: Sequence[float] = SCALES) -> dict[float, tuple[float, float]]:
        """Scale of the leverage -> (K*, uniform): the same budget, had the proxy another unit."""
        out = {}
        for scale in scales:
            scaled = scale * self.leverage
            _, worst, uniform, _, _ = _balance(
                scaled, self._coefficient, self.budget_weights, self.budget
            )
            out[float(scale)] = (worst, uniform)
        return out

    @property
    def _coefficient(self) -> float | Floats:
        return coefficient(
            self.objective,
            rounds=self.rounds,
            batch_size=self.batch_size,
            steps_per_round=self.steps_per_round,
            sizes=self.sizes,
        )

    def guarantee(self, client: int) -> Guarantee:
        """The record-level promise of one client, in words that make its epsilon mean something."""
        if self.epsilon is None or self.sizes is None or self.delta is None:
            raise UsageError(
                "this allocation has no epsilons",
                expected="sizes and delta",
                got="an allocation that was made without them",
                remedy="allocate(..., sizes=..., delta=1e-5)",
            )
        exposure = Exposure(
            sampling_rate=min(1.0, self.batch_size / int(self.sizes[client])),
            steps=int(self.steps_per_round[client]),
            rounds=self.rounds,
        )
        return Guarantee(
            epsilon=float(self.epsilon[client]),
            delta=self.delta,
            unit="record",
            trust="the client's own code",
            covers=f"{exposure.steps} steps x {exposure.rounds} rounds, "
            f"q = {exposure.sampling_rate:.4g}, z = {self.noise_multiplier[client]:g}",
            by=self.accountant,
        )


def coefficient(
    objective: Objective,
    *,
    rounds: int,
    batch_size: int,
    steps_per_round: npt.ArrayLike = 1,
    sizes: npt.ArrayLike | None = None,
) -> float | Floats:
    """a_i of the bound a_i / sigma_i^2 + l_i: one for all where it is the same, or (n,)."""
    if objective == "published":
        return rounds / (2.0 * batch_size**2)
    steps = rounds * np.asarray(steps_per_round, dtype=np.float64)
    a = np.asarray(steps * bounded.poisson_factor(batch_size, sizes) / 2.0)
    return float(a.flat[0]) if a.size == 1 or (a == a.flat[0]).all() else a


def allocate(
    leverage: npt.ArrayLike,
    *,
    rounds: int,
    batch_size: int,
    budget: float,
    budget_weights: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
    delta: float | None = None,
    steps_per_round: npt.ArrayLike = 1,
    optimise: Objective = "published",
    accountant: Accountant = "pld",
    clients: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> Allocation:
    """Noise for every client so that the largest bound is as small as `budget` allows.

    `leverage` (n,) in nats (see `leverage`); `budget` is U = sum w_i sigma_i^2, on the mean and in
    units of C^2; `budget_weights` (n,) w, default 1 as published, p_i^2 for the noise in the model.
    `sizes` (n,) training records; with `delta` every client's epsilon is computed too.
    `steps_per_round`: local steps, one number or (n,); the published bound does not count them.
    `optimise`: which bound is balanced. `clients` (n,) names for messages.

    Formal guarantees: none of its own beyond those of `dp_sgd` with these multipliers, which are
    the epsilons. The bounds in nats are explained in `bounds`.
    """
    ell, weights, steps, n_records = _checked(
        leverage, rounds, batch_size, budget_weights, sizes, steps_per_round, optimise, clients
    )
    if not 0 < budget < math.inf:
        raise UsageError(
            "the budget is out of range",
            expected="a number above 0: the sum of sigma^2 over clients",
            got=str(budget),
            remedy="0.05 is a small budget (little noise) for a handful of clients",
        )
    if delta is not None:
        check_delta(delta)
        if n_records is None:
            raise UsageError(
                "an epsilon needs the sizes of the clients",
                expected="sizes, from which sampling rates follow",
                got="delta without sizes",
                remedy="pass sizes, or leave delta out",
            )
    ell = ell.copy()  # the caller may go on to change the array that was passed
    a = coefficient(
        optimise,
        rounds=rounds,
        batch_size=batch_size,
        steps_per_round=steps,
        sizes=n_records,
    )
    _refuse_extremes(ell, a, weights, budget)
    sigma_squared, worst, uniform_worst, gap, passes = _balance(ell, a, weights, budget)
    uniform = _uniform(ell.size, weights, budget)
    z = np.sqrt(sigma_squared) * batch_size
    uniform_z = math.sqrt(uniform) * batch_size
    allocated = equal = None
    rounded = 1.0
    if delta is not None and n_records is not None:
        found = []
        for noise in (z, np.float64(uniform_z)):
            found.append(
                bounded.record_epsilons(
                    noise,
                    sizes=n_records,
                    batch_size=batch_size,
                    rounds=rounds,
                    delta=delta,
                    steps_per_round=steps,
                    accountant=accountant,
                    watch=watch,
                )
            )
        allocated, equal = found[0].values, found[1].values
        rounded = max(e.rounded for e in found)
    return Allocation(
        leverage=ell,
        sigma_squared=sigma_squared,
        worst_case=worst,
        uniform_worst_case=uniform_worst,
        gap=gap,
        noise_multiplier=z,
        uniform_sigma_squared=uniform,
        uniform_noise_multiplier=uniform_z,
        objective=optimise,
        budget=float(budget),
        budget_weights=weights,
        rounds=rounds,
        batch_size=batch_size,
        steps_per_round=steps,
        sizes=n_records,
        delta=delta,
        accountant=accountant,
        epsilon=allocated,
        uniform_epsilon=equal,
        epsilon_rounded=rounded,
        residual=abs(solver.spent(sigma_squared, weights) / budget - 1),
        passes=passes,
    )


def budget_for(
    target: float,
    leverage: npt.ArrayLike,
    *,
    rounds: int,
    batch_size: int,
    budget_weights: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
    steps_per_round: npt.ArrayLike = 1,
    optimise: Objective = "published",
    clients: Sequence[str] | None = None,
) -> float:
    """The budget whose allocation has worst case `target` (nats): U = sum w_i a_i / (K - l_i)."""
    ell, weights, steps, n_records = _checked(
        leverage, rounds, batch_size, budget_weights, sizes, steps_per_round, optimise, clients
    )
    top = float(ell.max())
    if not top < target < math.inf:
        raise UsageError(
            "no noise reaches this worst case",
            expected=f"above {top:g} nats, the largest leverage, which noise cannot lower",
            got=str(target),
            remedy="raise the target, or choose a leverage of another scale",
        )
    a = coefficient(
        optimise,
        rounds=rounds,
        batch_size=batch_size,
        steps_per_round=steps,
        sizes=n_records,
    )
    root = solver.Root(target - top, top, 0)
    return solver.spent(solver.variances(ell, a, root), weights)


def _refuse_extremes(ell: Floats, a: float | Floats, weights: Floats | None, budget: float) -> None:
    """Raise where a quotient of these numbers would leave the range of floating point."""
    w = np.ones(1) if weights is None else weights
    quotients = {
        "a w / U": float(np.min(a * w)) / budget,
        "sum a w / U": float(np.max(a * w)) / budget * ell.size,
        "U / w": budget / float(w.min()),
    }
    top = float(ell.max())
    if top >= 1e300 or any(not 1e-300 < value < 1e300 for value in quotients.values()):
        raise UsageError(
            "budget, leverage and weights are too far apart for floating-point numbers",
            expected="all between 1e-300 and 1e300",
            got=f"largest leverage {top:g}, "
            + ", ".join(f"{name} = {value:g}" for name, value in quotients.items()),
            remedy="choose other units for the leverage or the budget",
        )


def _uniform(n: int, weights: Floats | None, budget: float) -> float:
    return budget / n if weights is None else budget / math.fsum(weights)


def _balance(
    ell: Floats,
    a: float | Floats,
    weights: Floats | None,
    budget: float,
) -> tuple[Floats, float, float, float, int]:
    """Variances (n,), K*, its uniform counterpart, their difference, and passes over the data."""
    equal = _uniform(ell.size, weights, budget)
    top = float(ell.max())
    if isinstance(a, float) and float(ell.min()) == top:
        # nothing to balance: exactly the uniform allocation, to the last bit
        worst = a / equal + top
        return np.full(ell.size, equal), worst, worst, 0.0, 0
    root = solver.solve(ell, a if weights is None else a * weights, budget)
    # above top, as the root's own gap: the difference is not blurred by a large leverage
    above = a / equal if isinstance(a, float) else float((a / equal - (top - ell)).max())
    variances = solver.variances(ell, a, root)
    return variances, root.worst_case, top + above, max(0.0, above - root.gap), root.passes


# -- arguments -------------------------------------------------------------------------------------


def _checked(
    leverage: npt.ArrayLike,
    rounds: int,
    batch_size: int,
    budget_weights: npt.ArrayLike | None,
    sizes: npt.ArrayLike | None,
    steps_per_round: npt.ArrayLike,
    optimise: str,
    clients: Sequence[str] | None,
) -> tuple[Floats, Floats | None, Indices, Indices | None]:
    ell = leverages.own(leverage, clients)
    if ell.size < 2:
        raise UsageError(
            "there is nothing to allocate",
            expected="at least two clients",
            got=f"{ell.size}",
            remedy="a single client takes the whole budget: noise_multiplier = sqrt(U) * batch",
        )
    if optimise not in get_args(Objective):
        raise UsageError(
            f"there is no bound {optimise!r} to optimise",
            expected="published or dataset",
            got=repr(optimise),
            remedy=nearest(str(optimise), get_args(Objective)),
        )
    for name, value in (("rounds", rounds), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(
                f"{name} cannot be {value!r}",
                expected="a whole number of at least 1",
                got=repr(value),
                remedy="correct the value",
            )
    weights = None
    if budget_weights is not None:
        weights = np.asarray(budget_weights, dtype=np.float64)
        if weights.shape != ell.shape or not (weights.min() > 0 and weights.max() < math.inf):
            raise DataError(
                "the budget weights cannot be used",
                expected=f"{ell.size} finite numbers above 0",
                got=f"shape {weights.shape}" if weights.shape != ell.shape else "0, less, or NaN",
                remedy="p_i^2 with the weights p_i of the average, or None",
            )
    n_records = None if sizes is None else _whole(sizes, ell.size, "sizes", "records", clients)
    if n_records is not None and int(n_records.min()) < batch_size:
        at = int(n_records.argmin())
        raise UsageError(
            "the batch is larger than a client's data",
            expected=f"a batch of at most {n_records[at]}, the size of the smallest client",
            got=f"{batch_size}; {leverages.named(at, clients)} has {n_records[at]} records",
            remedy=f"batch_size = {n_records[at]}, or leave that client out",
        )
    if np.ndim(steps_per_round) == 0:
        one = _whole(
            np.atleast_1d(np.asarray(steps_per_round)), 1, "steps_per_round", "steps", None
        )
        steps = np.broadcast_to(one, ell.shape)
    else:
        steps = _whole(steps_per_round, ell.size, "steps_per_round", "steps", clients)
    return ell, weights, steps, n_records


def _whole(
    values: npt.ArrayLike, n: int, name: str, what: str, clients: Sequence[str] | None
) -> Indices:
    """Whole numbers (n,) of at least 1."""
    raw = np.asarray(values)
    if raw.shape != (n,) or raw.dtype.kind not in "iuf":
        raise DataError(
            f"{name} cannot be used",
            expected=f"{n} whole numbers",
            got=f"shape {raw.shape} of {raw.dtype}",
            remedy=f"give the {what} of every client",
        )
    # NaN fails the comparison
    wrong = ~((raw >= 1) & (raw == np.floor(raw)) & (raw < 2**53))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{name} of {leverages.named(at, clients)} cannot be used",
            expected=f"a whole number of {what}, at least 1",
            got=f"{raw[at]}",
            remedy="correct the value, or leave that client out",
        )
    return raw.astype(np.int64)


def shares(sizes: npt.ArrayLike) -> Floats:
    """Weights p_i = n_i / sum n of a size-weighted average (n,)."""
    n = np.asarray(sizes, dtype=np.float64)
    return np.asarray(n / n.sum())


def as_settings(allocation: Allocation, order: Sequence[int] | None = None) -> Mapping[str, object]:
    """The settings of `dp_sgd` that carry this allocation out; `order` of the clients, if other."""
    z = allocation.noise_multiplier
    chosen = z if order is None else z[np.asarray(order, dtype=np.int64)]
    out: dict[str, object] = {"noise_multiplier": tuple(float(v) for v in chosen)}
    if allocation.delta is not None:
        out["delta"] = allocation.delta
    return out
