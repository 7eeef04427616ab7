"""Limits of a hardening: those of the gate, checked on one or several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.decide.gate.check import check_estimate, check_limit, limit_text
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

WORST_FIRST: tuple[Status, ...] = ("failed", "missing", "allowed", "passed")


def load_limits(
    file: str | Path | Mapping[str, Any] | None = None, lines: Sequence[str] = ()
) -> Policy:
    """Read limits from a policy (a file or its values), from lines such as "epsilon <= 8", or
    both."""
    if file is None and not lines:
        raise UsageError(
            "no limit is given",
            expected="limits that a protection must keep",
            got="none",
            remedy='`limits=["fingerprint.linkage_accuracy <= 1.5 x chance"]`, or `policy=FILE`',
        )
    if file is None:
        raw: dict[str, Any] = {}
        where = "the limits"
    elif isinstance(file, Mapping):
        raw, where = dict(file), "the policy"
    else:
        raw, where = _read(Path(file)), str(file)
    listed = raw.get("limit", [])
    if lines and isinstance(listed, list):
        raw["limit"] = [*listed, *(read_limit(line) for line in lines)]
    policy = replace(load_policy(raw), where=where)
    for limit in policy.limits:
        if limit.federation is not None or limit.variant is not None:
            raise ConfigError(
                f"limit {limit.name!r} names a run of a study",
                expected="limits without federation and variant",
                got=limit.federation or limit.variant,
                remedy="remove federation and variant",
            )
    refuse_zero_epsilon(policy)
    return policy


def refuse_zero_epsilon(policy: Policy) -> None:
    """Refuse an epsilon of 0, which no amount of noise reaches."""
    for limit in epsilon_limits(policy):
        if limit.at_most is not None and limit.at_most <= 0:
            raise ConfigError(
                f"no noise can keep limit {limit.name!r}",
                expected="an epsilon above 0: at 0 the model must not depend on the data",
                got=f"epsilon <= {limit.at_most:g}",
                remedy='`limits=["epsilon <= 8"]`',
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except Unreadable as error:
        what, remedy = f"cannot read the limits {path}", "correct the file; text needs quotes"
        if error.absent or error.empty:
            remedy = f"write one with `fedaudit gate --init {path}`, or use `limits`"
        raise error.as_error(ConfigError, what, remedy) from None


def audits_for(policy: Policy, configured: Sequence[str]) -> list[str]:
    """The audits that the limits need."""
    named = [x.audit for x in policy.limits if x.audit]
    if any(x.metric == VERDICT for x in policy.limits):
        named += configured
    return list(dict.fromkeys(named))


def drawn_limits(policy: Policy) -> list[Limit]:
    """Limits on an estimate of the whole federation: those that a figure shows."""
    return [x for x in policy.limits if x.audit and not x.is_verdict and not x.per_client]


# -- one limit, several runs ---------------------------------------------------------------------


def check_limits(
    policy: Policy, runs: Sequence[Evidence], loss: Estimate | str
) -> tuple[LimitCheck, ...]:
    """Check every limit on the runs of one protection, one run per seed.

    A number of the federation is the mean over seeds with its interval. A limit per client, on a
    verdict or on epsilon must hold in every run. `loss` is `accuracy_loss`, or why it is missing.
    """
    out: list[LimitCheck] = []
    for limit in policy.limits:
        if limit.metric == LOSS:
            out.append(_check_loss(limit, loss, policy))
            continue
        mean = pooled(limit, runs) if policy.confidence <= POOLED + 1e-9 else None
        if mean is not None:
            out.append(check_estimate(limit, mean, policy))
            continue
        each = [check_limit(limit, e, policy) for e in runs]
        for name in dict.fromkeys(c.limit for checks in each for c in checks):
            same = [(n, c) for n, checks in enumerate(each, 1) for c in checks if c.limit == name]
            n, worst = min(same, key=lambda pair: WORST_FIRST.index(pair[1].status))
            if len(runs) > 1 and worst.status != "passed":
                worst = replace(worst, run=f"run {n} of {len(runs)}")
            out.append(replace(worst, file=""))
    return tuple(out)


def _check_loss(limit: Limit, loss: Estimate | str, policy: Policy) -> LimitCheck:
    if isinstance(loss, Estimate):
        return check_estimate(limit, loss, policy)
    return LimitCheck(
        limit=limit.name,
        metric=limit.metric,
        rule=limit_text(limit),
        status="allowed" if limit.name in policy.allow_missing else "missing",
        missing=loss,
        why=limit.why,
    )


def estimates(limit: Limit, runs: Sequence[Evidence]) -> list[Estimate]:
    """The limited estimate of every run; empty if a run does not state it."""
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
    """The mean over several runs with its interval; None for a single run."""
    found = estimates(limit, runs)
    return mean_over_seeds(found) if len(found) > 1 else None


def mean_over_seeds(found: Sequence[Estimate], share: bool = True) -> Estimate:
    """Mean of estimates over seeds. `share`: values lie in [0, 1]; else they can be negative."""
    exact = {(e.value, e.low, e.high) for e in found if e.confidence >= 1}
    if len(found) == 1 or (len(exact) == 1 and all(e.confidence >= 1 for e in found)):
        return found[0]
    # shifted far from 0, so that `over_seeds` does not clip them like shares
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


def why_noise_cannot_help(checks: Sequence[LimitCheck], runs: Sequence[Evidence]) -> str:
    """Why more noise cannot help; empty if it may.

    The leak is known outright, the audit does not apply to these uploads, or it has too few records
    or rounds.
    """
    for check in checks:
        audit, _, name = check.metric.partition(".")
        results = [e.results[audit] for e in runs if audit in e.results]
        if check.status == "failed" and any(r.known for r in results):
            return f"{check.limit}: known outright, noise does not hide it"
        if check.status != "missing" or not name:
            continue
        small = name != VERDICT and check.code == "underpowered"
        if small or any(r.headline is None for r in results):
            return f"{check.limit}: {check.missing}"
    return ""


def largest_promise(runs: Sequence[Evidence]) -> Mapping[str, Any] | None:
    """The promise with the largest epsilon over clients and runs; None without promises."""
    given = [g for e in runs for of in e.guarantees.values() for g in of.values()]
    return max(given, key=lambda g: float(g["epsilon"]), default=None)


def largest_epsilon(runs: Sequence[Evidence]) -> float | None:
    """Largest promised epsilon over clients and runs; None without promises."""
    found = largest_promise(runs)
    return None if found is None else float(found["epsilon"])


def promise_text(runs: Sequence[Evidence]) -> str:
    """Its unit and delta, "per person at delta 1e-05"; empty without promises."""
    found = largest_promise(runs)
    return "" if found is None else f"per {found['unit']} at delta {float(found['delta']):g}"


def measured_epsilon(runs: Sequence[Evidence]) -> float | None:
    """Largest epsilon that canaries showed in a rehearsal of the runs; None without one."""
    name = EpsilonAudit.name
    found = [e.results[name] for e in runs if name in e.results and name not in e.stale]
    return max((r.estimates[name].low for r in found if r.status == "ok"), default=None)


def epsilon_limits(policy: Policy) -> list[Limit]:
    return [x for x in policy.limits if x.metric == EPSILON]
