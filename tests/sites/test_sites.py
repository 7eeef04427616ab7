"""Truth stays at the sites: every party is a process that has its own files and those it was sent.

The counts of three sites must give what a scorer who held all the truth would have found.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedaudit import sites
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.errors import FormatError, NotApplicable, TraceError, UsageError
from fedaudit.randomness import Seed
from fedaudit.sites.files import sha256
from fedaudit.trace import ANONYMOUS, SERVER, Recorder, Trace, Truth, TruthRecorder

ROOT = Path(__file__).resolve().parents[2]
SITES = ["north", "south", "west"]
ROUNDS = 5
WEIGHT = np.zeros((6, 5), np.float32)


@pytest.fixture
def consortium(tmp_path):
    """What the server recorded behind a shuffler, what every site recorded, and the truth."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=(len(SITES), 30)).astype(np.float32)
    like = {"w": WEIGHT}
    server = Recorder(tmp_path / "server" / "trace", like=like)
    own = [Recorder(tmp_path / s / "trace", like=like) for s in SITES]
    truth = TruthRecorder(tmp_path / "truth", {})
    for number in range(1, ROUNDS + 1):
        sent = [base[i] + 3.0 * rng.normal(size=30).astype(np.float32) for i in range(len(SITES))]
        order = rng.permutation(len(SITES))
        with server.round() as wire:
            for name in SITES:
                wire.send("model", SERVER, name, like, step=0)
            first = [wire.send("delta", ANONYMOUS, SERVER, sent[i], step=1) for i in order]
        for name, recorder, row in zip(SITES, own, sent, strict=True):
            with recorder.round() as wire:
                wire.send("model", SERVER, name, like, step=0)
                wire.send("delta", name, SERVER, row, step=1)
        truth.round(number, {m: SITES[i] for m, i in zip(first, order, strict=True)})
    for recorder in (server, *own):
        recorder.close()
    return tmp_path


