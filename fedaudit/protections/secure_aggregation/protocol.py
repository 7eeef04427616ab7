"""One run of the protocol: four messages up from every client, between them three from the server.

    1 advertise  two fresh public keys: one for masks, one to seal shares
    2 share      Shamir shares of the mask key and of a self-mask seed, sealed for each other client
    3 upload     x + PRG(own seed) + PRG(pair) for every later client - PRG(pair) for earlier ones
    4 reveal     for each client that uploaded a share of its seed, for each that did not a share of
                 its mask key; never both

The server adds the uploads and removes the self masks of clients that uploaded, and the pairwise
masks left by clients that dropped out after step 2. Keys are fresh in every run: a mask key
revealed in one run must not open another.

Semi-honest: there are no signatures, and clients do not check that the server shows all of them the
same list of survivors. A dishonest server could ask for both kinds of shares.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.errors import FedauditError, UsageError
from fedaudit.protections.secure_aggregation import shamir
from fedaudit.protections.secure_aggregation.ring import RingVector, add_streams, ring_dtype

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Random = Callable[[int], bytes]
KEY_BYTES = 32
MASK_KEY_BYTES = 16  # AES-128
SEALED_BYTES = 2 * shamir.SHARE_BYTES + 16  # AES-GCM adds a tag


class TooFewLeft(FedauditError):
    """Fewer clients than the threshold are left: the run ends without a sum."""


def too_few(left: int, threshold: int, when: str) -> TooFewLeft:
    return TooFewLeft(
        f"the run failed: too few clients were left {when}",
        expected=f"at least {threshold}",
        got=str(left),
        remedy="repeat in the next round, or use a lower threshold",
    )


@dataclass(frozen=True)
class PublicKeys:
    """A client's two public keys, 32 bytes each."""

    mask: bytes
    channel: bytes


def _derive(secret: bytes, purpose: str, length: int, run: bytes, *numbers: int) -> bytes:
    """A key of `length` bytes for one purpose between these clients in this run."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    who = b"".join(n.to_bytes(8, "little") for n in numbers)
    info = b"fedaudit secure aggregation " + purpose.encode() + b"|" + run + b"|" + who
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


def _private(key: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(key)


def _pair_mask(own: X25519PrivateKey, other: bytes, run: bytes, a: int, b: int) -> bytes:
    """The key of the mask that clients a and b share; the same for both."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    return _derive(secret, "mask", MASK_KEY_BYTES, run, min(a, b), max(a, b))


def _self_mask(seed: bytes, run: bytes, number: int) -> bytes:
    """The key of a client's own mask."""
    return _derive(seed, "self", MASK_KEY_BYTES, run, number)


