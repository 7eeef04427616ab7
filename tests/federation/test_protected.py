"""Protections of the data and of local training, without any rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.federation.protected import protected_data, protected_trainer
from fedaudit.hooks import Hook
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP

SEED = Seed(3)
SIZES = (6, 1, 9)


@pytest.fixture
def dataset() -> Dataset:
    draw = np.random.default_rng(4)
    x = draw.random(size=(sum(SIZES), 5)).astype(np.float32)
    return Dataset(name="tiny", kind="features", x=x, y=draw.integers(0, 3, len(x)))


@pytest.fixture
def data(dataset: Dataset) -> ClientData:
    examples = MLP(hidden=(4,)).build(dataset, SEED).encode(dataset)
    ends = np.cumsum(SIZES)
    return ClientData.join(
        [(examples.x[e - s : e], examples.y[e - s : e]) for s, e in zip(SIZES, ends, strict=True)]
    )


class Drop(Hook):
    name: ClassVar[str] = "drop"

    def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
        return x[1:], y[1:]


class Halve(Hook):
    """Halves every example's gradient, and every sum of a batch again."""

    name: ClassVar[str] = "halve"

    def gradient(self, each: Tensor) -> Tensor:
        return each / 2

    def step(self, sums: Tensor, *, clients: Any, round_number: int, step: int, seed: Seed) -> None:
        sums /= 2


def test_a_data_hook_acts_on_a_copy(data: ClientData) -> None:
    class Erase(Hook):
        name: ClassVar[str] = "erase"

        def data(self, x: Tensor, y: Tensor, *, client: int, seed: Seed) -> tuple[Tensor, Tensor]:
            x.zero_()  # in place: the raw data must survive it
            return x, y

    erased = protected_data(data, [Erase()], SEED)
    assert float(erased.x.abs().max()) == 0
    assert float(data.x.abs().max()) > 0
    assert torch.equal(erased.y, data.y)
    assert protected_data(data, [Halve()], SEED) is data  # nothing acts on it


def test_examples_of_counted_persons_stay_in_number(data: ClientData) -> None:
    assert protected_data(data, [Drop()], SEED).sizes.tolist() == [5, 0, 8]
    people = replace(data, person=torch.arange(sum(SIZES)))
    with pytest.raises(ConfigError, match="clipping is per person"):
        protected_data(people, [Drop()], SEED)


def trained(dataset: Dataset, data: ClientData, training: Training, *hooks: Hook) -> Tensor:
    task = MLP(hidden=(4,)).build(dataset, SEED)
    trainer = protected_trainer(
        task, training, hooks, SEED, clients=len(SIZES), copies=1, persons=False, tier="auto"
    )
    assert isinstance(trainer, Trainer)
    return trainer.train(task.initial(), np.arange(len(SIZES)), data, 1)


def test_a_protection_that_needs_poisson_batches_gets_them(
    dataset: Dataset, data: ClientData
) -> None:
    class Sampled(Hook):
        name: ClassVar[str] = "sampled"
        sampling: ClassVar[Any] = "poisson"

    plain = Training(learning_rate=0.3, batch_size=4)
    poisson = replace(plain, sampling="poisson")
    assert torch.equal(trained(dataset, data, plain, Sampled()), trained(dataset, data, poisson))
    assert not torch.equal(trained(dataset, data, plain), trained(dataset, data, poisson))


def test_hooks_act_on_gradients_and_on_sums(dataset: Dataset, data: ClientData) -> None:
    once = Training(learning_rate=0.3, batch_size=0)  # one step: an update is linear in it
    plain, halved = trained(dataset, data, once), trained(dataset, data, once, Halve())
    # an update is a difference of weights, each rounded to single precision
    weights = MLP(hidden=(4,)).build(dataset, SEED).initial().abs().max()
    rounded = 4 * float(weights) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(halved, plain / 4, rtol=1e-5, atol=rounded)


def test_clipping_per_person_needs_persons(dataset: Dataset, data: ClientData) -> None:
    class PerPerson(Hook):
        name: ClassVar[str] = "per_person"
        clip_norm: ClassVar[Any] = 1.0
        clip_unit: ClassVar[Any] = "person"

    with pytest.raises(ConfigError, match="needs a person column"):
        trained(dataset, data, Training(), PerPerson())
