"""Who is who: Ed25519 identities, and the directory of public keys that a party trusts.

Whoever runs the federation gives every party the public keys of all others. Without them a party
pins the first key it sees under a number (trust on first use) and warns: a server that lies in the
first run can then play every other client.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedaudit.errors import IntegrityError, UsageError
from fedaudit.files import read_object, write_atomically
from fedaudit.protections.secure_aggregation.refusals import Forged, malformed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Random = Callable[[int], bytes]
KEY_BYTES = 32
SIGNATURE_BYTES = 64
X25519_PRIME = 2**255 - 19
"""The same point has other bytes from here on: a copied key would not look like one."""
AGGREGATOR_NUMBER = -1
"""The aggregator's place in a directory."""
_CONTEXT = b"fedaudit secure aggregation 2|"
_SIGN_BIT = 2**255
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {0, 1, _ORDER_8, *(X25519_PRIME + n for n in (-_ORDER_8, -1, 0, 1))}
"""Heights of the eight points whose signatures anybody can make, in all forms below 2^255."""


class TrustOnFirstUse(UserWarning):
    """A public key was taken on trust."""


@dataclass(frozen=True)
class Identity:
    """A party's signing key. Keep `secret` (32 bytes) where only this party can read it."""

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            raise UsageError(
                "a secret key is unusable",
                expected=f"{KEY_BYTES} bytes",
                got=f"{type(self.secret).__name__} of another length or kind",
                remedy="make keys with Identity.new()",
            )

    @classmethod
    def new(cls, random: Random = os.urandom) -> Self:
        return cls(random(KEY_BYTES))

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, purpose: str, content: bytes) -> bytes:
        return self._key.sign(_CONTEXT + purpose.encode() + b"|" + content)

    def __repr__(self) -> str:  # never the secret
        return f"Identity(public={self.public.hex()})"


class Directory:
    """Client number -> public identity key; the aggregator is number -1.

    `known`: all keys, given by whoever runs the federation: a number that is not in it is refused.
    None: trust on first use, with a warning for every new key; `path` then keeps them in a file.
    """

    def __init__(
        self,
        known: Mapping[int, bytes] | None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._open = known is None
        self._path = None if path is None else Path(path)
        self._keys = dict(known or {})
        if self._open and self._path is not None and self._path.exists():
            self._keys = _pinned(self._path)
        if not all(map(usable, self._keys.values())):
            raise UsageError(
                "a public key of the directory is unusable",
                expected=f"{KEY_BYTES} bytes of an Ed25519 key of full order",
                got="another length, or a key whose signatures anybody can make",
                remedy="make keys with Identity.new()",
            )
        if len(set(self._keys.values())) < len(self._keys):
            raise UsageError(
                "two parties of the directory have the same public key",
                expected="a key of its own for every party",
                got=f"{len(self._keys)} parties, {len(set(self._keys.values()))} keys",
                remedy="make a key for each with Identity.new()",
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._keys)

    def check(self, number: int, public: bytes) -> None:
        """Raise Forged unless `public` is this number's identity."""
        pinned = self._keys.get(number)
        if pinned is None and self._open:
            self._pin(number, public)
        elif pinned != public:
            who = "the aggregator" if number == AGGREGATOR_NUMBER else f"client {number}"
            raise Forged(
                f"the identity of {who} is not the one this party knows",
                expected="no such party" if pinned is None else pinned.hex()[:16] + "...",
                got=public.hex()[:16] + "...",
                remedy="compare public keys with whoever runs the federation",
            )

    def _pin(self, number: int, public: bytes) -> None:
        for other, key in self._keys.items():
            if key == public:
                raise Forged(
                    f"party {number} shows the identity of party {other}",
                    expected="a key of its own for every party",
                    got=public.hex()[:16] + "...",
                    remedy="give a Directory of all public keys",
                )
        warnings.warn(
            f"the key of party {number} is taken on trust: a lying server can play this party; "
            "give a Directory of all public keys",
            TrustOnFirstUse,
            stacklevel=4,
        )
        self._keys[number] = public
        if self._path is not None:
            write_atomically(
                self._path, json.dumps({n: k.hex() for n, k in self._keys.items()}), private=True
            )


def _pinned(path: Path) -> dict[int, bytes]:
    """The keys that an earlier run took on trust."""
    try:
        return {int(n): bytes.fromhex(key) for n, key in read_object(path).items()}
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            f"{path} is not a file of pinned keys",
            expected="number: key in hex",
            got=str(error),
            remedy="restore the file, or give a Directory of all public keys",
        ) from None


def usable(public: object) -> bool:
    """Whether these are the bytes of a key that can only sign with its secret."""
    if not isinstance(public, bytes) or len(public) != KEY_BYTES:
        return False
    return int.from_bytes(public, "little") % _SIGN_BIT not in _SMALL_ORDER


@lru_cache(maxsize=4096)
def verify(public: bytes, signature: bytes, purpose: str, content: bytes) -> bool:
    """Whether this identity signed this content for this purpose.

    Answers are kept: where one process plays all clients, each signature is checked once. A key of
    small order signs nothing: the library takes one signature of it for every content.
    """
    if not usable(public):
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, _CONTEXT + purpose.encode() + b"|" + content)
    except (InvalidSignature, ValueError):
        return False
    return True


class ExchangeKey:
    """An X25519 secret (32 bytes), parsed once: parsing it costs as much as an exchange.

    `keep`: remember what was agreed with each public key, for whoever agrees with it twice.
    """

    def __init__(self, secret: bytes, *, keep: bool = False) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._agreed: dict[bytes, bytes] | None = {} if keep else None

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def exchange(self, public: bytes) -> bytes:
        """Raises Malformed for a key of small order, such as zero."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if self._agreed is not None and public in self._agreed:
            return self._agreed[public]
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            what = "a public key is unusable"
            raise malformed(what, "an X25519 key of full order", "a weak key") from None
        if self._agreed is not None:
            self._agreed[public] = secret
        return secret


@cache
def _any_key() -> ExchangeKey:
    return ExchangeKey(bytes(KEY_BYTES))


def refuse_weak(public: bytes) -> None:
    """Raises Malformed for a public key that agrees on the same secret with everybody."""
    _any_key().exchange(public)
