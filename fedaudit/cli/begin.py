"""`fedaudit list`, `init`: list what a config can name, and write a first config."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, console
from fedaudit.codec import to_json
from fedaudit.data.files import OpenQuestion
from fedaudit.data.files.sites import FILE, FOLDER
from fedaudit.errors import UsageError
from fedaudit.reporting.text import clean
from fedaudit.settings import REQUIRED
from fedaudit.setup.listing import WRITTEN, listing
from fedaudit.study.init import init

app = new_app()


@app.command("list")
def list_command(
    section: Annotated[
        str | None, typer.Argument(help="datasets, partitions, tasks, protections, audits...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List everything a config can name, with one line and the settings of each."""
    everything = listing()
    if section is not None:
        if section not in everything:
            raise UsageError.unknown(f"there is no section {section!r}", section, everything)
        everything = {section: everything[section]}
    if as_json:
        typer.echo(to_json(everything))
        return
    for title, rows in everything.items():
        typer.echo(f"\n{title}: {WRITTEN[title]}")
        for name, line, settings in rows:
            typer.echo(f"  {name:<18} {line}")
            for key, (kind, default) in settings.items():
                shown = default if default in ("", REQUIRED) else f"(default {default})"
                typer.echo(f"      {key:<22} {kind} {shown}".rstrip())


def _ask(question: OpenQuestion) -> str:
    """Ask on the terminal which of several readings is right; Enter takes the first."""
    what = "What is the label" if question.setting == "label" else "Who is a client"
    typer.echo(f"{what}?")
    for number, option in enumerate(question.options, 1):
        typer.echo(f"  {number}  {clean(READINGS.get(option, option))}")
    while True:
        number = typer.prompt("number", default=1, type=int)
        if 1 <= number <= len(question.options):
            return question.options[number - 1]
        typer.echo(f"a number from 1 to {len(question.options)}, please")


READINGS = {FILE: "each file of the folder", FOLDER: "each folder in the folder"}


def _print_choice(line: str) -> None:
    """A choice in lines that fit the terminal; further lines are indented."""
    before = line[: len(line) - len(line.lstrip())] or "  "
    for part in textwrap.wrap(
        line, console().width, subsequent_indent=before, break_on_hyphens=False
    ):
        typer.echo(part)


@app.command("init")
def init_command(
    source: Annotated[
        Path | None, typer.Argument(help="Your data; without it, built-in data.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column.")] = None,
    client: Annotated[str | None, typer.Option(help="Client column.")] = None,
    organisation: Annotated[str | None, typer.Option(help="Organisation column.")] = None,
    person: Annotated[str | None, typer.Option(help="Person column.")] = None,
    missing: Annotated[
        str | None,
        typer.Option(help="Missing values of a table: refuse, drop, mean or category."),
    ] = None,
    files: Annotated[
        str | None, typer.Option(help="Pattern of the files of a folder: 'processed.*'.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Own model: package.module:function, or sklearn:LogisticRegression."),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Compare with a shuffler, too.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("fedaudit.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """Write a commented config for your file, and say what was chosen and why."""
    written = init(
        source,
        out,
        label=label,
        client=client,
        organisation=organisation,
        person=person,
        missing=missing,
        files=files,
        model=model,
        shuffle=shuffle,
        force=force,
        ask=_ask if sys.stdin.isatty() and sys.stdout.isatty() else None,
    )
    for choice in written.choices:
        _print_choice(clean(choice.line))
    typer.echo(f"wrote {written.path}; next: fedaudit run {written.path}")
