"""One way to JSON: strict numbers, infinities as text, and back."""

import json
import math
from dataclasses import dataclass

import pytest

from fedaudit.codec import decode, encode, json_number, to_json


@dataclass(frozen=True)
class Point:
    at: float
    words: tuple[str, ...]


def test_values_survive_the_round_trip():
    values = {
        "a": [1, 2.5, None, True],
        "b": {"c": math.inf, "d": -math.inf},
        "e": "inf",
        "f": "\\inf",
    }
    assert decode(json.loads(to_json(encode(values)))) == values
    assert encode(Point(math.inf, ("x", "-inf"))) == {"at": "inf", "words": ["x", "\\-inf"]}


@pytest.mark.parametrize("value", [{"a": math.nan}, {1: 2}, {"a": object()}, {"a": 2**64}])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_nan_is_null_where_the_caller_says_so():
    assert encode({"a": [math.nan]}, nan_as_null=True) == {"a": [None]}
    assert json_number(math.nan) is None


def test_text_is_never_written_with_an_infinity():
    with pytest.raises(ValueError):
        to_json({"a": math.inf})
