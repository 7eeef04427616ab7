"""One config in, a run directory out.

    DIR/config.toml     what was asked for, without the seed
    DIR/trace/          what crossed the wire
    DIR/truth/          what did not, and the seed
    DIR/checkpoint/     what resuming needs: private
    DIR/results/*.json  one log per audit
    DIR/findings.json, DIR/report.html

Each stage reads the files of the one before, so any stage can be repeated alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit import __version__
from fedaudit.errors import DataError, NotApplicable, NotObservable, TraceError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.config import Config, check, load
from fedaudit.randomness import Seed
from fedaudit.report.findings import judge_all
from fedaudit.report.html import page
from fedaudit.results import AuditResult, Finding
from fedaudit.trace import Trace, Truth
from fedaudit.trace.store import write_atomically

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset
    from fedaudit.federation.engine import Federation

Progress = Callable[[str, int, int, str], None]
"""(stage, done, total, note): called as work goes on."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: where it is, and what was found."""

    path: Path
    results: tuple[AuditResult, ...]
    findings: tuple[Finding, ...]
    summary: Mapping[str, str]


def _quiet(stage: str, done: int, total: int, note: str) -> None:
    """The progress of someone who does not look."""


# -- building -------------------------------------------------------------------------------------


def load_data(config: Config, seed: Seed) -> tuple[Dataset, Dataset]:
    """Training and held-out records of a config."""
    from fedaudit.data import builtin, files, prepare

    given = dict(config.data)
    fraction = given.pop("test_fraction", None)
    standardise = given.pop("standardise", None)
    if "path" in given:
        dataset = files.read(given.pop("path"), **given)
    else:
        dataset = builtin.load(given.pop("name"), seed=seed, **given)
    if fraction is None and dataset.test is None:
        fraction = 0.2
    train, test = prepare.split(dataset, test_fraction=fraction, seed=seed)
    if standardise or (standardise is None and prepare.is_table(dataset)):
        train, test = prepare.standardise(train, test)
    return train, test


def client_count(config: Config, train: Dataset) -> int:
    """Clients as asked for; by default one per owner, or twenty."""
    if config.federation.clients is not None:
        return int(config.federation.clients)
    if config.partition["kind"] == "by_owner" and train.client is not None:
        return len(set(train.client))
    return 20


def build(config: Config) -> tuple[Federation, dict[str, Any]]:
    """The federation of a config, and the facts that only the truth knows."""
    import torch

    from fedaudit.data import partition as partitions
    from fedaudit.federation import topology as topologies
    from fedaudit.federation.engine import Federation
    from fedaudit.federation.local.trainer import ClientData

    seed = Seed(config.seed)
    train, test = load_data(config, seed)
    wanted = dict(config.topology)
    count = client_count(config, train)
    kind = str(wanted.pop("kind"))
    topology = topologies.build(kind, count, seed, **wanted)
    region = None if topology.organisations is None else np.array(topology.organisations)
    chosen = dict(config.partition)
    split = partitions.from_settings(str(chosen.pop("kind")), chosen)
    parts = split.partition(train, count, seed, position=region)
    if len(parts) != count:
        raise DataError(
            "the partition does not give the clients that were asked for",
            expected=f"federation.clients = {count}",
            got=f"{len(parts)} clients",
            remedy=f"set federation.clients = {len(parts)}",
        )
    if region is None and parts.organisations is not None:
        names = sorted(set(parts.organisations))
        region = np.array([names.index(o) for o in parts.organisations])

    rounds = replace(config.federation, clients=count)
    task = config.task.build(train, seed)
    clients, sizes = [], []
    for c in range(count):
        own = task.encode(parts.client_data(train, c))
        clients.append((own.x, own.y))
        sizes.append(len(own))
    for c, n in enumerate(sizes):
        if n == 0:
            raise DataError(
                f"client {c} has no examples",
                expected="at least one example per client",
                got="0 (its documents are shorter than one window)",
                remedy="use fewer clients, or a shorter task.length",
            )
    federation = Federation(
        task=task,
        data=ClientData.join(clients),
        rounds=rounds,
        training=config.training,
        seed=seed,
        topology=topology,
        region=region,
        protections=tuple(config.protections.values()),
        test=task.encode(test),
    )
    classes = max(len(train.classes), int(train.y.max()) + 1)
    histograms = parts.class_histograms(train.y, classes)
    facts = {
        "seed": config.seed,
        "clients": {
            party: {
                "name": parts.names[c],
                "records": parts.clients[c].tolist(),
                "examples": int(sizes[c]),
                "classes": histograms[c].tolist(),
                "organisation": None if region is None else int(region[c]),
                "inverted": bool(parts.inverted[c]),
            }
            for c, party in enumerate(federation.party)
        },
        "notes": [*train.notes, *parts.notes],
        "torch": str(torch.__version__),
    }
    return federation, facts


# -- the directory --------------------------------------------------------------------------------


