"""What-if: the same federation with other edges, or other organisations.

Clients keep their records; only edges or organisations change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np

from fedaudit.audits.topology_inference.features import Place
from fedaudit.errors import NotApplicable

WhatIf = Literal["drop_edge", "split_organisation", "random_regular"]


def rewire(
    place: Place, how: WhatIf, count: int, rng: np.random.Generator
) -> tuple[list[Place], str]:
    """Places of the clients of `count` federations after one change, and the change in words.

    Halves and random graphs are drawn anew for every federation: in one fixed random graph a
    client's betweenness identifies it, and regressors would memorise it.
    """
    if how == "drop_edge":
        changed, words = drop_edge(place)
        return [changed] * count, words
    draw = split_organisation if how == "split_organisation" else random_regular
    made = [draw(place, rng) for _ in range(count)]
    return [p for p, _ in made], made[0][1]


def drop_edge(place: Place) -> tuple[Place, str]:
    """Drop the edge with most shortest paths, among those that are no bridge."""
    import networkx as nx

    graph = place.graph()
    bridges = {tuple(sorted(e)) for e in nx.bridges(graph)}
    used = nx.edge_betweenness_centrality(graph)
    spare = {tuple(sorted(e)): v for e, v in used.items() if tuple(sorted(e)) not in bridges}
    if not spare:
        raise NotApplicable(
            "no edge can be dropped",
            code="no_such_graph",
            expected="an edge without which all clients still reach each other",
            got="none" if place.edges else "no edges at all",
            remedy="leave drop_edge out of what_if",
        )
    i, j = max(sorted(spare), key=lambda e: spare[e])
    kept = tuple(e for e in place.edges if e != (i, j))
    return replace(place, edges=kept), f"without the edge {place.clients[i]} - {place.clients[j]}"


def split_organisation(place: Place, rng: np.random.Generator) -> tuple[Place, str]:
    """Split the largest organisation into two random halves."""
    size = Counter(place.organisations or ())
    if not size or max(size.values()) < 2:
        raise NotApplicable(
            "no organisation can be split",
            code="no_such_graph",
            expected="an organisation of two clients or more",
            got="none",
            remedy="leave split_organisation out of what_if",
        )
    assert place.organisations is not None
    largest = min(g for g in size if size[g] == max(size.values()))
    members = [c for c, g in enumerate(place.organisations) if g == largest]
    moved = {int(c) for c in rng.permutation(members)[: len(members) // 2]}
    new = max(size) + 1
    groups = tuple(new if c in moved else g for c, g in enumerate(place.organisations))
    return replace(place, organisations=groups), f"organisation {largest} split in two"


def random_regular(place: Place, rng: np.random.Generator) -> tuple[Place, str]:
    """A random graph in which every client has the present mean number of neighbours."""
    import networkx as nx

    n = place.n
    k = max(1, round(2 * len(place.edges) / n))
    k = min(k, n - 1)
    if (n * k) % 2:
        k = k - 1 if k > 1 else k + 1
    if k >= n:
        raise NotApplicable(
            "no regular graph of this size exists",
            code="no_such_graph",
            expected="three clients or more, or an even number of them",
            got=f"{n} clients",
            remedy="leave random_regular out of what_if",
        )
    graph = nx.random_regular_graph(k, n, seed=rng)
    edges = tuple(sorted((min(i, j), max(i, j)) for i, j in graph.edges))
    # such a graph has no natural root
    return replace(
        place, edges=edges, root=None
    ), f"a random graph with {k} neighbours for everyone"
