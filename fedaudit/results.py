"""What an audit says, as plain data: numbers with intervals, bounds with sources, no verdicts.

An `AuditResult` is the log of one audit. `report.findings` turns it into words; nothing else does.
Everything here survives a JSON round trip. JSON has no NaN and no infinity: a NaN is refused at
birth, an infinity is written as the string "inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Number = float | int


def _finite_or_inf(name: str, value: float) -> float:
    if math.isnan(value):
        raise ValueError(f"{name} is NaN: a result states a number or is left out")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value with its interval.

    `baseline` is what no leak at all would give in the same design (chance level);
    `method` says how the interval was made; `n` counts the independent units behind it.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    baseline: float | None = None
    method: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, _finite_or_inf(name, getattr(self, name)))
        if not self.low <= self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}")
        if self.baseline is not None:
            object.__setattr__(self, "baseline", _finite_or_inf("baseline", self.baseline))


@dataclass(frozen=True, kw_only=True)
class Underpowered:
    """A number that was not stated because the sample cannot carry it."""

    what: str
    have: int
    needed: int

    def __str__(self) -> str:
        return f"underpowered: {self.what} needs {self.needed}, has {self.have}"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A closed form beside a measurement.

    `kind`: "upper" or "lower" (a theorem), "reference" (published, not a guarantee).
    `of` names the estimate it bounds; `source` is an equation tag; `assumes` says when it holds.
    """

    value: float
    kind: Literal["upper", "lower", "reference"]
    of: str
    source: str
    assumes: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _finite_or_inf("value", self.value))


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The log of one audit of one trace from one vantage.

    `headline` names the estimate the verdict rests on; `greater_is_leak` says which side of its
    baseline is bad. `detectable` is the smallest headline value that would have been seen.
    `not_applicable` is the need that was missing, or None. `per_client` maps a pseudonymous party
    to its columns. `curves` maps a figure to its columns of equal length.
    """

    audit: str
    question: str
    vantage: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    headline: str | None = None
    greater_is_leak: bool = True
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    underpowered: tuple[Underpowered, ...] = ()
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    per_client: Mapping[str, Mapping[str, Number | str | None]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, tuple[Number, ...]]] = field(default_factory=dict)
    detectable: float | None = None
    not_applicable: str | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    trace_sha256: str = ""

    def __post_init__(self) -> None:
        if self.headline is not None and self.headline not in self.estimates:
            raise ValueError(f"headline {self.headline!r} is not among the estimates")
        if self.headline is None and self.not_applicable is None and self.estimates:
            raise ValueError("a result with estimates names its headline")
        for name, bound in self.bounds.items():
            if bound.kind != "reference" and bound.of not in self.estimates:
                raise ValueError(f"bound {name!r} bounds {bound.of!r}, which is not estimated")

    def to_json(self) -> str:
        """Strict JSON, keys in the order of the fields."""
        return json.dumps(_plain(asdict(self)), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AuditResult:
        """The exact inverse of `to_json`."""
        raw = _restore(json.loads(text))
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise ValueError(f"unknown keys in a result: {', '.join(unknown)}")
        raw["estimates"] = {k: Estimate(**v) for k, v in raw.get("estimates", {}).items()}
        raw["bounds"] = {k: Bound(**v) for k, v in raw.get("bounds", {}).items()}
        raw["underpowered"] = tuple(Underpowered(**v) for v in raw.get("underpowered", ()))
        raw["curves"] = {
            k: {c: tuple(v) for c, v in columns.items()}
            for k, columns in raw.get("curves", {}).items()
        }
        raw["notes"] = tuple(raw.get("notes", ()))
        return cls(**raw)


Verdict = Literal["leak", "no_evidence", "not_applicable", "disagreement"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of a report: a verdict, the rule it follows from, and the number behind it."""

    verdict: Verdict
    audit: str
    vantage: str
    question: str
    statement: str
    rule: str
    measure: str | None = None
    estimate: Estimate | None = None
    source: str = ""
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Finding:
        values = _restore(dict(raw))
        if values.get("estimate") is not None:
            values["estimate"] = Estimate(**values["estimate"])
        return cls(**values)


def _plain(value: Any) -> Any:
    """JSON types only: tuples become lists, infinities the strings "inf" and "-inf"."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("a result holds NaN: leave the number out and say why")
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a result holds {type(value).__name__}: convert it to plain numbers or text")


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restore(v) for v in value]
    if value == "inf":
        return math.inf
    if value == "-inf":
        return -math.inf
    return value
