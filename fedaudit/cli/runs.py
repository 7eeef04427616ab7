"""`fedaudit run`, `audit`, `sweep`, `report`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.options import with_options
from fedaudit.cli.output import (
    AsJson,
    Bar,
    Names,
    Quiet,
    Verbose,
    again,
    explain_reuse,
    failed_audits,
    interruptible,
    print_chapters,
    print_compared,
    print_plan,
    print_runs,
    print_study,
    unanswered,
)
from fedaudit.cli.parsing import parse_audit_settings, parse_protection
from fedaudit.codec import to_json
from fedaudit.decide.history import history
from fedaudit.errors import DataError, Interrupted, UsageError
from fedaudit.files import read_text
from fedaudit.recorders.flower.runtime import choose_engine
from fedaudit.setup.seeds import BY_HAND
from fedaudit.study import study
from fedaudit.study.auditing import audit
from fedaudit.study.folders import is_study, recordings_at, run_at, runs_at
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
        typer.Option("--dry-run", help="Say what would be done and how long, then stop."),
    ] = False,
    former_plan: Annotated[bool, typer.Option("--plan", hidden=True)] = False,
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
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation, record it, audit it, report. Resumes where it was stopped."""
    silent, plan = quiet or as_json, plan or former_plan
    with interruptible_plan(), Bar(silent, tenths=verbose) as bar:
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
            ahead = study.describe(parts, forecasts)
            bar.say(*(ahead if verbose else ahead[-1:]))
    if plan:
        assert forecasts is not None
        print_plan(study.describe(parts, forecasts), forecasts, as_json)
        return
    with (
        interruptible(again()),
        Bar(silent, tenths=verbose) as bar,
        use_workers(workers_chosen),
    ):
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
    print_study(done, verbose, as_json, quiet)
    if explain_cache:
        explain_reuse(reuses)
    if done.failed:
        raise typer.Exit(max(error.exit_code for error in done.failed.values()))
    if failed_audits(done.runs):
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    trace: Annotated[
        Path, typer.Argument(help="A trace, a run that holds one, or a study of several runs.")
    ],
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
            help="As if this protection stood before the server: shuffle, secure_sum (ideal), "
            "secaggplus (Flower's), clip:bound=1.0, update_noise:clip=1.0,noise_multiplier=0.5. "
            "Repeated, one acts after the other.",
        ),
    ] = None,
    compare_as: Annotated[
        list[str] | None,
        typer.Option(
            "--compare-as",
            help="As it was recorded, and once per protection: repeated, they stand side by side.",
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
        typer.Option(
            help="With --data or --marks: package.module:function that builds the torch module, or "
            "(with --data) sklearn:LogisticRegression."
        ),
    ] = None,
    marks: Annotated[
        Path | None,
        typer.Option(help="A corpus owner's documents and controls, which attribution looks for."),
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
    show_records: Annotated[
        Path | None,
        typer.Option(
            "--show-records",
            metavar="FILE.html",
            help="Write training records beside what reconstruction rebuilt of them into a private "
            "page. Reports never show any.",
        ),
    ] = None,
    workers: SplitWork = None,
    fresh: Fresh = False,
    names: Names = False,
    explain_cache: ExplainCache = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Audit a stored trace: of a run, or written by other software; of a study, every run."""
    if delta is not None and opacus is None:
        raise UsageError(
            "--delta needs --opacus",
            expected="--opacus, the state of an accountant",
            got=f"--delta {delta:g} alone",
            remedy="give --opacus FILE, or leave --delta out: other guarantees state their own",
        )
    recordings = recordings_at(trace)
    if len(recordings) > 1:
        _refuse_for_several(recordings, truth=truth, out=out, opacus=opacus)
    if compare_as and (as_ or out is not None or len(recordings) > 1):
        raise UsageError(
            "--compare-as stands alone",
            expected="one recording, without --as and --out",
            got="--compare-as with one of them, or with several recordings",
            remedy="fedaudit audit TRACE --compare-as shuffle --compare-as secure_sum",
        )
    if show_records is not None and (compare_as or len(recordings) > 1):
        raise UsageError(
            "--show-records shows one recording",
            expected="one recording, without --compare-as",
            got="--compare-as" if compare_as else f"{len(recordings)} recordings",
            remedy="name one of them",
        )
    reuses: list[tuple[str, Any]] = []
    with interruptible(again()), Bar(quiet or as_json, tenths=verbose) as bar:
        starting(bar, "audit")
        workers_chosen = parse_workers(workers)
        settings, columns = parse_audit_settings(set_ or ())
        named = {k: v for k, v in (("label", label), ("client", client)) if v is not None}
        asked = partial(
            audit,
            audits=only or None,
            settings=settings,
            truth=truth,
            out=out,
            data=data,
            model=model,
            marks=marks,
            columns={**named, **columns},
            opacus=opacus,
            delta=1e-5 if delta is None else delta,
            seed=seed,
            names=names,
            fresh=fresh,
            trust_code=trust_code,
            show_records=show_records,
            progress=bar,
        )
        results = []
        variants = [[text] for text in compare_as or ()]
        with use_workers(workers_chosen):
            for place in recordings:
                for texts in [list(as_ or ()), *variants]:
                    title = place.name if len(recordings) > 1 else " ".join(texts)
                    hooks = [parse_protection(text) for text in texts]
                    explain = partial(_keep_reuse, reuses, title)
                    results.append(asked(place, as_if=hooks, explain=explain))
    if compare_as:
        print_compared(["as recorded", *(f"as {text}" for text in compare_as)], results, as_json)
    elif is_study(runs_at(trace)[0]) and len(results) > 1 and not as_:
        print_study(study.report(trace, names=names), verbose, as_json, quiet)
    else:
        print_runs(results, verbose, as_json, quiet)
    if explain_cache:
        explain_reuse(reuses)
    if failed_audits(results):
        raise typer.Exit(1)
    if data is not None and only and all(unanswered(result, only) for result in results):
        raise typer.Exit(DataError.exit_code)


def _keep_reuse(kept: list[tuple[str, Any]], title: str, reuse: Any) -> None:
    kept.append((title, reuse))


def _refuse_for_several(recordings: Sequence[Path], **given: Path | None) -> None:
    """Refuse options that belong to one recording."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"--{option} belongs to one recording, and there are {len(recordings)}",
                expected=f"one run or trace with --{option}",
                got=", ".join(map(str, recordings[:8])),
                remedy=f"fedaudit audit {recordings[0]} --{option} {value}",
            )


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
            typer.echo(f"failed: {label}\n{with_options(message)}", err=True)
        raise typer.Exit(1)


@app.command("report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="run",
            help="A run directory, or a study of several. Several, or a folder of them: one page "
            "with a time line per measure.",
        ),
    ],
    policy: Annotated[
        Path | None, typer.Option(help="With several runs: TOML file whose limits are drawn.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With several runs: folder of index.html; default: the given folder, else here."
        ),
    ] = None,
    names: Names = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write and print the report of a run again, from its stored results; of several, an index."""
    every = runs_at(runs[0]) if len(runs) == 1 else [run_at(run, "report") for run in runs]
    if len(every) > 1:
        made = history(every, out or (runs[0] if len(runs) == 1 else Path()), policy=policy)
        for line in made.left_out:
            typer.echo(f"left out: {line}", err=True)
        typer.echo(f"{len(made.lines)} measures over {len(made.changes) + 1} runs: {made.path}")
        return
    if policy is not None or out is not None:
        raise UsageError(
            "a single run has no time line",
            expected="several runs with --policy and --out",
            got=str(runs[0]),
            remedy="fedaudit report RUN RUN; fedaudit gate RUN checks one run against a policy",
        )
    (run,) = every
    done = study.report(run, names=names)
    if as_json or len(done.runs) > 1 or done.failed or not is_study(run):
        print_study(done, verbose, as_json, quiet)
    else:
        # a run inside a study is reported as part of that study
        print_chapters(done.chapters, done.path, verbose, quiet)
    if not as_json:
        for line in done.unfinished:
            typer.echo(line)
    if done.failed:
        raise typer.Exit(max(error.exit_code for error in done.failed.values()))
