"""docs/recorders.md shows the recorder of the example, and it is short."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_snippet_is_the_example_and_has_at_most_forty_lines():
    page = (ROOT / "docs/recorders.md").read_text()
    example = (ROOT / "examples/pfl/record.py").read_text()
    snippet = page.rpartition("```python\n")[2].partition("```")[0].strip()
    assert snippet in example
    own = snippet[snippet.index("class ") :]
    assert len([line for line in own.splitlines() if line.strip()]) <= 40
