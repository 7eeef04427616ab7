"""Several federations, each in several variants, as one piece of work with one report.

    DIR/study.json               what the folder holds: federation, variant and path of every run
    DIR/digits-unprotected/      an ordinary run directory (see run.py)
    DIR/digits-dp-sgd/           the same federation, protected
    DIR/report.html, report.md, results.json

A config with a `[compare]` section is such a study; so are several configs, and the built-in
default.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedaudit import __version__, shapes
from fedaudit.errors import ConfigError, FedauditError, TraceError
from fedaudit.files import is_lost, read_object, write_atomically
from fedaudit.progress import Progress, no_progress
from fedaudit.reporting.chapter import Chapter
from fedaudit.results import AuditResult, Finding
from fedaudit.setup import seeds
from fedaudit.setup.config import DEFAULT, Config, load_variants
from fedaudit.setup.identity import check_and_store
from fedaudit.setup.toml import read
from fedaudit.study.chapters import (
    Run,
    chapter_at,
    chapter_of,
    purged_on,
    stored_results,
    write_report,
    write_study,
)
from fedaudit.study.chapters import report as report_run
from fedaudit.study.folders import (
    FRESH_MARK,
    STUDY,
    ListedRun,
    claimed,
    clear,
    entries,
    not_ours,
    places,
)
from fedaudit.study.forecast import Forecast, estimate_cost
from fedaudit.study.lock import alone_in
from fedaudit.study.reuse import Explain, Reuse, no_explain
from fedaudit.study.run import Engine
from fedaudit.study.run import run as run_one
from fedaudit.study.seal import require_seal, seal
from fedaudit.trace import Trace, Truth

BUILT_IN = ("digits", "docs")

Explained = Callable[[str, Reuse], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run of a study: which federation, how protected, under which name in the folder."""

    federation: str
    variant: str
    folder: str
    config: Config

    @property
    def title(self) -> str:
        return f"{self.federation}, {self.variant}" if self.variant else self.federation


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study as it is shown: its runs in order, what failed, by title, and what is missing.

    `unfinished` says, a line each, which parts are not in the report or only in part.
    """

    path: Path
    runs: tuple[Run, ...]
    chapters: tuple[Chapter, ...]
    failed: Mapping[str, FedauditError] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs, in their order; those of one alone are in `runs`."""
        return tuple(finding for one in self.runs for finding in one.findings)

    @property
    def results(self) -> tuple[AuditResult, ...]:
        """The results of all runs, in their order."""
        return tuple(result for one in self.runs for result in one.results)

    @property
    def report(self) -> Path:
        """The page over all runs."""
        return self.path / "report.html"


Source = str | Path | Mapping[str, Any]


def run(
    config: Source | Sequence[Source] | None = None,
    out: str | os.PathLike[str] = "fedaudit-run",
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    thorough: bool = False,
    progress: Progress = no_progress,
    names: bool = False,
    explain: Explained | None = None,
    fresh: bool = False,
) -> Study:
    """Run (or resume) all that a config asks for: train, record, audit, report.

    As `fedaudit run`: one config or several, each with all its variants; without any the built-in
    study, or with `overrides` a plain federation on digits. `names` writes clients' own names into
    the report; `explain` hears, for each run by its title, which work was reused. A run that fails
    does not stop the others: it is warned of, and stands in `failed`. `fresh` as in `study`.
    """
    many = [] if config is None else config
    if isinstance(many, str | os.PathLike | Mapping):
        many = [many]
    parts = plan(list(many), overrides=overrides, seed=seed, thorough=thorough)
    done = study(parts, out, progress=progress, names=names, explain=explain, fresh=fresh)
    for title, error in done.failed.items():
        warnings.warn(f"{title} failed and is not in the report: {error.what}", stacklevel=2)
    return done


