"""A task is a pure function of a flat vector: names survive, nothing of the module changes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.task import seeded


def examples(n: int = 700, width: int = 5, classes: int = 3) -> Dataset:
    draw = np.random.default_rng(1)
    return Dataset(
        name="tiny",
        kind="features",
        x=draw.normal(size=(n, width)).astype(np.float32),
        y=draw.integers(0, classes, n),
    )


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_flat_vector_and_named_tensors_are_inverse() -> None:
    module = models.TinyViT((1, 8, 8), 4, 8, 2, 2, 3)
    task = Classifier(module)
    named = task.named(task.initial())
    assert list(named) == [n for n, _ in module.named_parameters()]
    assert "blocks.0.mlp.fc.weight" in named
    for name, value in module.named_parameters():
        assert torch.equal(named[name], value)
    rows = task.initial().repeat(3, 1)
    assert task.named(rows)["blocks.1.attn.qkv.weight"].shape == (3, 24, 8)


def test_named_tensors_are_views() -> None:
    task = Classifier(models.mlp(5, (4,), 3))
    flat = task.initial()
    task.named(flat)["1.bias"].zero_()
    assert float(flat[task.layout.select("1.bias")[0].columns].abs().max()) == 0


def test_buffers_stand_behind_parameters_and_have_their_role() -> None:
    task = Classifier(normalised())
    roles = [e.role for e in task.layout.entries]
    assert roles == ["parameter"] * 6 + ["buffer"] * 2
    assert task.layout.names[-2:] == ("1.running_mean", "1.running_var")
    assert task.has_buffers
    assert task.trained == task.layout.width - 8


def test_frozen_parameters_and_passing_buffers_do_not_travel() -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
            self.body.requires_grad_(False)
            self.register_buffer("table", torch.ones(4), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x) * self.table)

    task = Classifier(Rotary())
    assert task.layout.names == ("head.weight", "head.bias")
    assert not task.has_buffers


def test_tied_weights_travel_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(5, 5), nn.Linear(5, 5)
            self.down.weight = self.up.weight
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.down(self.up(x)))

    module = Tied()
    task, few = Classifier(module), Classifier(module).encode(examples(6))
    assert "down.weight" not in task.layout.names
    flat = task.initial() * 2
    got = task.losses(task.named(flat), few.x, few.y, None)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2)
    torch.testing.assert_close(got, F.cross_entropy(module(few.x), few.y, reduction="none"))


def test_a_layer_used_twice_is_left_as_it_was() -> None:
    layer = nn.Linear(5, 5)
    module = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 3))
    weight = layer.weight
    task = Classifier(module)
    few = task.encode(examples(6))
    got = task.losses(task.named(task.initial() * 2), few.x, few.y, None)
    assert layer.weight is weight
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2)
    torch.testing.assert_close(got, F.cross_entropy(module(few.x), few.y, reduction="none"))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        Classifier(nn.Sequential(nn.Flatten()))


def test_a_call_leaves_counters_of_the_module_alone() -> None:
    module = nn.Sequential(nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))
    task, data = Classifier(module), examples(8)
    few = task.encode(data)
    first, second = task.initial(), task.initial()
    for flat in (first, second):
        task.losses(task.named(flat), few.x, few.y, None)
    assert int(module[0].num_batches_tracked) == 0
    assert torch.equal(first, second)  # with a shared counter the second mean would weigh half
    assert not torch.equal(first, task.initial())  # statistics went into the flat vector


def test_metrics_are_means_over_all_examples_in_evaluation_mode() -> None:
    module = normalised()
    task = Classifier(module)
    few = task.encode(examples())  # more than one chunk
    flat = task.initial()
    task.named(flat)["1.running_mean"].fill_(0.3)
    before = flat.clone()
    got = task.metrics(flat, few, Seed(1))
    assert torch.equal(flat, before)
    assert module.training
    module[1].running_mean.fill_(0.3)
    module.eval()
    logits = module(few.x).detach()
    assert got["loss"] == pytest.approx(float(F.cross_entropy(logits, few.y)), rel=1e-5)
    assert got["accuracy"] == pytest.approx(float((logits.argmax(1) == few.y).float().mean()))


def test_evaluating_restores_every_mode() -> None:
    module = normalised()
    module[1].eval()
    task = Classifier(module)
    with task.evaluating():
        assert not any(m.training for m in module.modules())
    assert module.training
    assert not module[1].training


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    data = examples(4)
    assert isinstance(data.x, np.ndarray)
    data.x.setflags(write=False)
    data.y.setflags(write=False)
    encoded = Classifier(models.mlp(5, (), 3)).encode(data)
    np.testing.assert_array_equal(encoded.x.numpy(), data.x)
    assert encoded.take(torch.tensor([2, 0])).record.tolist() == [2, 0]


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    a = seeded(Seed(1), "weights", models.mlp, 5, (4,), 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    b = seeded(Seed(1), "weights", models.mlp, 5, (4,), 3)
    c = seeded(Seed(2), "weights", models.mlp, 5, (4,), 3)
    assert torch.equal(a[1].weight, b[1].weight)
    assert not torch.equal(a[1].weight, c[1].weight)
