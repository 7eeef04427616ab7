"""The bytes of every message, packed and read strictly: a wrong length or number is refused.

    record     number 8, mask key 32, channel key 32, seed commitment 32, identity 32, signature 64
    roster     aggregator's identity 32 and signature 64, length of the terms 4, terms (JSON),
               records sorted by number
    shares     per holder: number 8, digests of the two shares 2 x 16, sealed shares; signature
    inbox      bit per client: has it shared; then per sender: number 8, digests, sealed shares;
               the aggregator's signature
    upload     masked vector, signature
    uploads    bit per client: has it uploaded; the aggregator's signature 64
    views      per holder: number 8, signature of the list of uploads 64
    reveal     per owner: number 8, kind of share 1, share 33; signature

Numbers are unsigned, little-endian, below 2^63. Every message is signed by its sender, so that one
altered on its way is refused and not added up.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedaudit.protections.secure_aggregation.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    verify,
)
from fedaudit.protections.secure_aggregation.refusals import Forged, malformed
from fedaudit.protections.secure_aggregation.shamir import SHARE_BYTES

NUMBER_BYTES = 8
DIGEST_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES + 16  # AES-GCM adds a tag
_RECORD = struct.Struct(f"<Q{4 * f'{KEY_BYTES}s'}{SIGNATURE_BYTES}s")
RECORD_BYTES = _RECORD.size
HEAD_BYTES = KEY_BYTES + SIGNATURE_BYTES + 4
SHARED_BYTES = NUMBER_BYTES + 2 * DIGEST_BYTES + SEALED_BYTES
VIEW_BYTES = NUMBER_BYTES + SIGNATURE_BYTES
REVEALED_BYTES = NUMBER_BYTES + 1 + SHARE_BYTES
SEED_SHARE, MASK_SHARE = 0, 1
"""Kinds of revealed shares: of the own mask's seed, of the mask key."""


def fingerprint(purpose: str, *content: bytes | memoryview) -> bytes:
    """32 bytes that stand for this content in this place."""
    digest = blake2b(digest_size=32, person=purpose.encode())
    for part in content:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def signed(identity: Identity, step: str, context: bytes, body: bytes) -> bytes:
    """A message and its sender's signature, for one step in one context."""
    return body + identity.sign(step, fingerprint(step, context, body))


def checked_body(message: bytes, public: bytes, step: str, context: bytes, sender: str) -> bytes:
    """The message without its signature; raises Forged if it is not the sender's."""
    if not isinstance(message, bytes) or len(message) < SIGNATURE_BYTES:
        raise malformed(f"{step} cannot be read", "a message and a signature", "less")
    body, signature = message[:-SIGNATURE_BYTES], message[-SIGNATURE_BYTES:]
    if not verify(public, signature, step, fingerprint(step, context, body)):
        raise Forged(
            f"{step} of {sender} is not what it sent",
            expected="its signature of this message in this run",
            got="another",
            remedy="send the message again as it was",
        )
    return body


def pieces(message: bytes, size: int, what: str) -> list[bytes]:
    """A message cut into pieces of equal size."""
    if not isinstance(message, bytes) or len(message) % size:
        got = f"{len(message)} bytes" if isinstance(message, bytes) else type(message).__name__
        raise malformed(f"{what} cannot be read", f"bytes, a multiple of {size}", got)
    return [message[at : at + size] for at in range(0, len(message), size)]


def number_of(piece: bytes) -> int:
    return int.from_bytes(piece[:NUMBER_BYTES], "little")


def number_bytes(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "little")


def by_number(message: bytes, size: int, what: str) -> dict[int, bytes]:
    """Number -> rest of its piece; a number twice is refused."""
    found = pieces(message, size, what)
    out = {number_of(p): p[NUMBER_BYTES:] for p in found}
    if len(out) != len(found):
        raise malformed(f"{what} names a client twice", "each client once", f"{len(found)} entries")
    return out


def check_number(number: object) -> int:
    """A client's number: whole, from 0 to below 2^63."""
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not whole or not 0 <= int(number) < 2**63:  # type: ignore[call-overload]
        raise malformed("a client number is out of range", "a whole number from 0", repr(number))
    return int(number)  # type: ignore[call-overload]


def check_run(run: object) -> str:
    """A run's label: 16 to 64 hex digits."""
    if not isinstance(run, str) or not re.fullmatch(r"[0-9a-f]{16,64}", run):
        raise malformed("the label of a run is out of range", "16 to 64 hex digits", repr(run)[:40])
    return run


def bitmap(inside: Iterable[int], numbers: Sequence[int]) -> bytes:
    """One bit per client of the roster."""
    chosen = set(inside)
    return np.packbits(np.array([n in chosen for n in numbers], dtype=np.bool_)).tobytes()