def _claim(path: Path, config: Config) -> None:
    """Make the run directory, or see that it belongs to the same experiment."""
    stamp = path / "run.json"
    try:
        if stamp.exists():
            old = json.loads(stamp.read_text(encoding="utf-8"))
            if old.get("config_sha256") != config.sha256:
                raise TraceError(
                    f"{path} holds another experiment",
                    expected="an empty folder, or the same config and seed",
                    got="a different config",
                    remedy="choose another folder with --out",
                )
            return
        if path.exists() and any(path.iterdir()):
            raise TraceError(
                f"{path} is not empty and not a run",
                expected="a new or empty folder",
                got=f"{len(list(path.iterdir()))} other files",
                remedy="choose another folder with --out",
            )
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.toml", config.public_toml())
        about = {"config_sha256": config.sha256, "fedaudit": __version__}
        write_atomically(stamp, json.dumps(about, indent=1) + "\n")
    except (OSError, json.JSONDecodeError) as error:
        raise TraceError(
            f"cannot use {path} for a run",
            expected="a folder that can be written",
            got=str(error),
            remedy="choose another folder with --out",
        ) from None


def run(
    config: Config | str | Path | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] = "fedaudit-run",
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    progress: Progress = _quiet,
) -> Run:
    """Run (or resume) an experiment: train, record, audit, report."""
    if not isinstance(config, Config):
        if isinstance(config, Mapping):
            config = check(config)
        else:
            config = load(config, overrides=overrides, seed=seed)
    path = Path(out)
    _claim(path, config)
    simulate(config, path, progress)
    return audit_run(config, path, progress)


def simulate(config: Config, path: Path, progress: Progress = _quiet) -> None:
    """Train and record; rounds that are there already are not run again."""
    total = config.federation.rounds
    if _finished(path, total):
        progress("train", total, total, "already recorded")
        return
    progress("train", 0, total, "loading")
    from fedaudit.trace import Recorder, TruthRecorder
    from fedaudit.trace.recorder import MODEL

    federation, facts = build(config)
    recorder = Recorder(
        path / "trace",
        layouts={MODEL: federation.task.layout},
        federation=federation.describe(),
        declared=[p.declare() for p in federation.protections],
        task=federation.task.settings,
        tensors="*" if config.trace.tensors == ("*",) else config.trace.tensors,
        dtype=config.trace.dtype,
        purpose=config.trace.purpose,
        retention=config.trace.retention,
        resume=True,
    )
    truth = TruthRecorder(path / "truth", facts)
    progress("train", recorder.rounds, total, "training")

    def after_round(number: int, metrics: dict[str, float]) -> None:
        note = ", ".join(f"{k} {v:.3f}" for k, v in metrics.items())
        progress("train", number, total, note)

    federation.run(
        recorder,
        truth,
        checkpoint=path / "checkpoint",
        keep_raw=config.trace.raw_updates,
        progress=after_round,
    )


def _finished(path: Path, rounds: int) -> bool:
    if not (path / "trace" / "manifest.json").exists():
        return False
    trace = Trace.open(path / "trace", verify_hashes=False)
    return trace.manifest.complete and len(trace.rounds) == rounds


# -- auditing -------------------------------------------------------------------------------------


def audit_trace(
    audits: Mapping[str, Any],
    trace: Trace,
    truth: Truth | None,
    seed: int,
    progress: Progress = _quiet,
    keep: Path | None = None,
) -> list[AuditResult]:
    """Run audits on a trace; results that stand in `keep` for the same trace are not redone."""
    results = []
    for done, (name, audit) in enumerate(audits.items()):
        progress("audit", done, len(audits), name)
        kept = None if keep is None else _kept(keep / f"{name}.json", audit, trace)
        result = kept or audit_one(audit, trace, truth, seed)
        if keep is not None and kept is None:
            keep.mkdir(parents=True, exist_ok=True)
            stamped = {"asked": _asked(audit), "result": json.loads(result.to_json())}
            write_atomically(keep / f"{name}.json", json.dumps(stamped, indent=1) + "\n")
        results.append(result)
    progress("audit", len(audits), len(audits), "")
    return results


