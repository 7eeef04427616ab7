"""Audits of a run: one that fails does not cost the others; what did not apply is tried again."""

import json
import stat

import numpy as np
import pytest

from fedaudit import study
from fedaudit.errors import IntegrityError, UsageError
from fedaudit.reporting.shown_records import BANNER
from fedaudit.study import audit
from fedaudit.study.reuse import truth_digest
from fedaudit.study.stored import result_sha256
from fedaudit.trace import Truth, TruthRecorder

CONFIG = {
    "data": {"name": "gaussian-mixture", "records": 120},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 4, "rounds": 2},
    "training": {"batch_size": 8},
    "protections": {"shuffle": {}},
    "audits": {"topology_inference": {"sensitive": [99]}, "fingerprint": {}},
}


def raising(task, parameters, x, y, noise):
    raise ValueError("a mistake of one's own")


def test_a_failing_audit_is_named_and_the_others_are_reported(tmp_path):
    found = study.run(CONFIG, tmp_path / "run")
    verdicts = {f.audit: f for f in found.findings}
    assert verdicts["fingerprint"].estimate is not None
    assert verdicts["topology_inference"].verdict == "failed"
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Failed: topology_inference" in page
    again = []
    study.run(CONFIG, tmp_path / "run", explain=again.append)
    reused = {told.stage: told.reused for told in again}
    assert reused == {"train": True, "topology_inference": False, "fingerprint": True}


def test_a_setting_that_was_just_typed_and_fails_ends_with_its_own_message(tmp_path):
    """The failing audit of the config is still only named: nobody typed that one now."""
    study.run(CONFIG, tmp_path / "run")
    with pytest.raises(UsageError, match="no tensor matches"):
        audit(tmp_path / "run", settings={"fingerprint": {"features": ["nope"]}})
    found = audit(tmp_path / "run", settings={"fingerprint": {"features": ["1.weight"]}})
    verdicts = {f.audit: f for f in found.findings}
    assert verdicts["fingerprint"].estimate is not None
    assert verdicts["topology_inference"].verdict == "failed"


def test_an_error_in_code_of_ones_own_is_named_too(tmp_path):
    audits = {"two_stage_membership": {"score_by": f"{__name__}:raising"}, "fingerprint": {}}
    found = study.run({**CONFIG, "audits": audits}, tmp_path / "run")
    said = {r.audit: r for r in found.results}
    assert said["two_stage_membership"].status == "failed"
    assert "a mistake of one's own" in said["two_stage_membership"].need.got
    assert said["fingerprint"].headline is not None


def test_a_crash_of_an_audit_names_the_line(tmp_path, monkeypatch):
    def crash(*args, **settings):
        raise KeyError("a fault of the package")

    from fedaudit.audits.fingerprint import audit as fingerprint

    monkeypatch.setattr(fingerprint, "link_test", crash)
    found = study.run({**CONFIG, "audits": {"fingerprint": {}}}, tmp_path / "run")
    (result,) = found.results
    assert (result.status, result.need.code) == ("failed", "error")
    assert "a fault of the package" in result.need.what
    line = crash.__code__.co_firstlineno + 1
    assert f"test_auditing.py:{line})" in result.need.what


def test_what_did_not_apply_is_tried_again_when_the_need_is_met(tmp_path):
    table = tmp_path / "own.csv"
    rng = np.random.default_rng(2)
    rows = [f"{i % 4},{rng.normal():.6f},{rng.normal():.6f},{'ab'[i % 2]}" for i in range(160)]
    table.write_text("\n".join(["hospital,u,v,y", *rows]))
    config = {
        **CONFIG,
        "data": {"path": str(table), "label": "y", "client": "hospital"},
        "partition": {"kind": "by_owner"},
        "audits": {"two_stage_membership": {"records": 4, "checked_records": 2}},
    }
    moved = table.rename(tmp_path / "elsewhere.csv")
    moved.rename(table)
    study.run(config, tmp_path / "run")
    (tmp_path / "run" / "results" / "two_stage_membership.json").unlink()
    table.rename(moved)
    (away,) = study.audit(tmp_path / "run").results
    assert away.need.code == "unreadable_records"
    moved.rename(table)
    (back,) = study.audit(tmp_path / "run").results
    assert back.headline is not None


def test_equal_runs_have_equal_evidence_and_own_digests(tmp_path):
    runs = [study.run({**CONFIG, "audits": {"fingerprint": {}}}, tmp_path / n) for n in "ab"]
    a, b = (run.path / "results" / "fingerprint.json" for run in runs)
    assert result_sha256(a) == result_sha256(b)
    first, second = (Truth.open(run.path / "truth") for run in runs)
    assert truth_digest(first) == truth_digest(first)
    # keyed: nobody can find a small seed by trying
    assert truth_digest(first) != truth_digest(second)
    changed = Truth(first.path, {**first.facts, "held_out": -1})
    assert truth_digest(changed) != truth_digest(first)


