"""The mechanism as the server knows it."""

from fedaudit.audits.active_membership.channel import OPEN


def test_the_open_channel_protects_nothing():
    assert not OPEN.protects
