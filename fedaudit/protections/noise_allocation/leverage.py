"""Leverage: the information, in nats, that other clients' data carry about a client.

The paper's leverage is a supremum over priors, sup I(p_i; D_-i): [TopologyAwareDP] Definition V.1.
It cannot be computed, so proxies replace it: group size, degree and data-set size, each divided by
its mean, and blends of them ([TopologyAwareDP] Section V-E); eta ln(C) degree / mean for data whose
classes follow the topology (the published eta sweep). Betweenness, eigenvector centrality and the
user's own column are further choices.

Differs: the paper calls the allocation safe for any weights. This holds for the optimum, not for
its value: K* in nats scales with the proxy, and no proxy is proved to lie above the leverage. A
proxy orders clients; it does not bound anything in nats.

Every function returns (n,) finite, non-negative values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import DataError, UsageError
from fedaudit.settings import AtLeastTwo, Share, require

EdgeList = Sequence[tuple[int, int]]


def check_leverage(values: npt.ArrayLike, clients: Sequence[str] | None = None) -> Floats:
    """`values` (n,) as floats; raises DataError unless all are finite and non-negative."""
    try:
        out = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            "leverage is not a list of numbers",
            expected="one number per client",
            got=repr(values)[:60],
            remedy="pass numbers",
        ) from None
    if out.ndim != 1:
        raise DataError(
            "leverage has the wrong shape",
            expected="one number per client: shape (n,)",
            got=f"shape {out.shape}",
            remedy="pass one number per client",
        )
    # NaN fails both comparisons; no temporary array of the input's size is needed
    if out.size and not (out.min() >= 0 and out.max() < math.inf):
        at = int(np.flatnonzero(~(np.isfinite(out) & (out >= 0)))[0])
        raise DataError(
            f"the leverage of {named(at, clients)} cannot be used",
            expected="a finite number of 0 or more for every client",
            got=f"{out[at]:g}",
            remedy="correct the value: leverage is an amount of information",
        )
    return out


def named(client: int, clients: Sequence[str] | None) -> str:
    """A client's label in messages: its name, or its number."""
    return f"client {clients[client]!r}" if clients is not None else f"client {client}"


def unit_mean(values: npt.ArrayLike, clients: Sequence[str] | None = None) -> Floats:
    """Values (n,) divided by their mean; all ones if all values are zero."""
    out = check_leverage(values, clients)
    top = float(out.max()) if out.size else 0.0
    if top == 0.0:
        return np.ones_like(out)
    scaled = out / top  # so that the mean of huge numbers does not overflow
    return np.asarray(scaled / scaled.mean(), dtype=np.float64)


def from_size(sizes: npt.ArrayLike, clients: Sequence[str] | None = None) -> Floats:
    """Data-set size / mean  [TopologyAwareDP] Section V-E (settings A and B)."""
    return unit_mean(sizes, clients)


def from_groups(groups: Sequence[str]) -> Floats:
    """Size of the client's group / mean  [TopologyAwareDP] Section V-E.

    `groups` (n,) labels. Labels without information are refused: one group for all, or one group
    per client (such a column names clients, not groups).
    """
    size = Counter(groups)
    if len(groups) > 1 and len(size) == len(groups):
        raise DataError(
            "every group has one member only",
            expected="groups that several clients share",
            got=f"{len(size)} groups of one client each: the column names clients",
            remedy="name a column of organisations or regions, or another leverage",
        )
    if len(size) == 1:
        raise DataError(
            "all clients are in one group",
            expected="at least two groups",
            got=f"{groups[0]!r} for all {len(groups)} clients",
            remedy="name another column, or another leverage",
        )
    return unit_mean([size[g] for g in groups])


def lone_members(groups: Sequence[str]) -> tuple[int, ...]:
    """Clients that are alone in their group: the group label identifies them."""
    size = Counter(groups)
    return tuple(i for i, g in enumerate(groups) if size[g] == 1)


def from_degree(degree: npt.ArrayLike, clients: Sequence[str] | None = None) -> Floats:
    """Number of neighbours / mean  [TopologyAwareDP] Section V-E."""
    return unit_mean(degree, clients)


