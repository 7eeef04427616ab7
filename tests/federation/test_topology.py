import inspect

import networkx as nx
import numpy as np
import pytest

from fedaudit.errors import DataError, UsageError
from fedaudit.federation.topology import KINDS, Topology, build
from fedaudit.randomness import Seed

SEED = Seed(7)
SETTINGS = {"hierarchical": {"sizes": (5, 4, 3)}, "star": {"hub": "client"}}
BUILT_IN = [kind for kind in KINDS if kind != "edge_list"]

# Degrees behind the published bounds of the topology sweep, n = 50.
PUBLISHED_DEGREES = {
    "ring": [2] * 50,
    "line": [1] + [2] * 48 + [1],
    "star": [49] + [1] * 49,
    "hierarchical": [19] * 20 + [14] * 15 + [9] * 10 + [2, 2, 2, 1, 1],
}


@pytest.fixture(params=BUILT_IN)
def topology(request):
    return build(request.param, 12, SEED, **SETTINGS.get(request.param, {}))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ring", {}),
        ("line", {}),
        ("star", {"hub": "client"}),
        ("hierarchical", {"sizes": (20, 15, 10, 3, 2), "joined": "none"}),
    ],
)
def test_published_degrees(kind, settings):
    assert build(kind, 50, SEED, **settings).degree.tolist() == PUBLISHED_DEGREES[kind]


def test_every_builder_takes_n_and_seed_and_the_settings_listed():
    for kind, row in KINDS.items():
        parameters = list(inspect.signature(row.build).parameters)
        assert parameters == ["n", "seed", *row.settings], kind
        assert row.summary


def test_graph_facts_equal_networkx(topology):
    g = nx.Graph(topology.edges)
    g.add_nodes_from(range(12))
    assert topology.degree.tolist() == [g.degree(i) for i in range(12)]
    np.testing.assert_array_equal(
        topology.adjacency, nx.to_numpy_array(g, nodelist=range(12)).astype(bool)
    )
    for i in range(12):
        assert topology.neighbours(i) == tuple(sorted(g.neighbors(i)))
    assert (len(topology.components) == 1) == nx.is_connected(g)
    assert {frozenset(c) for c in topology.components} == {
        frozenset(c) for c in nx.connected_components(g)
    }


@pytest.mark.parametrize("kind", BUILT_IN)
def test_settings_are_kept_and_rebuild_the_same(kind):
    first = build(kind, 12, SEED, **SETTINGS.get(kind, {}))
    assert first.kind == kind
    assert build(kind, 12, SEED, **first.settings) == first


@pytest.mark.parametrize("kind", BUILT_IN)
def test_only_random_kinds_depend_on_the_seed(kind):
    drawn = {build(kind, 12, Seed(root)).edges for root in range(6)}
    assert (len(drawn) > 1) == KINDS[kind].random


@pytest.mark.parametrize("kind", BUILT_IN)
def test_topologies_of_one_client(kind):
    if kind == "barabasi_albert":
        with pytest.raises(UsageError, match="m does not fit"):
            build(kind, 1, SEED)
        return
    alone = build(kind, 1, SEED, **({"k": 0} if kind == "k_regular" else {}))
    assert alone.edges == ()
    assert len(alone.components) == 1
    assert alone.degree.tolist() == [0]
    np.testing.assert_array_equal(alone.metropolis_weights(), [[1.0]])
    with pytest.raises(UsageError, match="n >= 1"):
        build(kind, 0, SEED)


def test_two_clients_on_a_ring_share_one_edge():
    assert build("ring", 2, SEED).edges == ((0, 1),)


def test_star_around_the_server_has_no_edges_among_clients():
    star = build("star", 5, SEED)
    assert star.edges == ()
    assert star.settings == {"hub": "server"}
    assert len(star.components) == 5


def test_metropolis_weights_equal_the_loop(topology):
    w, d = topology.metropolis_weights(), topology.degree
    for i in range(12):
        for j in range(12):
            if i != j:
                edge = (min(i, j), max(i, j)) in topology.edges
                assert w[i, j] == (1 / (1 + max(d[i], d[j])) if edge else 0.0)
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1.0, atol=1e-15)
    assert (w >= 0).all()
    assert w.dtype == np.float64


def test_gossip_keeps_the_mean_and_reaches_it_where_connected(topology):
    x = np.random.default_rng(0).normal(size=12)
    mixed = np.linalg.matrix_power(topology.metropolis_weights(), 2000) @ x
    for members in topology.components:
        index = list(members)
        np.testing.assert_allclose(mixed[index], x[index].mean(), atol=1e-8)


