"""Real numbers as integers modulo 2^b: quantised so that sums never wrap, masked by AES streams.

A client's number x becomes round(x / step), with the step a power of two chosen so that `clients`
numbers of size `bound` stay below half the modulus. Scaling by a power of two is exact, so a
decoded sum of n numbers is off by at most n step / 2. A client refuses a number beyond the bound
before masking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError

RingVector = npt.NDArray[np.unsignedinteger[Any]]

CHUNK = 1 << 17
"""Bytes of mask per piece: buffer and sum stay in the cache."""
QUANTISED = 1 << 18
"""Numbers quantised per piece."""
_ZEROS = memoryview(bytes(CHUNK))
_EXACT = 2**52  # integers that a float64 holds exactly, with a bit to spare


class RingOverflow(UsageError):
    """A number is too large to be summed modulo 2^b without wrapping."""


def ring_dtype(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Unsigned integers modulo 2^bits, bytes in the order in which they cross the wire."""
    if bits not in (32, 64):
        raise UsageError(
            "modulus_bits must be 32 or 64",
            expected="2^32 or 2^64",
            got=f"2^{bits}",
            remedy="modulus_bits = 32",
        )
    return np.dtype("<u4" if bits == 32 else "<u8")


@dataclass(frozen=True)
class RingQuantiser:
    """Quantises numbers up to `bound`, for sums over up to `clients` clients, modulo 2^bits."""

    bound: float
    clients: int
    bits: int = 32

    def __post_init__(self) -> None:
        ring_dtype(self.bits)
        if not (math.isfinite(self.bound) and self.bound > 0) or self.clients < 1:
            raise UsageError(
                "the quantiser's settings are out of range",
                expected="a finite bound above 0, for at least one client",
                got=f"bound {self.bound}, {self.clients} clients",
                remedy="bound = 16.0",
            )

    @cached_property
    def largest(self) -> int:
        """The largest integer of one client: `clients` of them stay below half the modulus."""
        return min(2 ** (self.bits - 1) - 1, _EXACT) // self.clients

    @cached_property
    def step(self) -> float:
        """The real number that one unit of the ring stands for: a power of two."""
        if not self.largest:
            raise RingOverflow(
                "the ring is too small for this number of clients",
                expected=f"fewer than 2^{self.bits - 1} clients",
                got=str(self.clients),
                remedy="modulus_bits = 64",
            )
        # bound / step <= largest, and both sides of the comparison below are exact
        step = math.ldexp(1.0, math.frexp(self.bound / self.largest)[1])
        while self.bound / (step / 2) <= self.largest:
            step /= 2
        return step

    def error(self, clients: int) -> float:
        """The largest error of any number in a sum over `clients`."""
        return clients * self.step / 2

    def stored_error(self, total: Floats, scale: float, clients: int) -> float:
        """The largest error of float32(scale * total), with total = sum of fl(x_i s_i) rounded.

        Against scale * sum of x_i s_i, with shares s_i = fl(w_i / scale) up to 1 and unit
        roundoffs u = 2^-53 and v = 2^-24:

            scale n step / 2            rounding to the ring
            scale n bound 2 u           s_i and the product with it, each to float64
            |scale total| (u + v)       the product with scale, and float32
            2^-150                      below the normal numbers of float32
        """
        size = scale * float(np.abs(total).max(initial=0.0))
        ring = clients * (self.step / 2 + 2.0**-52 * self.bound)
        # 2^-20 in relation covers products of roundings, and those of this line
        return (scale * ring + size * (2.0**-53 + 2.0**-24) + 2.0**-150) * (1 + 2.0**-20)

    def integers(self, values: npt.ArrayLike) -> Floats:
        """Real numbers as whole numbers (exact float64); raises RingOverflow beyond the bound."""
        x = np.asarray(values, dtype=np.float64)
        size = float(np.abs(x).max(initial=0.0))
        if not size <= self.bound:  # also for NaN
            raise RingOverflow(
                "an update does not fit the ring",
                expected=f"finite numbers up to {self.bound:g} in size",
                got="NaN" if math.isnan(size) else f"{size:g}",
                remedy="clip updates first, or set a larger bound (with modulus_bits = 64 it "
                "costs no precision)",
            )
        whole = np.multiply(x, 1.0 / self.step)  # exact: the step is a power of two
        return np.rint(whole, out=whole)

    def encode(self, values: npt.ArrayLike, out: RingVector | None = None) -> RingVector:
        """RingVector elements (d,) for real numbers (d,), into `out` if given."""
        x = np.asarray(values)
        ring = np.empty(x.shape, ring_dtype(self.bits)) if out is None else out
        signed = ring.view("<i4" if self.bits == 32 else "<i8")
        for low in range(0, len(x), QUANTISED):
            part = slice(low, low + QUANTISED)
            signed[part] = self.integers(x[part])
        return ring

    def decode(self, total: RingVector) -> Floats:
        """Real numbers for a sum of ring elements: above half the modulus is negative."""
        return total.view("<i4" if self.bits == 32 else "<i8") * self.step


def add_streams(into: RingVector, streams: Iterable[tuple[bytes, int]]) -> None:
    """Add (+1) or subtract (-1) the AES-CTR stream of every key, in place.

    Adds all streams of one piece before the next piece, in reused buffers. A key serves one stream
    only, so the counter starts at zero.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    open_streams = [
        (Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), sign)
        for key, sign in streams
    ]
    width = into.dtype.itemsize
    buffer = bytearray(CHUNK + 15)  # `update_into` needs a block minus one byte beyond the data
    piece = np.frombuffer(buffer, dtype=into.dtype, count=CHUNK // width)
    for start in range(0, len(into), len(piece)):
        part = into[start : start + len(piece)]
        mask, zeros = piece[: len(part)], _ZEROS[: len(part) * width]
        for stream, sign in open_streams:
            stream.update_into(zeros, buffer)
            (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def subset_sum(vectors: Sequence[RingVector], out: RingVector | None = None) -> RingVector:
    """The sum (d,) of ring vectors, written to `out` if given."""
    total = np.empty_like(vectors[0]) if out is None else out
    if len(vectors) == 1:
        total[:] = vectors[0]
        return total
    np.add(vectors[0], vectors[1], out=total)
    for other in vectors[2:]:
        np.add(total, other, out=total)
    return total
