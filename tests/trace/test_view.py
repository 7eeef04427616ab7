"""Views: what each party sees and no more, updates, and that a view changes nothing."""

from pathlib import Path

import numpy as np
import pytest

from fedaudit.errors import NotObservable, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Recorder,
    Trace,
)
from fedaudit.trace.examination import examine
from fedaudit.trace.health import Health

D = 7
LAYOUTS = {"model": Layout.of([("a.w", (2, 2)), ("b", (1,)), ("a.v", (2,))])}
CLIENTS = ["c0", "c1", "c2"]


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)


def recorded(folder: Path, *rounds, **options) -> Trace:
    recorder = Recorder(folder, layouts=LAYOUTS, **options)
    for act in rounds:
        with recorder.round() as wire:
            act(wire)
    recorder.close()
    return Trace.open(folder)


def star(down: np.ndarray, up: np.ndarray, kind: str = "delta", **more):
    """One model (d,) for all or one each (3, d), then one upload per client."""

    def act(wire) -> None:
        sent = wire.put_once("model", down) if down.ndim == 1 else down
        wire.send_rows("model", [SERVER] * 3, CLIENTS, sent, step=0)
        wire.send_rows(kind, CLIENTS, [SERVER] * 3, up, step=1, **more)

    return act


# -- updates ----------------------------------------------------------------------------------


def test_delta_is_taken_as_it_crossed(tmp_path: Path) -> None:
    up = rows(3)
    trace = recorded(tmp_path, star(rows(1, 9)[0], up, weights=[1, 2, 3]))
    got = trace.seen_by(SERVER).updates(1)
    assert np.array_equal(got.rows, up)
    assert got.senders == tuple(CLIENTS)
    assert got.weights.tolist() == [1, 2, 3]
    assert got.messages.tolist() == [3, 4, 5]
    assert got.rows.dtype == np.float32


def test_model_minus_the_model_received(tmp_path: Path) -> None:
    down, up = rows(1, 9)[0], rows(3)
    trace = recorded(tmp_path, star(down, up, "model"))
    assert np.array_equal(trace.seen_by(SERVER).updates(1).rows, up - down)


def test_planted_models_differ_by_client(tmp_path: Path) -> None:
    down, up = rows(3, 9), rows(3)
    trace = recorded(tmp_path, star(down, up, "model"))
    assert np.array_equal(trace.seen_by(SERVER).updates(1).rows, up - down)
    assert np.array_equal(trace.seen_by("c1").updates(1).rows, (up - down)[1:2])


def test_gradient_with_its_sign_turned(tmp_path: Path) -> None:
    up = rows(3)
    trace = recorded(tmp_path, star(rows(1, 9)[0], up, "gradient"))
    assert np.array_equal(trace.seen_by(SERVER).updates(1).rows, -up)


def test_kinds_may_be_mixed(tmp_path: Path) -> None:
    down, up = rows(1, 9)[0], rows(3)

    def act(wire) -> None:
        wire.send_rows("model", [SERVER] * 3, CLIENTS, wire.put_once("model", down), step=0)
        for kind, c, row in zip(("delta", "model", "gradient"), CLIENTS, up, strict=True):
            wire.send(kind, c, SERVER, row, step=1)

    got = recorded(tmp_path, act).seen_by(SERVER).updates(1).rows
    assert np.array_equal(got, np.stack([up[0], up[1] - down, -up[2]]))


def test_a_selection_of_tensors(tmp_path: Path) -> None:
    down, up = rows(3, 9), rows(3)
    trace = recorded(tmp_path, star(down, up, "model"))
    view = trace.seen_by(SERVER)
    assert np.array_equal(view.updates(1, "b").rows, (up - down)[:, 4:5])
    apart = [0, 1, 2, 3, 5, 6]  # not adjacent
    assert np.array_equal(view.updates(1, "a.*").rows, (up - down)[:, apart])
    assert np.array_equal(view.payload(1, 4, ["a.w", "a.v"]), up[1, apart])
    with pytest.raises(UsageError, match="no tensor matches"):
        view.updates(1, "c")


def test_a_model_of_an_earlier_round_counts(tmp_path: Path) -> None:
    first, second = rows(1, 8)[0], rows(1, 9)[0]
    up = rows(3)

    def late(wire) -> None:
        wire.send("model", SERVER, "c1", second, step=0)
        wire.send_rows("model", CLIENTS, [SERVER] * 3, up, step=1)
        wire.send("model", SERVER, "c0", second, step=2)  # after it had sent

    trace = recorded(tmp_path, star(first, rows(3, 7)), late)
    trace.health = Health()  # the caller states that nothing is lost
    got = trace.seen_by(SERVER).updates(2).rows
    assert np.array_equal(got, up - np.stack([first, second, first]))
    # in round 3 it would start from the model that came last
    assert np.array_equal(trace.seen_by("c0").received(2, "c0", before=9), second)


