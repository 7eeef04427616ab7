"""`fedaudit ask`, `attack`, `score`, `merge`: audits whose truth stays at the sites."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedaudit import sites
from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, Names, Quiet, print_run
from fedaudit.cli.parsing import parse_protection
from fedaudit.randomness import Seed
from fedaudit.study.replay import replay
from fedaudit.study.seal import open_trace

app = new_app()


@app.command("attack")
def attack_command(
    trace: Annotated[Path, typer.Argument(help="A trace folder, as the server recorded it.")],
    out: Annotated[Path, typer.Option(help="File of guesses.")] = Path("guesses.json"),
    as_: Annotated[
        list[str] | None,
        typer.Option("--as", help="As if this protection stood before the server: shuffle."),
    ] = None,
    asked: Annotated[
        list[Path] | None,
        typer.Option(help="A site's file of records (`fedaudit ask`), repeatable: membership."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:function that builds the torch module.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' own random draws.")] = 1,
) -> None:
    """Guess without any truth, for sites that score the guesses themselves."""
    opened = open_trace(trace)
    if as_:
        hooks = [parse_protection(text) for text in as_]
        with tempfile.TemporaryDirectory() as folder:
            # the replayed truth is not kept: guesses are made without it
            shown, _ = replay(opened, hooks, Path(folder), Seed(secrets.randbits(64)))
            raw = sites.attack(shown, out, asked=asked or (), model=model, seed=seed)
    else:
        raw = sites.attack(opened, out, asked=asked or (), model=model, seed=seed)
    typer.echo(f"guesses of {', '.join(raw['audits'])}: {out}")


@app.command("ask")
def ask_command(
    at_site: Annotated[Path, typer.Argument(help="This site's own recording: run-ID/node-ID.")],
    data: Annotated[Path, typer.Option(help="Records; a client column names this site's party.")],
    model: Annotated[str, typer.Option(help="package.module:function of the torch module.")],
    label: Annotated[str | None, typer.Option(help="Label column of --data.")] = None,
    client: Annotated[str | None, typer.Option(help="Client column of --data.")] = None,
    out: Annotated[Path, typer.Option(help="Records to be sent.")] = Path("asked.npz"),
    key: Annotated[
        Path, typer.Option(help="File that says which records are members. It stays here.")
    ] = Path("key.json"),
) -> None:
    """At a site: choose records to ask about, half of them its own. The key stays here."""
    columns = {k: v for k, v in (("label", label), ("client", client)) if v is not None}
    count = sites.ask(at_site, data, out, key, model=model, columns=columns)
    typer.echo(f"{count} records to be sent: {out}; the key stays here: {key}")


@app.command("score")
def score_command(
    guesses: Annotated[Path, typer.Argument(help="File of guesses that the server sent.")],
    at_site: Annotated[
        Path, typer.Option("--at-site", help="This site's own recording: run-ID/node-ID.")
    ],
    site: Annotated[str, typer.Option(help="The name under which the counts are returned.")],
    out: Annotated[Path, typer.Option(help="File of counts, to be sent back.")] = Path(
        "counts.json"
    ),
    key: Annotated[
        Path | None, typer.Option(help="The key of the records that this site asked about.")
    ] = None,
) -> None:
    """At a site: compare guesses with its own records. Only counts leave."""
    raw = sites.score(guesses, at_site, out, site=site, key=key)
    for audit, methods in raw["audits"].items():
        for method, c in methods.items():
            said = (
                f"{c['found']} of {c['links']} links found"
                if "links" in c
                else f"{c['ordered']:g} of {c['members'] * c['others']} pairs in the right order"
            )
            typer.echo(f"{audit}, {method}: {said}")
    typer.echo(f"counts: {out}")


@app.command("merge")
def merge_command(
    guesses: Annotated[Path, typer.Argument(help="The file of guesses.")],
    counts: Annotated[list[Path], typer.Argument(help="The sites' files of counts.")],
    out: Annotated[Path, typer.Option(help="Where results and report go.")] = Path(
        "fedaudit-sites"
    ),
    names: Names = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the report over all sites that answered."""
    print_run(sites.merge(guesses, counts, out, names=names), quiet, as_json)
