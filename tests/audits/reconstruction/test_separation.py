"""Records of one update separated by the zeros of ReLU units: twin, rank, null, noise."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedaudit.audits.reconstruction.separation import rank, separate
from fedaudit.tasks.models import mlp

WIDTH, UNITS, CLASSES = 20, 64, 4


def update(n, steps=1, batch=None, seed=0):
    """Records (n, D), and what local steps on them change in the first layer, with its rounding."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = mlp(WIDTH, [UNITS], CLASSES)
    x = torch.from_numpy(rng.normal(size=(n, WIDTH)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, n))
    layer = model[1]
    before = [v.detach().clone() for v in (layer.weight, layer.bias)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        chosen = torch.from_numpy(rng.permutation(n)[: batch or n])
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    moved = [
        (v.detach() - b).numpy() for v, b in zip((layer.weight, layer.bias), before, strict=True)
    ]
    rounding = 0.5 * float(np.finfo(np.float32).eps) * float(before[0].abs().max())
    return x.numpy(), moved, rounding


def found(x, guesses):
    """How many records (n, D) a guess equals."""
    return int((np.abs(guesses[None] - x[:, None]).max(axis=2).min(axis=1) < 0.02).sum())


@pytest.mark.parametrize(("steps", "batch"), [(1, None), (5, None), (12, 2)])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_power_all_records_are_separated_whatever_the_number_of_steps(n, steps, batch):
    counts = []
    for seed in range(4):
        x, (dw, db), rounding = update(n, steps, batch, seed)
        guesses = separate(dw, db, rounding, np.random.default_rng(0))
        counts.append(0 if guesses is None else found(x, guesses))
    assert sorted(counts)[1] == n  # three of four models tell all records apart


def test_theory_the_rank_of_an_update_is_its_number_of_records():
    for n in (1, 3, 7, 11):
        _, (dw, db), rounding = update(n, steps=3, seed=n)
        assert rank(np.c_[dw, db].astype(np.float64), rounding) == n


def test_naive_errors_that_are_given_give_the_records_back():
    """A product of sparse errors and records, without any model or rounding."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, WIDTH))
    errors = rng.normal(size=(UNITS, 5)) * (rng.random((UNITS, 5)) < 0.5)
    guesses = separate(
        (errors @ x).astype(np.float32), errors.sum(axis=1).astype(np.float32), 1e-7, rng
    )
    assert guesses is not None
    assert found(x, guesses) == 5


def test_null_without_zeros_nothing_is_claimed():
    rng = np.random.default_rng(3)
    x, errors = rng.normal(size=(4, WIDTH)), rng.normal(size=(UNITS, 4))
    dw, db = (errors @ x).astype(np.float32), errors.sum(axis=1).astype(np.float32)
    assert separate(dw, db, 1e-7, rng) is None


def test_monotone_noise_raises_the_rank_until_nothing_is_claimed():
    x, (dw, db), rounding = update(3)
    rng = np.random.default_rng(1)
    noise = 1e-3 * rng.normal(size=dw.shape).astype(np.float32)
    assert found(x, separate(dw, db, rounding, rng)) == 3
    assert separate(dw + noise, db, rounding, rng) is None
