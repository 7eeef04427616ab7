"""Turn the answered sums of a round into candidate updates of clients or groups, before scoring.

Candidates follow [FedAttr] Eqs. (3, 4), or are means of groups. This file also finds the model that
a round starts from, reads the updates some rows at a time, and says in words what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.attribution import estimator
from fedaudit.audits.attribution.estimator import CandidateUpdates
from fedaudit.errors import NotApplicable, NothingToSay, UsageError, count_of
from fedaudit.stats.query_plans import PairedQueries
from fedaudit.trace import View
from fedaudit.trace.ledger import RoundQueries

DrawPairs = Callable[[int, int, int], Sequence[PairedQueries]]
"""(round, number of participants, index of the first one) -> the pairs that the server drew."""

NUMBERS = 10**9
"""Most numbers of group means and guesses in memory when all rounds are read together: 4 GB."""


def candidates_of(
    view: View, ledger: RoundQueries, names: Sequence[str], draw: DrawPairs | None
) -> tuple[CandidateUpdates, Floats, str, int] | None:
    """Candidates of a round, its answered queries (Q, K), how candidates were made, how many are
    lost.

    Columns follow `names`. None if the answers estimate no client: they hold only the total, or too
    little besides.
    """
    answered = ledger.answered
    position = [names.index(name) for name in ledger.clients]
    total = answered[answered.sum(axis=1).argmax()] != 0
    proper = (answered != 0).sum(axis=1) < total.sum()
    if not proper.any():
        return None
    plan = next((d.get("plan") for d in view.declared if d.get("plan") is not None), None)
    lost, made = 0, None
    if plan == "paired":
        if draw is not None:
            made, lost = _of_pairs(view, ledger, total, draw)
        reading = "estimates of the published pairs"
        if made is None:
            reading = "estimates from all subsets pooled"
            with suppress(UsageError):  # no client has subsets with it and without it
                made = estimator.pooled(answered)
        if made is None:
            return None
    else:
        only = estimator.groups(answered[proper])
        coefficients = np.zeros((len(only), len(answered)))
        coefficients[:, proper] = only.coefficients
        made, reading = replace(only, coefficients=coefficients), "means of groups"
    design, queries = np.zeros((len(made), len(names))), np.zeros((len(answered), len(names)))
    design[:, position], queries[:, position] = made.design, answered
    target = np.array([position[t] if t >= 0 else -1 for t in made.target], dtype=np.int64)
    return CandidateUpdates(made.coefficients, design, target), queries, reading, lost


def _of_pairs(
    view: View, ledger: RoundQueries, total: npt.NDArray[np.bool_], draw: DrawPairs
) -> tuple[CandidateUpdates | None, int]:
    """Estimates of the pairs that the server drew, and how many of them are missing.

    The server draws pairs for every client that received a model. Clients that dropped out are in
    no sum, so subsets are read without them. The estimate of a remaining client is the mean over
    the answered subsets with it, minus the mean over those without it.
    """
    asked = _model_receivers(view, ledger, total)
    pairs = draw(ledger.round, len(asked), int(asked[0]))
    left, answered = total[asked].astype(np.uint8), ledger.answered[:, asked]
    have = {row.tobytes() for row in (answered != 0).astype(np.uint8)}
    kept = []
    for pair in pairs:
        sides = [
            np.array([row * left for row in side if (row * left).tobytes() in have])
            for side in (pair.include, pair.exclude)
        ]
        if left[pair.target] and all(map(len, sides)):
            kept.append(replace(pair, include=sides[0], exclude=sides[1]))
    if not kept:
        return None, len(pairs)
    made = estimator.published(kept, answered)
    design = made.coefficients @ ledger.answered
    return replace(made, target=asked[made.target], design=design), len(pairs) - len(kept)


def _model_receivers(
    view: View, ledger: RoundQueries, total: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Columns of the clients that received a model in a round: pairs were drawn for them."""
    to = {m.receiver for m in view.messages(ledger.round) if m.kind == "model"}
    found = np.flatnonzero([name in to for name in ledger.clients])
    # without recorded downlinks only the clients in the total are known
    return found if total[found].sum() == total.sum() else np.flatnonzero(total)


