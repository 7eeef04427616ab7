"""Find what is torn in a trace and what arrived, by following its messages round by round.

Reads one round after another, payloads a few rows at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedaudit.arrays import AnyRows
from fedaudit.errors import IntegrityError
from fedaudit.trace.health import CODES, Arrivals, Health, Problem
from fedaudit.trace.schema import (
    AGAIN,
    AGGREGATOR,
    ANONYMOUS,
    FAILED,
    JOINED,
    LATE,
    PUBLIC,
    QUERY,
    REFUSED,
    SERVER,
    SHUFFLER,
    STOPPED,
    UNANSWERED,
    UPLINKS,
    Manifest,
    Message,
    hub_depths,
    is_downlink,
)

_AT_ONCE = 1 << 22  # numbers checked together
_REASON = 120  # characters of a recorder's note that are repeated
_ROUND_FILE = re.compile(r"round-(\d+)(?:-amended)?\.safetensors\Z")
_MIDDLE = (ANONYMOUS, AGGREGATOR, SHUFFLER)


class OpenRound(Protocol):
    @property
    def blocks(self) -> Mapping[str, AnyRows]: ...

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
    examination = Examination(trace.manifest)
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
    examination: Examination, number: int, found: OpenRound
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


class Examination:
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
                if m.lost:
                    self._lost(number, i, m, m.receiver)
                self._model(now, m, answered=m.step < sync)
            elif m.receiver == PUBLIC and m.lost:
                self._lost(number, i, m, PUBLIC)
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

    def _check(self, number: int, i: int, m: Message, blocks: Mapping[str, AnyRows]) -> None:
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

    def _lost(self, number: int, i: int, m: Message, party: str) -> None:
        """A message without its content, and the recorder's reason."""
        code = "answer_failed" if m.noted(FAILED) else "not_kept"
        why = str(m.notes.get(FAILED, "") or m.notes.get(REFUSED, ""))[:_REASON]
        self.add(code, number, i, party, f"{CODES[code].words}: {why}" if why else "")

    def _answer(self, now: _RoundTally, number: int, i: int, m: Message) -> None:
        self.answered += 1
        who, late = m.sender, m.noted(LATE)
        if m.lost:
            self._lost(number, i, m, who)
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
        if why := str(self.manifest.federation.get(STOPPED, "")):
            self.add("stopped", 0, what=f"{CODES['stopped'].words}: {why}")
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
