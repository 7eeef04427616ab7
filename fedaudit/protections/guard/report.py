"""What a guard reports: the checks that could raise an alarm, and what each layer let them say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fedaudit.files import parse_json

Verdict = Literal["planted", "no_evidence", "not_finite", "nothing_to_say"]
Reason = Literal["zero", "small", "narrow", "kind", "check", "level", "table", "unread"]
REASONS: dict[Reason, str] = {
    "zero": "all rows are zero, or all but a few",
    "small": "needs more rows or numbers that are not zero",
    "narrow": "cannot reach its alarm",
    "kind": "no honest run has such a layer",
    "check": "too few honest runs have it",
    "level": "too few honest runs for the level",
    "table": "rows are looked up, or not trained",
    "unread": "no real numbers",
}
"""Why a check has nothing to say on a layer; the last two hold for all that look at rows."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check: its value, the value above which it raises an alarm in this combination, its own
    p-value among honest runs, and the tensor where it is largest."""

    name: str
    value: float
    threshold: float
    p: float
    where: str
    words: str

    @property
    def alarms(self) -> bool:
        return self.value > self.threshold


@dataclass(frozen=True, kw_only=True)
class OutOfReach:
    """A check that could not have raised an alarm on a layer, whatever its units hold: `most` is
    the largest value that the layer's shape allows, `threshold` what an alarm takes (None: none).
    `width` of the rows that were too narrow, and the width `needed`, where width is what lacks."""

    check: str
    reason: Reason
    most: float | None = None
    threshold: float | None = None
    width: int | None = None
    needed: int | None = None

    @property
    def words(self) -> str:
        if self.most is None or self.threshold is None:
            return self.check
        if self.needed is not None:
            return f"{self.check} (rows of {self.width}; {self.needed} needed)"
        return f"{self.check} ({self.most:.3g} of {self.threshold:.3g})"


ANY_SHAPE = ("rewritten", "silent")
"""Checks that find what was planted in a layer of any shape."""


@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """One tensor of two axes or more: the `checks` that could have raised an alarm on it by some
    reading, and those that could not by a reading of its units. A check can stand in both: wide
    columns say nothing of what is planted in narrow rows. `reason`: why its rows were not looked
    at, if they were not."""

    name: str
    shape: tuple[int, ...]
    checks: tuple[str, ...] = ()
    out_of_reach: tuple[OutOfReach, ...] = ()
    reason: Reason | None = None

    @property
    def examined(self) -> bool:
        """Whether every check could have raised an alarm on its units, or one that any shape
        suits."""
        if any(c in ANY_SHAPE for c in self.checks):
            return True
        return bool(self.checks) and not self.out_of_reach and self.reason is None

    @property
    def words(self) -> str:
        """Its name and size, and what was not looked at."""
        why: dict[Reason, list[str]] = {self.reason: []} if self.reason else {}
        for o in self.out_of_reach:
            why.setdefault(o.reason, []).append(o.words)
        parts = [": ".join([REASONS[r], *filter(None, [", ".join(c)])]) for r, c in why.items()]
        return f"{self.name} ({' x '.join(map(str, self.shape))}): {'; '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class GuardReport:
    """What was found in one model. `p_value` of all checks together, among `runs` honest runs; none
    where nothing can be ranked: not finite, or no check can raise an alarm. `checks` that could
    have on some layer; `layers`: which could on each, and which could not."""

    verdict: Verdict
    p_value: float | None
    level: float
    runs: int
    checks: tuple[CheckResult, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def examined(self) -> tuple[LayerResult, ...]:
        """Layers on whose units every check could have raised an alarm."""
        return tuple(x for x in self.layers if x.examined)

    @property
    def unexamined(self) -> tuple[LayerResult, ...]:
        """Layers of which "no evidence" cannot be said: something planted may not show."""
        return tuple(x for x in self.layers if not x.examined)

    @property
    def summary(self) -> str:
        """The verdict, and how much of the model it speaks of."""
        said, unsaid = len(self.examined), len(self.unexamined)
        if self.verdict != "no_evidence":
            return self.verdict.replace("_", " ")
        rest = f"; {unsaid} not examined in full" if unsaid else ""
        return f"no evidence in {said} of {said + unsaid} layers{rest}"

    @property
    def flagged(self) -> bool:
        """Whether a client should not train on this model before somebody has looked at it."""
        return self.verdict in ("planted", "not_finite")

    @property
    def alarms(self) -> tuple[CheckResult, ...]:
        """The checks behind an alarm, the strangest first."""
        found = [c for c in self.checks if c.alarms]
        return tuple(sorted(found, key=lambda c: c.p)) if self.verdict == "planted" else ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> GuardReport:
        """The inverse of `to_json`; ValueError for anything else."""
        raw = parse_json(text)
        try:
            if raw["verdict"] not in get_args(Verdict):
                raise ValueError(f"verdict {raw['verdict']!r}")
            checks = tuple(CheckResult(**c) for c in raw.pop("checks"))
            layers = tuple(_layer(x) for x in raw.pop("layers"))
            return cls(checks=checks, layers=layers, notes=tuple(raw.pop("notes")), **raw)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a guard report: {error}") from None


def _layer(raw: Mapping[str, Any]) -> LayerResult:
    """A layer from JSON."""
    parts = dict(raw)
    return LayerResult(
        shape=tuple(parts.pop("shape")),
        checks=tuple(parts.pop("checks")),
        out_of_reach=tuple(OutOfReach(**o) for o in parts.pop("out_of_reach")),
        **parts,
    )
