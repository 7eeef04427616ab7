"""Uploads as they are carried: deltas, or whole models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError
from fedaudit.federation.wire import as_carried
from fedaudit.hooks import Uploads
from fedaudit.trace import ANONYMOUS

CLIENTS = np.array([1, 4, 5])
UPLOADS = Uploads(
    rows=torch.arange(6.0).reshape(3, 2),
    senders=("b", "e", "f"),
    weights=np.ones(3),
    origin=CLIENTS,
    total_weight=3.0,
)
ONE = torch.tensor([10.0, 20.0])
EACH = torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])


def test_deltas_stay_as_they_are() -> None:
    assert as_carried(UPLOADS, ONE, CLIENTS, "delta") is UPLOADS
    total = replace(UPLOADS, kind="sum")  # a secure sum stays a sum of deltas
    assert as_carried(total, ONE, CLIENTS, "model") is total


def test_a_model_is_what_was_received_and_the_delta() -> None:
    carried = as_carried(UPLOADS, ONE, CLIENTS, "model")
    assert carried.kind == "model"
    assert torch.equal(carried.rows, UPLOADS.rows + ONE)
    assert torch.equal(UPLOADS.rows, torch.arange(6.0).reshape(3, 2))


def test_every_sender_starts_from_the_model_planted_for_it() -> None:
    order = [2, 0, 1]
    mixed = replace(UPLOADS, rows=UPLOADS.rows[order], origin=CLIENTS[order])
    carried = as_carried(mixed, EACH, CLIENTS, "model")
    assert torch.equal(carried.rows, (UPLOADS.rows + EACH)[order])
    assert torch.equal(EACH[0], ONE)


def test_anonymous_models_cannot_be_compared_with_planted_ones() -> None:
    hidden = replace(UPLOADS, senders=(ANONYMOUS,) * 3)
    with pytest.raises(ConfigError, match=r'wire = "delta"'):
        as_carried(hidden, EACH, CLIENTS, "model")
    assert as_carried(hidden, ONE, CLIENTS, "model").kind == "model"
