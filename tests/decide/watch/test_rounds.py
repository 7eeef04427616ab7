"""A growing trace, read round by round: arrivals, links, coverage, epsilon, broken limits."""

import json
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.cli import app
from fedaudit.decide.watch import Watch, follow
from fedaudit.decide.watch.page import line, plain
from fedaudit.study.auditing import audit
from fedaudit.trace import ANONYMOUS, SERVER, Recorder

CLIENTS = [f"c{i}" for i in range(4)]
LIKE = {"w": np.zeros(6, np.float32)}
NOISY = {
    "name": "central_dp",
    "flower": "DifferentialPrivacyServerSideFixedClipping",
    "around": "FedAvg",
    "noise_multiplier": 5.0,
    "clip": 1.0,
    "clients": 4,
    "unit": "client",
    "delta": 1e-5,
    "covers": [],
    "trust": "the server",
}
POLICY = {
    "limit": [
        {"metric": "fingerprint.linkage_accuracy", "at_most": 0.5},
        {"metric": "coverage.kinds_outside_protection", "at_most": 9},
        {"metric": "epsilon", "at_most": 1.5},
        {"metric": "two_stage_membership.auc", "at_most": 0.6},
    ]
}


@pytest.fixture
def recorder(tmp_path):
    about = {"hubs": [SERVER], "clients": CLIENTS, "parties": [SERVER, *CLIENTS]}
    return Recorder(tmp_path / "t", like=LIKE, federation=about, declared=[NOISY])


def play(recorder, *, silent=(), anonymous=False):
    rng = np.random.default_rng(recorder.rounds)
    with recorder.round() as wire:
        for name in CLIENTS:
            wire.send("model", SERVER, name, LIKE, step=0)
        for name in CLIENTS:
            update = None if name in silent else {"w": rng.normal(size=6)}
            notes = {"failed": "no answer in time"} if name in silent else {}
            sender = ANONYMOUS if anonymous and not notes else name
            wire.send("delta", sender, SERVER, update, step=1, notes=notes)


def test_every_round_is_read_once_as_it_comes(recorder):
    watch = Watch()
    assert watch.update(recorder.path) == []
    play(recorder)
    (first,) = watch.update(recorder.path)
    assert watch.update(recorder.path) == []
    play(recorder, silent=["c1"])
    play(recorder)
    second, third = watch.update(recorder.path)
    assert [r.round for r in (first, second, third)] == [1, 2, 3]
    assert [r.arrivals.arrived for r in (first, second, third)] == [4, 3, 4]
    assert "3 of 4 uploads arrived" in line(second)
    assert plain(second)["arrived"] == 3


def test_rounds_read_late_are_read_as_if_they_had_just_come(recorder):
    """A watch that begins in the middle (`--once`, a recorder that resumes) sees no gap in what it
    has not read yet: whoever answered every round is not told apart by the rounds to come."""
    steps, together = Watch(POLICY), Watch(POLICY)
    one_by_one = []
    for _ in range(3):
        play(recorder)
        one_by_one += steps.update(recorder.path)
    at_once = together.update(recorder.path)
    assert [r.outside for r in at_once] == [r.outside for r in one_by_one]
    assert not any("which round" in kind for r in at_once for kind in r.outside)
    assert [{c.limit for c in r.broken} for r in at_once] == [
        {c.limit for c in r.broken} for r in one_by_one
    ]
    play(recorder, silent=["c1"])
    (last,) = together.update(recorder.path)
    assert any("which round" in kind for kind in last.outside)


def test_a_path_without_a_trace_is_no_kept_limit(recorder, tmp_path):
    runner = CliRunner()
    found = runner.invoke(app, ["watch", str(tmp_path / "typo"), "--once"])
    assert found.exit_code != 0
    assert "there is no trace" in str(found.exception)
    (tmp_path / "file").write_text("x")
    found = runner.invoke(app, ["watch", str(tmp_path / "file")])
    assert found.exit_code != 0
    assert "a file" in str(found.exception)


def test_the_command_says_that_a_recording_stopped(recorder):
    play(recorder)
    recorder.stop("the disk was full")
    found = CliRunner().invoke(app, ["watch", str(recorder.path)])
    assert "1 round read" in found.output
    assert "stopped before the training: the disk was full" in found.output


