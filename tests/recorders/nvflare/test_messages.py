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


@pytest.mark.parametrize("steps", [np.int64(7), np.float32(7), 7.0, "7", np.array(7)])
def test_steps_count_as_flare_reads_them(steps):
    assert tensors_of("WEIGHTS", {"w": np.ones(1)}, {STEPS: steps}, STEPS).weight == 7.0


def test_metadata_with_parts_is_taken_apart_or_named():
    meta = {
        "initial_metrics": {"accuracy": np.float32(0.5), "per_class": [1, 2], "nan": float("nan")},
        "remarks": [[1], [2, 3]],
        "many": dict.fromkeys(range(99), 1.0),
        "client": np.str_("a"),
        "props": {"last": {"accuracy": np.float32(0.5)}},
        "none": None,
    }
    found = tensors_of("WEIGHTS", {"w": np.ones(1)}, meta, STEPS)
    assert found.scalars == {
        "initial_metrics.accuracy": 0.5,
        "initial_metrics.per_class": "list of 2",
        "initial_metrics.nan": "nan",
        "remarks": "list of 2",
        "many": "dict of 99",
        "client": "a",
        "props.last": "dict of 1",
    }
    assert (found.beside, found.size) == ((), 8)


def test_arrays_in_the_metadata_are_named_with_their_bytes():
    """Scaffold's control variates travel there."""
    meta = {"scaffold_c_diff": {"w": np.ones(3, np.float32), "b": np.ones(1)}, "one": np.ones(2)}
    found = tensors_of("WEIGHT_DIFF", {"w": np.ones(1)}, meta, STEPS)
    assert found.beside == ("scaffold_c_diff (20 bytes)", "one (16 bytes)")
    assert (found.scalars, found.size) == ({}, 8 + 36)


@pytest.mark.parametrize(("of", "kind"), [("FULL", "model"), ("DIFF", "delta"), (None, "model")])
def test_a_whole_flmodel_in_one_object_is_opened(of, kind):
    data = {"params_type": of, "params": {"w": np.ones(2)}, "metrics": {"loss": 0.5}}
    found = tensors_of("FL_MODEL", {**data, "meta": {STEPS: 7}}, {}, STEPS)
    assert (found.kind, found.weight, [*found.arrays], found.lacks) == (kind, 7.0, ["w"], "")
    assert found.scalars == {STEPS: 7, "metrics.loss": 0.5}
    assert "without parameters" in tensors_of("FL_MODEL", {"metrics": {}}, {}, STEPS).lacks


@pytest.mark.parametrize("steps", [0, -1, True, "many", None, float("inf")])
def test_an_odd_number_of_steps_counts_once(steps):
    assert tensors_of("WEIGHTS", {"w": np.ones(1)}, {STEPS: steps}, STEPS).weight == 1.0