def test_two_exchanges_in_one_round(tmp_path: Path) -> None:
    down, up = rows(2, 9), rows(2)

    def act(wire) -> None:
        for i in range(2):
            wire.send("model", SERVER, "c0", down[i])
            wire.send("model", "c0", SERVER, up[i])

    got = recorded(tmp_path, act).seen_by(SERVER).updates(1)
    assert np.array_equal(got.rows, up - down)
    assert got.senders == ("c0", "c0")


def test_without_a_downlink_there_is_no_update(tmp_path: Path) -> None:
    trace = recorded(tmp_path, lambda w: w.send("model", "c0", SERVER, rows(1)[0]))
    with pytest.raises(TraceError) as caught:
        trace.seen_by(SERVER).updates(1)
    assert caught.value.code == "torn_recording"
    trace.health = Health()
    with pytest.raises(NotObservable, match="which model c0 had received"):
        trace.seen_by(SERVER).updates(1)


def test_a_torn_trace_is_refused_by_whoever_opens_it(tmp_path: Path, monkeypatch) -> None:
    """The view examines tables by itself, once; whole rounds stay readable."""
    first, second, up = rows(1, 8)[0], rows(1, 9)[0], rows(3)

    def lacking(wire) -> None:
        wire.send_rows("model", [SERVER] * 2, CLIENTS[:2], wire.put_once("model", second), step=0)
        wire.send_rows("model", CLIENTS, [SERVER] * 3, up, step=1)

    read = []
    reading = Trace.read_round
    monkeypatch.setattr(
        Trace, "read_round", lambda self, n, **how: read.append(n) or reading(self, n, **how)
    )
    trace = recorded(tmp_path, star(first, up, "model"), lacking, star(first, up, "delta"))
    view = trace.seen_by(SERVER)
    for _ in range(2):
        with pytest.raises(TraceError) as caught:
            view.updates(2)
        assert caught.value.code == "torn_recording"
        assert np.array_equal(view.updates(1).rows, up - first)
        assert np.array_equal(trace.seen_by(SERVER).updates(3).rows, up)
    assert len(read) == 2 * 3  # one reading to examine, one to use
    assert examine(trace, payloads=False) is trace.health


def test_half_precision_models(tmp_path: Path) -> None:
    down, up = rows(1, 9)[0], rows(3)
    trace = recorded(tmp_path, star(down, up, "model"), dtype="float16")
    got = trace.seen_by(SERVER).updates(1).rows
    half = [a.astype(np.float16).astype(np.float32) for a in (up, down)]
    assert np.array_equal(got, half[0] - half[1])


# -- anonymous --------------------------------------------------------------------------------


def shuffled(down: np.ndarray, up: np.ndarray, kind: str, plaintext: bool = False):
    def act(wire) -> None:
        sent = wire.put_once("model", down) if down.ndim == 1 else down
        wire.send_rows("model", [SERVER] * 3, CLIENTS, sent, step=0)
        for i, c in enumerate(CLIENTS):
            wire.send(kind, c, SHUFFLER, up[i] if plaintext else None, step=1, size=28)
        order = [2, 0, 1]
        wire.send_rows(kind, [ANONYMOUS] * 3, [SERVER] * 3, up[order], step=2)
        wire.send("model", SERVER, PUBLIC, rows(1, 5)[0], step=3)

    return act


@pytest.mark.parametrize("kind", ["delta", "model"])
def test_anonymous_updates(tmp_path: Path, kind: str) -> None:
    down, up = rows(1, 9)[0], rows(3)
    trace = recorded(tmp_path, shuffled(down, up, kind))
    expected = (up - down if kind == "model" else up)[[2, 0, 1]]
    for party in (SERVER, WIRETAP):
        got = trace.seen_by(party).updates(1)
        assert np.array_equal(got.rows, expected)
        assert got.senders == (ANONYMOUS,) * 3


def test_equal_anonymous_messages_count_each(tmp_path: Path) -> None:
    up = np.repeat(rows(1), 3, axis=0)
    trace = recorded(tmp_path, shuffled(rows(1, 9)[0], up, "delta"))
    got = trace.seen_by(SERVER).updates(1)
    assert got.rows.shape == (3, D)
    assert len(set(got.messages.tolist())) == 3


