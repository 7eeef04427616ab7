"""The records of every client: from a run, a config, or a file given with a foreign trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.audits.audit import columns_for
from fedaudit.data import files
from fedaudit.errors import ConfigError, DataError, NotApplicable
from fedaudit.files import Unreadable, read_toml
from fedaudit.randomness import Seed
from fedaudit.settings import check, check_arguments
from fedaudit.setup.config import Config, load
from fedaudit.setup.prepare import Prepared
from fedaudit.tasks.catalogue import CATALOGUE, build_named
from fedaudit.trace import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Trace,
    Truth,
)

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset
    from fedaudit.tasks.task import Task

MOST_NAMES = 5
"""Names that a note lists; it counts the rest."""

RESERVED_NAMES = frozenset({SERVER, SHUFFLER, AGGREGATOR, ANONYMOUS, PUBLIC, NETWORK, WIRETAP})


@dataclass(frozen=True)
class Records:
    """Records of the clients: `own` party -> its training records; `others` held-out records.

    `inverted`: parties that train on 1 - x. `owner`: party -> the natural owner of its records, if
    held-out records of that owner exist to match them with. `notes`: for the reader of the report.
    """

    task: Task
    own: Mapping[str, Dataset]
    others: Dataset
    inverted: frozenset[str] = frozenset()
    owner: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def of_run(home: Path, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a run, loaded again from its private config."""
    file = home / "truth" / "config.toml"
    try:
        raw = read_toml(file)
    except Unreadable as error:
        if not error.absent:
            raise
        raise NotApplicable(
            "no records to ask about",
            code="no_records",
            expected=f"the config with its seed in {file}",
            got="no such file",
            remedy="give records with `data`, and the model with `model`",
        ) from None
    config = load({k: v for k, v in raw.items() if k != "audits"})
    return of_config(config, trace, truth)


