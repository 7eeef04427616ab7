"""The page on Python is run as it stands, block after block, like cells of a notebook."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedaudit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def cells():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The names that the cells leave behind."""
    home = tmp_path_factory.mktemp("notebook")
    rng = np.random.default_rng(1)
    rows = [f"H{i % 4},{rng.normal():.3f},{rng.normal():.3f},{i % 2}" for i in range(80)]
    (home / "patients.csv").write_text("\n".join(["hospital,a,b,outcome", *rows]) + "\n")
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for i, cell in enumerate(cells()):
            exec(compile(cell, f"{PAGE.name}, block {i + 1}", "exec"), names)
        yield names


def test_what_the_page_shows_is_there(notebook):
    assert notebook["study"].report.is_file()
    assert {f.audit for f in notebook["shuffled"].findings} == {"coverage", "fingerprint"}
    assert notebook["gate"].counts["missing"] == 0
    assert notebook["written"]["clients"] == 4
    assert notebook["changes"][0].settings
    assert notebook["sizes"].enough is not None
    assert notebook["planned"].enough is None
    assert notebook["received"].seen


def test_the_table_names_every_function_and_what_it_returns():
    text = PAGE.read_text(encoding="utf-8")
    functions = {n for n in fedaudit.__all__ if n.islower()}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == functions
