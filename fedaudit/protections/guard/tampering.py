"""Tampering: did a unit change in a way that the client's own history of models does not explain?

Question  Was this model altered between rounds?
Vantage   The client: the received model, models of earlier rounds, its own records, the module.
Ours      J and D below, and the threshold from the client's own history.

Training moves all units of a layer by similar amounts; a plant moves one or a few by far more.
J compares the largest change of a unit with the median one of its layer, in this round or in any
earlier one: where many rows are rewritten, the median of this round is that of the plant. A unit's
change has four parts: its output on own records, the weights into it, its bias, and the weights
out of it. A single part shows a plant that the others hide: a moved bias is small beside what one
round does to outputs, but no round moves one bias so far. J is taken over one round, three and
ten, since what drifts is small in every single one. D counts units that fall silent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.protections.guard.local_steps import by_position, has_units, watched
from fedaudit.protections.guard.own_data import UNREADABLE, checked_records, fails_on_records

if TYPE_CHECKING:
    from torch.nn import Module

Verdict = Literal["altered", "no_evidence", "nothing_to_say"]
Part = Literal["output", "row", "bias", "column"]
PARTS: dict[Part, str] = {
    "output": "the output of unit {unit} of {layer}",
    "row": "the weights into unit {unit} of {layer}",
    "bias": "number {unit} of {layer}",
    "column": "the weights out of input {unit} of {layer}",
}
HISTORY = 2
"""Least number of earlier models: one pair of them shows how far an honest round moves units."""
ROUNDS = (1, 3, 10)
"""J is taken over so many rounds."""
SMALL = 0.01
"""Added to changes: units that hardly move are all alike."""
ABOVE, LEAST = math.log(3), math.log(8)
"""An alarm of J lies so far above the largest of the own history, times 1 + 1 / pairs of models
since the largest of few is no maximum, and at no less than the second number."""
ABOVE_SEVERAL = math.log(8)
"""The first number over several rounds, of which a history has fewer that do not overlap."""
FALLEN = 1 / 3
"""A unit fell silent if the number of records that it responds to is down to this share."""
SILENT_ABOVE, SILENT_LEAST = 0.2, 0.3
"""The same two numbers for D, a share of the units of a layer."""
OVERFLOW = 1e30
"""Counts as the change of a unit that is not finite."""
FLAT = 0.05
"""A unit's standard deviation counts as at least this share of its layer's median."""
RECORDS, ROWS = 100, 2000
"""Records, and outputs of a unit over records and positions, that are looked at, at most."""

# -- arrays in, arrays out -------------------------------------------------------------------------


def unit_changes(before: Floats, after: Floats) -> Floats:
    """d (U,): root mean square change of pre-activations (m, U), in standard deviations before."""
    spread = before.std(axis=0)
    usual = float(np.median(spread))
    if usual == 0:
        return np.zeros(len(spread))
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.sqrt(np.square(after - before).mean(axis=0))
    return _finite(change) / np.maximum(spread, FLAT * usual)


def lengths(weight: Floats) -> tuple[Floats, Floats]:
    """Lengths of the rows (U,) and of the columns (D,) of a weight (U, D, ...)."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(weight)
        if weight.ndim > 2:
            squares = squares.reshape(*weight.shape[:2], -1).sum(axis=2)
        return np.sqrt(squares.sum(axis=1)), np.sqrt(squares.sum(axis=0))


def _finite(change: Floats) -> Floats:
    return np.where(np.isfinite(change), change, np.float32(OVERFLOW)).astype(np.float64)


def jump(d: Floats, usual: float) -> tuple[float, int]:
    """J = max_u log((d_u + .01) / (usual + .01)) and its unit. `usual`: the median of d, or the
    largest median of earlier rounds if that is smaller."""
    at = int(d.argmax())
    return math.log((float(d[at]) + SMALL) / (usual + SMALL)), at


def silenced(before: Floats, after: Floats) -> float:
    """D: the share of units (columns) whose positive pre-activations fell to a third or less."""
    was, is_now = (before > 0).sum(axis=0), (after > 0).sum(axis=0)
    return float(((was > 0) & (is_now <= FALLEN * was)).mean())