def test_anonymous_models_after_planting_have_no_update(tmp_path: Path) -> None:
    trace = recorded(tmp_path, shuffled(rows(3, 9), rows(3), "model"))
    with pytest.raises(NotObservable, match="which model anonymous"):
        trace.seen_by(SERVER).updates(1)


def test_parties_of_a_shuffled_trace(tmp_path: Path) -> None:
    trace = recorded(tmp_path, shuffled(rows(1, 9)[0], rows(3), "delta"))
    client = trace.seen_by("c1")
    assert [(m.sender, m.receiver) for m in client.messages(1)] == [
        (SERVER, "c1"),
        ("c1", SHUFFLER),
    ]
    with pytest.raises(NotObservable, match="encrypted message of 28 bytes"):
        client.payload(1, 4)
    with pytest.raises(NotObservable, match="does not see message 6"):
        client.payload(1, 6)
    shuffler = trace.seen_by(SHUFFLER)
    assert [m.sender for m in shuffler.messages(1)] == CLIENTS
    for party in (client, shuffler):
        with pytest.raises(NotObservable, match="no single client's update"):
            party.updates(1)
    with pytest.raises(UsageError, match="no party 'anonymous'"):
        trace.seen_by(ANONYMOUS)


def test_a_shuffler_that_reads_is_not_counted_twice(tmp_path: Path) -> None:
    up = rows(3)
    trace = recorded(tmp_path, shuffled(rows(1, 9)[0], up, "delta", plaintext=True))
    for party in (WIRETAP, SHUFFLER):
        got = trace.seen_by(party).updates(1)
        assert got.senders == tuple(CLIENTS)
        assert np.array_equal(got.rows, up)
    assert trace.seen_by(SERVER).updates(1).senders == (ANONYMOUS,) * 3


def test_a_secure_sum_has_no_single_update(tmp_path: Path) -> None:
    def act(wire) -> None:
        wire.send_rows("masked", CLIENTS, [AGGREGATOR] * 3, rows(3), step=0)
        wire.send("sum", AGGREGATOR, SERVER, rows(3).sum(axis=0), step=1)

    trace = recorded(tmp_path, act)
    assert trace.seen_by(SERVER).payload(1, 3).shape == (D,)
    for party in (SERVER, AGGREGATOR, WIRETAP):
        with pytest.raises(NotObservable, match="no single client's update"):
            trace.seen_by(party).updates(1)


# -- hierarchy --------------------------------------------------------------------------------

REGIONS = {"hubs": [SERVER, "region-0", "region-1"]}


def hierarchy(down: np.ndarray, up: np.ndarray, means: np.ndarray, kind: str, top: str):
    def act(wire) -> None:
        row = wire.put_once("model", down)
        wire.send_rows("model", [SERVER] * 2, REGIONS["hubs"][1:], row, step=0)
        wire.send_rows("model", ["region-0", "region-0", "region-1"], CLIENTS, row, step=1)
        wire.send_rows(kind, CLIENTS, ["region-0", "region-0", "region-1"], up, step=2)
        wire.send_rows(top, REGIONS["hubs"][1:], [SERVER] * 2, means, step=3, weights=[2.0, 1.0])

    return act


@pytest.mark.parametrize("kind", ["delta", "model"])
@pytest.mark.parametrize("top", ["delta", "model"])
def test_hierarchy(tmp_path: Path, kind: str, top: str) -> None:
    down, up = rows(1, 9)[0], rows(3)
    means = np.stack([up[:2].mean(axis=0), up[2] + 1])
    trace = recorded(tmp_path, hierarchy(down, up, means, kind, top), federation=REGIONS)
    clients = up - down if kind == "model" else up
    regions = means - down if top == "model" else means

    root = trace.seen_by(SERVER).updates(1)
    assert root.senders == ("region-0", "region-1")
    assert root.weights.tolist() == [2.0, 1.0]
    assert np.array_equal(root.rows, regions)
    everything = trace.seen_by(WIRETAP).updates(1)
    assert everything.senders == tuple(CLIENTS)
    assert np.array_equal(everything.rows, clients)
    region = trace.seen_by("region-0").updates(1)
    assert region.senders == ("c0", "c1")
    assert np.array_equal(region.rows, clients[:2])
    # a root that colludes with one region still sees the mean of the other
    both = trace.seen_by(SERVER, "region-0").updates(1)
    assert both.senders == ("c0", "c1", "region-1")
    assert np.array_equal(both.rows, np.stack([*clients[:2], regions[1]]))
    # colluding with a client loses nothing
    some = trace.seen_by(SERVER, "c0").updates(1)
    assert some.senders == ("c0", "region-0", "region-1")


