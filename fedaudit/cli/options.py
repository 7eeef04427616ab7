"""Translate parameters and calls named in messages into options and commands.

Messages name a parameter as Python takes it, in backticks: `out`, `fresh=True`,
`audits=["fingerprint"]`, or a whole call: `fedaudit.power("run", audits=["fingerprint"])`. The
command line prints the option or the command instead: --out, --fresh, --only fingerprint,
fedaudit power run --audit fingerprint. A name that the command has no option for stays as it is.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import typer

from fedaudit.cli.app import COMMANDS

#: options that are not named after their parameter
RENAMED = {
    "add_to": "--round",
    "as_if": "--as",
    "audits": "--only",
    "batch_size": "--batch",
    "everything": "--all",
    "overrides": "--set",
}
#: and those of one command only
RENAMED_IN = {
    "guard": {"clients": "--client", "module": "--model"},
    "harden": {"limits": "--limit", "policy": "--limits"},
    "ldp": {"mechanism": "--callable"},
    "power": {"audits": "--audit"},
}

_CODE = re.compile(r"`([^`\n]+)`")
_PARAMETER = re.compile(r"([a-z]\w*)(?:=(.+))?")


def running_command() -> str:
    """Name of the command that this process runs."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def with_options(text: str, command: str | None = None) -> str:
    """The text with options of `command` (default: the running one) for backticked parameters."""
    name = running_command() if command is None else command
    return _CODE.sub(lambda found: _translated(found[1], name) or found[0], text)


def in_reports(text: str) -> str:
    """The text of a report, which speaks of audits whichever command writes it."""
    return with_options(with_options(text), "audit")


def _translated(code: str, command: str) -> str | None:
    if code.startswith("fedaudit."):
        return _command_line(code)
    found = _PARAMETER.fullmatch(code)
    option = _option(found[1], command) if found is not None else None
    if found is None or option is None:
        return None
    return option if found[2] is None else _with_value(option, _value(found[2]))


def _command_line(code: str) -> str | None:
    """`fedaudit.verb(place, key=value)` as a command; None if it is not a call of a command."""
    try:
        call = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    verb = call.func.attr
    if ast.unparse(call.func) != f"fedaudit.{verb}" or verb not in COMMANDS:
        return None
    words = ["fedaudit", verb, *(_word(_value(ast.unparse(a))) for a in call.args)]
    for keyword in call.keywords:
        option = _option(keyword.arg or "", verb)
        if option is None:
            return None
        words.append(_with_value(option, _value(ast.unparse(keyword.value))))
    return " ".join(words)


def _option(parameter: str, command: str) -> str | None:
    own = RENAMED_IN.get(command, {})
    option = own.get(parameter) or RENAMED.get(parameter) or "--" + parameter.replace("_", "-")
    return option if option in options_of(command) else None


def options_of(command: str) -> set[str]:
    """All options of a command and of the commands below it."""
    if command not in COMMANDS:
        return set()
    module = importlib.import_module(f"fedaudit.cli.{COMMANDS[command].module}")
    return set(_options(typer.main.get_group(module.app).commands[command]))


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (o for o in parameter.opts if o.startswith("--"))
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def _value(code: str) -> Any:
    try:
        return ast.literal_eval(code)
    except (SyntaxError, ValueError):
        return code  # a placeholder: FILE


def _with_value(option: str, value: Any) -> str:
    if value is True:
        return option
    if isinstance(value, list | tuple):
        return " ".join(f"{option} {_word(one)}" for one in value)
    return f"{option} {_word(value)}"


def _word(value: Any) -> str:
    return shlex.quote(str(value))