def started(folder, *arguments):
    """A process of its own, in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.Popen(
        [sys.executable, "-m", "fedaudit", *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    said, complained = process.communicate()
    assert process.returncode == 0, complained
    return said


def fedaudit(folder, *arguments):
    return ended(started(folder, *arguments))


def at_every_site(consortium, *arguments):
    """All sites at the same time; `SITE` stands for the name of each."""
    running = [
        started(consortium / name, *(str(a).replace("SITE", name) for a in arguments))
        for name in SITES
    ]
    return [ended(process) for process in running]


def test_three_sites_count_what_one_who_knew_everything_would_find(consortium):
    whole = Trace.open(consortium / "server" / "trace")
    audit = Fingerprint()
    guess = audit.attack(
        whole.seen_by(SERVER), Knowledge(), Seed(1).generator("attack/fingerprint")
    )
    rng = np.random.default_rng(0)
    known = audit.score(guess, Truth.open(consortium / "truth"), rng)
    # from here on nobody has the truth: it is gone
    shutil.rmtree(consortium / "truth")

    fedaudit(consortium / "server", "attack", "trace", "--out", "guesses.json")
    for name in SITES:
        shutil.copy(consortium / "server" / "guesses.json", consortium / name)
        said = fedaudit(
            consortium / name, "score", "guesses.json", "--at-site", "trace", "--site", name
        )
        assert "links found" in said
        assert {p.name for p in (consortium / name).iterdir()} == {
            "trace",
            "guesses.json",
            "counts.json",
        }
        back = consortium / "server" / f"{name}.json"
        shutil.copy(consortium / name / "counts.json", back)
        assert set(json.loads(back.read_text())["audits"]["fingerprint"]["joint"]) == {
            "links",
            "found",
            "expected",
        }
    files = [f"{name}.json" for name in SITES]
    said = fedaudit(consortium / "server", "merge", "guesses.json", *files, "--json")
    (result,) = json.loads(said)["findings"]
    assert result["audit"] == "fingerprint"
    merged = sites.merge(
        consortium / "server" / "guesses.json",
        [consortium / "server" / f for f in files],
        consortium / "report",
    )
    for method in ("linkage_accuracy", "linkage_accuracy (joint)", "linkage_accuracy (greedy)"):
        ours, theirs = merged.results[0].estimates[method], known.estimates[method]
        assert ours.value == pytest.approx(theirs.value)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
        assert ours.baseline == pytest.approx(theirs.baseline)
    assert 0.0 < merged.results[0].estimates["linkage_accuracy"].value < 1.0
    # sites count links only: the merged test is by interval, and may need more than the exact one
    assert 1 / 3 < merged.results[0].detectable <= 1.0
    found = {n: row["found"] for n, row in merged.results[0].per_client.items()}
    assert found == {n: row["found"] for n, row in known.per_client.items()}
    page = (consortium / "report" / "report.html").read_text()
    assert "stayed at the sites" in page


def test_a_site_that_did_not_answer_is_named_as_missing(consortium, tmp_path):
    guesses = consortium / "server" / "g.json"
    sites.attack(Trace.open(consortium / "server" / "trace"), guesses)
    for name in SITES[:2]:
        sites.score(guesses, consortium / name / "trace", tmp_path / f"{name}.json", site=name)
    run = sites.merge(guesses, [tmp_path / f"{n}.json" for n in SITES[:2]], tmp_path / "out")
    assert any("1 of 3 clients did not answer" in note for note in run.results[0].notes)
    assert [(f.arrived, f.expected) for f in run.findings] == [(15, 15)]
    # a file that states no counts, or no numbers, says nothing of them
    raw = json.loads(guesses.read_text())
    for told in ({}, {"arrived": 3, "expected": "all"}, {"arrived": 9, "expected": 2}):
        left = {k: v for k, v in raw.items() if k not in ("arrived", "expected")}
        guesses.write_text(json.dumps({**left, **told}))
        counts = []
        for name in SITES[:2]:
            counts.append(tmp_path / f"{name}.json")
            counts[-1].unlink()
            sites.score(guesses, consortium / name / "trace", counts[-1], site=name)
        again = sites.merge(guesses, counts, tmp_path / "again")
        assert [(f.arrived, f.expected) for f in again.findings] == [(None, None)]


def test_a_server_that_received_nothing_does_not_guess(tmp_path):
    recorder = Recorder(tmp_path / "trace", like={"w": WEIGHT})
    with recorder.round() as wire:
        for name in SITES:
            wire.send("model", SERVER, name, {"w": WEIGHT})
    recorder.close()
    with pytest.raises(NotApplicable) as raised:
        sites.attack(Trace.open(tmp_path / "trace"), tmp_path / "g.json")
    assert raised.value.code == "nothing_arrived"


def test_counts_that_do_not_belong_together_are_refused(consortium, tmp_path):
    trace = Trace.open(consortium / "server" / "trace")
    guesses, others = tmp_path / "g.json", tmp_path / "h.json"
    raw = sites.attack(trace, guesses)
    others.write_text(json.dumps({**raw, "federation": "another"}))
    one = tmp_path / "one.json"
    sites.score(guesses, consortium / "north" / "trace", one, site="north")
    with pytest.raises(TraceError, match="scores other guesses"):
        sites.merge(others, [one], tmp_path / "out")
    counted = json.loads(one.read_text())
    (tmp_path / "less.json").write_text(json.dumps({**counted, "audits": {"fingerprint": {}}}))
    with pytest.raises(FormatError, match="does not count"):
        sites.merge(guesses, [tmp_path / "less.json"], tmp_path / "out")
    with pytest.raises(UsageError, match="answered twice"):
        sites.merge(guesses, [one, one], tmp_path / "out")
    with pytest.raises(UsageError, match="no site has answered"):
        sites.merge(guesses, [], tmp_path / "out")
    with pytest.raises(FormatError, match="does not hold counts"):
        sites.merge(guesses, [guesses], tmp_path / "out")
    with pytest.raises(UsageError, match="could not be read"):
        sites.merge(tmp_path / "nowhere.json", [one], tmp_path / "out")
    counts = json.loads(one.read_text())
    counts["audits"]["fingerprint"]["joint"]["found"] = 99
    one.write_text(json.dumps(counts))
    with pytest.raises(FormatError, match="99 of 4 links"):
        sites.merge(guesses, [one], tmp_path / "out")


def test_a_site_must_be_one_of_those_who_sent(consortium, tmp_path):
    guesses = tmp_path / "g.json"
    sites.attack(Trace.open(consortium / "server" / "trace"), guesses)
    with Recorder(tmp_path / "stranger", like={"w": WEIGHT}).round() as wire:
        wire.send("delta", "east", SERVER, {"w": WEIGHT + 1})
    with pytest.raises(NotApplicable, match="no message of east"):
        sites.score(guesses, tmp_path / "stranger", tmp_path / "c.json", site="east")
    with Recorder(tmp_path / "narrow", like={"w": WEIGHT[:2]}).round() as wire:
        wire.send("delta", "east", SERVER, {"w": WEIGHT[:2]})
    with pytest.raises(TraceError, match="other tensors"):
        sites.score(guesses, tmp_path / "narrow", tmp_path / "c.json", site="east")
    with Recorder(tmp_path / "two", like={"w": WEIGHT}).round() as wire:
        wire.send("delta", "east", SERVER, {"w": WEIGHT})
        wire.send("delta", "west", SERVER, {"w": WEIGHT})
    with pytest.raises(TraceError, match="not the recording of one site"):
        sites.score(guesses, tmp_path / "two", tmp_path / "c.json", site="east")
    with pytest.raises(UsageError, match="cannot be scored at sites"):
        sites.attack(Trace.open(consortium / "server" / "trace"), guesses, ["coverage"])


# -- membership ------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Three sites that learn random labels by heart; the server's trace and their own ones."""
    import torch

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "the_model_of_all.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Linear(30, 2)\n"
    )
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.zeros(2, 30), torch.zeros(2)
    like = {"weight": weight.numpy(), "bias": bias.numpy()}
    server = Recorder(tmp_path / "server" / "trace", like=like)
    own = [Recorder(tmp_path / s / "trace", like=like) for s in SITES]
    records = [
        (torch.randn(40, 30, generator=generator), torch.tensor(rng.permutation(40) % 2))
        for _ in SITES
    ]
    for name, (x, y) in zip(SITES, records, strict=True):
        others = rng.normal(size=(40, 30)), rng.permutation(40) % 2
        with (tmp_path / name / "records.csv").open("w") as file:
            file.write(",".join([*(f"c{i}" for i in range(30)), "label", "site"]) + "\n")
            for who, part, labels in ((name, x.tolist(), y), ("nobody", *others)):
                for row, label in zip(part, labels, strict=True):
                    file.write(",".join([*(f"{v:.7g}" for v in row), f"{int(label)}", who]) + "\n")
    for _ in range(3):
        sent = {"weight": weight.numpy(), "bias": bias.numpy()}
        replies = []
        for x, y in records:
            w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
            for _ in range(30):
                loss = torch.nn.functional.cross_entropy(x @ w.T + b, y)
                grads = torch.autograd.grad(loss, (w, b))
                with torch.no_grad():
                    w -= 0.5 * grads[0]
                    b -= 0.5 * grads[1]
            replies.append({"weight": w.detach().numpy(), "bias": b.detach().numpy()})
        with server.round() as wire:
            for name in SITES:
                wire.send("model", SERVER, name, sent, step=0)
            for name, reply in zip(SITES, replies, strict=True):
                wire.send("model", name, SERVER, reply, step=1)
        for name, recorder, reply in zip(SITES, own, replies, strict=True):
            with recorder.round() as wire:
                wire.send("model", SERVER, name, sent, step=0)
                wire.send("model", name, SERVER, reply, step=1)
        weight = torch.tensor(np.mean([r["weight"] for r in replies], axis=0))
        bias = torch.tensor(np.mean([r["bias"] for r in replies], axis=0))
    for recorder in (server, *own):
        recorder.close()
    return tmp_path


