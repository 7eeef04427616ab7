"""The layout of runs and studies is read in one place; a list that makes no sense is refused."""

import json

import pytest

from fedaudit.errors import FormatError
from fedaudit.files import Unreadable
from fedaudit.study.folders import (
    commands,
    config_of,
    config_text,
    entries,
    is_study,
    places,
)


def listed(folder, *runs):
    (folder / "study.json").write_text(json.dumps({"runs": list(runs)}))
    return folder


def test_the_runs_of_a_study_come_in_order(tmp_path):
    assert not is_study(tmp_path)
    one = {"federation": "a", "variant": "x", "path": "a-x"}
    listed(tmp_path, one, {"federation": "b", "path": "b"})
    assert is_study(tmp_path)
    found = [(e.federation, e.variant, e.path) for e in entries(tmp_path)]
    assert found == [("a", "x", tmp_path / "a-x"), ("b", "", tmp_path / "b")]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no runs"),
        ([{"federation": "a", "path": "a"}] * 2, "twice"),
        ([{"federation": "a", "path": "../a"}], "leads outside"),
        ([{"federation": "a", "path": "a" * 5_000}], "leads outside"),
        ([{"federation": "a", "path": "a\0b"}], "leads outside"),
        ([{"federation": "a"}], "no such key"),
        (["a"], "an object"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, runs, said):
    with pytest.raises(FormatError, match=said):
        entries(listed(tmp_path, *runs))


def test_a_trace_lies_inside_or_where_the_audit_says(tmp_path):
    assert places(tmp_path) == (tmp_path / "trace", tmp_path / "truth")
    (tmp_path / "audit.json").write_text(json.dumps({"trace": "../there"}))
    assert places(tmp_path) == (tmp_path / "../there", tmp_path / "truth")


AUDITS = ["[]", '{"trace": 5}', '{"done_by": {}}', '{"done_by": [{"command": "x"}]}', "[" * 100_000]


@pytest.mark.parametrize("text", ["", "{", "\0", *AUDITS])
def test_a_torn_note_on_an_audit_is_an_error(tmp_path, text):
    """The default would send a reader to another trace."""
    (tmp_path / "audit.json").write_text(text)
    for ask in (places, commands):
        with pytest.raises(Unreadable) as refused:
            ask(tmp_path)
        assert refused.value.exit_code == 3
        assert refused.value.expected


def test_settings_that_are_gone_are_none(tmp_path):
    assert config_of(tmp_path) == {}
    assert config_text(tmp_path) == ""
    (tmp_path / "config.toml").write_text('[data]\nname = "digits"\n')
    assert config_of(tmp_path) == {"data": {"name": "digits"}}


@pytest.mark.parametrize(
    "text", ["", "[data\n", "a = \0", "audits = 5", "data = []", "a = " + "9" * 30]
)
def test_settings_that_are_torn_are_an_error(tmp_path, text):
    """No settings at all would mean that every audit runs."""
    (tmp_path / "config.toml").write_text(text)
    for ask in (config_of, config_text):
        with pytest.raises(Unreadable) as refused:
            ask(tmp_path)
        assert refused.value.exit_code == 3
