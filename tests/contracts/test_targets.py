"""What a part of the package needs an extra for is run by some target of the Makefile."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {"transformers", "peft", "gguf", "tokenizers"}
ELSEWHERE = {"flower_recording.py"}
"""Benchmarks that need an environment of another extra; their README says so."""
SHARED = {"timing.py"}
"""What they share."""


def recipe(target):
    """What `make TARGET` would do, without doing it."""
    said = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout


def skipped_without(test):
    """Packages without which a test function is skipped."""
    return {
        call.args[0].value.partition(".")[0]
        for call in ast.walk(test)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("importorskip")
        and isinstance(call.args[0], ast.Constant)
    }


def test_tests_that_need_the_text_extra_are_marked_and_no_others():
    needing, marked = set(), set()
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            name = f"{file.relative_to(ROOT)}::{node.name}"
            if skipped_without(node) & TEXT:
                needing.add(name)
            if any(ast.unparse(d).startswith("pytest.mark.text") for d in node.decorator_list):
                marked.add(name)
    assert len(needing) >= 8
    assert marked == needing
    # and every one lies where the targets look
    looked = re.findall(r"tests/\S+", recipe("test-text") + recipe("nightly-text"))
    assert [name for name in needing if not name.startswith(tuple(looked))] == []


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("test-text", ["[text]", '-m "text and not nightly and not network"']),
        ("nightly-text", ["[text]", "tests/nightly"]),
        ("nightly-flower", ["[flower]", "tests/nightly/test_flower.py"]),
    ],
)
def test_the_targets_install_an_extra_and_run_its_tests(target, words):
    said = recipe(target)
    for word in words:
        assert word in said
    # the environment of the other tests stays as it is
    assert not re.search(r"(^|\s)\.venv/", said)


def test_bench_runs_every_benchmark_that_its_environment_can():
    there = {file.name for file in (ROOT / "benchmarks").glob("*.py")}
    run = set(re.findall(r"benchmarks/(\w+\.py)", recipe("bench")))
    assert run == there - ELSEWHERE - SHARED
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert re.search(r"`make bench` runs them, but for `flower_recording\.py`", page)


def test_what_a_target_runs_is_there():
    """Tests and scripts that a recipe names exist: CI runs targets that `make test` does not."""
    named = re.findall(
        r"\b(?:tests|benchmarks|docs|reproductions|examples)/[\w/.-]+\b",
        (ROOT / "Makefile").read_text(encoding="utf-8"),
    )
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
