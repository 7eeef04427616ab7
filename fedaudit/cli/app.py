"""The command-line application: the table of commands. Each loads when it is called.

`fedaudit --help` imports no command, so it stays quick.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedaudit import __version__


@dataclass(frozen=True)
class CliCommand:
    """One command: the module of `fedaudit.cli` that holds it, and its line in the help."""

    module: str
    help: str


GROUPS = {
    "Start": {
        "init": CliCommand("begin", "Write a commented config for your data, with reasons."),
        "run": CliCommand("runs", "Train a federation, record it, audit it, and report."),
        "report": CliCommand("runs", "Write and print the report of a run again."),
        "list": CliCommand("begin", "List everything that a config can name."),
        "data": CliCommand("data", "Fetch real data sets, and list those at hand."),
    },
    "Decide": {
        "gate": CliCommand("decide", "Check a run against limits; missing evidence fails."),
        "diff": CliCommand("decide", "Say what got worse or better between two runs."),
        "harden": CliCommand("harden", "Search the cheapest protection that keeps all limits."),
        "power": CliCommand("decide", "Say how many rounds, records or games an audit needs."),
        "sweep": CliCommand("runs", "Run a grid of settings times seeds, as one table."),
    },
    "Record": {
        "audit": CliCommand("runs", "Audit a stored trace: of a run, or of other software."),
        "verify": CliCommand("verify", "Say which parts of a run are whole or changed."),
        "seal": CliCommand("verify", "Sign the seal of a run."),
        "watch": CliCommand("watch", "Follow a growing trace, round by round."),
        "purge": CliCommand("verify", "Remove what was recorded; results stay readable."),
        "flower": CliCommand("flower", "Examine Flower apps, and try them."),
    },
    "Check": {
        "guard": CliCommand(
            "guard", "Say what answering a model gives away, and if it was altered."
        ),
        "allocate": CliCommand("allocate", "Allocate DP-SGD noise to clients under one budget."),
        "plan": CliCommand("plan", "Check and design query plans of secure aggregation."),
        "ldp": CliCommand("ldp", "Check what local differential privacy claims."),
    },
    "At the sites": {
        "ask": CliCommand("sites", "Choose records of a site to be asked about."),
        "attack": CliCommand("sites", "Guess without any truth, for sites that score it."),
        "score": CliCommand("sites", "Compare guesses with a site's own records."),
        "merge": CliCommand("sites", "Write the report over all sites that answered."),
    },
}
"""Commands by what people do with them, in the order of the help."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def new_app(**about: Any) -> typer.Typer:
    """A Typer application with the settings that all commands share."""
    about.setdefault("add_completion", False)
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **about)


class LazyGroup(TyperGroup):
    """Loads the module of a command when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"fedaudit.cli.{COMMANDS[cmd_name].module}")
        return typer.main.get_group(module.app).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                rows = [(name, command.help) for name, command in commands.items()]
                formatter.write_dl(rows, col_max=10)


app = new_app(
    name="fedaudit",
    cls=LazyGroup,
    add_completion=True,
    help="What a federation gives away, to whom, and what to change.\n\n"
    "Exit codes: 0 done, 2 usage or config, 3 data or trace, 4 leak or policy not kept, "
    "5 nothing to say, 130 interrupted, 1 anything else.",
    no_args_is_help=True,
)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
