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


COMMANDS = {
    "run": CliCommand("runs", "Run a federation, record it, audit it, report."),
    "audit": CliCommand("runs", "Audit a stored trace: of a run, or written by other software."),
    "init": CliCommand("begin", "Write a commented config for your file, with the reasons."),
    "list": CliCommand("begin", "List everything a config can name, with settings."),
    "report": CliCommand("runs", "Write and print the report of a run again."),
    "gate": CliCommand("decide", "Check a run against limits; missing evidence fails."),
    "diff": CliCommand("decide", "Say what got worse or better between two runs."),
    "power": CliCommand("decide", "How many rounds, records or games an audit needs."),
    "harden": CliCommand("harden", "Search for the cheapest protection that keeps all limits."),
    "sweep": CliCommand("runs", "Run a grid of settings times seeds: one table, one figure."),
    "guard": CliCommand("guard", "Is something planted in this model?"),
    "allocate": CliCommand("allocate", "Allocate DP-SGD noise to clients under one budget."),
    "plan": CliCommand("plan", "Query plans of secure aggregation: check and design."),
    "ldp": CliCommand("ldp", "Local differential privacy: claims and facts."),
    "flower": CliCommand("flower", "Flower apps: examine them, try them."),
    "data": CliCommand("data", "Real data sets, fetched on demand."),
    "attack": CliCommand("sites", "Guess without any truth, for sites that score the guesses."),
    "ask": CliCommand("sites", "At a site: choose records to be asked about."),
    "score": CliCommand("sites", "At a site: compare guesses with its own records."),
    "merge": CliCommand("sites", "Write the report over all sites that answered."),
    "verify": CliCommand("verify", "Say which parts of a run are whole, changed or missing."),
    "seal": CliCommand("verify", "Sign the seal of a run."),
    "purge": CliCommand("verify", "Remove what was recorded; results stay readable."),
}


def new_app(**about: Any) -> typer.Typer:
    """A Typer application with the settings that all commands share."""
    return typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **about
    )


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
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


app = new_app(
    name="fedaudit",
    cls=LazyGroup,
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
