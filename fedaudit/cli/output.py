"""What commands share: progress, interruption, printing, common options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.cli.options import with_options
from fedaudit.codec import to_json
from fedaudit.errors import Interrupted
from fedaudit.files import read_text
from fedaudit.reporting.brief import show_brief
from fedaudit.reporting.rules import label_of
from fedaudit.reporting.text import clean, show, show_study

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fedaudit.reporting.chapter import Chapter
    from fedaudit.study import Run
    from fedaudit.study.forecast import Forecast
    from fedaudit.study.study import Study

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, findings only.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print every finding in full, and tables of clients.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print findings as JSON on standard output.")]

Names = Annotated[
    bool, typer.Option("--names", help="Write clients' own names into the report, not pseudonyms.")
]


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


class Bar:
    """Progress on standard error: one live line in a terminal, else a line per finished stage.

    `tenths`: without a terminal, also a line at the start and at every tenth of the way.
    """

    def __init__(self, quiet: bool, *, tenths: bool = True) -> None:
        self._quiet, self._tenths = quiet, tenths
        self._progress: Any = None
        self._task: Any = None
        self._whole = False
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._said: dict[str, int] = {}

    def __enter__(self) -> Bar:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

            self._progress = Progress(
                BarColumn(bar_width=16),
                TimeRemainingColumn(compact=True),
                TextColumn(
                    "{task.fields[note]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis"),
                ),
                console=console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=1, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        if self._progress is None:
            self._say(stage, done, total, note)
        else:
            self._show(stage, done, total, note)
        self._totals[stage], self._done[stage] = total, done

    def _show(self, stage: str, done: int, total: int, note: str) -> None:
        """The live line: the whole study if it is known, else the stage, and what is done now."""
        if stage == WHOLE:
            self._whole = True
            self._progress.update(self._task, completed=done, total=total)
            return
        now = {"note": f"{stage} {done}/{total} {note}".rstrip()}
        if self._whole:
            self._progress.update(self._task, **now)
        elif self._anew(stage, done, total) or stage not in self._totals:
            # recorded rounds of a resumed run must not count towards its speed
            self._progress.reset(self._task, total=total, completed=done, **now)
        else:
            self._progress.update(self._task, completed=done, **now)

    def _anew(self, stage: str, done: int, total: int) -> bool:
        """Whether a stage begins again, as it does in the next run of a study."""
        return self._totals.get(stage) != total or done < self._done.get(stage, 0)

    def say(self, *lines: str) -> None:
        """Lines above the live line."""
        if not self._quiet:
            for line in lines:
                console(stderr=True).print(line, markup=False, soft_wrap=True)

    def _say(self, stage: str, done: int, total: int, note: str) -> None:
        """Print a line when a stage ends; with `tenths` also when it begins, and in between."""
        tenth = done * 10 // max(total, 1) if total >= 10 else 0
        if self._anew(stage, done, total):
            self._said[stage] = -1
        last, self._said[stage] = self._said[stage], max(tenth, self._said[stage])
        over = done == total and last < 10
        if over:
            self._said[stage] = 10
        wanted = (tenth > last or over) if self._tenths else (over and stage != WHOLE)
        if not self._quiet and wanted:
            print(f"{stage} {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)


WHOLE = "all"
"""Stage of a whole study."""


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Turn Ctrl-C into its own exit code and a line of advice."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped; complete results are kept", remedy=advice) from None


def again() -> str:
    return "resume with the same command: " + shlex.join(["fedaudit", *sys.argv[1:]])


def print_run(run: Run, verbose: bool, as_json: bool, quiet: bool = False) -> None:
    """Print what was found in a run: at most 15 lines, or with `verbose` everything."""
    if as_json:
        typer.echo(to_json(_plain(run)))
        return
    if run.chapter is not None:  # clients under the names of the report
        print_chapters([run.chapter], run.path, verbose, quiet)
    else:
        show(console(), run.summary, run.findings, run.results)
        typer.echo(f"\nreport: {run.path / 'report.html'}")


def _plain(run: Run) -> dict[str, Any]:
    shown = run.chapter or run
    return {
        "run": str(run.path),
        "summary": dict(shown.summary),
        "findings": [f.to_dict() for f in shown.findings],
    }


def print_runs(runs: Sequence[Run], verbose: bool, as_json: bool, quiet: bool = False) -> None:
    """Print one run, or several that share no report, each under its folder."""
    if as_json and len(runs) > 1:
        typer.echo(to_json({"runs": [_plain(run) for run in runs]}))
        return
    for run in runs:
        if len(runs) > 1:
            typer.echo(f"{run.path}:")
        print_run(run, verbose, as_json, quiet)


def print_compared(titles: Sequence[str], runs: Sequence[Run], as_json: bool) -> None:
    """Print several audits of one recording, audit by audit, each under its protection."""
    if as_json:
        shown = {title: _plain(run) for title, run in zip(titles, runs, strict=True)}
        typer.echo(to_json(shown))
        return
    width = max(map(len, titles))
    of = [{f.audit: f for f in reversed(list((run.chapter or run).findings))} for run in runs]
    for name in dict.fromkeys(name for found in of for name in found):
        typer.echo(name)
        for title, found in zip(titles, of, strict=True):
            finding = found.get(name)
            said = "not asked"
            if finding is not None:
                said = f"{label_of(finding).words}: {finding.statement}"
            typer.echo(f"  {title:<{width}}  {said}")
    for title, run in zip(titles, runs, strict=True):
        typer.echo(f"report, {title}: {run.path / 'report.html'}")


def print_study(study: Study, verbose: bool, as_json: bool, quiet: bool = False) -> None:
    """Print the findings of a study."""
    if len(study.runs) == 1 and not study.failed:
        print_run(study.runs[0], verbose, as_json, quiet)
        return
    if as_json:
        typer.echo(read_text(study.path / "results.json"))
        return
    print_chapters(study.chapters, study.path, verbose, quiet)
    for title, error in study.failed.items():
        typer.echo(f"failed: {title}\n{with_options(str(error))}", err=True)


def print_chapters(chapters: Sequence[Chapter], folder: Path, verbose: bool, quiet: bool) -> None:
    """Print chapters; unless `quiet`, also the next command and the path of their page."""
    report = str(folder / "report.html")
    if not verbose:
        show_brief(console(), chapters, place=str(folder), report="" if quiet else report)
        return
    show_study(console(), chapters, details=len(chapters) == 1)
    if not quiet:
        typer.echo(f"\nreport: {report}")


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
        typer.echo(clean(line))


def failed_audits(runs: Sequence[Run]) -> list[str]:
    """Names of the audits that ended in an error."""
    return [r.audit for run in runs for r in run.results if r.status == "failed"]


def unanswered(run: Run, asked: Sequence[str]) -> bool:
    """Whether none of the audits named on the command line could run."""
    return all(r.headline is None and r.status != "blind" for r in run.results if r.audit in asked)


def explain_reuse(reuses: list[tuple[str, Any]]) -> None:
    """Print which stored work was reused, and why."""
    for title, reuse in reuses:
        what = "reused" if reuse.reused else "done now"
        where = f"{title}: " if title else ""
        typer.echo(f"{where}{reuse.stage}: {what}; {reuse.why}", err=True)
