"""At a site: guesses and the site's own recording in, counts out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedaudit.audits.fingerprint import scores
from fedaudit.errors import NotApplicable, TraceError, UsageError
from fedaudit.sites.coins import count_coins
from fedaudit.sites.files import (
    COINS,
    COUNTS,
    GUESSES,
    KEY,
    LINKS,
    MEMBERS,
    VERSION,
    read,
    sha256,
    write,
)
from fedaudit.sites.recordings import owner_of, sent_by
from fedaudit.study.seal import open_trace
from fedaudit.trace import Trace


def score(
    guesses: str | os.PathLike[str],
    own: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    site: str,
    key: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Compare guesses with a site's own recording and key; write its counts to the file `out`.

    Guesses about records or canaries need the key alone: `own` may be None.
    """
    raw = read(guesses, GUESSES)
    counts: dict[str, Any] = {}
    if LINKS in raw["audits"]:
        if own is None:
            raise UsageError(
                "the guesses are about messages",
                expected="this site's own recording",
                got="none",
                remedy="give the folder of this site's own recording",
            )
        counts[LINKS] = _score_links(raw, raw["audits"][LINKS], open_trace(own))
    if MEMBERS in raw["audits"]:
        counts[MEMBERS] = _score_members(raw["audits"][MEMBERS], _key(key))
    if COINS in raw["audits"]:
        counts[COINS] = count_coins(raw["audits"][COINS], _key(key))
    found = {
        "format": COUNTS,
        "version": VERSION,
        "site": site,
        "guesses_sha256": sha256(guesses),
        "audits": counts,
    }
    write(out, found)
    return found


def _score_links(raw: Mapping[str, Any], guess: Mapping[str, Any], trace: Trace) -> dict[str, Any]:
    party = owner_of(trace)
    if trace.layout.to_dict() != raw["layout"]:
        raise TraceError(
            "the site recorded other tensors than the server",
            expected=f"{len(raw['layout']['tensors'])} tensors of {raw['layout']['dtype']}",
            got=f"{len(trace.layout.names)} tensors of {trace.layout.dtype}",
            remedy="record with the same `tensors` and `dtype` on both sides",
        )
    mine = sent_by(trace, party, raw["trace_sha256"])
    there = [[d in mine for d in round_] for round_ in guess["messages"]]
    if not any(any(r) for r in there):
        raise NotApplicable(
            f"the guesses contain no message of {party}",
            code="other_guesses",
            expected="guesses about the federation that this site recorded",
            got=f"{len(mine)} own messages, none of which the server received",
            remedy="make sure that nothing changes a message between the recording and the server",
        )
    return {m: _links(there, v) for m, v in guess["labels"].items()}


def _key(key: str | os.PathLike[str] | None) -> dict[str, Any]:
    if key is None:
        raise UsageError(
            "the guesses are about records or canaries",
            expected="the key that `fedaudit ask` or `SiteCanaries` wrote at this site",
            got="none",
            remedy="`key=FILE`",
        )
    return read(key, KEY)


def _score_members(guess: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of pairs of a member and a non-member, and of those in the right order."""
    given = guess["scores"].get(known["asked_sha256"])
    if given is None or len(given) != len(known["member"]):
        raise NotApplicable(
            "the guesses do not cover the records of this site",
            code="other_guesses",
            expected=f"scores of {len(known['member'])} records",
            got="none" if given is None else str(len(given)),
            remedy="send the file that belongs to this key, and ask the server to attack again",
        )
    member = np.array(known["member"], dtype=bool)
    usable = np.array([v is not None for v in given])
    values = np.array([0.0 if v is None else float(v) for v in given])
    inside, outside = values[member & usable], values[~member & usable]
    above = (inside[:, None] > outside[None]).sum()
    ties = (inside[:, None] == outside[None]).sum()
    count = {"members": len(inside), "others": len(outside)}
    return {guess["statistic"]: {**count, "ordered": float(above + 0.5 * ties)}}


def _links(there: Sequence[Sequence[bool]], labels: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Counts of a site's links, of those found, and of those expected by chance."""
    senders = [
        ["here" if own else f"{t}/{i}" for i, own in enumerate(round_)]
        for t, round_ in enumerate(there)
    ]
    joined = scores.links(senders, labels)
    hits = joined.found.get("here", [])
    # only this site's links count here: chance finds their number times the chance
    return {"links": len(hits), "found": int(sum(hits)), "expected": joined.chance * len(hits)}
