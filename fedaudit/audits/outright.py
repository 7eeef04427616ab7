"""Senders that an observer reads directly from the messages, without an attack.

Audits look here before they attack. A sender's name on an update is a leak at its full value: the
result has `known=True`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.errors import NotApplicable, NothingToSay, NotObservable, count_of
from fedaudit.trace import ANONYMOUS, PUBLIC, View
from fedaudit.trace.schema import Message, Scalar


@dataclass(frozen=True)
class RoundUpdates:
    """Single clients' updates that reach the observer in one round, by message number.

    `named`: message -> client, from the sender or from a metadata field. `hidden`: anonymous
    messages.
    """

    number: int
    named: dict[int, str]
    hidden: tuple[int, ...]


def single_updates(view: View, tensor: str) -> list[RoundUpdates]:
    """Rounds in which single clients' updates reach the observer; raises if there are none.

    The observer's own uploads do not count.
    """
    if not view.rounds:
        need_uploads(view)
    known = known_clients(view)
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
            name = sender if sender != ANONYMOUS else name_in_metadata(table[at], known)
            if name in view.hubs:
                regions = name
            elif not name:
                hidden.append(at)
            elif name not in view.parties:
                named[at] = name
        if named or hidden:
            out.append(RoundUpdates(number, named, tuple(hidden)))
    if out:
        return out
    if regions:
        raise NotApplicable(
            f"{view.vantage} sees updates of regions, not of single clients",
            code="only_regions",
            expected="uploads of clients",
            got="uploads of regions",
            remedy=f'audit the view of a region: vantage = "{regions}"',
        )
    if lacking is not None:
        raise lacking
    raise NotApplicable(
        f"{view.vantage} sees no single update except its own",
        code="no_single_updates",
        expected="uploads of other clients",
        got="own uploads only",
        remedy='audit the view of the server: vantage = "server"',
    )


def need_rounds(view: View) -> None:
    """Raise NothingToSay if no round is complete."""
    if not len(view.rounds):
        raise NothingToSay(
            "the trace has no rounds",
            code="nothing_arrived",
            expected="at least one complete round",
            got="none",
            remedy="let the federation run",
        )


def without_config(
    what: str, code: str, remedy: str = "run the federation with fedaudit"
) -> NotApplicable:
    """The refusal of an audit that has to train the federation again."""
    return NotApplicable(
        what,
        code=code,
        expected="a run of fedaudit, whose config says how clients train",
        got="a trace alone",
        remedy=remedy,
    )


def need_uploads(view: View) -> None:
    """Raise NothingToSay if no client sent anything."""
    hubs = {*view.hubs}
    for number in view.rounds:
        if any(m.sender not in hubs or m.kind == "sum" for m in view.messages(number)):
            return
    raise NothingToSay(
        "no upload arrived",
        code="nothing_arrived",
        expected="at least one message from a client",
        got=f"none in {count_of(len(view.rounds), 'round')}",
        remedy="find out why uploads failed, and record the federation again",
    )


def known_clients(view: View) -> set[str]:
    """Names of the clients that the observer sees receiving models."""
    sent = {
        m.receiver
        for number in view.rounds
        for m in view.messages(number)
        if m.kind == "model" and m.receiver != PUBLIC
    }
    return sent - {*view.hubs}


def name_in_metadata(m: Message, known: set[str]) -> str:
    """The client named in the metadata of an anonymous update; empty if there is none."""
    return next((v for v in m.metadata.values() if isinstance(v, str) and v in known), "")


@dataclass(frozen=True)
class RecurringField:
    """A metadata field of anonymous updates whose values recur across rounds.

    `values`: (round, message) -> value, if no other update of that round has the same value.
    """

    field: str
    values: dict[tuple[int, int], Scalar]

    @property
    def returning(self) -> set[Scalar]:
        """Values that appear in more than one round."""
        return {value for value, times in Counter(self.values.values()).items() if times > 1}


def recurring_fields(view: View, carried: Sequence[RoundUpdates]) -> tuple[RecurringField, ...]:
    """Fields that may identify anonymous updates: unique in a round, and seen in another round.

    The weight is such a field if clients differ in size. Only the truth can tell whether a field
    identifies clients or recurs by chance.
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
    found = [RecurringField(name, values) for name, values in fields.items()]
    found.sort(key=lambda r: -len(r.values))
    return tuple(r for r in found if r.returning)
