"""Local differential privacy: each client randomises its features once, before training.

Formal guarantees: for any two values of a record's **features**, the exact worst case of the
mechanism, which exceeds the claim for BitRand and OME. Labels and the number of a client's records
are not randomised. Features are drawn once per client and kept: fresh noise in every epoch would
average out and spend epsilon again.

Trust: nobody but the client itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Exposure, Guarantee
from fedaudit.errors import ConfigError, OutOfRange
from fedaudit.hooks import Hook, NoiseSearch
from fedaudit.protections.local_dp import MECHANISMS, Discrete, Mechanism, make
from fedaudit.protections.local_dp.bits import BitCount
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, OutsidePolicy, Quantiser
from fedaudit.protections.local_dp.mechanism import Alphabet
from fedaudit.randomness import Seed
from fedaudit.settings import AtLeastTwo, Count, Fraction, PositiveFinite, Whole, checked

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1 << 22  # numbers of a report in memory

BITWISE = ("bitrand", "ome")
CATEGORICAL = ("grr", "rappor", "dbitflip")
ADDITIVE = ("laplace", "gaussian")

_BOUNDS = {"low": 0.0, "high": 1.0}
_LEVELS = {"alphabet": 4, **_BOUNDS}
_WORDS = {"bits": 10, "integer_bits": 5}
# mechanism -> its settings and their defaults
_OWN: dict[str, dict[str, Any]] = {
    "grr": _LEVELS,
    "rappor": {**_LEVELS, "hashes": 1, "filter_bits": None},
    "dbitflip": {**_LEVELS, "buckets": None},
    "bitrand": _WORDS,
    "ome": {**_WORDS, "alpha": 100.0},
    "laplace": _BOUNDS,
    "gaussian": {**_BOUNDS, "delta": 1e-5},
}


@dataclass
class _DataFacts:
    """Facts of the protected data: features per record, and client -> (clipped, all) values."""

    features: int | None = None
    clipped: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
@checked("protections.local_dp")
class LocalDP(Hook):
    """Randomise every feature at the client, once, before training (local DP).

    `epsilon`: of one feature for grr, rappor, dbitflip, laplace and gaussian (r features claim r
    epsilon); of a record for bitrand and ome, as their authors claim. grr, rappor and dbitflip
    round a feature to one of `alphabet` values from `low` to `high`; bitrand and ome to `bits`
    bits, `integer_bits` of them before the point. `outside`: refuse or clip values beyond that
    range.

    Bounds differ by column: `bounds` maps names of a table's columns to (low, high), and columns
    without an entry keep `low` and `high`; or "table" reads them off all records, which no epsilon
    covers. Either becomes one `low` and `high` per feature, and `bounds_from` says so.

    `decoder`: "likelihood" (the likeliest value), "unbiased" (right on average), "published" (the
    first set bit, or the reported bits unchanged).
    """

    name: ClassVar[str] = "local_dp"
    covers: ClassVar[tuple[str, ...]] = ("parameter", "buffer")
    trust: ClassVar[str] = "nobody but the client itself"
    outside_parties: ClassVar[tuple[str, ...]] = ()
    fixed_domain: ClassVar[bool] = True
    randomises_records: ClassVar[bool] = True
    search: ClassVar[NoiseSearch | None] = NoiseSearch(  # a level is 1 / epsilon per feature
        label="local DP",
        low=1 / 8,
        high=10.0,
        rank=5,
        unit="record",
        tried="always",
        settings={"mechanism": "grr", "outside": "clip"},
    )

    mechanism: Literal["grr", "rappor", "dbitflip", "bitrand", "ome", "laplace", "gaussian"] = "grr"
    epsilon: PositiveFinite = 1.0
    alphabet: Alphabet | None = None
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    bounds: Mapping[str, tuple[float, float]] | Literal["table"] | None = None
    bounds_from: str = ""
    bits: BitCount | None = None
    integer_bits: Whole | None = None
    hashes: Count | None = None
    filter_bits: AtLeastTwo | None = None
    buckets: Count | None = None
    alpha: PositiveFinite | None = None
    delta: Fraction | None = None
    outside: OutsidePolicy = "refuse"
    decoder: Literal["likelihood", "unbiased", "published"] = "likelihood"
    _facts: _DataFacts = field(default_factory=_DataFacts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = _OWN[self.mechanism]
        for name in sorted({key for keys in _OWN.values() for key in keys} - set(own)):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"protections.local_dp.{name} is not a setting of {self.mechanism}",
                    expected=f"settings of {self.mechanism}: {', '.join(sorted(own))}",
                    got=f"{name} = {getattr(self, name)}",
                    remedy=f"remove {name}, or choose another mechanism",
                )
        self._check_bounds()
        self.of(1)  # raises if settings do not fit together, for any number of features
        self.encoder()
        if self.decoder != "likelihood" and (
            self.mechanism in ADDITIVE or self.filter_bits is not None
        ):
            raise ConfigError(
                f"protections.local_dp.decoder has a single value for {self.mechanism}"
                + (" with a Bloom filter" if self.filter_bits is not None else ""),
                expected='"likelihood"',
                got=repr(self.decoder),
                remedy="remove it",
            )

    def _check_bounds(self) -> None:
        """Refuse bounds per column that are no bounds, or that the mechanism does not take."""
        if self.bounds is not None and self.mechanism in BITWISE:
            raise ConfigError(
                f"protections.local_dp.bounds is not a setting of {self.mechanism}",
                expected="bits and integer_bits, one format for all features",
                got=f"bounds for {self.mechanism}",
                remedy="remove bounds, or choose another mechanism",
            )
        pairs = dict(self.bounds) if isinstance(self.bounds, Mapping) else {}
        low, high = (v if isinstance(v, tuple) else () for v in (self.low, self.high))
        if len(low) != len(high):
            raise ConfigError(
                "protections.local_dp.low and high do not fit together",
                expected="one low and one high per feature, or one number each",
                got=f"{len(low) or 'one'} low, {len(high) or 'one'} high",
                remedy="give bounds by column: [protections.local_dp.bounds] age = [0, 120]",
            )
        pairs |= {f"feature {i + 1}": pair for i, pair in enumerate(zip(low, high, strict=True))}
        for name, (a, b) in pairs.items():
            if not (np.isfinite(a) and np.isfinite(b) and a < b):
                raise ConfigError(
                    f"the bounds of {name!r} are no bounds",
                    expected="a finite low below a finite high",
                    got=f"[{a:g}, {b:g}]",
                    remedy=f"protections.local_dp.bounds.{name} = [LOW, HIGH]",
                )

    def for_columns(self, columns: Sequence[str], x: npt.NDArray[Any]) -> LocalDP:
        """The same protection with the bounds of a table's `columns` (r), whose records are `x`."""
        if self.bounds is None:
            return self
        if not columns:
            raise ConfigError(
                "protections.local_dp.bounds needs columns with names",
                expected="a table",
                got="records without columns",
                remedy="give low and high for all features",
            )
        usual = (self._one(self.low, 0.0), self._one(self.high, 1.0))
        # categories and flags are 0 or 1
        pairs = [usual] * len(columns)
        if self.bounds == "table":
            ends = zip(x.min(axis=0).tolist(), x.max(axis=0).tolist(), strict=True)
            pairs = [(a, b) if a < b else (a, a + 1.0) for a, b in ends]
        else:
            for name, pair in self.bounds.items():
                if name not in columns:
                    raise ConfigError.unknown(
                        f"protections.local_dp.bounds names a column that is no feature: {name!r}",
                        name,
                        columns,
                    )
                pairs[list(columns).index(name)] = pair
        return replace(
            self,
            bounds=None,
            low=tuple(a for a, _ in pairs),
            high=tuple(b for _, b in pairs),
            bounds_from="table" if self.bounds == "table" else "settings",
        )

    def as_declared(self, declared: Mapping[str, Any]) -> LocalDP:
        """The same protection with the bounds per feature that a trace declares."""
        low, high = declared.get("low"), declared.get("high")
        if self.bounds is None or not isinstance(low, list | tuple):
            return self
        said = str(declared.get("bounds_from", ""))
        return replace(self, bounds=None, low=tuple(low), high=tuple(high or ()), bounds_from=said)

    @staticmethod
    def _one(value: float | tuple[float, ...] | None, default: float) -> float:
        return default if value is None or isinstance(value, tuple) else value

    def remarks(self, count: int = 0) -> tuple[str, ...]:
        if "table" not in (self.bounds, self.bounds_from):
            return ()
        return (
            "local_dp: the bounds of the columns are the least and largest values of all records, "
            "read before any noise: no epsilon covers them",
        )

    # -- mechanism and encoder -----------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Settings of the mechanism and its encoder, with defaults filled in."""
        given = {k: getattr(self, k) for k in _OWN[self.mechanism]}
        # bounds per feature: each is moved to 0..1 before the mechanism and back afterwards
        both = {
            k: _OWN[self.mechanism][k] if v is None or isinstance(v, tuple) else v
            for k, v in given.items()
        }
        return {k: v for k, v in both.items() if v is not None}

    def of(self, features: int) -> Mechanism:
        """The mechanism for records of `features` features."""
        accepted = {f.name for f in fields(MECHANISMS[self.mechanism])}
        own = {k: v for k, v in self._settings().items() if k in accepted}
        given = {"epsilon": self.epsilon, "features": features, **own}
        return make(self.mechanism, given)

    def encoder(self) -> FloatBits | Quantiser | Interval:
        """The encoder from features to the mechanism's input."""
        kinds: dict[str, type[FloatBits | Quantiser | Interval]] = {
            **dict.fromkeys(BITWISE, FloatBits),
            **dict.fromkeys(CATEGORICAL, Quantiser),
            **dict.fromkeys(ADDITIVE, Interval),
        }
        kind = kinds[self.mechanism]
        accepted = {f.name for f in fields(kind)}
        own = {k: v for k, v in self._settings().items() if k in accepted}
        return kind(**own, outside=self.outside)

    def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
        """Randomise the features (n, ...) of one client; labels stay as they are."""
        import torch

        if not x.is_floating_point():
            raise ConfigError(
                "protections.local_dp randomises features, but these examples have none",
                expected="a task on features or images (floating-point numbers)",
                got=f"examples of {x.dtype}",
                remedy="choose another task, or another protection",
            )
        flat = x.reshape(len(x), -1).numpy() if len(x) else np.zeros((0, 1))
        try:
            values, clipped = self.randomise(flat, seed.generator("local_dp", client))
        except OutOfRange as error:
            if x.ndim != 2:
                raise
            # a table, whose columns are standardised without this protection
            raise error.with_advice(
                "columns are not standardised under local_dp: means over all clients' records "
                "would reveal records"
            ) from None
        if len(x):
            self._facts.features = flat.shape[1]
            self._facts.clipped[client] = clipped, flat.size
        return torch.from_numpy(values).to(x.dtype).reshape(x.shape), y

    def randomise(
        self, x: npt.NDArray[Any], rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.float64], int]:
        """Randomised features (n, r), decoded back to features, and the number of clipped ones."""
        low, span = self._scale(x.shape[1])
        values, clipped = self._randomise((x - low) / span, rng)
        return low + values * span, clipped

    def rounded(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Features (n, r) as the encoder rounds them, before anything is drawn."""
        encoder = self.encoder()
        low, span = self._scale(x.shape[1])
        decoded = encoder.decode(encoder.encode((x - low) / span).values)
        return np.asarray(low + decoded * span, dtype=np.float64)

    @property
    def by_column(self) -> bool:
        """Whether every feature has bounds of its own."""
        return isinstance(self.low, tuple)

    def _scale(self, features: int) -> tuple[Any, Any]:
        """Least value and span of each feature, which the encoder sees as 0 to 1; else 0 and 1."""
        if not (isinstance(self.low, tuple) and isinstance(self.high, tuple)):
            return 0.0, 1.0
        if features != len(self.low):
            raise ConfigError(
                "protections.local_dp has bounds for other features",
                expected=f"bounds of {features} features",
                got=f"bounds of {len(self.low)}",
                remedy="give bounds by column: [protections.local_dp.bounds] age = [0, 120]",
            )
        # as the records are: in float32, 0.1 lies above 0.1
        ends = np.array([self.low, self.high], dtype=np.float32)
        low, high = ends.astype(np.float64)
        return low, high - low

    def _randomise(
        self, x: npt.NDArray[Any], rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.float64], int]:
        encoder = self.encoder()
        mechanism = self.of(x.shape[1])
        encoded = encoder.encode(x)
        out = np.empty(x.shape)
        if not isinstance(encoder, Interval) and self.decoder == "likelihood":
            # draw decoded values directly: a unary report would need a bit for every value
            step = max(1, _BLOCK // (x.shape[1] * (self.filter_bits or 1)))
            for start in range(0, len(x), step):
                rows = slice(start, start + step)
                discrete: Discrete = mechanism  # type: ignore[assignment]
                out[rows] = encoder.decode(discrete.draw_decoded(encoded.values[rows], rng))
            return out, encoded.clipped
        # numbers per feature in memory: bits of a unary report or of a code
        wide = max(int(self._settings().get(k, 1)) for k in ("alphabet", "filter_bits", "bits"))
        step = max(1, _BLOCK // (x.shape[1] * wide))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            report = mechanism.perturb(encoded.values[rows], rng)
            out[rows] = self._decode(mechanism, encoder, report, rng)
        return out, encoded.clipped

    def _decode(
        self,
        mechanism: Mechanism,
        encoder: FloatBits | Quantiser | Interval,
        report: npt.NDArray[Any],
        rng: np.random.Generator,
    ) -> npt.NDArray[np.float64]:
        if isinstance(encoder, Interval):
            return encoder.decode(report)
        if self.decoder == "unbiased":
            estimate = mechanism.unbiased(report)
            if isinstance(encoder, FloatBits):
                return encoder.from_bits(estimate)
            return np.asarray(estimate @ encoder.levels)
        other: Discrete = mechanism  # type: ignore[assignment]
        return encoder.decode(other.decode(report, rng, decoder="published"))

    # -- guarantee -----------------------------------------------------------------------------

    def declare(self) -> dict[str, Any]:
        """The mechanism and, once the number of features is known, its claim and exact epsilon."""
        own = {"mechanism": self.mechanism, "epsilon": self.epsilon, **self._settings()}
        if isinstance(self.low, tuple):
            own |= {"low": self.low, "high": self.high, "bounds_from": self.bounds_from}
        out = {**super().declare(), **own}
        if self._facts.features is not None:
            r = self._facts.features
            mechanism = self.of(r)
            out |= {
                "features": r,
                "claimed_epsilon": float(mechanism.claimed_epsilon),
                "exact_epsilon": mechanism.worst_case_epsilon(),
                "note": self.statement(r),
            }
        return out

    def statement(self, features: int) -> str:
        """Claimed and exact epsilon in one sentence."""
        mechanism = self.of(features)
        claimed, exact = float(mechanism.claimed_epsilon), mechanism.worst_case_epsilon()
        at = f" at delta {mechanism.delta:g}" if mechanism.delta else ""
        text = (
            f"{self.mechanism} on {features} features claims epsilon {claimed:,.4g} per record"
            f"{at}; exact worst case {exact:,.4g}"
        )
        if exact > claimed * (1 + 1e-9):
            text += ": the claim does not hold"
        return text + "; labels are not randomised"

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee | None:
        """The exact worst case for the features of a record; None before any data were seen.

        Features are drawn once, so the number of rounds and steps does not matter.
        """
        r = self._facts.features
        if r is None:
            return None
        mechanism = self.of(r)
        text = (
            f"one draw of {r} features by {self.mechanism}, which claims "
            f"{float(mechanism.claimed_epsilon):,.4g}; not labels"
        )
        if self.outside == "clip":
            clipped = sum(c for c, _ in self._facts.clipped.values())
            total = sum(t for _, t in self._facts.clipped.values())
            text += f"; {clipped:,} of {total:,} values of all clients were clipped"
        return Guarantee(
            epsilon=mechanism.worst_case_epsilon(),
            delta=mechanism.delta,
            unit="record",
            relation="replace",
            trust=self.trust,
            covers=text,
            by="closed form",
        )
