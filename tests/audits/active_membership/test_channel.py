"""What the server knows of a mechanism."""

from fedaudit.audits.active_membership.channel import OPEN, Channel


def test_the_open_channel_protects_nothing():
    assert not OPEN.protects
    assert OPEN.claim_holds
    assert not Channel(name="x", claimed_epsilon=1.0, exact_epsilon=2.0).claim_holds