def from_bitmap(message: bytes, numbers: np.ndarray, what: str) -> np.ndarray:
    """The numbers (sorted) of a bitmap over the roster."""
    size = (len(numbers) + 7) // 8
    if not isinstance(message, bytes) or len(message) != size:
        raise malformed(f"{what} does not fit the roster", f"{size} bytes", repr(message)[:40])
    bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8))
    if bits[len(numbers) :].any():
        raise malformed(f"{what} names clients beyond the roster", "zero bits", "ones")
    return numbers[bits[: len(numbers)].astype(np.bool_)]


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What all parties of a run agree on; part of every key and signature.

    `run`: hex label, unique to the run. `threshold`: fewest clients in the sum. `neighbours` and
    `quorum`: k and t of `graph`. `length` numbers up to `bound`, as integers modulo
    2^`bits`. `others`: member lists of the round's other sums, answered and planned; `final`: there
    will be no more. `about`: digest (hex) of what every client received to train with.
    """

    run: str
    round: int
    threshold: int
    neighbours: int
    quorum: int
    length: int
    bits: int
    bound: float
    others: tuple[tuple[int, ...], ...] = ()
    final: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        whole = (self.round, self.threshold, self.neighbours, self.quorum, self.length, self.bits)
        numbers = all(type(v) is int and 0 <= v < 2**63 for v in whole)
        named = list(chain.from_iterable(self.others))  # many: checked without a Python loop
        lists = set(map(type, named)) <= {int}
        lists = lists and min(named, default=0) >= 0 and max(named, default=0) < 2**63
        check_run(self.run)
        fits = numbers and self.bits in (32, 64) and self.threshold >= 2 and self.length >= 1
        fits = fits and type(self.bound) is float and 0 < self.bound < math.inf
        if not (fits and lists and type(self.final) is bool and type(self.about) is str):
            raise malformed("the terms of a run are out of range", "see RunTerms", repr(self)[:200])

    def to_bytes(self) -> bytes:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}  # asdict copies every list
        return json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    @lru_cache(maxsize=4)  # read once for all clients of a process
    def from_bytes(cls, content: bytes) -> Self:
        try:
            raw: Any = json.loads(content)
            names = {f.name for f in fields(cls)}
            if not isinstance(raw, dict) or set(raw) != names:
                raise ValueError(f"keys {sorted(raw)}")
            others = tuple(map(tuple, raw.pop("others")))
            return cls(others=others, **raw)
        except (ValueError, TypeError, RecursionError) as error:
            raise malformed("the terms of a run cannot be read", "JSON of RunTerms", error) from (
                None
            )


@dataclass(frozen=True, slots=True)
class Record:
    """A client's signed public keys in one run."""

    number: int
    mask: bytes
    channel: bytes
    commitment: bytes
    identity: bytes
    signature: bytes

    @property
    def signed(self) -> bytes:
        return number_bytes(self.number) + self.mask + self.channel + self.commitment

    def to_bytes(self) -> bytes:
        return self.signed + self.identity + self.signature

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        if not isinstance(content, bytes) or len(content) != RECORD_BYTES:
            raise malformed("public keys cannot be read", f"{RECORD_BYTES} bytes", len(content))
        number, mask, channel, commitment, identity, signature = _RECORD.unpack(content)
        return cls(check_number(number), mask, channel, commitment, identity, signature)


@lru_cache(maxsize=4)
def _sorted_numbers(column: bytes) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The roster's numbers, and their bytes; one of each for all clients of a process, since those
    of 10,000 clients would be 1 GB."""
    raw = np.frombuffer(column, "<u8")
    if raw.max() >= 2**63 or (raw[1:] <= raw[:-1]).any():
        raise malformed("the roster is not in order", "growing numbers below 2^63", "others")
    return column, raw.astype(np.int64)


@lru_cache(maxsize=4)
def _members(bits: bytes, column: bytes, what: str) -> tuple[int, ...]:
    """The numbers of a bitmap; one tuple for all clients of a process."""
    return tuple(from_bitmap(bits, _sorted_numbers(column)[1], what).tolist())


class Roster:
    """The aggregator's first message: terms, and the records of all clients of the run."""

    def __init__(self, message: bytes) -> None:
        if not isinstance(message, bytes) or len(message) < HEAD_BYTES:
            raise malformed("the roster cannot be read", f"at least {HEAD_BYTES} bytes", "fewer")
        self.message, head = message, KEY_BYTES + SIGNATURE_BYTES
        self.head = message[:head]
        self.aggregator, self.signature = self.head[:KEY_BYTES], self.head[KEY_BYTES:]
        body = memoryview(message)[head:]
        size = int.from_bytes(body[:4], "little")
        self._records = body[4 + size :]  # large, and not copied
        self.terms = RunTerms.from_bytes(bytes(body[4 : 4 + size]))
        self.context = fingerprint("roster", body)
        if not self._records or len(self._records) % RECORD_BYTES:
            raise malformed("the roster cannot be read", "whole records", "a part of one")
        table = np.frombuffer(self._records, dtype=np.uint8).reshape(-1, RECORD_BYTES)
        self._column, self.numbers = _sorted_numbers(table[:, :NUMBER_BYTES].tobytes())

    def __len__(self) -> int:
        return len(self.numbers)

    def _at(self, number: int) -> int | None:
        """A client's place among the records; None if it has none."""
        at = int(self.numbers.searchsorted(number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None

    def __contains__(self, number: int) -> bool:
        return self._at(number) is not None

    def members(self, bits: bytes, what: str) -> tuple[int, ...]:
        """All whose bit is set, in order."""
        return _members(bits, self._column, what)

    def marked(self, bits: bytes, among: Iterable[int]) -> frozenset[int]:
        """Those of some clients whose bit is set."""
        places = ((n, self._at(n)) for n in among)
        return frozenset(n for n, at in places if at is not None and bits[at // 8] << at % 8 & 128)

    def record(self, number: int) -> Record:
        place = self._at(number)
        if place is None:
            raise malformed("a client is not in the roster", "a client of this run", number)
        at = RECORD_BYTES * place
        return Record.from_bytes(bytes(self._records[at : at + RECORD_BYTES]))

    @staticmethod
    def body(terms: RunTerms, records: Sequence[Record]) -> bytes:
        text = terms.to_bytes()
        ordered = sorted(records, key=lambda r: r.number)
        return len(text).to_bytes(4, "little") + text + b"".join(r.to_bytes() for r in ordered)
