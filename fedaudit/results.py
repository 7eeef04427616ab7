"""What an audit says, as plain data: numbers with intervals, bounds with sources, no verdicts.

An `AuditResult` is the log of one audit. `report.findings` turns it into words; nothing else does.
Facts are fields (`status`, `need`, `known`; of a finding `rule`, `client`, `measure`, `variant`):
no text is read again to find out what happened, so wording can change no verdict.

Everything here survives a JSON round trip. JSON has no NaN and no infinity: a NaN is refused at
birth, an infinity is written as the string "inf" (a text that reads so gets a backslash before it).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from operator import index
from typing import Any, Literal, TypeVar, get_args

from fedaudit.errors import FedauditError
from fedaudit.files import parse_json
from fedaudit.frames import Row, Tabular
from fedaudit.shapes import AUDIT_RESULT, misfit

Number = float | int
Status = Literal["ok", "nothing_to_say", "blind", "not_applicable", "failed"]
"""What became of an audit. "ok": it measured. "nothing_to_say": too little arrived, or it could not
have alarmed. "blind": it guessed, and there is no truth to score the guess with. "not_applicable":
the question does not arise. "failed": it ended in an error."""
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
BoundKind = Literal["upper", "lower", "reference"]

T = TypeVar("T")


def _finite_or_inf(name: str, value: float) -> float:
    if isinstance(value, str | bool) or value is None:
        raise TypeError(f"{name} is {value!r}, not a number")
    if math.isnan(value):
        raise ValueError(f"{name} is NaN: a result states a number or is left out")
    return float(value)


def _check_counts(arrived: int | None, expected: int | None) -> None:
    if (arrived is None) != (expected is None):
        raise ValueError(f"arrived {arrived} of {expected}: both are known, or none")
    if arrived is not None and expected is not None and not 0 <= index(arrived) <= index(expected):
        raise ValueError(f"arrived {arrived} of {expected} answers")


def rests_on(arrived: int | None, expected: int | None) -> str:
    """How many of how many answers arrived, in words; empty where nobody counted."""
    if arrived is None or expected is None:
        return ""
    if not expected:
        return "no answer was due"
    return f"{arrived:,} of {expected:,} answer{'' if expected == 1 else 's'}"


def _texts(of: Any, *names: str) -> None:
    for name in names:
        value = getattr(of, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not text")


def _flags(of: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(of, name), bool):
            raise TypeError(f"{name} is {getattr(of, name)!r}, not true or false")


class OldResult(ValueError):
    """A stored result of an earlier version, which states no status."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value with its interval.

    `baseline` is what no leak at all would give in the same design (chance level);
    `method` says how the interval was made; `n` counts the independent units behind it.
    `one_sided`: only the low end is a statement, the high end is that of the scale.
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
            object.__setattr__(self, name, _finite_or_inf(name, getattr(self, name)))
        if not self.low <= self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}")
        if self.baseline is not None:
            object.__setattr__(self, "baseline", _finite_or_inf("baseline", self.baseline))
        object.__setattr__(self, "n", index(self.n))
        object.__setattr__(self, "confidence", _finite_or_inf("confidence", self.confidence))
        if self.n < 0 or not 0 < self.confidence <= 1:
            raise ValueError(f"n {self.n} from 0, confidence {self.confidence} above 0 up to 1")
        _texts(self, "method")
        _flags(self, "one_sided")


