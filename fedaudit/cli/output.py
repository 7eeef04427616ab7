"""What commands share: progress, interruption, printing, common options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.codec import to_json
from fedaudit.errors import Interrupted
from fedaudit.files import read_text
from fedaudit.reporting.text import show, show_study

if TYPE_CHECKING:
    from rich.console import Console

    from fedaudit.study import Run
    from fedaudit.study.forecast import Forecast
    from fedaudit.study.study import Study

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, findings only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print findings as JSON on standard output.")]

Names = Annotated[
    bool, typer.Option("--names", help="Write clients' own names into the report, not pseudonyms.")
]


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


class Bar:
    """Progress on standard error: bars in a terminal, lines elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._said: dict[str, int] = {}

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
        elif self._anew(stage, done, total):
            # recorded rounds of a resumed run must not count towards its speed
            self._progress.reset(self._tasks[stage], total=total, completed=done, note=note)
        else:
            self._progress.update(self._tasks[stage], completed=done, note=note)
        self._totals[stage], self._done[stage] = total, done

    def _anew(self, stage: str, done: int, total: int) -> bool:
        """Whether a stage begins again, as it does in the next run of a study."""
        return self._totals.get(stage) != total or done < self._done.get(stage, 0)

    def say(self, *lines: str) -> None:
        """Lines above the bars."""
        if not self._quiet:
            for line in lines:
                console(stderr=True).print(line, markup=False, soft_wrap=True)

    def _say(self, stage: str, done: int, total: int, note: str) -> None:
        """Print a line when a stage begins and ends, and at every tenth of the way."""
        tenth = done * 10 // max(total, 1) if total >= 10 else 0
        if self._anew(stage, done, total):
            self._said[stage] = -1
        last, self._said[stage] = self._said[stage], max(tenth, self._said[stage])
        over = done == total and last < 10
        if over:
            self._said[stage] = 10
        if not self._quiet and (tenth > last or over):
            print(f"{stage} {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Turn Ctrl-C into its own exit code and a line of advice."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped; whatever was complete is kept", remedy=advice) from None


def again() -> str:
    return "resume with the same command: " + shlex.join(["fedaudit", *sys.argv[1:]])


def print_run(run: Run, quiet: bool, as_json: bool) -> None:
    if as_json:
        shown = run.chapter or run
        plain = {
            "run": str(run.path),
            "summary": dict(shown.summary),
            "findings": [f.to_dict() for f in shown.findings],
        }
        typer.echo(to_json(plain))
        return
    to = console()
    if run.chapter is not None:  # clients under the names of the report
        show_study(to, [run.chapter], details=not quiet)
    else:
        show(to, run.summary, run.findings, () if quiet else run.results)
    if not quiet:
        typer.echo(f"\nreport: {run.path / 'report.html'}")


def print_study(study: Study, quiet: bool, as_json: bool) -> None:
    """Print the findings of a study."""
    if len(study.runs) == 1 and not study.failed:
        print_run(study.runs[0], quiet, as_json)
        return
    if as_json:
        typer.echo(read_text(study.path / "results.json"))
        return
    show_study(console(), study.chapters, details=False)
    for title, error in study.failed.items():
        typer.echo(f"failed: {title}\n{error}", err=True)
    if not quiet:
        typer.echo(f"\nreport: {study.path / 'report.html'}")


def print_plan(lines: Sequence[str], forecasts: Mapping[str, Forecast], as_json: bool) -> None:
    """Print what a run would do, on standard output."""
    if as_json:
        plain = {
            folder: {s.name: {"seconds": round(s.seconds, 1), "cannot": s.cannot} for s in f.stages}
            for folder, f in forecasts.items()
        }
        typer.echo(to_json(plain))
        return
    for line in lines:
        typer.echo(line)


def failed_audits(runs: Sequence[Run]) -> list[str]:
    """Names of the audits that ended in an error."""
    return [r.audit for run in runs for r in run.results if r.status == "failed"]


def unanswered(run: Run, asked: Sequence[str]) -> bool:
    """Whether none of the audits named on the command line could run."""
    return all(r.headline is None for r in run.results if r.audit in asked)


def explain_reuse(reuses: list[tuple[str, Any]]) -> None:
    """Print which stored work was reused, and why."""
    for title, reuse in reuses:
        what = "reused" if reuse.reused else "done now"
        where = f"{title}: " if title else ""
        typer.echo(f"{where}{reuse.stage}: {what}; {reuse.why}", err=True)
