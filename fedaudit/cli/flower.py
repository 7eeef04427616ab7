"""`fedaudit flower`: examine Flower apps, and run them without a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, interruptible
from fedaudit.codec import to_json
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.doctor import examine

app = new_app()
flower_app = typer.Typer(help="Flower apps: examine them, try them.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


@flower_app.command("doctor")
def doctor_command(
    folder: Annotated[
        Path, typer.Argument(help="The app's folder, a folder of scripts, or one script.")
    ],
    delta: Annotated[float, typer.Option(help="Delta at which epsilons are stated.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Say what an app protects, who sees what, and which audits apply. Runs none of its code."""
    found = examine(folder, delta=delta)
    typer.echo(to_json(found.to_dict()) if as_json else found.text(), nl=as_json)


@flower_app.command("try")
def try_command(
    folder: Annotated[Path, typer.Argument(help="The app's folder, with its pyproject.toml.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 4,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the run config, repeatable.")
    ] = None,
) -> None:
    """Run an app in this process, without Ray or a SuperLink."""
    require()
    from fedaudit.recorders.flower.inprocess import parse_settings, run_app

    with interruptible("run it again: an app is not resumed"):
        run_app(folder, nodes, run_config=parse_settings(set_ or ()))