class Client:
    """One client in one run. It does not store the vector passed to `upload`.

    `number` identifies it to the others, from 0; `run` is unique to the run; `random(n)` gives n
    random bytes, from the operating system unless a test needs repeatable ones.
    """

    def __init__(
        self, number: int, *, threshold: int, run: bytes, random: Random = os.urandom
    ) -> None:
        self.number, self.threshold, self.run, self._random = number, threshold, run, random
        self._mask_key, self._seed = random(KEY_BYTES), random(KEY_BYTES)
        self._mask, self._channel = _private(self._mask_key), _private(random(KEY_BYTES))
        self._public = PublicKeys(
            self._mask.public_key().public_bytes_raw(),
            self._channel.public_key().public_bytes_raw(),
        )
        self._roster: dict[int, PublicKeys] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}
        self._held: dict[int, tuple[int, int]] = {}  # others' shares: of the mask key, of the seed
        self._revealed = False

    def advertise(self) -> PublicKeys:
        """Step 1."""
        return self._public

    def share(self, roster: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Step 2: receiver -> sealed shares of this client's two secrets."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(roster) < self.threshold:
            raise too_few(len(roster), self.threshold, "before keys were shared")
        keys = [k for pair in roster.values() for k in (pair.mask, pair.channel)]
        if roster.get(self.number) != self._public or len(set(keys)) != len(keys):
            raise UsageError(
                "the list of public keys is wrong",
                expected="distinct keys, including this client's own",
                got="a repeated key, or a different key for this client",
                remedy="start a new run",
            )
        self._roster = dict(roster)
        self._keys = {other: self._sealing(other) for other in roster if other != self.number}
        points = [number + 1 for number in roster]
        parts = [
            shamir.split(int.from_bytes(secret), self.threshold, points, self._random)
            for secret in (self._mask_key, self._seed)
        ]
        out = {}
        for other in roster:
            pair = (parts[0][other + 1], parts[1][other + 1])
            if other == self.number:
                self._held[other] = pair
            else:
                plain = b"".join(s.to_bytes(shamir.SHARE_BYTES) for s in pair)
                # this key seals one message only, so the nonce may be zero
                out[other] = AESGCM(self._keys[other][0]).encrypt(bytes(12), plain, self.run)
        return out

    def _sealing(self, other: int) -> tuple[bytes, bytes]:
        """Keys to and from another client."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        public = X25519PublicKey.from_public_bytes(self._roster[other].channel)
        secret, me = self._channel.exchange(public), self.number
        return (
            _derive(secret, "channel", KEY_BYTES, self.run, me, other),
            _derive(secret, "channel", KEY_BYTES, self.run, other, me),
        )

    def receive(self, sealed: Mapping[int, bytes]) -> None:
        """Store the other clients' shares, as forwarded by the server (after step 2)."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for other, text in sealed.items():
            try:
                plain = AESGCM(self._keys[other][1]).decrypt(bytes(12), text, self.run)
            except InvalidTag:
                raise UsageError(
                    f"the shares from client {other} were altered in transit",
                    expected="what that client sealed for this one in this run",
                    got="bytes that do not open",
                    remedy="start a new run",
                ) from None
            cut = shamir.SHARE_BYTES
            self._held[other] = (int.from_bytes(plain[:cut]), int.from_bytes(plain[cut:]))

    def upload(self, vector: RingVector) -> RingVector:
        """Step 3: the masked vector (d,). Pairwise masks cover all clients whose shares arrived."""
        if len(self._held) < self.threshold:
            raise too_few(len(self._held), self.threshold, "before the upload")
        streams = [(_self_mask(self._seed, self.run, self.number), 1)]
        for other in self._held:
            if other != self.number:
                public = self._roster[other].mask
                key = _pair_mask(self._mask, public, self.run, self.number, other)
                streams.append((key, 1 if other > self.number else -1))
        masked = vector.copy()
        add_streams(masked, streams)
        return masked

    def reveal(self, uploaded: Set[int]) -> dict[int, int]:
        """Step 4: for each client whose shares this one holds, the one share that is needed."""
        if len(uploaded) < self.threshold:
            raise too_few(len(uploaded), self.threshold, "after the upload")
        if self._revealed:
            raise UsageError(
                "this client has already revealed its shares in this run",
                expected="one list of clients that uploaded",
                got="a second one",
                remedy="start a new run: both kinds of shares together would open an upload",
            )
        self._revealed = True
        return {who: pair[1 if who in uploaded else 0] for who, pair in self._held.items()}


class Server:
    """The server in one run: public keys, masked vectors (summed on arrival), revealed shares.

    It never holds a client's vector; `masked` is the masked sum until `open` removes the masks.
    """

    def __init__(self, *, threshold: int, run: bytes, size: int, bits: int = 32) -> None:
        self.threshold, self.run = threshold, run
        self.roster: dict[int, PublicKeys] = {}
        self.sharing: set[int] = set()
        self.uploaded: set[int] = set()
        self.masked: RingVector = np.zeros(size, dtype=ring_dtype(bits))

    def enrol(self, number: int, keys: PublicKeys) -> None:
        self.roster[number] = keys

    def pass_on(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Regroup sender -> receiver -> sealed shares by receiver; only these senders continue."""
        self.sharing = set(sealed)
        return {to: {s: sealed[s][to] for s in sealed if s != to} for to in sealed}

    def accept(self, number: int, masked: RingVector) -> None:
        if number not in self.sharing or number in self.uploaded:
            raise UsageError(
                f"client {number} cannot upload now",
                expected="one upload from each client that has shared its keys",
                got="a second upload"
                if number in self.uploaded
                else "a client without shared keys",
                remedy="start a new run",
            )
        np.add(self.masked, masked, out=self.masked)
        self.uploaded.add(number)

    def open(self, revealed: Mapping[int, Mapping[int, int]]) -> RingVector:
        """The sum (d,) over clients that uploaded; `revealed` maps revealer -> client -> share."""
        if len(revealed) < self.threshold:
            raise too_few(len(revealed), self.threshold, "to reveal shares")
        helpers = sorted(revealed)[: self.threshold]
        weights = shamir.weights_at_zero([h + 1 for h in helpers])

        def restored(who: int) -> bytes:
            parts = (w * revealed[h][who] for h, w in zip(helpers, weights, strict=True))
            return (sum(parts) % shamir.PRIME).to_bytes(KEY_BYTES)

        streams = [(_self_mask(restored(u), self.run, u), -1) for u in sorted(self.uploaded)]
        for gone in sorted(self.sharing - self.uploaded):
            own = _private(restored(gone))
            for u in sorted(self.uploaded):
                key = _pair_mask(own, self.roster[u].mask, self.run, u, gone)
                streams.append((key, -1 if gone > u else 1))
        total = self.masked
        add_streams(total, streams)
        return total
