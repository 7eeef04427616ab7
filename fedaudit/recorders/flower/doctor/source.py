"""One file of an app, parsed and never imported: its names and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.files import Unreadable, read_text


@dataclass(frozen=True)
class Call:
    """A call: its full name, and the arguments whose values the code shows. `branches`: what stands
    around it and lets only a run decide if it happens (if, else, try, match)."""

    name: str
    file: str
    line: int
    arguments: Mapping[str, Any]
    node: ast.Call
    branches: frozenset[int] = frozenset()

    @property
    def in_branch(self) -> bool:
        return bool(self.branches)

    @property
    def short(self) -> str:
        return self.name.rsplit(".", 1)[-1]


class Unknown:
    """A value that only a run would show."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class SourceFile:
    """One file: its imports, assignments, classes and calls."""

    def __init__(self, file: Path, root: Path, config: Mapping[str, Any]) -> None:
        self.file = file.relative_to(root).as_posix()
        try:
            self.tree = ast.parse(read_text(file))
        except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConfigError(
                f"{file} could not be read",
                expected="Python",
                got=f"{type(error).__name__}: {error}",
                remedy="make sure that the app runs",
            ) from None
        self.config = config
        self._parents = {
            id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.assigned: dict[str, list[ast.expr]] = {}
        self.names: dict[str, str] = {}
        self.values: dict[str, ast.expr | None] = {}
        self.classes: dict[str, list[str]] = {}
        for node in ast.walk(self.tree):
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for a in node.names:
                self.names[a.asname or a.name.split(".")[0]] = (
                    a.name if a.asname else a.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for a in node.names:
                self.names[a.asname or a.name] = f"{node.module}.{a.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assigned(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assigned(node.target, node.value)
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = [self.full(base) for base in node.bases]

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            # assigned twice: the value that counts is unknown
            self.assigned.setdefault(target.id, []).append(value)
            known = target.id in self.values
            self.values[target.id] = None if known else value

    def imports(self, package: str) -> bool:
        """Whether the file imports `package` or something of it."""
        return any(name.split(".")[0] == package for name in self.names.values())

    def full(self, node: ast.expr) -> str:
        """The dotted name behind an expression, through the file's imports."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.full(node.value)}.{node.attr}"
        return ""

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """A literal, or a key of the run config; UNKNOWN otherwise."""
        if node is None or depth > 8:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name):
            return self.value(self.values.get(node.id), depth + 1)
        if isinstance(node, ast.Call) and self.full(node.func) in ("int", "float", "str"):
            return self.value(node.args[0], depth + 1) if node.args else UNKNOWN
        key = None
        if isinstance(node, ast.Subscript):
            key = self.value(node.slice, depth + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_get = node.func.attr == "get" and node.args
            key = self.value(node.args[0], depth + 1) if is_get else None
        if isinstance(key, str):
            return self.config.get(key, UNKNOWN)
        return UNKNOWN

    def calls(self) -> Iterator[Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                name = self.full(node.func)
                given: dict[str, Any] = {str(i): self.value(a) for i, a in enumerate(node.args)}
                given |= {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                yield Call(name, self.file, node.lineno, given, node, self._branches(node))

    def _branches(self, node: ast.AST) -> frozenset[int]:
        """Ids of the branching statements and expressions around a node."""
        child, parent, found = node, self._parents.get(id(node)), set()
        while parent is not None:
            if isinstance(parent, ast.If | ast.IfExp):
                if child is not parent.test and "__name__" not in ast.unparse(parent.test):
                    found.add(id(parent))
            elif isinstance(parent, ast.Try | ast.Match | ast.While | ast.BoolOp):
                found.add(id(parent))
            child, parent = parent, self._parents.get(id(parent))
        return frozenset(found)

    def argument_calls(self, call: Call) -> Iterator[ast.Call]:
        """Calls whose results a call receives: written in it, or assigned to a name before it."""
        for given in (*call.node.args, *(k.value for k in call.node.keywords)):
            found = [given]
            if isinstance(given, ast.Name):
                found = [v for v in self.assigned.get(given.id, []) if v.lineno <= call.line]
            for value in found:
                if value is not call.node:
                    yield from (n for n in ast.walk(value) if isinstance(n, ast.Call))

    def mods(self, everywhere: bool = False) -> Iterator[tuple[str, Call | None, int]]:
        """(full name, the call that makes it, line) of every mod of a ClientApp; `everywhere`: of
        those alone that act on evaluation too."""
        for call in self.calls():
            if everywhere and call.short != "ClientApp":
                continue
            if call.short not in ("ClientApp", "train", "evaluate", "query"):
                continue
            for keyword in call.node.keywords:
                if keyword.arg != "mods":
                    continue
                listed: ast.expr | None = keyword.value
                if isinstance(listed, ast.Name):
                    listed = self.values.get(listed.id)
                if not isinstance(listed, ast.List | ast.Tuple):
                    yield "", None, keyword.value.lineno
                    continue
                for item in listed.elts:
                    yield self._mod(item)

    def _mod(self, item: ast.expr) -> tuple[str, Call | None, int]:
        node: ast.expr | None = item
        if isinstance(item, ast.Name) and item.id not in self.names:
            node = self.values.get(item.id)
        if isinstance(node, ast.Call):
            found = next(c for c in self.calls() if c.node is node)
            return found.name, found, item.lineno
        return ("" if node is None else self.full(node)), None, item.lineno

    def metric_keys(self) -> Iterator[str]:
        """Keys of metrics that this file shows."""
        for call in self.calls():
            if call.short == "MetricRecord" and call.node.args:
                given = call.node.args[0]
                if isinstance(given, ast.Name):
                    given = self.values.get(given.id) or given
                if isinstance(given, ast.Dict):
                    for key in given.keys:
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield key.value


def number(arguments: Mapping[str, Any], name: str, position: int) -> float | None:
    """An argument by its name or position, if the code shows a number."""
    value = arguments.get(name, arguments.get(str(position), UNKNOWN))
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fine else None
