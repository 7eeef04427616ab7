"""A hook does nothing where it does not act."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.hooks import PLACES, Hook, Leg, Uploads
from fedaudit.randomness import Seed


def uploads() -> Uploads:
    return Uploads(
        rows=torch.ones(2, 3),
        senders=("a", "b"),
        weights=np.ones(2),
        origin=np.arange(2),
        total_weight=2.0,
    )


def test_the_plain_hook_changes_nothing() -> None:
    hook, seed = Hook(), Seed(1)
    x, y, model = torch.ones(2, 3), torch.zeros(2), torch.ones(3)
    assert hook.data(x, y, client=0, seed=seed) == (x, y)
    assert hook.broadcast(model, receivers=np.arange(2), round_number=1, seed=seed) is model
    assert hook.gradient(x) is x
    sums = x.clone()
    hook.step(sums, clients=np.arange(2), round_number=1, step=0, seed=seed)
    assert torch.equal(sums, x)
    sent = uploads()
    assert hook.upload(sent, round_number=1, seed=seed) is sent
    assert hook.aggregate(model, round_number=1, seed=seed) is model
    assert not any(hook.acts_at(place) for place in PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_acting_is_overriding(place: str) -> None:
    class Acting(Hook):
        pass

    setattr(Acting, place, lambda self, *args, **settings: None)

    class Heir(Acting):
        pass

    for hook in (Acting(), Heir()):
        assert [p for p in PLACES if hook.acts_at(p)] == [place]


def test_a_declaration_says_what_is_covered() -> None:
    class Cover(Hook):
        name = "cover"
        covers = ("sender",)
        trust = "the shuffler"

    assert Cover().declare() == {"name": "cover", "covers": ["sender"], "trust": "the shuffler"}


def test_uploads_and_legs_are_plain_data() -> None:
    sent = uploads()
    assert sent.kind == "delta"
    assert sent.legs == ()
    assert isinstance(sent.rows, Tensor)
    assert Leg("a", "shuffler", 12) == Leg("a", "shuffler", 12)