def test_a_truth_whose_senders_are_permuted_is_refused(tmp_path):
    """Rounds hold the senders: a score is not reused for others, nor made with them."""
    study.run({**CONFIG, "audits": {"fingerprint": {}}}, tmp_path / "run")
    truth = tmp_path / "run" / "truth"
    a, b = (truth / f"round-0000{n}.safetensors" for n in (1, 2))
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    with pytest.raises(IntegrityError, match="round-00001"):
        study.audit(tmp_path / "run")
    # written by a recorder, permuted senders are another truth: nothing is reused
    a.write_bytes(first)
    b.write_bytes(second)
    known = Truth.open(truth)
    before, senders = truth_digest(known), known.senders(1)
    others = [*list(senders.values())[1:], *list(senders.values())[:1]]
    TruthRecorder(truth, known.facts).round(1, dict(zip(senders, others, strict=True)))
    assert truth_digest(Truth.open(truth)) != before


@pytest.mark.parametrize("regions", ["one", "each"])
def test_an_organisation_that_tells_nobody_apart_costs_nothing(tmp_path, regions):
    table = tmp_path / "own.csv"
    # clients of unequal size: there is something to allocate by
    who = [c for c in range(4) for _ in range(30 + 10 * c)]
    place = {"one": lambda c: 0, "each": lambda c: c}[regions]
    rows = [f"h{c},r{place(c)},{i % 7},{i % 5},{'ab'[i % 2]}" for i, c in enumerate(who)]
    table.write_text("\n".join(["hospital,region,u,v,y", *rows]))
    data = {"path": str(table), "label": "y", "client": "hospital", "organisation": "region"}
    found = study.run(
        {
            **CONFIG,
            "data": data,
            "partition": {"kind": "by_owner"},
            "protections": {"dp_sgd": {}},
            "audits": {"coverage": {}},
        },
        tmp_path / "run",
    )
    assert found.chapter.allocation is not None
    said = json.loads((tmp_path / "run" / "results.json").read_text())["chapters"][0]
    assert said["allocation"]["unit"] == "record"
    assert "size" in said["allocation"]["leverage"]


def test_a_blind_audit_shows_what_was_guessed(tmp_path):
    import shutil

    study.run({**CONFIG, "audits": {"fingerprint": {}}}, tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "trace", tmp_path / "alone" / "trace")
    blind = study.audit(tmp_path / "alone" / "trace", ["fingerprint"])
    (result,) = blind.results
    assert (result.status, result.need.code) == ("blind", "no_truth")
    assert sum(row["updates"] for row in result.per_client.values()) == 8
    page = (blind.path / "report.html").read_text(encoding="utf-8")
    assert "group 1" in page
    assert "Blind" in page


def test_a_report_whose_truth_is_gone_says_that_scores_are_old(tmp_path):
    import shutil

    study.run({**CONFIG, "audits": {"fingerprint": {}}}, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "truth")
    study.report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "The truth has been removed since" in page
    assert "Blind" not in page


def test_a_study_is_no_trace_and_names_its_runs(tmp_path):
    runs = [{"federation": "a", "variant": v, "path": f"a-{v}"} for v in ("x", "y")]
    (tmp_path / "study.json").write_text(json.dumps({"runs": runs}))
    with pytest.raises(UsageError, match="holds several runs") as refused:
        audit(tmp_path)
    assert str(tmp_path / "a-x") in refused.value.got
    assert str(tmp_path / "a-y") in refused.value.got
    assert refused.value.remedy.endswith(f"fedaudit audit {tmp_path / 'a-x'}")


def test_records_are_shown_on_a_private_page_that_was_asked_for_and_nowhere_else(tmp_path):
    home, page = tmp_path / "run", tmp_path / "shown.html"
    asked = {"reconstruction": {"matched_rounds": 0, "dishonest": "none"}, "fingerprint": {}}
    study.run({**CONFIG, "audits": asked, "protections": {}}, home)
    before = (home / "results" / "reconstruction.json").read_text(encoding="utf-8")
    audit(home, ["reconstruction"], show_records=page)
    assert BANNER in page.read_text(encoding="utf-8")
    assert "<td" in page.read_text(encoding="utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert BANNER not in (home / "report.html").read_text(encoding="utf-8")
    after = json.loads((home / "results" / "reconstruction.json").read_text(encoding="utf-8"))
    assert after["result"]["estimates"] == json.loads(before)["result"]["estimates"]
    with pytest.raises(UsageError, match="no audit rebuilds any"):
        audit(home, ["fingerprint"], show_records=page)
