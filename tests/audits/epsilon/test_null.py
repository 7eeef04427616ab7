"""Federations without a fault: contradictions stay below the stated rate."""

import pytest

from fedaudit.reporting.findings import contradicts

RUNS = 200


def contradictions(result):
    return [
        name
        for name, bound in result.bounds.items()
        if contradicts(bound, result.estimates[bound.of])
    ]


@pytest.mark.nightly
def test_two_hundred_runs_do_not_alarm(federation, audited):
    """Expected at a rate of 0.001 per run: 0.2 alarms; two or more have probability 0.018."""
    alarms = {}
    for seed in range(RUNS):
        found = contradictions(audited(federation(seed=seed), seed, canaries=1000))
        if found:
            alarms[seed] = found
    assert len(alarms) <= 1, alarms


def test_the_rate_holds_at_a_level_that_few_runs_can_test(federation, audited):
    """At a rate of one half, no more than 7 of 8 runs alarm: probability 0.004 if it holds."""
    runs = [audited(federation(seed=s), s, canaries=200, false_alarms=0.5) for s in range(8)]
    assert sum(bool(contradictions(r)) for r in runs) <= 7
