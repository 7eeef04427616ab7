"""Load user code given as `package.module:name`.

Every error of that code, at import or in a call, becomes a `ConfigError` with the message and the
line in the user's own file, instead of a traceback through this package.

The user trusts code by naming it: on the command line, or in a config they pass. A name in a stored
folder is not trusted. While such a folder is read, `only` lists the names the user gave; no other
code is imported. The working folder comes last on `sys.path`, so its `json.py` hides no library.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError, FedauditError, UntrustedCode, nearest

HERE = str(Path(__file__).parent) + os.sep
"""This package's folder: its source lines are not the user's."""


_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def only(names: Collection[str] | None) -> Iterator[None]:
    """Within the block, load only code of these names; None allows any."""
    before = _allowed.set(None if names is None else frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> frozenset[str] | None:
    """The names that `only` allows, to pass on to other processes."""
    return _allowed.get()


def allow(names: Collection[str] | None) -> None:
    """Like `only`, for the rest of this (worker) process."""
    _allowed.set(None if names is None else frozenset(names))


def _refuse_untrusted(where: str) -> None:
    names = _allowed.get()
    if names is not None and where not in names:
        raise UntrustedCode(
            f"{where!r} is code named by the folder, not by you",
            expected="code that you named yourself or in a config you passed",
            got="a name in the stored config of the folder",
            remedy="read that code, then allow it with `trust_code=True`",
        )


def load(where: str, *, expected: str, example: str, default: str = "") -> Any:
    """Import the object `where`, given as `package.module:name`; searches the working folder too.

    Messages use `expected` (what it should be) and `example` (how to name one). `default` is the
    name if `where` gives only a module.
    """
    module_name, _, name = where.partition(":")
    name = name or default
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ConfigError(
            f"{where!r} does not name {expected}",
            expected="package.module:function" if not default else "package.module:name",
            got=repr(where),
            remedy=f"for example {example}",
        )
    _refuse_untrusted(where)
    _look_in_working_folder()
    try:
        found: Any = importlib.import_module(module_name)
    except FedauditError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"cannot load {where!r}",
            expected=f"a module that can be imported, with {expected}",
            got=describe_error(error),
            remedy="run from the folder that holds the module, or install it"
            if _is_absent(error, module_name)
            else f'correct it; python -c "import {module_name}" shows all of it',
        ) from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            members = getattr(found, "__dict__", {}).items()
            valid = [n for n, v in members if n[0] != "_" and not inspect.ismodule(v)]
            raise ConfigError(
                f"cannot load {where!r}",
                expected=f"in module {module_name}: {expected}",
                got=f"no {part!r} in it",
                remedy=nearest(part, valid),
            ) from None
        except (Exception, SystemExit) as error:  # a module's own __getattr__ may do anything
            raise _failed(where, error, expected) from None
    return found


def _look_in_working_folder() -> None:
    """Search the working folder last, so that no module in it hides a library."""
    if "" not in sys.path:
        sys.path.append("")


def source_files(where: str) -> dict[str, Path]:
    """Map module names to files: the module of `where` and everything local it depends on.

    Follows imports of local modules and file names in string literals, such as `open("net.json")`
    or `import_module("net")`. Skips installed packages. Runs only the parent packages.
    """
    _refuse_untrusted(where)
    name = where.partition(":")[0]
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        file = None if module in found else _file_of(module, installed=module == name)
        if file is None:
            continue
        found[module] = file
        tree = _parsed(file)
        waiting += _imported_by(module, file, tree)
        if str(file).startswith((HERE, *_installed())):
            continue
        for text in _texts_read(tree):
            for named in _files_named(text, file.parent):
                found.setdefault(f"{module} names {text!r}: {named.name}", named)
                if named.suffix == ".py":
                    waiting.append(text.strip("."))
    return dict(sorted(found.items()))


def _file_of(module: str, *, installed: bool) -> Path | None:
    """Source file of a local module; of an installed one only with `installed`."""
    try:
        _look_in_working_folder()
        spec = importlib.util.find_spec(module)
    except (Exception, SystemExit):
        return None
    origin = None if spec is None else spec.origin
    if origin is None or not origin.endswith(".py"):
        return None
    if not installed and origin.startswith((HERE, *_installed())):
        return None
    return Path(origin)


NAMED_FILES = 64 << 20
"""Largest file, in bytes, that counts as part of the code that names it."""


def _parsed(file: Path) -> ast.AST:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _texts_read(tree: ast.AST) -> list[str]:
    """String literals that may name a file to read; skips files opened for writing."""
    written = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if node.func.id == "open" and any(map(_is_write_mode, _modes(node)))
    }
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in written
    }
    return sorted(t for t in texts if 0 < len(t) < 1024 and t.isprintable())


def _modes(call: ast.Call) -> list[ast.expr]:
    return [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]


def _is_write_mode(mode: ast.expr) -> bool:
    return isinstance(mode, ast.Constant) and bool({"w", "a", "x"} & {*str(mode.value)})


def _files_named(text: str, beside: Path) -> list[Path]:
    """Files that a text names, as path or module: beside the source or in the working folder."""
    names = [text]
    dotted = text.strip(".")
    if dotted and all(part.isidentifier() for part in dotted.split(".")):
        module = dotted.replace(".", "/")
        names += [f"{module}.py", f"{module}/__init__.py"]
    places = dict.fromkeys(
        os.path.realpath(folder / n) for folder in (beside, Path()) for n in names
    )
    return [Path(p) for p in places if os.path.isfile(p) and os.path.getsize(p) <= NAMED_FILES]


def _imported_by(module: str, file: Path, tree: ast.AST) -> list[str]:
    """Modules that a source file imports anywhere, and their parent packages."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(p for p in (*(above if node.level else ()), node.module) if p)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parents = {n.rpartition(".")[0] for n in names}
    return sorted(n for n in names | parents if n and n.strip("."))


