"""One seal over the files of a run: what was changed is named, what was purged is not missing."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedaudit.decide.diff.compare import diff
from fedaudit.decide.gate.evidence import run_evidence
from fedaudit.errors import IntegrityError, TraceError
from fedaudit.study import audit, report, study
from fedaudit.study import run as run_one
from fedaudit.study.seal import (
    PRIVATE,
    check_seal,
    check_signature,
    examine,
    examine_run,
    seal,
    sign,
)

SMALL = {
    "seed": 1,
    "data": {"name": "gaussian-mixture", "records": 80},
    "task": {"kind": "mlp", "hidden": [3]},
    "federation": {"clients": 3, "rounds": 2},
    "protections": {"dp_sgd": {"clip": 1.0, "noise_multiplier": 1.0}},
    "audits": {"coverage": {}, "fingerprint": {}},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run_one(SMALL, out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def states(folder):
    return {c.part: c.state for c in examine(folder)}


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_finished_run_is_whole(run):
    assert states(run) == dict.fromkeys(
        ["config", "trace", "truth", "checkpoint", "results"], "whole"
    )
    assert all(c.fine for c in examine_run(run))
    check_seal(run)


SEALED = [
    "config.toml",
    "run.json",
    "seal.json",
    "trace/manifest.json",
    "trace/round-00001.safetensors",
    "truth/truth.json",
    "truth/index.json",
    "truth/seal.json",
    "truth/config.toml",
    "truth/identity.json",
    "truth/round-00002.safetensors",
    "checkpoint/checkpoint.json",
    "checkpoint/state-00002.safetensors",
    "results/fingerprint.json",
]


@pytest.mark.parametrize("file", SEALED)
@pytest.mark.parametrize("how", ["one bit", "gone"])
def test_one_changed_file_is_found(run, file, how, in_process):
    flip(run / file) if how == "one bit" else (run / file).unlink()
    done = in_process("verify", run)
    assert done.code == 3, done.out
    # and whoever decides by a run refuses it
    if file.startswith("checkpoint/state"):
        return  # read by a run that goes on, and refused there
    for use in (run_evidence, report, lambda r: diff(r, r)):
        with pytest.raises(TraceError):
            use(run)
    if file.startswith("results/"):
        audit(run)  # makes it again
        check_seal(run)
    elif file != "seal.json":
        with pytest.raises(TraceError):
            audit(run)


def test_every_file_of_a_run_is_sealed_or_made_again(run):
    """The next file that a run writes has to be put into one of the two lists."""
    again = ["findings.json", "report.html", "report.md", "results.json"]
    again += ["truth/cache-key", "truth/allocation.json.key"]
    files = {str(f.relative_to(run)) for f in run.rglob("*") if f.is_file()} - set(again)
    for file in sorted(files):
        copy = run.parent / "copy"
        shutil.copytree(run, copy)
        flip(copy / file)
        try:
            wrong = not all(c.fine for c in examine_run(copy))
        except IntegrityError:
            wrong = True
        assert wrong, file
        shutil.rmtree(copy)


def test_a_better_epsilon_cannot_be_written_into_the_truth(run):
    file = run / "truth" / "truth.json"
    facts = json.loads(file.read_text())
    facts["guarantees"]["dp_sgd"]["client-00"]["epsilon"] = 0.1
    file.write_text(json.dumps(facts))
    with pytest.raises(IntegrityError):
        run_evidence(run)


def test_a_result_that_nobody_made_is_refused(run):
    shutil.copy(run / "results" / "coverage.json", run / "results" / "query_plan.json")
    with pytest.raises(IntegrityError, match="query_plan"):
        run_evidence(run)


def test_an_altered_result_is_not_blessed_by_another_audit(run):
    """Neither by an audit that is asked beside it, nor by a run that makes a new one."""
    file = run / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    raw["result"]["notes"] = ["nothing was found"]
    file.write_text(json.dumps(raw))
    with pytest.raises(IntegrityError, match="fingerprint"):
        audit(run, ["query_plan"])
    config = SMALL | {"audits": {"coverage": {}, "query_plan": {}}}
    run_one(config, run)
    with pytest.raises(IntegrityError, match="fingerprint"):
        run_evidence(run)


@pytest.mark.parametrize("name", ["promised.json", "allocation.json"])
def test_a_promise_that_nobody_made_is_refused(run, name):
    trace = json.loads((run / "trace" / "manifest.json").read_text())["sha256"]
    (run / name).write_text(json.dumps({"trace_sha256": trace, "guarantees": {}}))
    for use in (run_evidence, audit):
        with pytest.raises(IntegrityError, match=name):
            use(run)


@pytest.mark.parametrize("command", [("guard",), ("plan", "check"), ("attack",)])
def test_commands_that_read_a_run_refuse_an_altered_one(run, command, in_process):
    flip(run / "truth" / "index.json")
    done = in_process(*command, run / "trace")
    assert done.code == 3
    assert "as they were sealed" in done.err


def test_a_part_that_is_held_back_is_not_changed(run):
    for part in PRIVATE:
        shutil.rmtree(run / part)
    assert states(run)["truth"] == "held back"
    check_seal(run)


def test_a_later_audit_appends(run):
    before = json.loads((run / "seal.json").read_text())["parts"]
    audit(run, ["query_plan"])
    after = json.loads((run / "seal.json").read_text())["parts"]
    assert after["trace"] == before["trace"]
    assert set(after["results"]) - set(before["results"]) == {"results/query_plan.json"}
    check_seal(run)


def test_digests_of_truth_are_in_the_truth_alone(run):
    private = json.loads((run / "truth" / "seal.json").read_text())
    public = (run / "seal.json").read_text()
    for part in PRIVATE:
        assert private["parts"][part]
        assert not any(digest in public for digest in private["parts"][part].values())
    assert len(private["salt"]) >= 32
    assert stat.S_IMODE(os.stat(run / "truth" / "seal.json").st_mode) == 0o600


def test_equal_truths_have_different_commitments(finished, tmp_path):
    run_one(SMALL, tmp_path / "other")
    one, two = (json.loads((f / "seal.json").read_text()) for f in (finished, tmp_path / "other"))
    assert one["parts"]["trace"] == two["parts"]["trace"]
    assert one["truth"] != two["truth"]


# -- signatures ------------------------------------------------------------------------------------


def keys():
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return secret, public


def test_a_signature_holds_until_something_changes(run):
    secret, public = keys()
    with pytest.raises(IntegrityError, match="not signed"):
        check_signature(run, public)
    assert sign(run, secret).encode() == public
    check_signature(run, public)
    with pytest.raises(IntegrityError, match="not signed"):
        check_signature(run, keys()[1])
    audit(run, ["query_plan"])
    with pytest.raises(IntegrityError, match="not signed"):
        check_signature(run, public)


def test_a_forger_who_seals_again_is_found_by_the_signature(run):
    secret, public = keys()
    sign(run, secret)
    file = run / "results" / "fingerprint.json"
    file.write_text(file.read_text().replace("0.", "0.0", 1))
    seal(run, "results")
    check_seal(run)  # digests alone do not stop a forger
    with pytest.raises(IntegrityError, match="not signed"):
        check_signature(run, public)


def test_what_was_altered_is_not_signed(run):
    flip(run / "config.toml")
    with pytest.raises(IntegrityError, match="config"):
        sign(run, keys()[0])


@pytest.mark.parametrize("key", [b"", b"-----BEGIN PRIVATE KEY-----\n", b"\x00" * 40])
def test_what_is_no_key_is_refused(run, key):
    with pytest.raises(TraceError, match="key"):
        sign(run, key)
    with pytest.raises(TraceError, match="key"):
        check_signature(run, key)


def test_the_signature_of_a_study_covers_its_runs(tmp_path, in_process, monkeypatch):
    config = SMALL | {"compare": {"base": "noisy", "plain": {"protections": {"dp_sgd": False}}}}
    folder = tmp_path / "s"
    study.study(study.plan([config]), folder)
    secret, public = keys()
    (tmp_path / "key.pem").write_bytes(secret)
    (tmp_path / "public.pem").write_bytes(public)
    (tmp_path / "p.toml").write_text('[[limit]]\nmetric = "accuracy"\nat_least = 0.0\n')
    monkeypatch.chdir(tmp_path)
    gate = ("gate", "s", "--policy", "p.toml", "--require-signature", "public.pem")
    assert in_process(*gate).code == 3
    assert in_process("seal", "s", "--key", "key.pem").code == 0
    assert in_process(*gate).code == 0
    one, two = sorted(e for e in folder.iterdir() if (e / "run.json").exists())
    flip(one / "config.toml")
    seal(one, "config")
    assert in_process(*gate).code == 3
    # a run in the place of another is found without a signature too
    shutil.rmtree(one)
    shutil.copytree(two, one)
    assert in_process("verify", "s").code == 3
    assert in_process("gate", "s", "--policy", "p.toml").code == 3
    assert in_process("report", "s").code == 3
