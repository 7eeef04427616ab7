"""Exposure: what an answer would give away about the client's own records.

Question  Would my update show that one of my records was in it, or hand that record over?
Vantage   The client, before it answers: the received model, its own records, its local steps.
Paper     [Geiping] Proposition 3.1 for x = dW / db; the membership ratio is ours.

A record is exposed where a unit answers to it and hardly to others. Honest models have such units
too, so exposure is a finding about the answer, not about the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices
from fedaudit.protections.guard.local_steps import LayerVisits
from fedaudit.stats.bias_ratios import ROUNDING, ratios

MEMBERSHIP = 10.0
"""A record whose ratio is above it counts as exposed."""
SUCCESS = (
    (1.0, 0.688, 0.679, 0.696),
    (3.0, 0.785, 0.766, 0.805),
    (10.0, 0.845, 0.812, 0.872),
    (30.0, 0.808, 0.722, 0.908),
    (100.0, 0.825, 0.806, 0.844),
)
"""(least ratio, share of right guesses, 95 % interval) of a server that says from an answer whether
a record was there; 0.5 is chance. MLPs on three data sets, one local step, 100 records:
`python -m reproductions.guard.behaviour meaning`."""
EXACT = 0.05
"""A reconstruction that close, in median distances between own records, is exact."""
ALONE = 1e-6
"""A unit sees only one record if every other adds less than this share of its squared norm."""
EPS = float(np.finfo(np.float32).eps)
_BLOCK = 2**24
"""Numbers per block of grams."""
_PAIRS = 1000
"""Records among which the median distance is taken, at most."""

Numbers = npt.NDArray[np.float32] | Floats

# -- theory ----------------------------------------------------------------------------------------


def ratio(own: Floats, spread: Floats, noise: float | Floats) -> Floats:
    """e = K_ii / sqrt(sum_j (K_ij - mean)^2 + sigma^2 K_ii): the test of one record along its own
    gradient, signal over the deviation that other records and noise cause.

    own: K_ii; spread: the sum over the others; noise: sigma per number of the unit's row. A
    gradient is known to a float32 step, hence (EPS K_ii)^2.
    """
    variance = spread + np.square(noise) * own + np.square(EPS * own)
    return np.divide(own, np.sqrt(variance), out=np.zeros_like(own), where=variance > 0)


# -- arrays in, arrays out -------------------------------------------------------------------------


def membership(
    inputs: Numbers, errors: Numbers, *, bias: bool, noise: float | Floats, least: float = 0.0
) -> tuple[Floats, Floats]:
    """Ratios e (n, U) and squared norms K_ii (n, U) of what records add to units.

    inputs (P, n, D), errors (P, n, U); `noise` per number of the update, a number or (U,). With a
    single visit the grams factor, K_ij = d_i d_j (x_i x_j + 1), and two products of (n, n) by
    (n, U) are enough; otherwise they are made for blocks of units. Units where no ratio can be
    above `least` are left at 0: a bound from sums of records costs a tenth of the grams.
    """
    if len(errors) == 1:
        return _single_visit(inputs[0], errors[0], bias, noise)
    n, units = errors.shape[1:]
    if bias:
        inputs = np.concatenate([inputs, np.ones((*inputs.shape[:2], 1), inputs.dtype)], axis=2)
    e, k = np.zeros((n, units)), np.zeros((n, units))
    step = max(1, _BLOCK // (n * max(n if least == 0 else GROUPS, inputs.shape[2])))
    sigma = np.broadcast_to(noise, (units,))
    by_record: Any = np.ascontiguousarray(inputs.transpose(1, 0, 2))
    for low in range(0, units, step):
        some = slice(low, low + step)
        # (n, u, P) @ (n, P, D): what every record adds to every unit
        added = (errors[..., some].transpose(1, 2, 0) @ by_record).swapaxes(0, 1)
        own = np.square(added).sum(axis=2, dtype=np.float64)
        k[:, some] = own.T
        kept = np.arange(len(added))
        if least > 0:
            bound = ratio(own, _least_spread(added, own), sigma[some, None])
            kept = np.flatnonzero((bound > least).any(axis=1))
        small = max(1, _BLOCK // n**2)
        for at in np.split(kept, range(small, len(kept), small)):
            if len(at):
                e[:, low + at] = ratio(own[at], _spread(added[at]), sigma[low + at, None]).T
    return e, k


GROUPS = 16
"""Sums of so many groups of records bound the spread of grams from below."""


def _single_visit(
    x: Numbers, d: Numbers, bias: bool, noise: float | Floats
) -> tuple[Floats, Floats]:
    """`membership` of inputs x (n, D) and errors d (n, U)."""
    # errors of a step are as small as its learning rate, and squared twice below
    size = float(np.abs(d).max()) or 1.0
    d = d / size
    similar = np.asarray(x @ x.T + d.dtype.type(bias))
    norms = np.diagonal(similar).astype(np.float64)
    np.fill_diagonal(similar, 0.0)
    squares = np.square(d)
    others, mean = np.square(similar) @ squares, similar @ d / (len(d) - 1)
    # (n - 1) mean^2 is lost in rounding where it is nearly all of it
    rounding = len(d) * np.finfo(d.dtype).eps
    spread = np.maximum(others - (len(d) - 1) * np.square(mean), rounding * others)
    own = squares * norms[:, None] * size**2
    return ratio(own, squares.astype(np.float64) * spread * size**4, noise), own


def _spread(added: Numbers) -> Floats:
    """sum over j of (K_ij - mean_i)^2 without i, (u, n), of what records add (u, n, D)."""
    grams = (added @ added.swapaxes(1, 2)).astype(np.float64)
    np.einsum("uii->ui", grams)[:] = 0.0
    n = grams.shape[2]
    mean = grams.sum(axis=2, keepdims=True) / (n - 1)
    grams -= mean
    squares = np.square(grams, out=grams).sum(axis=2) - np.square(mean[..., 0])
    return np.maximum(squares, 0.0)


def _least_spread(added: Numbers, own: Floats) -> Floats:
    """A lower bound (u, n) of `_spread`: the part of it that lies between groups of records."""
    n = added.shape[1]
    group = np.arange(n) % GROUPS
    sums = np.stack([added[:, group == c].sum(axis=1) for c in range(GROUPS)], axis=2)
    total = (added @ sums).astype(np.float64)  # (u, n, GROUPS)
    counts = np.tile(np.bincount(group, minlength=GROUPS).astype(np.float64), (n, 1))
    total[:, np.arange(n), group] -= own
    counts[np.arange(n), group] -= 1
    mean = total.sum(axis=2, keepdims=True) / (n - 1)
    means = np.divide(
        total, counts, out=np.broadcast_to(mean, total.shape).copy(), where=counts > 0
    )
    return np.asarray((counts * np.square(means - mean)).sum(axis=2))


def reconstructed(layer: LayerVisits) -> tuple[Floats, Indices]:
    """x = dW / db (m, D) of a layer that sees the records, and the units (m, 2) each comes from.

    From single units (twice the same number), and from differences of units that are neighbours by
    bias, as received or by its change: bins of an imprinted layer hold a record between them.
    Changes of a bias within float32 rounding carry nothing.
    """
    assert layer.bias is not None
    assert layer.bias_after is not None
    with np.errstate(invalid="ignore"):  # steps that overflowed
        w, b = layer.weight_after - layer.weight, layer.bias_after - layer.bias
    smallest = np.maximum(ROUNDING * EPS * np.abs(layer.bias), np.finfo(np.float32).tiny)
    single = np.arange(len(b))
    pairs = [np.stack([o[1:], o[:-1]]) for o in (np.argsort(layer.bias), np.argsort(b))]
    one, other = np.concatenate(pairs, axis=1)
    x, usable = ratios(
        np.concatenate([w, w[one] - w[other]]),
        np.concatenate([b, b[one] - b[other]]),
        np.concatenate([smallest, smallest[one] + smallest[other]]),
    )
    units = np.stack([np.append(single, one), np.append(single, other)], axis=1)
    return x[usable], units[usable]


def nearest_rows(records: Numbers, x: Numbers) -> tuple[Floats, Indices]:
    """Distance (n,) of every record (n, D) to the closest of x (m, D), and which that is.

    Candidates are found in single precision around the mean record, the distance is then exact.
    """
    centre = records.mean(axis=0)
    one, other = (np.asarray(v - centre, dtype=np.float32) for v in (records, x))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.square(other).sum(axis=1) - 2 * one @ other.T
    at = np.where(np.isfinite(scores), scores, np.inf).argmin(axis=1)
    apart = records.astype(np.float64) - x[at]
    return np.sqrt(np.square(apart).sum(axis=1)), at


def distances(one: Floats, other: Floats) -> Floats:
    """Euclidean distances (a, b) of rows (a, D) and (b, D)."""
    squares = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(squares - 2 * one @ other.T, 0.0)))


# -- report ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExposedRecord:
    """One own record that the answer would give away; `record` counts from 0.

    `membership`: its largest ratio, at the unit of `layer` if it is above `MEMBERSHIP`; otherwise
    the difference of two `units` gives it away. `alone`: no other record moves the unit of the
    ratio. `distance`: of the closest reconstruction, in median distances between own records;
    None: no layer can be inverted.
    """

    record: int
    membership: float
    layer: str
    units: tuple[int, ...]
    alone: bool
    distance: float | None

    @property
    def success(self) -> tuple[float, float, float] | None:
        """Measured share of right guesses about a record of such a ratio, and its 95 % interval;
        None below a ratio of 1."""
        known = [measured for least, *measured in SUCCESS if self.membership >= least]
        return (known[-1][0], known[-1][1], known[-1][2]) if known else None

    @property
    def exact(self) -> bool:
        """Whether the answer contains the record itself."""
        return self.distance is not None and self.distance < EXACT

    @property
    def words(self) -> str:
        how = ", exactly" if self.exact else ""
        if len(self.units) > 1:
            both = " and ".join(map(str, self.units))
            return f"record {self.record}{how} (units {both} of {self.layer} differ by it)"
        sees = "sees only it" if self.alone else "hardly sees others"
        return f"record {self.record}{how} (unit {self.units[0]} of {self.layer} {sees})"


@dataclass(frozen=True, kw_only=True)
class ExposureReport:
    """The exposed records of a client, the most exposed first. `layers`: those that were read;
    `unread`: weights that were not, so that records may be exposed there unseen."""

    records: int
    exposed: tuple[ExposedRecord, ...]
    layers: tuple[str, ...]
    unread: tuple[str, ...] = ()
    inverted: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """One sentence."""
        if not self.layers:
            return (
                "Exposure: nothing to say, no layer of this model can be read, or the local steps "
                "diverge."
            )
        if not self.exposed:
            return f"Nothing of your {self.records} records is exposed."
        first = self.exposed[0].words
        more = f" and {len(self.exposed) - 1} more of {self.records}" if self.exposed[1:] else ""
        said = f"Answering would give away {first}{more}. Honest models do this too."
        if self.exposed[0].success is None:
            return said
        share, low, high = (f"{100 * v:.0f}" for v in self.exposed[0].success)
        return f"{said} Servers guessed {share} % [{low}, {high}] of such right, 50 % by chance."


def exposure(
    visits: Iterable[LayerVisits], noise: float = 0.0, unread: tuple[str, ...] = ()
) -> ExposureReport:
    """Exposure of all records through all layers. `noise`: what the client adds per number."""
    layers = list(visits)
    n = layers[0].errors.shape[1] if layers else 0
    if not layers or not all(_finite(x) for x in layers):
        unread = (*(f"{x.name}.weight" for x in layers), *unread)
        return ExposureReport(records=n, exposed=(), layers=(), unread=unread)
    best, where = np.full(n, -1.0), [("", 0)] * n
    alone = np.zeros(n, dtype=bool)
    nearest, source = np.full(n, np.inf), [("", np.zeros(2, dtype=np.int64))] * n
    inverted = []
    for layer in layers:
        # a change is sent in float32: one step of the row's largest weight is noise
        rounding = EPS * np.abs(layer.weight).max(axis=1).astype(np.float64)
        sigma = np.sqrt(noise**2 + np.square(rounding))
        bias = layer.bias is not None
        e, k = membership(layer.inputs, layer.errors, bias=bias, noise=sigma, least=MEMBERSHIP)
        unit = e.argmax(axis=1)
        top = e[np.arange(n), unit]
        for i in np.flatnonzero(top > best):
            u = int(unit[i])
            best[i], where[i] = top[i], (layer.name, u)
            alone[i] = np.delete(k[:, u], i).max() <= ALONE * k[i, u]
        if layer.sees_records and layer.bias is not None:
            inverted.append(layer.name)
            records = layer.inputs[0]
            x, units = reconstructed(layer)
            if len(x):
                apart, which = nearest_rows(records, x)
                apart /= median_distance(records)
                for i in np.flatnonzero(apart < nearest):
                    nearest[i], source[i] = apart[i], (layer.name, units[which[i]])
    found = [
        _exposed(int(i), float(best[i]), where[i], bool(alone[i]), float(nearest[i]), source[i])
        for i in np.argsort(-best, kind="stable")
        if best[i] > MEMBERSHIP or nearest[i] < EXACT
    ]
    return ExposureReport(
        records=n,
        exposed=tuple(found),
        layers=tuple(x.name for x in layers),
        unread=unread,
        inverted=tuple(inverted),
    )


def _finite(layer: LayerVisits) -> bool:
    after = layer.weight_after
    return all(bool(np.isfinite(part).all()) for part in (layer.inputs, layer.errors, after))


def _exposed(
    record: int,
    membership: float,
    where: tuple[str, int],
    alone: bool,
    distance: float,
    source: tuple[str, Indices],
) -> ExposedRecord:
    """One entry: the unit that answers to the record, or those that it was rebuilt from."""
    layer, units = where[0], (where[1],)
    if membership <= MEMBERSHIP:
        layer, units = source[0], tuple(dict.fromkeys(source[1].tolist()))
    return ExposedRecord(
        record=record,
        membership=membership,
        layer=layer,
        units=units,
        alone=alone,
        distance=distance if np.isfinite(distance) else None,
    )


def median_distance(x: Floats) -> float:
    some = x[:: -(-len(x) // _PAIRS)]
    apart = distances(some, some)[np.triu_indices(len(some), 1)]
    return max(float(np.median(apart)), float(np.finfo(np.float32).tiny))
