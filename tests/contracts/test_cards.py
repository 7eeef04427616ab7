"""A package that lists its files in its docstring lists files that exist."""

import ast
import re
from pathlib import Path

import pytest

import fedaudit

ROOT = Path(fedaudit.__file__).parent
CARDS = {
    init.parent: found
    for init in sorted(ROOT.rglob("__init__.py"))
    if (
        found := re.findall(
            r"^ *(\w+(?:\.py|/)) {2,}\S",
            ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "",
            re.MULTILINE,
        )
    )
}


@pytest.mark.parametrize("folder", CARDS, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_files_that_a_card_lists_exist(folder):
    assert [name for name in CARDS[folder] if not (folder / name).exists()] == []
