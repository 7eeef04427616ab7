"""Places of clients."""

import numpy as np
import pytest

from fedaudit.audits.topology_inference.features import Place
from fedaudit.errors import NotApplicable, TraceError


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
    expected = np.stack([graph.degree, graph.distance_to_root(), graph.betweenness()], axis=1)
    np.testing.assert_allclose(place.structure, expected)
    assert place.one_hot().sum(axis=0).tolist() == [8, 6, 4, 2]


@pytest.mark.parametrize(
    ("about", "error", "words"),
    [
        ({"clients": ["a"]}, NotApplicable, "nobody to differ from"),
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
