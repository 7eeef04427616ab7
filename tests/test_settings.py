"""Settings come from a config strictly: known names, right types, nothing converted silently."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from fedaudit import settings
from fedaudit.errors import ConfigError


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
