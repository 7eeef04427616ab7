"""Encoders: from features to a mechanism's input, and back.

    Interval     floats within two bounds, for additive noise
    Quantiser    floats to the nearest of k evenly spaced values, for categorical mechanisms
    FloatBits    floats to sign, integer and fraction bits, for BitRand and OME
    OneHot       tokens to one-hot rows
    Patches      images to patch vectors, optionally projected, as in a vision transformer

Bounds and levels are fixed beforehand: bounds from a client's data would reveal the data. Values
outside are refused, or clipped and counted (`outside`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedaudit.arrays import Floats, require_finite
from fedaudit.errors import ConfigError, DataError, OutOfRange, UsageError
from fedaudit.protections.local_dp.bits import MOST_BITS
from fedaudit.protections.local_dp.mechanism import Alphabet, Codes, check_bounds
from fedaudit.settings import AtLeastTwo, Count, Whole, checked

OutsidePolicy = Literal["refuse", "clip"]
"""What happens to values outside the bounds."""


class Encoded(NamedTuple):
    """A mechanism's input, and the number of clipped values."""

    values: npt.NDArray[Any]
    clipped: int


@dataclass(frozen=True, kw_only=True)
@checked("interval")
class Interval:
    """Floats from `low` to `high`, unchanged."""

    low: float = 0.0
    high: float = 1.0
    outside: OutsidePolicy = "refuse"

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high)

    def encode(self, x: npt.ArrayLike) -> Encoded:
        """Floats (...) within the bounds."""
        values = _finite(x)
        beyond = _count_outside(values, (values < self.low) | (values > self.high), self)
        return Encoded(np.clip(values, self.low, self.high) if beyond else values, beyond)

    def decode(self, values: npt.ArrayLike) -> Floats:
        return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
@checked("quantiser")
class Quantiser:
    """`alphabet` evenly spaced values per feature, including both bounds.

    Our definition: value v becomes code round((v - low) / step), step = (high - low) / (k - 1), and
    a code decodes to low + code * step. The error is at most half a step.
    """

    alphabet: Alphabet
    low: float = 0.0
    high: float = 1.0
    outside: OutsidePolicy = "refuse"

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high)

    @property
    def levels(self) -> Floats:
        """The value of every code (k,)."""
        return np.linspace(self.low, self.high, self.alphabet)

    def encode(self, x: npt.ArrayLike) -> Encoded:
        """Floats (...) to codes (...)."""
        values = _finite(x)
        beyond = _count_outside(values, (values < self.low) | (values > self.high), self)
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        return Encoded(np.rint(share * (self.alphabet - 1)).astype(np.int64), beyond)

    def decode(self, codes: npt.ArrayLike) -> Floats:
        return self.levels[np.asarray(codes, dtype=np.int64)]


@dataclass(frozen=True, kw_only=True)
@checked("float_bits")
class FloatBits:
    """`bits` (l) per float: one sign bit, `integer_bits` (m), and l - m - 1 fraction bits.

    [ActiveMembership] Appendix G.4. The magnitude is round(|x| 2^(l-m-1)), most significant bit
    first. The sign is one for negative numbers; it is kept if the magnitude rounds to zero, so that
    every code is reached and decodes to itself. Differs: the released encoder overflows past 2^m,
    and its decoder loses the sign.
    """

    bits: Annotated[int, Ge(2), Le(MOST_BITS)] = 10
    integer_bits: Whole = 5
    outside: OutsidePolicy = "refuse"

    def __post_init__(self) -> None:
        if self.integer_bits >= self.bits:
            raise ConfigError(
                "integer_bits is out of range",
                expected=f"below bits = {self.bits}, which include one sign bit",
                got=str(self.integer_bits),
                remedy=f"integer_bits = {self.bits // 2}",
            )

    @property
    def scale(self) -> float:
        """Codes per unit: 2^(l-m-1)."""
        return float(2.0 ** (self.bits - self.integer_bits - 1))

    @property
    def high(self) -> float:
        """The largest number with a code."""
        return ((1 << (self.bits - 1)) - 1) / self.scale

    @property
    def low(self) -> float:
        return -self.high

    def encode(self, x: npt.ArrayLike) -> Encoded:
        """Floats (...) to codes (...) below 2^l."""
        values = _finite(x)
        top = (1 << (self.bits - 1)) - 1
        magnitude = np.rint(np.abs(values) * self.scale)
        beyond = _count_outside(values, magnitude > top, self)
        word = np.minimum(magnitude, top).astype(np.int64)
        return Encoded(word | (np.signbit(values).astype(np.int64) << (self.bits - 1)), beyond)

    def decode(self, codes: npt.ArrayLike) -> Floats:
        """Codes (...) to floats (...)."""
        word = np.asarray(codes, dtype=np.int64)
        magnitude = (word & ((1 << (self.bits - 1)) - 1)) / self.scale
        return np.asarray(np.where(word >> (self.bits - 1), -magnitude, magnitude))

    def from_bits(self, bits: npt.ArrayLike) -> Floats:
        """Floats (...) from bits (..., l), which may be any numbers: unbiased estimates of
        independent bits give an unbiased estimate of the float."""
        given = np.asarray(bits, dtype=np.float64)
        place = 2.0 ** np.arange(self.bits - 2, -1, -1) / self.scale
        return np.asarray((1.0 - 2.0 * given[..., 0]) * (given[..., 1:] @ place))


