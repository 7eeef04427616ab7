"""Settings are read strictly: known names, exact types, no silent conversion."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import pytest
from annotated_types import Ge, MinLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedaudit import settings
from fedaudit.errors import ConfigError, UsageError


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example."""

    needed: int
    rate: float = 0.1
    word: Literal["sgd", "adam"] = "sgd"
    widths: tuple[int, ...] = (8,)
    size: tuple[int, int] | None = None
    on: bool = False
    derived: int = field(init=False, default=3)


def function(n: int, *, path: str | Path, share: float = 0.5, names: list[str] | None = None):
    return n


def test_values_of_the_right_type_become_an_instance():
    made = settings.check(
        Example, {"needed": 2, "rate": 1, "widths": [3, 4], "size": [1, 2]}, "section"
    )
    assert made == Example(needed=2, rate=1.0, widths=(3, 4), size=(1, 2))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("needed", "5"),
        ("needed", 5.0),
        ("needed", True),
        ("rate", "0.1"),
        ("rate", False),
        ("on", 1),
        ("on", "true"),
        ("word", "sdg"),
        ("widths", 8),
        ("widths", [8, "9"]),
        ("widths", [[8]]),
        ("size", [1, 2, 3]),
        ("needed", {"a": 1}),
    ],
)
def test_a_wrong_type_is_refused_and_named(key, value):
    with pytest.raises(ConfigError) as caught:
        settings.check(Example, {"needed": 1, key: value}, "section")
    assert f"section.{key}" in caught.value.what
    assert repr(value) in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_misspelt_choice_names_the_nearest():
    with pytest.raises(ConfigError) as caught:
        settings.check(Example, {"needed": 1, "word": "adm"}, "section")
    assert "did you mean 'adam'" in caught.value.remedy


def test_an_unknown_key_names_the_nearest_and_keys_read_elsewhere():
    with pytest.raises(ConfigError) as caught:
        settings.check(Example, {"needed": 1, "rte": 2}, "section")
    assert "did you mean 'rate'" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        settings.check(Example, {"needed": 1, "knd": "x"}, "section", also=("kind",))
    assert "did you mean 'kind'" in caught.value.remedy


def test_a_field_that_is_not_a_setting_cannot_be_set():
    with pytest.raises(ConfigError, match=r"unknown key section\.derived"):
        settings.check(Example, {"needed": 1, "derived": 4}, "section")


def test_what_is_required_must_be_there():
    with pytest.raises(ConfigError, match="section needs needed"):
        settings.check(Example, {}, "section")
    with pytest.raises(ConfigError, match="section needs path"):
        settings.check_arguments(function, {}, "section")


def test_keyword_arguments_are_settings_too():
    given = {"path": "a.csv", "names": ["x"]}
    assert settings.check_arguments(function, given, "section") == given
    with pytest.raises(ConfigError, match=r"unknown key section\.n"):
        settings.check_arguments(function, {"path": "a", "n": 1}, "section")
    with pytest.raises(ConfigError, match=r"section\.names"):
        settings.check_arguments(function, {"path": "a", "names": "x"}, "section")


def test_types_and_defaults_are_said_in_words():
    about = settings.describe(Example)
    assert about["needed"] == ("a whole number", settings.REQUIRED)
    assert about["rate"] == ("a number", "0.1")
    assert about["word"] == ("'sgd' or 'adam'", '"sgd"')
    assert about["widths"] == ("a list of whole numbers", "[8]")
    assert about["size"] == ("a list of 2 whole numbers", "")
    assert "derived" not in about
    assert settings.describe_arguments(function)["path"] == ("text in quotes", settings.REQUIRED)


# -- constraints ----------------------------------------------------------------------------------

CONSTRAINED = [
    settings.Positive,
    settings.PositiveFinite,
    settings.NonNegative,
    settings.Fraction,
    settings.Share,
    settings.ShareAboveZero,
    settings.ShareBelowOne,
    settings.Whole,
    settings.Count,
    settings.AtLeastTwo,
    settings.SeedNumber,
]


