"""Places of clients."""

import numpy as np
import pytest

from fedaudit.audits.topology_inference.features import Place
from fedaudit.errors import NotApplicable, TraceError


def shortest(adjacency):
    """Hops (n, n) between all clients of a connected graph, and how many shortest paths there are:
    the first power of the adjacency with a walk between them, and the number of its walks."""
    n = len(adjacency)
    hops, paths = np.where(np.eye(n), 0, n), np.eye(n)
    walks = np.eye(n)
    for length in range(1, n):
        walks = walks @ adjacency
        new = (hops == n) & (walks > 0)
        hops[new], paths[new] = length, walks[new]
    return hops, paths


def passing(hops, paths):
    """Mean share (n,) of the shortest paths between two others that pass through a client."""
    n = len(hops)
    out = np.zeros(n)
    for v in range(n):
        for a in range(n):
            for b in range(n):
                if len({v, a, b}) == 3 and hops[a, v] + hops[v, b] == hops[a, b]:
                    out[v] += paths[a, v] * paths[v, b] / paths[a, b]
    return out / ((n - 1) * (n - 2))


def test_structure_is_that_of_the_topology():
    from fedaudit.federation import topology
    from fedaudit.randomness import Seed

    graph = topology.build("hierarchical", 20, Seed(1), sizes=[8, 6, 4, 2], joined="star")
    place = Place(
        clients=tuple(map(str, range(20))),
        edges=graph.edges,
        organisations=graph.organisations,
        root=graph.root,
    )
    assert place.structure[:, 0].tolist() == graph.degree.tolist()
    hops, paths = shortest(graph.adjacency)
    np.testing.assert_array_equal(place.structure[:, 1], hops[graph.root])
    np.testing.assert_allclose(place.structure[:, 2], passing(hops, paths))
    assert place.one_hot().sum(axis=0).tolist() == [8, 6, 4, 2]


@pytest.mark.parametrize(
    ("about", "error", "words"),
    [
        ({"clients": ["a"]}, NotApplicable, "no other to be compared with"),
        ({"clients": []}, NotApplicable, "does not list clients"),
        ({"clients": ["a", "b"], "edges": [[0, 2]]}, TraceError, r"edge \(0, 2\)"),
        ({"clients": ["a", "b"], "edges": [[1, 1]]}, TraceError, r"edge \(1, 1\)"),
        ({"clients": ["a", "b"], "organisations": [0]}, TraceError, "organisations do not fit"),
    ],
)
def test_places_that_make_no_sense_are_refused(about, error, words):
    with pytest.raises(error, match=words):
        Place.of(about)


def test_who_cannot_reach_the_root_is_further_than_anybody():
    place = Place(clients=tuple("abcd"), edges=((0, 1), (2, 3)), root=0)
    assert place.components() == [[0, 1], [2, 3]]
    assert place.structure[:, 1].tolist() == [0, 1, 4, 4]
