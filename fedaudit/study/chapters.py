"""Write a report from stored results: report.html, report.md, results.json and findings.json.

A chapter is one recorded federation; a study shows several on one page. findings.json and results/
are private logs and keep the names of the trace. Everywhere else clients have pseudonyms unless the
user asks for names.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedaudit import __version__, shapes
from fedaudit.audits import facts_of
from fedaudit.codec import to_json
from fedaudit.data.shortage import Shortage
from fedaudit.errors import TraceError, UsageError
from fedaudit.files import Unreadable, read_object, write_atomically, writing
from fedaudit.frames import Row, SvgFigure, Table, Tabular
from fedaudit.protections.declared import in_force, trusted_of
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.first_page import shown_place
from fedaudit.reporting.inline import inline_figures
from fedaudit.reporting.machine import machine
from fedaudit.reporting.markdown import markdown
from fedaudit.reporting.names import renamed
from fedaudit.reporting.owner import owner_extract
from fedaudit.reporting.page import page
from fedaudit.results import AuditResult, Estimate, Finding
from fedaudit.setup.catalogue import AUDITS
from fedaudit.study.cards import card
from fedaudit.study.folders import (
    AUDITED,
    OWNER_FILE,
    AuditCommand,
    commands,
    config_text,
    places,
)
from fedaudit.study.promised import promised
from fedaudit.study.seal import REMAINS, gone, require_seal
from fedaudit.study.stored import asked_with_records, is_about, result_sha256, stored_results
from fedaudit.study.summary import (
    clients_of,
    listed,
    not_rerun,
    summarise,
    table_of,
    utility_of,
)
from fedaudit.trace import Trace, Truth
from fedaudit.trace.examination import examine


@dataclass(frozen=True, kw_only=True)
class Run(Tabular):
    """A finished run: where it is, and what was found.

    With its truth: held-out `metrics` of the last model, and `guarantees`, protection -> client ->
    what was promised. `chapter` is what its report shows. Tables and figures call clients by the
    names that the report uses. A run stands for its folder wherever a path is asked for.
    """

    path: Path
    results: tuple[AuditResult, ...]
    findings: tuple[Finding, ...]
    summary: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    guarantees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chapter: Chapter | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def rows(self) -> Sequence[Row]:
        """One row per finding."""
        return self.chapter.rows() if self.chapter else [r for f in self.findings for r in f.rows()]

    @property
    def estimates(self) -> Table:
        """Every estimate of every audit, one row each."""
        if self.chapter is None:
            return Table(tuple(row for result in self.results for row in result.rows()))
        return Table(tuple(self.chapter.estimates()))

    @property
    def figures(self) -> tuple[SvgFigure, ...]:
        """The figures of the report."""
        return inline_figures([self.chapter] if self.chapter else [])

    @property
    def report(self) -> Path:
        """The page of this run."""
        return self.path / "report.html"


@dataclass(frozen=True)
class OpenedRun:
    """A recorded run or an audited trace: opened and compared with its hashes once.

    `results` are the stored ones, none for a run that was stopped in training.
    """

    path: Path
    trace: Trace
    truth: Truth | None
    results: tuple[AuditResult, ...] = ()


ALLOCATION = "allocation.json"

# -- chapters -------------------------------------------------------------------------------------


def chapter_of(
    path: Path,
    trace: Trace,
    truth: Truth | None,
    results: Sequence[AuditResult],
    *,
    federation: str | None = None,
    variant: str = "",
) -> Chapter:
    """The chapter of one run or audited trace, with the names of the trace."""
    guarantees = promised(path, trace, truth)
    known = {} if truth is None else truth.facts.get("clients", {})
    config = config_text(path)
    given = asked_with_records(path)
    health = examine(trace, payloads=False)
    return Chapter(
        federation=federation or _name(path, trace, config),
        variant=variant,
        summary=summarise(
            trace,
            truth,
            guarantees,
            config,
            members_given=any(r.estimates and r.audit in given for r in results),
        ),
        findings=[
            replace(f, variant=variant)
            for f in judge_all(results, in_force(trace.manifest.declared))
        ],
        results=tuple(results),
        guarantees=guarantees,
        evidence=_evidence(path, trace, truth),
        config=_without_folders(config),
        clients=tuple(clients_of(trace)),
        notices=_notices(trace, truth, results, config, given),
        data_notes=_short_of_records(truth),
        trust={
            str(d.get("name", "?")): trusted_of(d, clients=len(clients_of(trace)))
            for d in trace.manifest.declared
        },
        cards={r.audit: card(r.audit) for r in results if r.audit in AUDITS},
        names={
            party: str(about["name"])
            for party, about in known.items()
            if isinstance(about, Mapping) and about.get("name")
        }
        | {alias: name for name, alias in _absent(truth).items()},
        allocation=_allocation(path / ALLOCATION),
        arrived=health.arrived,
        expected=health.expected,
        utility=utility_of(trace, truth),
        folder=".",
    )


def _allocation(file: Path) -> dict[str, Any] | None:
    """The stored estimate of what noise per client would change; None without one."""
    try:
        return read_object(file, shapes.ALLOCATION)
    except Unreadable as error:
        if error.absent:
            return None
        raise


def chapter_at(
    path: str | os.PathLike[str], *, federation: str | None = None, variant: str = ""
) -> Chapter:
    """The chapter of a stored run or audited trace."""
    folder = Path(path)
    if purged_on(folder):
        return purged_chapter(folder, federation=federation, variant=variant)
    return opened_chapter(open_audited(folder), federation=federation, variant=variant)


def opened_chapter(
    opened: OpenedRun, *, federation: str | None = None, variant: str = ""
) -> Chapter:
    """The chapter of an opened run."""
    return chapter_of(
        opened.path,
        opened.trace,
        opened.truth,
        opened.results,
        federation=federation,
        variant=variant,
    )


def purged_on(folder: Path) -> str:
    """The day on which the recording of a run was purged; empty if it was not."""
    there = (places(folder)[0] / "manifest.json").exists()
    return "" if there else str(gone(folder).get("trace", {}).get("on", ""))


def remains_of(folder: Path) -> dict[str, Any]:
    """The facts about a recording that its report needs once the recording is purged."""
    c = chapter_at(folder)
    return {
        "federation": c.federation,
        "summary": dict(c.summary),
        "guarantees": {k: dict(v) for k, v in c.guarantees.items()},
        "evidence": dict(c.evidence),
        "clients": list(c.clients),
        "notices": list(c.notices),
        "trust": dict(c.trust),
        "arrived": c.arrived,
        "expected": c.expected,
        "data_notes": list(c.data_notes),
        "utility": {name: asdict(e) for name, e in c.utility.items()},
    }


def purged_chapter(folder: Path, *, federation: str | None = None, variant: str = "") -> Chapter:
    """The chapter of a run whose recording was purged: stored findings, and a notice."""
    require_seal(folder)
    file = folder / REMAINS
    kept = read_object(file, shapes.REMAINS) if file.is_file() else {}
    results = tuple(stored_results(folder))
    if not results:
        raise TraceError(
            f"the recording of {folder} was purged on {purged_on(folder)}, and no result is stored",
            expected="results/*.json",
            got="none",
            remedy="run it again: `fedaudit.run(CONFIG, fresh=True)`",
        )
    mark = (
        f"Purged: the recording was removed on {purged_on(folder)}. This report shows the earlier "
        "findings; the run cannot be audited again."
    )
    trust = dict(kept.get("trust", {}))
    found = judge_all(results, in_force({"name": name} for name in trust) if kept else None)
    return Chapter(
        federation=federation or str(kept.get("federation", folder.resolve().name)),
        variant=variant,
        summary={**kept.get("summary", {}), "state": f"purged on {purged_on(folder)}"},
        findings=[replace(f, variant=variant) for f in found],
        results=results,
        guarantees=kept.get("guarantees", {}),
        evidence=kept.get("evidence", {}),
        config=_without_folders(config_text(folder)),
        clients=tuple(kept.get("clients", ())),
        notices=[mark, *kept.get("notices", ())],
        trust=trust,
        cards={r.audit: card(r.audit) for r in results if r.audit in AUDITS},
        allocation=_allocation(folder / ALLOCATION),
        arrived=kept.get("arrived"),
        expected=kept.get("expected"),
        utility={name: Estimate(**e) for name, e in kept.get("utility", {}).items()},
        data_notes=kept.get("data_notes", ()),
        folder=".",
    )


def _name(path: Path, trace: Trace, config: str) -> str:
    """Default name of a federation: that of its data, or of its folder."""
    data = table_of(config, "data")
    if data.get("name"):
        return str(data["name"])
    if data.get("path"):
        return Path(str(data["path"])).stem
    folder = trace.path.resolve()
    return folder.name if folder.name != "trace" else path.resolve().name


def _without_folders(config: str) -> str:
    """The config with file names instead of full paths: reports do not show local folders."""
    return re.sub(r'^(\s*path = ")[^"\n]*[/\\]([^"/\\\n]+")', r"\1\2", config, flags=re.MULTILINE)


def _notices(
    trace: Trace,
    truth: Truth | None,
    results: Sequence[AuditResult],
    config: str,
    given: Collection[str],
) -> list[str]:
    """Notices at the top of a report.

    `given`: audits of records that the user handed over, which are scored without a truth.
    """
    # payloads were read when the trace was audited: results list torn ones
    torn = dict.fromkeys([*examine(trace, payloads=False).summary(), *_recorded(results)])
    out = [f"Recording: {line}." for line in torn]
    if torn:
        out[-1] += " See fedaudit verify."
    if not trace.manifest.complete:
        planned = table_of(config, "federation").get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        out.append(
            f"Unfinished: {len(trace.rounds)}{of} rounds are recorded so far. All results below "
            "are from these rounds."
        )
    done = {r.audit for r in results}
    missing = [name for name in table_of(config, "audits") if name not in done]
    if missing:
        out.append(f"Unfinished: no result yet of {', '.join(missing)}.")
    out += [f"Failed: {r.audit}: {r.need}" for r in results if r.status == "failed"]
    if truth is not None:
        return out
    results = [r for r in results if not r.known]  # facts known without an attack need no truth
    scored = [r for r in results if r.estimates and facts_of(r.audit).needs_truth]
    if any(r.audit not in given for r in scored):
        out.append("The truth has been removed since: the report shows the stored scores.")
    else:
        # a blind attack used the records, too: it guessed, and nothing can score it
        tried = [r for r in results if r.audit in given and r.status != "blind"]
        lost = [r.audit for r in tried if r.headline is None]
        out.append(_blind(results, [r.audit for r in scored], lost))
    return out


def _recorded(results: Sequence[AuditResult]) -> list[str]:
    return [line for r in results for line in r.recording]


def _shortage(truth: Truth | None) -> Shortage:
    stored = None if truth is None else truth.facts.get("shortage")
    return Shortage() if stored is None else Shortage.from_plain(stored)


def _short_of_records(truth: Truth | None) -> list[str]:
    """Clients that lost records or have few, by their names in the trace."""
    parties = {} if truth is None else truth.clients
    alias = {str(about.get("name")): party for party, about in parties.items()} | _absent(truth)
    return [f"{line}." for line in _shortage(truth).lines(lambda c: alias.get(c, c))]


def _absent(truth: Truth | None) -> dict[str, str]:
    """Clients of the data that are not in the trace -> their names in a report."""
    found = _shortage(truth)
    names = [*found.lost, *found.left_out]
    return {name: f"absent-{i}" for i, name in enumerate(names, 1)}


def _blind(
    results: Sequence[AuditResult], by_records: Collection[str] = (), lost: Collection[str] = ()
) -> str:
    """Notice for a trace without truth: attacks scored against given records (`by_records`), those
    that could not run on them (`lost`), those that only guessed, and those that did not run."""
    with_records = {*by_records, *lost}
    attacks = [r for r in results if facts_of(r.audit).needs_truth and r.audit not in with_records]
    guessed = [r.audit.replace("_", " ") for r in attacks if _guessed(r)]
    others = [r.audit.replace("_", " ") for r in attacks if not _guessed(r)]
    said = "Blind: the trace comes without truth, so no attack can be scored."
    if by_records:
        names = listed([name.replace("_", " ") for name in by_records])
        was = "was" if len(by_records) == 1 else "were"
        said = (
            f"The trace comes without truth: {names} {was} scored against the given records "
            "(`data`), which name their clients; no other attack can be scored."
        )
    elif lost:
        names = listed([name.replace("_", " ") for name in lost])
        said = (
            f"Records were given (`data`), but {names} did not run on them: see the reason there. "
            "The trace comes without truth, so no other attack can be scored."
        )
    if guessed:
        said += f" The guesses of {listed(guessed)} are shown below; they may be right."
    if others:
        said += f" {listed(others)} did not run: see there what each needs."
    return said


def _guessed(r: AuditResult) -> bool:
    return r.status == "blind"


LIBRARIES = ("numpy", "torch", "scipy", "scikit-learn", "dp-accounting")


def _evidence(path: Path, trace: Trace, truth: Truth | None) -> dict[str, str]:
    """Hashes, versions, and the commands that repeat the audit."""
    out = {"trace sha256": trace.sha256}
    if (path / "run.json").exists():  # a foreign trace has no config
        out["config sha256"] = read_object(path / "run.json", shapes.RUN)["config_sha256"]
    for name in AUDITS:
        file = path / "results" / f"{name}.json"
        if file.is_file():
            out[f"result of {name}, sha256"] = result_sha256(file)
    out["fedaudit"] = __version__
    if truth is not None and truth.facts.get("torch"):
        out["recorded with"] = f"torch {truth.facts['torch']}"
    out["reported with"] = ", ".join([f"Python {platform.python_version()}", *_versions()])
    out["again"] = _again(path, trace)
    return out


RUN_AGAIN = "fedaudit run truth/config.toml --out NEW (it holds seed and keys)"


def _again(path: Path, trace: Trace) -> str:
    """The commands that produced a report: the run, if there was one, and audits."""
    done = list(dict.fromkeys(c.command for c in commands(path)))
    ran = (path / "run.json").is_file() and trace.path.resolve() == (path / "trace").resolve()
    if ran:
        # rerunning the run repeats its own audits
        return "; then ".join([RUN_AGAIN, *(c for c in done if c != "fedaudit audit RUN")])
    if not done:  # written before commands were stored: reconstruct from the manifest
        applied = [str(d.get("name")) for d in trace.manifest.declared if "applied" in d]
        done = [" ".join(["fedaudit audit TRACE", *(f"--as {name}" for name in applied)])]
    return "; then ".join(done)


def _versions() -> list[str]:
    out = []
    for name in LIBRARIES:
        try:
            out.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return out


# -- files ----------------------------------------------------------------------------------------


def write_report(
    path: Path,
    trace: Trace,
    truth: Truth | None,
    results: Sequence[AuditResult],
    *,
    names: bool = False,
    done_by: Sequence[AuditCommand] | None = None,
) -> Run:
    """Judge the results; write findings.json and the report in all formats.

    `done_by`: the commands that produced the results; None keeps the stored ones.
    """
    done = commands(path) if done_by is None else done_by
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {}
        if trace.path.resolve() != (path / "trace").resolve():
            about["trace"] = os.path.relpath(trace.path, path)
            if truth is not None:
                about["truth"] = os.path.relpath(truth.path, path)
        if done:
            about["done_by"] = [asdict(c) for c in done]
        if about or (path / AUDITED).exists():
            write_atomically(path / AUDITED, to_json(about) + "\n")
    chapter = chapter_of(path, trace, truth, results)
    with writing(path):
        found = [f.to_dict() for f in chapter.findings]
        dumped = to_json(found) + "\n"
        write_atomically(path / "findings.json", dumped)
    (shown,) = write_study(path, [chapter], names=names)
    return Run(
        path=path,
        results=tuple(results),
        findings=tuple(chapter.findings),
        summary=chapter.summary,
        metrics=truth.metrics(trace.rounds[-1])
        if truth is not None and len(trace.rounds) and not not_rerun(trace)
        else {},
        guarantees=chapter.guarantees,
        chapter=shown,
    )


def write_study(
    path: str | os.PathLike[str],
    chapters: Sequence[Chapter],
    *,
    names: bool = False,
    notices: Sequence[str] = (),
) -> list[Chapter]:
    """Write report.html, report.md and results.json of one or several chapters.

    `notices` concern all of them: what is missing from the report, and why. Clients get pseudonyms
    unless `names`. Returns the chapters as shown.
    """
    if not chapters:
        raise UsageError(
            "there is nothing to report",
            expected="at least one audited run",
            got="none",
            remedy="fedaudit run, then fedaudit report RUN",
        )
    folder, shown = Path(path), [renamed(c, names) for c in chapters]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "results.json", machine(shown, notices))
        extract = owner_extract(shown)
        if extract is not None:
            write_atomically(folder / OWNER_FILE, extract)
        place = shown_place(folder)
        write_atomically(folder / "report.md", markdown(shown, notices, place))
        write_atomically(folder / "report.html", page(shown, notices=notices, place=place))
    return shown


def report(path: str | os.PathLike[str], *, names: bool = False) -> Run:
    """Write the report of a run again from its stored results.

    A run that was stopped in training is reported as far as it went.
    """
    folder = Path(path)
    if purged_on(folder):
        return report_purged(folder, names=names)
    return report_opened(open_run(folder), names=names)


def report_opened(opened: OpenedRun, *, names: bool = False) -> Run:
    """Write the report of an opened run."""
    return write_report(opened.path, opened.trace, opened.truth, opened.results, names=names)


def report_purged(folder: Path, *, names: bool = False) -> Run:
    """Write the report of a run whose recording was purged."""
    chapter = purged_chapter(folder)
    (shown,) = write_study(folder, [chapter], names=names)
    return Run(
        path=folder,
        results=tuple(chapter.results),
        findings=tuple(chapter.findings),
        summary=chapter.summary,
        guarantees=chapter.guarantees,
        chapter=shown,
    )


def open_run(folder: Path) -> OpenedRun:
    """Open a run or audited trace. One that was stopped in training has no results; any other is
    refused if nothing was recorded or audited."""
    recorded = (places(folder)[0] / "manifest.json").is_file()
    if not recorded or any((folder / "results").glob("*.json")):
        return open_audited(folder)
    opened = _open(folder)
    if opened.trace.manifest.complete or not len(opened.trace.rounds):
        return open_audited(folder, opened)
    return opened


def open_audited(folder: Path, before: OpenedRun | None = None) -> OpenedRun:
    """Open a folder with its results; refused if nothing was recorded or audited.

    `before` has its trace and truth, if they are open: files touched since are compared again.
    """
    require_seal(folder)
    opened = _open(folder) if before is None else before
    if before is not None:
        before.trace.verify(touched=True)
        if before.truth is not None:
            before.truth.verify_touched()
    trace = opened.trace
    if not len(trace.rounds):
        raise TraceError(
            f"{folder} is empty: nothing has been recorded yet",
            expected="at least one recorded round",
            got="none",
            remedy=f"`fedaudit.run(CONFIG, out={str(folder)!r})`",
        )
    results = []
    for result in stored_results(folder):
        if not is_about(result, trace):
            note = "these results belong to another state of the trace: audit again"
            result = replace(result, notes=(*result.notes, note))
        results.append(result)
    if not results:
        raise TraceError(
            f"{folder} has no results yet",
            expected="results/*.json",
            got="none that can be read",
            remedy=f"fedaudit audit {folder}",
        )
    return replace(opened, results=tuple(results))


def _open(folder: Path) -> OpenedRun:
    recorded, known = places(folder)
    trace = Trace.open(recorded)
    truth = Truth.open(known) if (known / "truth.json").exists() else None
    return OpenedRun(folder, trace, truth)
