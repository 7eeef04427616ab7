"""The command-line application that every command is added to."""

from __future__ import annotations

from typing import Annotated

import typer

from fedaudit import __version__

app = typer.Typer(
    name="fedaudit",
    help="What a federation gives away, to whom, and what to change.\n\n"
    "Exit codes: 0 done, 2 usage or config, 3 data or trace, 4 leak or policy not kept, "
    "5 nothing can be said, 130 interrupted, 1 anything else.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