@dataclass(frozen=True, kw_only=True)
class Underpowered:
    """A number that was not stated because the sample cannot carry it.

    `measure` is the name that the estimate would have had, or empty where it is none of a result.
    """

    what: str
    have: int
    needed: int
    measure: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "have", index(self.have))
        object.__setattr__(self, "needed", index(self.needed))
        _texts(self, "what", "measure")

    def __str__(self) -> str:
        return f"underpowered: {self.what} needs {self.needed}, has {self.have}"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A closed form beside a measurement.

    `kind`: "upper" or "lower" (a theorem), "reference" (published, not a guarantee).
    `of` names the estimate it bounds; `source` is an equation tag; `assumes` says when it holds.
    """

    value: float
    kind: BoundKind
    of: str
    source: str
    assumes: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _finite_or_inf("value", self.value))
        if self.kind not in get_args(BoundKind):
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(get_args(BoundKind))}")
        _texts(self, "of", "source", "assumes")


@dataclass(frozen=True, kw_only=True)
class Need:
    """What is missing where nothing could be measured: `code` is the fact, the rest is for people.

    Codes are listed in `report.rules.NEEDS` where they have words of their own.
    """

    code: str
    what: str
    expected: str = ""
    got: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        _texts(self, "code", "what", "expected", "got", "remedy")
        if not self.code:
            raise ValueError("a need has a code: words alone cannot be told apart")

    @classmethod
    def of(cls, error: FedauditError) -> Need:
        """What an error says, under its code."""
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
"""Of every attack that ran blind."""


@dataclass(frozen=True, kw_only=True)
class AuditResult(Tabular):
    """The log of one audit of one trace from one vantage.

    `status` says whether it measured, and `need` what was missing where it did not. `known`: the
    adversary has what is asked about without an attack, and the headline states that at its full
    value.
    `headline` names the estimate the verdict rests on; `greater_is_leak` says which side of its
    baseline is bad. `detectable` is the smallest headline value that would have been seen (the
    largest where less is worse); None where nobody can say, an infinity where no value would.
    `per_client` maps a pseudonymous party to its columns. `curves` maps a figure to its columns of
    equal length. The result rests on `arrived` of `expected` answers; `recording` lists what is
    torn in the trace that they were read from, or missing in it.
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
        _texts(self, "audit", "question", "vantage", "headline", "source", "trace_sha256")
        _flags(self, "known", "greater_is_leak")
        if self.status not in get_args(Status):
            raise ValueError(f"status {self.status!r} is not one of {', '.join(get_args(Status))}")
        # free-form parts take the form they have in JSON: what is read equals what was written
        object.__setattr__(self, "settings", _restore(_plain(self.settings)))
        object.__setattr__(self, "per_client", _restore(_plain(self.per_client)))
        curves = _restore(_plain(self.curves))
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
            object.__setattr__(self, "detectable", _finite_or_inf("detectable", self.detectable))
        if self.headline is not None and self.headline not in self.estimates:
            raise ValueError(f"headline {self.headline!r} is not among the estimates")
        self._check_status()
        for name, bound in self.bounds.items():
            if bound.kind != "reference" and bound.of not in self.estimates:
                raise ValueError(f"bound {name!r} bounds {bound.of!r}, which is not estimated")

    def _check_status(self) -> None:
        """Status, need and headline go together: what measured nothing says what it lacks."""
        if self.need is not None and not isinstance(self.need, Need):
            raise TypeError(f"need is {self.need!r}, not a Need")
        if self.status == "ok" and self.headline is None:
            raise ValueError("a result of status 'ok' names its headline")
        if (self.status == "ok") != (self.need is None):
            raise ValueError(f"a result of status {self.status!r} with need {self.need!r}")
        if self.headline is not None and self.status not in ("ok", "nothing_to_say"):
            raise ValueError(f"a result of status {self.status!r} measured no {self.headline!r}")
        if self.known and self.status != "ok":
            raise ValueError(f"what is known outright is a result, not {self.status!r}")

    @property
    def undecided(self) -> bool:
        """Whether the headline is a proven range, no point, with its baseline inside: no chance is
        in it, and yet either side may be true."""
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
        """Strict JSON, keys in the order of the fields."""
        return json.dumps(_plain(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AuditResult:
        """The exact inverse of `to_json`; ValueError for anything that is not a result."""
        given = parse_json(text)
        if (wrong := misfit(given, AUDIT_RESULT)) is not None:
            raise ValueError(f"not a result: {wrong.got}, expected {wrong.expected}")
        raw = _restore(given)
        if "status" not in raw:
            # written before results had one: what it meant is not guessed from its words
            raise OldResult("an earlier version of fedaudit stored this result: audit again")
        for name, kind in (("estimates", Estimate), ("bounds", Bound)):
            raw[name] = {k: _build(kind, v, f"{name}.{k}") for k, v in raw.get(name, {}).items()}
        raw["underpowered"] = tuple(
            _build(Underpowered, v, "underpowered") for v in raw.get("underpowered", ())
        )
        if raw.get("need") is not None:
            raw["need"] = _build(Need, raw["need"], "need")
        return _build(cls, raw, "a result")


@dataclass(frozen=True, kw_only=True)
class Finding(Tabular):
    """One line of a report: a verdict, the rule it follows from, and the number behind it.

    `rule` is the id of a rule in `report.rules` and `because` says it of this result. `measure` is
    the estimate that it rests on, of a single `client` where it is about one, in the `variant` of a
    study that was audited. `known`: no attack was needed. `code` of the need where nothing was
    measured.
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
        _texts(self, "rule", "because", "measure", "client", "variant", "code")
        _flags(self, "known")

    @property
    def rests_on(self) -> str:
        """How many of the answers that were due arrived; empty where nobody counted."""
        return rests_on(self.arrived, self.expected)

    @property
    def cited(self) -> str:
        """The rule and what it says of this result."""
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
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Finding:
        values = _restore(dict(raw))
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
    """A dataclass from its fields by name; ValueError says what is unknown, missing or wrong."""
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


#: texts that would read as an infinity, or as one that was set apart already
_LIKE_INFINITY = re.compile(r"\\*-?inf\Z")


def _plain(value: Any) -> Any:
    """JSON types only: tuples become lists, infinities the strings "inf" and "-inf"."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a result has the key {key!r}: use text, JSON has no other keys")
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str):
        return "\\" + value if _LIKE_INFINITY.match(value) else value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("a result holds NaN: leave the number out and say why")
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return float(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise ValueError("a result holds a whole number beyond 64 bits: no reader takes it")
        return value
    raise TypeError(f"a result holds {type(value).__name__}: convert it to plain numbers or text")


def _restore(value: Any) -> Any:
    """The inverse of `_plain`, up to the types that JSON has."""
    if isinstance(value, dict):
        return {k: _restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restore(v) for v in value]
    if value == "inf":
        return math.inf
    if value == "-inf":
        return -math.inf
    if isinstance(value, str) and _LIKE_INFINITY.match(value):
        return value[1:]
    return value