def coupled(degree: npt.ArrayLike, *, coupling: float, classes: int) -> Floats:
    """eta ln(C) degree / mean: setting C of the paper  [TopologyAwareDP] Section VI-C.

    `coupling` is eta in [0, 1], the share of a client's class mix that follows its position;
    `classes` is C.
    """
    require(Share, remedy="0: classes do not depend on position; 0.5: half", coupling=coupling)
    require(AtLeastTwo, remedy="give the number of classes of the labels", classes=classes)
    return coupling * math.log(classes) * from_degree(degree)


def degree_of(edges: EdgeList, n: int) -> npt.NDArray[np.int64]:
    """(n,) number of neighbours; `edges` holds each undirected edge once."""
    return np.bincount(np.array(edges, dtype=np.int64).ravel(), minlength=n).astype(np.int64)


def from_betweenness(edges: EdgeList, n: int) -> Floats:
    """Share of shortest paths between others that pass through a client / mean."""
    import networkx as nx

    values = nx.betweenness_centrality(_graph(edges, n))
    return unit_mean([values[i] for i in range(n)])


def from_eigenvector(edges: EdgeList, n: int, clients: Sequence[str] | None = None) -> Floats:
    """Principal eigenvector of the adjacency matrix / mean; needs a connected graph."""
    # on a disconnected graph the eigenvector is zero outside one component, or not unique
    refuse_disconnected(edges, n, clients)
    if n <= 500:
        a = np.zeros((n, n))
        for i, j in edges:
            a[i, j] = a[j, i] = 1.0
        return unit_mean(np.abs(np.linalg.eigh(a)[1][:, -1]))
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    i, j = np.array(edges, dtype=np.int64).T
    matrix = coo_array((np.ones(2 * len(i)), (np.r_[i, j], np.r_[j, i])), shape=(n, n)).tocsr()
    # a fixed start vector: the same file gives the same digits
    _, vectors = eigsh(matrix, k=1, which="LA", v0=np.ones(n))
    return unit_mean(np.abs(vectors[:, 0]))


def refuse_disconnected(edges: EdgeList, n: int, clients: Sequence[str] | None = None) -> None:
    """Raise DataError for a disconnected graph; lists its components."""
    import networkx as nx

    pieces = sorted(sorted(c) for c in nx.connected_components(_graph(edges, n)))
    if len(pieces) == 1:
        return

    def listed(piece: list[int]) -> str:
        names = [clients[i] if clients is not None else str(i) for i in piece[:5]]
        return "{" + ", ".join(names) + (", ..." if len(piece) > 5 else "") + "}"

    shown = "; ".join(f"{listed(p)} ({len(p)})" for p in pieces[:6])
    raise DataError(
        "the graph is not connected",
        expected="a path between any two clients",
        got=f"{len(pieces)} components: " + shown + ("; ..." if len(pieces) > 6 else ""),
        remedy="add the missing edges, or allocate each component separately; degree and "
        "betweenness also work on this graph (`allow_disconnected=True`)",
    )


def _graph(edges: EdgeList, n: int) -> object:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    return graph


def blend(parts: Mapping[str, npt.ArrayLike], shares: Mapping[str, float] | None = None) -> Floats:
    """Weighted mean of several leverages, each of unit mean  [TopologyAwareDP] Section V-E.

    `shares` are weights by name (default: equal); they need not sum to one.
    """
    chosen = dict.fromkeys(parts, 1.0) if shares is None else dict(shares)
    if not chosen or set(chosen) - set(parts):
        raise UsageError(
            "a blend has unknown or no parts",
            expected="shares of " + (", ".join(parts) or "at least one part"),
            got=", ".join(chosen) or "nothing",
            remedy="give shares to parts from this list",
        )
    if any(not 0 <= s < math.inf for s in chosen.values()) or not sum(chosen.values()) > 0:
        raise UsageError(
            "the shares of a blend are out of range",
            expected="numbers of 0 or more, not all 0",
            got=", ".join(f"{k} = {v:g}" for k, v in chosen.items()),
            remedy="size = 1, group = 1 takes half of each",
        )
    total = sum(chosen.values())
    scaled = {name: unit_mean(parts[name]) for name in chosen}
    lengths = {name: v.size for name, v in scaled.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            "the parts of a blend have different lengths",
            expected="one number per client in each",
            got=", ".join(f"{k} {v}" for k, v in lengths.items()),
            remedy="give every part for the same clients",
        )
    out = sum(chosen[name] / total * v for name, v in scaled.items())
    return np.asarray(out, dtype=np.float64)
