"""From stored results to findings.json and report.html."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.errors import TraceError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.promised import promised
from fedaudit.report.findings import REMEDY, judge_all
from fedaudit.report.html import page
from fedaudit.results import AuditResult, Finding
from fedaudit.stats.intervals import wilson
from fedaudit.trace import AGGREGATOR, ANONYMOUS, PUBLIC, SERVER, SHUFFLER, Trace, Truth
from fedaudit.trace.store import write_atomically

Progress = Callable[[str, int, int, str], None]
"""(stage, done, total, note): called as work goes on."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: where it is, and what was found.

    With its truth: held-out `metrics` of the last model, and `guarantees`, protection -> client ->
    what was promised.
    """

    path: Path
    results: tuple[AuditResult, ...]
    findings: tuple[Finding, ...]
    summary: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    guarantees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def quietly(stage: str, done: int, total: int, note: str) -> None:
    """The progress of someone who does not look."""


UNNAMED = (ANONYMOUS, AGGREGATOR)
"""Senders that name nobody."""


def summarise(
    trace: Trace, truth: Truth | None, guarantees: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The federation in a few lines; `guarantees` as in `Run`, by default those of the truth."""
    about = trace.manifest.federation
    clients = clients_of(trace)
    how = " on a ".join(
        text
        for text in (
            str(about.get("aggregation", "")),
            f"{about['topology']} topology" if "topology" in about else "",
        )
        if text
    )
    lines = {
        "federation": f"{len(clients)} clients, {len(trace.rounds)} rounds"
        + (f", {how}" if how else ""),
        "model": f"{trace.manifest.task.get('kind', 'of unknown kind')}, "
        f"{trace.layout.width:,} recorded numbers per message",
        "protected by": ", ".join(_named(d) for d in trace.manifest.declared)
        or "nothing that was declared",
    }
    if guarantees is None:
        guarantees = {} if truth is None else truth.facts.get("guarantees", {})
    said = [_promise(name, list(given.values())) for name, given in guarantees.items() if given]
    if said:
        lines["promised"] = "; ".join(said)
    if truth is not None and truth.facts.get("notes"):
        lines["noted"] = "; ".join(str(n) for n in truth.facts["notes"])
    if truth is None:
        lines["truth"] = "none beside the trace: attacks run blind, their guesses are not scored"
    elif len(trace.rounds):
        metrics = truth.metrics(trace.rounds[-1])
        if metrics:
            lines["held out"] = _held_out(metrics, int(truth.facts.get("held_out", 0)))
    if not trace.manifest.complete:
        lines["state"] = "unfinished: what was recorded so far"
    return lines


def _promise(name: str, given: Sequence[Mapping[str, Any]]) -> str:
    """What a protection promises its clients over the whole run."""
    one = given[0]
    spent = [float(g["epsilon"]) for g in given]
    low, high = f"{min(spent):,.4g}", f"{max(spent):,.4g}"
    text = f"{name}: epsilon {low if low == high else f'{low} to {high}'} per {one['unit']}"
    if one.get("delta"):
        text += f" at delta {one['delta']:g}"
    covers = {str(g.get("covers", "")) for g in given}
    return text + (f" ({covers.pop()})" if len(covers) == 1 and covers != {""} else "")


def clients_of(trace: Trace) -> list[str]:
    """Who takes part: as the manifest says, or as the messages show."""
    return list(trace.manifest.federation.get("clients") or _speakers(trace))


def _speakers(trace: Trace) -> list[str]:
    """Who takes part in a trace whose manifest does not say so."""
    others = {*trace.manifest.federation.get("hubs", (SERVER,)), *UNNAMED, PUBLIC, SHUFFLER}
    return [party for party in trace.parties() if party not in others]


