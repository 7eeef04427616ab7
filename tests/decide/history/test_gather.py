"""Many runs on one page: a line per measure, what changed between neighbours, links."""

import re
import shutil

import pytest

import fedaudit
from fedaudit.decide.history import history
from fedaudit.errors import UsageError
from fedaudit.setup.toml import to_toml
from fedaudit.study import run
from fedaudit.study.folders import runs_below

CONFIG = {
    "seed": 3,
    "data": {"name": "gaussian-mixture", "records": 120, "dimension": 4},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 4, "rounds": 3},
    "audits": {"coverage": {}, "fingerprint": {}},
}
POLICY = """
[[limit]]
name = "linkage"
metric = "fingerprint.linkage_accuracy"
at_most_times_chance = 2.0
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    run(CONFIG, home / "first")
    run({**CONFIG, "protections": {"shuffle": {}}}, home / "second")
    return home


def test_a_measure_that_every_run_has_is_one_line_with_limits(runs, tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY)
    done = history([runs / "first", runs / "second"], tmp_path, policy=tmp_path / "policy.toml")
    (line,) = [x for x in done.lines if "linkage accuracy" in x.title]
    assert [m.run for m in line.moments] == ["first", "second"]
    assert line.moments[0].words == "known outright"
    assert line.limits == (("linkage", 0.5),)
    html = done.path.read_text()
    assert "limit linkage" in html
    assert f'href="{(runs / "first" / "report.html").name}"' in html or "first/report.html" in html
    assert not re.search(r"https?://|<script", html)


def test_studies_of_differently_named_files_share_their_lines(tmp_path):
    """The federation is named after its file; the line is about the federation."""
    protections = {"shuffled": {"protections": {"shuffle": {}}}}
    study = {**CONFIG, "compare": {"base": "bare", **protections}}
    for name in ("january", "february"):
        (tmp_path / f"{name}.toml").write_text(to_toml(study))
        fedaudit.run(tmp_path / f"{name}.toml", tmp_path / name)
    done = history([tmp_path / "january", tmp_path / "february"], tmp_path)
    lines = [x for x in done.lines if "linkage accuracy" in x.title]
    assert [x.label for x in lines] == ["january, bare", "january, shuffled"]
    assert all([m.run for m in x.moments] == ["january", "february"] for x in lines)
    assert all(m.estimate is not None for x in lines for m in x.moments)


def test_neighbours_say_what_changed(runs, tmp_path):
    (change,) = history([runs / "first", runs / "second"], tmp_path).changes
    assert (change.first, change.second) == ("first", "second")
    assert any("protections.shuffle" in text for text in change.changes)
    (none,) = history([runs / "first", runs / "first"], tmp_path).changes
    assert [t for t in none.changes if "unchanged" in t] == list(none.changes)


def test_a_folder_of_runs_is_read_in_the_order_of_recording(runs):
    assert [f.name for f in runs_below(runs)] == ["first", "second"]
    assert runs_below(runs / "first") == []
    assert runs_below(runs / "nothing") == []


def test_what_cannot_be_read_is_named_and_one_run_is_no_time_line(runs, tmp_path):
    shutil.copytree(runs / "first", tmp_path / "torn")
    (tmp_path / "torn" / "trace" / "manifest.json").write_text("{")
    done = history([runs / "first", tmp_path / "torn", runs / "second"], tmp_path)
    assert [text.split(":")[0] for text in done.left_out] == ["torn"]
    assert "Left out: torn" in done.path.read_text()
    with pytest.raises(UsageError, match="several runs"):
        history([runs / "first", tmp_path / "torn"], tmp_path)
