"""One config in, a run directory out.

    DIR/config.toml     what was asked for, every default filled in, without the seed
    DIR/run.json        which experiment the folder belongs to
    DIR/trace/          what crossed the wire
    DIR/truth/          what did not, and the whole config with the seed
    DIR/checkpoint/     what resuming needs: private
    DIR/results/*.json  one log per audit
    DIR/findings.json, DIR/report.html

Each stage reads the files of the one before, so any stage can be repeated alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit import __version__
from fedaudit.errors import DataError, FormatError, IntegrityError, NotApplicable, TraceError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.config import Config, load, plain, to_toml
from fedaudit.randomness import Seed
from fedaudit.report.findings import REMEDY, judge_all
from fedaudit.report.html import page
from fedaudit.results import AuditResult, Finding
from fedaudit.settings import check, check_arguments
from fedaudit.trace import ANONYMOUS, PUBLIC, SERVER, SHUFFLER, Trace, Truth
from fedaudit.trace.schema import AGGREGATOR
from fedaudit.trace.store import write_atomically

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset
    from fedaudit.data.partition import Partition
    from fedaudit.federation.engine import Federation

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


def _quiet(stage: str, done: int, total: int, note: str) -> None:
    """The progress of someone who does not look."""


# -- building -------------------------------------------------------------------------------------


CLASSIFIERS = ("mlp", "cnn", "vit", "module")


def load_data(config: Config, seed: Seed) -> tuple[Dataset, Dataset]:
    """Training and held-out records of a config."""
    from fedaudit.data import builtin, files, prepare

    given = dict(config.data)
    fraction = given.pop("test_fraction", None)
    standardise = given.pop("standardise", None)
    if "path" in given:
        path = given.pop("path")
        dataset = files.read(path, **check_arguments(files.read, given, "data"))
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


def _one_client_each(train: Dataset, parts: Partition) -> None:
    """A promise per person is a client's own: refuse persons whose records lie with several."""
    if train.person is None:
        return
    where: dict[str, set[int]] = {}
    for c, rows in enumerate(parts.clients):
        for i in rows:
            where.setdefault(train.person[i], set()).add(c)
    spread = sum(len(found) > 1 for found in where.values())
    if spread:
        raise DataError(
            "persons have records with several clients",
            expected="every person with one client, where the unit of privacy is a person",
            got=f"{spread} of {len(where)} persons with two clients or more",
            remedy='use unit = "record", or another partition than by_owner',
        )


def promises(federation: Federation) -> dict[str, dict[str, Any]]:
    """Protection -> client -> what it is promised over the whole run."""
    exposures = federation.exposures()
    out: dict[str, dict[str, Any]] = {}
    for hook in federation.protections:
        for c, party in enumerate(federation.party):
            given = hook.guarantee(c, exposures[c])
            if given is not None:
                out.setdefault(hook.name, {})[party] = given.to_dict()
    return out


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

    classes = max(len(train.classes), int(train.y.max()) + 1)
    if classes < 2 and train.kind != "text" and config.task.kind in CLASSIFIERS:
        raise DataError(
            f"dataset {train.name!r} has one class only: there is nothing to tell apart",
            expected="at least two classes",
            got=f"{classes} class in {len(train)} training records",
            remedy='name another label, or use task.kind = "vae", which needs no classes',
        )
    rounds = replace(config.federation, clients=count)
    task = config.task.build(train, seed)
    units = {p.clip_unit for p in config.protections.values() if p.clip_norm is not None}
    if "person" in units:
        _one_client_each(train, parts)
    clients, sizes, groups = [], [], []
    for c in range(count):
        mine = parts.client_data(train, c)
        own = task.encode(mine)
        clients.append((own.x, own.y))
        if "person" in units and mine.person is not None:
            numbers = np.unique(np.array(mine.person), return_inverse=True)[1]
            groups.append(torch.from_numpy(numbers)[own.record])
        elif "record" in units and len(own) != len(mine):
            groups.append(own.record)  # several examples were cut from one record
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
        data=ClientData.join(clients, groups if len(groups) == count else None),
        rounds=rounds,
        training=config.training,
        seed=seed,
        topology=topology,
        region=region,
        protections=tuple(config.protections.values()),
        test=task.encode(test),
    )
    exposures = federation.exposures()
    federation = replace(
        federation,
        protections=tuple(p.resolved(exposures) for p in federation.protections),
    )
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
        "guarantees": promises(federation),
        "data_sha256": fingerprint_of(train, test),
        "notes": [*train.notes, *parts.notes],
        "torch": str(torch.__version__),
    }
    return federation, facts


