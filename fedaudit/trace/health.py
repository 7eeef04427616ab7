"""Examine a recording: what is torn or missing, and how many answers arrived.

    health = examine(trace)
    health.problems            # each with a code, a round, a message, a party
    health.arrived, health.expected

A trace can be sealed and undamaged and still be incomplete: a message that the recorder missed
leaves no hole in a table. Other messages reveal it: an answer without a model, a sum without a
query. `CODES` states what each problem makes impossible to compute; views refuse exactly that, and
results list the other problems. `trace/examination.py` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from fedaudit.arrays import AnyRows
from fedaudit.errors import TraceError
from fedaudit.trace.schema import (
    Message,
)

Breaks = Literal["updates", "members", "ledger", "rows", "everything"]

_GROUPS = 6  # counts of answers that are listed


@dataclass(frozen=True)
class Meaning:
    """Consequences of a problem: whether the recording is `torn`, what it `breaks`, in `words`.

    updates     differences between an answer and the model its sender had received
    members     the members of a sum that no query describes
    ledger      which sums were requested and answered
    rows        everything that reads this payload
    everything  all audits
    """

    torn: bool
    breaks: frozenset[Breaks]
    words: str


def _means(words: str, *breaks: Breaks, torn: bool = True) -> Meaning:
    return Meaning(torn, frozenset(breaks), words)


#: what each problem breaks; problems with torn=False were recorded as they happened
CODES: Mapping[str, Meaning] = MappingProxyType(
    {
        "no_rounds": _means("no round is recorded", "everything"),
        "damaged_round": _means("a round file is torn or altered", "everything"),
        "no_such_row": _means("a message names a payload that is not there", "everything"),
        "round_gap": _means("a round is missing between two others"),
        "empty_round": _means("a round has neither models nor answers"),
        "unknown_party": _means("the manifest does not list a party"),
        "no_models": _means("no downlink model is recorded", "updates", "members"),
        "answer_without_model": _means(
            "an answer whose sender had received no model", "updates", "members"
        ),
        "no_new_model": _means(
            "an answer whose sender had received no model since its last one",
            "updates",
            "members",
        ),
        "no_answer": _means("a model got no answer", "members"),
        "duplicate_answer": _means("a second answer to the same model", "members", "ledger"),
        "extra_rows": _means("more anonymous answers than senders", "members"),
        "not_handed_on": _means("a shuffler or aggregator did not forward answers", "members"),
        "lost_share": _means("an exchange between neighbours lacks one direction", "updates"),
        "sum_without_question": _means("no query describes a sum", "ledger"),
        "question_not_kept": _means("a query does not state the members of its sum", "ledger"),
        "question_unanswered": _means("a query has neither an answer nor a reason", "ledger"),
        "non_finite": _means("a payload holds NaN or infinite numbers", "rows"),
        "answer_failed": _means("an answer failed, as noted", torn=False),
        "not_kept": _means("a message's content was not kept, as noted", torn=False),
        "answered_again": _means("a second answer, as noted", torn=False),
        "silent_round": _means("no neighbours met in a gossip round", torn=False),
        "round_without_answers": _means("no answer arrived in a round", torn=False),
        "unfinished": _means("the recording was not closed", torn=False),
        "stopped": _means("the recording stopped before the training, as noted", torn=False),
    }
)


@dataclass(frozen=True)
class Problem:
    """One fault or gap: a `code` of `CODES`, and its place.

    `round` 0 means the whole recording; `message` is the index in the round's table.
    """

    code: str
    round: int
    message: int | None
    party: str | None
    what: str

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is not a problem code")

    @property
    def torn(self) -> bool:
        return CODES[self.code].torn


@dataclass(frozen=True)
class Arrivals:
    """Numbers of expected and arrived answers; `late` ones arrived in a later round."""

    expected: int = 0
    arrived: int = 0
    late: int = 0

    def __add__(self, other: Arrivals) -> Arrivals:
        return Arrivals(
            self.expected + other.expected, self.arrived + other.arrived, self.late + other.late
        )


@dataclass(frozen=True, kw_only=True)
class Health:
    """Result of `examine`.

    `sent` counts downlink models. `by_round` and `by_party` count answers of clients; anonymous
    senders have no count per party. `bad` rows (round, layout, row) hold NaN or infinity; without
    `payloads` they were not searched for.
    """

    problems: tuple[Problem, ...] = ()
    sent: int = 0
    by_round: Mapping[int, Arrivals] = field(default_factory=dict)
    by_party: Mapping[str, Arrivals] = field(default_factory=dict)
    bad: frozenset[tuple[int, str, int]] = frozenset()
    payloads: bool = True

    @property
    def expected(self) -> int:
        return sum(a.expected for a in self.by_round.values())

    @property
    def arrived(self) -> int:
        """Recorded answers; a late one counts, none counts twice."""
        return min(self.expected, sum(a.arrived + a.late for a in self.by_round.values()))

    @property
    def torn(self) -> tuple[Problem, ...]:
        """Problems of the recording itself."""
        return tuple(p for p in self.problems if p.torn)

    @property
    def whole(self) -> bool:
        return not self.torn

    @property
    def silent(self) -> tuple[str, ...]:
        """Parties that received a model and have no recorded answer."""
        return tuple(
            p for p, a in self.by_party.items() if a.expected and not a.arrived and not a.late
        )

    @property
    def round_by_round(self) -> str:
        """Arrived answers of every round, rounds of equal counts together: those with the fewest
        first. Empty for a single round."""
        alike: dict[tuple[int, int, int], list[int]] = {}
        for number, a in self.by_round.items():
            alike.setdefault((a.arrived, a.expected, a.late), []).append(number)
        if len(self.by_round) < 2 or not self.expected:
            return ""
        said = []
        for (arrived, expected, late), rounds in sorted(
            alike.items(), key=lambda item: (item[0][0] / max(1, item[0][1]), item[1])
        ):
            where = f"in {_which(rounds)}" if len(alike) > 1 else "in every round"
            said.append(f"{arrived} of {expected}{f' and {late} late' if late else ''} {where}")
        more = f", {len(said) - _GROUPS} more counts" if len(said) > _GROUPS else ""
        return ", ".join(said[:_GROUPS]) + more

    def summary(self) -> tuple[str, ...]:
        """One line per code of torn problems, and one about clients without any answer."""
        rounds: dict[str, list[int]] = {}
        for p in self.torn:
            rounds.setdefault(p.code, []).append(p.round)
        lines = [f"{CODES[code].words}: {len(at)} ({_which(at)})" for code, at in rounds.items()]
        lines += [p.what for p in self.problems if p.code == "stopped"]
        if self.silent:
            of = f"{len(self.silent)} of {len(self.by_party)} clients"
            lines.append(f"nothing arrived from {of}: no result covers them")
        return tuple(lines)

    def breaking(self, effect: Breaks, number: int | None = None) -> Iterator[Problem]:
        """Problems that break `effect` in round `number`, or anywhere."""
        for p in self.problems:
            wide = "everything" in CODES[p.code].breaks
            if effect not in CODES[p.code].breaks and not wide:
                continue
            here = number is None or wide or p.round in (0, number)
            if p.code == "lost_share" and number is not None:
                # neighbours mix at the end of a round: a lost share is missing from then on
                here = p.round < number
            if here:
                yield p

    def refuse_updates(self, number: int, chosen: Iterable[tuple[int, Message]]) -> None:
        """TraceError if an update of these messages would be taken against a wrong model.

        A delta or gradient needs no model: it crossed the wire as it is.
        """
        models = {i for i, m in chosen if m.kind == "model"}
        if not models:
            return
        for p in self.breaking("updates", number):
            if p.code in ("lost_share", "no_models") or p.message in models:
                raise _torn("an update cannot be computed", p)

    def refuse(self, effect: Breaks, number: int | None, what: str) -> None:
        """TraceError if any problem breaks `effect`; `what` names the refused operation."""
        for p in self.breaking(effect, number):
            raise _torn(what, p)

    def refuse_rows(self, number: int, layout: str, rows: Iterable[int], read: AnyRows) -> None:
        """TraceError if the values `read` from stored rows are not all finite.

        Finite tensors can be read by name even if others in the row are not finite.
        """
        if not self.bad or not any((number, layout, r) in self.bad for r in rows):
            return
        if np.isfinite(read).all():
            return
        raise TraceError(
            f"round {number} holds a payload that is not finite",
            code="not_finite",
            expected="numbers",
            got="NaN or infinity",
            remedy="if training diverged, lower the learning rate, or read only finite tensors; "
            "fedaudit verify TRACE lists the senders of these payloads",
        )


def _torn(what: str, p: Problem) -> TraceError:
    where = f"round {p.round}" if p.round else "the recording"
    who = f", {p.party}" if p.party else ""
    return TraceError(
        f"{what}: the recording is torn",
        code="torn_recording",
        expected="a recording that `fedaudit verify` finds whole",
        got=f"{CODES[p.code].words} ({where}{who})",
        remedy="fedaudit verify TRACE lists the problems; record again, or restore lost files",
    )


def _which(rounds: Sequence[int], most: int = 6) -> str:
    found = sorted({r for r in rounds if r})
    if not found:
        return "whole recording"
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"round{'s' if found[1:] else ''} {', '.join(map(str, found[:most]))}{more}"