def drawn_sizes(view: View, ledger: RoundQueries, draw: DrawPairs) -> tuple[int, int, int]:
    """Clients, N and M of the pairs drawn in a round."""
    answered = ledger.answered
    asked = _model_receivers(view, ledger, answered[answered.sum(axis=1).argmax()] != 0)
    first = draw(ledger.round, len(asked), int(asked[0]))[0]
    return len(asked), int(first.exclude[0].sum()), len(first.include)


def model_of(view: View, number: int) -> npt.NDArray[np.float32]:
    """The model that clients received at the beginning of a round (d,)."""
    for m in view.messages(number):
        if m.kind == "model":
            held = view.received(number, m.receiver, before=1)
            if held is not None:
                return held
    raise NotApplicable(
        f"{view.vantage} does not know the model of round {number}",
        code="no_model",
        expected="a message with the model that clients received",
        got="no such message",
        remedy="record downlinks, or take the view of the party that sends out models",
    )


def in_model_order(rows: npt.NDArray[Any], columns: npt.NDArray[np.int64] | None) -> Floats:
    found = rows if columns is None else rows[..., columns]
    return np.asarray(found, dtype=np.float64)


def updates_of(
    view: View, ledger: RoundQueries, coefficients: Floats, numbers: int
) -> Iterator[Floats]:
    """Combinations of a round's answers, coefficients (R, Q), some rows (r, d) at a time."""
    step = max(1, numbers // view.layout.width)
    for low in range(0, len(coefficients), step):
        answers = (view.payload(ledger.round, int(i)) for i in ledger.sums[ledger.sums >= 0])
        yield estimator.combined(coefficients[low : low + step], answers, at_once=step)


def check_size(rows: int, width: int) -> None:
    """Refuse runs whose groups of all rounds do not fit in memory together."""
    if rows * width > NUMBERS:
        raise NotApplicable(
            "the groups of all rounds together are too large",
            code="too_large",
            expected=f"at most {NUMBERS:.0e} numbers, groups and clients times parameters",
            got=f"{rows} of {width:,} numbers each",
            remedy="fewer rounds or clients, adapters instead of dense products (task.aggregation "
            '= "fedit"), or plan = "paired", which is read round by round',
        )


def took_part(ledger: RoundQueries, name: str) -> bool:
    return bool(ledger.answered[:, ledger.clients.index(name)].any())


def uploads_of(ledgers: Sequence[RoundQueries], names: Sequence[str]) -> Floats:
    """Number of sums with each client, over all rounds: with real masks each is an upload."""
    total = np.zeros(len(names))
    for a in ledgers:
        total[[names.index(n) for n in a.clients]] += (a.answered != 0).sum(axis=0)
    return total


def no_estimates(ledgers: Sequence[RoundQueries]) -> NotApplicable:
    """The reason why no round estimates any client."""
    parts = sum(int(((a.queries != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    if not parts:
        return NotApplicable(
            "the server asked for totals only: they show that somebody trained on marks, not who",
            code="only_totals",
            expected="sums over subsets of the clients",
            got=f"the training aggregate alone, in {count_of(len(ledgers), 'round')}",
            remedy='protections.secure_aggregation.plan = "partitions"',
        )
    given = sum(int(((a.answered != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    return NothingToSay(
        "the answered subset sums estimate no client",
        code="no_estimable_client",
        expected="sums with a client and without it",
        got=f"{given} of {parts} subset sums answered, in {count_of(len(ledgers), 'round')}",
        remedy="see why they were refused, or which clients dropped out; lower the threshold",
    )


def _most(ledger: RoundQueries) -> int:
    """Number of clients in the largest answered sum."""
    return int((ledger.answered != 0).sum(axis=1).max())


def omission_notes(rounds: Sequence[int], asked_in: Sequence[int], lost: int) -> list[str]:
    """Notes on rounds and estimates that are left out."""
    notes = []
    without = [n for n in asked_in if n not in rounds]
    if without:
        which = ", ".join(map(str, without[:10])) + (" and more" if len(without) > 10 else "")
        notes.append(
            f"{len(without)} of {len(asked_in)} rounds are left out ({which}): their answered sums "
            "estimate no client"
        )
    if lost:
        notes.append(
            f"{lost} estimates of the published pairs are missing: clients dropped out, or "
            "subsets went unanswered"
        )
    return notes