def _held_out(metrics: Mapping[str, float], records: int) -> str:
    """Held-out metrics of the last model; an accuracy is a share, and has an interval."""
    parts = []
    for name, value in metrics.items():
        text = f"{name} {value:.3f}"
        if name == "accuracy" and records:
            e = wilson(round(value * records), records)
            text += f" [{e.low:.3f}, {e.high:.3f}] at 95 % (Wilson, n = {records})"
        parts.append(text)
    return ", ".join(parts)


def _named(declared: Mapping[str, Any]) -> str:
    """A declared protection, what it says of itself, and how it came to be there if it was not in
    force."""
    name = str(declared.get("name", "?"))
    if isinstance(declared.get("note"), str):
        name += f" ({declared['note']})"
    applied = declared.get("applied")
    if applied == "exactly":
        return f"{name} (as if: applied to the stored trace)"
    return name if applied is None else f"{name} (as if: {applied})"


def write_report(
    path: Path, trace: Trace, truth: Truth | None, results: Sequence[AuditResult]
) -> Run:
    """Judge the results and write findings.json and report.html."""
    findings = judge_all(results)
    guarantees = promised(path, trace, truth)
    summary = summarise(trace, truth, guarantees)
    evidence = {"trace sha256": trace.sha256, "fedaudit": __version__}
    try:
        path.mkdir(parents=True, exist_ok=True)
        if trace.path.resolve() != (path / "trace").resolve():
            place = os.path.relpath(trace.path, path)
            where = {"trace": place}
            if truth is not None:
                where["truth"] = os.path.relpath(truth.path, path)
            write_atomically(path / "audit.json", json.dumps(where, indent=1) + "\n")
            evidence["again"] = "fedaudit audit TRACE"
        else:
            evidence["again"] = "fedaudit run config.toml --seed SEED --out NEW (seed: truth/)"
        dumped = json.dumps([f.to_dict() for f in findings], indent=1, allow_nan=False) + "\n"
        write_atomically(path / "findings.json", dumped)
        write_atomically(path / "report.html", page(summary, findings, results, evidence))
    except OSError as error:
        raise unwritable(path, error) from None
    return Run(
        path=path,
        results=tuple(results),
        findings=tuple(findings),
        summary=summary,
        metrics=truth.metrics(trace.rounds[-1]) if truth is not None and len(trace.rounds) else {},
        guarantees=guarantees,
    )


def report(path: str | os.PathLike[str]) -> Run:
    """Write the report of a run again from its stored results."""
    folder = Path(path)
    places = _places(folder)
    trace = Trace.open(places["trace"])
    truth = Truth.open(places["truth"]) if (places["truth"] / "truth.json").exists() else None
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
    return write_report(folder, trace, truth, results)


def _places(folder: Path) -> dict[str, Path]:
    """Where the trace and the truth of a report are: inside, or where audit.json says."""
    places = {"trace": folder / "trace", "truth": folder / "truth"}
    try:
        told = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        return places | {k: folder / str(told[k]) for k in places if k in told}
    except (OSError, ValueError, TypeError):
        return places


def stored_results(folder: Path) -> list[AuditResult]:
    """The results of a folder, in the order of the catalogue; a torn one says that it is."""
    results = []
    for name in AUDITS:
        file = folder / "results" / f"{name}.json"
        if not file.exists():
            continue
        try:
            stamped = json.loads(file.read_text(encoding="utf-8"))
            results.append(AuditResult.from_json(json.dumps(stamped["result"])))
        except (OSError, ValueError, KeyError, TypeError):
            audit_class = find(AUDITS, "audit", name)
            results.append(
                AuditResult(
                    audit=name,
                    question=audit_class.question,
                    vantage="unknown",
                    not_applicable=f"its stored result cannot be read{REMEDY}remove "
                    f"results/{name}.json and audit again",
                )
            )
    return results


def unwritable(folder: Path, error: OSError) -> TraceError:
    return TraceError(
        f"cannot write to {folder}",
        expected="a folder that can be written",
        got=error.strerror or str(error),
        remedy="choose another folder with --out",
    )


def is_about(result: AuditResult, trace: Trace) -> bool:
    return result.trace_sha256 == trace.sha256
