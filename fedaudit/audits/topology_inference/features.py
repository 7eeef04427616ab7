"""What an observer of the whole wire can compute of every client: numbers per round, and its place.

Signals are numbers per client and round, computed from updates u (what a client sent minus what it
had received) and models theta (what it holds after training). Round by round, tensors in pieces:
nothing holds all updates of a large model. A federation of n clients over T rounds becomes (T, n,
S); a client that did not take part in a round has NaN there.

    published   |theta|, |theta| of every tensor, cosine of u to the neighbours' u
                [TopologyAwareDP] Section IV
    ours        |u|, |u| of every tensor, cosine of u to the mean of all u, and for every class the
                mean and norm of its row in the last layer of u, and its bias

Summaries over rounds are mean, standard deviation, trend (slope per round) and last value of every
signal, and the whole sequence of the four that concern the model as a whole.

The cosine to neighbours takes the graph to compute, and its spread over rounds falls with the
number of neighbours: under noise it reads a client's degree. The paper's list has it among the
parameters, which lets structure into A1. Here only adversaries that know the graph have it, unless
the published list is asked for.

The last layer is where classes show: the step of a class's bias is, up to the rate, its share in
the batches minus its predicted share. The published list has no such entry, which is a reason why
its parameter channel reads nothing under noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable, NotObservable, TraceError
from fedaudit.layout import Entry, Layout
from fedaudit.trace import ANONYMOUS, View

Floats = npt.NDArray[np.float64]
Signals32 = npt.NDArray[np.float32]
Seen = Literal["single", "sums"]
Which = Literal["all", "published", "own", "neighbours"]

MODEL = "model"
PIECE_BYTES = 128 << 20
"""So many bytes of updates are held at once."""
MOST_CLASSES = 32
"""So many rows of the last layer become signals, those of the sensitive classes first."""

NORM, TO_NEIGHBOURS = "norm", "cosine to neighbours"
UPDATE_NORM, TO_MEAN = "update norm", "cosine to the mean"
WHOLE_SEQUENCE = (NORM, TO_NEIGHBOURS, UPDATE_NORM, TO_MEAN)
SUMMARIES = ("mean", "std", "trend", "last")
STRUCTURE = ("degree", "distance to root", "betweenness")


# -- a client's place ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the n clients stand: `edges` between their numbers, their `organisations`, the `root`.

    Rooted topologies have their first client as root unless the trace names another.
    """

    clients: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    organisations: tuple[int, ...] | None = None
    root: int | None = None

    @classmethod
    def of(cls, federation: Mapping[str, Any]) -> Place:
        """From what a trace says of its federation (`View.federation`)."""
        clients = tuple(str(c) for c in federation.get("clients", ()))
        n = len(clients)
        if n < 2:
            raise NotApplicable(
                "one client has nobody to differ from" if n else "the trace does not list clients",
                expected="a federation of two clients or more",
                got=f"{n} client{'' if n == 1 else 's'}",
                remedy="audit a federation of several clients, named in the manifest",
            )
        edges = set()
        for i, j in federation.get("edges") or ():
            if not (0 <= int(i) < n and 0 <= int(j) < n) or i == j:
                raise TraceError(
                    f"edge ({i}, {j}) names a client that is not there",
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
        """Clients that reach each other, by their smallest member."""
        import networkx as nx

        return sorted(sorted(c) for c in nx.connected_components(self.graph()))

    @cached_property
    def structure(self) -> Floats:
        """(n, 3): degree, distance to the root (zero without one), betweenness.

        A client that cannot reach the root counts as n hops away, further than any that can.
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
        """Whether places differ at all: on a ring, or without edges, they do not."""
        return bool(np.ptp(self.structure, axis=0).any())

    def has_groups(self) -> bool:
        """Whether organisations are groups: several, and not each of one client.

        A label of its own for every client is its name: a regressor would memorise who is who.
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
        """(n, n) rows of means: what secure aggregation of a client's neighbourhood would show.

        The client's organisation where there are organisations, otherwise the client with its
        neighbours; everyone where the only neighbour is a server.
        """
        if self.has_groups():
            own = np.array(self.organisations)
            together = own[:, None] == own[None, :]
        elif self.edges:
            together = self.adjacency | np.eye(self.n, dtype=bool)
        else:
            together = np.ones((self.n, self.n), dtype=bool)
        return together / together.sum(axis=1, keepdims=True)


# -- what a round shows ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Signals of one federation.

    `values` (T, n, S) float32, NaN for clients that did not take part; `names` (S,); `seen`: every
    client's own update, or sums over groups of clients only.
    """

    values: Signals32
    names: tuple[str, ...]
    seen: Seen


def head_of(layout: Layout, classes: int) -> tuple[Entry | None, Entry | None]:
    """The last layer's weight (classes, ...) and bias (classes,), as far as there are such."""
    weight = bias = None
    for e in layout.entries:
        if e.role != "parameter" or not e.shape or e.shape[0] != classes:
            continue
        if len(e.shape) > 1:
            weight, bias = e, None
        elif weight is not None and bias is None:
            bias = e
    return weight, bias


def watched(classes: int, sensitive: Sequence[int]) -> tuple[int, ...]:
    """Classes whose rows become signals: sensitive ones first, at most 32."""
    others = [c for c in range(classes) if c not in sensitive]
    return (*sensitive, *others)[:MOST_CLASSES]


def observe(
    view: View, place: Place, *, classes: int, sensitive: Sequence[int], sums: bool = False
) -> Observed:
    """Signals of every client and round, as far as this view shows them.

    With `sums`, as if only means over `place.summing_groups()` had been seen.
    """
    layout = view.layout
    entries = [e for e in layout.entries if e.role == "parameter"]
    weight, bias = head_of(layout, classes)
    rows_of = watched(classes, sensitive)
    names = signal_names(layout, classes, sensitive)
    values = np.full((len(view.rounds), place.n, len(names)), np.nan, dtype=np.float32)
    seen: Seen = "sums" if sums else "single"
    mix = place.summing_groups() if sums else None
    pieces = [_Piece(piece) for piece in _pieces(entries, place.n)]
    for t, number in enumerate(view.rounds):
        source = _source(view, number, place, pieces[0])
        groups = None
        if source.seen == "sums":
            seen = "sums"
        elif mix is not None:
            groups = _restricted(mix, source.clients)
        gram = np.zeros((source.count, source.count))
        layers_u, layers_theta = [], []
        head: dict[str, npt.NDArray[np.float32]] = {}
        for piece in pieces:
            u, base = source.rows(piece)
            if groups is not None:
                u = groups @ u
                base = base if base is None or base.ndim == 1 else groups @ base
            gram += u @ u.T
            layers_u.append(piece.squares(u))
            layers_theta.append(piece.model_squares(u, base, layers_u[-1]))
            for e in (weight, bias):
                if e is not None and e.name in piece.columns:
                    head[e.name] = u[:, piece.columns[e.name]]
        squared_u = np.concatenate(layers_u, axis=1)
        squared_theta = np.concatenate(layers_theta, axis=1)
        norm = np.sqrt(squared_u.sum(axis=1))
        parts = [
            np.sqrt(squared_theta.sum(axis=1))[:, None],
            np.sqrt(squared_theta),
            _to_neighbours(gram, norm, place, source, seen)[:, None],
            norm[:, None],
            np.sqrt(squared_u),
            _to_mean(gram, norm)[:, None],
        ]
        if weight is not None:
            rows = head[weight.name].reshape(source.count, classes, -1)[:, list(rows_of)]
            parts += [rows.mean(axis=2), np.sqrt(np.square(rows).sum(axis=2))]
        if bias is not None:
            parts.append(head[bias.name][:, list(rows_of)])
        round_values = np.concatenate(parts, axis=1)
        assert round_values.shape[1] == len(names)
        values[t, source.clients] = round_values[source.row_of]
    return Observed(values=values, names=names, seen=seen)


def signal_names(layout: Layout, classes: int, sensitive: Sequence[int]) -> tuple[str, ...]:
    """Names of the signals, in the order of the last axis."""
    tensors = [e.name for e in layout.entries if e.role == "parameter"]
    weight, bias = head_of(layout, classes)
    rows_of = watched(classes, sensitive)
    names = [NORM, *(f"norm of {t}" for t in tensors), TO_NEIGHBOURS]
    names += [UPDATE_NORM, *(f"update norm of {t}" for t in tensors), TO_MEAN]
    if weight is not None:
        names += [f"class {c}: mean of its row" for c in rows_of]
        names += [f"class {c}: norm of its row" for c in rows_of]
    if bias is not None:
        names += [f"class {c}: bias" for c in rows_of]
    return tuple(names)


def is_published(name: str) -> bool:
    """Whether a signal stands in the paper's list."""
    return name in (NORM, TO_NEIGHBOURS) or name.startswith("norm of ")


class _Piece:
    """Tensors that are looked at together: their names, columns, and which column is whose."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.names = [e.name for e in entries]
        ends = np.cumsum([e.size for e in entries])
        spans = zip(entries, ends, strict=True)
        self.columns = {e.name: slice(int(end) - e.size, int(end)) for e, end in spans}
        self._marks = np.zeros((int(ends[-1]), len(entries)), dtype=np.float32)
        for k, columns in enumerate(self.columns.values()):
            self._marks[columns, k] = 1.0

    def squares(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Squared length of every row's tensors, (n, tensors); one product for all of them."""
        return np.asarray(np.square(rows) @ self._marks)

    def model_squares(
        self,
        u: npt.NDArray[np.float32],
        base: npt.NDArray[np.float32] | None,
        squares: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """The same of u + base: base (d,) for all, a row each (n, d), or unknown (NaN)."""
        if base is None:
            return np.full_like(squares, np.nan)
        if base.ndim == 2:
            return self.squares(u + base)
        own = self._marks * base[:, None]
        found = squares + 2.0 * (u @ own) + base @ own
        return np.asarray(np.maximum(found, 0.0), dtype=np.float32)


def _restricted(mix: Floats, present: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Means over those of a group that took part."""
    own = mix[np.ix_(present, present)]
    return np.asarray(own / own.sum(axis=1, keepdims=True), dtype=np.float32)


def _pieces(entries: Sequence[Entry], rows: int) -> Iterator[list[Entry]]:
    """Consecutive tensors that fit into memory together."""
    most = max(1, PIECE_BYTES // (4 * max(rows, 1)))
    piece: list[Entry] = []
    for e in entries:
        if piece and sum(x.size for x in piece) + e.size > most:
            yield piece
            piece = []
        piece.append(e)
    if piece:
        yield piece


def _cosines(products: Floats, a: Floats, b: Floats) -> Floats:
    lengths = a * b
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def _to_mean(gram: Floats, norm: Floats) -> Floats:
    """Cosine of every row to the mean of all, (n,)."""
    length = math.sqrt(max(float(gram.mean()), 0.0))
    return _cosines(gram.mean(axis=1), norm, np.full(len(norm), length))


def _to_neighbours(gram: Floats, norm: Floats, place: Place, source: _Source, seen: Seen) -> Floats:
    """Mean cosine to the rows of the neighbours that took part, (n,); NaN without any.

    Where rows are sums of groups there are no neighbours' own updates.
    """
    out = np.full(len(norm), np.nan)
    if seen == "sums":
        return out
    near = place.adjacency[np.ix_(source.clients, source.clients)]
    cosines = _cosines(gram, norm[:, None], np.broadcast_to(norm[None, :], gram.shape))
    some = near.any(axis=1)
    out[some] = (cosines * near).sum(axis=1)[some] / near.sum(axis=1)[some]
    return out


@dataclass(frozen=True)
class _Source:
    """Rows of one round: `clients` (m,) that took part, `row_of` (m,) the row of each of them.

    `messages` (k,) of the rows; `bases` (k,) messages with the model each sender had received, or
    None where a message holds the model itself; -1 where nobody knows.
    """

    view: View
    number: int
    clients: npt.NDArray[np.int64]
    row_of: npt.NDArray[np.int64]
    messages: tuple[int, ...]
    kinds: tuple[str, ...]
    bases: tuple[int | None, ...]
    scale: npt.NDArray[np.float32]
    seen: Seen
    senders: tuple[str, ...]
    first: tuple[_Piece, npt.NDArray[np.float32]] | None

    @property
    def count(self) -> int:
        return len(self.messages)

    def rows(self, piece: _Piece) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Updates (k, columns) of some tensors, and the models they began from: one (columns,),
        a row each, or None where they are not known."""
        names = piece.names
        if self.first is not None and self.first[0] is piece:
            u = self.first[1]
        elif all(k == "sum" for k in self.kinds):
            u = np.stack([self.view.payload(self.number, i, names) for i in self.messages])
            u = u.astype(np.float32) * self.scale[:, None]
        else:
            found = self.view.updates(self.number, names, senders=set(self.senders))
            at = {int(i): row for row, i in enumerate(found.messages)}
            u = found.rows[[at[i] for i in self.messages]]
        if any(b == -1 for b in self.bases):
            return u, None
        known = {b for b in self.bases if b is not None}
        began = {
            b: self.view.payload(self.number, b, names).astype(np.float32, copy=False)
            for b in known
        }
        if len(began) == 1 and None not in self.bases:
            return u, next(iter(began.values()))
        each = [
            self.view.payload(self.number, i, names).astype(np.float32) - u[k]
            if b is None
            else began[b]
            for k, (i, b) in enumerate(zip(self.messages, self.bases, strict=True))
        ]
        return u, np.stack(each)


def _source(view: View, number: int, place: Place, piece: _Piece) -> _Source:
    """Whose rows a round shows: every client's, an organisation's sum, or one sum for all."""
    client_of = {name: i for i, name in enumerate(place.clients)}
    table = dict(view.indexed(number))
    first = None
    try:
        updates = view.updates(number, piece.names)
        first = (piece, updates.rows)
        senders, messages = updates.senders, tuple(int(i) for i in updates.messages)
    except NotObservable:
        sums = [(i, m) for i, m in table.items() if m.kind == "sum" and MODEL in m.parts]
        if not sums:
            raise
        senders, messages = tuple(m.receiver for _, m in sums), tuple(i for i, _ in sums)
    if ANONYMOUS in senders:
        raise NotObservable(
            "nobody knows whose updates these are",
            expected="uploads that bear their senders' names, or sums of known groups",
            got="anonymous uploads",
            remedy="parameters tell nothing of one client while uploads stay unlinked: audit "
            "that with the fingerprint audit",
        )
    if all(s in client_of for s in senders):
        clients = np.array([client_of[s] for s in senders], dtype=np.int64)
        row_of = np.arange(len(senders), dtype=np.int64)
        seen: Seen = "single"
    else:
        clients, row_of = _members(senders, place)
        seen = "sums"
    sizes = np.bincount(row_of, minlength=len(messages)).astype(np.float32)
    kinds = tuple(table[i].kind for i in messages)
    return _Source(
        view=view,
        number=number,
        clients=clients,
        row_of=row_of,
        messages=messages,
        kinds=kinds,
        bases=_bases(table, messages, senders, clients, row_of, place),
        scale=(1.0 / np.maximum(sizes, 1.0)).astype(np.float32),
        seen=seen,
        senders=senders,
        first=first,
    )


def _members(
    senders: Sequence[str], place: Place
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Clients behind sums, and the row of each: of its region, or of everyone."""
    row: dict[int, int] = {}
    for k, name in enumerate(senders):
        group = name.removeprefix("region-")
        for c in range(place.n):
            inside = (
                place.organisations is not None
                and group != name
                and str(place.organisations[c]) == group
            )
            if inside or (group == name and len(senders) == 1):
                row[c] = k
    if not row:
        raise NotObservable(
            "it is not known whose updates a sum holds",
            expected="uploads of clients, of regions, or one sum of all",
            got=", ".join(sorted(set(senders))[:5]),
            remedy="name regions as region-NUMBER of the organisation, as in the manifest",
        )
    members = sorted(row)
    return np.array(members, dtype=np.int64), np.array([row[c] for c in members], dtype=np.int64)


def _bases(
    table: Mapping[int, Any],
    messages: Sequence[int],
    senders: Sequence[str],
    clients: npt.NDArray[np.int64],
    row_of: npt.NDArray[np.int64],
    place: Place,
) -> tuple[int | None, ...]:
    """For every row the message with the model it began from; None: it is a model; -1: unknown."""
    received: dict[str, list[tuple[int, int]]] = {}
    first_with: dict[int, int] = {}
    wanted = {*senders, *(place.clients[c] for c in clients)}
    for i, m in table.items():
        if m.kind == "model" and m.receiver in wanted and MODEL in m.parts:
            # equal payloads are one row: name it by the first message that holds it
            same = first_with.setdefault(m.parts[MODEL], i)
            received.setdefault(m.receiver, []).append((m.step, same))
    out: list[int | None] = []
    for k, (i, s) in enumerate(zip(messages, senders, strict=True)):
        if table[i].kind == "model":
            out.append(None)
            continue
        found = received.get(s, [])
        if not found:  # a sum: its members were sent the model
            behind = (place.clients[c] for c in clients[row_of == k])
            found = next((received[name] for name in behind if name in received), [])
        before = [(step, same) for step, same in found if step < table[i].step]
        out.append(max(before)[1] if before else -1)
    return tuple(out)


# -- summaries over rounds -------------------------------------------------------------------------


def summarise(
    values: Signals32, names: Sequence[str], *, rounds: int | None = None, which: Which = "all"
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """(..., T, n, S) to features (..., n, D) of the first `rounds` rounds, and their names.

    `which`: all signals, those of the paper's list, those that need no graph, or the one that does.
    Columns that nobody has (a cosine to neighbours where there are none) are left out.
    """
    wanted: dict[str, Callable[[str], bool]] = {
        "all": lambda name: True,
        "published": is_published,
        "own": lambda name: name != TO_NEIGHBOURS,
        "neighbours": lambda name: name == TO_NEIGHBOURS,
    }
    keep = [i for i, name in enumerate(names) if wanted[which](name)]
    x = values[..., :rounds, :, :][..., keep].astype(np.float64)
    chosen = [names[i] for i in keep]
    there = np.isfinite(x)
    count = there.sum(axis=-3)
    filled = np.where(there, x, 0.0)
    mean = _over(filled.sum(axis=-3), count)
    spread = np.where(there, x - mean[..., None, :, :], 0.0)
    std = np.sqrt(_over(np.square(spread).sum(axis=-3), count))
    at = np.arange(x.shape[-3], dtype=np.float64)[:, None, None]
    centre = _over((at * there).sum(axis=-3), count)
    away = np.where(there, at - centre[..., None, :, :], 0.0)
    slope = _over((away * spread).sum(axis=-3), np.square(away).sum(axis=-3))
    slope = np.where(count == 1, 0.0, slope)
    latest = x.shape[-3] - 1 - np.argmax(np.flip(there, axis=-3), axis=-3)
    last = np.take_along_axis(x, latest[..., None, :, :], axis=-3)[..., 0, :, :]
    blocks = [mean, std, slope, last]
    labels = [f"{what}, {name}" for what in SUMMARIES for name in chosen]
    for name in WHOLE_SEQUENCE:
        if name in chosen:
            blocks.append(np.moveaxis(x[..., chosen.index(name)], -2, -1))
            labels += [f"{name}, round {t + 1}" for t in range(x.shape[-3])]
    out = np.concatenate(blocks, axis=-1).astype(np.float32)
    known = np.isfinite(out).reshape(-1, out.shape[-1]).any(axis=0)
    return out[..., known], tuple(labels[i] for i in np.flatnonzero(known))


def _over(total: Floats, count: npt.NDArray[Any]) -> Floats:
    """total / count, NaN where nothing was counted."""
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def noise_column(view: View, n: int) -> Floats | None:
    """(n, 1) noise multipliers, where the declared ones differ between clients: A1 knows them."""
    for declared in view.declared:
        z = declared.get("noise_multiplier")
        if isinstance(z, list | tuple) and len(z) == n and len(set(z)) > 1:
            return np.array(z, dtype=np.float64)[:, None]
    return None
