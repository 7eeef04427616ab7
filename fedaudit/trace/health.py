"""Examine a recording: what is torn or missing, and how many answers arrived.

    health = examine(trace)
    health.problems            # each with a code, a round, a message, a party
    health.arrived, health.expected

A trace can be sealed and undamaged and still be incomplete: a message that the recorder missed
leaves no hole in a table. Other messages reveal it: an answer without a model, a sum without a
query. `CODES` states what each problem makes impossible to compute; views refuse exactly that, and
results list the other problems.

Reads one round after another, payloads a few rows at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.errors import IntegrityError, TraceError
from fedaudit.trace.schema import (
    AGAIN,
    AGGREGATOR,
    ANONYMOUS,
    FAILED,
    JOINED,
    LATE,
    PUBLIC,
    QUERY,
    SERVER,
    SHUFFLER,
    UNANSWERED,
    UPLINKS,
    Manifest,
    Message,
    hub_depths,
    is_downlink,
)

Rows = npt.NDArray[Any]
Breaks = Literal["updates", "members", "ledger", "rows", "everything"]

_AT_ONCE = 1 << 22  # numbers checked together
_ROUND_FILE = re.compile(r"round-(\d+)(?:-amended)?\.safetensors\Z")
_MIDDLE = (ANONYMOUS, AGGREGATOR, SHUFFLER)


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
        "not_kept": _means("an answer's content was not kept, as noted", torn=False),
        "answered_again": _means("a second answer, as noted", torn=False),
        "silent_round": _means("no neighbours met in a gossip round", torn=False),
        "round_without_answers": _means("no answer arrived in a round", torn=False),
        "unfinished": _means("the recording was not closed", torn=False),
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

    def summary(self) -> tuple[str, ...]:
        """One line per code of torn problems, and one about clients without any answer."""
        rounds: dict[str, list[int]] = {}
        for p in self.torn:
            rounds.setdefault(p.code, []).append(p.round)
        lines = [f"{CODES[code].words}: {len(at)} ({_which(at)})" for code, at in rounds.items()]
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

    def refuse_rows(self, number: int, layout: str, rows: Iterable[int], read: Rows) -> None:
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


# -- reading --------------------------------------------------------------------------------------


class OpenRound(Protocol):
    @property
    def blocks(self) -> Mapping[str, Rows]: ...

    @property
    def messages(self) -> tuple[Message, ...]: ...


class ReadableTrace(Protocol):
    """The part of a trace that `examine` needs."""

    health: Health | None

    @property
    def manifest(self) -> Manifest: ...

    @property
    def rounds(self) -> range: ...

    def read_round(self, number: int, *, rehash: bool = False) -> OpenRound: ...


def examine(trace: ReadableTrace, *, payloads: bool = True, rehash: bool = False) -> Health:
    """Find what is torn in a trace and what arrived; the trace stores it for its views.

    Without `payloads`, reads message tables alone. `rehash` first compares every file with its
    hash, for a trace opened without that check.
    """
    known = trace.health
    if known is not None and known.payloads >= payloads and not rehash:
        return known
    examination = _Examination(trace.manifest)
    bad: set[tuple[int, str, int]] = set()
    for number in trace.rounds:
        try:
            found = trace.read_round(number, rehash=rehash)
        except IntegrityError as error:
            got = f"; got {error.got}" if error.got else ""
            examination.add("damaged_round", number, what=error.what + got)
            continue
        examination.round(number, found)
        if payloads:
            bad |= _non_finite(examination, number, found)
    health = examination.done(trace.rounds, frozenset(bad), payloads)
    trace.health = health
    return health


def _non_finite(
    examination: _Examination, number: int, found: OpenRound
) -> set[tuple[int, str, int]]:
    """Stored rows with NaN or infinity, each reported once."""
    carried: dict[tuple[str, int], list[int]] = {}
    for i, m in enumerate(found.messages):
        for layout, row in m.parts.items():
            carried.setdefault((layout, row), []).append(i)
    bad = set()
    for layout, block in found.blocks.items():
        if block.dtype.kind != "f":
            continue
        together = max(1, _AT_ONCE // max(1, block.shape[1]))
        for low in range(0, len(block), together):
            fine = np.isfinite(block[low : low + together]).all(axis=1)
            for row in (np.flatnonzero(~fine) + low).tolist():
                messages = carried.get((layout, row), [])
                if not messages:
                    continue
                bad.add((number, layout, row))
                count = int((~np.isfinite(block[row])).sum())
                also = f", carried by {len(messages)} messages" if messages[1:] else ""
                m = found.messages[messages[0]]
                what = f"{count} of {block.shape[1]} numbers of a {m.kind} are not finite{also}"
                party = None if m.sender == ANONYMOUS else m.sender
                examination.add("non_finite", number, messages[0], party, what)
    return bad


# -- following the messages -----------------------------------------------------------------------


class _RoundTally:
    """Models and answers of one round."""

    def __init__(self) -> None:
        self.served: dict[str, list[int]] = {}  # party -> steps of models to answer
        self.server_of: dict[str, str] = {}
        self.answers: Counter[str] = Counter()  # party -> answers on time
        self.replies: dict[str, set[tuple[str, str]]] = {}  # party -> receiver and kind, per model
        self.late: Counter[str] = Counter()
        self.excused: set[str] = set()  # parties whose answer is missing, as noted
        self.anonymous: Counter[str] = Counter()  # receiver -> rows without a sender
        self.sealed: dict[str, Counter[str]] = {SHUFFLER: Counter(), AGGREGATOR: Counter()}
        self.unshuffled = 0  # answers that a shuffler forwarded by name
        self.sums: dict[str, list[tuple[int, Message]]] = {}  # receiver -> sums
        self.queries: dict[str, list[tuple[int, Message]]] = {}  # hub -> queries
        self.asking: set[str] = set()  # hubs that ask by query
        self.shares: list[tuple[str, str]] = []
        self.passed: dict[str, int] = {}  # party -> step at which a neighbour's model was adopted


class _Examination:
    """Follow every party through the rounds: which model it holds, whether it answered."""

    def __init__(self, manifest: Manifest) -> None:
        about = manifest.federation
        self.manifest, self.problems = manifest, list[Problem]()
        self.hubs = hub_depths(about)
        named = [*about.get("parties", ()), *about.get("clients", ())]
        self.known = {*named, *self.hubs, SERVER, PUBLIC, *_MIDDLE} if named else set()
        self.unlisted: set[str] = set()
        self.gossip = about.get("aggregation") == "gossip"
        self.edges = _edges(about)
        self.holds: dict[str, bool] = {}  # party -> whether a model came since its last answer
        self.asked_by: set[str] = set()  # hubs that sent a model since their last anonymous rows
        self.sent = self.answered = self.shared = 0
        self.by_round: dict[int, Arrivals] = {}
        self.by_party: dict[str, Arrivals] = {}
        self.shares_by: dict[int, Arrivals] = {}

    def add(
        self,
        code: str,
        number: int,
        message: int | None = None,
        party: str | None = None,
        what: str = "",
    ) -> None:
        self.problems.append(Problem(code, number, message, party, what or CODES[code].words))

    def round(self, number: int, found: OpenRound) -> None:
        now, messages = _RoundTally(), found.messages
        sync = self._sync_step(messages)
        # at one step, answers leave before models arrive
        down = [self._is_down(m) for m in messages]
        for i in sorted(range(len(messages)), key=lambda i: (messages[i].step, down[i])):
            m = messages[i]
            self._check(number, i, m, found.blocks)
            if down[i]:
                self._model(now, m, answered=m.step < sync)
            elif m.kind == "query":
                now.asking.add(m.sender)
                if QUERY in m.parts:
                    now.queries.setdefault(m.sender, []).append((i, m))
                elif not _explained(m):
                    self.add("question_not_kept", number, i, m.sender)
            elif m.kind == "sum" and (m.parts or m.sender in _MIDDLE):
                if m.parts:
                    now.sums.setdefault(m.receiver, []).append((i, m))
            elif m.sender == ANONYMOUS:
                self._anonymous(now, number, i, m)
            elif self._is_share(m):
                self._share(now, number, i, m)
            elif self._is_answer(m):
                self._answer(now, number, i, m)
        members = self._sums(now, number, found)
        self._close(now, number, members)
        if all(m.receiver == PUBLIC for m in messages):
            self.add("silent_round" if self.gossip else "empty_round", number)

    def _is_down(self, m: Message) -> bool:
        return is_downlink(m, self.hubs) and m.receiver not in (PUBLIC, *_MIDDLE)

    def _is_answer(self, m: Message) -> bool:
        """Whether a party sends this up: encrypted or not, to a hub, aggregator or shuffler.

        Masked messages without a payload are protocol steps before and after the answer.
        """
        if m.sender in _MIDDLE or m.receiver not in self.hubs or is_downlink(m, self.hubs):
            return False
        if m.kind == "masked":
            return bool(m.parts) or m.lost
        # the encrypted leg of a sum has kind `sum` too
        return m.kind in UPLINKS or m.kind == "sum"

    def _is_share(self, m: Message) -> bool:
        ends = {m.sender, m.receiver}
        return m.kind in UPLINKS and not ends & {*self.hubs, PUBLIC, *_MIDDLE}

    def _sync_step(self, messages: Sequence[Message]) -> float:
        """First step whose models are this round's outcome: no answer to them is due."""
        last = [
            m.step
            for m in messages
            if (self._is_answer(m) and not m.noted(LATE))
            or m.sender == ANONYMOUS
            or (m.kind == "sum" and m.parts)
        ]
        return max(last) if last else float("inf")

    def _check(self, number: int, i: int, m: Message, blocks: Mapping[str, Rows]) -> None:
        for layout, row in m.parts.items():
            have = len(blocks[layout]) if layout in blocks else 0
            if row >= have:
                what = f"row {row} of {layout!r}, which has {have}"
                self.add("no_such_row", number, i, _named(m.sender), what)
        for party in (m.sender, m.receiver):
            if self.known and party not in self.known and party not in self.unlisted:
                self.unlisted.add(party)
                if not m.noted(JOINED):
                    self.add("unknown_party", number, i, party)

    def _model(self, now: _RoundTally, m: Message, *, answered: bool) -> None:
        self.sent += 1
        self.holds[m.receiver] = True
        self.asked_by.add(m.sender)
        now.replies.pop(m.receiver, None)
        if answered:
            now.served.setdefault(m.receiver, []).append(m.step)
            now.server_of[m.receiver] = m.sender

    def _answer(self, now: _RoundTally, number: int, i: int, m: Message) -> None:
        self.answered += 1
        who, late = m.sender, m.noted(LATE)
        if m.lost:
            code = "answer_failed" if m.noted(FAILED) else "not_kept"
            self.add(code, number, i, who)
            if not late:
                now.excused.add(who)
            return
        if m.receiver in now.sealed and not m.parts:
            now.sealed[m.receiver][who] += 1
        elif m.parts and now.sealed[SHUFFLER][who] and m.receiver not in now.sealed:
            now.unshuffled += 1
        if who not in self.holds:
            self.add("answer_without_model", number, i, who)
        replies = now.replies.setdefault(who, set())
        if replies and not late:
            if (m.receiver, m.kind) in replies:
                code = "answered_again" if m.noted(AGAIN) else "duplicate_answer"
                self.add(code, number, i, who)
            replies.add((m.receiver, m.kind))
            return  # an answer in several messages counts once
        if who in self.holds:
            if not self.holds[who] and not late:
                self.add("no_new_model", number, i, who)
            self.holds[who] = False
        if not late:
            replies.add((m.receiver, m.kind))
        (now.late if late else now.answers)[who] += 1

    def _anonymous(self, now: _RoundTally, number: int, i: int, m: Message) -> None:
        self.answered += 1
        if not now.anonymous[m.receiver] and m.receiver not in self.asked_by:
            self.add("answer_without_model", number, i)
        now.anonymous[m.receiver] += 1

    def _share(self, now: _RoundTally, number: int, i: int, m: Message) -> None:
        self.shared += 1
        passed = now.passed.get(m.sender, m.step) < m.step
        if m.sender not in self.holds and not passed and self.sent:
            self.add("answer_without_model", number, i, m.sender)
        self.holds[m.sender] = True  # its own model
        if m.kind == "model" and m.weight == 1.0:
            # adopted at once; other models are mixed at the end of the round
            now.passed[m.receiver] = min(m.step, now.passed.get(m.receiver, m.step))
        now.shares.append((m.sender, m.receiver))

    def _sums(self, now: _RoundTally, number: int, found: OpenRound) -> set[str]:
        """Check queries against sums; returns the members of answered sums."""
        members: set[str] = set()
        columns = self.manifest.layouts[QUERY].names if QUERY in self.manifest.layouts else ()
        for hub, asked in now.queries.items():
            answers: dict[int, int] = {}
            for at, (i, m) in enumerate(now.sums.get(hub, [])):
                which = query_number(m, at)
                if which in answers:
                    what = f"a second sum for query {which}"
                    self.add("duplicate_answer", number, i, None, what)
                answers[which] = i
            for at, (i, m) in enumerate(asked):
                if answers.pop(query_number(m, at), None) is None:
                    if not _explained(m):
                        self.add("question_unanswered", number, i, hub)
                    continue
                block = found.blocks.get(QUERY, np.empty((0, 0)))
                row = block[m.parts[QUERY] : m.parts[QUERY] + 1].reshape(-1)
                inside = {c for c, x in zip(columns, row, strict=False) if x}
                for name in sorted(inside - members - set(now.served)):
                    if not self.holds.get(name):
                        code = "no_new_model" if name in self.holds else "answer_without_model"
                        self.add(code, number, i, name, f"{CODES[code].words}, in a query")
                members |= inside
            for i in answers.values():
                self.add("sum_without_question", number, i, hub)
        for name in members:
            if name in self.holds:
                self.holds[name] = False
        for hub in set(now.sums) - set(now.queries):
            if hub not in now.server_of.values():
                what = "a sum, but nobody was sent a model in this round"
                self.add("answer_without_model", number, now.sums[hub][0][0], None, what)
        self.answered += len(members) + len(now.sums)
        return members

    def _close(self, now: _RoundTally, number: int, members: set[str]) -> None:
        """Report missing answers of this round."""
        due = Arrivals()
        loose = set(now.sums) - set(now.queries)
        unforwarded = self._count_unforwarded(now, number)
        for who in {**now.served, **now.answers, **now.late, **dict.fromkeys(sorted(members))}:
            hub = now.server_of.get(who, "")
            sent, got = len(now.served.get(who, ())), now.answers[who]
            if who in members:
                got = max(got, 1)
            elif hub in loose and not now.sealed[AGGREGATOR] and not now.sealed[SHUFFLER]:
                got = sent  # a sum does not show its members
            hidden = bool(now.anonymous[hub]) and not now.sealed[SHUFFLER]
            if hidden and not got:
                due += Arrivals(expected=sent)
                continue
            if got < sent and who not in now.excused and hub not in now.asking:
                self.add("no_answer", number, None, who)
            if who in self.hubs:
                continue  # a region's mean is not a client's answer
            one = Arrivals(max(sent, got), got, now.late[who])
            self.by_party[who] = self.by_party.get(who, Arrivals()) + one
            due += one
        if not now.sealed[SHUFFLER]:
            due = self._count_anonymous(now, number, due)
        due += Arrivals(arrived=-min(unforwarded, due.arrived))
        self.by_round[number] = due
        self._shares(now, number)
        self.asked_by -= set(now.anonymous)
        if due.expected and not due.arrived:
            self.add("round_without_answers", number)

    def _count_anonymous(self, now: _RoundTally, number: int, due: Arrivals) -> Arrivals:
        """Count anonymous rows against the expected answers."""
        for hub, rows in now.anonymous.items():
            own = [who for who in now.served if now.server_of[who] == hub]
            sent = sum(len(now.served[who]) for who in own)
            hidden = max(0, sent - sum(now.answers[who] + (who in now.excused) for who in own))
            if sent and rows < hidden:
                what = f"{hidden - rows} of {hidden} anonymous answers are missing"
                self.add("no_answer", number, None, None, what)
            elif sent and rows > hidden:
                what = f"{rows} anonymous answers to {hidden} models"
                self.add("extra_rows", number, None, None, what)
            due += Arrivals(0 if sent else rows, min(rows, hidden) if sent else rows)
        return due

    def _count_unforwarded(self, now: _RoundTally, number: int) -> int:
        """Number of encrypted answers that shuffler or aggregator did not forward."""
        lost = 0
        shuffled = sum(now.sealed[SHUFFLER].values())
        rows = sum(now.anonymous.values()) + now.unshuffled
        if shuffled and not now.sums and rows != shuffled:
            code = "not_handed_on" if rows < shuffled else "extra_rows"
            what = f"the shuffler received {shuffled} answers and forwarded {rows}"
            self.add(code, number, None, SHUFFLER, what)
            lost += max(0, shuffled - rows)
        waiting: dict[str, int] = {}
        for who, count in now.sealed[AGGREGATOR].items():
            hub = now.server_of.get(who, next(iter(self.hubs)))
            waiting[hub] = waiting.get(hub, 0) + count
        for hub, count in waiting.items():
            if hub not in now.sums and hub not in now.asking:
                what = f"the aggregator received {count} answers, and {hub} received no sum"
                self.add("not_handed_on", number, None, hub, what)
                lost += count
        return lost

    def _shares(self, now: _RoundTally, number: int) -> None:
        """Report one-way exchanges: neighbours exchange models in both directions."""
        there = set(now.shares)
        for _, receiver in now.shares:
            self.holds.setdefault(receiver, True)
        lost = [
            (b, a)
            for a, b in dict.fromkeys(now.shares)
            if frozenset((a, b)) in self.edges and (b, a) not in there
        ]
        for sender, receiver in lost:
            what = f"{receiver} sent its model to {sender}, and none came back"
            self.add("lost_share", number, None, sender, what)
        self.shares_by[number] = Arrivals(len(there) + len(lost), len(there))

    def done(self, rounds: range, bad: frozenset[tuple[int, str, int]], payloads: bool) -> Health:
        """Add the problems that only the end shows."""
        if not len(rounds):
            self.add("no_rounds", 0)
        elif not self.manifest.complete:
            self.add("unfinished", 0)
        self._gaps()
        problems = self.problems
        by_round, by_party = self.by_round, self.by_party
        if self.shared and not self.answered:  # gossip: there is no hub to answer
            problems = [p for p in problems if p.code not in ("no_answer", "round_without_answers")]
            by_round, by_party = self.shares_by, {}
        if self.answered and not self.sent:
            problems = [p for p in problems if p.code != "answer_without_model"]
            problems.append(Problem("no_models", 0, None, None, CODES["no_models"].words))
        return Health(
            problems=tuple(sorted(problems, key=lambda p: p.round)),
            sent=self.sent,
            by_round=by_round,
            by_party=by_party,
            bad=bad,
            payloads=payloads,
        )

    def _gaps(self) -> None:
        """Report gaps in the numbers of round files: a missing number is a lost round."""
        found = [_ROUND_FILE.match(r.file) for r in self.manifest.rounds]
        numbers = [int(f[1]) for f in found if f]
        if len(numbers) != len(found):
            return  # another writer's file names
        before = 0
        for at, n in enumerate(numbers, 1):
            if n != before + 1:
                self.add("round_gap", at, None, None, f"file {n} follows file {before}")
            before = n


def _explained(query: Message) -> bool:
    """Whether a query states why it got no answer."""
    return UNANSWERED in query.metadata or query.noted(UNANSWERED)


def _named(party: str) -> str | None:
    return None if party == ANONYMOUS else party


def _edges(about: Mapping[str, Any]) -> set[frozenset[str]]:
    """Pairs of neighbours, if the manifest declares gossip."""
    clients, edges = about.get("clients") or [], about.get("edges") or []
    if about.get("aggregation") != "gossip" or not isinstance(edges, list):
        return set()
    fine = [
        e
        for e in edges
        if isinstance(e, list | tuple)
        and len(e) == 2
        and all(isinstance(k, int) and 0 <= k < len(clients) for k in e)
    ]
    return {frozenset((clients[a], clients[b])) for a, b in fine}


def query_number(m: Message, otherwise: int) -> int:
    """Number of a query, or of the query that a sum answers; `otherwise` if none is given."""
    given = m.metadata.get(QUERY, otherwise)
    return given if isinstance(given, int) and not isinstance(given, bool) else otherwise