# -- gossip -----------------------------------------------------------------------------------

#: a line c0 - c1 - c2; rows sum to 1
W = np.array([[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]])


def gossip(trained: np.ndarray, start: np.ndarray | None = None):
    def act(wire) -> None:
        if start is not None:
            wire.send_rows("model", [SERVER] * 3, CLIENTS, wire.put_once("model", start), step=0)
        for i in range(3):
            near = [j for j in range(3) if j != i and W[j, i]]
            wire.send_rows(
                "model",
                [CLIENTS[i]] * len(near),
                [CLIENTS[j] for j in near],
                wire.put_once("model", trained[i]),
                step=1,
                weights=[W[j, i] for j in near],
            )

    return act


def gossip_trace(folder: Path) -> tuple[Trace, list[np.ndarray]]:
    """Three rounds by the naive twin: train, send, mix."""
    start = rows(1, 9)[0]
    models = np.repeat(start[None], 3, axis=0).astype(np.float64)
    acts, deltas = [], []
    for t in range(3):
        deltas.append(rows(3, 20 + t))
        trained = (models + deltas[-1]).astype(np.float32)
        acts.append(gossip(trained, start if t == 0 else None))
        models = W @ trained
    return recorded(folder, *acts), deltas


def test_gossip_updates_are_relative_to_the_mixed_model(tmp_path: Path) -> None:
    trace, deltas = gossip_trace(tmp_path)
    for number, expected in enumerate(deltas, start=1):
        got = trace.seen_by(WIRETAP).updates(number)
        assert got.senders == tuple(CLIENTS)  # two neighbours, one update
        assert np.allclose(got.rows, expected, atol=1e-5)


def test_a_gossip_node_knows_its_own_update_only(tmp_path: Path) -> None:
    trace, deltas = gossip_trace(tmp_path)
    view = trace.seen_by("c0")
    assert {(m.sender, m.receiver) for m in view.messages(2)} == {("c0", "c1"), ("c1", "c0")}
    # c1's model also contains c2's: no guess from half of it
    with pytest.raises(NotObservable, match="which model c1 had received"):
        view.updates(2)
    own = view.updates(2, senders=["c0"])
    assert own.senders == ("c0",)
    assert np.allclose(own.rows, deltas[1][:1], atol=1e-5)
    # the neighbourhood of c1 is the whole line
    both = trace.seen_by("c1", "c2").updates(3, senders=["c1", "c2"])
    assert np.allclose(both.rows[both.senders.index("c2")], deltas[2][2], atol=1e-5)


def test_weights_that_make_no_mean_are_not_mixed(tmp_path: Path) -> None:
    def unweighted(wire) -> None:
        wire.send("model", "c0", "c1", rows(1, 1)[0], step=1)
        wire.send("model", "c2", "c1", rows(1, 2)[0], step=1)
        wire.send("model", "c1", "c0", rows(1, 3)[0], step=1)

    trace = recorded(tmp_path, unweighted, unweighted)
    with pytest.raises(NotObservable, match="do not make a mean"):
        trace.seen_by(WIRETAP).updates(2, senders=["c1"])


def test_a_model_handed_from_peer_to_peer_is_adopted(tmp_path: Path) -> None:
    path = rows(3)

    def relay(wire) -> None:
        wire.send("model", SERVER, "c0", path[0])
        wire.send("model", "c0", "c1", path[1])
        wire.send("model", "c1", SERVER, path[2])

    trace = recorded(tmp_path, relay)
    trace.health = Health()  # nothing was lost: a peer served c1
    got = trace.seen_by(WIRETAP).updates(1)
    assert np.array_equal(got.rows, path[1:] - path[:2])


# -- vantage ----------------------------------------------------------------------------------


def run_with_release(folder: Path) -> Trace:
    def last(wire) -> None:
        star(rows(1, 8)[0], rows(3, 7), metadata=[{"examples": i} for i in range(3)])(wire)
        wire.send("model", SERVER, PUBLIC, rows(1, 6)[0], step=2)

    return recorded(
        folder,
        star(rows(1, 9)[0], rows(3), weights=[5, 6, 7]),
        last,
        federation={"parties": [SERVER, *CLIENTS], "edges": [[0, 1]]},
        task={"kind": "linear", "hidden": [3]},
        declared=[{"name": "none", "covers": []}],
    )


