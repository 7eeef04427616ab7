"""Fields of a data exchange object as named arrays."""

import numpy as np
import pytest
import torch

from fedaudit.recorders.nvflare.messages import tensors_of

STEPS = "NUM_STEPS_CURRENT_ROUND"


def test_weights_with_their_steps_and_metadata():
    found = tensors_of(
        "WEIGHTS", {"w": np.ones((2, 3), np.float32)}, {STEPS: 7, "site": "a"}, STEPS
    )
    assert (found.kind, found.weight, found.size, found.lacks) == ("model", 7.0, 24, "")
    assert found.scalars == {STEPS: 7, "site": "a"}


def test_a_difference_is_a_delta():
    assert tensors_of("WEIGHT_DIFF", {"w": np.ones(2)}, {}, STEPS).kind == "delta"


def test_bfloat16_is_widened():
    found = tensors_of("WEIGHTS", {"w": torch.ones(2, dtype=torch.bfloat16)}, {}, STEPS)
    assert found.arrays["w"].dtype == np.float32


@pytest.mark.parametrize("kind", ["METRICS", "COLLECTION", "APP_DEFINED"])
def test_other_kinds_are_named_and_not_recorded(kind):
    found = tensors_of(kind, {"w": np.ones(2)}, {}, STEPS)
    assert (found.arrays, kind in found.lacks) == ({}, True)


def test_encrypted_weights_are_masked_and_keep_their_size():
    meta = {"PROCESSED_ALGORITHM": "HE_CKKS"}
    found = tensors_of("WEIGHTS", {"w": b"x" * 100}, meta, STEPS)
    assert (found.kind, found.size, found.arrays) == ("masked", 100, {})


def test_layers_that_an_encryption_leaves_out_are_named():
    meta = {"PROCESSED_ALGORITHM": "HE_CKKS", "PROCESSED_KEYS": {"w": True, "b": False}}
    found = tensors_of("WEIGHTS", {"w": b"x" * 100, "b": np.ones(2)}, meta, STEPS)
    assert (found.kind, found.size) == ("masked", 116)
    assert found.scalars["layers in the clear"] == "b"


def test_what_is_no_number_is_said():
    assert "objects of type list" in tensors_of("WEIGHTS", {"objects": [1]}, {}, STEPS).lacks


@pytest.mark.parametrize("steps", [0, -1, True, "9", None])
def test_an_odd_number_of_steps_counts_once(steps):
    assert tensors_of("WEIGHTS", {"w": np.ones(1)}, {STEPS: steps}, STEPS).weight == 1.0
