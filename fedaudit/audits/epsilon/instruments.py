"""Checks beside the bound: guesses, gain, noise, sampling and the declaration itself.

A lower bound on epsilon refutes only gross faults. Each of these measures one number that the
declaration fixes, and says what a difference means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.epsilon import gauge
from fedaudit.audits.epsilon.checks import Check
from fedaudit.audits.epsilon.gauge import NoisePower
from fedaudit.audits.epsilon.observed import Sighting
from fedaudit.stats.intervals import clopper_pearson_bounds

FEWEST = 5
"""Canaries on each side of a coin for a gain."""
FEWEST_DRAWS = 1.0
"""Expected draws of a canary for the spread of draws."""


def checks_of(
    observed: Sequence[Sighting],
    coins: Sequence[Bools],
    drawn: Sequence[Bools],
    run: Sighting | None = None,
) -> list[Check]:
    """All checks of one declaration, over all rehearsals; `run`: the noise of the run itself."""
    return [
        *_guesses(observed, coins),
        *_gains(observed, coins, drawn),
        *noise_checks(observed),
        *(() if run is None else _in_the_run(run)),
        *_sampling(observed, drawn, coins),
        *_draw_counts(observed, drawn, coins),
        *_declaration(observed),
    ]


# -- guesses --------------------------------------------------------------------------------------


def _guesses(observed: Sequence[Sighting], coins: Sequence[Bools]) -> Iterator[Check]:
    """Share of coins guessed right if none is withheld, and its ceiling (1 + TV) / 2."""

    first = observed[0].rehearsal
    right = sum(int(o.correct(c)[o.main].sum()) for o, c in zip(observed, coins, strict=True))
    owner = np.concatenate([o.rehearsal.canaries.client[o.main] for o in observed])
    m = len(owner)
    ceiling = np.array([0.5 * (1 + p.curve().total_variation) for p in first.promises])
    # a sum of unequal coins exceeds its mean less often than one of equal coins (Hoeffding 1956)
    most = float(ceiling[owner].mean())

    def ends(tail: float) -> tuple[float, float]:
        return float(clopper_pearson_bounds(right, m, tail)[0]), 1.0

    yield Check(
        name="guessed",
        value=right / m,
        declared=most,
        n=m,
        ends=ends,
        source="(1 + total variation) / 2 of the declared curve",
        above="Canaries are recognised more often than the declared mechanism allows.",
        method="Clopper-Pearson, for independent canaries; one error rate for all checks",
    )


# -- gain -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Signals:
    """Signals and draws of the canaries of all rehearsals.

    `signal` (m, R): share of each round's sums, without what other clients have in common with it.
    `draws` (m, R): how often a canary was drawn. `inserted`, `norm`, `kind` and `tensor` (m,).
    """

    signal: Floats
    draws: Floats
    inserted: Bools
    norm: Floats
    kind: npt.NDArray[np.str_]
    tensor: Indices

    @classmethod
    def of(
        cls, observed: Sequence[Sighting], coins: Sequence[Bools], drawn: Sequence[Bools]
    ) -> _Signals:
        canaries = [o.rehearsal.canaries for o in observed]
        return cls(
            np.concatenate([_own(o, c) for o, c in zip(observed, coins, strict=True)]),
            np.concatenate([_draws(o, d) for o, d in zip(observed, drawn, strict=True)]),
            np.concatenate(list(coins)),
            np.concatenate([c.norm for c in canaries]),
            np.concatenate([c.kind for c in canaries]),
            np.concatenate([c.tensor for c in canaries]),
        )

    def gain(self, name: str, chosen: Bools, left: float, **words: Any) -> Iterator[Check]:
        """Signal per draw of chosen canaries, over the `left` clips that clipping leaves.

        Canaries that were left out get the draws of inserted ones: without a fault, an inserted
        canary varies as they do.
        """
        inside, outside = chosen & self.inserted, chosen & ~self.inserted
        a, b, draws = int(inside.sum()), int(outside.sum()), float(self.draws[inside].sum())
        if min(a, b) < FEWEST or not draws:
            return
        there = np.resize(np.flatnonzero(inside), b)
        other = (self.signal[outside] * (self.draws[there] > 0)).sum(axis=1)
        own = (self.signal[inside] * (self.draws[inside] > 0)).sum(axis=1)
        # random signs have a mean of 0; gradients of records have not, nor has a replaced client
        centred = self.kind[inside][0] in ("record", "client")
        centre = float(other.mean()) if centred else 0.0
        spread = float(np.square(other - centre).sum()) / max(1, b - centred)
        moved = (float(own.sum()) - a * centre) / draws / left
        error = math.sqrt(spread * a * (1 + centred * a / b)) / draws / left

        def ends(tail: float) -> tuple[float, float]:
            from scipy.special import stdtrit

            half = -float(stdtrit(b - centred, tail)) * error
            return moved - half, moved + half

        yield Check(
            name=name,
            value=moved,
            n=a + b,
            ends=ends,
            source="clipping to the declared norm",
            method="Student, inserted canaries against the spread of others; one error rate for "
            "all checks",
            **words,
        )


def _own(o: Sighting, coins: Bools) -> Floats:
    """Signals (m, R) without what other clients show along the same canary.

    Clients with similar data move along the same gradients. How much of it they have in common is
    fitted where no canary was inserted.
    """
    chosen = ~coins & ~o.rehearsal.canaries.is_record
    power = float(np.square(o.beside[chosen]).sum())
    slope = float((o.beside[chosen] * o.signal[chosen]).sum()) / power if power else 0.0
    return o.signal - slope * o.beside


def _draws(o: Sighting, drawn: Bools) -> Floats:
    """How often every canary was drawn in every round that was read: (m, R)."""
    steps = np.unique(o.rehearsal.batches[:, :2], axis=0)
    counts = np.zeros(o.signal.shape)
    for i, number in enumerate(steps[:, 0]):
        counts[:, number - 1] += drawn[:, i]
    return counts * o.read


def _gains(
    observed: Sequence[Sighting], coins: Sequence[Bools], drawn: Sequence[Bools]
) -> Iterator[Check]:
    """Signal of an inserted canary, divided by what clipping leaves of it."""
    first = observed[0].rehearsal
    if first.scale is None or (observed[0].mixed and np.ptp(first.moves) > 0):
        return
    of = _Signals.of(observed, coins, drawn)
    yield from of.gain(
        "gain (large records)",
        (of.kind == "record") & (of.norm > 1),
        1.0,
        declared=2.0,  # its direction turns during a round, and others pull the same way
        above="Clipping of records is broken: a record with a large gradient moves a sum by more "
        "than twice the clip.",
    )
    main = next((k for k in ("dense", "client", "layer") if (of.kind == k).any()), "dense")
    for size in np.unique(of.norm[of.kind == main]):
        yield from of.gain(
            f"gain (norm {size:g})",
            (of.norm == size) & (of.kind == main),
            min(1.0, float(size)),
            declared=1.0,
            **(_over(size) if size > 1 else _within(first.promises[0].unit)),
        )
    layer = (of.norm > 1) & (of.kind == "layer")
    found = [
        (name, check)
        for t, name in enumerate(first.canaries.tensors)
        for check in of.gain(
            f"gain ({name}, norm {of.norm.max():g})", layer & (of.tensor == t), 1.0, declared=1.0
        )
    ]
    least = min((check.value for _, check in found), default=0.0)
    for name, check in found:
        within = f"a canary that lies in {name} moves a sum by more than the clip."
        alone = check.value > 2 * max(1.0, least)  # canaries in another tensor are clipped
        cause = f"Clipping leaves out {name}" if alone else "Clipping is broken"
        yield replace(check, above=f"{cause}: {within}")


def _over(size: float) -> dict[str, str]:
    said = f"a canary of norm {size:g} x clip moves a sum by more than the clip."
    return {
        "above": f"Clipping is broken: {said}",
        "below": f"Clipping is not that of the declared norm: {said.replace('more', 'less')}",
    }


def _within(unit: str) -> dict[str, str]:
    other = "the sum of all" if unit == "client" else "an average, a micro-batch, or the sum"
    return {
        "above": "A sum moves by more than the clip: it is scaled up after clipping.",
        "below": f"Something other than single {unit}s was clipped: {other}.",
    }


# -- noise ----------------------------------------------------------------------------------------


def noise_checks(observed: Sequence[Sighting]) -> Iterator[Check]:
    """Power of the noise over the declared one: per tensor, and between two of a kind."""
    for name in observed[0].noise:
        power = gauge.pooled([o.noise[name] for o in observed])
        yield _power(f"noise ({name})", power, _less(name, power, observed[0]))
    apart = {which: gauge.pooled([o.apart[which] for o in observed]) for which in observed[0].apart}
    for which, power in apart.items():
        yield _power(f"noise_between_{which}", power, _shared(which, apart))


def _in_the_run(run: Sighting) -> Iterator[Check]:
    """The same of the run that is audited: a rehearsal may have another loader, or another seed."""
    for check in noise_checks([run]):
        yield replace(check, name=f"run_{check.name}", below=f"In the run itself: {check.below}")


SHARED = {
    "tensors": "Tensors share their noise: the difference of two tensors of an upload holds less "
    "of it than two draws.",
    "clients": "Clients share their noise: the difference of two uploads holds less of it than "
    "two uploads with noise of their own.",
    "rounds": "Noise repeats from round to round: the difference of two uploads holds less of "
    "it than two draws.",
}


def _shared(which: str, apart: Mapping[str, NoisePower]) -> str:
    """What too little noise in differences means: less of it everywhere, or the same twice."""
    power, either = apart[which].power, apart[which].either
    others = max((p.power for w, p in apart.items() if w != which), default=math.inf)
    # without the declared noise, what similar gradients have in common cancels too
    if either > 0.75 and power < max(0.9 * min(either, others), 0.5 * either):
        return SHARED[which]
    return "There is less noise than declared: the difference of two uploads holds too little."


def _power(name: str, power: NoisePower, below: str) -> Check:
    return Check(
        name=name,
        value=power.power,
        declared=1.0,
        n=power.numbers,
        ends=power.interval,
        source="variance of the declared noise",
        below=below,
        method="chi-square for noise alone; one error rate for all checks",
    )


def _less(name: str, power: NoisePower, first: Sighting) -> str:
    """Likely cause of too little noise in a tensor, judged by how much is missing."""
    r = first.rehearsal
    # differences hold less of the gradients
    apart = [p.power for which, p in first.apart.items() if which != "tensors"]
    least = min([power.power, *apart])
    promise = r.promises[0]
    batch = promise.exposure.sampling_rate * promise.records
    parts = "number of clients" if promise.unit == "client" else "batch"
    everywhere = min(apart, default=0.0)
    if everywhere > max(0.2, 4 * power.power):
        return f"There is too little noise on {name}, or none: other tensors have theirs."
    for factor, why in (
        (1 / max(batch, 1e-9), f"the noise is divided by the {parts} once more"),
        (1 / promise.clip, "the noise multiplier is used as a deviation, without the clip"),
    ):
        # gradients add some power
        if factor < 0.95 and 0.6 * factor**2 < least < 1.5 * factor**2 + 0.02:
            return f"There is less noise than declared on {name}, as if {why}."
    return f"There is less noise than declared on {name}."


# -- sampling -------------------------------------------------------------------------------------


def _sampling(
    observed: Sequence[Sighting], drawn: Sequence[Bools], coins: Sequence[Bools]
) -> Iterator[Check]:
    """Batch sizes and draws beside those of Poisson sampling at the declared rate."""
    first = observed[0].rehearsal
    rate = np.array([p.exposure.sampling_rate for p in first.promises])
    if (rate >= 1).all() or not first.single or not len(first.batches):
        return
    parts = [_batches(o, d, c) for o, d, c in zip(observed, drawn, coins, strict=True)]
    client, size, pool = (np.concatenate(column) for column in zip(*parts, strict=True))
    varies = rate[client] < 1
    if not varies.any():
        return
    mean = float(size.sum() / (pool * rate[client]).sum())
    spread = gauge.spread_of_sizes(size[varies], pool[varies], rate[client][varies])
    n, trials, expected = len(size), int(pool.sum()), float((pool * rate[client]).sum())

    def ends(tail: float) -> tuple[float, float]:
        # unequal rates make a sum less variable than one equal rate (Hoeffding 1956)
        low, high = clopper_pearson_bounds(int(size.sum()), trials, tail)
        return float(low) * trials / expected, float(high) * trials / expected

    yield Check(
        name="batch_sizes",
        value=mean,
        declared=1.0,
        n=n,
        ends=ends,
        source="Poisson sampling at the declared rate",
        above="Batches are larger than the declared sampling rate gives: it was computed for "
        "another number of records.",
        below="Batches are smaller than the declared sampling rate gives: records are dropped, or "
        "it was computed for another number of records.",
    )
    yield Check(
        name="spread_of_batch_sizes",
        value=spread,
        declared=1.0,
        n=int(varies.sum()),
        ends=lambda tail: gauge.spread_interval(spread, pool[varies], rate[client][varies], tail),
        source="Poisson sampling at the declared rate",
        above="Batch sizes vary more than Poisson sampling gives: steps do not draw independently.",
        below="Batch sizes hardly vary: batches are shuffled, or dropped if they are not full, and "
        "accounted as Poisson samples.",
    )


def _batches(o: Sighting, drawn: Bools, coins: Bools) -> tuple[Indices, Floats, Floats]:
    """Client, size, and examples to draw from, of every batch; canaries count."""
    r = o.rehearsal
    owner = r.canaries.client
    mine = [owner == c for c in range(len(r.promises))]
    canaries = np.stack([drawn[own].sum(axis=0) for own in mine])  # (K, steps)
    extra = np.array([int((coins & own).sum()) for own in mine])
    records = np.array([p.records for p in r.promises])
    step = np.unique(r.batches[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
    client = r.batches[:, 2]
    size = (r.batches[:, 3] + canaries[client, step]).astype(np.float64)
    return client, size, (records + extra)[client].astype(np.float64)


def _draw_counts(
    observed: Sequence[Sighting], drawn: Sequence[Bools], coins: Sequence[Bools]
) -> Iterator[Check]:
    """How unequally inserted canaries are drawn, beside independent draws at the declared rate."""
    parts, draws, again = [], 0, 0
    for o, d, c in zip(observed, drawn, coins, strict=True):
        r = o.rehearsal
        column = np.unique(r.batches[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
        for client, promise in enumerate(r.promises):
            rate, of_client = promise.exposure.sampling_rate, r.batches[:, 2] == client
            inserted = d[c & (r.canaries.client == client)][:, np.sort(column[of_client])]
            n, steps = inserted.shape
            if not n * steps or rate >= 1 or promise.unit == "client":
                continue
            parts.append((inserted.sum(axis=1), np.full(n, steps), np.full(n, rate)))
            by_round = inserted.reshape(n, -1, promise.exposure.steps)
            draws += int(by_round[:, :-1].sum())
            again += int((by_round[:, :-1] & by_round[:, 1:]).sum())
    if not parts:
        return
    count, pool, rates = (np.concatenate(p).astype(np.float64) for p in zip(*parts, strict=True))
    if (pool * rates).mean() < FEWEST_DRAWS:
        return
    spread = gauge.spread_of_sizes(count, pool, rates)
    # the share of draws that come again in the next round's same step is the rate, or one
    returns = draws and again / draws > 0.5 * (1 + rates.mean())
    yield Check(
        name="spread_of_draws",
        value=spread,
        declared=1.0,
        n=len(count),
        ends=lambda tail: gauge.spread_interval(spread, pool, rates, tail),
        source="Poisson sampling at the declared rate",
        above="The same batches come again every round: a record is drawn in all of them or never."
        if returns
        else "Some records are drawn more often than others: the rate is not the same for all.",
        below="Records are drawn more evenly than Poisson samples: batches are shuffled, or "
        "records take turns.",
        method="shifted gamma; one error rate for all checks",
    )


# -- declaration ----------------------------------------------------------------------------------


def _declaration(observed: Sequence[Sighting]) -> Iterator[Check]:
    """Counts of the rehearsal beside those of the declared schedule; exact."""
    r = observed[0].rehearsal
    if len(r.batches):
        taken = np.bincount(r.batches[:, 2], minlength=len(r.promises))
        declared = np.array([p.exposure.total for p in r.promises])
        worst = int((taken - declared).argmax())
        taken_of = "steps" if r.release in ("steps", "sums") else "rounds"
        yield Check(
            name="steps",
            value=float(taken[worst]),
            declared=float(declared[worst]),
            n=len(r.batches),
            ends=None,
            source=f"{taken_of} of the declared schedule",
            above=f"Clients take more {taken_of} than were accounted for.",
        )
    diverged = sum(o.diverged for o in observed)
    yield Check(
        name="diverged_rounds",
        value=float(diverged),
        declared=0.0,
        n=len(r.view.rounds),
        ends=None,
        source="clipping to the declared norm",
        above="The rehearsal diverged: canaries of a large norm moved the model without bound, so "
        "that clipping is broken or missing (or the learning rate is far too large).",
    )
    allowed = max(p.delta * p.records for p in r.promises)
    yield Check(
        name="delta_times_records",
        value=allowed,
        declared=1.0,
        n=max(p.records for p in r.promises),
        ends=None,
        source="delta below one over the number of records",
        above="Delta is too large for this number of records: a mechanism that publishes one "
        "record at random would meet it.",
    )
