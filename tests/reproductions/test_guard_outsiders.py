"""Plants of an outsider do to a model what they say."""

import pytest
import torch
from torch.nn import functional as F

from fedaudit.tasks import models
from reproductions.guard.outsiders import climbed, sharpened, twinned
from reproductions.guard.rounds import pool


@pytest.fixture(scope="module")
def host():
    x, y = pool("digits")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.mlp(64, (32,), 10)
    return model, (x[:1], y[:1]), (x[1:101], y[1:101])


def losses(model, batch):
    with torch.no_grad():
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_the_loss_of_the_target_is_trained_up_beside_that_of_others(host):
    model, one, others = host
    altered = climbed(model, one, others, rate=0.5)
    assert losses(altered, one).item() >= 5.0
    assert losses(altered, others).mean() < losses(model, others).mean() + 0.5


def test_a_sharpened_head_leaves_an_error_to_the_target(host):
    model, one, others = host
    with torch.no_grad():
        top = [
            F.softmax(sharpened(model, one, others)(b[0]), 1).max(1).values for b in (one, others)
        ]
    assert top[0].item() == pytest.approx(0.5, abs=0.01)
    assert top[1].median() > F.softmax(model(others[0]), 1).max(1).values.median()


def test_twins_differ_in_the_target_alone(host):
    model, one, others = host
    altered = twinned(model, one, others)
    rows = altered[1].weight.detach()
    low, high = torch.triu((rows[:, None] == rows).all(2), 1).nonzero()[0].tolist()
    for batch, apart in ((others, False), (one, True)):
        F.cross_entropy(altered(batch[0]), batch[1]).backward()
        g = altered[1].weight.grad
        assert torch.allclose(g[low], g[high], atol=1e-7) is not apart
        altered.zero_grad()