def test_epsilon_and_coverage_are_those_of_an_audit_of_the_whole(recorder):
    for _ in range(5):
        play(recorder)
    recorder.close()
    *_, last = Watch().update(recorder.path)
    whole = audit(recorder.path, ["coverage", "fingerprint"])
    assert last.outside == whole.results[0].notes
    assert last.linked == whole.results[1].estimates["linkage_accuracy"].value == 1.0
    (promised,) = whole.guarantees.values()
    assert last.epsilon["epsilon"] == max(g["epsilon"] for g in promised.values())


def test_more_rounds_never_spend_less(recorder):
    for _ in range(4):
        play(recorder)
    spent = [r.epsilon["epsilon"] for r in Watch().update(recorder.path)]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1]


def test_limits_break_when_their_number_does_and_others_are_named(recorder):
    watch = Watch(POLICY)
    assert len(watch.unwatched) == 1
    for _ in range(6):
        play(recorder)
    broken = [{c.metric for c in r.broken} for r in watch.update(recorder.path)]
    assert "fingerprint.linkage_accuracy" in broken[0]
    assert "epsilon" not in broken[0]
    assert "epsilon" in broken[-1]
    assert not any("coverage.kinds_outside_protection" in b for b in broken)


def test_links_are_drawn_again_when_the_rounds_double_and_not_every_round(recorder, monkeypatch):
    drawn = []
    score = Fingerprint.score
    monkeypatch.setattr(Fingerprint, "score", lambda *given: (drawn.append(1), score(*given))[1])
    watch = Watch(POLICY)
    for _ in range(9):
        play(recorder)
    assert all(r.broken for r in watch.update(recorder.path))
    assert len(drawn) == 4  # after rounds 1, 2, 4, 8
    Watch().update(recorder.path)
    assert len(drawn) == 4  # no limit asks


def test_anonymous_updates_are_counted_and_not_scored(recorder):
    play(recorder, anonymous=True)
    (reading,) = Watch(POLICY).update(recorder.path)
    assert (reading.linked, reading.unscored) == (0.0, 4)
    assert "links not scored" in line(reading)


def test_following_ends_when_the_trace_does(recorder):
    play(recorder)

    def another(_seconds):
        if recorder.rounds < 3:
            play(recorder)
        else:
            recorder.close()

    found = follow(recorder.path, Watch(), wait=another)
    assert [r.round for r in found] == [1, 2, 3]


def test_silence_is_told_once_and_again_after_the_next_round(recorder):
    play(recorder)
    told, waits = [], []

    def waiting(seconds):
        waits.append(seconds)
        if len(waits) == 20:
            play(recorder)
        if len(waits) == 40:
            recorder.close()

    found = follow(
        recorder.path,
        Watch(),
        interval=2.0,
        silence=10.0,
        on_silence=lambda: told.append(len(waits)),
        wait=waiting,
    )
    assert [r.round for r in found] == [1, 2]
    assert told == [5, 25]


def test_the_command_tells_of_silence_and_goes_on(recorder):
    play(recorder)
    threading.Timer(0.5, recorder.close).start()
    wait = ["--interval", "0.02", "--silence", "0.001"]
    found = CliRunner().invoke(app, ["watch", str(recorder.path), *wait])
    assert found.exit_code == 0
    assert found.stderr.count("no round has come for 0.001 minutes") == 1
    refused = CliRunner().invoke(app, ["watch", str(recorder.path), "--silence", "0"])
    assert refused.exit_code != 0
    assert "--silence is out of range" in str(refused.exception) + refused.stderr


def test_the_command_writes_a_line_per_round_and_ends_with_4_at_a_broken_limit(recorder, tmp_path):
    for _ in range(2):
        play(recorder)
    recorder.close()
    file = tmp_path / "lines.json"
    policy = tmp_path / "p.toml"
    policy.write_text('[[limit]]\nmetric = "fingerprint.linkage_accuracy"\nat_most = 0.5\n')
    fine = CliRunner().invoke(app, ["watch", str(recorder.path), "--json-file", str(file)])
    assert fine.exit_code == 0
    assert fine.stdout.count("4 of 4 uploads arrived") == 2
    assert [json.loads(text)["round"] for text in file.read_text().splitlines()] == [1, 2]
    broken = CliRunner().invoke(
        app, ["watch", str(recorder.path), "--policy", str(policy), "--json"]
    )
    assert broken.exit_code == 4
    (first, _) = map(json.loads, broken.stdout.splitlines())
    assert first["broken"][0]["metric"] == "fingerprint.linkage_accuracy"