# -- report ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TamperingReport:
    """J and D of the newest model, their thresholds from earlier ones, and where J is largest:
    `part` of `unit` of `layer`, over `rounds` rounds.

    All numbers are None where there is nothing to say.
    """

    verdict: Verdict
    pairs: int
    jump: float | None = None
    jump_threshold: float | None = None
    layer: str = ""
    unit: int | None = None
    silenced: float | None = None
    silenced_threshold: float | None = None
    silenced_layer: str = ""
    part: Part = "output"
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict) or self.part not in get_args(Part):
            raise ValueError(f"verdict {self.verdict!r}, part {self.part!r}")

    @property
    def words(self) -> str:
        """One sentence."""
        if self.jump is None or self.jump_threshold is None or self.silenced is None:
            return (
                "Tampering: nothing to say. It takes two earlier models or more (`previous`, "
                "oldest first), finite and with a layer that can be read; a client in its first "
                "rounds cannot tell."
            )
        if self.verdict != "altered":
            return (
                f"No unit changed beyond what {self.pairs} earlier "
                f"{'round' if self.pairs == 1 else 'rounds'} show (J = {self.jump:.2f}, alarm "
                f"above {self.jump_threshold:.2f})."
            )
        if self.jump > self.jump_threshold:
            what = PARTS[self.part].format(unit=self.unit, layer=self.layer)
            when = "" if self.rounds == 1 else f" over {self.rounds} rounds"
            why = (
                f"{what} changed {math.exp(self.jump):.0f} times as far as usual there{when}, "
                f"J = {self.jump:.2f}, alarm above {self.jump_threshold:.2f}"
            )
        else:
            why = (
                f"{self.silenced:.0%} of the units of {self.silenced_layer} fell silent on your "
                f"records, alarm above {self.silenced_threshold:.0%}"
            )
        return f"This model was altered: training does not explain it ({why})."


NOTHING = TamperingReport(verdict="nothing_to_say", pairs=0)


def tampering(models: Sequence[Module], x: Any, y: Any) -> TamperingReport:
    """Compare the newest of some models with the earlier ones, on own records."""
    if len(models) <= HISTORY:
        return TamperingReport(verdict="nothing_to_say", pairs=max(len(models) - 2, 0))
    history = ModelHistory(x, y)
    for model in models[:-1]:
        history.add(model)
    return history.judge(models[-1])


@dataclass(frozen=True)
class _Units:
    """What is compared of one model: outputs (m, U) of layers on own records, and weights."""

    outputs: Mapping[str, Floats]
    weights: Mapping[str, Floats]

    @cached_property
    def usual(self) -> dict[str, tuple[float, float]]:
        """Median lengths of the rows and of the columns of every weight."""
        both = {n: lengths(w) for n, w in self.weights.items() if w.ndim > 1}
        return {n: (float(np.median(r)), float(np.median(c))) for n, (r, c) in both.items()}

    @property
    def finite(self) -> bool:
        return all(np.isfinite(z).all() for z in (*self.outputs.values(), *self.weights.values()))


@dataclass(frozen=True)
class _Pair:
    """How far units moved over `rounds` rounds up to model `end`."""

    end: int
    rounds: int
    changes: Mapping[tuple[Part, str], Floats]
    silent: Mapping[str, float]

    @cached_property
    def medians(self) -> dict[tuple[Part, str], float]:
        return {at: float(np.median(d)) for at, d in self.changes.items()}

    @cached_property
    def largest(self) -> dict[Part, float]:
        """The largest J of every part over all layers."""
        out: dict[Part, float] = {}
        for (part, layer), d in self.changes.items():
            value = jump(d, self.medians[part, layer])[0]
            out[part] = max(value, out.get(part, 0.0))
        return out


