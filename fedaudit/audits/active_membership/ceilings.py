"""Bounds on the success of an adversary: the paper's theorems, budgets and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.accounting import Exposure, success_ceiling, trade_off
from fedaudit.audits.active_membership import theory
from fedaudit.audits.active_membership.attention import MARGIN
from fedaudit.results import Bound, BoundKind, Estimate

if TYPE_CHECKING:
    from fedaudit.audits.active_membership.audit import Guess


def _lower_bound(advantage: float, *, of: str, source: str, assumes: str) -> Bound:
    """A lower bound on the success of one adversary, marked if it is vacuous."""
    value = theory.success(advantage)
    if theory.is_vacuous(value):
        assumes += "; says nothing: guessing reaches one half"
    return Bound(value=value, kind="lower", of=of, source=source, assumes=assumes)


def bounds_on(
    guess: Guess, estimates: Mapping[str, Estimate], in_figure: str, at_theory: str | None
) -> dict[str, Bound]:
    """Bounds and reference values by name, each on one estimate."""
    about = guess.about
    game = f"Figure 12: {about['records']} of {about['universe']} records, target uniform"
    out: dict[str, Bound] = {}
    if at_theory is not None:
        out |= _floors(guess, game, at_theory)
    if about["balls"] is not None:
        out |= _grr_bounds(about, game, at_theory or in_figure)
    out |= _budget_ceilings(about, game, in_figure)
    if in_figure != "success":
        out |= _noise_ceilings(about)
    if about["ceiling"] is not None:
        value, how = about["ceiling"]
        out["total variation"] = Bound(
            value=theory.success(value),
            kind="upper",
            of=in_figure,
            source=how,
            assumes=f"{game}; any adversary, even one that knows all other records",
        )
    return out


def _floors(guess: Guess, game: str, at_theory: str) -> dict[str, Bound]:
    """Theorems 1 and 3: lower bounds on the estimate at their own threshold."""
    about = guess.about
    n, universe = about["records"], about["universe"]
    out: dict[str, Bound] = {}
    if guess.outside is not None:
        away = guess.outside
        share = f"P_M = {away.value:.4g}" + (
            "" if away.low == away.high else f", at most {away.high:.4g}"
        )
        out["Theorem 1"] = _lower_bound(
            theory.theorem1(away.high, n, universe),
            of=at_theory,
            source="[ActiveMembership] Theorem 1",
            assumes=f"{game}; |X| = {universe}, Delta = {guess.radius:.4g}; {share} "
            f"({away.method})",
        )
    if guess.floor is not None:
        f = guess.floor
        margin = f" with a margin of {100 * MARGIN:g} %" if about["margin"] else ""
        out["Theorem 3"] = _lower_bound(
            f.low,
            of=at_theory,
            source="[ActiveMembership] Theorem 3",
            assumes=f"{game}; independent patterns; Delta, M, R and m_max: extremes over "
            f"{f.sampled:,} sampled records{margin}; P_proj {f.near_target:.4g} "
            f"(target) and {f.near_other:.4g}, P_box {f.in_box:.4g}, unfavourable ends over "
            f"{f.draws:,} draws",
        )
    return out


def _grr_bounds(about: Mapping[str, Any], game: str, of: str) -> dict[str, Bound]:
    """Theorem 4 and the exact value for records of one feature under GRR."""
    n, exact = about["records"], float(about["exact_epsilon"])
    k, balls = about["alphabet"], about["balls"]
    assumes = f"{game}; a record is one of {k} values"
    alone = max(balls) == 1  # else the ball of radius Delta contains values that no record has
    out: dict[str, Bound] = {}
    if alone:
        out["Theorem 4"] = _lower_bound(
            theory.theorem4(exact, n, k),
            of=of,
            source="[ActiveMembership] Theorem 4",
            assumes=assumes,
        )
    out["exact for this adversary"] = Bound(
        value=theory.success(theory.grr_advantage(exact, n, k, balls)),
        kind="reference",
        of=of,
        source="(p - q)(1 - q)^(n - 1)"
        if alone
        else "mean over targets of (p - q)(1 - b q)^(n - 1)",
        assumes=assumes if alone else f"{assumes}, b of them within Delta of the target",
    )
    return out


def _budget_ceilings(about: Mapping[str, Any], game: str, of: str) -> dict[str, Bound]:
    """Theorem 2 at the exact budget and, if the mechanism exceeds its claim, at the claimed one."""
    exact, claimed = float(about["exact_epsilon"]), float(about["claimed_epsilon"])
    if not math.isfinite(exact):
        return {}
    delta = float(about["delta"])
    out = {
        "Theorem 2": Bound(
            value=theory.success(theory.theorem2(exact, delta)),
            kind="upper",
            of=of,
            source="[ActiveMembership] Theorem 2",
            assumes=f"{game}; exact epsilon {exact:,.4g} per record"
            + (f" at delta {delta:g}" if delta else ""),
        )
    }
    if exact > claimed * (1 + 1e-9):
        out["Theorem 2 at the claimed epsilon"] = Bound(
            value=theory.success(theory.theorem2(claimed)),
            kind="reference",
            of=of,
            source="[ActiveMembership] Theorem 2",
            assumes=f"nothing: the mechanism claims {claimed:,.4g}, its exact worst case is "
            f"{exact:,.4g}, so this ceiling does not bind",
        )
    return out


@dataclass(frozen=True)
class NoisyRelease:
    """Gaussian noise of multiplier `z` on each release of a kind, and who it protects."""

    name: str
    z: float
    unit: str
    moved: str
    played: Exposure
    run: Exposure | None

    def ceilings(self) -> dict[str, Bound]:
        """Success ceilings: of the game as played, of a round and of the run as scheduled."""
        if self.played == ONCE:
            name, covers = f"one {self.name}", f"one {self.name}, as played"
        else:
            name = f"as played ({self.name})"
            covers = f"one round, as played: {_sampled(self.played, self.name)}"
        out = {name: self._bound("upper", self.played, covers)}
        if self.run is None:
            return out
        run, one = self.run, replace(self.run, rounds=1)
        said = _sampled(run, self.name)
        if one != self.played:
            out[f"one round ({self.name})"] = self._bound("extended", one, f"one round: {said}")
        if run.rounds > 1:
            covers = f"the whole run: {_times(run.rounds, 'round')} of {said}"
            out[f"whole run ({self.name})"] = self._bound("extended", run, covers)
        return out

    def _bound(self, kind: BoundKind, schedule: Exposure, covers: str) -> Bound:
        exact = schedule.sampling_rate == 1
        return Bound(
            value=success_ceiling(schedule, self.z),
            kind=kind,
            of="success",
            source="(1 + TV) / 2, "
            + ("Gaussian" if exact else "privacy loss distribution")
            + f", z = {self.z:g}",
            assumes=f"{self.moved}, the noise is z C; any adversary that knows all other data"
            + ("" if kind == "upper" else "; the client with the largest ceiling"),
            unit=self.unit,
            relation="replace",
            covers=covers,
        )


def _sampled(schedule: Exposure, what: str) -> str:
    said = _times(schedule.steps, what)
    if schedule.sampling_rate < 1:
        said += f" with sampling rate {schedule.sampling_rate:.3g}"
    return said


def _times(count: int, what: str) -> str:
    first, of, rest = what.partition(" of ")
    return f"{count:,} {first}{'' if count == 1 else 's'}{of}{rest}"


ONCE = Exposure(sampling_rate=1.0, steps=1, rounds=1)
MOST_SCHEDULES = 32
"""Most schedules whose ceilings are computed; more are replaced by one that exceeds them all."""


def _worst(schedules: Sequence[Exposure], z: float) -> Exposure | None:
    """The schedule with the largest success ceiling."""
    distinct = list(dict.fromkeys(schedules))
    if len(distinct) > MOST_SCHEDULES:
        distinct = [
            Exposure(
                sampling_rate=max(e.sampling_rate for e in distinct),
                steps=max(e.steps for e in distinct),
                rounds=max(e.rounds for e in distinct),
            )
        ]
    cost = {e: (success_ceiling(e, z), e.sampling_rate * e.total**0.5) for e in distinct}
    return max(distinct, key=cost.__getitem__, default=None)


def _noisy_releases(about: Mapping[str, Any]) -> list[NoisyRelease]:
    """The noise that uploads carry, with the schedule of the most exposed client."""
    schedules: Sequence[Exposure] = about["schedules"]
    step, upload = float(about["step_noise"]), float(about["upload_noise"])
    once = [e.one_release_per_round for e in schedules]
    found = [
        NoisyRelease(
            "step of DP-SGD",
            step,
            "record",
            "a replaced record moves a sum by 2 C",
            about["played"],
            _worst(schedules, step) if step else None,
        ),
        NoisyRelease(
            "noisy update",
            upload,
            "client",
            "replaced data move a clipped update by 2 C",
            ONCE,
            _worst(once, upload) if upload else None,
        ),
    ]
    return [release for release in found if release.z]


def _noise_ceilings(about: Mapping[str, Any]) -> dict[str, Bound]:
    """Ceilings from Gaussian noise on steps or updates, as played and over the whole run."""
    out: dict[str, Bound] = {}
    for release in _noisy_releases(about):
        out |= release.ceilings()
    return out


CEILING_RATES = np.logspace(-4, 0, 81)[:-1]


def ceiling_curves(about: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Largest true-positive rate at each false-positive rate, as played and over the whole run."""
    out = {}
    for release in _noisy_releases(about):
        columns = {"false positive rate": CEILING_RATES}
        columns["as played"] = trade_off(release.played, release.z, CEILING_RATES)
        if release.run is not None and release.run != release.played:
            columns["whole run"] = trade_off(release.run, release.z, CEILING_RATES)
        columns["chance"] = CEILING_RATES
        out[f"true positive ceiling ({release.name})"] = {
            name: tuple(float(v) for v in column) for name, column in columns.items()
        }
    return out
