"""Evidence of a run directory or of a study: results, guarantees and held-out metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from fedaudit.audits import facts_of
from fedaudit.errors import TraceError, count_of
from fedaudit.protections.declared import class_of, in_force
from fedaudit.reporting.names import Renaming, pseudonyms
from fedaudit.results import AuditResult, Estimate
from fedaudit.stats.intervals import wilson
from fedaudit.study.chapters import purged_on
from fedaudit.study.folders import config_of, entries, is_study, places, runs_at
from fedaudit.study.promised import promised
from fedaudit.study.seal import require_seal
from fedaudit.study.stored import is_about, stored_results
from fedaudit.study.summary import clients_of
from fedaudit.trace import Trace, Truth


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One recorded federation and the stored results of its audits.

    purged: date on which the recording was removed
    unusable: why the evidence does not count (unfinished, purged, absent); else empty
    stale: audits whose result belongs to another state of the trace
    configured: audits that the config requests
    names: client -> the owner's name for it, if the truth holds one
    metrics, held_out: held-out metrics, and the number of records behind them
    guessing: metrics of a guess by class frequency
    about: section `federation` of the manifest
    """

    path: Path
    purged: str = ""
    federation: str = ""
    variant: str = ""
    unusable: str = ""
    trace_sha256: str = ""
    rounds: int = 0
    clients: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, AuditResult] = field(default_factory=dict)
    stale: frozenset[str] = frozenset()
    configured: tuple[str, ...] = ()
    guarantees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    held_out: int = 0
    guessing: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    declared: tuple[Mapping[str, Any], ...] = ()
    data_sha256: str = ""

    @property
    def label(self) -> str:
        """Name of the run within its study; empty for a single run."""
        return ", ".join(part for part in (self.federation, self.variant) if part)

    def renaming(self, names: bool = False) -> Renaming:
        """Clients as "client 3" in the order of the federation, or by their owners' names."""
        if names:
            return Renaming({c: n for c, n in self.names.items() if n != c})
        return Renaming(pseudonyms(self.clients))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the held-out metrics, without their standard errors."""
        return tuple(name for name in self.metrics if not name.endswith("_error"))

    def utility(self, metric: str, confidence: float = 0.95) -> Estimate | None:
        """A held-out metric with its interval; None if it is not stored or has no standard error.

        Accuracy is a share of the held-out records. The interval of a mean such as the loss uses
        its stored standard error. The baseline is the score of a guess by class frequency.
        """
        value, error = self.metrics.get(metric), self.metrics.get(f"{metric}_error")
        if value is None or not math.isfinite(value):
            return None
        chance = self.guessing.get(metric)
        if metric == "accuracy" and self.held_out:
            share = wilson(round(value * self.held_out), self.held_out, confidence)
            return replace(share, baseline=chance)
        if error is None or not math.isfinite(error):
            return None
        wide = NormalDist().inv_cdf(0.5 + confidence / 2) * error
        return Estimate(
            value=value,
            low=value - wide,
            high=value + wide,
            n=self.held_out,
            confidence=confidence,
            baseline=chance,
            method="mean over held-out examples, normal",
        )


def gather_evidence(path: str | os.PathLike[str]) -> list[Evidence]:
    """The evidence of a run, of every run of a study, or of all below a folder, which bear the
    folders' names. RUN/trace means RUN."""
    every = runs_at(path)
    if len(every) > 1:
        return [
            replace(e, federation=" ".join(filter(None, (run.name, e.federation))))
            for run in every
            for e in gather_evidence(run)
        ]
    folder = every[0]
    if not folder.is_dir():
        raise TraceError(
            f"{folder} is not a run",
            expected="a folder written by `fedaudit run`",
            got="no such folder" if not folder.exists() else "a file",
            remedy="`fedaudit.run(CONFIG, out=FOLDER)`",
        )
    if not is_study(folder):
        return [run_evidence(folder)]
    require_seal(folder)
    out = []
    for entry in entries(folder):
        place = entry.path
        try:
            found = run_evidence(place)
        except TraceError as error:
            if place.exists() and not _is_empty(place):
                raise  # damaged or foreign: an error, not missing evidence
            found = Evidence(path=place, unusable=f"the run is missing: {error.what}")
        out.append(replace(found, federation=entry.federation, variant=entry.variant))
    return out


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def run_evidence(folder: Path) -> Evidence:
    """The evidence of one run directory; raises if a file differs from its seal."""
    _refuse_trace(folder)
    require_seal(folder)
    trace_at, truth_at = places(folder)
    config = config_of(folder)
    configured = tuple(config.get("audits", {}))
    if not (trace_at / "manifest.json").is_file():
        on = purged_on(folder)
        if on or (folder / "run.json").is_file():
            return Evidence(
                path=folder,
                purged=on,
                config=config,
                configured=configured,
                unusable=f"its recording was purged on {on}"
                if on
                else "the run is unfinished: no round is recorded yet",
            )
        raise TraceError(
            f"{folder} is not a run",
            expected="a folder with trace/ and results/",
            got="an empty folder" if _is_empty(folder) else "neither",
            remedy="`fedaudit.run(CONFIG, out=FOLDER)`, or `fedaudit.audit(TRACE)`",
        )
    trace = Trace.open(trace_at)
    truth = Truth.open(truth_at) if (truth_at / "truth.json").exists() else None
    results = {r.audit: r for r in stored_results(folder)}
    facts: Mapping[str, Any] = {} if truth is None else truth.facts
    rounds = len(trace.rounds)
    return Evidence(
        path=folder,
        unusable=_unfinished(trace, config),
        trace_sha256=trace.sha256,
        rounds=rounds,
        clients=tuple(clients_of(trace)),
        names={
            client: str(about.get("name") or client)
            for client, about in dict(facts.get("clients", {})).items()
        },
        results=results,
        stale=frozenset(
            name
            for name, r in results.items()
            # an audit that did not start has no hash
            if not is_about(r, trace) and (r.trace_sha256 or r.headline is not None)
        ),
        configured=configured,
        guarantees=promised(folder, trace, truth),
        metrics=truth.metrics(rounds) if truth is not None and rounds else {},
        held_out=int(facts.get("held_out", 0)),
        guessing=dict(facts.get("guessing", {})),
        config=config,
        about=dict(trace.manifest.federation),
        task=dict(trace.manifest.task),
        layout=tuple((e.name, tuple(e.shape)) for e in trace.layout.entries),
        declared=tuple(trace.manifest.declared),
        data_sha256=str(facts.get("data_sha256", "")),
    )


