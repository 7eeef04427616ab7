"""Read a rehearsal as its adversary: scores, guesses and measured noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.epsilon import gauge, released
from fedaudit.audits.epsilon.canaries import Rehearsal
from fedaudit.audits.epsilon.gauge import NoisePower
from fedaudit.audits.epsilon.scores import among_rows, calls, log_ratio, robust_variance
from fedaudit.layout import Layout
from fedaudit.trace import ANONYMOUS, View

LARGEST = 1e30
"""Sums of squares of larger numbers may overflow."""


@dataclass(frozen=True)
class Sighting:
    """Scores of a rehearsal's canaries, and the power of its noise.

    `ratio` (m,): log-likelihood ratios over all rounds. `signal` (m, R): the canary's share of the
    noisy sums of each round, over the clip. `beside` (m, R): the same in the mean upload of the
    other clients, who do not hold the canary; 0 where nobody else is named. `read` (R,): rounds
    that were read. `call` (m,): guesses, 1 in, -1 out, 0 withheld.
    `noise`: tensor -> power over the declared one; `apart`: the same of differences between
    tensors, clients and rounds. `named`: whether uploads bear names. `diverged`: rounds with
    numbers that are not finite, which are left out.
    """

    rehearsal: Rehearsal
    ratio: Floats
    signal: Floats
    beside: Floats
    read: Bools
    call: Indices
    noise: Mapping[str, NoisePower] = field(default_factory=dict)
    apart: Mapping[str, NoisePower] = field(default_factory=dict)
    named: bool = True
    diverged: int = 0

    def right(self, coins: Bools, chosen: Bools) -> tuple[int, int]:
        """Right guesses about chosen canaries, and all guesses that were not withheld."""
        guessed = (self.call != 0) & chosen
        return int(((self.call > 0) == coins)[guessed].sum()), int(guessed.sum())

    def correct(self, coins: Bools) -> Bools:
        """Whether the likelihood alone guesses each coin correctly, none withheld: (m,)."""
        return np.asarray((self.ratio > 0) == coins)

    @property
    def mixed(self) -> bool:
        """Whether rows bear no names and clients add different noise."""
        r = self.rehearsal
        return not self.named and r.release == "steps" and len(set(r.powers.tolist())) > 1

    def share_right(self, coins: Bools) -> float:
        return float(self.correct(coins)[self.main].mean())

    @property
    def main(self) -> Bools:
        """Gradient canaries; records where there are no others."""
        record = self.rehearsal.canaries.is_record
        return record if record.all() else ~record


@dataclass
class _Powers:
    """Powers of noise, as rounds are read."""

    layout: Layout
    of_tensors: dict[str, list[NoisePower]] = field(default_factory=dict)
    of_differences: dict[str, list[NoisePower]] = field(default_factory=dict)
    before: dict[str, tuple[Floats, float]] = field(default_factory=dict)

    @property
    def noise(self) -> dict[str, NoisePower]:
        return {name: gauge.pooled(parts) for name, parts in self.of_tensors.items()}

    @property
    def apart(self) -> dict[str, NoisePower]:
        return {name: gauge.pooled(parts) for name, parts in self.of_differences.items()}

    def add(self, rows: Floats, variance: Floats, senders: tuple[str, ...], named: bool) -> None:
        """Add a round's power, and that of differences between tensors, clients and rounds."""
        for name, power in gauge.of_tensors(rows, variance, self.layout).items():
            self.of_tensors.setdefault(name, []).append(power)
        for power in gauge.between_tensors(rows, variance, self.layout):
            self.of_differences.setdefault("tensors", []).append(power)
        n = len(rows) // 2
        if n:
            both = variance[:n] + variance[n : 2 * n]
            power = gauge.of_differences(rows[:n], rows[n : 2 * n], both)
            self.of_differences.setdefault("clients", []).append(power)
        now = dict(zip(senders, rows, strict=True)) if named else {"": rows.sum(axis=0)}
        spread = dict(zip(senders, variance, strict=True)) if named else {"": float(variance.sum())}
        both_rounds = [s for s in now if s in self.before]
        if not both_rounds:
            self.before = {s: (row, spread[s]) for s, row in now.items()}
            return
        first = np.stack([self.before[s][0] for s in both_rounds])
        second = np.stack([now[s] for s in both_rounds])
        both = np.array([self.before[s][1] + spread[s] for s in both_rounds])
        power = gauge.of_differences(first, second, both)
        self.of_differences.setdefault("rounds", []).append(power)
        self.before = {}  # disjoint pairs of rounds are independent


