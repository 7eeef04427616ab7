"""Groups of candidate records: by class, or by a column of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedaudit.arrays import Floats, Indices
from fedaudit.audits.audit import Candidates
from fedaudit.errors import ConfigError
from fedaudit.knowledge.records import Records

CLASS = "class"
MOST_GROUPS = 12
"""Groups that a result states at most: every further one costs all of them power."""


def groups_of(
    records: Records, pools: Mapping[str, Candidates], column: str, asked_by: str
) -> tuple[tuple[str, ...], dict[str, Indices]]:
    """Names of the groups, and the group of every candidate (n,) of each party.

    `column`: "class", the name of a category, or of a number (halves at its median); empty: none.
    """
    if not column:
        return (), {}
    some = next(iter(records.own.values()))
    if column == CLASS:
        names = [f"{CLASS} {c}" for c in some.classes]
        of = {party: pool.y.numpy().astype(np.int64) for party, pool in pools.items()}
        return _few(names, of)
    titles = some.columns
    x = {party: pool.x.reshape(len(pool), -1).numpy() for party, pool in pools.items()}
    if not titles or any(v.shape[1] != len(titles) for v in x.values()):
        titles = ()
    values = [i for i, t in enumerate(titles) if t.startswith(f"{column}=")]
    if values:
        return _few([titles[i] for i in values], {p: v[:, values].argmax(1) for p, v in x.items()})
    if column not in titles:
        raise ConfigError(
            f"{asked_by}.group = {column!r} is no column of the records",
            expected=f"{CLASS!r}" + "".join(f", {t!r}" for t in _columns(titles)[:12]),
            got=repr(column),
            remedy="name one of them, or leave it out",
        )
    return _halves(column, {p: v[:, titles.index(column)] for p, v in x.items()})


def _columns(titles: Sequence[str]) -> list[str]:
    """Names of a table's columns; of a category the part before its value."""
    return list(dict.fromkeys(t.partition("=")[0] for t in titles))


def _halves(
    column: str, values: Mapping[str, Floats]
) -> tuple[tuple[str, ...], dict[str, Indices]]:
    everyone = np.concatenate(list(values.values()))
    middle = float(np.median(everyone))
    if not (everyone > middle).any():  # more than half have the largest value
        middle = float(everyone[everyone < middle].max(initial=-np.inf))
    names = (f"{column}, low half", f"{column}, high half")
    return names, {p: (v > middle).astype(np.int64) for p, v in values.items()}


def _few(
    names: Sequence[str], of: Mapping[str, Indices]
) -> tuple[tuple[str, ...], dict[str, Indices]]:
    """The largest groups; the rest is one."""
    count = np.bincount(np.concatenate(list(of.values())), minlength=len(names))
    kept = np.argsort(-count, kind="stable")[:MOST_GROUPS]
    kept = np.sort(kept[count[kept] > 0])
    number = np.full(len(count), len(kept))
    number[kept] = np.arange(len(kept))
    rest = ["others"] if count.sum() > count[kept].sum() else []
    return (*(names[i] for i in kept), *rest), {p: number[v] for p, v in of.items()}