def load_function(where: str, *, expected: str, example: str) -> Callable[..., Any]:
    """Like `load`; refuses an object that is not callable."""
    found = load(where, expected=expected, example=example)
    if not callable(found):
        raise ConfigError(
            f"{where!r} is not a function",
            expected=expected,
            got=type(found).__name__,
            remedy=f"name a function, for example {example}",
        )
    function: Callable[..., Any] = found
    return function


def call(where: str, function: Callable[..., Any], *arguments: Any, expected: str) -> Any:
    """Call `function(*arguments)`, named by `where`; `expected` says what it should do."""
    try:
        return function(*arguments)
    except FedauditError:
        raise
    except TypeError as error:
        needs = _misfit(function, arguments)
        if needs is None:
            raise _failed(where, error, expected) from None
        raise ConfigError(
            f"{where!r} does not take the right arguments",
            expected=expected,
            got=needs,
            remedy="give its arguments defaults, or name a function that passes them"
            if not arguments
            else "name a function that takes these arguments",
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(where, error, expected) from None


def describe_error(error: BaseException, *, package: bool = False) -> str:
    """Type and message of an error, with the innermost line of the user's code.

    With `package`, a line of this package counts too: the error is a fault of it.
    """
    message, place = str(error), _place(error, package)
    if isinstance(error, SyntaxError):
        message = error.msg
        if error.filename:
            place = _short(error.filename, error.lineno or 1)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} ({place})" if place else text


def _failed(where: str, error: BaseException, expected: str) -> ConfigError:
    return ConfigError(
        f"{where!r} failed",
        expected=expected,
        got=describe_error(error),
        remedy="call it by hand: the error is in this function or in code it calls",
    )


def _is_absent(error: BaseException, module_name: str) -> bool:
    """Whether the module itself is missing, not something it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _misfit(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str | None:
    """How the arguments differ from the function's signature; None if they fit."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # not written in Python: no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        return f"{name}{signature}: {error}"
    return None


def _place(error: BaseException, package: bool) -> str:
    """file:line of the innermost frame of user code, or of this package if asked."""
    others = ("<", *_installed()) if package else ("<", HERE, *_installed())
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(others) or (package and frame.filename.startswith(HERE))
    ]
    return _short(own[-1].filename, own[-1].lineno or 1) if own else ""


def _installed() -> list[str]:
    """Folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return [paths[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")]


def _short(filename: str, line: int) -> str:
    path = Path(filename)
    if filename.startswith(HERE):
        path = path.relative_to(Path(HERE).parent)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"
