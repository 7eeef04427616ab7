"""`fedaudit run`, `audit`, `sweep`, `report`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import (
    AsJson,
    Bar,
    Names,
    Quiet,
    again,
    console,
    explain_reuse,
    failed_audits,
    interruptible,
    print_plan,
    print_run,
    print_study,
    unanswered,
)
from fedaudit.cli.parsing import parse_audit_settings, parse_protection
from fedaudit.codec import to_json
from fedaudit.errors import DataError, Interrupted, UsageError
from fedaudit.files import read_text
from fedaudit.recorders.flower.runtime import choose_engine
from fedaudit.reporting.text import show_study
from fedaudit.setup.seeds import BY_HAND
from fedaudit.study import study
from fedaudit.study.auditing import audit
from fedaudit.study.folders import is_study
from fedaudit.study.sweep import sweep
from fedaudit.workers import parse_workers, use_workers


def starting(bar: Bar, stage: str) -> None:
    """Show a bar at once in a terminal. A log starts after the config is read, so that a mistake in
    it comes first."""
    if sys.stderr.isatty():
        bar(stage, 0, 1, "starting")


@contextmanager
def interruptible_plan() -> Iterator[None]:
    """Turn Ctrl-C before a run begins into its own exit code: nothing was written."""
    try:
        yield
    except KeyboardInterrupt:
        begin = shlex.join(["fedaudit", *sys.argv[1:]])
        raise Interrupted("stopped before anything began", remedy=begin) from None


ExplainCache = Annotated[
    bool, typer.Option("--explain-cache", help="Say which stored work was reused, and why.")
]


Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Remove what an earlier run left in the folder, and start anew."),
]


SplitWork = Annotated[
    str | None,
    typer.Option(
        "--workers",
        help="Where to train shadow federations: a number of processes, ray, or ray://HOST:PORT; "
        "default: this process.",
    ),
]


app = new_app()


@app.command("run")
def run_command(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(help="TOML files, one per federation; without any, the two built-in ones."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="section.key=value, repeatable; without a config: of a plain digits run."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed; default: the config's, else 64 random bits.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("fedaudit-run"),
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Apply the config's [thorough] section.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Say what would be done and how long, then stop."),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where to train: local (this process) or flower (its runtime).")
    ] = "local",
    superlink: Annotated[
        str | None, typer.Option(help="With --engine flower: address of a running SuperLink.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="With --superlink: PEM file that vouches for it (TLS).")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With --superlink: no TLS, for use inside a tunnel.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="With --engine flower: seconds that a round may take.")
    ] = 600.0,
    workers: SplitWork = None,
    fresh: Fresh = False,
    names: Names = False,
    explain_cache: ExplainCache = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation, record it, audit it, report. Resumes where it was stopped."""
    silent = quiet or as_json
    with interruptible_plan(), Bar(silent) as bar:
        starting(bar, "plan")
        workers_chosen = parse_workers(workers)
        parts = study.plan(configs or [], overrides=set_ or (), seed=seed, thorough=thorough)
        parts = parts if fresh else study.with_stored_seeds(parts, out)
        if not all(part.config.drawn for part in parts):
            typer.echo(f"warning: {BY_HAND}", err=True)
        trained_by = choose_engine(
            engine, superlink, timeout, root_certificates=root_certificates, insecure=insecure
        )
        bar("plan", 0, 1, "reading the data, looking ahead")
        forecasts = study.estimate_costs(parts) if plan or not silent else None
        bar("plan", 1, 1, "")
        if forecasts is not None and not plan:
            bar.say(*study.describe(parts, forecasts))
    if plan:
        assert forecasts is not None
        print_plan(study.describe(parts, forecasts), forecasts, as_json)
        return
    with interruptible(again()), Bar(silent) as bar, use_workers(workers_chosen):
        reuses: list[tuple[str, Any]] = []
        done = study.study(
            parts,
            out,
            progress=bar,
            names=names,
            engine=trained_by,
            forecasts=forecasts,
            explain=lambda title, reuse: reuses.append((title, reuse)),
            fresh=fresh,
        )
    print_study(done, quiet, as_json)
    if explain_cache:
        explain_reuse(reuses)
    if done.failed:
        raise typer.Exit(max(error.exit_code for error in done.failed.values()))
    if failed_audits(done.runs):
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    trace: Annotated[Path, typer.Argument(help="A trace folder, or a run that holds one.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Audit to run, repeatable; default: those of a run's config, else all.",
        ),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Truth folder, if it is not beside the trace.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results and report go.")] = None,
    as_: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            help="As if this protection stood before the server: shuffle, secure_sum, "
            "clip:bound=1.0, update_noise:clip=1.0,noise_multiplier=0.5; repeatable.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Records that membership audits ask about; a client column names the trace's "
            "parties. Refused where no such audit runs."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --data: package.module:function that builds the torch module."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="audits.NAME.KEY=VALUE or (of --data) data.KEY=VALUE, repeatable."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of --data.")] = None,
    client: Annotated[str | None, typer.Option(help="Client column of --data.")] = None,
    opacus: Annotated[
        Path | None,
        typer.Option(help="JSON of Opacus' accountant.state_dict(), or client -> state_dict()."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta for --opacus; default: 1e-5.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the audits' own random draws.")] = 1,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            help="Run code that the folder's stored config names (task.factory). Read it first.",
        ),
    ] = False,
    workers: SplitWork = None,
    fresh: Fresh = False,
    names: Names = False,
    explain_cache: ExplainCache = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Audit a stored trace: of a run, or written by other software."""
    if delta is not None and opacus is None:
        raise UsageError(
            "--delta needs --opacus",
            expected="--opacus, the state of an accountant",
            got=f"--delta {delta:g} alone",
            remedy="give --opacus FILE, or leave --delta out: other guarantees state their own",
        )
    with interruptible(again()), Bar(quiet or as_json) as bar:
        starting(bar, "audit")
        reuses: list[tuple[str, Any]] = []
        workers_chosen = parse_workers(workers)
        settings, columns = parse_audit_settings(set_ or ())
        named = {k: v for k, v in (("label", label), ("client", client)) if v is not None}
        with use_workers(workers_chosen):
            result = audit(
                trace,
                only or None,
                as_if=[parse_protection(text) for text in as_ or ()],
                settings=settings,
                truth=truth,
                out=out,
                data=data,
                model=model,
                columns={**named, **columns},
                opacus=opacus,
                delta=1e-5 if delta is None else delta,
                seed=seed,
                names=names,
                fresh=fresh,
                trust_code=trust_code,
                progress=bar,
                explain=lambda reuse: reuses.append(("", reuse)),
            )
    print_run(result, quiet, as_json)
    if explain_cache:
        explain_reuse(reuses)
    if failed_audits([result]):
        raise typer.Exit(1)
    if data is not None and only and unanswered(result, only):
        raise typer.Exit(DataError.exit_code)


@app.command("sweep")
def sweep_command(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file; without it, built-in data.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", help="section.key=v1,v2,..., repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per cell, with consecutive seeds.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep.")] = Path("fedaudit-sweep"),
    workers: Annotated[
        str | None,
        typer.Option(help="Processes (default: one per core), or ray, or ray://HOST:PORT."),
    ] = None,
    keep_traces: Annotated[
        bool, typer.Option("--keep-traces", help="Keep every cell's trace and truth.")
    ] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of settings times seeds: one table and one figure. Resumes where it stopped."""
    with interruptible(again()), Bar(quiet or as_json) as bar:
        starting(bar, "sweep")
        done = sweep(
            config,
            grid or (),
            out,
            seeds=seeds,
            workers=parse_workers(workers),
            overrides=set_ or (),
            keep_traces=keep_traces,
            progress=bar,
            fresh=fresh,
        )
    if as_json:
        plain = {"rows": list(done.rows), "failed": [list(f) for f in done.failed]}
        typer.echo(to_json(plain))
    else:
        typer.echo(read_text(done.path / "sweep.md"))
        typer.echo(f"{done.reused} cells were reused; table: {done.path / 'sweep.csv'}")
    if done.failed:
        for label, message in done.failed:
            typer.echo(f"failed: {label}\n{message}", err=True)
        raise typer.Exit(1)


@app.command("report")
def report_command(
    run: Annotated[Path, typer.Argument(help="A run directory, or a study of several.")],
    names: Names = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write and print the report of a run again, from its stored results."""
    done = study.report(run, names=names)
    if as_json or len(done.runs) > 1 or done.failed or not is_study(run):
        print_study(done, quiet, as_json)
    else:
        # a run inside a study is reported as part of that study
        show_study(console(), done.chapters, details=not quiet)
        typer.echo(f"\nreport: {done.report}")
    if not as_json:
        for line in done.unfinished:
            typer.echo(line)
    if done.failed:
        raise typer.Exit(max(error.exit_code for error in done.failed.values()))
