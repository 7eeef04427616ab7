"""Imports point one way.

    cli > recorders > {decide, sites} > study > allocate > {knowledge, reporting} > setup
        > {audits, protections, federation} > {trace, hooks, tasks, watermarks, data}
        > {stats, accounting} > foundation

A room imports from lower layers only, never from a neighbour in its own. Besides: audits never
import federation (a neighbour), nor of protections more than what declarations mean, reporting
never imports trace, nor of audits more than what they declare, and no audit reaches another audit.
Imports inside functions, under TYPE_CHECKING, relative ones and `import_module("fedaudit...")` all
count. Only the package's own `__init__` may name them all.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "arrays",
            "codec",
            "errors",
            "files",
            "foreign",
            "frames",
            "matching",
            "multipliers",
            "results",
            "progress",
            "randomness",
            "settings",
            "layout",
            "rows",
            "shapes",
            "workers",
        }
    ),
    frozenset({"stats", "accounting"}),
    frozenset({"trace", "hooks", "tasks", "watermarks", "data"}),
    frozenset({"audits", "protections", "federation"}),
    frozenset({"setup"}),
    frozenset({"knowledge", "reporting"}),
    frozenset({"allocate"}),
    frozenset({"study"}),
    frozenset({"decide", "sites"}),
    frozenset({"recorders"}),
    frozenset({"cli", "flower"}),
    frozenset({"__main__"}),
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
# Lower, and still not allowed: a report is made from results alone, and from what audits declare.
FORBIDDEN = {("reporting", "trace"), ("reporting", "audits")}
DECLARED = "fedaudit.audits.facts"
# what a declaration in a trace means: the one door from audits to their neighbour
DECLARATIONS = "fedaudit.protections.declared"
# a task says what an example is, so it knows what a record is
NEIGHBOURS = {("tasks", "data")}
PACKAGE = "fedaudit"


def module_of(path: str) -> str:
    """`fedaudit/trace/view.py` -> `fedaudit.trace.view`; a package's `__init__` is the package."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that a file imports from the package, wherever it does so.

    `from fedaudit.trace import view` gives `fedaudit.trace.view`, whether `view` is a module or
    not: the rooms are the same.
    """
    package = module_of(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            names = [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            text = node.args[0]
            if name not in ("import_module", "__import__") or not isinstance(text, ast.Constant):
                continue
            names = [str(text.value)]
        else:
            continue
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield node.lineno, name


def is_audit(source: str) -> bool:
    """Whether a file defines an audit: a class with `attack` and `score` that is no Protocol."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            abstract = any("Protocol" in ast.unparse(base) for base in node.bases)
            if {"attack", "score"} <= methods and not abstract:
                return True
    return False


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every import that points the wrong way, in `sources`: path in the repository -> text."""
    found = []
    for path, source in sorted(sources.items()):
        here = room_of(module_of(path))
        if here == "":  # the public surface names all rooms
            continue
        if here not in RANK:
            found.append(f"{path}: room {here!r} stands in no layer")
            continue
        for line, name in imports(path, source):
            there = room_of(name)
            where = f"{path}:{line}: {here} imports {name}"
            if there == here or name == f"{PACKAGE}.__version__":
                continue
            if there not in RANK:
                found.append(f"{where}: not a room (rooms do not use the public surface)")
            elif RANK[there] > RANK[here]:
                found.append(f"{where}: {there} stands in a higher layer")
            elif here == "audits" and name.startswith(DECLARATIONS):
                continue
            elif RANK[there] == RANK[here] and RANK[here] > 0 and (here, there) not in NEIGHBOURS:
                found.append(f"{where}: {there} stands in the same layer")
            elif (here, there) in FORBIDDEN and not name.startswith(DECLARED):
                found.append(f"{where}: {here} never imports {there}")
    return found + audits_that_reach_audits(sources)


def audits_that_reach_audits(sources: Mapping[str, str]) -> list[str]:
    """Audits that import another one, directly or through what the audits share."""
    files = {p: s for p, s in sources.items() if room_of(module_of(p)) == "audits"}

    def unit(module: str) -> str:
        """An audit is one file or one folder: the part below `audits`."""
        parts = module.split(".")
        return parts[2] if len(parts) > 2 else ""

    audits = {unit(module_of(p)) for p, s in files.items() if is_audit(s)} - {""}
    units = {unit(module_of(p)) for p in files}
    edges: dict[str, set[str]] = {u: set() for u in units}
    for path, source in files.items():
        for _, name in imports(path, source):
            if room_of(name) == "audits":
                target = unit(name)
                # a name that is no file comes out of the package's own __init__
                edges[unit(module_of(path))].add(target if target in units else "")
    found = []
    for audit in sorted(audits):
        reached: set[str] = set()
        frontier = [audit]
        while frontier:
            new = edges.get(frontier.pop(), set()) - reached
            reached |= new
            frontier += new
        others = sorted(reached & audits - {audit})
        if others:
            found.append(f"audit {audit!r} reaches audit {', '.join(map(repr, others))}")
    return found


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Groups of modules that import each other, also inside functions; types do not count."""
    modules = {module_of(path) for path in sources}
    graph = networkx.DiGraph()
    for path, source in sources.items():
        for _, name in imports(path, _without_types(source)):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name not in ("", PACKAGE, module_of(path)):
                graph.add_edge(module_of(path), name)
    return [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]


