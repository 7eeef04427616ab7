"""Who a node is: over restarts, in errors that Flower writes itself, and outside of all metrics."""

import pytest

from fedaudit.trace import SERVER, Trace
from fedaudit.trace.examination import examine

flwr = pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Error, Message  # noqa: E402
from flwr.common.constant import SUPERLINK_NODE_ID  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402

from fedaudit.flower import RecordingStrategy, site_name_mod  # noqa: E402

SITES = [f"client-{i}" for i in range(4)]


class Between:
    """A grid whose replies `deliver(round, messages, replies)` may change."""

    def __init__(self, grid, deliver):
        self._grid, self._deliver, self._round = grid, deliver, 0

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        if not messages or messages[0].metadata.message_type != "train":
            return replies
        self._round += 1
        return self._deliver(self._round, messages, replies)


def dead(message):
    """The error that the SuperLink answers for a node that is gone."""
    reply = Message(Error(code=3, reason="node unavailable"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    assert reply.metadata.src_node_id == SUPERLINK_NODE_ID
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    return reply


def test_a_dead_nodes_error_is_its_own(apps, tmp_path):
    def deliver(number, messages, replies):
        if number != 2:
            return replies
        (gone,) = (m for m in messages if m.metadata.dst_node_id == 1002)
        return [r for r in replies if r.metadata.src_node_id != 1002] + [dead(gone)]

    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, grids=lambda grid: Between(grid, deliver))
    trace = Trace.open(tmp_path / "t")
    (failed,) = (m for m in trace.messages(2) if "failed" in m.notes)
    assert (failed.sender, failed.notes["failed"]) == ("node-1002", "node unavailable")
    health = examine(trace)
    assert set(health.by_party) == {f"node-{1000 + i}" for i in range(4)}
    assert [(a.arrived, a.expected) for a in health.by_round.values()] == [(4, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("how", ["mod", "metric"])
def test_names_travel_outside_of_what_is_averaged(how, apps, tmp_path):
    plain = apps.run(strategies.FedAvg())
    by_metric = {"name_by": "partition-id"} if how == "metric" else {}
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", **by_metric)
    client = {"metrics": {"partition-id": 0}} if how == "metric" else {"mods": [site_name_mod()]}
    named = apps.run(strategy, **client)
    assert named.train_metrics_clientapp == plain.train_metrics_clientapp
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.federation["clients"] == SITES
    assert sorted(trace.seen_by(SERVER).updates(3).senders) == SITES
    told = {key for m in trace.messages(1) if m.sender != SERVER for key in m.metadata}
    assert told == {"num-examples", "loss"}


def test_a_node_that_is_asked_later_has_its_name_too(apps, tmp_path):
    some = strategies.FedAvg(fraction_train=0.5, min_train_nodes=2)
    apps.run(RecordingStrategy(some, tmp_path / "t"), rounds=6, mods=[site_name_mod()])
    view = Trace.open(tmp_path / "t").seen_by(SERVER)
    asked = [set(view.updates(n).senders) for n in view.rounds]
    assert len(asked[0]) == 2
    assert set().union(*asked) == set(SITES)


def renumbered(grid, offset):
    """The same sites under other node identifiers, as after a restart without keys."""

    class Restarted(Between):
        def get_node_ids(self):
            return [n + offset for n in self._grid.get_node_ids()]

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for m in messages:
                m.metadata.__dict__["_dst_node_id"] -= offset
            replies = list(self._grid.send_and_receive(messages, timeout=timeout))
            for r in replies:
                r.metadata.__dict__["_src_node_id"] += offset
            for m in messages:
                m.metadata.__dict__["_dst_node_id"] += offset
            return replies

    return Restarted(grid, None)


def test_a_site_keeps_its_name_when_its_node_gets_another_identifier(apps, tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", resume=True)
    mods = [site_name_mod()]
    apps.run(strategy, rounds=1, mods=mods)
    apps.run(strategy, rounds=1, mods=mods, grids=lambda grid: renumbered(grid, 500))
    # and the server's own process starts again
    again = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", resume=True)
    apps.run(again, rounds=1, mods=mods, grids=lambda grid: renumbered(grid, 900))
    trace = Trace.open(tmp_path / "t")
    view = trace.seen_by(SERVER)
    assert [sorted(view.updates(n).senders) for n in trace.rounds] == [SITES] * 3
    assert set(examine(trace).by_party) == set(SITES)
    assert not any("joined" in m.notes for n in trace.rounds for m in trace.messages(n))


def test_two_nodes_of_one_name_stay_two(apps, tmp_path, caplog):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, nodes=3, rounds=1, mods=[site_name_mod(name="north")])
    senders = sorted(Trace.open(tmp_path / "t").seen_by(SERVER).updates(1).senders)
    assert len(senders) == 3
    assert "north" in senders
    assert [s.startswith("node-") for s in senders] == [True, True, False]
    assert "cannot be called 'north'" in caplog.text


def test_a_reserved_word_is_nobodys_name(apps, tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, nodes=2, rounds=1, mods=[site_name_mod(name="wiretap")])
    trace = Trace.open(tmp_path / "t")
    assert sorted(trace.seen_by(SERVER).updates(1).senders) == ["node-1000", "node-1001"]
