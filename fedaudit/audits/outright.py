"""What an observer has without an attack: who sent which update, read off the messages themselves.

The one place where audits look before they attack. A sender's name on an update is no obstacle that
an attack fails to overcome: it is a leak at its full value, of a result with `known=True`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.errors import NotApplicable, NothingToSay, NotObservable
from fedaudit.trace import ANONYMOUS, PUBLIC, View
from fedaudit.trace.schema import Message, Scalar


@dataclass(frozen=True)
class Carried:
    """The updates of single clients that reach the observer in one round, by message number.

    `named`: message -> the client whose name it bears, as its sender or in a field beside the
    update. `hidden`: those that name nobody.
    """

    number: int
    named: dict[int, str]
    hidden: tuple[int, ...]


def single_updates(view: View, tensor: str) -> list[Carried]:
    """Rounds in which single clients' updates reach the observer; refused where none do at all.

    Whoever looks knows its own uploads: they do not count.
    """
    if not view.rounds:
        need_uploads(view)
    known = roster(view)
    out, lacking, regions = [], None, ""
    for number in view.rounds:
        try:
            updates = view.updates(number, tensor)
        except NotObservable as error:
            if error.code != "no_single_updates":
                raise
            lacking = lacking or error
            continue
        table = dict(view.indexed(number))
        named: dict[int, str] = {}
        hidden = []
        for at, sender in zip(updates.messages.tolist(), updates.senders, strict=True):
            name = sender if sender != ANONYMOUS else named_beside(table[at], known)
            if name in view.hubs:
                regions = name
            elif not name:
                hidden.append(at)
            elif name not in view.parties:
                named[at] = name
        if named or hidden:
            out.append(Carried(number, named, tuple(hidden)))
    if out:
        return out
    if regions:
        raise NotApplicable(
            f"{view.vantage} sees what regions send, and no single client's update",
            code="only_regions",
            expected="uploads of clients",
            got="uploads of regions",
            remedy=f'audit as a region sees it: vantage = "{regions}"',
        )
    if lacking is not None:
        raise lacking
    raise NotApplicable(
        f"{view.vantage} sees no single client's update but its own",
        code="no_single_updates",
        expected="uploads of other clients",
        got="own uploads only",
        remedy='audit as the server sees it: vantage = "server"',
    )


def need_uploads(view: View) -> None:
    """Refuse a view in which nothing came from any client: of it nothing can be said."""
    hubs = {*view.hubs}
    for number in view.rounds:
        if any(m.sender not in hubs or m.kind == "sum" for m in view.messages(number)):
            return
    raise NothingToSay(
        "no upload arrived",
        code="nothing_arrived",
        expected="at least one message from a client",
        got=f"none in {len(view.rounds)} rounds",
        remedy="see why uploads failed, and record the federation again",
    )


def roster(view: View) -> set[str]:
    """Clients whom the observer knows by name: those to whom it sees models sent."""
    sent = {
        m.receiver
        for number in view.rounds
        for m in view.messages(number)
        if m.kind == "model" and m.receiver != PUBLIC
    }
    return sent - {*view.hubs}


def named_beside(m: Message, known: set[str]) -> str:
    """The client that a field beside an anonymous update names, or nothing."""
    return next((v for v in m.metadata.values() if isinstance(v, str) and v in known), "")


@dataclass(frozen=True)
class Recurring:
    """A field beside anonymous updates with values that come back: (round, message) -> its value,
    where no other update of that round has it."""

    field: str
    values: dict[tuple[int, int], Scalar]

    @property
    def returning(self) -> set[Scalar]:
        """Values that stand in more than one round."""
        return {value for value, times in Counter(self.values.values()).items() if times > 1}


def recurring(view: View, carried: Sequence[Carried]) -> tuple[Recurring, ...]:
    """Fields that may mark anonymous updates: a value stands on one update of a round and comes
    back on one of another. Weights are such a field where clients differ in size.

    Whether they mark the same clients, and not by chance, only the truth can tell.
    """
    fields: dict[str, dict[tuple[int, int], Scalar]] = {}
    for c in carried:
        table = dict(view.indexed(c.number))
        rows = {i: {"weight": table[i].weight, **table[i].metadata} for i in c.hidden}
        for name in dict.fromkeys(key for row in rows.values() for key in row):
            times = Counter(row.get(name) for row in rows.values())
            for i, row in rows.items():
                value = row.get(name)
                if value is not None and times[value] == 1:
                    fields.setdefault(name, {})[c.number, i] = value
    found = [Recurring(name, values) for name, values in fields.items()]
    found.sort(key=lambda r: -len(r.values))
    return tuple(r for r in found if r.returning)
