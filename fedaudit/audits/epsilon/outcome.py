"""From guesses and coins to bounds on epsilon, pooled and per client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedaudit.accounting import Exposure
from fedaudit.arrays import Bools
from fedaudit.audits.epsilon.canaries import Promise
from fedaudit.audits.epsilon.facts import CHECKED
from fedaudit.audits.epsilon.observed import Sighting
from fedaudit.results import Bound, Estimate, Number
from fedaudit.stats import epsilon as statistics
from fedaudit.stats.combine import holm

COARSE = 8
"""Steps of noise between two curves of a search: 8 x 2 % in noise."""
HALVES = (0.5, 0.25, 0.125)
"""Parts of a step at the end of a search: to 0.25 % in noise."""


def dominating(promises: Sequence[Promise]) -> Promise:
    """A schedule that protects no client better than its own does.

    Most draws per step, most steps and rounds, least noise. Coins of clients with different
    schedules may be pooled under it: every client's curve lies on its private side.
    """
    e = [p.exposure for p in promises]
    worst = Exposure(
        sampling_rate=max(x.sampling_rate for x in e),
        steps=max(x.steps for x in e),
        rounds=max(x.rounds for x in e),
    )
    return replace(
        min(promises, key=lambda p: p.multiplier),
        exposure=worst,
        epsilon=max(p.epsilon for p in promises),
        delta=min(p.delta for p in promises),
    )


def bound_of(coins: int, guesses: int, right: int, promise: Promise, confidence: float) -> float:
    """The largest epsilon of the declared schedule, with any noise, that the guesses refute.

    First in steps of COARSE, then in single ones, then by halves; 0 if nothing is refuted.
    """

    def found(first: int, step: int) -> int | None:
        at = statistics.f_dp_bound(
            coins,
            guesses,
            right,
            lambda i: promise.curve(first + i * step).least_false,
            confidence=confidence,
            most=MOST // step,
        )
        return None if at is None else first + at * step

    coarse = found(0, COARSE)
    if coarse is None:
        return 0.0
    fine = found(coarse, 1)
    low = float(coarse if fine is None else fine)
    for part in HALVES:
        curve = promise.curve(low + part).least_false
        low += part * statistics.f_dp_refutes(coins, guesses, right, curve, 1 - confidence)
    return promise.curve(low).epsilon_at(promise.delta, below=True)


MOST = 240
"""Steps of noise in a search: 1.02^240 is a factor of 116 in the multiplier."""


def ceiling_of(coins: int, guesses: int, promise: Promise, confidence: float) -> float:
    """The largest epsilon that can be measured: every guess is right."""
    return bound_of(coins, guesses, guesses, promise, confidence)


def client_rows(
    observed: Sequence[Sighting], coins: Sequence[Bools]
) -> dict[str, dict[str, Number | str | None]]:
    """Client -> declared epsilon, right guesses of all its coins, and its p-value.

    Against its own declared mechanism, adjusted for all clients by Holm. Coins of all rehearsals
    count: rehearsals are independent, and so are gradient canaries of one.
    """
    first = observed[0].rehearsal
    if first.promises[0].unit == "client":
        return {}  # canaries are clients: none of them belongs to one
    correct = np.concatenate([o.correct(c)[o.main] for o, c in zip(observed, coins, strict=True)])
    owner = np.concatenate([o.rehearsal.canaries.client[o.main] for o in observed])
    rows: dict[str, dict[str, Number | str | None]] = {}
    p_values = []
    for c, (name, promise) in enumerate(zip(first.clients, first.promises, strict=True)):
        mine = correct[owner == c]
        if not len(mine):
            continue
        tv = promise.curve().total_variation
        right = int(mine.sum())
        p_values.append(statistics.independent_p_value(len(mine), right, total_variation=tv))
        rows[name] = {
            "declared": promise.epsilon if math.isfinite(promise.epsilon) else None,
            "guessed": right / len(mine),
            "right": right,
            "coins": len(mine),
            "at_most": 0.5 * (1 + tv),
        }
    for row, p in zip(rows.values(), holm(p_values), strict=True):
        row["p"] = float(p)
    return rows


def at_least(low: float, n: int, confidence: float, method: str) -> Estimate:
    """An epsilon that was measured: a lower bound alone."""
    return Estimate(
        value=low,
        low=low,
        high=float("inf"),
        n=n,
        confidence=confidence,
        baseline=0.0,
        method=method,
        one_sided=True,
    )


def share_of_declared(low: float, declared: float, n: int, confidence: float) -> Estimate:
    """What was measured over what is declared; above 1 they contradict. A policy can limit it."""
    share = low / declared if declared > 0 else float(low > 0)
    return Estimate(
        value=share,
        low=share,
        high=share,
        n=n,
        confidence=confidence,
        baseline=0.0,
        method="the lower bound on epsilon over the declared one",
    )


def declared_bounds(weakest: Promise, least: float) -> dict[str, Bound]:
    """The declared epsilon of a schedule, above the headline and above the value that is checked.

    `least`: the largest that was stated for a client.
    """
    value = max(weakest.curve().epsilon_at(weakest.delta), least)
    return {
        "declared": _declared(weakest, value, "epsilon"),
        "declared, checked": _declared(weakest, value, CHECKED),
    }


def _declared(weakest: Promise, value: float, of: str) -> Bound:
    return Bound(
        value=value,
        kind="upper",
        of=of,
        source="the declared schedule, by privacy loss distributions",
        assumes="the declaration",
        unit=weakest.unit,
        relation=weakest.relation,
        covers=f"{weakest.exposure.total} steps, q = {weakest.exposure.sampling_rate:.4g}, "
        f"z = {weakest.multiplier:g}",
        suspect="More was measured than the declared schedule allows.",
    )
