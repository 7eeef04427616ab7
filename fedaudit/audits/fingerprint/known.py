"""Links that need no attack: updates with a name, or with a field that identifies clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.audits.outright import RecurringField
from fedaudit.results import AuditResult, Estimate
from fedaudit.stats import clustering, intervals
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.fingerprint.audit import Fingerprint, Linkage

LINKS = ("linkage_accuracy", "link_precision")
"""Both are 1 if every link is known."""

BY_NAME = "messages_by_name"
"""Share of messages with a name, if not all have one."""
OF_THE_REST = " (anonymous updates)"
"""Suffix of the attack's measures, if some updates are known without it."""

METHOD = "read from the messages: no attack needed"


def with_known(
    audit: Fingerprint,
    guess: Linkage,
    found: AuditResult | None,
    truth: Truth | None,
    shared: Mapping[str, Any],
    rng: np.random.Generator,
) -> AuditResult:
    """Combine the attack's result on anonymous updates with the links that are known outright.

    A client whose name is on an update is fully exposed, even if others are not. The headline is
    for the most exposed client; the attack's result is reported beside it.
    """
    messages = [(t, i) for t, own in zip(guess.rounds, guess.messages, strict=True) for i in own]
    field, marks = identifying_field(guess, truth, audit.confidence)
    if not guess.named and not marks:
        assert found is not None  # without names there was an attack
        return found
    total = len(guess.named) + guess.hidden if guess.named else len(messages)
    how = "by name" if guess.named else f"by the field {field!r} beside it"
    count = len(guess.named or marks)
    where = "every message" if count == total else f"{count} of {total} messages"
    said = (f"{how}, on {where}", *_shuffle_hint(guess))
    if not guess.named and count < total:
        assert found is not None
        return replace(found, notes=(*said, *found.notes))  # the measured values count
    everyone = guess.everyone or len(set((guess.named or marks).values()))
    result = _all_known(audit, dict(guess.named or marks), everyone, shared, said, rng)
    if count == total:
        return result
    exact = result.estimates["linkage_accuracy"]
    share = replace(
        exact, value=count / total, low=count / total, high=count / total, n=total, baseline=0.0
    )
    result = replace(result, estimates={**result.estimates, BY_NAME: share})
    if found is None or found.headline is None:
        left = f"{total - count} anonymous updates were not scored"
        return replace(result, notes=(*result.notes, left))
    return _merge(result, found)


def _all_known(
    audit: Fingerprint,
    named: Mapping[tuple[int, int], str],
    everyone: int,
    shared: Mapping[str, Any],
    said: tuple[str, ...],
    rng: np.random.Generator,
) -> AuditResult:
    """The result for updates with known senders: every measure has its largest value.

    The baseline of links is a uniform guess among `everyone`; that of groups is one random label
    per update and round. Mutual information is the entropy of the senders, in nats.
    """
    senders: dict[int, list[str]] = {}
    for (number, _), name in sorted(named.items()):
        senders.setdefault(number, []).append(name)
    names = sorted(set(named.values()))
    chance = 1.0 / everyone
    exact = Estimate(
        value=1.0, low=1.0, high=1.0, n=len(named), confidence=1.0, baseline=chance, method=METHOD
    )
    by_measure = dict.fromkeys(LINKS, exact)
    flat = [name for own in senders.values() for name in own]
    random = clustering.chance(
        flat,
        [number for number, own in senders.items() for _ in own],
        clusters=len(names),
        rng=rng,
        confidence=audit.confidence,
        draws=200 if len(flat) > 2000 else 1000,
    )
    for measure, value in clustering.scores(flat, flat).items():
        by_measure[measure] = replace(
            exact, value=value, low=value, high=value, baseline=random[measure].value
        )
    estimates = {
        measure + suffix: e
        for suffix in ("", *(f" ({m})" for m in audit.methods[1:]))
        for measure, e in by_measure.items()
    }
    return AuditResult(
        **shared,
        known=True,
        headline="linkage_accuracy",
        estimates=estimates,
        per_client=_client_rows(names, senders, chance),
        detectable=0.0,
        notes=said,
    )


def _shuffle_hint(guess: Linkage) -> tuple[str, ...]:
    if not guess.named:
        return ()
    return ('to see the effect of a shuffler: `fedaudit.audit(TRACE, as_if=["shuffle"])`',)


