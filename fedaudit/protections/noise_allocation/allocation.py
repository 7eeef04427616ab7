"""Noise for each client under one budget, such that the largest bound is as small as possible.

    min over sigma of max_i [a_i / sigma_i^2 + l_i]   with   sum_i w_i sigma_i^2 = U
                                                       [TopologyAwareDP] Eq. (3), Theorem V.3

The paper prints "at most U". Each bound falls as its sigma grows, so that the best allocation
spends all of U: the problem is the same.

a_i = T / (2 |B|^2) for the published bound, T'_i (1 + (1 - q_i) / |B|) / 2 for the sound one;
w_i = 1 as published, or p_i^2, which makes the budget the noise in the averaged model.

Differs: sum sigma_i^2 does not measure utility if the average is weighted. Clients with little
leverage get *less* noise than uniform: `Allocation.worse` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Accountant, Exposure, Guarantee, check_delta
from fedaudit.arrays import Floats, Indices
from fedaudit.errors import DataError, UsageError
from fedaudit.protections.noise_allocation import bounds as bounded
from fedaudit.protections.noise_allocation import leverage as leverages
from fedaudit.protections.noise_allocation import solver
from fedaudit.protections.noise_allocation.bounds import Bounds, Epsilons, Watch, Windowed
from fedaudit.settings import Count, PositiveFinite, require

Objective = Literal["published", "dataset"]

LOW_MULTIPLIER = 0.3
"""Below this multiplier, noise on the sum hardly covers one record, and epsilons are huge."""

SCALES = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Noise for n clients, and the bounds with this noise and with equal noise for all.

    `sigma_squared` (n,): variance on the *mean* gradient in units of C^2. `noise_multiplier` (n,):
    sigma |B|, the setting of `dp_sgd` and DP-SGD libraries (noise on the *sum*). `worst_case`: K*
    of the bound `objective`, in nats. `gap`: `uniform_worst_case` - K*.
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
        """Clients with less noise than uniform, hence a larger epsilon."""
        return np.flatnonzero(self.noise_multiplier < self.uniform_noise_multiplier)

    @property
    def low(self) -> Indices:
        """Clients whose multiplier is below `LOW_MULTIPLIER`."""
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
        """Bounds against an observer with the key of one window of rounds (`bounds.windowed`)."""
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
        """Noise in the averaged model, sum_i p_i^2 sigma_i^2: of this allocation, and of uniform.

        `weights` (n,) of the average; they are scaled to sum to one.
        """
        p = np.asarray(weights, dtype=np.float64)
        p2 = (p / p.sum()) ** 2
        return solver.spent(self.sigma_squared, p2), float(p2.sum()) * self.uniform_sigma_squared

    def at_scales(self, scales: Sequence[float] = SCALES) -> dict[float, tuple[float, float]]:
        """Scale of the leverage -> (K*, uniform worst case) at the same budget."""
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
        """The record-level guarantee of one client."""
        if self.epsilon is None or self.sizes is None or self.delta is None:
            raise UsageError(
                "this allocation has no epsilons",
                expected="sizes and delta",
                got="an allocation without them",
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
    """a_i of the bound a_i / sigma_i^2 + l_i: one number if equal for all clients, or (n,)."""
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
    """Noise for every client such that the largest bound is as small as `budget` allows.

    `leverage` (n,): in nats (see `leverage`). `budget`: U = sum w_i sigma_i^2, on the mean and in
    units of C^2. `budget_weights` (n,): w, default 1 as published, p_i^2 for the noise in the
    model. `sizes` (n,): training records; with `delta`, every client's epsilon is computed too.
    `steps_per_round`: local steps, one number or (n,); the published bound does not count them.
    `optimise`: the bound to balance. `clients` (n,): names for messages. `watch`: progress of the
    epsilons.

    Formal guarantees: the epsilons of `dp_sgd` with these multipliers, and no others. The bounds
    in nats are explained in `bounds`.
    """
    given = _Inputs.check(
        leverage, rounds, batch_size, budget_weights, sizes, steps_per_round, optimise, clients
    )
    require(
        PositiveFinite,
        remedy="0.05 is a small budget (little noise) for a handful of clients",
        budget=budget,
    )
    _check_delta(delta, given.sizes)
    ell = given.leverage.copy()  # the caller may change the array later
    weights = given.budget_weights
    a = given.coefficient()
    _refuse_extremes(ell, a, weights, budget)
    sigma_squared, worst, uniform_worst, gap, passes = _balance(ell, a, weights, budget)
    uniform = _uniform(ell.size, weights, budget)
    z = np.sqrt(sigma_squared) * batch_size
    uniform_z = math.sqrt(uniform) * batch_size
    allocated = equal = None
    rounded = 1.0
    if delta is not None:
        found = [
            given.epsilons(noise, delta, accountant, watch) for noise in (z, np.float64(uniform_z))
        ]
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
        steps_per_round=given.steps_per_round,
        sizes=given.sizes,
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
    given = _Inputs.check(
        leverage, rounds, batch_size, budget_weights, sizes, steps_per_round, optimise, clients
    )
    top = float(given.leverage.max())
    if not top < target < math.inf:
        raise UsageError(
            "no noise reaches this worst case",
            expected=f"above {top:g} nats, the largest leverage, which noise cannot lower",
            got=str(target),
            remedy="raise the target, or choose a leverage of another scale",
        )
    root = solver.Root(target - top, top, 0)
    variances = solver.variances(given.leverage, given.coefficient(), root)
    return solver.spent(variances, given.budget_weights)


def _check_delta(delta: float | None, sizes: Indices | None) -> None:
    if delta is None:
        return
    check_delta(delta)
    if sizes is None:
        raise UsageError(
            "an epsilon needs the sizes of the clients",
            expected="sizes, which determine sampling rates",
            got="delta without sizes",
            remedy="pass sizes, or leave delta out",
        )


def _refuse_extremes(ell: Floats, a: float | Floats, weights: Floats | None, budget: float) -> None:
    """Raise if a quotient of these numbers leaves the range of floating point."""
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
        # equal leverages: exactly the uniform allocation, to the last bit
        worst = a / equal + top
        return np.full(ell.size, equal), worst, worst, 0.0, 0
    root = solver.solve(ell, a if weights is None else a * weights, budget)
    # relative to top, like the root's gap: a large leverage does not blur the difference
    above = a / equal if isinstance(a, float) else float((a / equal - (top - ell)).max())
    variances = solver.variances(ell, a, root)
    return variances, root.worst_case, top + above, max(0.0, above - root.gap), root.passes


# -- arguments -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Checked arguments of `allocate` and `budget_for`, as arrays (n,)."""

    leverage: Floats
    rounds: int
    batch_size: int
    budget_weights: Floats | None
    sizes: Indices | None
    steps_per_round: Indices
    optimise: Objective

    @classmethod
    def check(
        cls,
        leverage: npt.ArrayLike,
        rounds: int,
        batch_size: int,
        budget_weights: npt.ArrayLike | None,
        sizes: npt.ArrayLike | None,
        steps_per_round: npt.ArrayLike,
        optimise: Objective,
        clients: Sequence[str] | None,
    ) -> _Inputs:
        ell = leverages.check_leverage(leverage, clients)
        if ell.size < 2:
            raise UsageError(
                "there is nothing to allocate",
                expected="at least two clients",
                got=f"{ell.size}",
                remedy="a single client takes the whole budget: noise_multiplier = sqrt(U) * batch",
            )
        require(Objective, optimise=optimise)
        require(Count, remedy="correct the value", rounds=rounds, batch_size=batch_size)
        return cls(
            leverage=ell,
            rounds=rounds,
            batch_size=batch_size,
            budget_weights=_check_weights(budget_weights, ell.size),
            sizes=_check_sizes(sizes, ell.size, batch_size, clients),
            steps_per_round=_check_steps(steps_per_round, ell.size, clients),
            optimise=optimise,
        )

    def coefficient(self) -> float | Floats:
        return coefficient(
            self.optimise,
            rounds=self.rounds,
            batch_size=self.batch_size,
            steps_per_round=self.steps_per_round,
            sizes=self.sizes,
        )

    def epsilons(
        self, noise: npt.ArrayLike, delta: float, accountant: Accountant, watch: Watch | None
    ) -> Epsilons:
        assert self.sizes is not None
        return bounded.record_epsilons(
            noise,
            sizes=self.sizes,
            batch_size=self.batch_size,
            rounds=self.rounds,
            delta=delta,
            steps_per_round=self.steps_per_round,
            accountant=accountant,
            watch=watch,
        )


