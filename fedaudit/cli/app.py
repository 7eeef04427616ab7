"""The command-line application: the table of commands, each loaded when it is called.

`fedaudit --help` imports no command, so it stays quick whatever a command's module imports.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedaudit import __version__


@dataclass(frozen=True)
class Command:
    """One command: the module of `fedaudit.cli` that holds it, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "run": Command("runs", "Run a federation, record it, audit it, report."),
    "audit": Command("runs", "Audit a stored trace: of a run, or written by other software."),
    "init": Command("begin", "Write a commented config for your file, and say what was chosen."),
    "list": Command("begin", "Everything a config can name, each with its settings."),
    "report": Command("runs", "Write and print the report of a run again."),
    "gate": Command("decide", "Hold a run against limits; what is not shown fails."),
    "diff": Command("decide", "What got worse and what better between two runs."),
    "power": Command("decide", "How many rounds, records or games an audit needs."),
    "harden": Command("harden", "Search for the cheapest protection that keeps all limits."),
    "sweep": Command("runs", "Run a grid of settings times seeds: one table, one figure."),
    "guard": Command("guard", "Is something planted in this model?"),
    "allocate": Command("allocate", "Allocate DP-SGD noise to clients under one budget."),
    "plan": Command("plan", "Query plans of secure aggregation: check and design."),
    "ldp": Command("ldp", "Local differential privacy: claims and facts."),
    "flower": Command("flower", "Apps of Flower: look at them, try them."),
    "data": Command("data", "Real data sets, fetched on demand."),
    "attack": Command("sites", "Guess without any truth, for sites that score the guesses."),
    "ask": Command("sites", "At a site: choose records to be asked about."),
    "score": Command("sites", "At a site: compare guesses with its own records."),
    "merge": Command("sites", "Write the report of all sites that answered."),
    "verify": Command("verify", "Say what of a run is whole, changed or missing."),
    "seal": Command("verify", "Sign the seal of a run."),
    "purge": Command("verify", "Remove what was recorded; results stay readable."),
}


def new_app(**about: Any) -> typer.Typer:
    """An application for commands of one module, with the settings that all of them share."""
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
    "5 nothing can be said, 130 interrupted, 1 anything else.",
    no_args_is_help=True,
)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
