"""Canary clients in one round: as single uploads, or as the movement of the model.

A canary client uploads its vector if its coin is 1; else nothing (neighbours by "zero_out"), or
the vector with the other sign ("replace"). Signals are in units of the clip, and shifted so that a
coin of 0 stands for 0 and a coin of 1 for 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.epsilon.canaries import Rehearsal
from fedaudit.audits.epsilon.scores import among_rows, log_ratio, robust_variance
from fedaudit.errors import NotObservable
from fedaudit.trace import ANONYMOUS, PUBLIC, View


@dataclass(frozen=True)
class ClientRound:
    """What one round shows of m canary clients.

    `ratio`, `signal` and `beside` (m,): as in `Sighting`, 0 for clients that sat out. `rows` (n, d)
    in units of the clip, with noise of `variance` (n,) per number, from `senders` (n,).
    """

    ratio: Floats
    signal: Floats
    beside: Floats
    rows: Floats
    variance: Floats
    senders: tuple[str, ...]

    @property
    def named(self) -> bool:
        return ANONYMOUS not in self.senders


def of_uploads(r: Rehearsal, number: int) -> ClientRound:
    """Canary clients among the uploads of a round: each one's own, or any if names are hidden."""
    updates = r.view.updates(number)
    promise = r.promises[0]
    rows = np.asarray(updates.rows, dtype=np.float64) / promise.clip
    variance = np.full(len(rows), promise.multiplier**2)
    m = len(r.canaries)
    ratio, signal, beside = np.zeros((3, m))
    if ANONYMOUS in updates.senders:
        shares = r.canaries.along(rows)
        spread = np.maximum(variance, [robust_variance(s) for s in shares])
        ratio = among_rows(_ratio(r, shares, spread[:, None]))
        signal = _from_coin(r, shares.sum(axis=0))
        return ClientRound(ratio, signal, beside, rows, variance, updates.senders)
    place = {name: row for row, name in enumerate(updates.senders)}
    row = np.array([place.get(r.clients[c], -1) for c in r.canaries.client])
    there = np.flatnonzero(row >= 0)
    columns, unit = r.canaries.columns[there], r.canaries.unit[there]
    own = (rows[row[there, None], columns] * unit).sum(axis=1)
    ratio[there] = _ratio(r, own, variance[0])
    signal[there] = _from_coin(r, own)
    total = r.canaries.along(rows.sum(axis=0, keepdims=True))[0, there]
    beside[there] = (total - own) / max(1, len(rows) - 1)
    return ClientRound(ratio, signal, beside, rows, variance, updates.senders)


def of_models(r: Rehearsal, number: int, before: Floats | None) -> ClientRound:
    """Canary clients in the movement of the model in a round.

    `before` (d,): the movement of the round before, if the server has momentum.
    """
    promise, present = r.promises[0], taking_part(r, number)
    rate, momentum = r.server
    row = movement(r.view, r.clients, number)
    if momentum and before is not None:
        row = row - momentum * before
    added = 1 if promise.once else len(present)
    rows = row[None] * len(present) / (rate * promise.clip)
    variance = np.array([added * promise.multiplier**2])
    share = r.canaries.along(rows)[0]
    # updates of real clients add to the noise
    ratio = _ratio(r, share, max(variance[0], robust_variance(share)))
    there: Bools = np.isin(r.canaries.client, present)
    signal = _from_coin(r, share)
    nothing = np.zeros(len(share))
    return ClientRound(
        np.where(there, ratio, 0.0),
        np.where(there, signal, 0.0),
        nothing,
        rows,
        variance,
        ("",),
    )


def taking_part(r: Rehearsal, number: int) -> npt.NDArray[np.int64]:
    """Clients in a round."""
    return np.asarray(r.batches[r.batches[:, 0] == number, 2])


def movement(view: View, clients: Sequence[str], number: int) -> Floats:
    """The model after a round minus the model before it, (d,)."""
    before, after = (_sent(view, clients, n) for n in (number, number + 1))
    return np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)


def _sent(view: View, clients: Sequence[str], number: int) -> npt.NDArray[np.float32]:
    """The model that clients receive in a round; after the last round, the released one."""
    last = number > len(view.rounds)
    number = min(number, len(view.rounds))
    for i, m in reversed(view.indexed(number)):
        if m.kind == "model" and (m.receiver == PUBLIC) == last and m.sender not in clients:
            return view.payload(number, i)
    raise NotObservable(
        f"{view.vantage} does not see the models of all rounds",
        expected="the models of all rounds, and the released one",
        got=f"the view of {view.vantage}",
        remedy='vantage = "server", or a client and the public: "client-00+public"',
    )


def _from_coin(r: Rehearsal, share: Floats) -> Floats:
    """Shares of the clip, moved so that a coin of 0 stands for 0 and one of 1 for 1."""
    return (share + 1) / 2 if r.promises[0].relation == "replace" else share


def _ratio(r: Rehearsal, share: Floats, variance: Floats | float) -> Floats:
    """Likelihood ratios of coins, from shares with noise of a variance."""
    narrower = 4.0 if r.promises[0].relation == "replace" else 1.0
    return log_ratio(_from_coin(r, share), np.asarray(variance) / narrower, 1, 1.0)
