"""What a config can name: everything is found, and everything says what it is."""

import dataclasses
import tomllib

import pytest

from fedaudit.errors import ConfigError
from fedaudit.hooks import Hook
from fedaudit.setup.catalogue import AUDITS, PROTECTIONS, find
from fedaudit.setup.config import load
from fedaudit.setup.listing import WRITTEN, listing


def test_every_name_leads_to_a_class_that_bears_it():
    for name in AUDITS:
        cls = find(AUDITS, "audit", name)
        assert cls.name == name
        assert dataclasses.is_dataclass(cls)
        assert cls.question.endswith("?")
    for name in PROTECTIONS:
        cls = find(PROTECTIONS, "protection", name)
        assert cls.name == name
        assert issubclass(cls, Hook)


def test_every_row_of_the_list_has_a_line_and_typed_settings():
    rows = [row for section in listing().values() for row in section]
    assert len(rows) > 30
    for name, line, settings in rows:
        assert line.strip(), name
        assert "\n" not in line
        for key, (kind, default) in settings.items():
            assert kind, f"{name}.{key}"
            assert "typing" not in kind, f"{name}.{key}"
            assert isinstance(default, str)


def test_every_section_of_the_list_says_where_a_config_has_it():
    assert list(WRITTEN) == list(listing())
    raw = {"data": {"name": "digits"}}
    for section in ("partitions", "topologies", "audits", "protections"):
        name = listing()[section][0][0]
        written = WRITTEN[section].replace("NAME", name).replace("] ", "]\n")
        made = load({**raw, **tomllib.loads(written)})
        assert name in str(getattr(made, written.strip("[").partition("]")[0].partition(".")[0]))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        find(AUDITS, "audit", "coverge")
    assert "'coverage'" in caught.value.remedy


def test_a_fetched_model_is_no_data_set():
    found = listing()
    assert [name for name, *_ in found["models"]] == ["smollm2"]
    assert "smollm2" not in [name for name, *_ in found["datasets"]]
