"""One name, one meaning: no two classes share a name, and shared aliases are defined once."""

import ast
from collections import defaultdict
from pathlib import Path

import fedaudit

SOURCES = sorted(Path(fedaudit.__file__).parent.rglob("*.py"))
ALIASES = ("Floats", "Indices")


def test_no_two_classes_share_a_name():
    places = defaultdict(set)
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(file)
    assert len(places) > 300
    assert {name for name, files in places.items() if len(files) > 1} == set()


def test_shared_aliases_are_defined_once():
    found = defaultdict(list)
    for file in SOURCES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id].append(file.name)
    assert {name: found[name] for name in ALIASES} == {name: ["arrays.py"] for name in ALIASES}
