"""Audits of a run or of any stored trace: attack a view, score the guess, keep the result."""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.errors import FormatError, IntegrityError, NotApplicable, TraceError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.config import Config, plain
from fedaudit.experiment.reporting import (
    UNNAMED,
    Progress,
    Run,
    is_about,
    quietly,
    stored_results,
    unwritable,
    write_report,
)
from fedaudit.randomness import Seed
from fedaudit.report.findings import REMEDY
from fedaudit.results import AuditResult
from fedaudit.settings import check
from fedaudit.trace import Trace, Truth
from fedaudit.trace.store import write_atomically

AUDIT_SEED = 1
"""Of the audits' own draws (random guesses, resampling). Not the seed of the run: a Monte-Carlo
figure in a published result would let others try small seeds until one fits."""


def audit_trace(
    audits: Mapping[str, Any],
    trace: Trace,
    truth: Truth | None,
    seed: int = AUDIT_SEED,
    progress: Progress = quietly,
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
        raise unwritable(file.parent, error) from None


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


def audit_run(config: Config, path: Path, progress: Progress = quietly) -> Run:
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
    progress: Progress = quietly,
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
    results += [r for r in stored_results(path) if r.audit not in names and is_about(r, opened)]
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
