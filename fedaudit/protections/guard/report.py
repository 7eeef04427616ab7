"""Guard reports: the checks that could raise an alarm, and what was examined in each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fedaudit.codec import to_json
from fedaudit.files import parse_json
from fedaudit.frames import Row, Tabular
from fedaudit.protections.guard.exposure import ExposedRecord, ExposureReport
from fedaudit.protections.guard.tampering import TamperingReport

GuardVerdict = Literal["planted", "altered", "no_evidence", "not_finite", "nothing_to_say"]
Reason = Literal["zero", "small", "narrow", "kind", "check", "level", "table", "unread"]
REASONS: dict[Reason, str] = {
    "zero": "all rows are zero, or all but a few",
    "small": "too few rows or non-zero numbers",
    "narrow": "cannot reach its threshold",
    "kind": "no honest run has such a layer",
    "check": "too few honest runs have a value",
    "level": "too few honest runs for the level",
    "table": "rows are looked up, or not trained",
    "unread": "no real numbers",
}
"""Why a check cannot raise an alarm on a layer; the last two apply to all checks of rows."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check: its value, its alarm threshold in this combination, its own p-value among honest
    runs, and the tensor where it is largest."""

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
    """A check that cannot raise an alarm on a layer, for any content: `most` is the largest value
    that the layer's shape allows, `threshold` the value of an alarm (None: none exists). `width`
    and `needed`: the row width and the width required, if rows are too narrow."""

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
"""Checks that can raise an alarm on a layer of any shape."""


@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """One tensor with two or more axes: the `checks` that could raise an alarm on some reading of
    it, and those that could not on a reading of its units. A check can be in both: wide columns
    reveal nothing about units planted in narrow rows. `reason`: why its rows were not examined, if
    so."""

    name: str
    shape: tuple[int, ...]
    checks: tuple[str, ...] = ()
    out_of_reach: tuple[OutOfReach, ...] = ()
    reason: Reason | None = None

    @property
    def examined(self) -> bool:
        """Whether every check, or one for any shape, could raise an alarm on its units."""
        if any(c in ANY_SHAPE for c in self.checks):
            return True
        return bool(self.checks) and not self.out_of_reach and self.reason is None

    @property
    def words(self) -> str:
        """Its name and size, and what was not examined."""
        why: dict[Reason, list[str]] = {self.reason: []} if self.reason else {}
        for o in self.out_of_reach:
            why.setdefault(o.reason, []).append(o.words)
        parts = [": ".join([REASONS[r], *filter(None, [", ".join(c)])]) for r, c in why.items()]
        return f"{self.name} ({' x '.join(map(str, self.shape))}): {'; '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class GuardReport(Tabular):
    """The findings in one model. `p_value` of all checks together, among `runs` honest runs; None
    if nothing can be ranked (non-finite values, or no check can raise an alarm). `checks`: those
    that could raise an alarm on some layer; `layers`: per layer, which could and which could
    not. `exposure` and `tampering`: what own records show, None where there are none."""

    verdict: GuardVerdict
    p_value: float | None
    level: float
    runs: int
    checks: tuple[CheckResult, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    notes: tuple[str, ...] = ()
    exposure: ExposureReport | None = None
    tampering: TamperingReport | None = None

    @property
    def examined(self) -> tuple[LayerResult, ...]:
        """Layers on whose units every check could raise an alarm."""
        return tuple(x for x in self.layers if x.examined)

    @property
    def unexamined(self) -> tuple[LayerResult, ...]:
        """Layers for which "no evidence" does not hold: planted units may go unnoticed."""
        return tuple(x for x in self.layers if not x.examined)

    @property
    def summary(self) -> str:
        """The verdict, and how much of the model it covers."""
        said, unsaid = len(self.examined), len(self.unexamined)
        if self.verdict != "no_evidence" or not (said or self.tampering is None):
            return self.verdict.replace("_", " ")
        rest = f"; {unsaid} not examined in full" if unsaid else ""
        return f"no evidence in {said} of {said + unsaid} layers{rest}"

    @property
    def flagged(self) -> bool:
        """Whether a person should inspect this model before a client trains on it."""
        return self.verdict in ("planted", "altered", "not_finite")

    @property
    def alarms(self) -> tuple[CheckResult, ...]:
        """The checks behind an alarm, the most unusual first."""
        found = [c for c in self.checks if c.alarms]
        return tuple(sorted(found, key=lambda c: c.p)) if self.verdict == "planted" else ()

    def rows(self) -> Sequence[Row]:
        """One row per check that could have raised an alarm."""
        return [{"verdict": self.verdict, **asdict(c), "alarms": c.alarms} for c in self.checks]

    def to_json(self) -> str:
        return to_json(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> GuardReport:
        """The inverse of `to_json`; ValueError for anything else."""
        raw = parse_json(text)
        try:
            if raw["verdict"] not in get_args(GuardVerdict):
                raise ValueError(f"verdict {raw['verdict']!r}")
            checks = tuple(CheckResult(**c) for c in raw.pop("checks"))
            layers = tuple(_layer(x) for x in raw.pop("layers"))
            return cls(
                checks=checks,
                layers=layers,
                notes=tuple(raw.pop("notes")),
                exposure=_exposure(raw.pop("exposure", None)),
                tampering=_tampering(raw.pop("tampering", None)),
                **raw,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a guard report: {error}") from None


def _exposure(raw: Mapping[str, Any] | None) -> ExposureReport | None:
    """Exposure from JSON; reports of earlier versions have none."""
    if raw is None:
        return None
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    lists["exposed"] = tuple(
        ExposedRecord(**{**e, "units": tuple(e["units"])}) for e in raw["exposed"]
    )
    return ExposureReport(**lists)


def _tampering(raw: Mapping[str, Any] | None) -> TamperingReport | None:
    return None if raw is None else TamperingReport(**raw)


def _layer(raw: Mapping[str, Any]) -> LayerResult:
    """A layer from JSON."""
    parts = dict(raw)
    return LayerResult(
        shape=tuple(parts.pop("shape")),
        checks=tuple(parts.pop("checks")),
        out_of_reach=tuple(OutOfReach(**o) for o in parts.pop("out_of_reach")),
        **parts,
    )
