"""Guarantees from outside fedaudit, for example of a user's own training loop.

A federation that trains with Opacus has one accountant per client. Its state holds the noise of
every step, from which fedaudit composes the epsilon of every client for the report:

    json.dump({name: engine.accountant.state_dict() for name, engine in engines.items()}, file)

One accountant's state is enough if all clients took the same steps. The guarantees of Flower's DP
wrappers follow from the recording (`noisy_means`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit import shapes
from fedaudit.accounting import from_opacus
from fedaudit.codec import to_json
from fedaudit.errors import UsageError
from fedaudit.files import Unreadable, read_object, unreadable, write_atomically, writing
from fedaudit.matching import match_clients
from fedaudit.study import noisy_means
from fedaudit.study.noisy_means import EVERYONE
from fedaudit.trace import Trace, Truth

FILE = "promised.json"


def opacus_states(
    file: str | os.PathLike[str], clients: Sequence[str], clients_in: str
) -> Mapping[str, Any]:
    """Client -> state of its accountant, from a JSON file with one for all or one per client."""
    try:
        raw = read_object(file)
        if not raw:
            raise unreadable(Path(file), "an object", "an empty one")
    except Unreadable as error:
        raise UsageError(
            f"{file} could not be read",
            expected="a JSON file with accountant.state_dict(), or client -> state_dict()",
            got=error.got,
            remedy="json.dump(privacy_engine.accountant.state_dict(), file)",
        ) from None
    if "history" in raw:
        return dict.fromkeys(clients or (EVERYONE,), raw)
    if clients:
        match_clients(
            raw,
            clients,
            what="the accountants' states",
            values_in=str(file),
            clients_in=clients_in,
            error=UsageError,
        )
    return raw


def read_opacus(file: Path, delta: float, clients: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Client -> guarantee, from a JSON file with the state of one accountant or one per client."""
    states = opacus_states(file, clients, "the trace")
    distinct = {id(state): state for state in states.values()}
    spent = {key: from_opacus(state, delta).to_dict() for key, state in distinct.items()}
    return {name: spent[id(state)] for name, state in states.items()}


def hand_over(
    folder: Path, trace: Trace, name: str, given: Mapping[str, Mapping[str, Any]]
) -> None:
    """Store guarantees in a report's folder, under the name of their source."""
    kept = {"trace_sha256": trace.sha256, "guarantees": {name: dict(given)}}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, to_json(kept) + "\n")


def promised(folder: Path, trace: Trace, truth: Truth | None) -> dict[str, Any]:
    """Source -> client -> guarantee: of the run itself (fedaudit or Flower), and those handed
    over."""
    own = {} if truth is None else dict(truth.facts.get("guarantees", {}))
    recorded = noisy_means.promise(trace)
    if recorded:
        own["central_dp"] = recorded
    try:
        kept = read_object(folder / FILE, shapes.PROMISED)
    except Unreadable as error:
        if error.absent:
            return own  # nothing was handed over
        raise
    return own | kept["guarantees"] if kept["trace_sha256"] == trace.sha256 else own


def with_guarantees(folder: Path, trace: Trace, truth: Truth | None) -> Truth | None:
    """The truth with the handed-over guarantees, so that scores can be compared with them."""
    if truth is None:
        return None
    facts = {**truth.facts, "guarantees": promised(folder, trace, truth)}
    return Truth(truth.path, facts, truth.members)
