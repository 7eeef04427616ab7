"""A leverage by its name: one of the known kinds, a column of the table, or a blend."""

from __future__ import annotations

from fedaudit.allocate.clients import Clients, no_sizes, numbers
from fedaudit.arrays import Floats
from fedaudit.data.files.cells import NUMBER
from fedaudit.errors import UsageError
from fedaudit.protections.noise_allocation import leverage

KINDS = ("size", "group", "degree", "betweenness", "eigenvector")


def leverage_of(
    who: Clients, by: str | None, coupling: float | None, classes: int | None
) -> tuple[str, Floats]:
    """A description of the leverage, and its values (n,)."""
    there = [
        kind
        for kind, given in (("size", who.sizes), ("group", who.groups), ("degree", who.edges))
        if given is not None
    ]
    if by is None or by == "blend":
        if not there:
            raise UsageError(
                "an allocation needs a leverage",
                expected="sizes, groups, edges or a column of your own",
                got="none of them",
                remedy="`size_column=NAME`, `group_column=NAME`, `edges=FILE` or "
                "`leverage=column:NAME`",
            )
        chosen = dict.fromkeys(there, 1.0)
    elif by.startswith("blend:"):
        chosen = _shares(by.removeprefix("blend:"))
    else:
        chosen = {by: 1.0}
    if (coupling is None) != (classes is None):
        raise UsageError(
            "a coupling needs both eta and the number of classes",
            expected="`coupling` and `classes`",
            got="one of them",
            remedy="`coupling=0.5` and `classes=10`",
        )
    if coupling is not None and list(chosen) != ["degree"]:
        raise UsageError(
            "a coupling scales the degree",
            expected="`leverage=degree`",
            got=", ".join(chosen),
            remedy="leave `coupling` out, or use `leverage=degree`",
        )
    if coupling is not None and classes is not None:
        edges = _needed(who.edges, "degree")
        degree = leverage.degree_of(edges, who.n)
        words = f"{coupling:g} ln({classes}) degree / mean"
        return words, leverage.coupled(degree, coupling=coupling, classes=classes)
    parts = {kind: _one(who, kind) for kind in chosen}
    if len(parts) == 1:
        (kind,) = parts
        scaled = "as it is" if kind.startswith("column:") else "to unit mean"
        return f"{kind}, {scaled}", parts[kind]
    total = sum(chosen.values())
    words = " + ".join(f"{share / total:.3g} {kind}" for kind, share in chosen.items())
    return f"{words}, each to unit mean", leverage.blend(parts, chosen)


def _shares(text: str) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in text.split(","):
        kind, equals, share = part.rpartition("=")
        if not equals or not NUMBER.fullmatch(share.strip()) or kind.strip() in out:
            raise UsageError(
                "this blend cannot be read",
                expected="blend:NAME=SHARE,NAME=SHARE with every name once",
                got=repr(part),
                remedy="for example `leverage=blend:size=2,group=1`",
            )
        out[kind.strip()] = float(share)
    return out


def _one(who: Clients, kind: str) -> Floats:
    if kind == "size":
        if who.sizes is None:
            raise no_sizes("this leverage")
        return leverage.from_size(who.sizes)
    if kind == "group":
        if who.groups is None:
            raise UsageError(
                "this leverage needs groups",
                expected="a column of organisations or regions",
                got="no `group_column`",
                remedy="`group_column=NAME`",
            )
        return leverage.from_groups(who.groups)
    if kind == "degree":
        return leverage.from_degree(leverage.degree_of(_needed(who.edges, kind), who.n))
    if kind == "betweenness":
        return leverage.from_betweenness(_needed(who.edges, kind), who.n)
    if kind == "eigenvector":
        return leverage.from_eigenvector(_needed(who.edges, kind), who.n, who.names)
    if kind.startswith("column:"):
        if who.table is None:
            raise UsageError(
                "a column was named, and there is no table",
                expected=", ".join(KINDS),
                got=kind,
                remedy="leave `leverage` out",
            )
        values = numbers(who.table, kind.removeprefix("column:"))
        return leverage.check_leverage(values, who.names)
    raise UsageError.unknown(
        f"there is no leverage {kind!r}",
        kind,
        (*KINDS, "column:NAME", "blend"),
        expected="size, group, degree, betweenness, eigenvector, column:NAME or blend",
    )


def _needed(edges: tuple[tuple[int, int], ...] | None, kind: str) -> tuple[tuple[int, int], ...]:
    if edges is None:
        raise UsageError(
            f"the leverage {kind!r} needs a graph",
            expected="an edge list: two clients a line",
            got="no `edges`",
            remedy="`edges=FILE`",
        )
    return edges
