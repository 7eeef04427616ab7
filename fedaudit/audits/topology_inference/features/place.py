"""Places of clients: the graph between them, their organisations, and the root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import NothingToSay, TraceError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places of the n clients: `edges` between their numbers, their `organisations`, the `root`.

    In rooted topologies the first client is the root unless the trace names another.
    """

    clients: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    organisations: tuple[int, ...] | None = None
    root: int | None = None

    @classmethod
    def of(cls, federation: Mapping[str, Any]) -> Place:
        """From the trace's description of its federation (`View.federation`)."""
        clients = tuple(str(c) for c in federation.get("clients", ()))
        n = len(clients)
        if n < 2:
            raise NothingToSay(
                "one client has no other to be compared with"
                if n
                else "the trace does not list clients",
                code="too_few_clients",
                expected="a federation of two clients or more",
                got=f"{n} client{'' if n == 1 else 's'}",
                remedy="audit a federation of several clients, named in the manifest",
            )
        edges = set()
        for i, j in federation.get("edges") or ():
            if not (0 <= int(i) < n and 0 <= int(j) < n) or i == j:
                raise TraceError(
                    f"edge ({i}, {j}) names a client that does not exist",
                    expected=f"pairs of different numbers from 0 to {n - 1}",
                    got=f"({i}, {j})",
                    remedy="number clients in the order of the manifest's list",
                )
            edges.add((min(int(i), int(j)), max(int(i), int(j))))
        groups = federation.get("organisations")
        if groups is not None and len(groups) != n:
            raise TraceError(
                "the organisations do not fit the clients",
                expected=f"{n} numbers, one per client",
                got=f"{len(groups)}",
                remedy="give every client's organisation, or none",
            )
        rooted = federation.get("topology") in ("hierarchical", "star") and bool(edges)
        return cls(
            clients=clients,
            edges=tuple(sorted(edges)),
            organisations=None if groups is None else tuple(int(g) for g in groups),
            root=federation.get("root", 0 if rooted else None),
        )

    @property
    def n(self) -> int:
        return len(self.clients)

    @cached_property
    def adjacency(self) -> npt.NDArray[np.bool_]:
        """(n, n), symmetric."""
        out = np.zeros((self.n, self.n), dtype=np.bool_)
        for i, j in self.edges:
            out[i, j] = out[j, i] = True
        return out

    def graph(self) -> Any:
        """The same as a `networkx.Graph`."""
        import networkx as nx

        g = nx.Graph()
        g.add_nodes_from(range(self.n))
        g.add_edges_from(self.edges)
        return g

    def components(self) -> list[list[int]]:
        """Connected components, sorted by their smallest member."""
        import networkx as nx

        return sorted(sorted(c) for c in nx.connected_components(self.graph()))

    @cached_property
    def structure(self) -> Floats:
        """(n, 3): degree, distance to the root (zero without one), betweenness.

        A client that cannot reach the root counts as n hops away, further than all others.
        """
        import networkx as nx

        graph = self.graph()
        hops = np.zeros(self.n)
        if self.root is not None:
            found = nx.single_source_shortest_path_length(graph, self.root)
            hops = np.array([found.get(i, self.n) for i in range(self.n)], dtype=np.float64)
        between = nx.betweenness_centrality(graph)
        degree = self.adjacency.sum(axis=1).astype(np.float64)
        return np.stack([degree, hops, [between[i] for i in range(self.n)]], axis=1)

    def has_structure(self) -> bool:
        """Whether places differ; on a ring, or without edges, they do not."""
        return bool(np.ptp(self.structure, axis=0).any())

    def has_groups(self) -> bool:
        """Whether organisations are groups: several, and not all of one client.

        A label per client identifies it: a regressor would memorise clients.
        """
        if self.organisations is None:
            return False
        groups = len(set(self.organisations))
        return 1 < groups < self.n

    def lone_members(self) -> tuple[str, ...]:
        """Clients that are the only member of their organisation."""
        own = self.organisations
        if own is None:
            return ()
        return tuple(c for c, o in zip(self.clients, own, strict=True) if own.count(o) == 1)

    def one_hot(self) -> Floats:
        """(n, organisations), one column per organisation in the order of their numbers."""
        assert self.organisations is not None
        numbers = sorted(set(self.organisations))
        return (np.array(self.organisations)[:, None] == np.array(numbers)[None, :]).astype(float)

    def summing_groups(self) -> Floats:
        """(n, n) rows of means that secure aggregation of a client's neighbourhood would show.

        The neighbourhood is the client's organisation if there are organisations, otherwise the
        client with its neighbours, and all clients if the only neighbour is a server.
        """
        if self.has_groups():
            own = np.array(self.organisations)
            together = own[:, None] == own[None, :]
        elif self.edges:
            together = self.adjacency | np.eye(self.n, dtype=bool)
        else:
            together = np.ones((self.n, self.n), dtype=bool)
        return together / together.sum(axis=1, keepdims=True)
