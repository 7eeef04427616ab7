"""Tampering: did a unit change in a way that the client's own history of models does not explain?

Question  Was this model altered between rounds?
Vantage   The client: the received model, models of earlier rounds, its own records, the module.
Ours      J and D below, and the threshold from the client's own history.

Training moves all units of a layer by similar amounts; a plant moves one or a few by far more.
J compares the largest change of a unit with the median one of its layer, in this round or in any
earlier one: where many rows are rewritten, the median of this round is that of the plant. D counts
units that fall silent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.protections.guard.local_steps import by_position, readable, watched
from fedaudit.protections.guard.own_data import UNREADABLE, checked_records, fails_on_records

if TYPE_CHECKING:
    from torch.nn import Module

Verdict = Literal["altered", "no_evidence", "nothing_to_say"]
HISTORY = 2
"""Least number of earlier models: one pair of them shows how far an honest round moves units."""
SMALL = 0.01
"""Added to changes: units that hardly move are all alike."""
ABOVE, LEAST = math.log(3), math.log(8)
"""An alarm of J lies so far above the largest of the own history, and at no less than this."""
FALLEN = 1 / 3
"""A unit fell silent if the number of records that it responds to is down to this share."""
SILENT_ABOVE, SILENT_LEAST = 0.2, 0.3
"""The same two numbers for D, a share of the units of a layer."""
OVERFLOW = 1e30
"""Counts as the change of a unit whose output is not finite."""
FLAT = 0.05
"""A unit's standard deviation counts as at least this share of its layer's median."""

# -- arrays in, arrays out -------------------------------------------------------------------------


def unit_changes(before: Floats, after: Floats) -> Floats:
    """d (U,): root mean square change of pre-activations (m, U), in standard deviations before."""
    spread = before.std(axis=0)
    usual = float(np.median(spread))
    if usual == 0:
        return np.zeros(len(spread))
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.sqrt(np.square(after - before).mean(axis=0))
    change = np.where(np.isfinite(change), change, OVERFLOW)  # outputs beyond any number
    return np.asarray(change / np.maximum(spread, FLAT * usual))


def jump(d: Floats, usual: float = math.inf) -> tuple[float, int]:
    """J = max_u log((d_u + .01) / (median d + .01)) and its unit; `usual`: the largest median of
    earlier rounds, which counts if it is smaller."""
    at = int(d.argmax())
    return math.log((float(d[at]) + SMALL) / (min(float(np.median(d)), usual) + SMALL)), at


def silenced(before: Floats, after: Floats) -> float:
    """D: the share of units (columns) whose positive pre-activations fell to a third or less."""
    was, is_now = (before > 0).sum(axis=0), (after > 0).sum(axis=0)
    return float(((was > 0) & (is_now <= FALLEN * was)).mean())


# -- report ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TamperingReport:
    """J and D of the newest model, their thresholds from earlier ones, and the unit of J.

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
            why = (
                f"unit {self.unit} of {self.layer} changed {math.exp(self.jump):.0f} times as far "
                f"as its layer, J = {self.jump:.2f}, alarm above {self.jump_threshold:.2f}"
            )
        else:
            why = (
                f"{self.silenced:.0%} of the units of {self.silenced_layer} fell silent on your "
                f"records, alarm above {self.silenced_threshold:.0%}"
            )
        return f"This model was altered: training does not explain it ({why})."


def tampering(models: Sequence[Module], x: Any, y: Any) -> TamperingReport:
    """Compare the newest of some models with the earlier ones, on own records."""
    if len(models) <= HISTORY:
        return TamperingReport(verdict="nothing_to_say", pairs=max(len(models) - 2, 0))
    records, _ = checked_records(x, y)
    seen = [_preactivations(m, records) for m in models]
    # a model that diverged shows nothing of how honest rounds move units
    seen = [s for s in seen[:-1] if all(np.isfinite(z).all() for z in s.values())] + seen[-1:]
    if len(seen) <= HISTORY:
        return TamperingReport(verdict="nothing_to_say", pairs=0)
    found = [_compare(a, b) for a, b in pairwise(seen)]
    if not all(found):
        return TamperingReport(verdict="nothing_to_say", pairs=0)
    *history, newest = found
    usual = {n: max(float(np.median(f[n][0])) for f in history if n in f) for n in history[0]}
    past = max(jump(d)[0] for f in history for d, _ in f.values())
    quiet = max(share for f in history for _, share in f.values())
    now = [(*jump(d, usual.get(n, math.inf)), n) for n, (d, _) in newest.items()]
    value, unit, layer = max(now)
    silent, silent_layer = max((share, n) for n, (_, share) in newest.items())
    high = max(LEAST, past + ABOVE)
    most = max(SILENT_LEAST, quiet + SILENT_ABOVE)
    altered = value > high or silent > most
    return TamperingReport(
        verdict="altered" if altered else "no_evidence",
        pairs=len(found) - 1,
        jump=value,
        jump_threshold=high,
        layer=layer,
        unit=unit,
        silenced=silent,
        silenced_threshold=most,
        silenced_layer=silent_layer,
    )


def _compare(
    before: Mapping[str, Floats], after: Mapping[str, Floats]
) -> dict[str, tuple[Floats, float]]:
    """Layer -> changes of its units, and the share that fell silent."""
    return {
        name: (unit_changes(old, after[name]), silenced(old, after[name]))
        for name, old in before.items()
        if name in after and old.shape == after[name].shape
    }


def _preactivations(module: Module, x: Any) -> dict[str, Floats]:
    """Outputs (positions n, U) of every readable layer on records x (n, ...)."""
    import torch

    own = copy.deepcopy(module).eval()
    layers = readable(own)
    try:
        with torch.no_grad():
            calls, _ = watched(own, layers, x)
    except UNREADABLE as error:
        raise fails_on_records(error) from None
    out = {}
    for name, each in calls.items():
        parts = [by_position(layers[name], output, len(x), inputs=False) for _, output in each]
        kept = [p.flatten(0, 1).double() for p in parts if p is not None]
        if kept:
            out[name] = torch.cat(kept).numpy()
    return out
