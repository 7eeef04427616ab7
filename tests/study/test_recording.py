"""Audits of torn recordings: what is broken is refused, everything else says what it rests on."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from fedaudit.audits.query_plan import QueryPlan
from fedaudit.cli import app
from fedaudit.cli.parsing import parse_protection
from fedaudit.errors import NothingToSay, TraceError
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult, Estimate
from fedaudit.study import audit
from fedaudit.study.auditing import audit_one
from fedaudit.study.recording import examined
from fedaudit.study.replay import replay
from fedaudit.trace import SERVER, Recorder, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.ledger import round_queries

K, ROUNDS, D = 5, 3, 8
NAMES = [f"site-{i}" for i in range(K)]


def record(path, *, kind="delta", lose=lambda number, m: False, change=None, nan=None):
    """A star whose clients send `kind`; messages that `lose` are not on record."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=(K, D)).astype(np.float32)
    recorder = Recorder(path, like={"w": own[0]}, federation={"clients": NAMES, "hubs": [SERVER]})
    model = np.zeros(D, np.float32)
    for number in range(1, ROUNDS + 1):
        sent = own + rng.normal(size=(K, D)).astype(np.float32) / 10
        with recorder.round() as wire:
            for name in NAMES:
                wire.send("model", SERVER, name, model, step=0)
            for i, name in enumerate(NAMES):
                row = sent[i] if kind == "delta" else sent[i] + model
                if nan == (number, name):
                    row = row * np.float32("nan")
                wire.send(kind, name, SERVER, row, step=1, weight=1 + i)
            kept = [m for m in wire.messages if not lose(number, m)]
            wire.messages[:] = [change(number, m) if change else m for m in kept]
        model = model + sent.mean(axis=0)
    recorder.close()
    return path


def lost_downlink(number, m):
    return (number, m.receiver) == (2, "site-3")


def failed(number, m):
    if (number, m.sender) == (2, "site-3"):
        return replace(m, parts={}, size=0, notes={"failed": "timeout"})
    return m


@dataclass(frozen=True, kw_only=True)
class Reader:
    """An audit that reads every update and counts them."""

    name: ClassVar[str] = "coverage"
    question: ClassVar[str] = "How many updates are there?"
    source: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    vantage: str = "server"

    def attack(self, view, knowledge, rng):
        return sum(len(view.updates(number).rows) for number in view.rounds)

    def score(self, guess, truth, rng):
        value = Estimate(value=guess, low=guess, high=guess, n=1, confidence=1.0, baseline=0.0)
        return AuditResult(
            audit=self.name,
            question=self.question,
            vantage=self.vantage,
            headline="updates",
            estimates={"updates": value},
        )


def by_name(run):
    return {r.audit: r for r in run.results}


@pytest.mark.parametrize("kind", ["delta", "model"])
@pytest.mark.parametrize("protection", ["secure_sum", "secure_aggregation:threshold=2"])
def test_a_lost_downlink_is_no_isolated_client(tmp_path, kind, protection):
    path = record(tmp_path / "t", kind=kind, lose=lost_downlink)
    with pytest.raises(TraceError) as raised:
        audit(path, as_if=[parse_protection(protection)], out=tmp_path / "as")
    assert raised.value.code == "torn_recording"
    assert not (tmp_path / "as" / "trace").exists()
    with pytest.raises(TraceError) as raised:
        CliRunner().invoke(
            app, ["audit", str(path), "--as", protection, "-q"], catch_exceptions=False
        )
    assert raised.value.exit_code == 3


def test_a_sum_over_those_who_answered_says_who_they_are(tmp_path):
    path = record(tmp_path / "t", change=failed)
    summed, _ = replay(Trace.open(path), [SecureSum()], tmp_path / "as", Seed(1))
    view = summed.seen_by(SERVER)
    assert examine(summed).whole
    found = [round_queries(view, number) for number in summed.rounds]
    members = [{c for c, x in zip(a.clients, a.answered[0], strict=True) if x} for a in found]
    assert members == [set(NAMES), set(NAMES) - {"site-3"}, set(NAMES)]
    # the client that was out once stands alone in the difference, as far as updates persist
    result = audit_one(QueryPlan(), summed, None, 1)
    assert result.estimates["recoverable_if_updates_persist"].value == 1 / K
    whole, _ = replay(Trace.open(record(tmp_path / "w")), [SecureSum()], tmp_path / "ws", Seed(1))
    assert "query" not in whole.manifest.layouts
    other = audit_one(QueryPlan(), whole, None, 1)
    assert other.estimates["recoverable_if_updates_persist"].value == 0