def plan(
    configs: Sequence[Source] = (),
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    thorough: bool = False,
) -> tuple[Part, ...]:
    """The runs that configs ask for; without any, those of the built-in default, or (with
    `overrides`) a plain federation on digits."""
    if not configs and overrides:
        configs = [tomllib.loads(DEFAULT)]
    sources = [(_name_of(c), c) for c in configs] or [(n, built_in(n)) for n in BUILT_IN]
    parts: list[Part] = []
    for name, source in sources:
        variants = load_variants(source, overrides=overrides, seed=seed, thorough=thorough)
        parts += [
            Part(
                federation=name,
                variant=variant,
                folder=_slug(f"{name}-{variant}" if variant else name),
                config=config,
            )
            for variant, config in variants.items()
        ]
    folders = [part.folder for part in parts]
    twice = next((f for f in folders if folders.count(f) > 1), None)
    if twice is not None:
        raise ConfigError(
            "two runs of the study would share a folder",
            expected="configs and variants with names of their own",
            got=f"{twice} twice",
            remedy="rename one of the files, or one of the variants under [compare]",
        )
    return tuple(parts)


def taken_up(parts: Sequence[Part], out: str | os.PathLike[str]) -> tuple[Part, ...]:
    """The same parts with the seeds that runs in `out` began with, where no seed was given. All
    variants of a federation share one, also those that did not begin yet."""
    found: dict[str, tuple[int, bool]] = {}
    for part in parts:
        folder = Path(out) if len(parts) == 1 else Path(out) / part.folder
        if part.config.drawn and part.federation not in found:
            found |= {part.federation: kept} if (kept := seeds.stored(folder)) else {}
    return tuple(
        replace(part, config=part.config.with_seed(kept[0], drawn=kept[1]))
        if part.config.drawn and (kept := found.get(part.federation))
        else part
        for part in parts
    )


def built_in(name: str) -> Mapping[str, Any]:
    """A config of the built-in default."""
    return tomllib.loads(built_in_text(name))


def built_in_text(name: str) -> str:
    return (resources.files("fedaudit.study") / "builtin" / f"{name}.toml").read_text("utf-8")


def _name_of(source: Source) -> str:
    if isinstance(source, str | Path):
        name = Path(source).stem
        if name != "fedaudit":
            return name
        source = read(Path(source))  # the usual name says nothing; that of its data does
    data = source.get("data")
    if not isinstance(data, Mapping):
        return "federation"
    return str(data.get("name") or Path(str(data.get("path", "federation"))).stem)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


def estimate_costs(parts: Sequence[Part]) -> dict[str, Forecast]:
    """What every part will take; folder -> stages."""
    return {part.folder: estimate_cost(part.config) for part in parts}


def describe(parts: Sequence[Part], ahead: Mapping[str, Forecast]) -> list[str]:
    """What will be done, what cannot, and about how long, a line each."""
    lines = []
    for part in parts:
        f = ahead[part.folder]
        does = ", ".join(s.name for s in f.stages[1:] if not s.cannot)
        lines.append(
            f"{part.title}: {f.clients} clients, {f.records:,} records, {f.width:,} numbers per "
            f"update; {does} (about {_time(f.seconds)})"
        )
        lines += [f"  not {s.name}: {s.cannot}" for s in f.stages if s.cannot]
        if f.notes not in [ahead[p.folder].notes for p in parts[: parts.index(part)]]:
            lines += [f"  note: {note}" for note in f.notes]  # once for all variants
    lines.append(f"about {_time(sum(f.seconds for f in ahead.values()))} in all on this machine")
    return lines


def _time(seconds: float) -> str:
    return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def study(
    parts: Sequence[Part],
    out: str | os.PathLike[str] = "fedaudit-run",
    *,
    progress: Progress = no_progress,
    names: bool = False,
    engine: Engine | None = None,
    forecasts: Mapping[str, Forecast] | None = None,
    explain: Explained | None = None,
    fresh: bool = False,
) -> Study:
    """Run (or resume) every part, then write one report over all of them.

    A single part without variants is an ordinary run directory; more are a folder of such. A part
    that fails does not stop the others, and the report says so; it is written anew after every
    part, so that whatever ends the study leaves what was found so far. `forecasts` weighs progress.
    One process at a time works in `out`: a second one is refused. `fresh` removes what an earlier
    study left in `out`; otherwise every part has to be about the same settings, data and code.
    """
    with alone_in(Path(out)):
        if fresh or (Path(out) / FRESH_MARK).exists():
            clear(Path(out))
        parts = taken_up(parts, out)
        return _study(parts, Path(out), progress, names, engine, forecasts, explain)


