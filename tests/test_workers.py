"""Split work gives the same results; a failed job does not stop the others."""

import os
from contextlib import closing

import pytest

from fedaudit.errors import UsageError
from fedaudit.workers import JobFailed, current_workers, fan_out, parse_workers, use_workers


def halved(number):
    if number % 2:
        raise UsageError("odd", expected="an even number", got=str(number), remedy="add one")
    return number // 2, os.getpid()


def test_every_job_ends_once_whatever_becomes_of_the_others():
    jobs = {f"job {n}": (n,) for n in range(5)}
    with closing(fan_out(halved, jobs, 2)) as outcomes:
        found = dict(outcomes)
    assert found.keys() == jobs.keys()
    for n in range(5):
        outcome = found[f"job {n}"]
        if n % 2:
            assert isinstance(outcome, JobFailed)
            assert "an even number" in outcome.why
        else:
            assert outcome[0] == n // 2
            assert outcome[1] != os.getpid()


def test_a_command_names_its_workers_for_as_long_as_it_lasts():
    assert current_workers() is None
    with use_workers(3):
        assert current_workers() == 3
        with use_workers("ray"):
            assert current_workers() == "ray"
        assert current_workers() == 3
    assert current_workers() is None


@pytest.mark.parametrize(
    "text", ["0", "-1", "two", "ray://", "ray://head", "ray://:1x", "many", "rays"]
)
def test_workers_that_nobody_knows_are_refused(text):
    with pytest.raises(UsageError, match="a number of processes"):
        parse_workers(text)


def test_workers_are_a_number_or_ray():
    assert [parse_workers(t) for t in (None, "3", "ray", "ray://head:1")] == [
        None,
        3,
        "ray",
        "ray://head:1",
    ]
