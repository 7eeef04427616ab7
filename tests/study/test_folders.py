"""The layout of runs and studies is read in one place; a list that makes no sense is refused."""

import json

import pytest

from fedaudit.errors import FormatError, UsageError
from fedaudit.files import Unreadable
from fedaudit.study.folders import (
    commands,
    config_of,
    config_text,
    entries,
    is_study,
    places,
    recording_at,
    recordings_at,
    run_at,
    runs_at,
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


def made(folder, *marks):
    for mark in marks:
        (folder / mark).parent.mkdir(parents=True, exist_ok=True)
        (folder / mark).write_text("{}")
    return folder


RUN = ("run.json", "trace/manifest.json", "truth/truth.json", "report.html")


def test_a_path_means_the_run_that_it_is_or_lies_in(tmp_path):
    run = made(tmp_path / "run", *RUN)
    for place in (run, run / "trace", run / "truth", run / "report.html"):
        assert runs_at(place) == [run]
        assert run_at(place, "gate") == run
    assert runs_at(tmp_path) == [run]  # the only one below
    assert recordings_at(tmp_path) == recordings_at(run) == [run]
    assert recordings_at(run / "trace") == [run / "trace"]
    assert runs_at(tmp_path / "nothing") == [tmp_path / "nothing"]


def test_a_study_and_a_folder_of_runs_mean_all_of_theirs(tmp_path):
    study = tmp_path / "all" / "study"
    for name in ("a-x", "b"):
        made(study / name, *RUN)
    one = {"federation": "a", "variant": "x", "path": "a-x"}
    listed(study, one, {"federation": "b", "path": "b"})
    other = made(tmp_path / "all" / "other", *RUN)
    assert runs_at(study) == [study]
    assert recordings_at(study) == [study / "a-x", study / "b"]
    assert set(runs_at(tmp_path / "all")) == {study, other}
    assert set(recordings_at(tmp_path / "all")) == {study / "a-x", study / "b", other}
    with pytest.raises(UsageError, match="holds several runs") as told:
        run_at(tmp_path / "all", "report")
    assert told.value.remedy.startswith("name one of them: fedaudit report ")
    with pytest.raises(UsageError, match="holds several runs") as told:
        recording_at(study, "audit")
    assert told.value.remedy == f"name one of them: fedaudit audit {study / 'a-x'}"


def test_the_results_of_a_trace_elsewhere_mean_that_trace(tmp_path):
    made(tmp_path / "trace", "manifest.json")
    (made(tmp_path / "trace-audit", "seal.json") / "audit.json").write_text(
        json.dumps({"trace": "../trace"})
    )
    (found,) = recordings_at(tmp_path / "trace-audit")
    assert found.resolve() == (tmp_path / "trace").resolve()