def of_config(given: Config | Prepared, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a config, assigned as in its run; `truth` tells whether they changed since."""
    made = Prepared.of(given)
    before = None if truth is None else truth.facts.get("data_sha256")
    require_unchanged_data(made, before, or_else=", or give records with `data`")
    config, train, test, task = made.config, made.train, made.test, made.task
    assignment = made.assignment
    check_model_fits(task, trace)
    parties = trace.manifest.federation.get("clients", ())
    by_owner = config.partition["kind"] == "by_owner" and test.client is not None
    own = {p: assignment.parts.client_data(train, c) for c, p in enumerate(parties)}
    return Records(
        task=task,
        own=own,
        others=test,
        inverted=frozenset(p for c, p in enumerate(parties) if assignment.parts.inverted[c]),
        owner={p: str(assignment.parts.names[c]) for c, p in enumerate(parties)}
        if by_owner
        else {},
    )


def require_unchanged_data(made: Prepared, before: str | None, *, or_else: str = "") -> None:
    """Load the records of a run, and require that their digest is still `before`.

    Missing or changed records raise NotApplicable, so that other audits go on.
    """
    try:
        now = made.data_sha256 if before is not None else len(made.train)
    except DataError as error:
        raise NotApplicable(
            f"the records of the run cannot be read: {error.what}",
            code="unreadable_records",
            expected=error.expected,
            got=error.got,
            remedy=f"restore them{or_else}",
        ) from None
    if before is not None and before != now:
        raise NotApplicable(
            "the records are not those that the run trained on",
            code="other_records",
            expected="the data that the run began with",
            got="other records or labels",
            remedy=f"restore the data{or_else}",
        )


def of_files(
    trace: Trace,
    data: str | Path,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    logits: bool = True,
) -> Records:
    """Records for a trace that other software wrote.

    `data` is a file of records with a client column. A name from the trace marks a training record
    of that client; any other word marks a held-out record. An empty cell, or a word that is nearly
    a name from the trace, is refused as a likely mistake. `model` is the "package.module:function"
    that builds the torch module, or "sklearn:NAME". `logits`: the model must return logits (not
    needed with a score of the user's own).
    """
    asked = dict(settings or {})
    dataset = files.read(data, **check_arguments(files.read, asked, "data"))
    if dataset.client is None:
        raise DataError(
            f"{data} does not tell which client owns a record",
            expected="a client column with the names of the trace's parties",
            got="no client column",
            remedy="name it with `client`",
        )
    if model is None:
        task = _declared_task(trace).build(dataset, Seed(0))
    else:
        task = build_named(model, dataset, layout=trace.layout, logits=logits)
    check_model_fits(task, trace)
    # records of "public" or "server" are held-out records
    senders = set(trace.parties()) - {*trace.manifest.federation.get("hubs", ()), *RESERVED_NAMES}
    whose = np.array(dataset.client)
    listed = senders & set(dataset.client)
    # in the order of the trace: neither names nor the order of the file change random draws
    own = {
        party: dataset.take(np.flatnonzero(whose == party))
        for party in trace.parties()
        if party in listed
    }
    nobody = np.flatnonzero(~np.isin(whose, [*own]))
    if not own or not len(nobody):
        raise DataError(
            f"{data} has no {'records of clients' if not own else 'held-out records'}",
            expected="records of the trace's parties, and records that none of them trained on",
            got=f"clients {', '.join(sorted(set(dataset.client))[:5])}; the trace has "
            f"{', '.join(sorted(senders)[:5])}",
            remedy="write the party's name in the client column, and 'held-out' for the others",
        )
    other_names = Counter(whose[nobody].tolist())
    _refuse_misspelt(data, other_names, senders, own)
    return Records(
        task=task,
        own=own,
        others=dataset.take(nobody),
        notes=_notes(other_names, sorted(senders - {*own})),
    )


def _refuse_misspelt(
    data: str | Path, other_names: Mapping[str, int], senders: Collection[str], own: Collection[str]
) -> None:
    """Refuse words in the client column that are nearly a name from the trace.

    Another case, spacing or hyphenation counts for every sender. One wrong letter counts only for
    senders without records in the file, since numbered sites differ by one letter as well.
    """
    plain = {_letters(s): s for s in senders}
    missing = sorted(set(senders) - set(own))
    for word, count in other_names.items():
        meant = plain.get(_letters(word))
        if meant is None:
            meant = next((s for s in missing if _one_slip(word, s)), None)
        if meant is not None:
            raise DataError(
                f"{count} records of {data} belong to {word!r}, which is nearly {meant!r}",
                expected="names as the trace spells them, or another word for held-out records",
                got=f"{word!r}; the trace has {', '.join(sorted(senders)[:5])}",
                remedy=f"write {meant!r}, or 'held-out' if no client trained on these",
            )


def _letters(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _one_slip(one: str, other: str) -> bool:
    """Whether the names differ by one inserted, removed, replaced or swapped letter."""
    a, b = sorted((_letters(one), _letters(other)), key=len)
    if len(b) - len(a) > 1 or len(b) < 3:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) < len(b):
        return rest_a == rest_b[1:]
    return rest_a[1:] == rest_b[1:] or (rest_a[:2] == rest_b[:2][::-1] and rest_a[2:] == rest_b[2:])


def _notes(other_names: Mapping[str, int], missing: Sequence[str]) -> tuple[str, ...]:
    """Which names counted as held out, and which clients have no records."""

    def listed(words: Sequence[str]) -> str:
        rest = len(words) - MOST_NAMES
        return ", ".join(words[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")

    of = [f"{word!r} ({count})" for word, count in other_names.items()]
    notes = [f"records of {listed(of)} count as held out: the trace has no client of that name"]
    if missing:
        notes.append(f"no records of {listed(missing)} were given: not asked about")
    return tuple(notes)


def _declared_task(trace: Trace) -> Any:
    """The task that a manifest names, if fedaudit can build it.

    A user's module is refused: a recording must not decide which code runs.
    """
    known = dict(trace.manifest.task)
    name = known.pop("kind", None)
    if name not in CATALOGUE or name == "module":
        raise ConfigError(
            "the model of this trace is not known",
            expected="a task that fedaudit builds, named in the manifest",
            got=repr(name),
            remedy="name the function that builds the torch module: `model=package.module:fn`",
        )
    return check(CATALOGUE[name], known, "the manifest's task")


def check_model_fits(task: Task, trace: Trace) -> None:
    """Refuse a model whose tensors differ from those in the trace."""
    columns_for(task.layout, trace.layout)
