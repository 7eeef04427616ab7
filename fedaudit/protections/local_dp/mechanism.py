"""The interface of local mechanisms, and the checks that they share.

A record is a row of r features. Discrete mechanisms take codes: whole numbers (n, r) below
`alphabet`; encoders turn floats into codes (`encoders.py`). A mechanism returns a report (n, r) or
(n, r, m). It randomises features independently.

Budgets are per **record**: r features at epsilon each claim r epsilon.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.settings import require

Codes = npt.NDArray[np.int64]
Report = npt.NDArray[Any]
Decoder = Literal["likelihood", "published"]

LARGEST_TABLE = 1 << 22
"""Most entries of an exact table of transition probabilities."""

Alphabet = Annotated[int, Ge(2), "a single value has nothing to hide"]
"""Number of values of a feature."""


class Mechanism(Protocol):
    """A randomiser of records, with its exact law.

    `claimed_epsilon`: the claim of its authors. `worst_case_epsilon`: the exact value. Both are per
    record and at `delta` (0: pure). `worst_pair`: two records (r,) that attain the worst case.
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
        """Unbiased estimates of the mechanism's input: one-hot rows (n, r, k), filter bits
        (n, r, m), bits (n, r, l) or features (n, r)."""
        ...


class Discrete(Mechanism, Protocol):
    """A mechanism on codes. For small alphabets, its law is a table."""

    @property
    def alphabet(self) -> int: ...

    def draw(self, codes: Codes, rng: np.random.Generator) -> Report:
        """An independent report for every entry of `codes`, of any shape and unchecked: for
        callers that draw features one at a time."""
        ...

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        """Decoded reports from one draw per entry: the law of `decode(draw(codes))`, but other
        random numbers."""
        ...

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """Codes (n, r) from reports: the likeliest, ties at random; or by the published rule."""
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


def check_decoder(decoder: str) -> None:
    require(Decoder, decoder=decoder)


def check_bounds(low: float, high: float) -> None:
    """Raise ConfigError unless low < high, both finite."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            "the bounds of a feature are out of range",
            expected="finite numbers, low < high",
            got=f"low = {low!r}, high = {high!r}",
            remedy="low = 0.0, high = 1.0",
        )


# -- arrays ---------------------------------------------------------------------------------------


def check_codes(x: npt.ArrayLike, alphabet: int, features: int) -> Codes:
    """`x` as codes (n, features) below `alphabet`."""
    codes = np.asarray(x)
    if codes.dtype.kind not in "iu":
        raise UsageError(
            "this mechanism takes codes, not measurements",
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
    """All words of `count` bits (2^count, count), in counting order, most significant bit first."""
    shifts = np.arange(count - 1, -1, -1)
    return ((np.arange(1 << count)[:, None] >> shifts) & 1).astype(np.uint8)


def log_sigmoid(logit: npt.ArrayLike) -> Floats:
    """ln(1 / (1 + e^-logit)) without overflow."""
    return np.asarray(-np.logaddexp(0.0, -np.asarray(logit, dtype=np.float64)))


def sigmoid(logit: npt.ArrayLike) -> Floats:
    return np.asarray(np.exp(log_sigmoid(logit)))


def symmetric_channel(alphabet: int, hit: float, miss: float) -> Floats:
    """A table (k, k): `hit` is the probability of keeping a code, `miss` of each other code."""
    table = np.full((alphabet, alphabet), miss)
    np.fill_diagonal(table, hit)
    return table


def draw_symmetric(codes: Codes, alphabet: int, hit: float, rng: np.random.Generator) -> Codes:
    """Keep each code with probability `hit`, else replace it by another: one draw per entry."""
    u = rng.random(codes.shape)
    if hit >= 1.0:
        return codes.copy()
    # if a code is not kept, (u - hit) / (1 - hit) is uniform again and picks the other one
    other = ((u - hit) * ((alphabet - 1) / (1.0 - hit))).astype(np.int64)
    np.minimum(other, alphabet - 2, out=other)
    other += other >= codes
    return np.where(u < hit, codes, other)
