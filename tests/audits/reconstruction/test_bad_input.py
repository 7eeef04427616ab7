"""Input that nothing can be rebuilt from: a need with a code or a scored result, no traceback."""

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.reconstruction import Prior, Reconstruction
from fedaudit.errors import NotApplicable
from fedaudit.layout import Layout
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import cnn, mlp
from fedaudit.trace import PUBLIC, SERVER, MemoryRecorder, MemoryTruth

WIDTH, CLASSES = 6, 3


class Steps(nn.Module):
    """Rounds its input to whole numbers before anything is trained: no slope reaches a record."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out((4 * x).round())


class Cut(nn.Module):
    """Compares its input with a number: its output is constant nearly everywhere."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out(torch.gt(x, 0.5).float())


def asked(task, shape, size=1, change=lambda row: row, width=None, **settings):
    """The result of a federation of four clients, whose updates pass through `change`."""
    rng = np.random.default_rng(0)
    x = rng.random((4, 2 * size, *shape), dtype=np.float32)
    y = rng.integers(0, CLASSES, (4, 2 * size))
    start, names = task.initial(), [f"c{i}" for i in range(4)]

    def named(row):
        return {n: v.detach().numpy() for n, v in task.named(row).items()}

    layout = Layout.of([(e.name, e.shape) for e in task.layout.entries])
    recorder = MemoryRecorder(layouts={"model": layout})
    with recorder.round() as wire:
        for i, name in enumerate(names):
            p = start.clone().requires_grad_(True)
            records, labels = torch.from_numpy(x[i, :size]), torch.from_numpy(y[i, :size])
            loss = task.losses(task.named(p), records, labels, None).mean()
            (slope,) = torch.autograd.grad(loss, [p])
            wire.send("model", SERVER, name, named(start))
            wire.send("delta", name, SERVER, named(change(-0.1 * slope)))
        wire.send("model", SERVER, PUBLIC, named(start))
    wide = (width,) if width else shape
    flat = int(np.prod(wide))
    prior = Prior(
        low=np.zeros(flat),
        high=np.ones(flat),
        middle=np.full(flat, 0.5),
        shape=wide,
        sizes=dict.fromkeys(names, size),
        learning_rate=0.1,
    )
    audit = Reconstruction(steps=5, restarts=1, records=2, **settings)
    known = Knowledge(task=task, extra={"prior": prior})
    rng = np.random.default_rng(1)
    guess = audit.attack(recorder.trace().seen_by(SERVER), known, rng)
    members = {n: np.arange(2 * size) < size for n in names}
    pools = {n: (x[i], y[i]) for i, n in enumerate(names)}
    truth = MemoryTruth({}).with_members(members, pools)
    return audit.score(guess, truth, rng)


def table_model():
    torch.manual_seed(0)
    return Classifier(mlp(WIDTH, [8], CLASSES))


def test_records_of_another_shape_are_refused_with_a_code():
    with pytest.raises(NotApplicable) as caught:
        asked(table_model(), (WIDTH,), width=WIDTH + 1)
    assert caught.value.code == "other_records"


def test_a_model_without_an_input_layer_and_large_clients_is_refused_with_a_code():
    torch.manual_seed(0)
    with pytest.raises(NotApplicable) as caught:
        asked(Classifier(cnn((1, 8, 8), [4], CLASSES)), (1, 8, 8), size=3, matched_size=2)
    assert caught.value.code == "no_input_layer"


@pytest.mark.parametrize(
    "change",
    [
        lambda row: (row * 64).round() / 64,  # eight bits or so
        lambda row: row.sign(),
        lambda row: row.bfloat16().float(),
        torch.zeros_like,
    ],
    ids=["rounded", "signs", "bfloat16", "zeros"],
)
def test_quantised_uploads_are_scored(change):
    assert asked(table_model(), (WIDTH,), size=2, change=change).status == "ok"


def test_clients_of_a_single_record_are_scored():
    assert asked(table_model(), (WIDTH,)).status == "ok"


def test_layers_without_slope_are_scored():
    torch.manual_seed(0)
    assert asked(Classifier(Steps()), (WIDTH,), size=2).status == "ok"


def test_a_model_that_cuts_the_slope_is_refused_with_a_code():
    torch.manual_seed(0)
    with pytest.raises(NotApplicable) as caught:
        asked(Classifier(Cut()), (WIDTH,), size=2)
    assert caught.value.code == "not_differentiable"