class ModelHistory:
    """The models that a client received, oldest first, as its own records (n, ...) see them.

    A client that keeps it pays for one model a round: `judge` the new one, then `add` it. A model
    that diverged is left out, since it shows nothing of how honest rounds move units.
    """

    def __init__(self, x: Any, y: Any) -> None:
        records = checked_records(x, y)[0]
        self._records = records[:: -(-len(records) // RECORDS)]
        self._models: list[_Units] = []
        self._pairs: list[_Pair] = []
        self._judged: tuple[_Units, list[_Pair]] | None = None

    def __len__(self) -> int:
        return len(self._models)

    def add(self, model: Module) -> None:
        """Trust a model: later ones are compared with it."""
        units, pairs = self._again(model) or (self._read(model), None)
        self._judged = None
        if not units.finite:
            return
        self._pairs += self._compared(units) if pairs is None else pairs
        self._models.append(units)
        del self._models[: -max(ROUNDS)]

    def judge(self, model: Module) -> TamperingReport:
        """Whether training explains how this model differs from those before it."""
        end = self._end
        if end < HISTORY:
            return NOTHING
        units = self._read(model)
        self._judged = units, self._compared(units)
        now = {p.rounds: p for p in self._judged[1]}
        found = [
            each
            for rounds, pair in now.items()
            if (known := self._before(end, rounds))
            for each in _jumps(pair, known)
        ]
        if not found:
            return NOTHING
        # the part that is farthest above its threshold, or nearest to it
        top = max(found, key=lambda j: j.value - j.threshold)
        quiet = max((s for p in self._before(end, 1) for s in p.silent.values()), default=0.0)
        silent, silent_layer = max(((s, n) for n, s in now[1].silent.items()), default=(0.0, ""))
        most = max(SILENT_LEAST, quiet + SILENT_ABOVE)
        altered = top.value > top.threshold or silent > most
        return TamperingReport(
            verdict="altered" if altered else "no_evidence",
            pairs=end - 1,
            jump=top.value,
            jump_threshold=top.threshold,
            layer=top.layer,
            unit=top.unit,
            silenced=silent,
            silenced_threshold=most,
            silenced_layer=silent_layer,
            part=top.part,
            rounds=top.rounds,
        )

    def _again(self, model: Module) -> tuple[_Units, list[_Pair]] | None:
        """What was found of a model that was just judged; None for any other."""
        if self._judged is None:
            return None
        known, weights = self._judged[0].weights, _weights(model)
        same = known.keys() == weights.keys() and all(
            np.array_equal(known[n], w) for n, w in weights.items()
        )
        return self._judged if same else None

    @property
    def _end(self) -> int:
        """The number of the next model."""
        return self._pairs[-1].end + 1 if self._pairs else len(self._models)

    def _before(self, end: int, rounds: int) -> list[_Pair]:
        """Pairs over as many rounds that ended before those of the pair in question: what drifts
        in these rounds must not raise its own threshold."""
        return [p for p in self._pairs if p.end <= end - rounds and p.rounds == rounds]

    def _compared(self, units: _Units) -> list[_Pair]:
        """The pairs of a new model with those before it."""
        end, have = self._end, self._models
        return [_pair(have[-r], units, end, r) for r in reversed(ROUNDS) if r <= len(have)]

    def _read(self, model: Module) -> _Units:
        return _Units(_preactivations(model, self._records), _weights(model))


@dataclass(frozen=True)
class _Jump:
    """J of one part of a layer over some rounds, its alarm, and the unit."""

    value: float
    threshold: float
    layer: str
    unit: int
    part: Part
    rounds: int


def _jumps(pair: _Pair, known: Sequence[_Pair]) -> list[_Jump]:
    """J of every part and layer."""
    out = []
    above = ABOVE * (1 + 1 / len(known)) if pair.rounds == 1 else ABOVE_SEVERAL
    high = {
        part: max(LEAST, max(p.largest.get(part, 0.0) for p in known) + above) for part in PARTS
    }
    for (part, layer), d in pair.changes.items():
        usual = [p.medians[part, layer] for p in known if (part, layer) in p.medians]
        if usual:  # a layer that never moved before has no usual change
            value, unit = jump(d, min(max(usual), pair.medians[part, layer]))
            out.append(_Jump(value, high[part], layer, unit, part, pair.rounds))
    return out


def _pair(before: _Units, after: _Units, end: int, rounds: int) -> _Pair:
    changes: dict[tuple[Part, str], Floats] = {}
    silent: dict[str, float] = {}
    scale = {}
    for name, old in before.outputs.items():
        new = after.outputs.get(name)
        if new is None or new.shape != old.shape:
            continue
        scale[name] = float(np.median(old.std(axis=0)))
        silent[name] = silenced(old, new)
        if scale[name] > 0:
            changes["output", name] = unit_changes(old, new)
    for name, old in before.weights.items():
        new = after.weights.get(name)
        if new is None or new.shape != old.shape:
            continue
        if old.ndim == 1:
            usual = scale.get(name.rpartition(".")[0], 1.0) or 1.0
            changes["bias", name] = _finite(np.abs(new - old)) / usual
            continue
        parts: tuple[Part, Part] = ("row", "column")
        for part, d, usual in zip(parts, lengths(new - old), before.usual[name], strict=True):
            if usual > 0 and d.any():
                changes[part, name] = _finite(d) / usual
    return _Pair(end, rounds, changes, silent)


def _weights(module: Module) -> dict[str, Floats]:
    """Trained numbers with at least two entries along every counted axis; no lookup tables."""
    from torch import nn

    tables = {f"{name}.weight" for name, m in module.named_modules() if isinstance(m, nn.Embedding)}
    return {
        name: p.detach().float().numpy().copy()
        for name, p in module.named_parameters()
        if p.requires_grad and p.dim() and p.numel() > 1 and name not in tables
    }


def _preactivations(module: Module, x: Any) -> dict[str, Floats]:
    """Outputs (positions n, U) of every linear layer and convolution on records x (n, ...)."""
    import torch

    own = copy.deepcopy(module).eval()
    layers = {n: m for n, m in own.named_modules() if has_units(m) and m.weight.requires_grad}
    try:
        with torch.no_grad():
            calls, _ = watched(own, layers, x)
    except UNREADABLE as error:
        raise fails_on_records(error) from None
    out = {}
    for name, each in calls.items():
        parts = [by_position(layers[name], output, len(x), inputs=False) for _, output in each]
        kept = [p for p in parts if p is not None]
        if kept:
            every = -(-sum(len(p) for p in kept) * len(x) // ROWS)
            out[name] = torch.cat([p[::every].flatten(0, 1) for p in kept]).float().numpy()
    return out