@dataclass
class _Rounds:
    """Sums over the rounds of a view, as they are read."""

    rehearsal: Rehearsal
    ratio: Floats
    signal: Floats
    beside: Floats
    read: Bools
    powers: _Powers
    named: bool = True
    moved: Floats | None = None
    diverged: int = 0


def observe(rehearsal: Rehearsal, rng: np.random.Generator) -> Sighting:
    """Read all rounds of a rehearsal."""
    m, rounds = len(rehearsal.canaries), len(rehearsal.view.rounds)
    read = np.ones(rounds, dtype=bool)
    none = np.zeros((m, rounds))
    powers = _Powers(rehearsal.view.layout)
    so_far = _Rounds(rehearsal, np.zeros(m), none, none.copy(), read, powers)
    read_round = _read if rehearsal.release in ("steps", "sums") else _read_clients
    for number in rehearsal.view.rounds:
        read_round(so_far, number)
    plain = max(p.curve().total_variation for p in set(rehearsal.promises))
    # ties at random: a canary that no round showed has the ratio of all such
    ratio = so_far.ratio + 1e-9 * rng.standard_normal(m)
    return Sighting(
        rehearsal=rehearsal,
        ratio=ratio,
        signal=so_far.signal,
        beside=so_far.beside,
        read=read,
        call=calls(ratio, rehearsal.canaries.is_record.astype(np.int64), plain),
        noise=so_far.powers.noise,
        apart=so_far.powers.apart,
        named=so_far.named,
        diverged=so_far.diverged,
    )


@dataclass(frozen=True)
class _Uploads:
    """Uploads of a round, as sums of noisy steps over the clip.

    `rows` (n, d), with noise of `variance` (n,) per number; `owner` (n,): the client of each.
    `one_sum`: all rows are one sum over clients, in units of each one's clip.
    """

    rows: Floats
    variance: Floats
    owner: Indices
    senders: tuple[str, ...]
    one_sum: bool = False

    @property
    def named(self) -> bool:
        return ANONYMOUS not in self.senders


def _uploads(r: Rehearsal, view: View, number: int) -> _Uploads | None:
    """The uploads that a view of the federation shows in a round; None if they diverged."""
    updates = view.updates(number, senders={*r.clients, ANONYMOUS})
    if not np.abs(updates.rows).max() < LARGEST:
        return None
    place = {name: c for c, name in enumerate(r.clients)}
    # row -> its client; an anonymous row holds at least as much noise as the quietest client's
    quietest = int(r.powers.argmin())
    owner = np.array([place.get(s, quietest) for s in updates.senders])
    promise = [r.promises[c] for c in owner]
    clip = np.array([p.clip for p in promise])
    scale = np.ones(len(owner)) if r.scale is None else r.scale[owner]
    return _Uploads(
        rows=-np.asarray(updates.rows, dtype=np.float64) / (scale * clip)[:, None],
        variance=np.array([p.exposure.steps * p.multiplier**2 for p in promise], dtype=np.float64),
        owner=owner,
        senders=updates.senders,
    )


def _summed(r: Rehearsal, number: int) -> _Uploads | None:
    """The sum over clients that a round's movement of the model shows; None if it diverged."""
    moved = released.movement(r.view, r.clients, number)
    if not np.abs(moved).max() < LARGEST:
        return None
    owner = np.unique(released.taking_part(r, number))
    share = r.server[0] * r.weights[owner] / r.weights[owner].sum()
    one = share * r.moves[owner]  # how far one clip of each client moves the model
    power = float((np.square(share) * r.powers[owner]).sum())
    return _Uploads(
        rows=-moved / one[:, None],
        variance=power / np.square(one),
        owner=owner,
        senders=tuple(r.clients[c] for c in owner),
        one_sum=True,
    )


def _read(so_far: _Rounds, number: int) -> None:
    """Add one round."""
    r = so_far.rehearsal
    found = _summed(r, number) if r.release == "sums" else _uploads(r, r.view, number)
    if found is None or (found.one_sum and not found.rows.any()):
        so_far.read[number - 1] = False
        so_far.diverged += found is None  # else too few clients answered, and the model stayed
        return
    rows, variance, owner, named = found.rows, found.variance, found.owner, found.named
    so_far.named &= named
    shares = r.canaries.along(rows)  # (n, m)
    if r.scale is None:  # the noise per upload is not known: that of most canaries' signals
        spread = np.array([robust_variance(s) for s in shares])
        shares *= np.sqrt(variance / np.maximum(spread, 1e-300))[:, None]
    _add_scores(so_far, number, shares, found)
    if r.gradients is not None and r.scale is not None:
        held = next((r.view.received(number, s) for s in r.clients if s in found.senders), None)
        if held is not None or not named:
            _add_records(so_far, number, rows, variance, owner, named, held)
    if found.one_sum:
        so_far.powers.add(rows[:1], variance[:1], ("",), False)
    elif r.scale is not None:
        so_far.powers.add(rows, variance, found.senders, named)


