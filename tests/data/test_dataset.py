from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedaudit.data.dataset import Dataset
from fedaudit.errors import DataError

DATA = Dataset(
    name="d",
    kind="features",
    x=np.arange(6, dtype=np.float32).reshape(3, 2),
    y=np.array([0, 1, 1]),
    classes=("no", "yes"),
    client=("a", "b", "b"),
    person=("p", "q", "r"),
)


def test_take_keeps_the_order_and_the_owners_and_drops_the_test_part() -> None:
    part = replace(DATA, test=DATA).take([2, 0])
    assert part.x.tolist() == [[4, 5], [0, 1]]
    assert part.y.tolist() == [1, 0]
    assert part.client == ("b", "a")
    assert part.person == ("r", "p")
    assert part.organisation is None
    assert part.test is None
    text = Dataset(name="t", kind="text", x=("one", "two"), y=np.zeros(2, np.int64))
    assert text.take([1]).x == ("two",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((0, 2), np.float32), "y": np.zeros(0, np.int64)}, "empty"),
        ({"y": np.array([0, 1])}, "'y' does not fit"),
        ({"client": ("a",)}, "'client' does not fit"),
        ({"x": np.array([[0, 1], [np.nan, 0], [0, np.inf]], np.float32)}, "the first is record 1"),
        ({"y": np.array([0, 1, 2])}, "labels 0 to 1"),
        ({"y": np.array([0, 1, -1])}, "labels -1 to 1"),
    ],
)
def test_what_does_not_fit_is_refused_at_birth(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(DATA, **change)