def test_hierarchy_has_organisations_and_a_root():
    h = build("hierarchical", 12, SEED, sizes=[5, 4, 3])
    assert h.organisations == (0,) * 5 + (1,) * 4 + (2,) * 3
    assert {(0, 5), (0, 9), (5, 9)} <= set(h.edges)
    assert len(h.edges) == 10 + 6 + 3 + 3
    star = build("hierarchical", 12, SEED, sizes=[5, 4, 3], joined="star")
    assert set(h.edges) - set(star.edges) == {(5, 9)}
    apart = build("hierarchical", 12, SEED, sizes=[5, 4, 3], joined="none")
    assert [len(c) for c in apart.components] == [5, 4, 3]


def test_hierarchy_by_default_has_about_root_n_equal_cliques():
    h = build("hierarchical", 11, SEED)
    assert h.settings["sizes"] == (4, 4, 3)
    assert len(h.components) == 1


def test_random_kinds_follow_their_law():
    degrees = [build("erdos_renyi", 40, Seed(r), p=0.25).degree.mean() for r in range(60)]
    assert np.mean(degrees) == pytest.approx(39 * 0.25, abs=0.25)
    assert set(build("k_regular", 20, SEED, k=3).degree.tolist()) == {3}
    scale_free = build("barabasi_albert", 50, SEED, m=4)
    assert len(scale_free.edges) == 4 * (50 - 4)
    assert build("erdos_renyi", 9, SEED, p=1.0).edges == build("complete", 9, SEED).edges


def test_settings_that_do_not_fit_are_refused():
    for kind, settings in (
        ("erdos_renyi", {"p": 1.5}),
        ("barabasi_albert", {"m": 0}),
        ("k_regular", {"k": 3, "n": 5}),
        ("hierarchical", {"sizes": [3, 3]}),
        ("hierarchical", {"sizes": [5, 0]}),
        ("hierarchical", {"joined": "non"}),
        ("star", {"hub": "clientt"}),
    ):
        with pytest.raises(UsageError) as caught:
            build(kind, 5, SEED, **{k: v for k, v in settings.items() if k != "n"})
        assert caught.value.expected
        assert caught.value.remedy


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'erdos_renyi'"):
        build("erdos_reny", 5, SEED)
    with pytest.raises(UsageError, match="did you mean 'sizes'"):
        build("hierarchical", 5, SEED, size=[5])
    with pytest.raises(UsageError, match="remove 'k'"):
        build("ring", 5, SEED, k=2)
    with pytest.raises(UsageError, match="needs a file"):
        build("edge_list", 5, SEED)


@pytest.mark.parametrize(
    "edges",
    [((1, 0),), ((0, 0),), ((0, 3),), ((1, 2), (0, 1)), ((0, 1), (0, 1)), ((-1, 2),)],
)
def test_a_topology_is_checked_at_birth(edges):
    with pytest.raises(UsageError):
        Topology(kind="own", n=3, edges=edges)
    with pytest.raises(UsageError, match="one organisation per client"):
        Topology(kind="own", n=3, edges=(), organisations=(0, 1))
    with pytest.raises(UsageError, match="root"):
        Topology(kind="own", n=3, edges=(), root=3)


def test_neighbours_of_nobody():
    with pytest.raises(UsageError, match="no client 5"):
        build("ring", 5, SEED).neighbours(5)


def test_cached_arrays_cannot_be_changed():
    ring = build("ring", 4, SEED)
    with pytest.raises(ValueError, match="read-only"):
        ring.degree[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        ring.adjacency[0, 0] = True


@pytest.mark.parametrize(
    "text",
    [
        "# who talks to whom\n0,1\n1, 2 # twice\n2,1\n",
        "0 1\n\n1\t2\n",
        "\ufeff0,1\r\n2,1\r\n",
    ],
)
def test_edge_list_of_numbers(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_bytes(text.encode())
    assert build("edge_list", 4, SEED, path=path).edges == ((0, 1), (1, 2))


def test_edge_list_of_names(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text('site north,"west, old"\n"west, old",2\n')
    found = build("edge_list", 3, SEED, path=path, clients=["site north", "west, old", "2"])
    assert found.edges == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("# c\n0,1\n\n0,7\n", None, r"line 4: unknown client '7'"),
        ("0,a\n", None, r"line 1: unknown client 'a'"),
        ("0,-1\n", None, r"line 1: unknown client '-1'"),
        ("nort,east\n", ["north", "east", "west"], r"(?s)line 1: .*did you mean 'north'"),
        ("0 1\n0 1 2\n", None, r"(?s)line 2: not an edge.*3 fields"),
        ("1 1\n", None, r"line 1: a client does not talk to itself"),
        ("0,1\n", ["a", "b", "c"], r"line 1: unknown client '0'"),
    ],
)
def test_bad_edge_lists_name_the_line(tmp_path, text, clients, message):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        build("edge_list", 3, SEED, path=path, clients=clients)


def test_missing_file_and_ambiguous_names(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        build("edge_list", 3, SEED, path=tmp_path / "none.csv")
    with pytest.raises(UsageError, match="clients does not fit"):
        build("edge_list", 3, SEED, path=tmp_path / "none.csv", clients=["a", "a", "b"])
