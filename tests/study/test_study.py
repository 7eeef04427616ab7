"""Several federations in several variants as one piece of work, with one report."""

import json
import shutil
import tomllib

import pytest

import fedaudit
from fedaudit.errors import ConfigError, IntegrityError, TraceError
from fedaudit.setup.config import load, load_variants
from fedaudit.setup.identity import code_sha256
from fedaudit.setup.toml import overlaid
from fedaudit.study import study
from fedaudit.study.folders import is_study
from fedaudit.trace import Trace, store, truth, view

SMALL = """
seed = 3
[data]
name = "gaussian-mixture"
records = 120
[partition]
kind = "iid"
[task]
kind = "mlp"
hidden = [4]
[federation]
clients = 4
rounds = 3
[training]
batch_size = 8
[protections.shuffle]
[audits.coverage]
[audits.fingerprint]
[compare]
base = "shuffled"
[compare.noise.protections.dp_sgd]
noise_multiplier = 2.0
[compare.sum.protections]
shuffle = false
secure_sum = {}
[thorough.federation]
rounds = 4
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("c") / "small.toml"
    file.write_text(SMALL, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("s") / "study"
    parts = study.plan([config])
    heard = []
    done = study.study(
        parts, out, forecasts=study.estimate_costs(parts), explain=lambda *told: heard.append(told)
    )
    return done, heard


def test_variants_differ_in_what_was_said_and_in_nothing_else(config):
    found = load_variants(config)
    assert list(found) == ["shuffled", "noise", "sum"]
    base, noise, total = (v.raw for v in found.values())
    assert list(base["protections"]) == ["shuffle"]
    assert list(noise["protections"]) == ["shuffle", "dp_sgd"]
    assert list(total["protections"]) == ["secure_sum"]
    for other in (noise, total):
        assert {k for k in base if base[k] != other[k]} == {"protections"}
    assert load(config).raw == base
    assert load(config, thorough=True).raw["federation"]["rounds"] == 4
    assert base["federation"]["rounds"] == 3


def test_laying_over_is_key_by_key_and_false_takes_a_section_away():
    under = {"a": {"x": 1, "y": {"z": 2}}, "b": {"c": True}, "d": 4}
    got = overlaid(under, {"a": {"x": 5, "y": False}, "b": {"c": False}, "e": {"f": 1}})
    assert got == {"a": {"x": 5}, "b": {"c": False}, "d": 4, "e": {"f": 1}}
    assert under["a"] == {"x": 1, "y": {"z": 2}}


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('[compare]\nbase = "x"\n[compare.x]\n', "compare.base is not a name of its own"),
        ("[compare.x.protections.shufle]\n", "shufle"),
        ("compare = 3\n", "compare is a section"),
        ("[compare]\nx = 3\n", "compare.x is a section"),
        ('[compare."A b"]\n[compare."a-B"]\n', "share a folder"),
    ],
)
def test_mistakes_in_variants_are_told(tmp_path, added, said):
    file = tmp_path / "wrong.toml"
    top = added if added.startswith("compare =") else ""
    file.write_text(top + '[data]\nname = "digits"\n' + ("" if top else added))
    with pytest.raises(ConfigError, match=said):
        study.plan([file])


def test_every_part_is_an_ordinary_run_and_the_report_covers_all(finished):
    done, _ = finished
    listed = json.loads((done.path / "study.json").read_text())["runs"]
    assert [r["path"] for r in listed] == ["small-shuffled", "small-noise", "small-sum"]
    for r in listed:
        assert (done.path / r["path"] / "trace" / "manifest.json").is_file()
    assert [c.variant for c in done.chapters] == ["shuffled", "noise", "sum"]
    page = (done.path / "report.html").read_text(encoding="utf-8")
    for variant in ("shuffled", "noise", "sum"):
        assert variant in page
    assert json.loads((done.path / "results.json").read_text())["chapters"]
    assert "client-0" not in page


def test_equal_noise_comes_with_what_an_allocation_would_change(finished):
    done, _ = finished
    by = {c.variant: c for c in done.chapters}
    assert by["shuffled"].allocation is None
    # four clients of one size have one leverage: nothing to allocate
    assert by["noise"].allocation is None


def test_nothing_is_done_twice_and_it_says_why(finished, config):
    done, first = finished
    assert not any(told.reused for _, told in first)
    again = []
    parts = study.plan([config])
    study.study(parts, done.path, explain=lambda *told: again.append(told))
    assert len(again) == len(first)
    # what did not apply is tried again: its need may be met by now
    assert {(t, r.stage) for t, r in again if not r.reused} == {("small, sum", "fingerprint")}
    assert {title for title, _ in again} == {"small, shuffled", "small, noise", "small, sum"}


def test_results_of_other_code_or_of_another_truth_do_not_count(finished, config, tmp_path):
    done, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(done.path, copy)
    for folder, change in (("small-shuffled", "code"), ("small-noise", "truth")):
        file = copy / folder / "results" / "fingerprint.json"
        stored = json.loads(file.read_text())
        assert stored["asked"]["code"] == code_sha256()
        stored["asked"][change] = "another"
        file.write_text(json.dumps(stored))
    heard = {}
    study.study(study.plan([config]), copy, explain=lambda t, r: heard.setdefault((t, r.stage), r))
    assert not heard["small, shuffled", "fingerprint"].reused
    assert "the code of fedaudit" in heard["small, shuffled", "fingerprint"].why
    assert not heard["small, noise", "fingerprint"].reused
    assert "records of clients" in heard["small, noise", "fingerprint"].why
    assert heard["small, shuffled", "coverage"].reused


def test_another_study_is_not_mixed_in(finished, config):
    done, _ = finished
    with pytest.raises(TraceError, match="holds another study"):
        study.study(study.plan([config], overrides=["federation.rounds=2"]), done.path)


def test_a_part_that_fails_is_named_and_the_others_are_reported(config, tmp_path):
    parts = study.plan([config])
    out = tmp_path / "study"
    (out / "small-noise").mkdir(parents=True)
    (out / "small-noise" / "mine.txt").write_text("do not touch")
    (out / "study.json").write_text(
        json.dumps(
            {
                "runs": [
                    {
                        "federation": p.federation,
                        "variant": p.variant,
                        "path": p.folder,
                        "config_sha256": p.config.sha256,
                    }
                    for p in parts
                ]
            }
        )
    )
    done = study.study(parts, out)
    assert list(done.failed) == ["small, noise"]
    assert len(done.runs) == 2
    assert "Not in this report: small, noise" in (out / "report.html").read_text()
    again = study.report(out)
    assert list(again.failed) == ["small, noise"]
    assert len(again.chapters) == 2


def test_one_config_without_variants_is_one_run(config, tmp_path):
    raw = load(config).raw
    done = study.study(study.plan([raw]), tmp_path / "one")
    assert not is_study(tmp_path / "one")
    assert (tmp_path / "one" / "run.json").is_file()
    assert len(done.runs) == 1


def test_the_built_in_default_is_two_federations_in_four_variants():
    parts = study.plan()
    assert [p.federation for p in parts] == ["digits"] * 4 + ["docs"] * 4
    asked = {p.federation: set() for p in parts}
    for p in parts:
        asked[p.federation] |= set(p.config.audits)
    assert asked["digits"] >= {
        "fingerprint",
        "reidentification",
        "two_stage_membership",
        "active_membership",
        "topology_inference",
        "query_plan",
    }
    assert asked["docs"] >= {
        "fingerprint",
        "reidentification",
        "two_stage_membership",
        "attribution",
    }


@pytest.mark.parametrize(
    ("variants", "free"), [(["x"], "as configured"), (["as configured", "x"], "base")]
)
def test_a_base_that_is_a_variant_is_offered_a_name_that_says_nothing_of_protections(
    config, variants, free
):
    raw = load(config).raw
    compare = {"base": "x", **{name: {"seed": 9} for name in variants}}
    with pytest.raises(ConfigError, match="not a name of its own") as refused:
        load_variants({**raw, "compare": compare})
    assert refused.value.remedy == f'base = "{free}"'
    assert "is a variant too" in refused.value.got


# -- reports of what there is ----------------------------------------------------------------------


def stopped(config, out, after):
    """A study that was stopped when so many rounds were recorded in all."""
    rounds = []

    def stop(stage, done, total, note):
        if stage == "train" and done and note != "already recorded":
            rounds.append(done)
            if len(rounds) == after:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.study(study.plan([config]), out, progress=stop)


def test_a_study_that_was_stopped_in_its_first_training_is_reported_and_marked(config, tmp_path):
    out = tmp_path / "study"
    stopped(config, out, 2)
    done = study.report(out)
    assert [c.title for c in done.chapters] == ["small, shuffled"]
    assert done.failed == {}
    assert done.unfinished == ("Unfinished: not run yet: small, noise; small, sum.",)
    said = "\n".join(done.chapters[0].notices)
    assert "Unfinished: 2 of 3 rounds are recorded so far" in said
    assert "no result yet of coverage, fingerprint" in said
    for file in ("report.html", "report.md", "results.json"):
        text = (out / file).read_text("utf-8")
        assert "Unfinished: 2 of 3 rounds are recorded so far" in text
        assert "not run yet: small, noise; small, sum" in text
    # and it goes on from there
    whole = study.study(study.plan([config]), out)
    assert len(whole.runs) == 3
    assert study.report(out).unfinished == ()


def test_the_report_over_all_parts_is_written_once_and_when_interrupted(
    config, tmp_path, monkeypatch
):
    written = []
    write = study.write_study
    monkeypatch.setattr(
        study, "write_study", lambda path, *a, **k: written.append(path) or write(path, *a, **k)
    )
    out = tmp_path / "study"
    stopped(config, out, 4)  # the first part is done, the second was begun
    assert written == [out]
    said = (out / "report.html").read_text("utf-8")
    assert "not run yet: small, noise; small, sum" in said
    assert len(study.study(study.plan([config]), out).chapters) == 3
    assert written == [out, out]
    assert "not run yet" not in (out / "report.html").read_text("utf-8")


def test_a_run_that_was_stopped_in_training_is_reported_alone(config, tmp_path):
    stopped(config, tmp_path / "study", 2)
    run = tmp_path / "study" / "small-shuffled"
    done = study.report_one(run)
    assert done.results == ()
    assert any("2 of 3 rounds" in notice for notice in done.chapter.notices)
    assert "held out" in done.summary
    assert "2 of 3 rounds" in (run / "report.html").read_text("utf-8")


def test_what_is_not_there_or_has_not_begun_says_so(config, tmp_path):
    with pytest.raises(TraceError, match="there is no run") as missing:
        study.report_one(tmp_path / "none")
    assert missing.value.got == "no such folder"
    out = tmp_path / "study"
    stopped(config, out, 1)
    shutil.rmtree(out / "small-shuffled")
    with pytest.raises(TraceError, match="has recorded nothing yet"):
        study.report(out)


def test_the_progress_of_the_whole_says_its_unit_and_what_is_left(config, tmp_path):
    parts = study.plan([config])
    told, own = [], []
    ahead = study.estimate_costs(parts)

    def hear(stage, done, total, note):
        if stage == "all":
            told.append((done, total, note))
        else:
            own.append(note)

    study.study(parts, tmp_path / "study", progress=hear, forecasts=ahead)
    assert all(note.startswith("seconds planned, about ") for _, _, note in told)
    assert all(" left: small, " in note for _, _, note in told)
    # every stage keeps its own words
    assert any("loss" in note for note in own)
    assert not any("seconds planned" in note for note in own)


def test_python_runs_every_variant(config, finished, tmp_path):
    done = fedaudit.run(config, tmp_path / "study")
    assert isinstance(done, study.Study)
    assert [one.path.name for one in done.runs] == ["small-shuffled", "small-noise", "small-sum"]
    assert done.findings == finished[0].findings
    assert [len(one.results) for one in done.runs] == [2, 2, 2]
    assert len(done.results) == 6
    assert done.report.is_file()
    assert not done.failed


def test_python_returns_a_study_of_one_run_too(tmp_path):
    raw = load_variants(tomllib.loads(SMALL))["shuffled"].raw
    done = fedaudit.run(raw, tmp_path / "one", overrides=["federation.rounds=2"])
    (one,) = done.runs
    assert (done.path, one.path) == (tmp_path / "one", tmp_path / "one")
    assert done.findings == one.findings
    assert done.report.is_file()


def test_python_warns_of_a_variant_that_failed(tmp_path):
    raw = tomllib.loads(SMALL)
    raw["compare"] = {"base": "plain", "many": {"federation": {"clients": 500}}}
    with pytest.warns(UserWarning, match="many failed"):
        done = fedaudit.run(raw, tmp_path / "study")
    assert len(done.runs) == 1
    assert [title.endswith("many") for title in done.failed] == [True]


# -- each trace is opened once ---------------------------------------------------------------------


@pytest.fixture
def counts(monkeypatch):
    """Opened traces and hashed files, in order."""
    opened, hashed = [], []
    plain_open, plain_verify = Trace.open.__func__, store.verify

    def count_open(cls, path, **how):
        opened.append(str(path))
        return plain_open(cls, path, **how)

    def count_verify(file, entry):
        hashed.append(str(file))
        return plain_verify(file, entry)

    monkeypatch.setattr(Trace, "open", classmethod(count_open))
    for module in (view, truth):
        monkeypatch.setattr(module, "verify", count_verify)
    return opened, hashed


def test_run_and_report_open_and_hash_each_trace_once(config, tmp_path, counts):
    opened, hashed = counts
    out = tmp_path / "study"
    for begin in (lambda: study.study(study.plan([config]), out), lambda: study.report(out)):
        opened.clear()
        hashed.clear()
        done = begin()
        assert sorted(opened) == sorted(str(run.path / "trace") for run in done.runs)
        assert len(hashed) == len(set(hashed)), "a file was hashed twice"
        assert sum("trace" in file for file in hashed) == 3 * 3


def test_a_report_of_one_run_opens_its_trace_once(finished, tmp_path, counts):
    run = tmp_path / "run"
    shutil.copytree(finished[0].runs[0].path, run)
    study.report(run)
    assert counts[0] == [str(run / "trace")]


@pytest.mark.parametrize(
    "name", ["trace/round-00002.safetensors", "truth/round-00002.safetensors", "truth/truth.json"]
)
def test_a_file_that_changes_between_audit_and_report_is_refused(
    name, config, tmp_path, monkeypatch
):
    plain = study.open_audited

    def altered(folder, before):
        file = folder / name
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        return plain(folder, before)

    monkeypatch.setattr(study, "open_audited", altered)
    with pytest.raises(IntegrityError):
        study.study(study.plan([config]), tmp_path / "study")
