"""What a round's answered sums say of single clients or groups, before anything is scored.

Which candidates can be made of them ([FedAttr] Eqs. (3, 4), or means of groups), the model they
start from, and the updates themselves, some rows at a time; what is missing, in words.
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
from fedaudit.audits.attribution.estimator import Candidates
from fedaudit.errors import NotApplicable, NothingToSay, UsageError
from fedaudit.stats.query_plans import PairedQueries
from fedaudit.trace import View
from fedaudit.trace.ledger import RoundQueries

DrawPairs = Callable[[int, int, int], Sequence[PairedQueries]]
"""(round, participants, number of the first one) -> the pairs that the server drew."""

NUMBERS = 10**9
"""Numbers of group means and guesses that may stand in memory where all rounds are read together:
4 gigabytes."""


def candidates_of(
    view: View, ledger: RoundQueries, names: Sequence[str], draw: DrawPairs | None
) -> tuple[Candidates, Floats, str, int] | None:
    """Candidates of a round in the columns of `names`, the answered queries (Q, K) in the same
    columns, how candidates were made, and how many are lost.

    None where the answers estimate nobody: nothing but the total, or too little beside it.
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
    return Candidates(made.coefficients, design, target), queries, reading, lost


def _of_pairs(
    view: View, ledger: RoundQueries, total: npt.NDArray[np.bool_], draw: DrawPairs
) -> tuple[Candidates | None, int]:
    """Estimates of the pairs that the server drew, and how many of them are missing.

    Pairs were drawn for everybody who was handed a model. Who dropped out is in no sum: subsets
    are read without them, and of whoever is left there is the mean over the answered subsets with
    it minus that over those without it.
    """
    asked = _handed(view, ledger, total)
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


def _handed(
    view: View, ledger: RoundQueries, total: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Columns of those who were handed a model in a round: pairs were drawn for them."""
    to = {m.receiver for m in view.messages(ledger.round) if m.kind == "model"}
    found = np.flatnonzero([name in to for name in ledger.clients])
    # where downlinks were not recorded, those in the total are all that is known
    return found if total[found].sum() == total.sum() else np.flatnonzero(total)


def drawn_sizes(view: View, ledger: RoundQueries, draw: DrawPairs) -> tuple[int, int, int]:
    """Clients, N and M of the pairs that were drawn in a round."""
    answered = ledger.answered
    asked = _handed(view, ledger, answered[answered.sum(axis=1).argmax()] != 0)
    first = draw(ledger.round, len(asked), int(asked[0]))[0]
    return len(asked), int(first.exclude[0].sum()), len(first.include)


def model_of(view: View, number: int) -> npt.NDArray[np.float32]:
    """The model that was handed out at the beginning of a round (d,)."""
    for m in view.messages(number):
        if m.kind == "model":
            held = view.received(number, m.receiver, before=1)
            if held is not None:
                return held
    raise NotApplicable(
        f"{view.vantage} does not know the model of round {number}",
        code="no_model",
        expected="the model that was handed out",
        got="no such message",
        remedy="record downlinks, or take the view of the party that hands out models",
    )


def arranged(rows: npt.NDArray[Any], columns: npt.NDArray[np.int64] | None) -> Floats:
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
    """Refuse models of which the groups of all rounds do not stand in memory together."""
    if rows * width > NUMBERS:
        raise NotApplicable(
            "the groups of all rounds together are too large",
            code="too_large",
            expected=f"at most {NUMBERS:.0e} numbers, groups and clients times parameters",
            got=f"{rows} of {width:,} numbers each",
            remedy="fewer rounds or clients, adapters instead of dense products (task.aggregation "
            '= "fedit"), or plan = "paired", which is read round by round',
        )


def was_in(ledger: RoundQueries, name: str) -> bool:
    return bool(ledger.answered[:, ledger.clients.index(name)].any())


def uploads_of(ledgers: Sequence[RoundQueries], names: Sequence[str]) -> Floats:
    """Sums that each client was in, over all rounds: with real masks each is an upload."""
    total = np.zeros(len(names))
    for a in ledgers:
        total[[names.index(n) for n in a.clients]] += (a.answered != 0).sum(axis=0)
    return total


def nobody(ledgers: Sequence[RoundQueries]) -> NotApplicable:
    """Why no round says anything of anybody."""
    parts = sum(int(((a.queries != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    if not parts:
        return NotApplicable(
            "only totals were asked for: they say that somebody trained on marks, not who",
            code="only_totals",
            expected="sums over subsets of the clients",
            got=f"the training aggregate alone, in {len(ledgers)} rounds",
            remedy='protections.secure_aggregation.plan = "partitions"',
        )
    given = sum(int(((a.answered != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    return NothingToSay(
        "the subset sums that were answered estimate no client",
        code="no_estimable_client",
        expected="sums with a client and without it",
        got=f"{given} of {parts} subset sums answered, in {len(ledgers)} rounds",
        remedy="see why they were refused, or which clients dropped out; lower the threshold",
    )


def _most(ledger: RoundQueries) -> int:
    """Clients in the largest sum that was answered."""
    return int((ledger.answered != 0).sum(axis=1).max())


def left_out(rounds: Sequence[int], asked_in: Sequence[int], lost: int) -> list[str]:
    """What the reading does without, in words."""
    notes = []
    without = [n for n in asked_in if n not in rounds]
    if without:
        which = ", ".join(map(str, without[:10])) + (" and more" if len(without) > 10 else "")
        notes.append(
            f"{len(without)} of {len(asked_in)} rounds are left out ({which}): no sum over a part "
            "of the clients was answered, or none that estimates anybody"
        )
    if lost:
        notes.append(
            f"{lost} estimates of the published pairs are missing: clients dropped out, or "
            "subsets went unanswered"
        )
    return notes
