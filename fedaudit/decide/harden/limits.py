"""The limits of a hardening, in the grammar of the gate, held against one or several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaudit.decide.gate.check import held, held_estimate, rule_of
from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.measures import EPSILON, LOSS, UTILITY, VERDICT
from fedaudit.decide.gate.outcome import LimitCheck, Status
from fedaudit.decide.gate.policy import Limit, Policy, load_policy, read_limit
from fedaudit.errors import ConfigError, UsageError
from fedaudit.files import Unreadable, read_toml
from fedaudit.results import Estimate
from fedaudit.study.sweep import over_seeds

POOLED = 0.95
"""Confidence of an interval over seeds."""

WORST: tuple[Status, ...] = ("failed", "missing", "allowed", "passed")


def load_limits(file: str | Path | None = None, lines: Sequence[str] = ()) -> Policy:
    """Limits from a policy file, from lines such as "epsilon <= 8", or both."""
    if file is None and not lines:
        raise UsageError(
            "there is nothing to harden for",
            expected="limits that a protection has to keep",
            got="none",
            remedy='--limit "fingerprint.linkage_accuracy <= 1.5 x chance", or --limits FILE',
        )
    if file is None:
        raw: dict[str, Any] = {}
        where = "the limits"
    else:
        raw, where = _read(Path(file)), str(file)
    listed = raw.get("limit", [])
    if lines and isinstance(listed, list):
        raw["limit"] = [*listed, *(read_limit(line) for line in lines)]
    policy = replace(load_policy(raw), where=where)
    for limit in policy.limits:
        if limit.federation is not None or limit.variant is not None:
            raise ConfigError(
                f"limit {limit.name!r} is for one run of a study",
                expected="limits without federation and variant: one federation is hardened",
                got=limit.federation or limit.variant,
                remedy="remove federation and variant from it",
            )
    refuse_zero(policy)
    return policy


def refuse_zero(policy: Policy) -> None:
    """An epsilon of 0 means that nothing depends on the data: no noise gets there."""
    for limit in epsilon_limits(policy):
        if limit.at_most is not None and limit.at_most <= 0:
            raise ConfigError(
                f"limit {limit.name!r} cannot be kept by any noise",
                expected="an epsilon above 0: at 0 the model may not depend on the data at all",
                got=f"epsilon <= {limit.at_most:g}",
                remedy='--limit "epsilon <= 8"',
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except Unreadable as error:
        what, remedy = f"the limits {path} cannot be read", "correct it; texts stand in quotes"
        if error.absent or error.empty:
            remedy = f"write one with `fedaudit gate --init {path}`, or use --limit"
        raise error.as_error(ConfigError, what, remedy) from None


def audits_for(policy: Policy, configured: Sequence[str]) -> list[str]:
    """The audits that the limits ask."""
    named = [x.audit for x in policy.limits if x.audit]
    if any(x.metric == VERDICT for x in policy.limits):
        named += configured
    return list(dict.fromkeys(named))


def curves(policy: Policy) -> list[Limit]:
    """Limits on one number of the whole federation that an audit estimates: what is drawn."""
    return [x for x in policy.limits if x.audit and not x.is_verdict and not x.per_client]


# -- one limit, several runs ---------------------------------------------------------------------


def hold(policy: Policy, runs: Sequence[Evidence], loss: Estimate | str) -> tuple[LimitCheck, ...]:
    """Every limit against the runs of one protection, one run per seed.

    A number of the federation is the mean over seeds with its interval; what holds per client, for
    a verdict or for an epsilon has to hold in every run. `loss` as `accuracy_loss`, or why there is
    none.
    """
    out: list[LimitCheck] = []
    for limit in policy.limits:
        if limit.metric == LOSS:
            out.append(_of_loss(limit, loss, policy))
            continue
        mean = pooled(limit, runs) if policy.confidence <= POOLED + 1e-9 else None
        if mean is not None:
            out.append(held_estimate(limit, mean, policy))
            continue
        each = [held(limit, e, policy) for e in runs]
        for name in dict.fromkeys(c.limit for checks in each for c in checks):
            same = [(n, c) for n, checks in enumerate(each, 1) for c in checks if c.limit == name]
            n, worst = min(same, key=lambda pair: WORST.index(pair[1].status))
            if len(runs) > 1 and worst.status != "passed":
                worst = replace(worst, run=f"run {n} of {len(runs)}")
            out.append(replace(worst, file=""))
    return tuple(out)


def _of_loss(limit: Limit, loss: Estimate | str, policy: Policy) -> LimitCheck:
    if isinstance(loss, Estimate):
        return held_estimate(limit, loss, policy)
    return LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=rule_of(limit),
        status="allowed" if limit.name in policy.allow_missing else "missing",
        missing=loss,
        why=limit.why,
    )


def estimates(limit: Limit, runs: Sequence[Evidence]) -> list[Estimate]:
    """What every run states of a limit's number; nothing if any run does not."""
    if limit.metric in UTILITY:
        found = [e.utility(limit.metric) for e in runs]
    elif limit.audit and not limit.is_verdict and not limit.per_client:
        found = [
            e.results[limit.audit].estimates.get(limit.measure)
            if limit.audit in e.results
            and limit.audit not in e.stale
            and e.results[limit.audit].headline is not None
            else None
            for e in runs
        ]
    else:
        return []
    known = [e for e in found if e is not None]
    return known if len(known) == len(runs) else []


