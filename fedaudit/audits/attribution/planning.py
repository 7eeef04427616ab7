"""What attribution needs in a config, and how many rounds it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting
from fedaudit.results import AuditResult, Need
from fedaudit.stats import plan_design, query_plans

MARKED = 0.3
"""Assumed share of clients that hold marks, for a federation that has not run yet."""
MOST_ROUNDS = 50
"""The search for a number of rounds ends at this multiple of the earliest possible one."""


def missing(setting: Setting) -> Need | None:
    if setting.recording:
        return Need(
            code="no_keys",
            what="looking for marks needs their owner's keys, which a recording does not hold",
            remedy="bring the owner's documents: `marks=folder`",
        )
    if not setting.marks:
        return Need(code="no_keys", what="there are no marked records: add [marks]")
    if not setting.subset_sums:
        return Need(
            code="only_totals" if setting.sums_by else "no_sums",
            what="there are no sums over subsets of clients: add [protections.secure_aggregation] "
            "with a plan",
        )
    return None


def samples(result: AuditResult, recorded: Recorded, aim: Aim) -> SampleSize:
    signal, noise = result.estimates.get("signal"), result.estimates.get("noise")
    effect = aim.effect
    if effect is None and signal is not None and noise is not None and noise.value > 0:
        effect = max(signal.value / noise.value, 1e-3)
    threshold = aim.threshold if recorded.threshold is None else recorded.threshold
    clients = max(2, result.estimates["clients_named"].n)
    found = samples_before(
        result.audit,
        replace(aim, effect=effect, clients=clients, threshold=min(threshold, clients)),
    )
    # the run may have used another plan, to which this closed form does not apply
    now = f"(recorded now, by the run's own plan: {recorded.rounds})"
    return replace(found, how=f"{found.how} {now}")


def samples_before(audit: str, aim: Aim) -> SampleSize:
    """Rounds of fresh partitions until marked clients are found with the power asked for."""
    from threadpoolctl import threadpool_limits

    effect = 1.0 if aim.effect is None else aim.effect
    # the closed form has one error for both sides
    error = min(1.0 - aim.power, 0.49)
    marked = max(1, round(MARKED * aim.clients))
    scores = plan_design.Scores(effect=effect, marked=marked, error=error)
    rounds = SampleSize(
        audit=audit, measure="marked clients found", unit="rounds", wanted=effect, needed=None
    )
    if aim.threshold < 1 or aim.clients < 2 * aim.threshold:
        return replace(
            rounds,
            how=f"{aim.clients} clients do not fill two groups of {aim.threshold}, so no client "
            "can be told apart: use smaller groups or more clients",
        )
    groups = query_plans.group_count(aim.clients, aim.threshold)
    earliest = query_plans.rounds_to_identify(aim.clients, groups)
    rng = np.random.default_rng(1)
    with threadpool_limits(1):
        found = plan_design.rounds_needed(
            lambda t: query_plans.random_partitions(aim.clients, aim.threshold, t, rng),
            scores,
            first=earliest,
            most=MOST_ROUNDS * earliest,
            plans=10,
        )
    return replace(
        rounds,
        needed=found.rounds,
        how=f"rounds with fresh groups of {aim.threshold} among {aim.clients} clients"
        + (f"; over {found.most}" if found.rounds is None else "")
        + "; compare plans with `fedaudit plan design`",
        rule="expected power of least squares over 10 drawn plans; effect: what a mark adds to a "
        "group's score, in deviations of its noise",
    )