def identifying_field(
    guess: Linkage, truth: Truth | None, confidence: float
) -> tuple[str, dict[tuple[int, int], str]]:
    """A field that identifies the senders of updates, and those senders; empty if there is none.

    The field must always be right, and be right by chance with at most the error probability of a
    lower limit at this confidence. All fields share that probability.
    """
    for candidate in guess.recurring if truth is not None else ():
        level = (1 - confidence) / 2 / len(guess.recurring)
        if math.log(level) < _agreement_by_chance(candidate, guess):
            continue
        assert truth is not None
        found = _senders_by_field(candidate, guess, truth)
        if found:
            return candidate.field, found
    return "", {}


def _senders_by_field(
    candidate: RecurringField, guess: Linkage, truth: Truth
) -> dict[tuple[int, int], str]:
    """Update -> sender, for a field that separates senders; empty if it does not.

    A sender of one update only has no links: any value that does not recur is right for it.
    """
    senders: dict[tuple[int, int], str] = {}
    for number, messages in zip(guess.rounds, guess.messages, strict=True):
        known = truth.senders(number)
        senders |= {(number, i): known[i] for i in messages}
    returning = candidate.returning
    owner: dict[Any, str] = {}
    for at, value in candidate.values.items():
        if value in returning and owner.setdefault(value, senders[at]) != senders[at]:
            return {}
    if len(set(owner.values())) != len(owner):
        return {}
    times = Counter(senders.values())
    return {
        at: senders[at]
        for at, value in candidate.values.items()
        if value in returning or times[senders[at]] == 1
    }


def _agreement_by_chance(candidate: RecurringField, guess: Linkage) -> float:
    """Log of an upper bound on the chance that an uninformative field is always right.

    Of n updates of a round, k have values seen before. These fix k senders, which at most (n - k)!
    of n! orders satisfy.
    """
    returning = candidate.returning
    seen: set[Any] = set()
    total = 0.0
    for number, messages in zip(guess.rounds, guess.messages, strict=True):
        own = {candidate.values.get((number, i)) for i in messages} & returning
        total += math.lgamma(len(messages) - len(own & seen) + 1) - math.lgamma(len(messages) + 1)
        seen |= own
    return total


def with_field_labels(
    guess: Linkage, labels: Sequence[Sequence[int]], marks: Mapping[tuple[int, int], str]
) -> Sequence[Sequence[int]]:
    """The linker's labels, replaced by those of an identifying field if an update has one."""
    names = {name: -1 - i for i, name in enumerate(sorted(set(marks.values())))}
    return [
        [names.get(marks.get((t, i), ""), label) for i, label in zip(own, given, strict=True)]
        for t, own, given in zip(guess.rounds, guess.messages, labels, strict=True)
    ]


def _client_rows(
    names: list[str], senders: Mapping[int, list[str]], chance: float
) -> dict[str, dict[str, float | int | str | None]]:
    out: dict[str, dict[str, float | int | str | None]] = {}
    for name in names:
        links = sum(name in own for own in senders.values()) - 1
        out[name] = {
            "links": links,
            "found": links,
            "share": 1.0,
            "low": 1.0,
            "high": 1.0,
            "longest_chain": links,
            "chance": chance,
            "sure_after_links": 0,
        }
    return out


def _merge(known: AuditResult, found: AuditResult) -> AuditResult:
    """Merge known and linked results; a client in both counts all of its links."""
    rest = {f"{name}{OF_THE_REST}": e for name, e in found.estimates.items()}
    rows = {name: dict(row) for name, row in found.per_client.items()}
    test = found.test
    if test is not None:
        adjusted = {f"{name}{OF_THE_REST}": p for name, p in test.adjusted.items()}
        test = replace(test, adjusted=adjusted, decided=f"{test.decided}{OF_THE_REST}")
    confidence = found.estimates["linkage_accuracy"].confidence
    for name, own in known.per_client.items():
        other = rows.get(name)
        if other is None:
            rows[name] = dict(own)
            continue
        hits, tries = (int(own[k] or 0) + int(other[k] or 0) for k in ("found", "links"))
        both = intervals.wilson(hits, max(tries, 1), confidence=confidence)
        rows[name] = {**other, "links": tries, "found": hits, "share": both.value}
        rows[name] |= {"low": both.low, "high": both.high}
    return replace(
        found,
        known=True,
        estimates={**known.estimates, **rest},
        test=test,
        detectable=known.detectable,
        per_client=dict(sorted(rows.items())),
        notes=(*known.notes, *found.notes),
    )
