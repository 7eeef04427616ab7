"""`--options FILE`: a command's own options from a TOML file; what is typed wins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from fedaudit.errors import UsageError, nearest
from fedaudit.files import Unreadable, read_toml

OWN = ("options", "help")


def _take_options(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of the command that is being called."""
    if path is not None:
        try:
            given = read_toml(path)
        except Unreadable as error:
            what, remedy = f"cannot read the options {path}", "correct the file; text needs quotes"
            raise error.as_error(UsageError, what, remedy) from None
        context.default_map = _defaults(context.command, given, path)
    return path


OptionFile = Annotated[
    Path | None,
    typer.Option(
        "--options",
        is_eager=True,
        callback=_take_options,
        help="TOML file with these options by name, as in rounds = 100; what is typed wins.",
    ),
]


def _defaults(command: Any, given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Parameter -> value as it would be typed, so that the file is checked like the command."""
    hints = get_type_hints(command.callback)
    known = {name: p.name for p in command.params for name in _names(p) if name not in OWN}
    out: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("_", "-")
        if name not in known:
            raise UsageError(
                f"{path}: {key!r} is not an option of this command",
                expected="options by name, without the leading dashes",
                got=repr(key),
                remedy=nearest(name, known),
            )
        if known[name] in out:
            raise UsageError(
                f"{path}: {key!r} is given twice",
                expected="each option once, under one of its names",
                got=repr(key),
                remedy="keep one of the two lines",
            )
        out[known[name]] = _value(hints[known[name]], key, value, path)
    return out


def _names(parameter: Any) -> list[str]:
    """The names of a parameter in a file: long options without dashes, or that of an argument."""
    long = [option.removeprefix("--") for option in parameter.opts if option.startswith("--")]
    return long if parameter.opts[0].startswith("-") else [parameter.name.replace("_", "-")]


def _value(hint: Any, key: str, value: Any, path: Path) -> Any:
    kinds = {get_origin(one) or one for one in (get_args(hint) or (hint,))}
    each = value if list in kinds and isinstance(value, list) else [value]
    fits = all(isinstance(one, str | int | float) for one in each)
    if not fits or any(isinstance(one, bool) != (bool in kinds) for one in each):
        raise UsageError(
            f"{path}: {key} cannot be read",
            expected="true or false" if bool in kinds else "a number, or a text in quotes",
            got=repr(value),
            remedy=f"{key} = true" if bool in kinds else "write it as it would be typed",
        )
    if bool in kinds:
        return value
    texts = [str(one) for one in each]
    if Path in kinds:  # from the folder of the file, like the paths in a config
        texts = [str(path.parent / text) for text in texts]
    return texts if list in kinds else texts[0]
