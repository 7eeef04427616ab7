"""What is not a model is refused: own files of a run, optimiser states, records, updates."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from fedaudit.errors import DataError
from fedaudit.federation import resume
from fedaudit.protections.guard import guard
from fedaudit.protections.guard.files import read_model
from fedaudit.tasks import models
from fedaudit.trace.store import write_blocks
from fedaudit.trace.truth import TruthRecorder
from reproductions.guard import honest


def state(module):
    return {k: v.numpy().copy() for k, v in module.state_dict().items()}


def mlp(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.mlp(64, (96,), 10)


def stored(tmp_path, kind):
    """A file that fedaudit writes beside models, with rows as wide as one."""
    rows = np.random.default_rng(0).normal(size=(5, 400)).astype(np.float32)
    if kind == "truth":
        TruthRecorder(tmp_path, {}).round(1, {0: "a"}, rows, clients=list("abcde"))
        return tmp_path / "round-00001.safetensors"
    if kind == "checkpoint":
        resume.save(tmp_path, resume.FederationState(3, torch.from_numpy(rows)))
        return tmp_path / "state-00003.safetensors"
    write_blocks(tmp_path / "renamed.safetensors", {"model": [rows]}, {"messages": "{}"})
    return tmp_path / "renamed.safetensors"


@pytest.mark.parametrize("kind", ["messages", "truth", "checkpoint"])
def test_files_of_a_run_are_refused_by_their_header_and_by_their_content(tmp_path, kind):
    file = stored(tmp_path, kind)
    with pytest.raises(DataError, match="is not a model") as refused:
        read_model(file)
    assert "fedaudit guard TRACE" in str(refused.value.remedy)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is not a model") as refused:
        read_model(file)
    assert str(refused.value.remedy).endswith(f"fedaudit guard {tmp_path}")
    # saved again, without the header
    from safetensors.numpy import load_file

    save_file(load_file(file), tmp_path / "again.safetensors")
    with pytest.raises(DataError, match="is not a model") as refused:
        guard(read_model(tmp_path / "again.safetensors"))
    assert refused.value.expected
    assert "table of rows" in str(refused.value.got)


def test_a_folder_of_runs_names_a_trace_in_it(tmp_path):
    (tmp_path / "dp" / "trace").mkdir(parents=True)
    (tmp_path / "dp" / "trace" / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="there is no model") as refused:
        read_model(tmp_path)
    assert f"fedaudit guard {tmp_path / 'dp'}" in str(refused.value.remedy)


def optimiser():
    module = mlp()
    optimiser = torch.optim.Adam(module.parameters())
    module(torch.zeros(2, 64)).sum().backward()
    optimiser.step()
    return optimiser.state_dict()


def flat_optimiser():
    names = [n for n, _ in mlp().named_parameters()]
    each = optimiser()["state"]
    return {f"{names[i]}.{k}": v for i, s in each.items() for k, v in s.items() if v.ndim}


RNG = np.random.default_rng(0)
X, Y = RNG.random((300, 64)), RNG.integers(0, 10, 300)
OTHERS = {
    "an optimiser, nested": (optimiser, "optimiser"),
    "an optimiser": (flat_optimiser, "optimiser"),
    "a training checkpoint": (
        lambda: {"model_state": mlp().state_dict(), "optimizer": optimiser(), "epoch": 3},
        "model_state",
    ),
    "weights beside an optimiser": (
        lambda: {**state(mlp()), **{f"optimizer.{k}": v for k, v in flat_optimiser().items()}},
        "optimiser",
    ),
    "records": (lambda: {"x": X, "y": Y}, "records"),
    "records of a regression": (lambda: {"x_train": X, "y_train": RNG.random(300)}, "records"),
    "images": (lambda: {"pictures": X.reshape(300, 8, 8), "digit": Y}, "whole number for each"),
    "text": (lambda: {"w": X, "classes": np.array(["a", "b"])}, "text"),
    "whole numbers": (lambda: {"w": RNG.integers(0, 9, (30, 30))}, "whole numbers only"),
    "one model per client": (
        lambda: {k: np.stack([v] * 5) for k, v in state(mlp()).items()},
        "5 models or updates",
    ),
    "gradients": (lambda: {f"grad.{k}": v for k, v in state(mlp()).items()}, "updates"),
    "deltas": (lambda: {f"{k}.delta": v for k, v in state(mlp()).items()}, "updates"),
    "nothing": (dict, "no such tensor"),
    "vectors": (lambda: {"gain.weight": np.ones(8)}, "gain.weight"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_a_model_is_refused_with_a_remedy(name):
    make, said = OTHERS[name]
    with pytest.raises(DataError) as refused:
        guard(make())
    assert said in f"{refused.value.got} {refused.value.remedy}"
    assert refused.value.expected
    assert refused.value.remedy
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("kind", [k for k in honest.SHARES if k not in ("pretrained gpt", "lora")])
def test_updates_of_honest_rounds_are_refused_and_models_are_not(kind):
    """An update of a single layer, as of a logistic regression from zero, may be its model."""
    run = honest.run(77, model=kind, condition="plain", rounds=3)
    for before, now in zip(run.states, run.states[1:], strict=False):
        guard(now)
        update = {k: now[k] - before[k] for k in now}
        if kind == "logistic":
            guard(update)
            continue
        with pytest.raises(DataError, match="an update, not a model"):
            guard(update)
        # beside the model before it, an update is flagged: its rows have nothing to do with it
        assert guard(update, before).flagged


def test_a_variance_below_zero_is_that_of_an_update():
    module = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32))
    module[1].running_var.fill_(-0.1)
    with pytest.raises(DataError, match="an update, not a model"):
        guard(module)


def test_gains_that_are_stored_from_zero_on_do_not_make_an_update():
    """Some transformers keep what is added to a gain of 1."""
    given = {**state(mlp()), "norm.weight": np.full(96, 0.01, np.float32)}
    assert guard(given).verdict == "no_evidence"


def test_a_small_model_passes_beside_the_one_before_it_or_as_a_message():
    small = {k: 0.05 * v for k, v in state(mlp()).items()}
    with pytest.raises(DataError, match="an update, not a model"):
        guard(small)
    assert guard(small, {k: 1.01 * v for k, v in small.items()}).verdict == "no_evidence"
    # a message of a protocol says by itself what it is
    assert guard(small, sent_as_model=True).verdict == "no_evidence"
