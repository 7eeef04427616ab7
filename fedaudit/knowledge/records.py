"""Whose records are whose: of a run, of a config, or of files beside a foreign trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.audits.audit import columns_for
from fedaudit.errors import ConfigError, DataError, NotApplicable
from fedaudit.files import Unreadable, read_toml
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config, load
from fedaudit.setup.identity import digest
from fedaudit.setup.prepare import deal, load_data
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
"""Names that a note lists before it counts."""

NO_CLIENT = frozenset({SERVER, SHUFFLER, AGGREGATOR, ANONYMOUS, PUBLIC, NETWORK, WIRETAP})


@dataclass(frozen=True)
class Records:
    """Whose records are whose: `own` party -> what it trained on; `others` nobody's records.

    `inverted` parties see 1 - x. `owner` party -> the natural owner its records come from, where
    held-out records of that owner exist to match them with. `notes` what a reader should know.
    """

    task: Task
    own: Mapping[str, Dataset]
    others: Dataset
    inverted: frozenset[str] = frozenset()
    owner: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def of_run(home: Path, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a run, loaded again as its private config says."""
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
            remedy="give records with --data, and the model with --model",
        ) from None
    config = load({k: v for k, v in raw.items() if k != "audits"})
    return of_config(config, trace, truth)


def of_config(config: Config, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a config, dealt out as in its run; `truth` says whether they are the same."""
    seed = Seed(config.seed)
    before = None if truth is None else truth.facts.get("data_sha256")
    train, test = same_data(config, seed, before, or_else=", or give records with --data")
    dealt = deal(config, train, seed)
    task = config.task.build(train, seed)
    fits(task, trace)
    parties = trace.manifest.federation.get("clients", ())
    by_owner = config.partition["kind"] == "by_owner" and test.client is not None
    own = {p: dealt.parts.client_data(train, c) for c, p in enumerate(parties)}
    return Records(
        task=task,
        own=own,
        others=test,
        inverted=frozenset(p for c, p in enumerate(parties) if dealt.parts.inverted[c]),
        owner={p: str(dealt.parts.names[c]) for c, p in enumerate(parties)} if by_owner else {},
    )


def same_data(
    config: Config, seed: Seed, before: str | None, *, or_else: str = ""
) -> tuple[Dataset, Dataset]:
    """Records of a run, trained on and held out, if they are still what they were (`before`).

    Moved or altered ones are a missing need: other audits go on.
    """
    try:
        train, test = load_data(config, seed)
    except DataError as error:
        raise NotApplicable(
            f"the records of the run cannot be read: {error.what}",
            code="unreadable_records",
            expected=error.expected,
            got=error.got,
            remedy=f"bring them back{or_else}",
        ) from None
    if before is not None and before != digest(train, test):
        raise NotApplicable(
            "the records are not those that the run trained on",
            code="other_records",
            expected="the data as they were when the run began",
            got="other records or labels",
            remedy=f"restore the data{or_else}",
        )
    return train, test


def of_files(
    trace: Trace,
    data: str | Path,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    logits: bool = True,
) -> Records:
    """Records for a trace that other software wrote.

    `data` is a file of records with a client column: a name of the trace marks what that client
    trained on, any other word marks a record of nobody (an empty cell is refused: it may be a
    mistake, and so is a word that is nearly a name of the trace). `model` is
    "package.module:function" that builds the torch module; `logits`: whether it must give some,
    as where no score of one's own takes their place.
    """
    from fedaudit.data import files
    from fedaudit.settings import check_arguments
    from fedaudit.tasks.catalogue import Module

    asked = dict(settings or {})
    dataset = files.read(data, **check_arguments(files.read, asked, "data"))
    if dataset.client is None:
        raise DataError(
            f"{data} does not say whose records these are",
            expected="a client column with the names of the trace's parties",
            got="no client column",
            remedy="name it with --client",
        )
    if model is None:
        task = _declared_task(trace).build(dataset, Seed(0))
    else:
        task = Module(factory=model).build(dataset, Seed(0), logits=logits)
    fits(task, trace)
    # a record of "public" or "server" is nobody's
    senders = set(trace.parties()) - {*trace.manifest.federation.get("hubs", ()), *NO_CLIENT}
    whose = np.array(dataset.client)
    listed = senders & set(dataset.client)
    # in the order of the trace: neither names nor the order of the file change what is drawn
    own = {
        party: dataset.take(np.flatnonzero(whose == party))
        for party in trace.parties()
        if party in listed
    }
    nobody = np.flatnonzero(~np.isin(whose, [*own]))
    if not own or not len(nobody):
        raise DataError(
            f"{data} has no records of {'clients' if not own else 'nobody'}",
            expected="records of the trace's parties, and records that none of them trained on",
            got=f"clients {', '.join(sorted(set(dataset.client))[:5])}; the trace has "
            f"{', '.join(sorted(senders)[:5])}",
            remedy="write the party's name in the client column, and 'held-out' for the others",
        )
    strangers = Counter(whose[nobody].tolist())
    _refuse_misspelt(data, strangers, senders, own)
    return Records(
        task=task,
        own=own,
        others=dataset.take(nobody),
        notes=_named(strangers, sorted(senders - {*own})),
    )


def _refuse_misspelt(
    data: str | Path, strangers: Mapping[str, int], senders: Collection[str], own: Collection[str]
) -> None:
    """Refuse words of the client column that are nearly a name of the trace.

    Letters in another case, other spaces or hyphens: of any sender. A letter more, less or another:
    of a sender who has no records in the file, since numbered sites differ by one letter as well.
    """
    plain = {_letters(s): s for s in senders}
    missing = sorted(set(senders) - set(own))
    for word, count in strangers.items():
        meant = plain.get(_letters(word))
        if meant is None:
            meant = next((s for s in missing if _one_slip(word, s)), None)
        if meant is not None:
            raise DataError(
                f"{count} records of {data} belong to {word!r}, which is nearly {meant!r}",
                expected="names as the trace spells them, or another word for nobody's records",
                got=f"{word!r}; the trace has {', '.join(sorted(senders)[:5])}",
                remedy=f"write {meant!r}, or 'held-out' if no client trained on these",
            )


def _letters(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _one_slip(one: str, other: str) -> bool:
    """Whether one letter more, less, other, or two that changed places make one of the other."""
    a, b = sorted((_letters(one), _letters(other)), key=len)
    if len(b) - len(a) > 1 or len(b) < 3:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) < len(b):
        return rest_a == rest_b[1:]
    return rest_a[1:] == rest_b[1:] or (rest_a[:2] == rest_b[:2][::-1] and rest_a[2:] == rest_b[2:])


def _named(strangers: Mapping[str, int], missing: Sequence[str]) -> tuple[str, ...]:
    """Whose records were taken for nobody's, and which clients have none."""

    def listed(words: Sequence[str]) -> str:
        rest = len(words) - MOST_NAMES
        return ", ".join(words[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")

    of = [f"{word!r} ({count})" for word, count in strangers.items()]
    notes = [
        f"records of {listed(of)} were taken as nobody's: the trace has no client of that name"
    ]
    if missing:
        notes.append(f"no records were given of {listed(missing)}: not asked about")
    return tuple(notes)


def _declared_task(trace: Trace) -> Any:
    """The task that a manifest names, if fedaudit builds it.

    Never a module of somebody's own: a recording does not decide which code is run.
    """
    from fedaudit.settings import check
    from fedaudit.tasks.catalogue import CATALOGUE

    known = dict(trace.manifest.task)
    name = known.pop("kind", None)
    if name not in CATALOGUE or name == "module":
        raise ConfigError(
            "the model behind this trace is not known",
            expected="a task that fedaudit builds, named in the manifest",
            got=repr(name),
            remedy="name the function that builds the torch module: --model package.module:fn",
        )
    return check(CATALOGUE[name], known, "the manifest's task")


def fits(task: Task, trace: Trace) -> None:
    """Refuse a model whose tensors are not those that the trace recorded."""
    columns_for(task.layout, trace.layout)