def _check_weights(weights: npt.ArrayLike | None, n: int) -> Floats | None:
    if weights is None:
        return None
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (n,) or not (w.min() > 0 and w.max() < math.inf):
        raise DataError(
            "the budget weights cannot be used",
            expected=f"{n} finite numbers above 0",
            got=f"shape {w.shape}" if w.shape != (n,) else "0, less, or NaN",
            remedy="p_i^2 with the weights p_i of the average, or None",
        )
    return w


def _check_sizes(
    sizes: npt.ArrayLike | None, n: int, batch_size: int, clients: Sequence[str] | None
) -> Indices | None:
    if sizes is None:
        return None
    records = _check_counts(sizes, n, "sizes", "records", clients)
    at = int(records.argmin())
    if int(records[at]) < batch_size:
        raise UsageError(
            "the batch is larger than a client's data",
            expected=f"a batch of at most {records[at]}, the size of the smallest client",
            got=f"{batch_size}; {leverages.named(at, clients)} has {records[at]} records",
            remedy=f"batch_size = {records[at]}, or leave that client out",
        )
    return records


def _check_steps(steps: npt.ArrayLike, n: int, clients: Sequence[str] | None) -> Indices:
    if np.ndim(steps):
        return _check_counts(steps, n, "steps_per_round", "steps", clients)
    one = _check_counts(np.atleast_1d(np.asarray(steps)), 1, "steps_per_round", "steps", None)
    return np.broadcast_to(one, (n,))


def _check_counts(
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
    """The settings of `dp_sgd` for this allocation, with clients in `order` if given."""
    z = allocation.noise_multiplier
    chosen = z if order is None else z[np.asarray(order, dtype=np.int64)]
    out: dict[str, object] = {"noise_multiplier": tuple(float(v) for v in chosen)}
    if allocation.delta is not None:
        out["delta"] = allocation.delta
    return out
