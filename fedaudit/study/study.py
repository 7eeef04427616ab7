"""Several federations, each in several variants, with one report.

    DIR/study.json               federation, variant and path of every run
    DIR/digits-unprotected/      an ordinary run directory (see run.py)
    DIR/digits-dp-sgd/           the same federation, protected
    DIR/report.html, report.md, results.json

A study is a config with a `[compare]` section, several configs, or the built-in default.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedaudit import __version__, shapes
from fedaudit.codec import to_json
from fedaudit.errors import ConfigError, FedauditError, TraceError, count_of
from fedaudit.files import is_lost, parse_toml, read_object, write_atomically
from fedaudit.frames import Row, SvgFigure, Table, Tabular
from fedaudit.progress import Progress, no_progress
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.inline import inline_figures
from fedaudit.results import AuditResult, Finding
from fedaudit.setup import seeds
from fedaudit.setup.config import DEFAULT, Config, load_variants
from fedaudit.setup.identity import check_and_store
from fedaudit.setup.prepare import Prepared
from fedaudit.setup.toml import read
from fedaudit.study.chapters import (
    Run,
    open_audited,
    open_run,
    opened_chapter,
    purged_chapter,
    purged_on,
    report_opened,
    report_purged,
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
    is_study,
    not_ours,
    run_at,
)
from fedaudit.study.forecast import Forecast, estimate_cost
from fedaudit.study.lock import alone_in
from fedaudit.study.reuse import Explain, Reuse, no_explain
from fedaudit.study.run import Engine, run_opened
from fedaudit.study.seal import require_seal, seal

BUILT_IN = ("digits", "docs")

Explained = Callable[[str, Reuse], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run of a study: its federation, its variant, its folder, and what is prepared of it."""

    federation: str
    variant: str
    folder: str
    prepared: Prepared

    @property
    def config(self) -> Config:
        return self.prepared.config

    @property
    def title(self) -> str:
        return f"{self.federation}, {self.variant}" if self.variant else self.federation


