"""Keys of a run: masks of pairs, own masks, seals. HKDF with SHA-256 (RFC 5869), one block."""

from __future__ import annotations

import hashlib
import hmac

from fedaudit.protections.secure_aggregation.identity import ExchangeKey
from fedaudit.protections.secure_aggregation.wire import (
    DIGEST_BYTES,
    fingerprint,
    number_bytes,
)

MASK_KEY_BYTES = 16  # AES-128


def derive(secret: bytes, purpose: str, length: int, context: bytes, *numbers: int) -> bytes:
    """A key of up to 32 bytes, for one purpose between these clients in this context."""
    extracted = hmac.digest(context, secret, hashlib.sha256)
    info = b"fedaudit|" + purpose.encode() + b"|" + b"".join(map(number_bytes, numbers))
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)[:length]


def pair_mask(own: ExchangeKey, other: bytes, view: bytes, a: int, b: int) -> bytes:
    """The key of the mask that clients a and b share; the same for both."""
    secret = own.exchange(other)
    return derive(secret, "mask", MASK_KEY_BYTES, view, min(a, b), max(a, b))


def own_mask(seed: bytes, view: bytes, number: int) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, "self", MASK_KEY_BYTES, view, number)


def seal_key(own: ExchangeKey, other: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """The key that seals one message from `sender` to `receiver`."""
    return derive(own.exchange(other), "seal", MASK_KEY_BYTES, context, sender, receiver)


def commitment(seed: bytes, number: int) -> bytes:
    """What a client publishes of its seed: 256 random bits cannot be searched for."""
    return fingerprint("seed", seed, number_bytes(number))


def share_digest(context: bytes, kind: int, share: bytes) -> bytes:
    """What server and holder are told of a share (uniform, 257 bits) to tell a wrong one."""
    return fingerprint("share", context, bytes([kind]), share)[:DIGEST_BYTES]


def pair_digests(context: bytes, pair: bytes) -> bytes:
    """The digests of both kinds of share, one after the other."""
    halves = pair[: len(pair) // 2], pair[len(pair) // 2 :]
    return b"".join(share_digest(context, kind, half) for kind, half in enumerate(halves))


def inbox_context(context: bytes, receiver: int) -> bytes:
    """What binds an inbox to its run and its receiver."""
    return context + number_bytes(receiver)


def shared_view(context: bytes, shared: bytes) -> bytes:
    """Stands for the roster and the list of clients that shared: the context of all masks."""
    return fingerprint("shared", context, shared)


def upload_view(view: bytes, uploaded: bytes) -> bytes:
    """Stands for roster, shares and uploads: what clients sign before they reveal."""
    return fingerprint("uploaded", view, uploaded)
