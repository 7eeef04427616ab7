"""Read a growing trace round by round: who answered, what left unprotected, who is linked, epsilon.

Only message tables are read, never payloads: a round costs the same however large the model is.
Files are not hashed here; `fedaudit verify` and every audit do that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.audits.coverage import Coverage, Sightings
from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.audits.fingerprint.audit import Linkage
from fedaudit.audits.outright import name_in_metadata
from fedaudit.decide.gate.check import check_limit
from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.measures import EPSILON
from fedaudit.decide.gate.outcome import LimitCheck
from fedaudit.decide.gate.page import statement
from fedaudit.decide.gate.policy import Limit, Policy, load_policy
from fedaudit.errors import TraceError
from fedaudit.results import AuditResult
from fedaudit.study.noisy_means import promise_of, shares_of
from fedaudit.study.summary import clients_of
from fedaudit.trace import ANONYMOUS, PUBLIC, Message, Trace
from fedaudit.trace.examination import Examination
from fedaudit.trace.health import Arrivals
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import STOPPED, UPLINKS, hub_depths

WATCHED = (Coverage.name, Fingerprint.name)
"""Audits that a message table alone can answer."""


@dataclass(frozen=True, kw_only=True)
class RoundReading:
    """What is known after one round, over all rounds so far.

    `arrivals` of this round. `linked`: share of single updates whose sender is known outright, None
    where no single update reaches the server; `unscored`: anonymous updates, which only an audit
    can link. `outside`: kinds of data outside every declared protection. `epsilon`: the weakest
    guarantee of a client. `broken`: limits that do not hold, with the finding.
    """

    round: int
    arrivals: Arrivals
    linked: float | None
    unscored: int
    outside: tuple[str, ...]
    epsilon: Mapping[str, Any] | None
    broken: tuple[LimitCheck, ...] = ()
    stopped: str = ""

    @property
    def reason(self) -> str:
        """The broken limits with their findings, in words."""
        return "; ".join(
            f"{c.limit} ({c.rule}): {c.explanation or statement(c)}" for c in self.broken
        )


@dataclass
class _Followed:
    """What was read so far."""

    examination: Examination
    sightings: Sightings = field(default_factory=Sightings)
    named: dict[tuple[int, int], str] = field(default_factory=dict)
    shares: list[dict[str, float]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    hidden: int = 0
    rounds: int = 0
    linkage: tuple[tuple[int, bool, int], AuditResult] | None = None


SILENCE = 1800.0
"""Seconds without a round after which that is said."""


class Watch:
    """Follows one trace. `update()` reads the rounds that were added since the last call.

    `policy`: a file, a mapping or None. Its limits on coverage, linkage and epsilon are checked;
    the others (`unwatched`) need payloads or truth: `fedaudit gate` checks them afterwards.
    """

    def __init__(
        self, policy: Policy | str | Path | Mapping[str, Any] | None = None, *, names: bool = False
    ) -> None:
        loaded = policy if policy is None or isinstance(policy, Policy) else load_policy(policy)
        self.policy, self._names = loaded, names
        self.complete, self.stopped = False, ""
        self._followed: _Followed | None = None
        limits = () if loaded is None else loaded.limits
        self._limits = [x for x in limits if x.metric == EPSILON or x.audit in WATCHED]
        self.unwatched = tuple(x.name for x in limits if x not in self._limits)

    def update(self, path: str | os.PathLike[str]) -> list[RoundReading]:
        """One reading per new round, oldest first; none if the trace has not begun."""
        if not (Path(path) / "manifest.json").is_file():
            return []
        trace = Trace.open(path, verify_hashes=False)
        self.stopped = str(trace.manifest.federation.get(STOPPED, ""))
        self.complete = trace.manifest.complete or bool(self.stopped)
        seen = self._followed
        if seen is None:
            seen = self._followed = _Followed(Examination(trace.manifest))
        return [self._read(trace, seen, n) for n in trace.rounds if n > seen.rounds]

    def _read(self, trace: Trace, seen: _Followed, number: int) -> RoundReading:
        table = trace.read_round(number)
        seen.examination.round(number, table)
        seen.known |= _served(table.messages, trace.manifest.federation)
        seen.shares.append(shares_of(table.messages))
        self._note(trace, seen, number, table.messages)
        seen.rounds = number
        coverage = self._coverage(trace, seen)
        linkage = self._linkage(trace, seen)
        worst = promise_of(trace.manifest, seen.shares, worst=True)
        spent = next(({"client": c, **g} for c, g in worst.items()), None)
        singles = len(seen.named) + seen.hidden
        return RoundReading(
            round=number,
            arrivals=seen.examination.by_round[number],
            linked=len(seen.named) / singles if seen.named else None if not singles else 0.0,
            unscored=seen.hidden,
            outside=coverage.notes,
            epsilon=spent,
            broken=self._broken(trace, {r.audit: r for r in (coverage, linkage) if r}, worst),
            stopped=self.stopped,
        )

    def _note(
        self, trace: Trace, seen: _Followed, number: int, messages: tuple[Message, ...]
    ) -> None:
        """Add what clients sent: kinds of data, names on single updates."""
        hubs = {*hub_depths(trace.manifest.federation), PUBLIC}
        for i, m in enumerate(messages):
            if m.sender in hubs or not (m.parts or m.size) or m.lost:
                continue
            seen.sightings.add(m, number, trace.manifest.layouts)
            if m.kind not in UPLINKS or MODEL not in m.parts:
                continue
            name = m.sender if m.sender != ANONYMOUS else name_in_metadata(m, seen.known)
            if name:
                seen.named[number, i] = name
            else:
                seen.hidden += 1

    def _coverage(self, trace: Trace, seen: _Followed) -> AuditResult:
        guess = Coverage.guess_from(
            # the rounds up to this one: of later ones nothing was read, so nobody is missing there
            seen.sightings,
            {n for n in trace.rounds if n <= seen.rounds},
            trace.manifest.declared,
            trace.sha256,
        )
        return Coverage().score(guess, None, np.random.default_rng(0))

    def _linkage(self, trace: Trace, seen: _Followed) -> AuditResult | None:
        """Links that are known outright; None where none is, or where no limit asks: an audit has
        to find the others. Their chance takes draws over all rounds, so the result is computed
        again when a client or an anonymous update is new, or the rounds have doubled."""
        if not seen.named or not any(x.audit == Fingerprint.name for x in self._limits):
            return None
        everyone = len(seen.known | set(seen.named.values()))
        state = (everyone, seen.hidden > 0, seen.hidden or seen.rounds.bit_length())
        if seen.linkage is None or seen.linkage[0] != state:
            seen.linkage = (state, self._link(trace, seen, everyone))
        return seen.linkage[1]

    def _link(self, trace: Trace, seen: _Followed, everyone: int) -> AuditResult:
        audit = Fingerprint()
        guess = Linkage(
            rounds=(),
            messages=(),
            labels={},
            clients=everyone,
            tensors=(),
            columns=0,
            sketch_width=None,
            confirmed_exactly=True,
            vantage=audit.vantage,
            trace_sha256=trace.sha256,
            declared=trace.manifest.declared,
            named=seen.named,
            hidden=seen.hidden,
            everyone=everyone,
        )
        return audit.score(guess, None, np.random.default_rng(0))

    def _broken(
        self, trace: Trace, results: Mapping[str, AuditResult], worst: Mapping[str, Any]
    ) -> tuple[LimitCheck, ...]:
        """Limits that a number breaks. Missing evidence breaks none while rounds are to come."""
        if self.policy is None:
            return ()
        evidence = Evidence(
            path=trace.path,
            trace_sha256=trace.sha256,
            rounds=self._followed.rounds if self._followed else 0,
            clients=tuple(clients_of(trace)),
            results=results,
            guarantees={"declared": dict(worst)} if worst else {},
            declared=tuple(trace.manifest.declared),
        )
        found = [c for x in self._limits for c in self._checks(x, evidence, worst)]
        return tuple(c for c in found if c.status == "failed")

    def _checks(self, limit: Limit, e: Evidence, worst: Mapping[str, Any]) -> list[LimitCheck]:
        if limit.metric == EPSILON:
            # the weakest guarantee decides; others need not be computed
            of = {limit.protection or "declared": dict(worst)}
            e = Evidence(
                path=e.path, trace_sha256=e.trace_sha256, clients=tuple(worst), guarantees=of
            )
        assert self.policy is not None
        return check_limit(limit, e, self.policy, self._names)


def _served(messages: tuple[Message, ...], federation: Mapping[str, Any]) -> set[str]:
    """Clients that are sent a model."""
    hubs = {*hub_depths(federation), PUBLIC}
    return {m.receiver for m in messages if m.kind == "model"} - hubs


def follow(
    path: str | os.PathLike[str],
    watch: Watch,
    *,
    interval: float = 1.0,
    once: bool = False,
    silence: float = SILENCE,
    on_silence: Callable[[], None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[RoundReading]:
    """Readings of a trace until it is closed; `once`: of the rounds that are there.

    `on_silence` is called once when no round has come for `silence` seconds, and again after the
    next round: a recorder that was killed closes nothing, and a slow one is not known from it.
    """
    lost, quiet, folder = 0, 0.0, Path(path)
    if folder.is_file() or (once and not (folder / "manifest.json").is_file()):
        raise TraceError(
            f"there is no trace in {folder}",
            expected="a folder with a manifest.json",
            got="a file" if folder.is_file() else "no manifest.json",
            remedy="correct the path, or begin the recording first",
        )
    while True:
        try:
            readings = watch.update(path)
            yield from readings
            lost, quiet = 0, 0.0 if readings else quiet
        except TraceError:
            # the recorder replaces the last file when it adds the released model
            lost += 1
            if once or lost > 3:
                raise
        if once or watch.complete:
            return
        wait(interval)
        if quiet < silence <= quiet + interval:
            on_silence()
        quiet += interval
