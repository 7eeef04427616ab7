"""`fedaudit flower`, and what is said where Flower is missing."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedaudit import flower
from fedaudit.cli import app
from fedaudit.errors import ConfigError, UsageError

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "flower_quickstart"


def test_the_doctor_speaks_in_words_and_in_json():
    said = CliRunner().invoke(app, ["flower", "doctor", str(TEMPLATE)])
    assert said.exit_code == 0
    assert "in the clear" in said.stdout
    raw = json.loads(CliRunner().invoke(app, ["flower", "doctor", str(TEMPLATE), "--json"]).stdout)
    assert raw["strategies"] == ["FedAvg"]
    assert raw["audits"]["fingerprint"][0] is True


def test_a_folder_that_is_no_app(tmp_path):
    said = CliRunner().invoke(app, ["flower", "doctor", str(tmp_path)])
    assert isinstance(said.exception, ConfigError)
    assert said.exception.exit_code == 2


def test_without_flower_one_line_says_how_to_get_it(monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    said = CliRunner().invoke(app, ["flower", "try", str(TEMPLATE)])
    assert isinstance(said.exception, UsageError)
    assert said.exception.remedy == 'pip install "fedaudit[flower]"'
    for name in ("RecordingStrategy", "record_mod"):
        with pytest.raises(UsageError, match="not installed"):
            getattr(flower, name)


def test_versions_out_of_range_are_refused(monkeypatch):
    from importlib import metadata

    for version in ("1.40.2", "1.42.0"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        with pytest.raises(UsageError, match=r"1\.41 or later, below 1\.42"):
            flower.require()


def test_nothing_is_reported_home(monkeypatch):
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')
    import os

    for key in flower.QUIET:
        monkeypatch.delenv(key, raising=False)
    flower.require()
    assert all(os.environ[k] == v for k, v in flower.QUIET.items())
    assert "flwr" not in {n for n in sys.modules if n == "flwr.supercore.telemetry"}
