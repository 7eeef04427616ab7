"""The notebook is run cell by cell; what a cell ends with can be shown."""

import ast
import json
from pathlib import Path

from fedaudit.frames import SvgFigure

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_audit.ipynb"


def cells():
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [c for c in stored["cells"] if c["cell_type"] == "code"]


def shown_by(cell, names):
    """Run a cell as a notebook does: the value of its last line is shown."""
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop()
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


def test_every_cell_shows_something(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    shown = [shown_by(cell, names) for cell in cells()]
    *tables, kept = shown
    assert all("<" in value._repr_html_() for value in tables)
    assert sum(isinstance(value, SvgFigure) for value in shown) == 1
    assert [f.verdict for f in names["shuffled"].findings] == ["leak"]
    assert kept["shuffled"] is False
    # noise lowers what is linked, on the same recording
    linked = [
        names[run].results[0].estimates["linkage_accuracy"].value for run in ("shuffled", "noisy")
    ]
    assert linked[1] < linked[0]


def test_it_is_stored_without_outputs():
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in cells())
