"""A run that is killed after any round ends with the same trace and model as an unbroken one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.data.dataset import Dataset
from fedaudit.errors import IntegrityError, TraceError
from fedaudit.federation import topology as topologies
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.resume import FederationState, save
from fedaudit.federation.rounds import Rounds
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP, VAE
from fedaudit.trace import Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.recorder import MODEL

SEED, K, ROUNDS = Seed(5), 4, 4

ADAM = Training(optimizer="adam", learning_rate=0.01, batch_size=3)
SHAPES: dict[str, dict[str, Any]] = {
    "star": {"rounds": Rounds(rounds=ROUNDS, server_momentum=0.7, server_learning_rate=0.8)},
    "partial": {"rounds": Rounds(rounds=ROUNDS, participation=0.5), "protections": [Shuffle()]},
    "hierarchy": {
        "rounds": Rounds(rounds=ROUNDS, aggregation="hierarchical", server_momentum=0.5),
        "region": np.array([0, 1, 1, 0]),
    },
    "gossip": {
        "rounds": Rounds(rounds=ROUNDS, aggregation="gossip", participation=0.75),
        "topology": topologies.build("ring", K, SEED),
    },
    "autoencoder": {"rounds": Rounds(rounds=ROUNDS, server_momentum=0.7), "task": "vae"},
}


def federation(shape: str, **changes: Any) -> Federation:
    settings = {**SHAPES[shape], **changes}
    draw = np.random.default_rng(4)
    x = draw.random(size=(20, 5)).astype(np.float32)
    dataset = Dataset(name="tiny", kind="features", x=x, y=draw.integers(0, 3, 20))
    chosen = VAE(hidden=6, latent=2) if settings.pop("task", "") == "vae" else MLP(hidden=(4,))
    task = chosen.build(dataset, SEED)
    examples = task.encode(dataset)
    parts = [(examples.x[i::K], examples.y[i::K]) for i in range(K)]
    return Federation(
        task=task,
        data=ClientData.join(parts),
        training=ADAM,
        seed=SEED,
        test=examples,
        **settings,
    )


def go(fed: Federation, path: Path, **options: Any) -> Tensor:
    recorder = Recorder(
        path / "trace",
        layouts={MODEL: fed.task.layout},
        federation=fed.describe(),
        task=fed.task.settings,
        resume=True,
    )
    truth = TruthRecorder(path / "truth", {"seed": SEED.root})
    return fed.run(recorder, truth, checkpoint=path / "checkpoint", keep_raw=True, **options)


def same(broken: Path, whole: Path) -> None:
    a, b = Trace.open(broken / "trace"), Trace.open(whole / "trace")
    assert a.sha256 == b.sha256
    assert a.manifest.complete
    for folder in ("trace", "truth"):
        names = sorted(f.name for f in (whole / folder).iterdir())
        assert sorted(f.name for f in (broken / folder).iterdir()) == names
        for name in names:
            assert (broken / folder / name).read_bytes() == (whole / folder / name).read_bytes()
    for number in a.rounds:
        assert Truth.open(broken / "truth").metrics(number)


class Killed(Exception):
    pass


@pytest.mark.parametrize("shape", SHAPES)
def test_stopped_after_any_round(shape: str, tmp_path: Path) -> None:
    expected = go(federation(shape), tmp_path / "whole")
    for last in range(1, ROUNDS + 1):
        path = tmp_path / f"broken-{last}"

        def stop(number: int, metrics: dict[str, float], last: int = last) -> None:
            if number == last:
                raise Killed

        with pytest.raises(Killed):
            go(federation(shape), path, progress=stop)
        assert len(Trace.open(path / "trace").rounds) == last
        again: list[int] = []
        model = go(federation(shape), path, progress=lambda n, m, again=again: again.append(n))
        assert again == list(range(last + 1, ROUNDS + 1))
        assert torch.equal(model, expected)
        same(path, tmp_path / "whole")


@pytest.mark.parametrize("shape", SHAPES)
def test_stopped_between_the_trace_and_the_checkpoint(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = go(federation(shape), tmp_path / "whole")
    for last in range(1, ROUNDS + 1):
        path = tmp_path / f"broken-{last}"

        def fail(checkpoint: Any, state: FederationState, last: int = last) -> None:
            if state.round == last:
                raise Killed
            save(checkpoint, state)

        with monkeypatch.context() as patch:
            patch.setattr("fedaudit.federation.engine.save", fail)
            with pytest.raises(Killed):
                go(federation(shape), path)
        assert len(Trace.open(path / "trace").rounds) == last  # one more than the checkpoint
        assert torch.equal(go(federation(shape), path), expected)
        same(path, tmp_path / "whole")


def test_stopped_in_the_middle_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = go(federation("star"), tmp_path / "whole")
    write = TruthRecorder.round

    def fail(self: TruthRecorder, number: int, *args: Any) -> None:
        if number == 3:
            raise Killed
        write(self, number, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TruthRecorder, "round", fail)
        with pytest.raises(Killed):
            go(federation("star"), tmp_path / "broken")
    assert len(Trace.open(tmp_path / "broken" / "trace").rounds) == 2
    assert torch.equal(go(federation("star"), tmp_path / "broken"), expected)
    same(tmp_path / "broken", tmp_path / "whole")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    model = go(federation("gossip"), tmp_path)
    sha = Trace.open(tmp_path / "trace").sha256

    def never(number: int, metrics: dict[str, float]) -> None:
        raise AssertionError(f"round {number} ran again")

    assert torch.equal(go(federation("gossip"), tmp_path, progress=never), model)
    assert Trace.open(tmp_path / "trace").sha256 == sha


def test_without_a_checkpoint_a_run_begins_anew(tmp_path: Path) -> None:
    expected = go(federation("star"), tmp_path / "whole")

    def stop(number: int, metrics: dict[str, float]) -> None:
        if number == 2:
            raise Killed

    with pytest.raises(Killed):
        go(federation("star"), tmp_path / "broken", progress=stop)
    shutil.rmtree(tmp_path / "broken" / "checkpoint")
    assert torch.equal(go(federation("star"), tmp_path / "broken"), expected)
    same(tmp_path / "broken", tmp_path / "whole")


def test_a_run_without_a_recorder_resumes_too(tmp_path: Path) -> None:
    expected = federation("star").run()

    def stop(number: int, metrics: dict[str, float]) -> None:
        if number == 2:
            raise Killed

    with pytest.raises(Killed):
        federation("star").run(checkpoint=tmp_path, progress=stop)
    assert torch.equal(federation("star").run(checkpoint=tmp_path), expected)


def test_a_checkpoint_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    fed = federation("star")
    fed.run(checkpoint=tmp_path / "checkpoint")
    recorder = Recorder(tmp_path / "trace", layouts={MODEL: fed.task.layout})
    with pytest.raises(TraceError, match="ahead of the trace"):
        fed.run(recorder, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(TraceError, match="another model"):
        federation("autoencoder").run(checkpoint=tmp_path / "checkpoint")


def stopped_after(number: int, path: Path) -> Path:
    def stop(done: int, metrics: dict[str, float]) -> None:
        if done == number:
            raise Killed

    with pytest.raises(Killed):
        go(federation("star"), path, progress=stop)
    return path


@pytest.mark.parametrize("file", ["state-00002.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("at", [20, -1])
def test_an_altered_checkpoint_is_refused(tmp_path: Path, file: str, at: int) -> None:
    path = stopped_after(2, tmp_path)
    place = path / "checkpoint" / file
    content = bytearray(place.read_bytes())
    content[at] ^= 1
    place.write_bytes(content)
    before = {f: f.read_bytes() for f in (path / "trace").iterdir()}
    with pytest.raises(IntegrityError, match=file):
        go(federation("star"), path)
    assert {f: f.read_bytes() for f in (path / "trace").iterdir()} == before


EMPTIED = [
    "checkpoint/state-00002.safetensors",
    "checkpoint/checkpoint.json",
    "trace/manifest.json",
    "trace/round-00002.safetensors",
    "trace/round-00001.safetensors",
    "truth/truth.json",
    "truth/index.json",
    "truth/round-00002.safetensors",
]


@pytest.mark.parametrize("file", EMPTIED)
def test_files_that_a_power_cut_emptied_cost_no_run(tmp_path: Path, file: str) -> None:
    expected = go(federation("star"), tmp_path / "whole")
    path = stopped_after(2, tmp_path / "broken")
    (path / file).write_bytes(b"")
    assert torch.equal(go(federation("star"), path), expected)
    same(path, tmp_path / "whole")


def test_a_round_that_comes_out_different_is_refused(tmp_path: Path) -> None:
    """A state that somebody altered together with its hash shows when a round is redone."""
    path = stopped_after(3, tmp_path)
    folder = path / "checkpoint"
    listed = json.loads((folder / "checkpoint.json").read_text())
    (folder / listed["states"].pop()["file"]).unlink()  # the state after round 3
    entry = listed["states"][0]
    content = bytearray((folder / entry["file"]).read_bytes())
    content[8 + int.from_bytes(content[:8], "little") + 2] ^= 64  # the first weight
    (folder / entry["file"]).write_bytes(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "checkpoint.json").write_text(json.dumps(listed))
    with pytest.raises(IntegrityError, match="round 3 came out different"):
        go(federation("star"), path)


def test_truth_and_checkpoint_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        go(federation("star"), tmp_path)
    finally:
        os.umask(before)
    for folder in ("truth", "checkpoint"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        for file in (tmp_path / folder).iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


CHILD = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("resume", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
go, federation = module.go, module.federation
def slowly(number, metrics):
    time.sleep(0.05 if number < 3 else 600)  # the last round is never reached
go(federation("star"), Path(sys.argv[2]), progress=slowly)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_that_is_killed_for_real(tmp_path: Path) -> None:
    expected = go(federation("star"), tmp_path / "whole")
    path = tmp_path / "broken"
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, __file__, str(path)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    try:
        state = path / "checkpoint" / "checkpoint.json"
        deadline = time.monotonic() + 600
        while not state.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert state.exists()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL  # it had not finished by itself
    assert not Trace.open(path / "trace").manifest.complete
    assert torch.equal(go(federation("star"), path), expected)
    same(path, tmp_path / "whole")
