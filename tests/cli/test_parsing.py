"""Text of the command line becomes objects."""

import pytest

from fedaudit.cli.parsing import parse_audit_settings, parse_protection
from fedaudit.errors import UsageError
from fedaudit.protections import Clip, Shuffle


def test_protections_are_read_from_words():
    assert parse_protection("shuffle") == Shuffle()
    assert parse_protection("clip:bound=0.5") == Clip(bound=0.5)
    for wrong in ("shufle", "clip:bond=1", "clip:bound"):
        with pytest.raises(UsageError):
            parse_protection(wrong)


def test_settings_of_audits_and_of_records_are_told_apart():
    texts = ["audits.fingerprint.methods=['joint']", "audits.fingerprint.sketch=9", "data.x=drop"]
    settings, data = parse_audit_settings(texts)
    assert settings == {"fingerprint": {"methods": ["joint"], "sketch": 9}}
    assert data == {"x": "drop"}
    for wrong in ("federation.rounds=3", "audits.fingerprint=1", "data.a.b=1"):
        with pytest.raises(UsageError, match="not a setting of an audit"):
            parse_audit_settings([wrong])