@dataclass(frozen=True, kw_only=True)
@settings.checked("section")
class Checked:
    rate: settings.Positive = 0.5
    bound: settings.PositiveFinite = 1.0
    share: settings.Fraction = 0.5
    steps: settings.Count | None = None
    either: settings.NonNegative | tuple[settings.NonNegative, ...] = 1.0
    level: settings.Positive | Literal["noise"] = 0.1
    word: Literal["sgd", "adam"] = "sgd"
    classes: Annotated[tuple[settings.Whole, ...], MinLen(1), settings.EachOnce()] = (0,)
    threshold: Annotated[int, Ge(2), "a sum over one client is no secret"] = 5
    free: float = 0.0

    def __post_init__(self):
        if self.rate > self.bound:  # would fail on a text: fields are checked before
            raise ConfigError("the rate is above the bound")


@dataclass(frozen=True, kw_only=True)
@settings.checked("section.child", error=UsageError)
class Child(Checked):
    more: settings.Count = 1


@given(value=st.floats(allow_nan=True) | st.integers() | st.booleans() | st.text(), data=st.data())
@pytest.mark.parametrize("hint", CONSTRAINED, ids=settings._spell)
def test_require_agrees_with_pydantic(hint, value, data):
    """Pydantic implements the same constraints independently."""
    value = data.draw(st.sampled_from([value, 0, 1, 2, 0.0, 1.0, 2**64, math.inf, -math.inf]))
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
        fine = True
    except ValidationError:
        fine = False
    if fine:
        settings.require(hint, value=value)
    else:
        with pytest.raises(UsageError) as caught:
            settings.require(hint, value=value)
        assert caught.value.expected == settings._spell(hint)
        assert caught.value.got == repr(value)


@given(st.data())
@pytest.mark.parametrize("hint", CONSTRAINED, ids=settings._spell)
def test_numpy_scalars_count_as_numbers(hint, data):
    value = data.draw(st.from_type(hint).filter(lambda v: v < 2**63))
    whole = get_args(hint)[0] is int
    settings.require(hint, value=np.uint64(value) if whole else np.float64(value))


@pytest.mark.parametrize(
    ("key", "fine", "refused"),
    [
        ("rate", [1e-9, 1, np.float32(0.5)], [0, -1, math.nan, True, "1", None]),
        ("bound", [2.0, 10**9], [math.inf, math.nan, 0.0]),
        ("share", [0.5, np.float64(0.1)], [0, 1, 1.0, math.nan]),
        ("steps", [None, 1, np.int64(3)], [0, 1.0, np.float64(2), True]),
        ("either", [0, (0.0, 2.0), [1.0]], [-1, (0.0, -1.0), (0.0, math.nan), ("a",), None]),
        ("level", ["noise", 3], ["nose", 0, math.nan]),
        ("word", ["adam"], ["adm", 1, None]),
        ("classes", [(0, 1), (3,)], [(), (0, 0), (-1,), 0, (True,)]),
        ("threshold", [2], [1, 2.0]),
        ("free", ["anything"], []),
    ],
)
def test_a_checked_dataclass_checks_values_at_birth(key, fine, refused):
    for value in fine:
        assert getattr(replace(Checked(bound=10**9), **{key: value}), key) is value
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            Checked(**{key: value})
        assert f"section.{key} " in caught.value.what
        assert caught.value.got == repr(value)
        with pytest.raises(ConfigError):
            replace(Checked(), **{key: value})


def test_a_refusal_says_what_is_allowed_and_what_to_write():
    with pytest.raises(ConfigError) as caught:
        settings.check(Checked, {"threshold": 1}, "section")
    assert caught.value.expected == (
        "a whole number of at least 2: a sum over one client is no secret"
    )
    assert (caught.value.got, caught.value.remedy) == ("1", "threshold = 5")
    with pytest.raises(ConfigError, match="did you mean 'adam'"):
        Checked(word="adm")
    about = settings.describe(Checked)
    assert about["share"] == ("a number above 0 and below 1", "0.5")
    assert about["classes"][0] == (
        "a list of whole numbers of at least 0, at least 1 of them, each once"
    )


def test_fields_are_checked_before_post_init_and_by_subclasses():
    with pytest.raises(ConfigError, match="above the bound"):
        Checked(rate=2.0)
    with pytest.raises(ConfigError, match=r"section\.rate"):
        Child(rate="1")
    with pytest.raises(UsageError, match=r"section\.child\.more"):
        Child(more=0)
