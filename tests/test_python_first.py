"""The whole public surface, as a notebook user calls it, on one small recorded run."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedaudit
from fedaudit.audits import Coverage, Fingerprint, QueryPlan
from fedaudit.errors import UsageError
from fedaudit.frames import Tabular
from fedaudit.protections import Clip, SecureSum, Shuffle, UpdateNoise
from fedaudit.study.folders import commands

CONFIG = {
    "seed": 5,
    "data": {"name": "gaussian-mixture", "records": 120},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "audits": {"coverage": {}, "fingerprint": {"confidence": 0.9}},
}
FUNCTIONS = ("audit", "diff", "gate", "guard", "harden", "init", "power", "report", "run")
LIMIT = {"name": "linkage", "metric": "fingerprint.linkage_accuracy", "at_most_times_chance": 1.5}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return fedaudit.run(CONFIG, tmp_path_factory.mktemp("surface") / "run")


@pytest.fixture(scope="module")
def shuffled(study):
    return fedaudit.audit(study, [Fingerprint(methods=("joint",))], as_if=[Shuffle()])


def read_as_table(outcome):
    """An outcome as pandas reads it; the notebook shows the same columns."""
    assert isinstance(outcome, Tabular)
    frame = outcome.to_frame()
    shown = outcome._repr_html_()
    assert all(f"<th>{name}</th>" in shown for name in frame.columns)
    assert shown.count("<tr>") == len(frame) + 1
    return frame


def test_every_verb_is_at_the_top_level_and_takes_keywords():
    for name in FUNCTIONS:
        function = getattr(fedaudit, name)
        parameters = inspect.signature(function).parameters.values()
        assert sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) <= 2, name
        assert inspect.signature(function).return_annotation != inspect.Signature.empty, name
        assert function.__doc__, name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_verb_prints(name):
    source = Path(inspect.getsourcefile(getattr(fedaudit, name))).read_text(encoding="utf-8")
    called = [n.func for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    assert "print" not in {f.id for f in called if isinstance(f, ast.Name)}


def test_a_run_is_a_study_with_findings_results_and_figures(study):
    (one,) = study.runs
    assert study.path == one.path
    assert [r.audit for r in study.results] == ["coverage", "fingerprint"]
    assert {f.verdict for f in study.findings} <= {"leak", "no_evidence", "nothing_to_say"}
    frame = read_as_table(study)
    assert len(frame) == len(study.findings)
    assert frame["federation"].unique().tolist() == ["gaussian-mixture"]
    estimates = read_as_table(study.estimates)
    assert {"audit", "measure", "value", "low", "high", "chance", "headline"} <= {*estimates}
    assert len(estimates) == sum(max(1, len(r.estimates)) for r in study.results)
    assert study.report.is_file()


def test_an_audit_takes_objects(study, shuffled):
    (result,) = shuffled.results
    assert result.settings["methods"] == ["joint"]
    assert result.headline == "linkage_accuracy"
    assert shuffled.path == study.path.with_name("run-as-shuffle")
    assert read_as_table(result)["measure"].tolist() == list(result.estimates)
    (finding,) = shuffled.findings
    assert read_as_table(finding)["value"].tolist() == [finding.estimate.value]


def test_figures_show_inline(shuffled, tmp_path):
    assert shuffled.figures
    for figure in shuffled.figures:
        assert figure.audit == "fingerprint"
        assert figure._repr_html_().startswith("<figure")
        assert figure.title
    saved = shuffled.figures[0].save(tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert saved.startswith("<svg xmlns")


def test_names_and_objects_ask_for_the_same(study, tmp_path):
    by_name = fedaudit.audit(study, ["query_plan"], as_if=["secure_sum"], out=tmp_path / "a")
    by_object = fedaudit.audit(study, [QueryPlan()], as_if=[SecureSum()], out=tmp_path / "b")
    assert by_name.results[0].settings == by_object.results[0].settings
    assert by_name.results[0].estimates == by_object.results[0].estimates
    assert [c.command for c in commands(by_name.path)] == [
        c.command for c in commands(by_object.path)
    ]


def test_a_name_keeps_the_settings_of_the_run_and_single_ones_can_change(study, tmp_path):
    out = tmp_path / "seen"
    kept = fedaudit.audit(study, ["fingerprint"], out=out, as_if=["shuffle"])
    assert kept.results[0].settings["confidence"] == 0.9
    settings = {"fingerprint": {"methods": ["joint"]}}
    changed = fedaudit.audit(study, ["fingerprint"], settings=settings, out=out, as_if=["shuffle"])
    assert changed.results[0].settings["confidence"] == 0.9
    assert changed.results[0].settings["methods"] == ["joint"]


def test_the_report_names_the_command_that_does_the_same(study, tmp_path):
    asked = [Fingerprint(methods=("joint",), confidence=0.9), Coverage()]
    hooks = [Clip(bound=0.5), UpdateNoise(clip=1.0, noise_multiplier=0.5)]
    done = fedaudit.audit(study, asked, as_if=hooks, out=tmp_path / "seen", seed=4)
    (command,) = commands(done.path)
    assert command.audits == ("fingerprint", "coverage")
    assert command.command == (
        "fedaudit audit RUN --only fingerprint --only coverage --as clip:bound=0.5 "
        "--as update_noise:noise_multiplier=0.5 "
        """--set 'audits.fingerprint.methods=["joint"]' --seed 4"""
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"audits": [Fingerprint]}, "not an audit"),
        ({"audits": [3]}, "not an audit"),
        ({"audits": [Fingerprint(), "fingerprint"]}, "given twice"),
        ({"as_if": [3]}, "not a protection"),
        ({"as_if": ["clip:bound=1.0"]}, "unknown protection"),
        ({"audits": ["coverage"], "settings": {"fingerprint": {}}}, "does not run"),
        ({"audits": [Fingerprint()], "settings": {"fingerprint": {"sketch": 1}}}, "as an object"),
    ],
)
def test_what_is_no_audit_or_protection_is_refused(study, given, message):
    with pytest.raises(UsageError, match=message) as refused:
        fedaudit.audit(study, **given)
    assert refused.value.remedy


def test_an_object_that_fails_raises_and_a_name_says_so_in_its_result(study, tmp_path):
    with pytest.raises(UsageError, match="no tensor matches"):
        fedaudit.audit(
            study, [Fingerprint(features=("nope",))], as_if=[Shuffle()], out=tmp_path / "a"
        )
    wrong = {"fingerprint": {"features": ["nope"]}}
    done = fedaudit.audit(study, wrong, as_if=[Shuffle()], out=tmp_path / "b")
    assert done.results[0].status == "failed"


def test_report_reads_a_run_again(study):
    again = fedaudit.report(study)
    assert again.findings == study.findings
    assert again.failed == {}
    assert read_as_table(again).equals(study.to_frame())


def test_gate(shuffled):
    gate = fedaudit.gate(shuffled, {"limit": [LIMIT]})
    (check,) = gate.checks
    assert check.metric == "fingerprint.linkage_accuracy"
    assert gate.passed is (check.status == "passed")
    frame = read_as_table(gate)
    assert frame["bound"].tolist() == [r.bound for r in check.readings]
    missing = fedaudit.gate(
        shuffled, {"limit": [{**LIMIT, "metric": "query_plan.smallest_exposed_group"}]}
    )
    assert missing.counts["missing"] == 1
    assert read_as_table(missing)["status"].tolist() == ["missing"]


def test_diff(study, tmp_path):
    noisy = CONFIG | {"protections": {"dp_sgd": {"noise_multiplier": 3.0}}}
    other = fedaudit.run(noisy, tmp_path / "noisy")
    changes = fedaudit.diff(study, other)
    (change,) = changes
    assert changes.worse is change.worse
    frame = read_as_table(changes)
    assert frame["change"].tolist() == [d.change for d in change.differences]
    assert any(name.startswith("protections") for name, _, _ in change.settings)


def test_power(study, shuffled):
    sizes = fedaudit.power(shuffled, audits=["fingerprint"], effect=0.1)
    assert [n.audit for n in sizes] == ["fingerprint"] * len(sizes)
    assert sizes.power == 0.9
    assert read_as_table(sizes)["enough"].tolist() == [n.enough for n in sizes]
    planned = fedaudit.power(audits=["fingerprint"], clients=30)
    assert planned.enough is None
    assert all(n.have is None for n in planned)
    with pytest.raises(UsageError):
        fedaudit.power()


def test_guard(study):
    received = fedaudit.guard(study)
    assert {s.round for s in received.seen} == {1, 2, 3}
    assert len(read_as_table(received)) == len(received.seen)
    rng = np.random.default_rng(1)
    one = fedaudit.guard({"0.weight": rng.normal(size=(40, 30)).astype(np.float32)})
    assert one.verdict == "no_evidence"
    assert read_as_table(one)["name"].tolist() == [c.name for c in one.checks]


def test_init(tmp_path):
    rows = [f"{'AB'[i % 2]},{i % 7},{i % 3},{'yes' if i % 5 else 'no'}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,a,b,outcome", *rows]) + "\n")
    written = fedaudit.init(tmp_path / "t.csv", tmp_path / "c.toml", client="site")
    assert written.path.read_text(encoding="utf-8") == written.text
    assert (written["client"], written.why("client")) == ("site", "as you said")
    assert written["clients"] == 2
    assert written.doubts == ()
    assert len(read_as_table(written)) == len(written.choices)
    # the config stands for its file
    games = [f"audits.active_membership.{k}" for k in ("games=40", "recorded=2", "simulated=50")]
    done = fedaudit.run(written, tmp_path / "run", overrides=["federation.rounds=1", *games])
    assert not done.failed
    names = ["as it is", "secure aggregation", "secure aggregation, DP-SGD"]
    assert [c.variant for c in done.chapters] == names
    assert read_as_table(done)["variant"].unique().tolist() == names


def test_harden(tmp_path):
    policy = {"limit": [{"metric": "coverage.kinds_outside_protection", "at_most": 1e9}]}
    found = fedaudit.harden(CONFIG, tmp_path, policy=policy, workers=1, curve=0, only=["shuffle"])
    assert found.succeeded
    frame = read_as_table(found)
    assert frame["protection"].tolist() == [p.label for p in found.points]
    assert frame["chosen"].sum() == 1
    assert len(found.figures) == len(found.metrics)
    assert all(figure._repr_svg_() == figure.svg for figure in found.figures)


def test_tables_call_clients_by_the_names_of_the_report(tmp_path):
    rows = [f"{'AB'[i % 2]}<b>,{i % 7},{i % 3},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,a,b,y", *rows]) + "\n")
    data = {"path": str(tmp_path / "t.csv"), "label": "y", "client": "site"}
    config = CONFIG | {"data": data, "partition": {"kind": "by_owner"}}
    config = config | {"federation": {"clients": 2, "rounds": 2}}
    for names, expected in ((False, False), (True, True)):
        done = fedaudit.run(config, tmp_path / "run", names=names)
        page = done.report.read_text(encoding="utf-8")
        assert ("A&lt;b&gt;" in page) is expected
        shown = done._repr_html_() + "".join(f._repr_html_() for f in done.figures)
        assert "<b>" not in shown
        assert names or "A&lt;b&gt;" not in shown


def test_frames_are_plain_numbers_and_text(study):
    frame = study.estimates.to_frame()
    assert pd.api.types.is_float_dtype(frame["value"])
    assert set(frame["audit"].map(type)) == {str}


def test_outcomes_print_in_a_few_lines(study, shuffled):
    for outcome in (study, study.runs[0], study.results[0], study.findings[0], study.estimates):
        for text in (str(outcome), repr(outcome)):
            assert len(text) < 800
            assert len(text.splitlines()) <= 7
            assert type(outcome).__name__ in text
    assert str(study.path) in str(study)
    assert len(repr(shuffled)) < 800
    assert "<table>" in study._repr_html_()
