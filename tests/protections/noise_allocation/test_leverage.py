"""Proxies have unit mean, graphs are what networkx says, and nonsense is refused by name."""

import math

import networkx as nx
import numpy as np
import pytest

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.noise_allocation import leverage


def edges_of(graph):
    return [(min(a, b), max(a, b)) for a, b in graph.edges]


def test_proxies_have_unit_mean_and_keep_proportions():
    sizes = [9930, 3163, 2691, 1807, 655, 351]
    found = leverage.from_size(sizes)
    np.testing.assert_allclose(found, np.array(sizes) / np.mean(sizes), rtol=1e-15)
    np.testing.assert_allclose(leverage.from_degree([1, 2, 3]), [0.5, 1, 1.5])
    np.testing.assert_allclose(leverage.from_groups(["n", "s", "n", "n"]), [1.2, 0.4, 1.2, 1.2])
    assert leverage.from_size(np.array([1e300, 1e300])).tolist() == [1, 1]


def test_equal_values_become_exactly_one():
    assert (leverage.unit_mean(np.full(7, 0.1)) == 1).all()
    assert (leverage.unit_mean(np.zeros(7)) == 1).all()


def test_coupled_degree():
    degree = np.array([49, 1, 1])
    expected = 0.5 * math.log(10) * degree / degree.mean()
    np.testing.assert_allclose(leverage.coupled(degree, coupling=0.5, classes=10), expected)
    assert (leverage.coupled(degree, coupling=0, classes=10) == 0).all()


def test_graph_proxies():
    star = edges_of(nx.star_graph(4))
    assert leverage.degree_of(star, 5).tolist() == [4, 1, 1, 1, 1]
    np.testing.assert_allclose(leverage.from_betweenness(star, 5), [5, 0, 0, 0, 0], atol=1e-12)
    # every leaf of a star has half of the hub's centrality for four leaves
    np.testing.assert_allclose(leverage.from_eigenvector(star, 5), [5 / 3, *[5 / 6] * 4])
    ring = edges_of(nx.cycle_graph(6))
    for found in (leverage.from_betweenness(ring, 6), leverage.from_eigenvector(ring, 6)):
        np.testing.assert_allclose(found, np.ones(6), rtol=1e-9)
    # nobody stands between anybody: all positions are alike
    complete = edges_of(nx.complete_graph(5))
    assert (leverage.from_betweenness(complete, 5) == 1).all()


def test_large_graphs_take_the_sparse_way_to_the_same_vector():
    graph = nx.barabasi_albert_graph(600, 2, seed=1)
    found = leverage.from_eigenvector(edges_of(graph), 600)
    vector = np.abs(np.linalg.eigh(nx.to_numpy_array(graph))[1][:, -1])
    np.testing.assert_allclose(found, vector / vector.mean(), rtol=1e-6, atol=1e-9)


def test_a_disconnected_graph_is_refused_and_its_components_named():
    names = ["ann", "bob", "cat", "dan", "eve"]
    with pytest.raises(DataError) as caught:
        leverage.refuse_disconnected([(0, 1), (2, 3)], 5, names)
    assert "3 components: {ann, bob} (2); {cat, dan} (2); {eve} (1)" in str(caught.value)
    with pytest.raises(DataError, match="not connected"):
        leverage.from_eigenvector([(0, 1)], 3)
    leverage.refuse_disconnected([(0, 1), (1, 2)], 3)


def test_blends():
    parts = {"size": [1, 3], "group": [4, 4]}
    np.testing.assert_allclose(leverage.blend(parts), [0.75, 1.25])
    np.testing.assert_allclose(leverage.blend(parts, {"size": 3, "group": 1}), [0.625, 1.375])
    np.testing.assert_allclose(leverage.blend(parts, {"size": 1}), [0.5, 1.5])
    assert leverage.blend(parts).mean() == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: leverage.check_leverage([1.0, -0.5]), DataError, "client 1 cannot be used"),
        (lambda: leverage.check_leverage([1.0, math.nan], ["a", "b"]), DataError, "client 'b'"),
        (lambda: leverage.check_leverage([math.inf, 1]), DataError, "inf"),
        (lambda: leverage.check_leverage([[1.0]]), DataError, "shape"),
        (lambda: leverage.check_leverage(["x"]), DataError, "numbers"),
        (lambda: leverage.from_groups(["a", "b", "c"]), DataError, "one member only"),
        (lambda: leverage.from_groups(["a", "a"]), DataError, "one group"),
        (lambda: leverage.coupled([1, 2], coupling=1.5, classes=2), UsageError, "out of range"),
        (lambda: leverage.coupled([1, 2], coupling=math.nan, classes=2), UsageError, "nan"),
        (
            lambda: leverage.coupled([1, 2], coupling=1, classes=1),
            UsageError,
            "classes is out of range",
        ),
        (lambda: leverage.blend({"a": [1, 2]}, {"b": 1}), UsageError, "shares of a"),
        (lambda: leverage.blend({}), UsageError, "at least one part"),
        (lambda: leverage.blend({"a": [1, 2]}, {"a": 0}), UsageError, "not all 0"),
        (lambda: leverage.blend({"a": [1, 2]}, {"a": -1}), UsageError, "a = -1"),
        (lambda: leverage.blend({"a": [1, 2], "b": [1]}), DataError, "lengths"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_lone_members_are_found():
    assert leverage.lone_members(["n", "s", "n"]) == (1,)