def test_an_answer_that_is_missing_without_a_word_is_not_summed_over(tmp_path):
    path = record(tmp_path / "t", lose=lambda n, m: (n, m.sender) == (2, "site-3"))
    with pytest.raises(TraceError) as raised:
        replay(Trace.open(path), [SecureSum()], tmp_path / "as", Seed(1))
    assert raised.value.code == "torn_recording"
    replay(Trace.open(path), [Shuffle()], tmp_path / "shuffled", Seed(1))  # hides nothing of it


def test_updates_are_refused_where_models_crossed_and_one_is_lost(tmp_path):
    models = Trace.open(record(tmp_path / "t", kind="model", lose=lost_downlink))
    torn = audit_one(Reader(), models, None, 1)
    assert (torn.status, torn.need.code) == ("nothing_to_say", "torn_recording")
    deltas = Trace.open(record(tmp_path / "d", lose=lost_downlink))
    assert audit_one(Reader(), deltas, None, 1).status == "ok"  # a delta needs no model
    # names and tensors are counted all the same, and the result says what it was counted in
    (counted,) = audit(tmp_path / "t", ["coverage"]).results
    assert counted.status == "ok"
    assert "no model since its last one" in counted.recording[0]


def test_numbers_that_are_not_finite_give_no_number(tmp_path):
    def hidden(number, m):
        return replace(m, sender="anonymous") if m.sender in NAMES else m

    shuffled = record(tmp_path / "s", nan=(2, "site-1"), change=hidden)
    (linked,) = audit(shuffled, ["fingerprint"]).results
    assert (linked.status, linked.need.code) == ("nothing_to_say", "not_finite")
    path = record(tmp_path / "t", nan=(2, "site-1"))
    with pytest.raises(TraceError) as raised:
        audit(path, as_if=["shuffle"], out=tmp_path / "as")
    assert raised.value.code == "torn_recording"
    view = Trace.open(path)
    examine(view)
    with pytest.raises(TraceError, match="not finite"):
        view.seen_by(SERVER).updates(2)


def test_with_no_answer_every_audit_has_nothing_to_say(tmp_path):
    path = record(tmp_path / "t", lose=lambda n, m: m.sender in NAMES)
    run = audit(path)
    assert {(r.status, r.need.code) for r in run.results} == {("nothing_to_say", "nothing_arrived")}
    assert {f.verdict for f in run.findings} == {"nothing_to_say"}
    assert {(f.arrived, f.expected) for f in run.findings} == {(0, K * ROUNDS)}
    with pytest.raises(NothingToSay):
        examined(Trace.open(path))


def test_every_report_says_how_many_answers_it_rests_on(tmp_path):
    path = record(tmp_path / "t", change=failed)
    run = audit(path, ["coverage"], out=tmp_path / "out")
    assert [(f.arrived, f.expected) for f in run.findings] == [(14, 15)]
    told = "14 of 15 answers: 4 of 5 in round 2, 5 of 5 in rounds 1, 3"
    assert run.summary["arrived"] == told
    (chapter,) = json.loads((tmp_path / "out" / "results.json").read_text())["chapters"]
    assert (chapter["arrived"], chapter["expected"]) == (14, 15)
    assert chapter["findings"][0]["arrived"] == chapter["results"][0]["arrived"] == 14
    for name in ("report.html", "report.md"):
        assert "rests on" in (tmp_path / "out" / name).read_text().lower()
        assert told in (tmp_path / "out" / name).read_text()
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--verbose"])
    assert shown.exit_code == 0
    assert shown.output.count("14 of 15 answers") >= 2
    again = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--json"])
    assert json.loads(again.stdout)["findings"][0]["expected"] == 15


def test_a_torn_recording_is_the_first_thing_that_a_report_says(tmp_path):
    def silent(number, m):
        return m.sender == "site-4" or lost_downlink(number, m)

    run = audit(record(tmp_path / "t", lose=silent), ["coverage"], out=tmp_path / "out")
    text = " ".join(run.chapter.notices)
    assert "nothing arrived from 1 of 5 clients" in text
    assert "had received no model since its last one" in text
    # also when the report is written again from what is stored
    (chapter,) = json.loads((tmp_path / "out" / "results.json").read_text())["chapters"]
    assert chapter["notices"][: len(run.chapter.notices)] == list(run.chapter.notices)


def test_a_client_that_the_manifest_does_not_list_is_counted_as_one(tmp_path):
    def stranger(number, m):
        if (number, m.sender) == (2, "site-3"):
            return replace(m, sender="mallory", metadata={"ssn": "1"})
        return m

    result = by_name(audit(record(tmp_path / "t", change=stranger), ["coverage"]))["coverage"]
    assert any("ssn" in note for note in result.notes)
    assert any("does not list" in line for line in result.recording)
