"""The mechanism as the server knows it."""

from fedaudit.audits.active_membership.channel import NO_MECHANISM


def test_the_open_channel_protects_nothing():
    assert not NO_MECHANISM.protects
