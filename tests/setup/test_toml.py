"""Writing TOML: what is written reads back, and comments of a user's file stay."""

import math

import pytest

from fedaudit.errors import ConfigError
from fedaudit.files import parse_toml
from fedaudit.setup.toml import read, to_toml, toml_value, update_toml


def test_what_is_written_reads_back():
    values = {
        "data": {"path": 'a\x7fb\n"q\\', "few": ["a", 1.5], "most": math.inf, "none": {}},
        "seed": 2**63 - 1,
        "odd name": {"a b": True},
    }
    assert parse_toml(to_toml(values)) == values
    for value in ("x\x7f'\"", [1, 2.5, "a"], True, 1e-5, -math.inf):
        assert parse_toml(f"v = {toml_value(value)}")["v"] == value


def test_a_setting_without_a_value_is_left_out():
    assert parse_toml(to_toml({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(ConfigError):
        to_toml({"data": {"path": "\udcff"}})


def test_other_values_keep_the_comments_of_the_rest():
    text = '# mine\nseed = 1  # fixed\n\n[data]\nname = "digits"  # own\n\n[compare]\nbase = "a"\n'
    values = {"seed": 1, "data": {"name": "digits"}, "audits": {"coverage": {}}, "task": None}
    out = update_toml(text, values)
    assert parse_toml(out) == {"seed": 1, "data": {"name": "digits"}, "audits": {"coverage": {}}}
    for comment in ("# mine", "# fixed", "# own"):
        assert comment in out
    assert parse_toml(update_toml("", values)) == parse_toml(to_toml(values))


def test_the_stored_config_of_a_run_finds_its_files_again(tmp_path):
    public = {"data": {"path": "own.csv", "label": "y"}, "topology": {"kind": "star"}}
    private = {"seed": 3, "data": {"path": str(tmp_path / "far" / "own.csv"), "label": "z"}}
    run = tmp_path / "run"
    (run / "truth").mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(public))
    without = read(run)
    assert without["data"]["path"] == str(run / "own.csv")
    (run / "truth" / "config.toml").write_text(to_toml(private))
    for named in (run, run / "config.toml"):
        found = read(named)
        # where the file lies, and nothing else: the seed stays in truth/
        assert found == {
            "data": {"path": private["data"]["path"], "label": "y"},
            "topology": {"kind": "star"},
        }