def test_membership_is_scored_by_processes_that_share_nothing_but_the_files(trained):
    model = (trained / "the_model_of_all.py").read_text()
    (trained / "the_model_of_all.py").unlink()
    for name in (*SITES, "server"):
        (trained / name / "the_model.py").write_text(model)  # everybody has the code
    server = trained / "server"
    table = ("--data", "records.csv", "--label", "label", "--client", "site")
    for said in at_every_site(trained, "ask", "trace", *table, "--model", "the_model:make"):
        assert "the key stays here" in said
    sent = []
    for name in SITES:
        shutil.copy(trained / name / "asked.npz", server / f"{name}.npz")
        sent += ["--asked", f"{name}.npz"]
        with np.load(server / f"{name}.npz", allow_pickle=False) as asked:
            assert set(asked.files) == {"party", "classes", "x", "y"}  # not who is a member
    fedaudit(server, "attack", "trace", *sent, "--model", "the_model:make")
    assert not list(server.rglob("key*"))
    for name in SITES:
        shutil.copy(server / "guesses.json", trained / name)
    counted = ("--at-site", "trace", "--site", "SITE", "--key", "key.json")
    for said in at_every_site(trained, "score", "guesses.json", *counted):
        assert "pairs in the right order" in said
    files = []
    for name in SITES:
        files.append(f"{name}.json")
        shutil.copy(trained / name / "counts.json", server / files[-1])
        (own,) = json.loads((server / files[-1]).read_text())["audits"].values()
        (counts,) = own.values()
        assert set(counts) == {"members", "others", "ordered"}
    said = fedaudit(server, "merge", "guesses.json", *files, "--json")
    (finding,) = json.loads(said)["findings"]
    assert finding["audit"] == "two_stage_membership"
    assert finding["verdict"] == "leak"  # labels by heart: records tell
    # what one who held all keys would find
    guesses = json.loads((server / "guesses.json").read_text())
    scores = guesses["audits"]["two_stage_membership"]["scores"]
    right, pairs = 0.0, 0
    for name in SITES:
        key = json.loads((trained / name / "key.json").read_text())
        member = np.array(key["member"])
        own = np.array(scores[key["asked_sha256"]])
        difference = own[member][:, None] - own[~member][None]
        right += float((difference > 0).sum() + 0.5 * (difference == 0).sum())
        pairs += difference.size
    stored = server / "fedaudit-sites" / "results" / "two_stage_membership.json"
    auc = json.loads(stored.read_text())["estimates"]["membership_auc"]
    assert auc["value"] == pytest.approx(right / pairs)
    assert auc["low"] > 0.5


