"""`fedaudit ask`, `attack`, `score`, `merge`: audits whose truth stays at the sites."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit import sites
from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, Names, Quiet, print_run
from fedaudit.cli.parsing import parse_protection
from fedaudit.errors import count_of
from fedaudit.randomness import Seed
from fedaudit.study.folders import recording_at
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
        str | None,
        typer.Option(help="The torch module: package.module:function, or sklearn:NAME."),
    ] = None,
    canaries: Annotated[
        list[Path] | None,
        typer.Option(help="A site's canaries.json (SiteCanaries), repeatable: epsilon."),
    ] = None,
    opacus: Annotated[
        list[Path] | None,
        typer.Option(help="For --canaries: a site's accountant.json, in the same order."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta for --opacus.")] = 1e-5,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' own random draws.")] = 1,
) -> None:
    """Guess without any truth, for sites that score the guesses themselves."""
    opened = open_trace(recording_at(trace, "attack"))
    given: dict[str, Any] = {"asked": asked or (), "model": model, "seed": seed}
    given |= {"canaries": canaries or (), "opacus": opacus or (), "delta": delta}
    if as_:
        hooks = [parse_protection(text) for text in as_]
        with tempfile.TemporaryDirectory() as folder:
            # the replayed truth is not kept: guesses are made without it
            shown, _ = replay(opened, hooks, Path(folder), Seed(secrets.randbits(64)))
            raw = sites.attack(shown, out, **given)
    else:
        raw = sites.attack(opened, out, **given)
    typer.echo(f"guesses of {', '.join(raw['audits'])}: {out}")


@app.command("ask")
def ask_command(
    at_site: Annotated[Path, typer.Argument(help="This site's own recording: run-ID/node-ID.")],
    data: Annotated[Path, typer.Option(help="Records; a client column names this site's party.")],
    model: Annotated[
        str, typer.Option(help="The torch module: package.module:function, or sklearn:NAME.")
    ],
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
    typer.echo(f"{count_of(count, 'record')} to be sent: {out}; the key stays here: {key}")


@app.command("score")
def score_command(
    guesses: Annotated[Path, typer.Argument(help="File of guesses that the server sent.")],
    site: Annotated[str, typer.Option(help="The name under which the counts are returned.")],
    at_site: Annotated[
        Path | None,
        typer.Option("--at-site", help="This site's own recording: run-ID/node-ID (links)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="File of counts, to be sent back.")] = Path(
        "counts.json"
    ),
    key: Annotated[
        Path | None,
        typer.Option(help="The key of the records that this site asked about, or of its canaries."),
    ] = None,
) -> None:
    """At a site: compare guesses with its own records. Only counts leave."""
    raw = sites.score(guesses, at_site, out, site=site, key=key)
    for audit, methods in raw["audits"].items():
        for method, c in methods.items():
            typer.echo(f"{audit}, {method}: {_counted(c)}")
    typer.echo(f"counts: {out}")


def _counted(c: dict[str, Any]) -> str:
    if "links" in c:
        return f"{c['found']} of {c['links']} links found"
    if "coins" in c:
        return f"{c['right']} of {c['guesses']} guesses on {c['coins']} canaries right"
    return f"{c['ordered']:g} of {c['members'] * c['others']} pairs in the right order"


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
