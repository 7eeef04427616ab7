"""Identities and directories: keys that anybody could sign with, files that are none."""

import numpy as np
import pytest

from fedaudit.errors import IntegrityError, UsageError
from fedaudit.protections.secure_aggregation import Directory, Forged, Identity, wire
from fedaudit.protections.secure_aggregation.identity import X25519_PRIME, usable, verify

ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
HEIGHTS = [
    h % 2**255
    for h in (0, 1, int.from_bytes(ORDER_8, "little"))
    for h in (h, -h % X25519_PRIME, X25519_PRIME + h)
    if h < 2**255
]
SMALL = sorted({(h + s).to_bytes(32, "little") for h in HEIGHTS for s in (0, 2**255)})


def test_a_key_of_small_order_signs_nothing_though_the_library_takes_its_signature():
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature, taken = (1).to_bytes(32, "little") + bytes(32), 0
    for public in SMALL:
        assert not usable(public)
        for at in range(40):
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(signature, bytes([at]))
                taken += 1
            except (InvalidSignature, ValueError):
                pass
            assert not verify(public, signature, "view", bytes([at]))
    assert taken > 80  # nobody has the secret of any of them
    assert all(usable(Identity(bytes([n]) * 32).public) for n in range(20))


def test_nobody_pins_a_key_that_anybody_can_sign_with(parties):
    run = parties(5, directory=Directory(None))
    one = (1).to_bytes(32, "little")
    honest = wire.Record.from_bytes(run.clients[0].advertise())
    forged = honest.signed + one + one + bytes(32)
    with pytest.raises(Forged):
        run.server.enrol(0, forged)
    assert not run.directory.numbers


def test_keys_that_are_none_are_refused_where_they_are_given():
    rng = np.random.default_rng(0)
    for secret in (b"", b"x", rng.bytes(31), rng.bytes(33), "ab" * 16, None):
        with pytest.raises(UsageError, match="secret key"):
            Identity(secret)
    for public in (b"x", bytes(32), ORDER_8, "ab" * 16):
        with pytest.raises(UsageError, match="public key"):
            Directory({0: public})


@pytest.mark.parametrize("content", ['{"0": 5}', '{"a": "bb"}', '{"0": "zz"}'])
def test_a_file_of_pins_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "pins.json"
    path.write_text(content)
    with pytest.raises(IntegrityError, match=r"pins\.json"):
        Directory(None, path=path)
