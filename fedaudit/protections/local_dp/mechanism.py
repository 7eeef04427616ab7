"""What every local mechanism can do, and the checks that they share.

A record is a row of r features. Discrete mechanisms take codes: whole numbers (n, r), each below
`alphabet`; how a float becomes a code is the encoder's business (`encoders.py`). What a mechanism
gives out is a report (n, r) or (n, r, m), and features are always randomised independently.

A budget is stated per **record**: r features at epsilon each claim r epsilon.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError, DataError, UsageError, nearest

Codes = npt.NDArray[np.int64]
Report = npt.NDArray[Any]
Decoder = Literal["likelihood", "published"]

LARGEST_TABLE = 1 << 22
"""Entries of an exact table of transition probabilities; beyond that it is not written out."""


class Mechanism(Protocol):
    """A randomiser of records, with its exact law.

    `claimed_epsilon` is what its authors claim, `worst_case_epsilon` what is true, both per record
    and at `delta` (0: pure). `worst_pair` are two records that attain it, each (r,).
    """

    name: ClassVar[str]

    @property
    def features(self) -> int: ...

    @property
    def delta(self) -> float: ...

    @property
    def claimed_epsilon(self) -> float: ...

    def worst_case_epsilon(self) -> float: ...

    def worst_pair(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Report:
        """Reports of records (n, r)."""
        ...

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        """ln Pr[report | x] (n,), or the log density; `x` is (n, r), or (r,) for all reports."""
        ...

    def unbiased(self, report: Report) -> Floats:
        """Numbers whose expectation is the input as the mechanism sees it: one-hot rows (n, r, k),
        filter bits (n, r, m), bits (n, r, l) or features (n, r)."""
        ...


class Discrete(Mechanism, Protocol):
    """A mechanism on codes, whose law can be written out for small alphabets."""

    @property
    def alphabet(self) -> int: ...

    def draw(self, codes: Codes, rng: np.random.Generator) -> Report:
        """An independent report for every entry of `codes`, which may have any shape and is not
        checked: for callers that draw features one at a time."""
        ...

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        """What `decode` makes of `draw`, in one draw per entry: the same law, other numbers."""
        ...

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """Codes (n, r) from reports: the likeliest, ties by lot; or as it was published."""
        ...

    def outputs(self) -> Report:
        """Every report of one feature, in the order of the columns of `transition`."""
        ...

    def transition(self) -> Floats:
        """Pr[output | code] of one feature (alphabet, outputs): every row sums to one."""
        ...

    def decoded_transition(self, *, decoder: Decoder = "likelihood") -> Floats:
        """Pr[decoded code | code] of one feature (alphabet, alphabet)."""
        ...


# -- settings -------------------------------------------------------------------------------------


def check_epsilon(epsilon: float) -> None:
    given: object = epsilon  # from a config or a caller: it may be anything
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not number or not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError(
            "epsilon is out of range",
            expected="a finite number above 0",
            got=repr(epsilon),
            remedy="epsilon = 1.0; without noise, leave the protection out",
        )


def check_count(name: str, value: int, least: int, most: int | None = None) -> None:
    """Refuses a count that is not a whole number from `least` to `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        up_to = "" if most is None else f" and at most {most}"
        raise ConfigError(
            f"{name} is out of range",
            expected=f"a whole number, at least {least}{up_to}",
            got=repr(value),
            remedy=f"{name} = {least}",
        )


def check_alphabet(alphabet: int) -> None:
    if alphabet == 1:
        raise ConfigError(
            "an alphabet of one value has nothing to hide",
            expected="alphabet >= 2",
            got="1",
            remedy="alphabet = 2, or leave the feature out",
        )
    check_count("alphabet", alphabet, 2)


def check_decoder(decoder: str) -> None:
    valid = ("likelihood", "published")
    if decoder not in valid:
        raise UsageError(
            f"unknown decoder {decoder!r}",
            expected="the name of a decoder",
            got=repr(decoder),
            remedy=nearest(decoder, valid),
        )


# -- arrays ---------------------------------------------------------------------------------------


def check_codes(x: npt.ArrayLike, alphabet: int, features: int) -> Codes:
    """`x` as codes (n, features) below `alphabet`."""
    codes = np.asarray(x)
    if codes.dtype.kind not in "iu":
        raise UsageError(
            "this mechanism takes codes, not numbers",
            expected=f"whole numbers from 0 to {alphabet - 1}",
            got=f"an array of {codes.dtype.name}",
            remedy="encode features first, see fedaudit.protections.local_dp.encoders",
        )
    check_shape(codes, features)
    if codes.size and (codes.min() < 0 or codes.max() >= alphabet):
        raise DataError(
            "a code is not in the alphabet",
            expected=f"whole numbers from 0 to {alphabet - 1}",
            got=f"{codes.min()} to {codes.max()}",
            remedy="encode with the same alphabet as the mechanism",
        )
    return codes.astype(np.int64, copy=False)


def check_shape(x: npt.NDArray[Any], features: int) -> None:
    if x.ndim != 2 or x.shape[1] != features:
        raise UsageError(
            "records do not fit the mechanism",
            expected=f"an array (n, {features})",
            got=f"shape {x.shape}",
            remedy="flatten a record into its features, and set `features` to their number",
        )


def refuse_large_table(inputs: int, outputs: int) -> None:
    if inputs * outputs > LARGEST_TABLE:
        raise UsageError(
            "the exact table of this mechanism is too large to write out",
            expected=f"at most {LARGEST_TABLE:,} entries",
            got=f"{inputs:,} inputs x {outputs:,} outputs",
            remedy="use log_likelihood, which needs no table, or a smaller alphabet",
        )


def all_bits(count: int) -> npt.NDArray[np.uint8]:
    """Every row of `count` bits (2^count, count), most significant first, in counting order."""
    shifts = np.arange(count - 1, -1, -1)
    return ((np.arange(1 << count)[:, None] >> shifts) & 1).astype(np.uint8)


def log_sigmoid(logit: npt.ArrayLike) -> Floats:
    """ln(1 / (1 + e^-logit)), without overflow at any size."""
    return np.asarray(-np.logaddexp(0.0, -np.asarray(logit, dtype=np.float64)))


def sigmoid(logit: npt.ArrayLike) -> Floats:
    return np.asarray(np.exp(log_sigmoid(logit)))


def symmetric_channel(alphabet: int, hit: float, miss: float) -> Floats:
    """A table (k, k): a code is kept with probability `hit`, becomes any one other with `miss`."""
    table = np.full((alphabet, alphabet), miss)
    np.fill_diagonal(table, hit)
    return table


def draw_symmetric(codes: Codes, alphabet: int, hit: float, rng: np.random.Generator) -> Codes:
    """Codes kept with probability `hit`, otherwise any other one: a single draw per entry."""
    u = rng.random(codes.shape)
    if hit >= 1.0:
        return codes.copy()
    # given that a code is not kept, (u - hit) / (1 - hit) is uniform again and picks the other one
    other = ((u - hit) * ((alphabet - 1) / (1.0 - hit))).astype(np.int64)
    np.minimum(other, alphabet - 2, out=other)
    other += other >= codes
    return np.where(u < hit, codes, other)