def test_public_sees_the_released_model_alone(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    public = trace.seen_by(PUBLIC)
    assert public.messages(1) == ()
    assert [(m.sender, m.receiver) for m in public.messages(2)] == [(SERVER, PUBLIC)]
    assert np.array_equal(public.released(), rows(1, 6)[0])
    assert np.array_equal(public.released("b"), rows(1, 6)[0][4:5])
    assert public.task["kind"] == "linear"
    with pytest.raises(NotObservable):
        public.updates(2)
    with pytest.raises(NotObservable):
        public.payload(2, 0)
    with pytest.raises(NotObservable, match="released"):
        trace.seen_by("c0").released()
    assert np.array_equal(trace.seen_by("c0", PUBLIC).released(), rows(1, 6)[0])


def test_clients_and_coalitions_see_their_own_messages(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    for coalition in (("c0",), ("c0", "c2"), tuple(CLIENTS)):
        view = trace.seen_by(*coalition)
        for number in trace.rounds:
            for i, m in view.indexed(number):
                assert {m.sender, m.receiver} & set(coalition)
                assert trace.messages(number)[i] == m
        assert view.updates(1).senders == coalition
        assert np.array_equal(view.updates(1).rows, rows(3)[[CLIENTS.index(c) for c in coalition]])
        hidden = set(range(len(trace.messages(2)))) - {i for i, _ in view.indexed(2)}
        assert hidden
        for i in (*hidden, -1, 99):
            with pytest.raises(NotObservable, match="does not see message"):
                view.payload(2, i)
        with pytest.raises(NotObservable, match="topology"):
            _ = view.federation
    assert trace.seen_by("c0", "c0").parties == ("c0",)


def test_network_sees_who_when_and_how_large(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    network = trace.seen_by(NETWORK)
    for number in trace.rounds:
        seen, true = network.messages(number), trace.messages(number)
        assert [(m.step, m.sender, m.receiver, m.size) for m in seen] == [
            (m.step, m.sender, m.receiver, m.size) for m in true
        ]
        assert {m.kind for m in seen} == {"masked"}
        assert {m.weight for m in seen} == {1.0}
        assert not any(m.parts or m.metadata for m in seen)
    for ask in (
        lambda: network.updates(1),
        lambda: network.payload(1, 0),
        lambda: network.released(),
        lambda: network.received(1, "c0"),
        lambda: network.task,
    ):
        with pytest.raises(NotObservable, match="the network does not see"):
            ask()
    with pytest.raises(UsageError, match="coalition with the network"):
        trace.seen_by(NETWORK, SERVER)


def test_wiretap_sees_everything(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    view = trace.seen_by(WIRETAP)
    assert view.messages(2) == trace.messages(2)
    assert view.federation["edges"] == [[0, 1]]
    assert dict(view.messages(2)[5].metadata) == {"examples": 2}


def test_unknown_parties_rounds_and_layouts(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    with pytest.raises(UsageError, match="did you mean 'server'"):
        trace.seen_by("sever")
    with pytest.raises(UsageError, match="needs a party"):
        trace.seen_by()
    for number in (0, 3, -1):
        with pytest.raises(UsageError, match="no round"):
            trace.seen_by(SERVER).updates(number)
    with pytest.raises(UsageError, match="no layout 'integers'"):
        trace.block(1, "integers")


def test_a_view_changes_nothing(tmp_path: Path) -> None:
    trace = run_with_release(tmp_path)
    files = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    view = trace.seen_by(WIRETAP)
    for array in (
        view.updates(1).rows,
        view.updates(1, ["a.*"]).rows,
        view.payload(1, 3),
        view.released(),
        view.received(1, "c0"),
        trace.block(1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    view.federation["edges"].append([1, 2])
    view.task["hidden"].append(9)
    view.declared[0]["covers"].append("parameter")
    view.layouts.clear()
    with pytest.raises(TypeError):
        view.messages(2)[3].metadata["examples"] = 0
    with pytest.raises(TypeError):
        view.messages(2)[3].parts["model"] = 0
    assert view.federation["edges"] == [[0, 1]]
    assert view.task["hidden"] == [3]
    assert view.declared[0]["covers"] == []
    assert view.layouts
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == files


def test_a_run_folder_opens_its_trace(tmp_path: Path) -> None:
    run_with_release(tmp_path / "trace")
    assert len(Trace.open(tmp_path).rounds) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no trace"):
        Trace.open(tmp_path / "empty")
