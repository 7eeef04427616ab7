"""`fedaudit watch`: follow a growing trace."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, Names, interruptible
from fedaudit.decide.watch import SILENCE, Watch, follow
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
    silence: Annotated[
        float, typer.Option(help="Minutes without a round after which that is said, once.")
    ] = SILENCE / 60,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", help="Append one JSON line per round here.")
    ] = None,
    names: Names = False,
    as_json: AsJson = False,
) -> None:
    """One line per round: arrivals, linkage, coverage, epsilon, and limits that break.

    Ends when the trace is closed. Exit codes: 0 no limit broken, 4 a limit broken.
    """
    for option, given, what in (
        ("--interval 1", interval, "seconds"),
        ("--silence 30", silence, "minutes"),
    ):
        if not given > 0:
            raise UsageError(
                f"{option.split()[0]} is out of range",
                expected=f"a number of {what} above 0",
                got=f"{given:g}",
                remedy=option,
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
        readings = follow(
            trace,
            watch,
            interval=interval,
            once=once,
            silence=60 * silence,
            on_silence=lambda: typer.echo(
                f"no round has come for {silence:g} minutes: a slow round, or a recorder that was "
                "killed and closed nothing; still watching, Ctrl-C ends",
                err=True,
            ),
        )
        for reading in readings:
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
