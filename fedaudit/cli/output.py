"""What commands share: progress, interruption, printing, the usual options."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from fedaudit.experiment import Run

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, findings only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print findings as JSON on standard output.")]


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


class Bar:
    """Progress on standard error: bars in a terminal, a line per stage elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._totals: dict[str, int] = {}

    def __enter__(self) -> Bar:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description:<5}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=console(stderr=True),
            )
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        if self._progress is None:
            self._say(stage, done, total, note)
        elif stage not in self._tasks:
            task = self._progress.add_task(stage, total=total, completed=done, note=note)
            self._tasks[stage] = task
        elif self._totals[stage] != total:
            # what a resumed run finds done says nothing about its speed
            self._progress.reset(self._tasks[stage], total=total, completed=done, note=note)
        else:
            self._progress.update(self._tasks[stage], completed=done, note=note)
        self._totals[stage] = total

    def _say(self, stage: str, done: int, total: int, note: str) -> None:
        first = self._totals.get(stage) != total
        # a log gets a line at every tenth of the way
        tenth = total >= 10 and done * 10 // total > (done - 1) * 10 // total
        if not self._quiet and (first or done == total or tenth):
            print(f"{stage} {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C ends a command with its own exit code and a word on what was kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped; whatever was complete is kept", remedy=advice) from None


def again() -> str:
    return "the same command goes on from there: " + shlex.join(["fedaudit", *sys.argv[1:]])


def print_run(run: Run, quiet: bool, as_json: bool) -> None:
    if as_json:
        plain = {
            "run": str(run.path),
            "summary": dict(run.summary),
            "findings": [f.to_dict() for f in run.findings],
        }
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
        return
    from fedaudit.report.text import show

    to = console()
    show(to, run.summary, run.findings, () if quiet else run.results)
    if not quiet:
        typer.echo(f"\nreport: {run.path / 'report.html'}")
