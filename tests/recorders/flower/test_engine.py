"""Our federations on Flower's nodes: the same trace, wherever a client was trained."""

import numpy as np
import pytest

from fedaudit.errors import TraceError, UsageError
from fedaudit.trace import Trace, Truth

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from fedaudit.flower import run_in_process
from fedaudit.recorders.flower.engine import client_app, server_app
from fedaudit.recorders.flower.runtime import choose_engine, record
from fedaudit.study import run
from fedaudit.study.remote import train_one

SMALL = {
    "seed": 11,
    "data": {"name": "digits"},
    "federation": {"clients": 4, "rounds": 3, "participation": 0.75, "server_momentum": 0.5},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "training": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
    "protections": {"dp_sgd": {"noise_multiplier": 0.5, "clip": 1.0}, "shuffle": {}},
    "audits": {"coverage": {}},
}


def in_this_process(config, path, progress, train=train_one):
    """The engine of `--engine flower`, on the small grid instead of Ray."""
    failed = []
    play = server_app(lambda grid, _: record(grid, config, path, progress, 30.0), failed)
    run_in_process(play, client_app(train), 4)
    if failed:
        raise failed[0]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "run"
    run(SMALL, path)
    return path


def agree(one, other):
    """Every message and every number of two traces, to 1e-5."""
    a, b = Trace.open(one / "trace"), Trace.open(other / "trace")
    assert a.manifest.layouts == b.manifest.layouts
    assert a.manifest.federation == b.manifest.federation
    assert len(a.rounds) == len(b.rounds)
    largest = 0.0
    for number in a.rounds:
        assert a.messages(number) == b.messages(number)
        largest = max(largest, float(np.abs(a.block(number) - b.block(number)).max()))
        first, second = Truth.open(one / "truth"), Truth.open(other / "truth")
        assert first.senders(number) == second.senders(number)
    assert largest <= 1e-5
    return largest


def test_nodes_of_flower_give_the_trace_of_the_local_engine(local, tmp_path):
    told = set()

    def listening(experiment, model, client, number):
        told.add(experiment)
        return train_one(experiment, model, client, number)

    result = run(SMALL, tmp_path / "run", engine=lambda *a: in_this_process(*a, train=listening))
    agree(local, tmp_path / "run")
    # the text that travels is the experiment, not what will be asked of it
    assert len(told) == 1
    assert "coverage" not in told.pop()
    assert [f.audit for f in result.findings] == ["coverage"]


def test_a_node_that_is_lost_stops_the_run_and_the_same_command_goes_on(local, tmp_path):
    def flaky(experiment, model, client, number):
        if number == 3 and client == 2:
            raise ConnectionError("the node is gone")
        return train_one(experiment, model, client, number)

    def breaking(config, path, progress):
        in_this_process(config, path, progress, flaky)

    with pytest.raises(TraceError, match="did not train in round 3") as stopped:
        run(SMALL, tmp_path / "run", engine=breaking)
    assert "the node is gone" in stopped.value.got
    trace = Trace.open(tmp_path / "run" / "trace")
    assert len(trace.rounds) == 2
    assert not trace.manifest.complete
    run(SMALL, tmp_path / "run", engine=in_this_process)
    agree(local, tmp_path / "run")


def test_every_client_needs_a_node(tmp_path):
    more = {**SMALL, "federation": {**SMALL["federation"], "clients": 6}}

    def impatient(config, path, progress):
        failed = []
        play = server_app(lambda grid, _: record(grid, config, path, progress, 0.1), failed)
        run_in_process(play, client_app(train_one), 4)
        raise failed[0]

    with pytest.raises(UsageError, match="6 nodes, one per client"):
        run(more, tmp_path / "run", engine=impatient)


def test_engines_have_names():
    assert choose_engine("local", None) is None
    assert callable(choose_engine("flower", None))
    assert callable(choose_engine("flower", "127.0.0.1:9093"))
    for engine, superlink in (("ray", None), ("local", "127.0.0.1:9093")):
        with pytest.raises(UsageError, match="no such engine"):
            choose_engine(engine, superlink)