def _without_types(source: str) -> str:
    """The source without what stands under `if TYPE_CHECKING`."""

    class Drop(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    return ast.unparse(Drop().visit(ast.parse(source)))


def package() -> dict[str, str]:
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}


def test_no_modules_import_each_other():
    assert circles(package()) == []


def test_a_planted_circle_is_found():
    planted = {
        "fedaudit/study/a.py": "from fedaudit.study import b",
        "fedaudit/study/b.py": "def f():\n    from fedaudit.study.a import g",
        "fedaudit/study/__init__.py": "",
    }
    assert circles(planted) == [["fedaudit.study.a", "fedaudit.study.b"]]


def test_imports_point_one_way():
    sources = package()
    assert len(sources) > 5
    assert violations(sources) == []


AUDIT = "class Linker:\n    def attack(self): ...\n    def score(self): ...\n"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("fedaudit/stats/roc.py", "from fedaudit.trace import View"),
        ("fedaudit/stats/roc.py", "import fedaudit.accounting"),
        ("fedaudit/errors.py", "from fedaudit.stats.roc import auc"),
        ("fedaudit/trace/view.py", "from fedaudit.data.dataset import Dataset"),
        ("fedaudit/tasks/vae.py", "def f():\n    from fedaudit.federation import engine"),
        (
            "fedaudit/audits/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fedaudit.protections",
        ),
        ("fedaudit/audits/x.py", "from fedaudit import federation"),
        ("fedaudit/audits/x.py", "from ..protections import shuffle"),
        ("fedaudit/audits/x.py", "from .. import protections"),
        ("fedaudit/audits/x/deep.py", "from ...federation.engine import run"),
        ("fedaudit/audits/__init__.py", "from ..federation.engine import run"),
        (
            "fedaudit/audits/x.py",
            'import importlib\nimportlib.import_module("fedaudit.federation")',
        ),
        ("fedaudit/reporting/html.py", "from fedaudit.trace.schema import SERVER"),
        ("fedaudit/reporting/html.py", "from fedaudit.audits import fingerprint"),
        ("fedaudit/protections/guard.py", "from fedaudit.federation.engine import run"),
        ("fedaudit/decide/gate/check.py", "import fedaudit.recorders"),
        ("fedaudit/study/run.py", "import os, fedaudit.cli"),
        ("fedaudit/cli.py", "from fedaudit import Estimate"),
        ("fedaudit/helpers.py", "import os"),
    ],
)
def test_a_planted_violation_is_caught(path, source):
    assert len(violations({path: source})) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("fedaudit/__init__.py", "from fedaudit.study import run"),
        ("fedaudit/__main__.py", "from fedaudit.cli import main"),
        ("fedaudit/cli.py", "from fedaudit import __version__, study"),
        ("fedaudit/study/run.py", "from fedaudit import audits, federation, knowledge, reporting"),
        ("fedaudit/federation/engine.py", "from fedaudit import data, hooks, tasks, trace"),
        ("fedaudit/protections/dp_sgd.py", "from fedaudit.hooks import Hook\nimport numpy"),
        ("fedaudit/audits/x.py", "from fedaudit.trace import View\nfrom fedaudit.stats import roc"),
        ("fedaudit/audits/x.py", "from fedaudit.protections.declared import has_fact"),
        ("fedaudit/reporting/html.py", "from fedaudit.results import Finding"),
        ("fedaudit/layout.py", "from fedaudit.errors import UsageError"),
        ("fedaudit/trace/view.py", "from .schema import Message\nfrom ..errors import TraceError"),
    ],
)
def test_an_allowed_import_is_not_reported(path, source):
    assert violations({path: source}) == []


def test_no_audit_reaches_another():
    first = {"fedaudit/audits/first.py": AUDIT, "fedaudit/audits/__init__.py": ""}
    direct = AUDIT + "from fedaudit.audits.first import Linker"
    assert violations({**first, "fedaudit/audits/second.py": direct}) == [
        "audit 'second' reaches audit 'first'"
    ]
    nested = {"fedaudit/audits/second/deep.py": "from ..first import Linker"}
    folder = {"fedaudit/audits/second/__init__.py": AUDIT, **nested}
    assert violations({**first, **folder}) == ["audit 'second' reaches audit 'first'"]

    through = {
        "fedaudit/audits/shared.py": "def f():\n    from .first import Linker",
        "fedaudit/audits/second.py": AUDIT + "from fedaudit.audits import shared",
    }
    assert violations({**first, **through}) == ["audit 'second' reaches audit 'first'"]

    surface = {
        "fedaudit/audits/__init__.py": "from fedaudit.audits.first import Linker",
        "fedaudit/audits/second.py": AUDIT + "from fedaudit.audits import Linker",
    }
    assert violations({**first, **surface}) == ["audit 'second' reaches audit 'first'"]


def test_audits_may_share_a_protocol_and_be_listed():
    protocol = AUDIT.replace("class Linker", "class Audit(Protocol)")
    own = AUDIT + "from fedaudit.audits.protocol import Audit\nfrom fedaudit.audits.first import X"
    sources = {
        "fedaudit/audits/__init__.py": "",
        "fedaudit/audits/listing.py": "from fedaudit.audits import first, second",
        "fedaudit/audits/protocol.py": "from typing import Protocol\n" + protocol,
        "fedaudit/audits/first.py": own,
        "fedaudit/audits/second.py": AUDIT + "from fedaudit.audits.protocol import Audit",
    }
    assert violations(sources) == []
