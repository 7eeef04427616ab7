"""`fedaudit flower`: apps of Flower, looked at and run without a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import app
from fedaudit.cli.output import AsJson, interruptible

flower_app = typer.Typer(help="Apps of Flower: look at them, try them.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


@flower_app.command("doctor")
def doctor_command(
    folder: Annotated[Path, typer.Argument(help="The app's folder, with its pyproject.toml.")],
    delta: Annotated[float, typer.Option(help="At which epsilons are told.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """What an app protects, who would see what, which audits apply. Runs nothing of it."""
    from fedaudit.flower.doctor import examine

    found = examine(folder, delta=delta)
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.text(), nl=as_json)


@flower_app.command("try")
def try_command(
    folder: Annotated[Path, typer.Argument(help="The app's folder, with its pyproject.toml.")],
    nodes: Annotated[int, typer.Option(help="How many nodes take part.")] = 4,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the run config, repeatable.")
    ] = None,
) -> None:
    """Run an app in this process, without Ray or a SuperLink: quick, and for one machine."""
    from fedaudit.flower import require

    require()
    from fedaudit.flower.inprocess import parse_settings, run_app

    with interruptible("run it again: an app is not resumed"):
        run_app(folder, nodes, run_config=parse_settings(set_ or ()))