def _asked(audit: Any) -> dict[str, Any]:
    """What a kept result was asked for: settings and version."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(audit)))
    return {**plain, "fedaudit": __version__}


def _kept(file: Path, audit: Any, trace: Trace) -> AuditResult | None:
    if not file.exists():
        return None
    try:
        stamped = json.loads(file.read_text(encoding="utf-8"))
        result = AuditResult.from_json(json.dumps(stamped["result"]))
    except (ValueError, KeyError, TypeError):
        return None  # written by another version, or torn: do it again
    same = stamped["asked"] == _asked(audit) and result.trace_sha256 == trace.sha256
    return result if same else None


def audit_one(audit: Any, trace: Trace, truth: Truth | None, seed: int) -> AuditResult:
    """One audit: attack a view, then score the guess. A missing need is a result, not a crash."""
    from fedaudit.audits.audit import Knowledge

    draws = Seed(seed)
    try:
        view = trace.seen_by(*audit.vantage.split("+"))
        guess = audit.attack(view, Knowledge(), draws.generator("attack/" + audit.name))
    except (NotApplicable, NotObservable) as error:
        need = error.what + "".join(
            f"; {label} {text}"
            for label, text in (("expected", error.expected), ("got", error.got))
            if text
        )
        return AuditResult(
            audit=audit.name,
            question=audit.question,
            vantage=audit.vantage,
            settings=json.loads(json.dumps(asdict(audit))),
            not_applicable=need + (f". Try: {error.remedy}" if error.remedy else ""),
            source=audit.source,
            trace_sha256=trace.sha256,
        )
    scored: AuditResult = audit.score(guess, truth, draws.generator("score/" + audit.name))
    return scored


def audit_run(config: Config, path: Path, progress: Progress = _quiet) -> Run:
    """Audit a recorded run and write its report."""
    trace, truth = Trace.open(path / "trace"), Truth.open(path / "truth")
    results = audit_trace(config.audits, trace, truth, config.seed, progress, keep=path / "results")
    return write_report(path, trace, truth, results)


def audit(
    trace: str | os.PathLike[str],
    audits: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    truth: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int = 1,
    progress: Progress = _quiet,
) -> Run:
    """Audit a stored trace: ours or one that foreign code wrote.

    `audits` maps names to settings, or lists names (default: all). The truth is looked for beside
    the trace; without it attacks run blind.
    """
    from fedaudit import settings

    opened = Trace.open(trace)
    named: Mapping[str, Any] = (
        audits if isinstance(audits, Mapping) else {name: {} for name in audits or AUDITS}
    )
    built = {
        name: settings.check(find(AUDITS, "audit", name), dict(values), f"audits.{name}")
        for name, values in named.items()
    }
    beside = Path(truth) if truth is not None else opened.path.parent / "truth"
    known = Truth.open(beside) if truth is not None or (beside / "truth.json").exists() else None
    path = Path(out) if out is not None else opened.path.parent
    results = audit_trace(built, opened, known, seed, progress, keep=path / "results")
    return write_report(path, opened, known, results)


# -- reporting ------------------------------------------------------------------------------------


def summarise(trace: Trace, truth: Truth | None) -> dict[str, str]:
    """The federation in a few lines."""
    about = trace.manifest.federation
    clients = about.get("clients", ())
    lines = {
        "federation": f"{len(clients)} clients, {len(trace.rounds)} rounds, "
        f"{about.get('aggregation', 'unknown')} on a {about.get('topology', 'unknown')} topology",
        "model": f"{trace.manifest.task.get('kind', 'unknown')}, "
        f"{trace.layout.width:,} recorded numbers per message",
        "protected by": ", ".join(str(d["name"]) for d in trace.manifest.declared) or "nothing",
    }
    if truth is not None and len(trace.rounds):
        metrics = truth.metrics(trace.rounds[-1])
        if metrics:
            lines["held out"] = ", ".join(f"{k} {v:.3f}" for k, v in metrics.items())
    if not trace.manifest.complete:
        lines["state"] = "unfinished: what was recorded so far"
    return lines


def write_report(
    path: Path, trace: Trace, truth: Truth | None, results: Sequence[AuditResult]
) -> Run:
    """Judge the results and write findings.json and report.html."""
    findings = judge_all(results)
    summary = summarise(trace, truth)
    evidence = {
        "trace sha256": trace.sha256,
        "fedaudit": __version__,
        "rerun": "fedaudit run config.toml --out NEW --seed SEED (the seed is in truth/)",
    }
    path.mkdir(parents=True, exist_ok=True)
    plain = json.dumps([f.to_dict() for f in findings], indent=1, allow_nan=False) + "\n"
    write_atomically(path / "findings.json", plain)
    write_atomically(path / "report.html", page(summary, findings, results, evidence))
    return Run(path=path, results=tuple(results), findings=tuple(findings), summary=summary)


def report(path: str | os.PathLike[str]) -> Run:
    """Write the report of a run again from its stored results."""
    folder = Path(path)
    trace = Trace.open(folder / "trace")
    truth = Truth.open(folder / "truth") if (folder / "truth" / "truth.json").exists() else None
    results = []
    for file in sorted((folder / "results").glob("*.json")):
        stamped = json.loads(file.read_text(encoding="utf-8"))
        result = AuditResult.from_json(json.dumps(stamped["result"]))
        if result.trace_sha256 != trace.sha256:
            note = "these results belong to another state of the trace: audit again"
            result = replace(result, notes=(*result.notes, note))
        results.append(result)
    if not results:
        raise TraceError(
            f"{folder} has no results yet",
            expected="results/*.json",
            got="none",
            remedy=f"fedaudit audit {folder}",
        )
    return write_report(folder, trace, truth, results)