def pooled(limit: Limit, runs: Sequence[Evidence]) -> Estimate | None:
    """The mean over several runs with its interval; None for one run, which speaks for itself."""
    found = estimates(limit, runs)
    return mean_of(found) if len(found) > 1 else None


def mean_of(found: Sequence[Estimate], share: bool = True) -> Estimate:
    """Estimates of different seeds as one; not a `share`: a difference, which can be below 0."""
    exact = {(e.value, e.low, e.high) for e in found if e.confidence >= 1}
    if len(found) == 1 or (len(exact) == 1 and all(e.confidence >= 1 for e in found)):
        return found[0]
    # far from 0 nothing is taken for a share, whose interval would end there
    away = 0.0 if share else -1.0 - max(abs(x) for e in found for x in (e.low, e.high))
    value, low, high, by = over_seeds(
        [(e.value + away, e.low + away, e.high + away) for e in found]
    )
    chance = [e.baseline for e in found if e.baseline is not None]
    return Estimate(
        value=value - away,
        low=(value if low is None else low) - away,
        high=(value if high is None else high) - away,
        n=sum(e.n for e in found),
        confidence=min(POOLED, *(e.confidence for e in found)),
        baseline=sum(chance) / len(chance) if len(chance) == len(found) else None,
        method=by,
    )


def beyond_noise(checks: Sequence[LimitCheck], runs: Sequence[Evidence]) -> str:
    """Why more noise cannot help: what is asked about is known outright, an audit has no hold on
    these uploads, whatever their content, or has too few records or rounds to state its number."""
    for check in checks:
        audit, _, name = check.metric.partition(".")
        results = [e.results[audit] for e in runs if audit in e.results]
        if check.status == "failed" and any(r.known for r in results):
            return f"{check.limit}: known outright, which no noise hides"
        if check.status != "missing" or not name:
            continue
        small = name != VERDICT and check.code == "underpowered"
        if small or any(r.headline is None for r in results):
            return f"{check.limit}: {check.missing}"
    return ""


def largest_promise(runs: Sequence[Evidence]) -> Mapping[str, Any] | None:
    """The promise with the largest epsilon that any client has in any run; None if there is none.

    An epsilon says nothing without the `unit` and the `delta` that stand beside it.
    """
    given = [g for e in runs for of in e.guarantees.values() for g in of.values()]
    return max(given, key=lambda g: float(g["epsilon"]), default=None)


def largest_epsilon(runs: Sequence[Evidence]) -> float | None:
    """The largest epsilon promised to any client in any run; None if nothing was."""
    found = largest_promise(runs)
    return None if found is None else float(found["epsilon"])


def promise_words(runs: Sequence[Evidence]) -> str:
    """The same with its unit and delta: "per person at delta 1e-05"; empty if there is none."""
    found = largest_promise(runs)
    return "" if found is None else f"per {found['unit']} at delta {float(found['delta']):g}"


def epsilon_limits(policy: Policy) -> list[Limit]:
    return [x for x in policy.limits if x.metric == EPSILON]
