"""`fedaudit allocate`: noise per client, from a table of clients."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.allocate import AllocationOptions, allocate
from fedaudit.allocate.base import USUAL
from fedaudit.allocate.page import show
from fedaudit.cli.app import new_app
from fedaudit.cli.option_file import OptionFile
from fedaudit.cli.output import Bar, Quiet, console, interruptible
from fedaudit.codec import to_json
from fedaudit.errors import UsageError


class Weights(StrEnum):
    equal = "equal"
    size = "size"


class Objective(StrEnum):
    published = "published"
    dataset = "dataset"


class By(StrEnum):
    pld = "pld"
    rdp = "rdp"


app = new_app()


@app.command("allocate")
def allocate_command(
    clients: Annotated[Path, typer.Argument(help="A CSV or TSV table, one row per client.")],
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the federation; default: the config's.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Expected batch size; default: the config's.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Config of the federation that the noise is for; default: fedaudit.toml, if it "
            "is there."
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="U, the sum of sigma^2 over clients (noise on the mean).")
    ] = None,
    target_worst_case: Annotated[
        float | None, typer.Option(help="Solve for the budget that gives this K*, in nats.")
    ] = None,
    size_column: Annotated[
        str | None, typer.Option(help="Number of training records of a client.")
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option("--group-column", "--organisation-column", help="Organisation or region."),
    ] = None,
    client_column: Annotated[
        str | None, typer.Option(help="Column with client names; default: detected.")
    ] = None,
    edges: Annotated[
        Path | None,
        typer.Option(help="Edge list: two clients a line, with comma or blanks."),
    ] = None,
    allow_disconnected: Annotated[
        bool, typer.Option("--allow-disconnected", help="Accept a graph in several pieces.")
    ] = False,
    leverage: Annotated[
        str | None,
        typer.Option(
            help="size, group, degree, betweenness, eigenvector, column:NAME, blend, or "
            "blend:size=2,group=1; default: an equal blend of what was named."
        ),
    ] = None,
    coupling: Annotated[
        float | None, typer.Option(help="eta: leverage is eta ln(C) degree / mean.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="C, for --coupling.")] = None,
    weights: Annotated[
        Weights,
        typer.Option(help="What the budget counts: every client alike, or noise in the model."),
    ] = Weights.equal,
    optimise: Annotated[
        Objective, typer.Option(help="Which bound is equalised over clients.")
    ] = Objective.published,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the epsilons; default 1e-5 where sizes are known."),
    ] = None,
    steps_per_round: Annotated[
        str | None,
        typer.Option(
            help="Local steps a round, or `epoch`: one pass over the data; default: the config's, "
            "else 1."
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Rounds after which keys are changed.")] = None,
    accountant: Annotated[By, typer.Option(help="How epsilons are composed.")] = By.pld,
    options: OptionFile = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("fedaudit-allocation"),
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON on standard output.")
    ] = False,
) -> None:
    """Allocate DP-SGD noise to clients under one budget; CSV, JSON and a config are written."""
    with (
        interruptible("the same command again; or --accountant rdp"),
        Bar(quiet or as_json) as bar,
    ):
        config = USUAL if config is None and USUAL.is_file() else config
        asked = AllocationOptions(
            rounds=rounds,
            batch_size=batch,
            config=config,
            budget=budget,
            target_worst_case=target_worst_case,
            size_column=size_column,
            group_column=group_column,
            client_column=client_column,
            edges=edges,
            allow_disconnected=allow_disconnected,
            leverage_by=leverage,
            coupling=coupling,
            classes=classes,
            weights=weights.value,
            optimise=optimise.value,
            delta=delta,
            steps_per_round=_steps(steps_per_round),
            window=window,
            accountant=accountant.value,
        )
        done = allocate(clients, asked, out=out, progress=bar)
    if as_json:
        typer.echo(to_json(done.document))
        return
    show(console(), done.document)
    if not quiet:
        typer.echo(f"\nwrote allocation.csv, allocation.json and dp_sgd.toml to {out}")
        typer.echo(f"next: {_next(out, config)}")


def _next(out: Path, config: Path | None) -> str:
    """The command that trains with this noise on the user's data, into a new folder."""
    if config is None:
        return "add --config, the config of your federation, to write a config with your data"
    run = [out / "dp_sgd.toml", "--out", out.with_name(f"{out.name}-run")]
    return shlex.join(["fedaudit", "run", *map(str, run)])


def _steps(text: str | None) -> Any:
    if text is None or text == "epoch":
        return text
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            "--steps-per-round cannot be read",
            expected="a whole number, or epoch",
            got=repr(text),
            remedy="--steps-per-round 1",
        )
    return int(text)
