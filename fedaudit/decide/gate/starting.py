"""Write a first policy for a run: limits that its evidence supports, and comments on the rest."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

from fedaudit.decide.gate.evidence import Evidence, gather_evidence, require_results
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult, Estimate
from fedaudit.setup.toml import one_line, toml_value
from fedaudit.stats.intervals import wilson

TIMES_CHANCE = 1.5
"""The limit that one would like: a leak of at most so many times the success of guessing."""


def starting_policy(run: str | os.PathLike[str]) -> str:
    """A commented policy that the most protected variant of a run meets today.

    A limit stands at the worst end of today's interval. Where `TIMES_CHANCE` times chance is out of
    reach even without any leak, a comment says so.
    """
    found = gather_evidence(run)
    require_results(found)
    return _policy_of(found)


def _policy_of(found: Sequence[Evidence]) -> str:
    """The policy text of the run among `found` that leaks least."""
    best = min(found, key=_exposure)
    if len({e.federation for e in found}) == 1:
        # its name is that of the config's file: limits on a later run of it, renamed, still hold
        best = replace(best, federation="")
    lines = [
        "# Limits that this run keeps today: the worst ends of its intervals, rounded outwards.",
        "# Tighten what you can, and write down the reason as why. `fedaudit power` says how much",
        "# more evidence a tighter limit needs.",
        "",
        "[policy]",
        "confidence = 0.95",
        "allow_missing = []",
        "",
    ]
    if best.label:
        label = one_line(best.label)
        lines.insert(1, f"# They are those of {label}, which leaks least by these audits.")
    for name, result in sorted(best.results.items()):
        lines += _limit(name, result, best)
    return "\n".join([*lines, *_utility(best), *_epsilon(best)])


def _exposure(e: Evidence) -> tuple[float, ...]:
    """Smaller for a run that leaks less: number of leaks, of those known outright, sum of upper
    bounds."""
    estimates = [_headline(r) for r in e.results.values() if r.greater_is_leak]
    known = sum(r.known for r in e.results.values())
    leaks = sum(any(f.verdict == "leak" for f in judge(r)) for r in e.results.values())
    return leaks, known, sum(x.high for x in estimates if x is not None and x.high <= 1)


def _headline(result: AuditResult) -> Estimate | None:
    if result.status != "ok" or result.headline is None:
        return None
    return result.estimates[result.headline]


def _limit(name: str, result: AuditResult, e: Evidence) -> list[str]:
    """One limit with its reason, or a comment on why there is none."""
    estimate = _headline(result)
    if result.known or estimate is None:
        why = (
            "the leak needs no attack, so no limit below it can be kept"
            if result.known
            else f"nothing was measured ({result.status.replace('_', ' ')})"
        )
        beside = [
            f"# {name}.{measure} was measured instead and can be limited: {own.value:.3g}."
            for measure, own in ({} if result.known else result.estimates).items()
        ]
        return [f"# {name}: {why}. No limit.", *beside, ""]
    share = estimate.baseline is not None and 0 < estimate.baseline < 1
    if result.greater_is_leak and share and estimate.high >= 1:
        return [
            *_wish(estimate),
            f"# {name}: the interval of {result.headline} reaches {estimate.high:g}, so no limit "
            "below that can be kept. No limit.",
            "",
        ]
    end = estimate.high if result.greater_is_leak else estimate.low
    if not math.isfinite(end):
        return [
            f"# {name}: the interval of {result.headline} is open (at least {estimate.low:.3g} was "
            "measured). No limit.",
            "",
        ]
    if not result.greater_is_leak:
        bound = f"at_least = {_down(estimate.low)}"
    else:
        bound = f"at_most = {_up(estimate.high)}"
    return [
        *(_wish(estimate) if result.greater_is_leak else ()),
        "[[limit]]",
        f"name = {toml_value(name)}",
        f"metric = {toml_value(f'{name}.{result.headline}')}",
        f"{bound}   # measured {estimate.value:.3g}, n = {estimate.n}",
        *_run_of(e),
        "",
    ]


def _wish(estimate: Estimate) -> list[str]:
    """Whether `TIMES_CHANCE` times chance could be shown with this many observations."""
    chance, n = estimate.baseline, estimate.n
    if chance is None or not 0 < chance < 1 or n < 1:
        return []
    wish = TIMES_CHANCE * chance
    least = wilson(min(n, round(chance * n)), n, estimate.confidence).high
    if wish >= 1:
        return [f"# Chance is {chance:.3g}: {TIMES_CHANCE:g} times that would exclude nothing."]
    if least > wish:
        return [
            f"# {TIMES_CHANCE:g} x chance = {wish:.3g} cannot be shown with n = {n}: without any",
            f"# leak the upper end would still be about {least:.3g}.",
        ]
    return [f"# {TIMES_CHANCE:g} x chance = {wish:.3g} could be shown with n = {n}."]


def _utility(e: Evidence) -> list[str]:
    found = e.utility("accuracy")
    if found is None:
        return []
    return [
        "# The model must stay useful.",
        "[[limit]]",
        'name = "utility"',
        'metric = "accuracy"',
        f"at_least = {_down(found.low)}   # measured {found.value:.3g}",
        *_run_of(e),
        "",
    ]


def _epsilon(e: Evidence) -> list[str]:
    """The largest promise, if every client has one."""
    given: dict[str, list[float]] = {}
    for of in e.guarantees.values():
        for client, promise in of.items():
            given.setdefault(client, []).append(float(promise["epsilon"]))
    clients: Sequence[str] = e.clients or tuple(given)
    if not given or any(c not in given for c in clients):
        return ["# epsilon: not every client has a promise. No limit.", ""]
    worst = max(max(values) for values in given.values())
    if not math.isfinite(worst):
        return ["# epsilon: a promise is unbounded. No limit.", ""]
    return [
        "# The largest promise to a client.",
        "[[limit]]",
        'name = "epsilon"',
        'metric = "epsilon"',
        f"at_most = {_up(worst)}",
        *_run_of(e),
        "",
    ]


def _run_of(e: Evidence) -> list[str]:
    named = (("federation", e.federation), ("variant", e.variant))
    return [f"{key} = {toml_value(value)}" for key, value in named if value]


def _up(value: float) -> str:
    return repr(math.ceil(value * 1000 - 1e-9) / 1000)


def _down(value: float) -> str:
    return repr(math.floor(value * 1000 + 1e-9) / 1000)
