"""`fedaudit harden`: search for a config that keeps limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import Bar, Quiet, again, console, interruptible
from fedaudit.cli.runs import Fresh, starting
from fedaudit.codec import to_json
from fedaudit.decide.harden import harden
from fedaudit.decide.harden import page as words

NOT_KEPT = 4
"""Exit code when no protection was confirmed to keep the limits."""


app = new_app()


@app.command("harden")
def harden_command(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; none: built-in.")] = None,
    limits: Annotated[
        Path | None, typer.Option("--limits", help="TOML file with [[limit]]s, as for the gate.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help='As "fingerprint.linkage_accuracy <= 1.5 x chance", "epsilon <= 8", '
            '"accuracy_loss <= 2 points"; repeatable.',
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time after which the best so far is reported: 90s, 10m.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Runs per protection, and as many fresh runs to confirm the choice.")
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="What may be chosen, repeatable: shuffle, secure_sum, dp_sgd, allocation, "
            "local_dp, update_noise, central_dp, exposure_limit.",
        ),
    ] = None,
    curve: Annotated[
        int, typer.Option(help="Fewest noise levels on the trade-off curve; 0: as needed.")
    ] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("fedaudit-harden"),
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print as JSON on standard output.")
    ] = False,
) -> None:
    """Search for the cheapest protection that keeps all limits, and write its config.

    Resumes where it was stopped. Exit codes: 0 found and confirmed on fresh seeds, 4 nothing keeps
    all limits (or the time was up), 2 the command, config or limits are wrong.
    """
    with interruptible(again()), Bar(quiet or as_json) as bar:
        starting(bar, "harden")
        found = harden(
            config,
            out,
            limits=limit or (),
            policy=limits,
            budget=budget,
            seeds=seeds,
            workers=workers,
            only=only or (),
            curve=curve,
            overrides=set_ or (),
            progress=bar,
            fresh=fresh,
        )
    if as_json:
        typer.echo(to_json(words.plain(found)))
    else:
        words.show(console(), found)
        typer.echo(f"\n{found.reused} runs were reused; all details: {out / 'harden.md'}")
    if not found.succeeded:
        raise typer.Exit(NOT_KEPT)
