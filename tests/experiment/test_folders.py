"""The layout of runs and studies is read in one place; a list that makes no sense is refused."""

import json

import pytest

from fedaudit.errors import FormatError
from fedaudit.experiment.folders import config_of, entries, is_study, places


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
        ([{"federation": "a"}], "KeyError"),
        (["a"], "TypeError"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, runs, said):
    with pytest.raises(FormatError, match=said):
        entries(listed(tmp_path, *runs))


def test_a_trace_lies_inside_or_where_the_audit_says(tmp_path):
    assert places(tmp_path) == (tmp_path / "trace", tmp_path / "truth")
    (tmp_path / "audit.json").write_text(json.dumps({"trace": "../there"}))
    assert places(tmp_path) == (tmp_path / "../there", tmp_path / "truth")
    (tmp_path / "audit.json").write_text("[]")
    assert places(tmp_path) == (tmp_path / "trace", tmp_path / "truth")


def test_settings_that_are_gone_or_torn_are_none(tmp_path):
    assert config_of(tmp_path) == {}
    (tmp_path / "config.toml").write_text("[data\n")
    assert config_of(tmp_path) == {}
    (tmp_path / "config.toml").write_text('[data]\nname = "digits"\n')
    assert config_of(tmp_path) == {"data": {"name": "digits"}}
