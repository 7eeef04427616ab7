"""`fedaudit watch`: follow a growing trace."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, Names, interruptible
from fedaudit.decide.watch import Watch, follow
from fedaudit.decide.watch.page import line, plain
from fedaudit.errors import UsageError, count_of
from fedaudit.files import writing

BROKEN = 4
"""Exit code of a broken limit."""

app = new_app()


@app.callback()
def group() -> None: ...


@app.command("watch")
def watch_command(
    trace: Annotated[Path, typer.Argument(help="The trace folder; it may not exist yet.")],
    policy: Annotated[
        Path | None, typer.Option(help="TOML file with limits on coverage, linkage, epsilon.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read the rounds that are there, then stop.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", help="Append one JSON line per round here.")
    ] = None,
    names: Names = False,
    as_json: AsJson = False,
) -> None:
    """One line per round: arrivals, linkage, coverage, epsilon, and limits that break.

    Ends when the trace is closed. Exit codes: 0 no limit broken, 4 a limit broken.
    """
    if not interval > 0:
        raise UsageError(
            "--interval is out of range",
            expected="a number of seconds above 0",
            got=f"{interval:g}",
            remedy="--interval 1",
        )
    watch = Watch(policy, names=names)
    if watch.unwatched and not as_json:
        kept = ", ".join(watch.unwatched)
        typer.echo(f"not watched: {kept}; `fedaudit gate` checks what needs an audit", err=True)
    if not (once or as_json or trace.exists()):
        typer.echo(f"waiting for a trace in {trace}; Ctrl-C ends", err=True)
    broken = rounds = 0
    with interruptible("the trace was not changed"), ExitStack() as stack:
        out = None if json_file is None else stack.enter_context(_appending(json_file))
        for reading in follow(trace, watch, interval=interval, once=once):
            text = json.dumps(plain(reading))
            typer.echo(text if as_json else line(reading))
            if out is not None:
                out.write(text + "\n")
                out.flush()
            rounds, broken = rounds + 1, broken + bool(reading.broken)
    if watch.stopped:
        typer.echo(f"the recording stopped before the training: {watch.stopped}", err=True)
    if not as_json:
        typer.echo(f"{count_of(rounds, 'round')} read, {broken} with a broken limit")
    if broken:
        raise typer.Exit(BROKEN)


def _appending(file: Path) -> typer.FileTextWrite:
    with writing(file, UsageError, remedy="make the folder first, or choose another"):
        return file.open("a", encoding="utf-8")  # type: ignore[return-value]
