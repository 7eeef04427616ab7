"""A name decides nothing: facts of protections and audits are asked for, not looked up by name.

Outside the protections' room no module compares with a protection's name, and outside an audit's
folder none with the audit's. Comparing is `==`, `!=`, `in`, a match case, a key of a subscript, of
`get`, `pop` or `setdefault`, the beginning of a text, a constant that holds names only, and a
remedy's `only` and `unless`. "fingerprint." counts as the name.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedaudit
from fedaudit.audits import AUDITS
from fedaudit.protections import PROTECTIONS

ROOT = Path(fedaudit.__file__).parent

OTHER_MEANINGS = {
    "clip": "a field of declarations, and modes of numpy",
    "shuffle": "a way to draw batches",
    "coverage": "an English word",
    "epsilon": "a field of guarantees",
    "attribution": "an English word",
    "fingerprint": "a field of SARIF",
}
"""Names that are words with another meaning: only comparisons with a `name` count."""

ALLOWED = {
    "allocate/base.py": "writes and rewrites [protections.dp_sgd] of a config",
    "allocate/files.py": "writes dp_sgd.toml",
    "recorders/flower/mods.py": "reads dp_sgd.toml",
    "sites/files.py": "names in the format of files that sites exchange",
    "study/promised.py": "the source under which a recorded guarantee is listed",
}
"""File -> why names are written there."""

KEYED = ("get", "pop", "setdefault", "startswith", "removeprefix")
FACTS = ("only", "unless")


def literals(node: ast.AST | None) -> set[str]:
    """Strings of a constant, or of a tuple, list or set of constants."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return {text for element in node.elts for text in literals(element)}
    return set()


def compared(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """(line, literal, whether a `name` is compared with it)."""
    for node in ast.walk(tree):
        found: set[str] = set()
        of_name = False
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = {text for side in sides for text in literals(side)}
            of_name = any("name" in ast.unparse(s) for s in sides if not literals(s))
        elif isinstance(node, ast.MatchValue):
            found = literals(node.value)
        elif isinstance(node, ast.Subscript):
            found = literals(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            found = literals(node.args[0]) if node.func.attr in KEYED else set()
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
            found = literals(node.value)
        elif isinstance(node, ast.keyword) and node.arg in FACTS:
            found, of_name = literals(node.value), True
        for text in sorted(found):
            yield getattr(node, "lineno", 0), text.removesuffix("."), of_name


def at_home(path: str, name: str) -> bool:
    """Whether a file belongs to the protection or the audit with this name."""
    if name in PROTECTIONS:
        return path.startswith("protections/")
    return path.startswith((f"audits/{name}/", f"audits/{name}.py"))


def decided_by_name(path: str, source: str) -> list[str]:
    names = {*PROTECTIONS, *AUDITS}
    return [
        f"{path}:{line}: {text!r}"
        for line, text, of_name in compared(ast.parse(source))
        if text in names and not at_home(path, text) and (of_name or text not in OTHER_MEANINGS)
    ]


def test_no_module_decides_by_a_name():
    found: dict[str, list[str]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if lines := decided_by_name(path, file.read_text(encoding="utf-8")):
            found[path] = lines
    assert [line for path, lines in found.items() if path not in ALLOWED for line in lines] == []
    assert set(ALLOWED) <= set(found), "an exception that nobody needs"


@pytest.mark.parametrize(
    "source",
    [
        'if d["name"] == "dp_sgd": pass',
        'if d.get("name") not in ("dp_sgd", "update_noise"): pass',
        'hook = config.protections.get("secure_aggregation")',
        'SUMS = ("secure_aggregation", "secure_sum")',
        'A, B = "local_dp", "other"',
        'if any(p.name == "shuffle" for p in hooks): pass',
        'if metric.startswith("reconstruction."): pass',
        'READ = ("active_membership.", "reconstruction.")',
        'Advice("use a shuffler", unless=("shuffle",))',
        'plan = results["query_plan"]',
        'match audit:\n    case "topology_inference": pass',
    ],
)
def test_a_planted_name_is_caught(source):
    assert decided_by_name("study/x.py", source)


def test_a_name_is_fine_at_home_and_in_other_meanings():
    assert not decided_by_name("protections/x.py", 'if name == "dp_sgd": pass')
    assert not decided_by_name("audits/query_plan/x.py", 'PLAN = "query_plan"')
    assert not decided_by_name("tasks/x.py", 'if training.sampling == "shuffle": pass')
    assert not decided_by_name("tasks/x.py", 'bound = declared.get("clip")')