def _study(
    parts: Sequence[Part],
    path: Path,
    progress: Progress,
    names: bool,
    engine: Engine | None,
    forecasts: Mapping[str, Forecast] | None,
    explain: Explained | None,
) -> Study:
    if len(parts) == 1:
        (part,) = parts
        one = run_one(
            part.config,
            path,
            progress=progress,
            engine=engine,
            names=names,
            explain=_under(explain, part.title),
        )
        return Study(path=path, runs=(one,), chapters=(one.chapter,) if one.chapter else ())
    _claim(path, parts)
    weights = {p.folder: forecasts[p.folder].seconds if forecasts else 1.0 for p in parts}
    runs: dict[str, Run] = {}
    failed: dict[str, FedauditError] = {}
    chapters: tuple[Chapter, ...] = ()
    for part in parts:
        before = sum(weights[p.folder] for p in parts[: parts.index(part)])
        ahead = forecasts[part.folder] if forecasts else None
        try:
            runs[part.folder] = run_one(
                part.config,
                path / part.folder,
                progress=_shared(progress, part, ahead, before, sum(weights.values())),
                engine=engine,
                names=names,
                explain=_under(explain, part.title),
            )
        except FedauditError as error:
            failed[part.title] = error
        chapters = _write(path, parts, runs, failed, names)
    if not runs:
        raise next(iter(failed.values()))
    return Study(path=path, runs=tuple(runs.values()), chapters=chapters, failed=failed)


def _under(explain: Explained | None, title: str) -> Explain:
    return no_explain if explain is None else functools.partial(explain, title)


def _shared(
    progress: Progress, part: Part, ahead: Forecast | None, before: float, total: float
) -> Progress:
    """The progress of one part, and that of the whole in planned seconds."""

    def heard(stage: str, done: int, of: int, note: str) -> None:
        if ahead is not None:
            share = ahead.share(stage, done, of) * ahead.seconds
            done_by_now = before + share
            left = _time(max(total - done_by_now, 0.0))
            whole = f"seconds planned, about {left} left: {part.title}"
            progress("all", round(done_by_now), round(total), whole)
        progress(stage, done, of, f"{part.title}: {note}" if note else part.title)

    return heard


def _write(
    path: Path,
    parts: Sequence[Part],
    runs: Mapping[str, Run],
    failed: Mapping[str, FedauditError],
    names: bool,
) -> tuple[Chapter, ...]:
    """The report of what there is, and what it does not hold yet."""
    chapters = [
        chapter_at(path / p.folder, federation=p.federation, variant=p.variant)
        for p in parts
        if p.folder in runs
    ]
    if not chapters:
        return ()
    waiting = [p.title for p in parts if p.folder not in runs and p.title not in failed]
    notices = _left_out(failed)
    if waiting:
        notices.append(f"Unfinished: not run yet: {'; '.join(waiting)}.")
    return tuple(write_study(path, chapters, names=names, notices=notices))


def _left_out(failed: Mapping[str, FedauditError]) -> list[str]:
    return [f"Not in this report: {title}: {error.what}" for title, error in failed.items()]


def report(path: str | os.PathLike[str], *, names: bool = False) -> Study:
    """Write the report of a study again from what is stored; what it lacks is named in it.

    A part that was stopped in training is reported as far as it went; one that has recorded nothing
    yet is not there, and neither has failed.
    """
    folder = Path(path)
    require_seal(folder)
    runs, chapters, failed, waiting = [], [], {}, []
    for entry in entries(folder):
        title = f"{entry.federation}, {entry.variant}" if entry.variant else entry.federation
        if is_waiting(entry.path):
            waiting.append(title)
            continue
        try:
            chapters.append(_chapter(entry))
            runs.append(report_one(entry.path, names=names))
        except FedauditError as error:
            failed[title] = error
    if not chapters and not failed:
        raise _nothing_yet(folder)
    if not chapters:
        raise next(iter(failed.values()))
    notices = _left_out(failed)
    if waiting:
        notices.append(f"Unfinished: not run yet: {'; '.join(waiting)}.")
    shown = tuple(write_study(folder, chapters, names=names, notices=notices))
    return Study(
        path=folder, runs=tuple(runs), chapters=shown, failed=failed, unfinished=tuple(notices)
    )