def noise_of_run(seen: Sighting, view: View) -> Sighting | None:
    """The noise in the uploads of the run itself, which holds no canaries.

    None where uploads are no sums of noisy steps, or where the run is what was read.
    """
    r = seen.rehearsal
    same = view is r.view or (view.trace_sha256 and view.trace_sha256 == r.view.trace_sha256)
    if r.release != "steps" or r.scale is None or same:
        return None
    powers = _Powers(view.layout)
    for number in view.rounds:
        found = _uploads(r, view, number)
        if found is not None:
            powers.add(found.rows, found.variance, found.senders, found.named)
    return replace(seen, noise=powers.noise, apart=powers.apart)


def _read_clients(so_far: _Rounds, number: int) -> None:
    """Add one round of canary clients."""
    r = so_far.rehearsal
    if r.release == "uploads":
        found = released.of_uploads(r, number)
    else:
        found = released.of_models(r, number, so_far.moved)
        so_far.moved = released.movement(r.view, r.clients, number)
    if not np.abs(found.rows).max() < LARGEST:
        so_far.read[number - 1] = False
        so_far.diverged += 1
        return
    so_far.named &= found.named
    so_far.ratio += found.ratio
    so_far.signal[:, number - 1] = found.signal
    so_far.beside[:, number - 1] = found.beside
    so_far.powers.add(
        found.rows, found.variance, found.senders, found.named and len(found.rows) > 1
    )


def _add_scores(so_far: _Rounds, number: int, shares: Floats, found: _Uploads) -> None:
    """Add the round's likelihood ratios and signals, from shares (n, m) of n rows."""
    r, owner, named = so_far.rehearsal, found.owner, found.named
    # gradients of real records add to the noise
    widest = np.maximum(found.variance, [robust_variance(s) for s in shares])
    for client in np.unique(r.canaries.client):
        mine = np.flatnonzero((r.canaries.client == client) & ~r.canaries.is_record)
        e = r.promises[client].exposure
        rows = np.flatnonzero(owner == client) if named else np.arange(len(owner))
        if not len(rows):
            continue  # the client sat this round out
        each = log_ratio(shares[np.ix_(rows, mine)], widest[rows, None], e.steps, e.sampling_rate)
        so_far.ratio[mine] += among_rows(each)
        so_far.signal[mine, number - 1] = shares[np.ix_(rows, mine)].sum(axis=0)
        others = np.flatnonzero(owner != client) if named and not found.one_sum else rows[:0]
        if len(others):
            so_far.beside[mine, number - 1] = shares[np.ix_(others, mine)].mean(axis=0)


def _add_records(
    so_far: _Rounds,
    number: int,
    rows: Floats,
    variance: Floats,
    owner: Indices,
    named: bool,
    model: npt.NDArray[np.float32] | None,
) -> None:
    """Add the round's ratios and signals of record canaries, along their gradients at the model.

    Other records pull in the same direction: what all clients have in common is subtracted.
    """
    r = so_far.rehearsal
    if model is None or r.gradients is None:
        return
    records = np.flatnonzero(r.canaries.is_record)
    gradient = r.gradients(model).astype(np.float64)
    length = np.maximum(np.linalg.norm(gradient, axis=1), 1e-12)
    clip = np.array([r.promises[c].clip for c in r.canaries.client[records]])
    # a clipped gradient moves a sum by this share of the clip
    moves = np.maximum(np.minimum(length / clip, 1.0), 1e-3)
    shares = rows @ (gradient / length[:, None]).T  # (n, records)
    shares = (shares - np.median(shares, axis=0)) / moves
    widest = np.maximum(variance, [robust_variance(s * moves) for s in shares])
    for i, record in enumerate(records):
        client = r.canaries.client[record]
        e = r.promises[client].exposure
        at = np.flatnonzero(owner == client) if named else np.arange(len(owner))
        if len(at):
            own = shares[at, i : i + 1]
            spread = (widest[at] / moves[i] ** 2)[:, None]
            ratio = log_ratio(own, spread, e.steps, e.sampling_rate)
            so_far.ratio[record] += among_rows(ratio)[0]
            so_far.signal[record, number - 1] = float(own.sum() * moves[i])