def test_sites_keep_the_key_to_the_records_that_they_ask_about(trained):
    columns = {"label": "label", "client": "site"}
    asked, keys = [], []
    for name in SITES:
        folder = trained / name
        asked.append(folder / "asked.npz")
        keys.append(folder / "key.json")
        count = sites.ask(
            folder / "trace",
            folder / "records.csv",
            asked[-1],
            keys[-1],
            model="the_model_of_all:make",
            columns=columns,
        )
        assert count == 2 * sum(json.loads(keys[-1].read_text())["member"])
    guesses = trained / "guesses.json"
    trace = Trace.open(trained / "server" / "trace")
    raw = sites.attack(trace, guesses, asked=asked, model="the_model_of_all:make")
    counts, right, pairs = [], 0.0, 0
    for name, key, file in zip(SITES, keys, asked, strict=True):
        counts.append(trained / f"{name}.json")
        sites.score(guesses, trained / name / "trace", counts[-1], site=name, key=key)
        # a slow twin: all pairs, one by one
        member = json.loads(key.read_text())["member"]
        own = raw["audits"]["two_stage_membership"]["scores"][sha256(file)]
        for a, inside in zip(own, member, strict=True):
            for b, other in zip(own, member, strict=True):
                if inside and not other:
                    right += 1.0 if a > b else 0.5 if a == b else 0.0
                    pairs += 1
    (result,) = sites.merge(guesses, counts, trained / "report").results
    auc = result.estimates["membership_auc"]
    assert auc.value == pytest.approx(right / pairs)
    assert auc.low > 0.5  # labels by heart: records tell
    assert auc.low < auc.value <= auc.high <= 1.0
    with pytest.raises(UsageError, match="`key=FILE`"):
        sites.score(guesses, trained / "north" / "trace", counts[0], site="north")
    # the key of other records: their file was never sent
    sites.ask(
        trained / "north" / "trace",
        trained / "north" / "records.csv",
        trained / "other.npz",
        trained / "other.json",
        model="the_model_of_all:make",
        columns=columns,
    )
    with pytest.raises(NotApplicable, match="do not cover the records"):
        sites.score(
            guesses,
            trained / "north" / "trace",
            counts[0],
            site="north",
            key=trained / "other.json",
        )
    with pytest.raises(UsageError, match="asks twice"):
        sites.attack(trace, guesses, asked=[asked[0], asked[0]], model="the_model_of_all:make")
    with pytest.raises(NotApplicable, match="no records to ask about"):
        sites.attack(trace, guesses, ["two_stage_membership"])
    (trained / "torn.npz").write_bytes(asked[0].read_bytes()[:50])
    with pytest.raises(FormatError, match="does not hold records to ask about"):
        sites.attack(trace, guesses, asked=[trained / "torn.npz"], model="the_model_of_all:make")
