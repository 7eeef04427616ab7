"""Audit results as plain data: numbers with intervals, bounds with sources, no verdicts.

An `AuditResult` is the log of one audit. Only `reporting.findings` turns it into words. Facts are
fields (`status`, `need`, `known`; of a finding `rule`, `client`, `measure`, `variant`): no code
parses text to learn what happened, so wording never changes a verdict.

Everything here survives a JSON round trip. JSON has neither NaN nor infinity: a NaN is refused,
an infinity is stored as the string "inf" (an equal text gets a backslash in front).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from operator import index
from typing import Any, Literal, TypeVar, get_args

from fedaudit.codec import decode, encode, to_json
from fedaudit.errors import FedauditError
from fedaudit.files import parse_json
from fedaudit.frames import Row, Tabular
from fedaudit.shapes import AUDIT_RESULT, misfit

Number = float | int
Status = Literal["ok", "nothing_to_say", "blind", "not_applicable", "failed"]
"""Outcome of an audit. "ok": it measured. "nothing_to_say": too little arrived, or it could not
have alarmed. "blind": it guessed, without a truth to score the guess. "not_applicable": the
question does not arise. "failed": it ended in an error."""
Verdict = Literal[
    "disagreement",
    "leak",
    "attributed",
    "failed",
    "nothing_to_say",
    "unscored",
    "no_evidence",
    "not_applicable",
]
BoundKind = Literal["upper", "lower", "reference", "extended"]

T = TypeVar("T")


def _not_nan(name: str, value: float) -> float:
    if isinstance(value, str | bool) or value is None:
        raise TypeError(f"{name} is {value!r}, not a number")
    if math.isnan(value):
        raise ValueError(f"{name} is NaN: state a number or leave it out")
    return float(value)


def _check_counts(arrived: int | None, expected: int | None) -> None:
    if (arrived is None) != (expected is None):
        raise ValueError(f"arrived {arrived} of {expected}: give both or neither")
    if arrived is not None and expected is not None and not 0 <= index(arrived) <= index(expected):
        raise ValueError(f"arrived {arrived} of {expected} answers")


def rests_on(arrived: int | None, expected: int | None) -> str:
    """How many of the expected answers arrived, in words; empty if unknown."""
    if arrived is None or expected is None:
        return ""
    if not expected:
        return "no answer was due"
    return f"{arrived:,} of {expected:,} answer{'' if expected == 1 else 's'}"


def _check_texts(of: Any, *names: str) -> None:
    for name in names:
        value = getattr(of, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not text")


def _check_flags(of: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(of, name), bool):
            raise TypeError(f"{name} is {getattr(of, name)!r}, not true or false")


class OldResult(ValueError):
    """A stored result of an earlier version, without a status."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value with its interval.

    `baseline` is the value without any leak in the same design (chance level); `method` names the
    interval's method; `n` counts the independent units behind it. `one_sided`: only the low end
    is estimated, the high end is that of the scale.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    baseline: float | None = None
    method: str = ""
    one_sided: bool = False

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, _not_nan(name, getattr(self, name)))
        if not self.low <= self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}")
        if self.baseline is not None:
            object.__setattr__(self, "baseline", _not_nan("baseline", self.baseline))
        object.__setattr__(self, "n", index(self.n))
        object.__setattr__(self, "confidence", _not_nan("confidence", self.confidence))
        if self.n < 0 or not 0 < self.confidence <= 1:
            raise ValueError(f"n {self.n} or confidence {self.confidence} is out of range")
        _check_texts(self, "method")
        _check_flags(self, "one_sided")


