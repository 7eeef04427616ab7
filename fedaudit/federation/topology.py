"""The communication graph: undirected, over the clients.

Clients are numbers 0 to n-1. In `star` with `hub="server"`, the usual federation, the server is
not a client: the clients have no edges among themselves and the server is implied. With
`hub="client"`, the star of [TopologyAwareDP] Section VI-A, client 0 is the hub.

Every builder has the signature `(n, seed, **settings)`; `KINDS` describes them, `build` calls one
by name. Random kinds draw from `seed.generator("topology", ...)`, so a topology is a function of
(kind, n, seed, settings).

Differs: [TopologyAwareDP] leaves the hierarchy of Setting C open; the degrees that
reproduce its published bounds are those of separate cliques of 20, 15, 10, 3 and 2 clients
(`joined="none"`). Cliques that never talk to each other cannot train one model by gossip, so here
they are joined by default.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError, UsageError
from fedaudit.files import Unreadable, read_text
from fedaudit.randomness import Seed
from fedaudit.settings import Count, Share, checked, require

Edges = tuple[tuple[int, int], ...]
Hub = Literal["server", "client"]
Joined = Literal["complete", "star", "none"]


@dataclass(frozen=True, kw_only=True)
@checked("topology", error=UsageError)
class Topology:
    """An undirected graph over `n` clients without loops.

    `edges` is sorted, each pair (i, j) with i < j once. `organisations` (n,): number of each
    client's group, if there are groups. `root`: the client at the top of a rooted topology.
    `settings`: the settings it was built with.
    """

    kind: str
    n: Count
    edges: Edges
    organisations: tuple[int, ...] | None = None
    root: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i, j in self.edges:
            if not 0 <= i < j < self.n:
                raise UsageError(
                    f"edge ({i}, {j}) does not belong to this topology",
                    expected=f"pairs (i, j) with 0 <= i < j < {self.n}",
                    got=f"({i}, {j})",
                    remedy="write each edge once, the smaller number first, without loops",
                )
        if list(self.edges) != sorted(set(self.edges)):
            raise UsageError(
                "the edges of a topology must be sorted and unique",
                expected="sorted(set(edges))",
                got=f"{len(self.edges)} edges, {len(set(self.edges))} different",
                remedy="pass tuple(sorted(set(edges)))",
            )
        if self.organisations is not None and len(self.organisations) != self.n:
            raise UsageError(
                "a topology needs one organisation per client",
                expected=f"{self.n} numbers",
                got=f"{len(self.organisations)} numbers",
                remedy="number the organisation of every client, or pass None",
            )
        if self.root is not None and not 0 <= self.root < self.n:
            raise UsageError(
                "the root must be a client",
                expected=f"0 to {self.n - 1}",
                got=str(self.root),
                remedy="pass None for a topology without a root",
            )

    @cached_property
    def adjacency(self) -> npt.NDArray[np.bool_]:
        """(n, n) symmetric, false on the diagonal; read-only."""
        a = np.zeros((self.n, self.n), dtype=np.bool_)
        if self.edges:
            i, j = np.array(self.edges, dtype=np.int64).T
            a[i, j] = a[j, i] = True
        a.setflags(write=False)
        return a

    @cached_property
    def degree(self) -> npt.NDArray[np.int64]:
        """(n,) number of neighbours; read-only."""
        d = np.bincount(np.array(self.edges, dtype=np.int64).ravel(), minlength=self.n)
        d = d.astype(np.int64)
        d.setflags(write=False)
        return d

    def neighbours(self, client: int) -> tuple[int, ...]:
        """The clients that `client` talks to, ascending."""
        if not 0 <= client < self.n:
            raise UsageError(
                f"there is no client {client}",
                expected=f"0 to {self.n - 1}",
                got=str(client),
                remedy="number clients from 0",
            )
        return tuple(int(j) for j in np.flatnonzero(self.adjacency[client]))

    def graph(self) -> Any:
        """This topology as a `networkx.Graph`."""
        import networkx as nx

        g = nx.Graph()
        g.add_nodes_from(range(self.n))
        g.add_edges_from(self.edges)
        return g

    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """Connected components, ordered by their smallest member."""
        import networkx as nx

        return tuple(sorted(tuple(sorted(c)) for c in nx.connected_components(self.graph())))

    def metropolis_weights(self) -> npt.NDArray[np.float64]:
        """Gossip weights (n, n): W_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on W_ii.

        Symmetric, non-negative, rows and columns sum to one, so repeated mixing keeps the mean, and
        converges to it if the topology is connected. A client without neighbours keeps its own
        model.
        """
        larger = np.maximum(self.degree[:, None], self.degree[None, :])
        w = np.where(self.adjacency, 1.0 / (1.0 + larger), 0.0)
        np.fill_diagonal(w, 1.0 - w.sum(axis=1))
        return w


# --- builders --------------------------------------------------------------------------------


def _edges(pairs: Any) -> Edges:
    return tuple(sorted({(min(int(i), int(j)), max(int(i), int(j))) for i, j in pairs}))


def _misfit(kind: str, setting: str, expected: str, got: Any, remedy: str) -> UsageError:
    return UsageError(
        f"topology {kind!r}: {setting} does not fit",
        expected=expected,
        got=repr(got),
        remedy=remedy,
    )


def star(n: int, seed: Seed, *, hub: Hub = "server") -> Topology:
    """Everyone talks to the hub: the server (no edges among clients), or client 0."""
    require(Hub, **{"topology.hub": hub})
    spokes = _edges((0, i) for i in range(1, n)) if hub == "client" else ()
    root = 0 if hub == "client" else None
    return Topology(kind="star", n=n, edges=spokes, root=root, settings={"hub": hub})


def ring(n: int, seed: Seed) -> Topology:
    """Each client talks to the one before and the one after it; the last talks to the first."""
    return Topology(kind="ring", n=n, edges=_edges((i, (i + 1) % n) for i in range(n) if n > 1))


def line(n: int, seed: Seed) -> Topology:
    """Each client talks to the one before and the one after it."""
    return Topology(kind="line", n=n, edges=_edges((i, i + 1) for i in range(n - 1)))


def complete(n: int, seed: Seed) -> Topology:
    """Everyone talks to everyone."""
    everyone = ((i, j) for i in range(n) for j in range(i + 1, n))
    return Topology(kind="complete", n=n, edges=_edges(everyone))


def hierarchical(
    n: int,
    seed: Seed,
    *,
    sizes: Sequence[int] | None = None,
    joined: Joined = "complete",
) -> Topology:
    """Cliques of the given sizes, joined by their first members; organisation = clique number.

    `sizes` sum to n; by default about sqrt(n) cliques of nearly equal size. `joined`: first
    members all talk to each other ("complete"), all to that of the first clique ("star"), or not
    at all ("none"). The root is client 0.
    """
    if sizes is None:
        groups = max(1, round(math.sqrt(max(n, 1))))
        chosen = [n // groups + (g < n % groups) for g in range(groups)]
    else:
        chosen = [int(s) for s in sizes]
    if sum(chosen) != n or min(chosen, default=0) < 1:
        raise _misfit(
            "hierarchical",
            "sizes",
            f"positive clique sizes that sum to {n}",
            list(sizes or chosen),
            "adapt the sizes or the number of clients",
        )
    require(Joined, **{"topology.joined": joined})
    starts = np.concatenate([[0], np.cumsum(chosen)])
    pairs = [
        (i, j)
        for low, high in itertools.pairwise(starts)
        for i in range(low, high)
        for j in range(i + 1, high)
    ]
    first = [int(s) for s in starts[:-1]]
    if joined == "complete":
        pairs += [(i, j) for at, i in enumerate(first) for j in first[at + 1 :]]
    elif joined == "star":
        pairs += [(first[0], j) for j in first[1:]]
    return Topology(
        kind="hierarchical",
        n=n,
        edges=_edges(pairs),
        organisations=tuple(int(g) for g in np.repeat(np.arange(len(chosen)), chosen)),
        root=0,
        settings={"sizes": tuple(chosen), "joined": joined},
    )


def erdos_renyi(n: int, seed: Seed, *, p: Share = 0.3) -> Topology:
    """Each pair is joined with probability p, independently; may be disconnected for small p."""
    import networkx as nx

    require(Share, remedy="write 0.3 for 30 %", **{"topology.p": p})
    g = nx.gnp_random_graph(n, p, seed=seed.generator("topology", n))
    return Topology(kind="erdos_renyi", n=n, edges=_edges(g.edges), settings={"p": p})


def barabasi_albert(n: int, seed: Seed, *, m: int = 2) -> Topology:
    """Clients join one by one and attach to m others, preferring those with many neighbours."""
    import networkx as nx

    if not 1 <= m < n:
        raise _misfit("barabasi_albert", "m", f"1 to {n - 1}", m, "attach to fewer clients")
    g = nx.barabasi_albert_graph(n, m, seed=seed.generator("topology", n))
    return Topology(kind="barabasi_albert", n=n, edges=_edges(g.edges), settings={"m": m})


def k_regular(n: int, seed: Seed, *, k: int = 4) -> Topology:
    """A random graph in which every client talks to exactly k others."""
    import networkx as nx

    if not 0 <= k < n or (n * k) % 2:
        raise _misfit(
            "k_regular", "k", f"0 to {n - 1}, with n * k even", k, "raise or lower k or n by one"
        )
    g = nx.random_regular_graph(k, n, seed=seed.generator("topology", n))
    return Topology(kind="k_regular", n=n, edges=_edges(g.edges), settings={"k": k})


def edge_list(
    n: int, seed: Seed, *, path: str | Path, clients: Sequence[str] | None = None
) -> Topology:
    """Edges from a file: two clients per line, separated by a comma or blanks; # starts a comment.

    Clients are numbers 0 to n-1, or names from `clients` (n,), in client order.
    """
    names = None if clients is None else {name: i for i, name in enumerate(clients)}
    if names is not None and (len(names) != n or clients is None or len(clients) != n):
        raise _misfit(
            "edge_list",
            "clients",
            f"{n} different names",
            f"{len(names)} different names",
            "name every client once",
        )
    try:
        text = read_text(path, encoding="utf-8-sig")
    except Unreadable as error:
        raise error.as_error(DataError, f"the edge list {str(path)!r} cannot be read") from None
    pairs: dict[tuple[int, int], None] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        content = raw.split("#", 1)[0].strip()
        if not content:
            continue
        where = f"{path}, line {number}"
        if "," in content:
            try:
                fields = [f.strip() for f in next(csv.reader([content], skipinitialspace=True))]
            except csv.Error:
                fields = []
        else:
            fields = content.split()
        if len(fields) != 2:
            raise DataError(
                f"{where}: not an edge",
                expected="two clients, separated by a comma or blanks",
                got=f"{len(fields)} fields: {content[:80]!r}",
                remedy="write one edge per line; start comments with #",
            )
        i, j = (_client(f, names, n, where) for f in fields)
        if i == j:
            raise DataError(
                f"{where}: a client does not talk to itself",
                expected="two different clients",
                got=content,
                remedy="remove the line",
            )
        pairs[(i, j)] = None
    return Topology(kind="edge_list", n=n, edges=_edges(pairs), settings={"path": str(path)})


def _client(text: str, names: Mapping[str, int] | None, n: int, where: str) -> int:
    if names is not None and text in names:
        return names[text]
    if text.isascii() and text.isdigit() and int(text) < n and names is None:
        return int(text)
    if names is not None:
        raise DataError.unknown(f"{where}: unknown client {text!r}", text, names)
    raise DataError(
        f"{where}: unknown client {text!r}",
        expected=f"a number from 0 to {n - 1}",
        got=repr(text),
        remedy="number clients from 0, or pass their names",
    )


# --- build by name ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TopologyKind:
    """One row of the listing: how a topology is built and what its settings mean."""

    build: Callable[..., Topology]
    summary: str
    settings: Mapping[str, str]
    random: bool = False


KINDS: dict[str, TopologyKind] = {
    "star": TopologyKind(
        star,
        "everyone around a hub",
        {"hub": '"server" (implied, not a client; default) or "client" (client 0)'},
    ),
    "ring": TopologyKind(ring, "each client with the one before and after, in a circle", {}),
    "line": TopologyKind(line, "each client with the one before and after", {}),
    "complete": TopologyKind(complete, "everyone with everyone", {}),
    "hierarchical": TopologyKind(
        hierarchical,
        "cliques (organisations) joined by their first members",
        {
            "sizes": "clique sizes that sum to n (default: about sqrt(n) equal cliques)",
            "joined": 'first members: "complete" (default), "star" or "none"',
        },
    ),
    "erdos_renyi": TopologyKind(
        erdos_renyi,
        "each pair independently with probability p",
        {"p": "probability of an edge (default 0.3)"},
        random=True,
    ),
    "barabasi_albert": TopologyKind(
        barabasi_albert,
        "scale-free: newcomers prefer well-connected clients",
        {"m": "edges of each newcomer (default 2)"},
        random=True,
    ),
    "k_regular": TopologyKind(
        k_regular,
        "random, everyone with exactly k others",
        {"k": "neighbours of each client (default 4)"},
        random=True,
    ),
    "edge_list": TopologyKind(
        edge_list,
        "edges from a file, two clients a line",
        {"path": "CSV or blanks, # comments", "clients": "names in order (default: numbers)"},
    ),
}


def build(kind: str, n: int, seed: Seed, **settings: Any) -> Topology:
    """Build the topology `kind` over `n` clients; an error suggests the nearest name."""
    if kind not in KINDS:
        raise UsageError.unknown(f"unknown topology {kind!r}", kind, KINDS)
    row = KINDS[kind]
    for name in settings:
        if name not in row.settings:
            raise UsageError.unknown(
                f"topology {kind!r} has no setting {name!r}", name, row.settings
            )
    if kind == "edge_list" and "path" not in settings:
        raise UsageError(
            "topology 'edge_list' needs a file",
            expected="path",
            got="no path",
            remedy='path = "edges.csv"',
        )
    if n < 1:
        raise UsageError(
            "a topology needs clients",
            expected="n >= 1",
            got=str(n),
            remedy="set the number of clients",
        )
    return row.build(n, seed, **settings)