@dataclass(frozen=True, kw_only=True)
class Study(Tabular):
    """What `fedaudit.run` and `fedaudit.report` return: the runs in order, and what was found.

    `failed` maps the title of a run that failed to its error. `unfinished` has one line per part
    that the report lacks. Tables and figures call clients by the names that the report uses. A
    study stands for its folder wherever a path is asked for.
    """

    path: Path
    runs: tuple[Run, ...]
    chapters: tuple[Chapter, ...]
    failed: Mapping[str, FedauditError] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs, in order; each of `runs` has its own."""
        return tuple(finding for one in self.runs for finding in one.findings)

    @property
    def results(self) -> tuple[AuditResult, ...]:
        """The results of all runs, in order."""
        return tuple(result for one in self.runs for result in one.results)

    @property
    def report(self) -> Path:
        """The page over all runs."""
        return self.path / "report.html"

    def rows(self) -> Sequence[Row]:
        """One row per finding."""
        return [row for chapter in self.chapters for row in chapter.rows()]

    @property
    def estimates(self) -> Table:
        """Every estimate of every audit, one row each."""
        return Table(tuple(row for chapter in self.chapters for row in chapter.estimates()))

    @property
    def figures(self) -> tuple[SvgFigure, ...]:
        """The figures of the report."""
        return inline_figures(self.chapters)


Source = str | os.PathLike[str] | Mapping[str, Any]


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
    """Train a federation, record what crosses the wire, audit the recording, write a report.

    Repeating the same call continues where an earlier one stopped.

    Parameters
        config: a TOML file or a mapping with the same sections, or a list of several. Every variant
            under `[compare]` is run. Without one: the built-in study.
        out: the folder for recordings, results and the report.
        overrides: single settings, such as "federation.rounds=5". Without a config they change a
            small federation on the digits data.
        seed: the seed of all random draws. By default one is drawn and stored with the private
            files.
        thorough: also apply the settings in the config's `[thorough]` section.
        progress: called as progress(stage, done, total, note).
        names: show clients' own names in the report instead of pseudonyms.
        explain: called with the title of a run and which stored work it reused, and why.
        fresh: delete what an earlier call left in `out`. Otherwise its settings, data and code must
            be the same.

    A run that fails gives a warning and an entry in `failed`; the others continue.
    """
    sources = [] if config is None else config
    if isinstance(sources, str | os.PathLike | Mapping):
        sources = [sources]
    parts = plan(list(sources), overrides=overrides, seed=seed, thorough=thorough)
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
    """The runs that configs ask for. Without a config: the built-in default, or with `overrides` a
    plain federation on digits."""
    if not configs and overrides:
        configs = [parse_toml(DEFAULT)]
    given = [Path(c) if isinstance(c, os.PathLike) else c for c in configs]
    sources: list[tuple[str, str | Path | Mapping[str, Any]]]
    sources = [(_name_of(c), c) for c in given] or [(n, built_in(n)) for n in BUILT_IN]
    parts: list[Part] = []
    for name, source in sources:
        variants = load_variants(source, overrides=overrides, seed=seed, thorough=thorough)
        prepared = _prepared(list(variants.values()))
        parts += [
            Part(
                federation=name,
                variant=variant,
                folder=_slug(f"{name}-{variant}" if variant else name),
                prepared=made,
            )
            for variant, made in zip(variants, prepared, strict=True)
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


def _prepared(variants: Sequence[Config]) -> list[Prepared]:
    """The variants of one federation, which share its data."""
    first = Prepared(variants[0])
    return [first, *(Prepared(config, beside=first) for config in variants[1:])]


def with_stored_seeds(parts: Sequence[Part], out: str | os.PathLike[str]) -> tuple[Part, ...]:
    """The same parts; where no seed was given, with the seed that runs in `out` began with. All
    variants of a federation share one seed, also those that have not begun."""
    found: dict[str, tuple[int, bool]] = {}
    for part in parts:
        folder = Path(out) if len(parts) == 1 else Path(out) / part.folder
        if part.config.drawn and part.federation not in found:
            found |= {part.federation: kept} if (kept := seeds.stored(folder)) else {}
    out_of: dict[str, Prepared] = {}
    seeded = []
    for part in parts:
        if part.config.drawn and (kept := found.get(part.federation)):
            config = part.config.with_seed(kept[0], drawn=kept[1])
            made = Prepared(config, beside=out_of.get(part.federation))
            out_of.setdefault(part.federation, made)
            part = replace(part, prepared=made)
        seeded.append(part)
    return tuple(seeded)


def built_in(name: str) -> Mapping[str, Any]:
    """A config of the built-in study."""
    return parse_toml(built_in_text(name))


def built_in_text(name: str) -> str:
    return (resources.files("fedaudit.study") / "builtin" / f"{name}.toml").read_text("utf-8")


def _name_of(source: str | Path | Mapping[str, Any]) -> str:
    if isinstance(source, str | Path):
        name = Path(source).stem
        if name != "fedaudit":
            return name
        source = read(Path(source))  # the usual name says nothing: take that of its data
    data = source.get("data")
    if not isinstance(data, Mapping):
        return "federation"
    return str(data.get("name") or Path(str(data.get("path", "federation"))).stem)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


def estimate_costs(parts: Sequence[Part]) -> dict[str, Forecast]:
    """The estimated cost of every part, by folder."""
    return {part.folder: estimate_cost(part.prepared) for part in parts}


def describe(parts: Sequence[Part], ahead: Mapping[str, Forecast]) -> list[str]:
    """Lines on what will be done, what cannot be done, and about how long it takes."""
    lines = []
    for part in parts:
        f = ahead[part.folder]
        does = ", ".join(s.name for s in f.stages[1:] if not s.cannot)
        lines.append(
            f"{part.title}: {count_of(f.clients, 'client')}, {count_of(f.records, 'record')}, "
            f"{f.width:,} numbers per update; {does} (about {_time(f.seconds)})"
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

    One part without variants gives an ordinary run directory; several give a folder of them. A part
    that fails does not stop the others, and the report says so. Every part writes its own report;
    the report over all is written once, at the end or when the study is interrupted. After a kill,
    `report` writes it from what is stored. `forecasts` weighs progress.
    One process at a time works in `out`: a second one is refused. `fresh` removes what an earlier
    study left in `out`; otherwise every part must be about the same settings, data and code.
    """
    with alone_in(Path(out)):
        if fresh or (Path(out) / FRESH_MARK).exists():
            clear(Path(out))
        parts = with_stored_seeds(parts, out)
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
        one, _ = run_opened(
            part.prepared,
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
    finished: dict[str, Chapter] = {}
    try:
        for part in parts:
            before = sum(weights[p.folder] for p in parts[: parts.index(part)])
            ahead = forecasts[part.folder] if forecasts else None
            try:
                runs[part.folder], opened = run_opened(
                    part.prepared,
                    path / part.folder,
                    progress=_shared(progress, part, ahead, before, sum(weights.values())),
                    engine=engine,
                    names=names,
                    explain=_under(explain, part.title),
                )
            except FedauditError as error:
                failed[part.title] = error
            else:
                audited = open_audited(path / part.folder, opened)
                chapter = opened_chapter(audited, federation=part.federation, variant=part.variant)
                finished[part.folder] = replace(chapter, folder=part.folder)
    finally:  # an interrupted study reports what it has
        chapters = _write(path, parts, finished, failed, names)
    if not runs:
        raise next(iter(failed.values()))
    return Study(path=path, runs=tuple(runs.values()), chapters=chapters, failed=failed)


def _under(explain: Explained | None, title: str) -> Explain:
    return no_explain if explain is None else functools.partial(explain, title)


def _shared(
    progress: Progress, part: Part, ahead: Forecast | None, before: float, total: float
) -> Progress:
    """A callback for one part that also reports the whole study, in planned seconds."""

    def report_progress(stage: str, done: int, of: int, note: str) -> None:
        if ahead is not None:
            share = ahead.share(stage, done, of) * ahead.seconds
            done_by_now = before + share
            left = _time(max(total - done_by_now, 0.0))
            whole = f"seconds planned, about {left} left: {part.title}"
            progress("all", round(done_by_now), round(total), whole)
        progress(stage, done, of, f"{part.title}: {note}" if note else part.title)

    return report_progress


def _write(
    path: Path,
    parts: Sequence[Part],
    finished: Mapping[str, Chapter],
    failed: Mapping[str, FedauditError],
    names: bool,
) -> tuple[Chapter, ...]:
    """Write the report of the finished parts, with notices on the others."""
    chapters = [finished[p.folder] for p in parts if p.folder in finished]
    if not chapters:
        return ()
    waiting = [p.title for p in parts if p.folder not in finished and p.title not in failed]
    notices = _left_out(failed)
    if waiting:
        notices.append(f"Unfinished: not run yet: {'; '.join(waiting)}.")
    return tuple(write_study(path, chapters, names=names, notices=notices))


def _left_out(failed: Mapping[str, FedauditError]) -> list[str]:
    return [f"Not in this report: {title}: {error.what}" for title, error in failed.items()]


def report(path: str | os.PathLike[str], *, names: bool = False) -> Study:
    """Write the report of a run or study again, from what is stored. RUN/trace means RUN.

    `names` writes clients' own names into it. `unfinished` names the parts that the report lacks.
    A part that was stopped in training is reported as far as it went.
    """
    place = run_at(path, "report")
    if is_study(place):
        return _report_study(place, names)
    one = report_one(place, names=names)
    return Study(path=one.path, runs=(one,), chapters=(one.chapter,) if one.chapter else ())


def _report_study(folder: Path, names: bool) -> Study:
    require_seal(folder)
    runs, chapters, failed, waiting = [], [], {}, []
    for entry in entries(folder):
        title = f"{entry.federation}, {entry.variant}" if entry.variant else entry.federation
        if is_waiting(entry.path):
            waiting.append(title)
            continue
        try:
            one, chapter = _report_listed(entry, names)
        except FedauditError as error:
            failed[title] = error
        else:
            runs.append(one)
            chapters.append(replace(chapter, folder=os.path.relpath(entry.path, folder)))
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


def _report_listed(entry: ListedRun, names: bool) -> tuple[Run, Chapter]:
    """Write the report of one run of a study; with its chapter for the report over all."""
    named = {"federation": entry.federation, "variant": entry.variant}
    if purged_on(entry.path):
        return report_purged(entry.path, names=names), purged_chapter(entry.path, **named)
    opened = open_run(entry.path)
    return report_opened(opened, names=names), opened_chapter(opened, **named)


def report_one(path: str | os.PathLike[str], *, names: bool = False) -> Run:
    """Write the report of one run again. A run that was stopped in training is reported as far as
    it went."""
    folder = Path(path)
    if not folder.is_dir():
        raise TraceError(
            f"there is no run {folder}",
            expected="a folder that `fedaudit run` or `fedaudit audit` wrote",
            got="a file" if folder.exists() else "no such folder",
            remedy=f"`fedaudit.run(CONFIG, out={str(folder)!r})`",
        )
    if is_waiting(folder) and (folder / "run.json").is_file():
        raise _nothing_yet(folder)
    return report_run(folder, names=names)


def is_waiting(folder: Path) -> bool:
    """Whether a run has recorded nothing yet: no folder, or one with only a config."""
    if not folder.exists():
        return True
    if purged_on(folder):
        return False
    begun = (folder / "run.json").is_file() or not any(folder.iterdir())
    return begun and not any((folder / "trace").glob("round-*"))


def _nothing_yet(folder: Path) -> TraceError:
    return TraceError(
        f"{folder} has recorded nothing yet",
        expected="at least one recorded round",
        got="none",
        remedy=f"resume it: `fedaudit.run(CONFIG, out={str(folder)!r})`",
    )


def _claim(path: Path, parts: Sequence[Part]) -> None:
    """Make the folder, or check that it belongs to the same study."""
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
            # before the first round nothing is lost: a corrected config may reuse the folder
            recorded = any(path.glob("*/trace/round-*"))
            if before.get("runs") != about["runs"] and recorded:
                raise TraceError(
                    f"{path} holds another study",
                    expected="an empty folder, or the same configs",
                    got=_differ(before.get("runs", []), about["runs"]),
                    remedy="choose another folder with `out`, or start anew with `fresh=True`",
                )
        elif others := not_ours(path):
            raise TraceError(
                f"{path} is not empty and not a study",
                expected="a new or empty folder",
                got=f"{len(others)} files or folders, such as {others[0].name}",
                remedy="choose another folder with `out`",
            )
        path.mkdir(parents=True, exist_ok=True)
        check_and_store(path, [p.config for p in parts], begun=any(path.glob("*/trace/round-*")))
        write_atomically(stamp, to_json(about) + "\n")
        seal(path, "config", "truth")
        claimed(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"cannot use {path} for a study",
            expected="a folder that can be written, with a study.json that can be read",
            got=str(error),
            remedy="choose another folder with `out`",
        ) from None


def _differ(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    old = {str(r.get("path")): r.get("config_sha256") for r in before}
    new = {str(r["path"]): r["config_sha256"] for r in now}
    other = [n for n in {**old, **new} if old.get(n) != new.get(n)]
    return "other settings of " + ", ".join(other[:6])