@dataclass(frozen=True, kw_only=True)
@checked("one_hot")
class OneHot:
    """Tokens (...) below `vocabulary` to one-hot rows (..., vocabulary), and back."""

    vocabulary: AtLeastTwo

    def encode(self, tokens: npt.ArrayLike) -> npt.NDArray[np.float32]:
        given = np.asarray(tokens)
        if given.dtype.kind not in "iu":
            raise UsageError(
                "tokens must be whole numbers",
                expected=f"whole numbers from 0 to {self.vocabulary - 1}",
                got=f"an array of {given.dtype.name}",
                remedy="pass token numbers, not text or embeddings",
            )
        if given.size and (given.min() < 0 or given.max() >= self.vocabulary):
            raise DataError(
                "a token is not in the vocabulary",
                expected=f"whole numbers from 0 to {self.vocabulary - 1}",
                got=f"{given.min()} to {given.max()}",
                remedy="use the vocabulary of these tokens",
            )
        out = np.zeros((*given.shape, self.vocabulary), dtype=np.float32)
        np.put_along_axis(out, given.astype(np.int64)[..., None], np.float32(1.0), axis=-1)
        return out

    def decode(self, rows: npt.ArrayLike) -> Codes:
        """The largest entry of every row."""
        return np.asarray(rows).argmax(axis=-1)


@dataclass(frozen=True, kw_only=True)
@checked("patches")
class Patches:
    """Square patches of an image as vectors, row by row from the top left.

    (n, c, h, w) to (n, N, c p p) with N = (h / p)(w / p); channels first within a patch, like the
    flattened weights of a convolution.
    """

    size: Count

    def encode(self, images: npt.ArrayLike) -> npt.NDArray[Any]:
        given = np.asarray(images)
        p = self.size
        if given.ndim != 4 or given.shape[2] % p or given.shape[3] % p:
            raise DataError(
                "images cannot be cut into patches of this size",
                expected=f"an array (n, channels, height, width), both sides multiples of {p}",
                got=f"shape {given.shape}",
                remedy="choose a size that divides the sides, or pad the images",
            )
        n, c, h, w = given.shape
        cut = given.reshape(n, c, h // p, p, w // p, p).transpose(0, 2, 4, 1, 3, 5)
        return cut.reshape(n, (h // p) * (w // p), c * p * p)

    def decode(self, vectors: npt.ArrayLike, *, height: int, width: int) -> npt.NDArray[Any]:
        """Images (n, c, height, width) from patch vectors (n, N, c p p)."""
        given = np.asarray(vectors)
        p, rows, columns = self.size, height // self.size, width // self.size
        c, rest = divmod(given.shape[-1], p * p) if given.ndim == 3 else (0, 1)
        if rest or height % p or width % p or given.shape[1] != rows * columns:
            raise UsageError(
                "these vectors are not the patches of an image of this size",
                expected=f"an array (n, {rows * columns}, channels x {p * p})",
                got=f"shape {given.shape}",
                remedy="give the height and width of the images that were encoded",
            )
        cut = given.reshape(len(given), rows, columns, c, p, p).transpose(0, 3, 1, 4, 2, 5)
        return cut.reshape(len(given), c, height, width)

    def embed(
        self,
        images: npt.ArrayLike,
        weight: npt.NDArray[Any],
        position: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Patch embeddings (n, N, d): patches times `weight` (c p p, d), plus `position` (N, d)."""
        vectors = self.encode(images)
        if weight.ndim != 2 or weight.shape[0] != vectors.shape[-1]:
            raise UsageError(
                "the projection does not fit the patches",
                expected=f"weight ({vectors.shape[-1]}, d)",
                got=f"shape {weight.shape}",
                remedy="flatten a convolution's weight to (d, c p p) and transpose it",
            )
        out = vectors @ weight
        if position is None:
            return np.asarray(out)
        if position.shape != out.shape[1:]:
            raise UsageError(
                "the positions do not fit the patches",
                expected=f"position {out.shape[1:]}",
                got=f"shape {position.shape}",
                remedy="leave out the position of the class token",
            )
        return np.asarray(out + position)


# -- shared checks --------------------------------------------------------------------------------


def _finite(x: npt.ArrayLike) -> Floats:
    values = np.asarray(x, dtype=np.float64)
    require_finite(values, "features", DataError, remedy="fill or drop them first")
    return values


def _count_outside(
    values: Floats, outside: npt.NDArray[np.bool_], encoder: Interval | Quantiser | FloatBits
) -> int:
    """Number of values outside; raises DataError if the encoder refuses them."""
    count = int(outside.sum())
    if count and encoder.outside == "refuse":
        raise OutOfRange(
            "features lie outside the encoder's range",
            expected=f"numbers from {encoder.low:g} to {encoder.high:g}",
            got=f"{count} of {values.size} outside, from {values.min():g} to {values.max():g}",
            remedy='widen it (low and high, or integer_bits), or set outside = "clip"',
        )
    return count