def _chapter(entry: ListedRun) -> Chapter:
    stopped = _stopped(entry.path)
    if stopped is None:
        return chapter_at(entry.path, federation=entry.federation, variant=entry.variant)
    trace, truth = stopped
    return chapter_of(
        entry.path, trace, truth, [], federation=entry.federation, variant=entry.variant
    )


def report_one(path: str | os.PathLike[str], *, names: bool = False) -> Run:
    """Write the report of one run again; of one that was stopped in training, what there is."""
    folder = Path(path)
    if not folder.is_dir():
        raise TraceError(
            f"there is no run {folder}",
            expected="a folder that `fedaudit run` or `fedaudit audit` wrote",
            got="a file" if folder.exists() else "no such folder",
            remedy=f"fedaudit run CONFIG --out {folder}",
        )
    if is_waiting(folder) and (folder / "run.json").is_file():
        raise _nothing_yet(folder)
    stopped = _stopped(folder)
    if stopped is None:
        return report_run(folder, names=names)
    return write_report(folder, *stopped, [], names=names)


def is_waiting(folder: Path) -> bool:
    """Whether a run has recorded nothing yet: its folder is missing, or holds its config alone."""
    if not folder.exists():
        return True
    if purged_on(folder):
        return False
    begun = (folder / "run.json").is_file() or not any(folder.iterdir())
    return begun and not any((folder / "trace").glob("round-*"))


def _stopped(folder: Path) -> tuple[Trace, Truth | None] | None:
    """Trace and truth of a run that has recorded rounds and no results; None of any other."""
    recorded, known = places(folder)
    if not (recorded / "manifest.json").is_file() or stored_results(folder):
        return None
    trace = Trace.open(recorded)
    if trace.manifest.complete or not len(trace.rounds):
        return None
    return trace, Truth.open(known) if (known / "truth.json").exists() else None


def _nothing_yet(folder: Path) -> TraceError:
    return TraceError(
        f"{folder} has recorded nothing yet",
        expected="at least one recorded round",
        got="none",
        remedy=f"let the command that began it go on: fedaudit run CONFIG --out {folder}",
    )


def _claim(path: Path, parts: Sequence[Part]) -> None:
    """Make the folder, or see that it belongs to the same study."""
    about: dict[str, Any] = {
        "fedaudit": __version__,
        "runs": [
            {
                "federation": p.federation,
                "variant": p.variant,
                "path": p.folder,
                "config_sha256": p.config.sha256,
            }
            for p in parts
        ],
    }
    stamp = path / STUDY
    try:
        if not is_lost(stamp):
            before = read_object(stamp, shapes.STUDY)
            # a mistake in the first config must not cost the folder: nothing is lost yet
            recorded = any(path.glob("*/trace/round-*"))
            if before.get("runs") != about["runs"] and recorded:
                raise TraceError(
                    f"{path} holds another study",
                    expected="an empty folder, or the same configs",
                    got=_differ(before.get("runs", []), about["runs"]),
                    remedy="choose another folder with --out, or start anew with --fresh",
                )
        elif others := not_ours(path):
            raise TraceError(
                f"{path} is not empty and not a study",
                expected="a new or empty folder",
                got=f"{len(others)} files or folders, such as {others[0].name}",
                remedy="choose another folder with --out",
            )
        path.mkdir(parents=True, exist_ok=True)
        check_and_store(path, [p.config for p in parts], begun=any(path.glob("*/trace/round-*")))
        write_atomically(stamp, json.dumps(about, indent=1) + "\n")
        seal(path, "config", "truth")
        claimed(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"cannot use {path} for a study",
            expected="a folder that can be written, with a study.json that can be read",
            got=str(error),
            remedy="choose another folder with --out",
        ) from None


def _differ(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    old = {str(r.get("path")): r.get("config_sha256") for r in before}
    new = {str(r["path"]): r["config_sha256"] for r in now}
    other = [n for n in {**old, **new} if old.get(n) != new.get(n)]
    return "other settings of " + ", ".join(other[:6])