def fingerprint_of(*parts: Dataset) -> str:
    """A hash of all records and labels: a run is not resumed on other data."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part.x, tuple):
            for text in part.x:
                digest.update(f"{len(text)}:{text}".encode())
        else:
            digest.update(f"{part.x.shape}{part.x.dtype}".encode())
            digest.update(np.ascontiguousarray(part.x).data)
        digest.update(np.ascontiguousarray(part.y).data)
    return digest.hexdigest()


# -- the directory --------------------------------------------------------------------------------


def _claim(path: Path, config: Config) -> None:
    """Make the run directory, or see that it belongs to the same experiment."""
    stamp, private = path / "run.json", path / "truth" / "config.toml"
    try:
        if stamp.exists():
            _same_experiment(path, stamp, private, config)
        elif path.exists() and (others := [f for f in path.iterdir() if f.suffix != ".part"]):
            raise TraceError(
                f"{path} is not empty and not a run",
                expected="a new or empty folder",
                got=f"{len(others)} other files or folders, such as {others[0].name}",
                remedy="choose another folder with --out",
            )
        path.mkdir(parents=True, exist_ok=True)
        if not stamp.exists():
            about = {"config_sha256": config.sha256, "fedaudit": __version__}
            write_atomically(stamp, json.dumps(about, indent=1) + "\n")
        private.parent.mkdir(exist_ok=True)
        write_atomically(private, to_toml(config.raw))
        write_atomically(path / "config.toml", to_toml(config.public()).lstrip())
    except (OSError, ValueError) as error:
        raise TraceError(
            f"cannot use {path} for a run",
            expected="a folder that can be written",
            got=str(error),
            remedy="choose another folder with --out",
        ) from None


def _same_experiment(path: Path, stamp: Path, private: Path, config: Config) -> None:
    old = json.loads(stamp.read_text(encoding="utf-8"))
    if private.exists():
        before = tomllib.loads(private.read_text(encoding="utf-8"))
    elif (path / "trace" / "manifest.json").exists():
        raise TraceError(
            f"{path} has a trace, and its truth is gone",
            expected=f"{private}",
            got="no such file",
            remedy=f"audit it blindly with `fedaudit audit {path}`, or run into another folder",
        )
    else:
        before = dict(config.raw)
    differ = _differences(before, config.raw)
    if old.get("config_sha256") != config.sha256 or "seed" in differ:
        if not _has_rounds(path):
            # a mistake in the first config must not cost the folder: nothing is lost yet
            stamp.unlink()
            return
        raise TraceError(
            f"{path} holds another experiment",
            expected="an empty folder, or the same config and seed",
            got="other values of " + (", ".join(differ[:6]) or "settings that are gone now"),
            remedy="choose another folder with --out",
        )


def _has_rounds(path: Path) -> bool:
    """Whether anything was recorded that a new start would lose."""
    return any((path / "trace").glob("round-*")) or any((path / "results").glob("*"))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> list[str]:
    """Names of the settings in which two configs differ; audits may."""
    out = []
    for key in dict.fromkeys([*before, *now]):
        a, b = before.get(key), now.get(key)
        if f"{at}{key}" == "audits" or a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out += _differences(a, b, f"{at}{key}.")
        else:
            out.append(f"{at}{key}")
    return out


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
        config = load(config, overrides=overrides, seed=seed)
    elif overrides or seed is not None:
        config = load(config.raw, overrides=overrides, seed=seed)
    path = Path(out)
    _claim(path, config)
    simulate(config, path, progress)
    return audit_run(config, path, progress)


def simulate(config: Config, path: Path, progress: Progress = _quiet) -> None:
    """Train and record; rounds that are there already are not run again."""
    total = config.federation.rounds
    recorded, complete = _recorded(path)
    if complete and recorded == total:
        progress("train", total, total, "already recorded")
        return
    progress("train", recorded, total, "loading")
    from fedaudit.trace import Recorder, TruthRecorder
    from fedaudit.trace.recorder import MODEL

    federation, facts = build(config)
    if recorded:
        before = Truth.open(path / "truth").facts
        if before.get("data_sha256") != facts["data_sha256"]:
            raise DataError(
                f"the data have changed since the first {recorded} rounds in {path}",
                expected="the records that the run began with",
                got="other records or labels",
                remedy="restore the data, or run into another folder with --out",
            )
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


def _recorded(path: Path) -> tuple[int, bool]:
    """Rounds in the run's trace, and whether it is complete."""
    if not (path / "trace" / "manifest.json").exists():
        return 0, False
    trace = Trace.open(path / "trace", verify_hashes=False)
    return len(trace.rounds), trace.manifest.complete


# -- auditing -------------------------------------------------------------------------------------