@dataclass(frozen=True, kw_only=True)
class Underpowered:
    """A number left out because the sample is too small.

    `measure` is the name of the estimate it would have been; empty if it is not part of a result.
    """

    what: str
    have: int
    needed: int
    measure: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "have", index(self.have))
        object.__setattr__(self, "needed", index(self.needed))
        _check_texts(self, "what", "measure")

    def __str__(self) -> str:
        return f"underpowered: {self.what} needs {self.needed}, has {self.have}"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A closed form beside a measurement.

    `kind`: "upper" or "lower" (a theorem), "reference" (published, not a guarantee), "extended" (an
    upper bound for another number of steps or rounds than was measured; not compared with the
    estimate). `of` names the bounded estimate; `source` is an equation tag; `assumes` states its
    conditions. A bound from differential privacy also states its `unit`, its neighbouring
    `relation`, and which releases it `covers`. `suspect`: what a contradiction points to, as a
    sentence.
    """

    value: float
    kind: BoundKind
    of: str
    source: str
    assumes: str = ""
    unit: str = ""
    relation: str = ""
    covers: str = ""
    suspect: str = ""

    @property
    def scope(self) -> str:
        """What the bound covers, its unit and relation, in words; empty if it states none."""
        relation = self.relation.replace("_", " ")
        about = f"{self.unit} level, {relation}" if self.unit else relation
        return "; ".join(text for text in (self.covers, about) if text)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _not_nan("value", self.value))
        if self.kind not in get_args(BoundKind):
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(get_args(BoundKind))}")
        _check_texts(self, "of", "source", "assumes", "unit", "relation", "covers", "suspect")


@dataclass(frozen=True, kw_only=True)
class FamilyTest:
    """One test over several readings of the same games, at one error rate for all of them.

    `adjusted`: name of an estimate -> its p-value, corrected for all readings. `decided`: the
    reading with the smallest one. `level`: largest chance of a false alarm by any reading.
    """

    adjusted: Mapping[str, float]
    decided: str
    level: float
    method: str = ""

    def __post_init__(self) -> None:
        _check_texts(self, "decided", "method")
        p = {name: _not_nan(name, value) for name, value in self.adjusted.items()}
        object.__setattr__(self, "adjusted", p)
        object.__setattr__(self, "level", _not_nan("level", self.level))
        if not all(0 <= value <= 1 for value in p.values()) or not 0 < self.level < 1:
            raise ValueError(f"p-values {p} or level {self.level} are out of range")
        if self.decided not in p:
            raise ValueError(f"decided {self.decided!r} is not among the readings")

    @property
    def p_value(self) -> float:
        return self.adjusted[self.decided]

    @property
    def significant(self) -> bool:
        return self.p_value <= self.level


@dataclass(frozen=True, kw_only=True)
class Need:
    """Why nothing could be measured: `code` is for programs, the rest for people.

    `reporting.rules.NEEDS` lists codes with wording of their own.
    """

    code: str
    what: str
    expected: str = ""
    got: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        _check_texts(self, "code", "what", "expected", "got", "remedy")
        if not self.code:
            raise ValueError("a need must have a code")

    @classmethod
    def of(cls, error: FedauditError) -> Need:
        """The need that an error states."""
        return cls(
            code=error.code,
            what=error.what,
            expected=error.expected or "",
            got=error.got or "",
            remedy=error.remedy or "",
        )

    def __str__(self) -> str:
        parts = (("expected", self.expected), ("got", self.got))
        return self.what + "".join(f"; {label} {text}" for label, text in parts if text)


NO_TRUTH = Need(code="no_truth", what="no truth: the attack guessed, and nothing was scored")
"""The need of every attack without truth."""


@dataclass(frozen=True, kw_only=True)
class AuditResult(Tabular):
    """The log of one audit of one trace from one vantage.

    `status` says whether it measured; if not, `need` says why. `known`: the adversary has the
    answer without an attack, and the headline takes its full value.
    `headline` names the estimate behind the verdict; `greater_is_leak` says which side of its
    baseline is bad. Where several readings were made, `test` decides instead of the headline's
    interval. `detectable` is the smallest headline value the audit would have detected (the
    largest where less is worse); None if unknown, an infinity if it detects no value.
    `per_client` maps a pseudonymous party to its columns. `curves` maps a figure to its columns of
    equal length. The result rests on `arrived` of `expected` answers; `recording` lists damage and
    gaps in the trace they come from.
    """

    audit: str
    question: str
    vantage: str
    status: Status = "ok"
    need: Need | None = None
    known: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    headline: str | None = None
    greater_is_leak: bool = True
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    test: FamilyTest | None = None
    underpowered: tuple[Underpowered, ...] = ()
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    per_client: Mapping[str, Mapping[str, Number | str | None]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, tuple[Number, ...]]] = field(default_factory=dict)
    detectable: float | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    trace_sha256: str = ""
    arrived: int | None = None
    expected: int | None = None
    recording: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_texts(self, "audit", "question", "vantage", "headline", "source", "trace_sha256")
        _check_flags(self, "known", "greater_is_leak")
        if self.status not in get_args(Status):
            raise ValueError(f"status {self.status!r} is not one of {', '.join(get_args(Status))}")
        # free-form parts take their JSON form, so that reading returns what was written
        object.__setattr__(self, "settings", decode(encode(self.settings)))
        object.__setattr__(self, "per_client", decode(encode(self.per_client)))
        curves = decode(encode(self.curves))
        for name, columns in curves.items():
            lengths = {len(column) for column in columns.values()}
            if len(lengths) > 1:
                raise ValueError(f"curve {name!r} has columns of lengths {sorted(lengths)}")
            curves[name] = {c: tuple(column) for c, column in columns.items()}
        object.__setattr__(self, "curves", curves)
        object.__setattr__(self, "estimates", dict(self.estimates))
        object.__setattr__(self, "bounds", dict(self.bounds))
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "underpowered", tuple(self.underpowered))
        object.__setattr__(self, "recording", tuple(self.recording))
        _check_counts(self.arrived, self.expected)
        if self.detectable is not None:
            object.__setattr__(self, "detectable", _not_nan("detectable", self.detectable))
        if self.headline is not None and self.headline not in self.estimates:
            raise ValueError(f"headline {self.headline!r} is not among the estimates")
        self._check_status()
        if self.test is not None and not set(self.test.adjusted) <= set(self.estimates):
            raise ValueError(f"the test reads {sorted(self.test.adjusted)}, not all are estimated")
        for name, bound in self.bounds.items():
            if bound.kind in ("upper", "lower") and bound.of not in self.estimates:
                raise ValueError(f"bound {name!r} bounds {bound.of!r}, which is not estimated")

    def _check_status(self) -> None:
        """Check that status, need and headline agree."""
        if self.need is not None and not isinstance(self.need, Need):
            raise TypeError(f"need is {self.need!r}, not a Need")
        if self.status == "ok" and self.headline is None:
            raise ValueError("a result of status 'ok' needs a headline")
        if (self.status == "ok") != (self.need is None):
            raise ValueError(f"a result of status {self.status!r} with need {self.need!r}")
        if self.headline is not None and self.status not in ("ok", "nothing_to_say"):
            raise ValueError(f"a result of status {self.status!r} measured no {self.headline!r}")
        if self.known and self.status != "ok":
            raise ValueError(f"a result of status {self.status!r} cannot be known outright")

    @property
    def undecided(self) -> bool:
        """Whether the headline is a proven range that contains its baseline.

        No chance is involved, but either side may be true.
        """
        if self.headline is None:
            return False
        e = self.estimates[self.headline]
        baseline = e.baseline if e.baseline is not None else 0.0
        across = e.low <= baseline < e.high if self.greater_is_leak else e.low < baseline <= e.high
        return e.confidence >= 1 and across

    def rows(self) -> Sequence[Row]:
        """One row per estimate; without estimates one row that says why."""
        about: Row = {"audit": self.audit, "vantage": self.vantage, "status": self.status}
        if not self.estimates:
            return [{**about, "need": "" if self.need is None else self.need.code}]
        return [
            {**about, "measure": name, **_numbers(e), "headline": name == self.headline}
            for name, e in self.estimates.items()
        ]

    def to_json(self) -> str:
        """Strict JSON, keys in field order."""
        return to_json(encode(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AuditResult:
        """The exact inverse of `to_json`; raises ValueError for anything else."""
        given = parse_json(text)
        if (wrong := misfit(given, AUDIT_RESULT)) is not None:
            raise ValueError(f"not a result: {wrong.got}, expected {wrong.expected}")
        raw = decode(given)
        if "status" not in raw:
            # older results have none: do not guess it from their wording
            raise OldResult("an earlier version of fedaudit wrote this result: audit again")
        for name, kind in (("estimates", Estimate), ("bounds", Bound)):
            raw[name] = {k: _build(kind, v, f"{name}.{k}") for k, v in raw.get(name, {}).items()}
        raw["underpowered"] = tuple(
            _build(Underpowered, v, "underpowered") for v in raw.get("underpowered", ())
        )
        for name, part in (("need", Need), ("test", FamilyTest)):
            if raw.get(name) is not None:
                raw[name] = _build(part, raw[name], name)
        return _build(cls, raw, "a result")


@dataclass(frozen=True, kw_only=True)
class Finding(Tabular):
    """One line of a report: a verdict, the rule it follows from, and the number behind it.

    `rule` is the id of a rule in `reporting.rules`; `because` applies it to this result. `measure`
    names the estimate behind it, of a single `client` if it concerns one, in the `variant` of a
    study. `known`: no attack was needed. `code` is that of the need if nothing was measured.
    """

    verdict: Verdict
    audit: str
    vantage: str
    question: str
    statement: str
    rule: str
    because: str = ""
    measure: str | None = None
    client: str | None = None
    variant: str = ""
    known: bool = False
    code: str = ""
    estimate: Estimate | None = None
    source: str = ""
    remedy: str = ""
    arrived: int | None = None
    expected: int | None = None

    def __post_init__(self) -> None:
        _check_counts(self.arrived, self.expected)
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict {self.verdict!r} is not one of {get_args(Verdict)}")
        _check_texts(self, "rule", "because", "measure", "client", "variant", "code")
        _check_flags(self, "known")

    @property
    def rests_on(self) -> str:
        """How many of the expected answers arrived, in words; empty if unknown."""
        return rests_on(self.arrived, self.expected)

    @property
    def cited(self) -> str:
        """The rule and its reason."""
        return f"{self.rule}: {self.because}" if self.because else self.rule

    def rows(self) -> Sequence[Row]:
        return [
            {
                "verdict": self.verdict,
                "audit": self.audit,
                "statement": self.statement,
                "measure": self.measure,
                "client": self.client,
                "variant": self.variant,
                **_numbers(self.estimate),
                "vantage": self.vantage,
                "rule": self.rule,
                "remedy": self.remedy,
            }
        ]

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Finding:
        values = decode(dict(raw))
        if values.get("estimate") is not None:
            values["estimate"] = _build(Estimate, values["estimate"], "estimate")
        return _build(cls, values, "a finding")


def _numbers(e: Estimate | None) -> Row:
    """An estimate as columns of a table; empty columns where there is none."""
    if e is None:
        return dict.fromkeys(("value", "low", "high", "chance", "n", "confidence"))
    return {
        "value": e.value,
        "low": e.low,
        "high": e.high,
        "chance": e.baseline,
        "n": e.n,
        "confidence": e.confidence,
    }


def _mapping(where: str, raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where} is {type(raw).__name__}, not an object")
    return raw


def _build(kind: type[T], raw: Any, where: str) -> T:
    """Build a dataclass from a mapping; ValueError names unknown, missing or wrong fields."""
    assert is_dataclass(kind)
    given = _mapping(where, raw)
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"unknown keys in {where}: {', '.join(unknown)}")
    missing = sorted(
        name
        for name, f in known.items()
        if name not in given and f.default is MISSING and f.default_factory is MISSING
    )
    if missing:
        raise ValueError(f"missing keys in {where}: {', '.join(missing)}")
    try:
        return kind(**given)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where}: {error}") from None
