"""User code: any failure gives one message with its line, never a traceback."""

import json
import sys
from pathlib import Path

import pytest

from fedaudit import foreign
from fedaudit.errors import ConfigError, DataError

NAMED = {"expected": "a function that builds", "example": '"own:build"'}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module into the working folder; unload it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(text, name=None):
        name = name or f"own_module_{len(made)}_of_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_what_is_named_is_loaded_and_called(own):
    name = own("class Kind:\n    @staticmethod\n    def build(x=2): return x\napp = 7\n")
    assert foreign.load_function(f"{name}:Kind.build", **NAMED)(3) == 3
    assert foreign.load(name, **NAMED, default="app") == 7
    found = foreign.load_function("json:loads", **NAMED)
    assert found is json.loads
    assert foreign.call("json:loads", found, "[1]", expected="a reader") == [1]


@pytest.mark.parametrize(
    ("text", "got", "line"),
    [
        ("def build()\n    return 1\n", "SyntaxError: expected ':'", 1),
        ("x = 1\nraise RuntimeError('no weights')\n", "RuntimeError: no weights", 2),
        ("\n\nimport a_package_that_is_not_there\n", "ModuleNotFoundError: No module", 3),
        ("x = {}\nx['a']\n", "KeyError: 'a'", 2),
        ("import json\njson.loads('')\n", "JSONDecodeError: Expecting value", 2),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
        ("def f():\n    1 / 0\nf()\n", "ZeroDivisionError: division by zero", 2),
        ("assert False\n", "AssertionError", 1),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(own, text, got, line):
    name = own(text)
    with pytest.raises(ConfigError, match="cannot load") as refused:
        foreign.load_function(f"{name}:build", **NAMED)
    assert refused.value.got.startswith(got)
    assert refused.value.got.endswith(f"({name}.py:{line})")
    assert f"import {name}" in refused.value.remedy
    assert refused.value.__cause__ is None


def test_a_module_that_is_not_there_is_told_from_one_that_needs_another(own):
    for absent in ("no_such_module_at_all:f", "json.no_such_module:f"):
        with pytest.raises(ConfigError, match="cannot load") as refused:
            foreign.load_function(absent, **NAMED)
        assert "run from the folder" in refused.value.remedy
    name = own("import no_such_module_at_all\n")
    with pytest.raises(ConfigError) as refused:
        foreign.load_function(f"{name}:f", **NAMED)
    assert "run from the folder" not in refused.value.remedy


def test_a_name_that_is_not_in_the_module_has_a_nearest_one(own):
    name = own("import json\ndef build(): return 1\n_hidden = 2\n")
    with pytest.raises(ConfigError, match="cannot load") as refused:
        foreign.load_function(f"{name}:biuld", **NAMED)
    assert refused.value.remedy == "did you mean 'build'? Valid: build"


@pytest.mark.parametrize("where", ["", "f", ":f", "own:", "..own:f", "own file:f", "own:a b"])
def test_what_names_nothing_is_refused(where):
    with pytest.raises(ConfigError) as refused:
        foreign.load_function(where, **NAMED)
    assert refused.value.expected == "package.module:function"


def test_what_cannot_be_called_is_refused(own):
    name = own("build = 3\n")
    with pytest.raises(ConfigError, match="is not a function") as refused:
        foreign.load_function(f"{name}:build", **NAMED)
    assert refused.value.got == "int"


CALLED = """
import sys
from fedaudit.errors import DataError
def boom(): raise RuntimeError("no weights file")
def deep(): return boom()
def needs(path): return path
def inside(): return len(3)
def leaves(): sys.exit("bye")
def ours(): raise DataError("a file of ours")
def empty(): raise ValueError
"""


@pytest.mark.parametrize(
    ("function", "got"),
    [
        ("boom", "RuntimeError: no weights file (PLACE:4)"),
        ("deep", "RuntimeError: no weights file (PLACE:4)"),
        ("needs", "needs(path): missing a required argument: 'path'"),
        ("inside", "TypeError: object of type 'int' has no len() (PLACE:7)"),
        ("leaves", "SystemExit: bye (PLACE:8)"),
        ("empty", "ValueError (PLACE:10)"),
    ],
)
def test_a_call_that_fails_says_what_and_where(own, function, got):
    name = own(CALLED)
    found = foreign.load_function(f"{name}:{function}", **NAMED)
    with pytest.raises(ConfigError) as refused:
        foreign.call(f"{name}:{function}", found, expected="a function without arguments")
    assert refused.value.got == got.replace("PLACE", f"{name}.py")
    assert refused.value.expected == "a function without arguments"
    assert refused.value.remedy


def test_errors_of_our_own_stay_what_they_are(own):
    name = own(CALLED)
    with pytest.raises(DataError, match="a file of ours"):
        foreign.call("x", foreign.load(f"{name}:ours", **NAMED), expected="nothing")


def test_a_line_outside_the_working_folder_has_its_whole_path(own, tmp_path, monkeypatch):
    name = own(CALLED)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(ConfigError) as refused:
        foreign.call("x", foreign.load(f"{name}:boom", **NAMED), expected="nothing")
    assert f"({Path(tmp_path, name)}.py:4)" in refused.value.got