AUDIT_SEED = 1
"""Of the audits' own draws (random guesses, resampling). Not the seed of the run: a Monte-Carlo
figure in a published result would let others try small seeds until one fits."""


def audit_trace(
    audits: Mapping[str, Any],
    trace: Trace,
    truth: Truth | None,
    seed: int = AUDIT_SEED,
    progress: Progress = _quiet,
    keep: Path | None = None,
) -> list[AuditResult]:
    """Run audits on a trace; results that stand in `keep` and would come out the same are kept."""
    results = []
    for done, (name, audit) in enumerate(audits.items()):
        progress("audit", done, len(audits), name)
        asked = _asked(audit, seed, truth)
        kept = None if keep is None else _kept(keep / f"{name}.json", asked, trace)
        result = kept or audit_one(audit, trace, truth, seed)
        if keep is not None and kept is None:
            _store(keep / f"{name}.json", asked, result)
        results.append(result)
    progress("audit", len(audits), len(audits), "")
    return results


def _asked(audit: Any, seed: int, truth: Truth | None) -> dict[str, Any]:
    """What a kept result was asked for: settings, draws, version, and whether it was scored."""
    about = {"fedaudit": __version__, "seed": seed, "scored": truth is not None}
    return {"settings": plain(audit), **about}


def _store(file: Path, asked: Mapping[str, Any], result: AuditResult) -> None:
    stamped = {"asked": asked, "result": json.loads(result.to_json())}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(stamped, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(file.parent, error) from None


def _unwritable(folder: Path, error: OSError) -> TraceError:
    return TraceError(
        f"cannot write to {folder}",
        expected="a folder that can be written",
        got=error.strerror or str(error),
        remedy="choose another folder with --out",
    )


def _kept(file: Path, asked: Mapping[str, Any], trace: Trace) -> AuditResult | None:
    try:
        stamped = json.loads(file.read_text(encoding="utf-8"))
        result = AuditResult.from_json(json.dumps(stamped["result"]))
        same = stamped["asked"] == asked and result.trace_sha256 == trace.sha256
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, written by another version, or torn: do it again
    return result if same else None


def audit_one(audit: Any, trace: Trace, truth: Truth | None, seed: int) -> AuditResult:
    """One audit: attack a view, then score the guess. A missing need is a result, not a crash."""
    from fedaudit.audits.audit import Knowledge

    draws = Seed(seed)
    try:
        view = trace.seen_by(*audit.vantage.split("+"))
        guess = audit.attack(view, Knowledge(), draws.generator("attack/" + audit.name))
        scored: AuditResult = audit.score(guess, truth, draws.generator("score/" + audit.name))
    except (IntegrityError, FormatError):
        raise  # a torn file is no property of the federation
    except (NotApplicable, TraceError) as error:
        need = error.what + "".join(
            f"; {label} {text}"
            for label, text in (("expected", error.expected), ("got", error.got))
            if text
        )
        return AuditResult(
            audit=audit.name,
            question=audit.question,
            vantage=audit.vantage,
            settings=plain(audit),
            not_applicable=need + (f"{REMEDY}{error.remedy}" if error.remedy else ""),
            source=audit.source,
            trace_sha256=trace.sha256,
        )
    return scored


def audit_run(config: Config, path: Path, progress: Progress = _quiet) -> Run:
    """Audit a recorded run and write its report."""
    trace, truth = Trace.open(path / "trace"), Truth.open(path / "truth")
    results = audit_trace(config.audits, trace, truth, progress=progress, keep=path / "results")
    return write_report(path, trace, truth, results)


def audit(
    trace: str | os.PathLike[str],
    audits: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    truth: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    as_if: Sequence[str] = (),
    seed: int = AUDIT_SEED,
    progress: Progress = _quiet,
) -> Run:
    """Audit a stored trace: ours or one that foreign code wrote.

    `as_if` names protections of uploads that are applied to the trace first ("shuffle",
    "clip:bound=0.5"): what would have been seen. That trace and its results get a folder of their
    own, `NAME-as-shuffle` beside the run or trace.

    `audits` maps names to settings, or lists names; by default those of the run's config, or all.
    The truth is looked for beside the trace; without it attacks run blind. Results go to the run,
    or to a folder `NAME-audit` beside a trace `NAME` that belongs to no run.
    """
    opened = Trace.open(trace)
    home = opened.path.parent
    in_run = (home / "run.json").is_file() and opened.path.name == "trace"
    configured = _configured(home / "config.toml") if in_run else {}
    named: Mapping[str, Any]
    if isinstance(audits, Mapping):
        named = audits
    else:
        named = {name: configured.get(name, {}) for name in audits or configured or AUDITS}
    built = {
        name: check(find(AUDITS, "audit", name), dict(values), f"audits.{name}")
        for name, values in named.items()
    }
    beside = Path(truth) if truth is not None else home / "truth"
    known = Truth.open(beside) if truth is not None or (beside / "truth.json").exists() else None
    if known is not None:
        _fits(known, opened)
    name = opened.path.resolve().name
    own = home if in_run else home / f"{name}-audit"
    if as_if:
        base = home.resolve() if in_run else home.resolve() / name
        label = "-".join(text.partition(":")[0] for text in as_if)
        own = base.with_name(f"{base.name}-as-{label}")
    path = Path(out) if out is not None else own
    if as_if:
        from fedaudit.experiment.replay import parse_hook, replay

        # drawn in secret: who knows the seed of a shuffle can undo it
        secret = Seed(secrets.randbits(64))
        opened, known = replay(opened, [parse_hook(text) for text in as_if], path, secret, known)
    results = audit_trace(built, opened, known, seed, progress, keep=path / "results")
    # what was found before about the same trace stays in the report
    names = {r.audit for r in results}
    results += [r for r in _stored(path) if r.audit not in names and _about(r, opened)]
    return write_report(path, opened, known, results)


def _configured(file: Path) -> dict[str, Any]:
    """The audits of a run's config."""
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("audits", {})
    except (OSError, ValueError):
        return {}
    return found


def _fits(truth: Truth, trace: Trace) -> None:
    """Refuse the truth of another trace."""
    for number in trace.rounds:
        messages = trace.messages(number)
        senders = truth.senders(number)
        wrong = [
            i
            for i, name in senders.items()
            if i >= len(messages) or messages[i].sender not in (name, *UNNAMED)
        ]
        if wrong:
            raise TraceError(
                f"{truth.path} is not the truth of {trace.path}",
                expected=f"senders of the messages of round {number}",
                got=f"message {wrong[0]}, which the trace does not have or ascribes to another",
                remedy="pass the folder that was written with this trace",
            )


UNNAMED = (ANONYMOUS, AGGREGATOR)


def _about(result: AuditResult, trace: Trace) -> bool:
    return result.trace_sha256 == trace.sha256


# -- reporting ------------------------------------------------------------------------------------


def summarise(trace: Trace, truth: Truth | None) -> dict[str, str]:
    """The federation in a few lines."""
    about = trace.manifest.federation
    clients = about.get("clients") or _speakers(trace)
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
    if truth is not None and truth.facts.get("notes"):
        lines["noted"] = "; ".join(str(n) for n in truth.facts["notes"])
    if truth is None:
        lines["truth"] = "none beside the trace: attacks run blind, their guesses are not scored"
    elif len(trace.rounds):
        metrics = truth.metrics(trace.rounds[-1])
        if metrics:
            lines["held out"] = ", ".join(f"{k} {v:.3f}" for k, v in metrics.items())
    if not trace.manifest.complete:
        lines["state"] = "unfinished: what was recorded so far"
    return lines


def _speakers(trace: Trace) -> list[str]:
    """Who takes part in a trace whose manifest does not say so."""
    others = {*trace.manifest.federation.get("hubs", (SERVER,)), *UNNAMED, PUBLIC, SHUFFLER}
    return [party for party in trace.parties() if party not in others]


def _named(declared: Mapping[str, Any]) -> str:
    """A declared protection, and how it came to be there if it was not in force."""
    name = str(declared.get("name", "?"))
    applied = declared.get("applied")
    if applied == "exactly":
        return f"{name} (as if: applied to the stored trace)"
    return name if applied is None else f"{name} (as if: {applied})"


def write_report(
    path: Path, trace: Trace, truth: Truth | None, results: Sequence[AuditResult]
) -> Run:
    """Judge the results and write findings.json and report.html."""
    findings = judge_all(results)
    summary = summarise(trace, truth)
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
        raise _unwritable(path, error) from None
    return Run(
        path=path,
        results=tuple(results),
        findings=tuple(findings),
        summary=summary,
        metrics=truth.metrics(trace.rounds[-1]) if truth is not None and len(trace.rounds) else {},
        guarantees={} if truth is None else truth.facts.get("guarantees", {}),
    )


def report(path: str | os.PathLike[str]) -> Run:
    """Write the report of a run again from its stored results."""
    folder = Path(path)
    places = _places(folder)
    trace = Trace.open(places["trace"])
    truth = Truth.open(places["truth"]) if (places["truth"] / "truth.json").exists() else None
    results = []
    for result in _stored(folder):
        if not _about(result, trace):
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


def _stored(folder: Path) -> list[AuditResult]:
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