def _unfinished(trace: Trace, config: Mapping[str, Any]) -> str:
    if trace.manifest.complete:
        return ""
    wanted = config.get("federation", {}).get("rounds")
    done = len(trace.rounds)
    many = f"{done} of {wanted} rounds" if wanted else count_of(done, "round")
    return f"the run is unfinished, with {many} recorded"


def _refuse_trace(folder: Path) -> None:
    """Refuse a bare trace: it holds no results."""
    if (folder / "manifest.json").is_file() and not (folder / "trace").is_dir():
        raise TraceError(
            f"{folder} is a trace, not a run",
            expected="a run folder with audit results",
            got="a trace alone",
            remedy=f"run `fedaudit audit {folder}`, then name the folder that it writes",
        )


def removed_question(metric: str, runs: Sequence[Evidence]) -> str:
    """How protections removed an audit's question in every run, in words; empty if they did not.

    This is the only rule by which an audit that is not applicable keeps a limit. The audit declares
    the cases: `Decision.removed_by` (a need's code and a protection that is in force), and
    `Decision.single_updates_only` (see `_no_single_update_left`).
    """
    audit = metric.partition(".")[0]
    found = [_removed(audit, e) for e in runs]
    return found[0] if found and all(found) else ""


def _removed(audit: str, e: Evidence) -> str:
    decision, result = facts_of(audit).decision, e.results.get(audit)
    if e.unusable or result is None or result.need is None:
        return ""
    if decision.single_updates_only and result.need.code == "no_single_updates":
        return NO_SINGLE_UPDATE if _no_single_update_left(e, result) else ""
    fact = decision.removed_by.get(result.need.code, "")
    if result.status == "not_applicable" and fact and fact in in_force(e.declared):
        return f"a protection in force ({fact}) removes the question: {result.need.what}"
    return ""


NO_SINGLE_UPDATE = (
    "no single update is left to look at: none reaches the observer, and the sums do not reveal one"
)


def _no_single_update_left(e: Evidence, result: AuditResult) -> bool:
    """Whether sums do not reveal a single update either, where none reaches the observer.

    Evidence is a result of the same vantage whose audit counts single updates in sums
    (`query_plan`), or a config with protections that let only sums leave and that request none over
    named clients.
    """
    counted = [r for r in e.results.values() if facts_of(r.audit).single_updates_in_sums]
    sums = [r for r in counted if r.vantage == result.vantage and r.audit not in e.stale]
    if not sums:
        return _only_totals(e.config)
    found = [r.estimates.get(facts_of(r.audit).single_updates_in_sums) for r in sums]
    return all(f is not None and f.high <= 0 for f in found)


def _only_totals(config: Mapping[str, Any]) -> bool:
    """Whether only sums leave, and none over named clients is requested."""
    kinds = [class_of({"name": name}) for name in config.get("protections", {})]
    return any(k.only_sums for k in kinds) and not any(k.asks for k in kinds)


def require_results(evidence: Sequence[Evidence]) -> None:
    """Refuse runs that were purged or have no results."""
    for e in evidence:
        if e.purged:
            raise TraceError(
                f"the recording of {e.path} was purged on {e.purged}",
                expected="a run with its recording",
                got="results alone, which can no longer be verified",
                remedy=f"`fedaudit report {e.path}` prints the stored findings",
            )
        if not e.results:
            raise TraceError(
                f"{e.path} has no results yet",
                expected="results/*.json",
                got=e.unusable or "no readable result",
                remedy=f"fedaudit audit {e.path}",
            )
