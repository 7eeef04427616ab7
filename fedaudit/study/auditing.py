"""Audits of a run or of any stored trace: attack a view, score the guess, keep the result."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit import __version__, foreign, shapes
from fedaudit.audits.outright import need_uploads
from fedaudit.errors import (
    ConfigError,
    DataError,
    FedauditError,
    FormatError,
    IntegrityError,
    NotApplicable,
    NothingToSay,
    NotObservable,
    TraceError,
    UsageError,
    nearest,
)
from fedaudit.files import Unreadable, is_lost, read_object, read_toml, unwritable, write_atomically
from fedaudit.progress import Progress, no_progress
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import settled
from fedaudit.results import AuditResult, Need, Status
from fedaudit.settings import check
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.setup.config import Config, load, plain
from fedaudit.setup.identity import FRESH, code_identity, code_sha256, contents_of, files_named_in
from fedaudit.setup.toml import override, parsed
from fedaudit.study import promised
from fedaudit.study.chapters import (
    ALLOCATION,
    Run,
    is_about,
    stored_results,
    write_report,
)
from fedaudit.study.folders import (
    AUDITED,
    Command,
    commands_but,
    config_of,
    entries,
    is_study,
)
from fedaudit.study.recording import examined, resting_on
from fedaudit.study.reuse import Explain, Reuse, differing, keyed, no_explain, truth_digest
from fedaudit.study.seal import (
    SEAL,
    check_seal,
    is_sealed_as,
    require_seal,
    seal,
    seal_written,
)
from fedaudit.study.summary import UNNAMED, clients_of
from fedaudit.trace import WIRETAP, Trace, Truth
from fedaudit.trace.health import examine

if TYPE_CHECKING:
    from fedaudit.knowledge import Desk, Records

AUDIT_SEED = 1
"""Of the audits' own draws (random guesses, resampling). Not the seed of the run: a Monte-Carlo
figure in a published result would let others try small seeds until one fits."""


def audit_trace(
    audits: Mapping[str, Any],
    trace: Trace,
    truth: Truth | None,
    seed: int = AUDIT_SEED,
    progress: Progress = no_progress,
    keep: Path | None = None,
    records: Callable[[], Records] | None = None,
    config: Config | None = None,
    given: Callable[[], Mapping[str, Any]] = dict,
    explain: Explain = no_explain,
    typed: Collection[str] = (),
) -> list[AuditResult]:
    """Run audits on a trace; results that stand in `keep` and would come out the same are kept.

    `explain` hears which were, and why. An audit that fails is named in its result and the others
    go on; those whose settings were just `typed` end at once, for that is where the mistake is.

    `records` loads the records that membership audits ask about, when one does; `config` of the
    run, where it is known. `given` identifies records that do not come from the run itself.
    """
    from fedaudit.knowledge import Desk

    health = examine(trace)
    desk = Desk(trace, truth, Seed(seed), records, config)
    results = []
    for done, (name, audit) in enumerate(audits.items()):
        progress("audit", done, len(audits), name)
        asked = _asked(audit, seed, truth, None if keep is None else keep.parent)
        if {"records", "games"}.intersection(audit.needs):
            asked["records"] = {**given(), **_source("score", getattr(audit, "score_by", None))}
        kept, why = None, "results are not stored"
        if keep is not None:
            kept, why = _kept(keep / f"{name}.json", asked, trace)
            if kept is not None and not is_sealed_as(keep.parent, keep / f"{name}.json"):
                kept, why = None, "the stored result is not as it was sealed"
        explain(Reuse(name, kept is not None, why))
        one = audit_one if name in typed else _guarded
        result = kept or resting_on(health, one(audit, trace, truth, seed, desk))
        if keep is not None and kept is None:
            _store(keep / f"{name}.json", asked, result)
            seal_written(keep.parent, "results", keep / f"{name}.json")
        results.append(result)
    progress("audit", len(audits), len(audits), "")
    return results


def _asked(
    audit: Any, seed: int, truth: Truth | None, folder: Path | None = None
) -> dict[str, Any]:
    """What a kept result was asked for: settings and the contents of files that these name, draws,
    version, and whether it was scored. `folder` holds the result."""
    settings = plain(audit)
    about: dict[str, Any] = {
        "fedaudit": __version__,
        "code": code_sha256(),
        "seed": seed,
        "scored": truth is not None,
    }
    if truth is not None:
        about["truth"] = truth_digest(truth)  # a score stands beside it
    if folder is not None and (files := files_named_in(settings)):
        # results are public: see `_given`
        about["files"] = keyed(folder / "truth", json.dumps(files, sort_keys=True))
    return {"settings": settings, **about}


def _given(
    folder: Path,
    data: str | os.PathLike[str] | None,
    model: str | None,
    columns: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What tells records and a model of one's own from others: contents, not file names.

    Results are public, and a digest of records confirms guesses: it is keyed, with a key that stays
    in the private part of `folder`.
    """
    if data is None:
        return {}
    return {
        "data_sha256": keyed(folder / "truth", contents_of(data)),
        "columns": {k: str(v) for k, v in (columns or {}).items()},
        **_source("model", model),
    }


def _source(what: str, where: str | None) -> dict[str, str]:
    """A function of the user's own by its name, and by its file and those that it imports."""
    if where is None:
        return {}
    from fedaudit.tasks.catalogue import load_factory

    load_factory(where)  # what cannot be loaded says so here
    return {what: where, f"{what}_sha256": code_identity(where)}


def _store(file: Path, asked: Mapping[str, Any], result: AuditResult) -> None:
    stamped = {"asked": asked, "result": json.loads(result.to_json())}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(stamped, indent=1) + "\n")
    except OSError as error:
        raise unwritable(file.parent, error) from None


def _kept(file: Path, asked: Mapping[str, Any], trace: Trace) -> tuple[AuditResult | None, str]:
    """A stored result that would come out the same, or None; and why."""
    if not file.exists():
        return None, "nothing is stored yet"
    try:
        stamped = read_object(file, shapes.RESULT)
        result = AuditResult.from_json(json.dumps(stamped["result"]))
        changed = differing(stamped["asked"], asked)
    except (Unreadable, ValueError, AttributeError):
        return None, "the stored result is torn, or of another version"
    if result.trace_sha256 != trace.sha256:
        changed = ", ".join(t for t in ("the trace (weights or messages)", changed) if t)
    if changed:
        return None, f"another now: {changed}"
    if result.headline is None:
        return None, "it measured nothing: tried again"
    return result, f"same settings, code, truth, and trace {trace.sha256[:12]}"


def _guarded(audit: Any, trace: Trace, truth: Truth | None, seed: int, desk: Desk) -> AuditResult:
    """One audit of several: if it fails, the others and the report go on, and the report says so.

    Torn files end everything: what else was read from them would be worth nothing.
    """
    try:
        return audit_one(audit, trace, truth, seed, desk)
    except (IntegrityError, FormatError):
        raise
    except Exception as error:
        if isinstance(error, FedauditError):
            return _unmeasured(audit, trace, "failed", Need.of(error))
        said = f"{type(error).__name__}: {error}"
        return _unmeasured(audit, trace, "failed", Need(code="error", what=said))


def _unmeasured(audit: Any, trace: Trace, status: Status, need: Need) -> AuditResult:
    return AuditResult(
        audit=audit.name,
        question=audit.question,
        vantage=audit.vantage,
        status=status,
        need=need,
        settings=plain(audit),
        source=audit.source,
        trace_sha256=trace.sha256,
    )


def audit_one(
    audit: Any, trace: Trace, truth: Truth | None, seed: int, desk: Desk | None = None
) -> AuditResult:
    """One audit: attack a view, then score the guess. A missing need is a result, not a crash."""
    from fedaudit.knowledge import Desk

    draws = Seed(seed)
    desk = desk or Desk(trace, truth, draws, None)
    try:
        examined(trace)
        need_uploads(trace.seen_by(WIRETAP))
        view = trace.seen_by(*audit.vantage.split("+"))
        knowledge, known = desk.knowledge_for(audit)
        guess = audit.attack(view, knowledge, draws.generator("attack/" + audit.name))
        scored: AuditResult = audit.score(guess, known, draws.generator("score/" + audit.name))
    except (IntegrityError, FormatError):
        raise  # a torn file is no property of the federation
    except (NotApplicable, TraceError) as error:
        absent = isinstance(error, NotApplicable | NotObservable)
        absent &= not isinstance(error, NothingToSay)
        status: Status = "not_applicable" if absent else "nothing_to_say"
        return _unmeasured(audit, trace, status, Need.of(error))
    return settled(scored)


def audit_run(
    config: Config,
    path: Path,
    progress: Progress = no_progress,
    *,
    names: bool = False,
    explain: Explain = no_explain,
) -> Run:
    """Audit a recorded run and write its report."""
    trace, truth = Trace.open(path / "trace"), Truth.open(path / "truth")
    from fedaudit.allocate import keep_allocation
    from fedaudit.knowledge import of_config

    results = audit_trace(
        config.audits,
        trace,
        truth,
        progress=progress,
        keep=path / "results",
        records=lambda: of_config(config, trace, truth),
        config=config,
        explain=explain,
    )
    if not is_sealed_as(path, path / ALLOCATION):
        (path / ALLOCATION).unlink(missing_ok=True)
    keep_allocation(config, truth, path / ALLOCATION)
    seal_written(path, "results", path / ALLOCATION)
    done_by = commands_but(path, config.audits)  # these are the run's own now
    done = write_report(path, trace, truth, results, names=names, done_by=done_by)
    seal_written(path, "config", path / AUDITED)
    return done


def audit(
    trace: str | os.PathLike[str],
    audits: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    truth: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    as_if: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    model: str | None = None,
    columns: Mapping[str, Any] | None = None,
    opacus: str | os.PathLike[str] | None = None,
    delta: float = 1e-5,
    seed: int = AUDIT_SEED,
    progress: Progress = no_progress,
    names: bool = False,
    explain: Explain = no_explain,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    trust_code: bool = False,
) -> Run:
    """Audit a stored trace: ours or one that foreign code wrote.

    Membership audits ask about records: those of the run, or a file `data` whose client column
    names the trace's parties (`columns`: label, client and the other settings of `[data]`), with
    `model`, the "package.module:function" that builds the torch module. Refused where no audit asks
    about records.

    `as_if` names protections of uploads that are applied to the trace first ("shuffle",
    "clip:bound=0.5"): what would have been seen. That trace and its results get a folder of their
    own, `NAME-as-shuffle` beside the run or trace.

    `opacus` is a JSON file with the state of an Opacus accountant, or client -> state, of those who
    trained: what it spent, at `delta`, stands in the report.

    `audits` maps names to settings, or lists names; by default those of the run's config, or all.
    `overrides` are settings as text, "audits.fingerprint.methods=['joint']" or "data.missing=drop".
    The truth is looked for beside the trace; without it attacks run blind. Results go to the run,
    or to a folder `NAME-audit` beside a trace `NAME` that belongs to no run.

    Files of the run have to be as they were sealed, and stored results about the same `data` and
    `model`; `fresh` removes stored results first.

    Code is loaded only if you name it here (`model`, a `score_by`); with `trust_code` also what the
    run's stored config names (`task.factory`).
    """
    settings, about_data = _overridden(overrides)
    columns = {**(columns or {}), **about_data}
    if data is None and (model is not None or columns):
        raise UsageError(
            "a model or a column was named, and no records",
            expected="data (--data), the file with the records to ask about",
            got=", ".join([*(["model"] if model is not None else []), *(columns or {})]),
            remedy="name the file, or leave these out: a run knows its own records and model",
        )
    _refuse_study(Path(trace))
    opened = Trace.open(trace)
    home = opened.path.parent
    claimed = (home / "run.json").is_file() or not is_lost(home / "truth" / "identity.json")
    in_run = claimed and opened.path.name == "trace"
    configured = config_of(home).get("audits", {}) if in_run else {}
    named: Mapping[str, Any]
    if isinstance(audits, Mapping):
        named = audits
    else:
        named = {name: configured.get(name, {}) for name in audits or configured or AUDITS}
    for name in settings:
        if name not in named:
            raise UsageError(
                f"a setting of {name} was given, which does not run",
                expected="settings of the audits that run: " + ", ".join(named),
                got=f"--set audits.{name}...",
                remedy=f"--only {name}" if name in AUDITS else nearest(name, list(AUDITS)),
            )
    named = {name: {**dict(values), **settings.get(name, {})} for name, values in named.items()}
    built = {
        name: check(find(AUDITS, "audit", name), dict(values), f"audits.{name}")
        for name, values in named.items()
    }
    if data is not None:
        _refuse_unasked(built, "of the run's config" if configured and not audits else "to run")
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
    if fresh:
        _forget_results(path, replayed=bool(as_if))
    if in_run:
        require_seal(home, but=("results",), rewritten=(AUDITED,))
    if path != home and (path / SEAL).exists():
        # a trace that lies elsewhere may have grown since: what was found of it before is left out
        check_seal(path, but=("results", "trace"), rewritten=(AUDITED,))
    _refuse_other_records(path, _given(path, data, model, columns))
    if as_if:
        from fedaudit.study.replay import parse_hook, replay

        # drawn in secret: who knows the seed of a shuffle can undo it
        secret = Seed(secrets.randbits(64))
        opened, known = replay(opened, [parse_hook(text) for text in as_if], path, secret, known)

    for name in (promised.FILE, ALLOCATION):
        _refuse_unsealed(path, name)
    if opacus is not None:
        given = promised.read_opacus(Path(opacus), delta, clients_of(opened))
        promised.hand_over(path, opened, "opacus", given)
        seal_written(path, "results", path / promised.FILE)
    known = promised.with_members(path, opened, known)

    def records() -> Records:
        from fedaudit import knowledge

        if data is not None:
            return knowledge.of_files(
                opened,
                Path(data),
                model=model,
                settings=columns,
                # a score of one's own takes whatever the module gives
                logits=any(
                    {"records", "games"}.intersection(a.needs) and not getattr(a, "score_by", None)
                    for a in built.values()
                ),
            )
        return knowledge.of_run(home, opened, known)

    own_words = [settings, audits if isinstance(audits, Mapping) else {}, model]
    with foreign.only(None if trust_code else _texts(own_words)):
        results = audit_trace(
            built,
            opened,
            known,
            seed,
            progress,
            path / "results",
            records,
            _private(home, in_run),
            lambda: _given(path, data, model, columns),
            explain,
            typed=built if data is not None else settings,
        )
    # what was found before about the same trace stays in the report
    now = {r.audit for r in results}
    earlier = [r for r in stored_results(path) if r.audit not in now and is_about(r, opened)]
    for r in earlier:
        _refuse_unsealed(path, f"results/{r.audit}.json")
    results += earlier
    typed = _command(
        "RUN" if in_run else "TRACE",
        only=() if isinstance(audits, Mapping) else audits or (),
        truth=truth is not None,
        as_if=as_if,
        data=data,
        model=model,
        columns={k: v for k, v in columns.items() if k not in about_data},
        overrides=overrides,
        opacus=opacus,
        delta=delta,
        seed=seed,
        trust_code=trust_code,
    )
    done_by = [*commands_but(path, built), Command(typed, tuple(built))]
    done = write_report(path, opened, known, results, names=names, done_by=done_by)
    seal_written(path, "config", path / AUDITED)
    if not (in_run and path == home):
        seal(path, "trace", "truth")
    return done


def _forget_results(folder: Path, *, replayed: bool) -> None:
    """Remove stored results, and a replayed trace, of an earlier audit into `folder`."""
    if not (folder / SEAL).exists():
        return
    files = [*(folder / "results").glob("*.json"), folder / promised.FILE]
    for file in files:
        file.unlink(missing_ok=True)
    seal_written(folder, "results", *files)
    if replayed:
        for name in ("trace", "truth"):
            shutil.rmtree(folder / name, ignore_errors=True)
        seal(folder, "trace", "truth")


def _refuse_other_records(folder: Path, now: Mapping[str, Any]) -> None:
    """Records or a model were handed over: refuse a folder with results about other ones."""
    for name in AUDITS if now else ():
        file = folder / "results" / f"{name}.json"
        if not file.is_file():
            continue
        before = read_object(file, shapes.RESULT)["asked"].get("records") or {}
        wrong = [
            {"data_sha256": "data", "model_sha256": "code of the model", "model": "model"}[k]
            for k in ("data_sha256", "model", "model_sha256")
            if before.get("data_sha256") and before.get(k) != now.get(k)
        ]
        if wrong:
            raise DataError(
                f"{folder} holds results about something else",
                expected="the data and the model that its results were made with",
                got=f"changed since {name} was audited: {', '.join(wrong)}",
                remedy=FRESH,
            )


def _refuse_unsealed(folder: Path, name: str) -> None:
    file = folder / name
    if file.exists() and not is_sealed_as(folder, file):
        raise IntegrityError(
            f"{file} is not as it was sealed",
            expected="the result that fedaudit wrote",
            got="another one",
            remedy="restore it from a copy, audit again, or remove all results with --fresh",
        )


def _texts(value: Any) -> set[str]:
    """Every text in plain values."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_texts, value)) if isinstance(value, list | tuple) else set()


def _command(
    what: str,
    *,
    only: Sequence[str],
    truth: bool,
    as_if: Sequence[str],
    data: str | os.PathLike[str] | None,
    model: str | None,
    columns: Mapping[str, Any],
    overrides: Sequence[str],
    opacus: str | os.PathLike[str] | None,
    delta: float,
    seed: int,
    trust_code: bool,
) -> str:
    """An audit as one would type it. Files by their names: where they lie is nobody's business."""
    words = ["fedaudit", "audit", what]
    for name in only:
        words += ["--only", name]
    words += ["--truth", "TRUTH"] if truth else []
    for text in as_if:
        words += ["--as", text]
    words += [] if data is None else ["--data", Path(data).name]
    words += [] if model is None else ["--model", model]
    for name, value in columns.items():
        words += [f"--{name}", str(value)]
    for text in overrides:
        words += ["--set", text]
    if opacus is not None:
        words += ["--opacus", Path(opacus).name, "--delta", f"{delta:g}"]
    words += [] if seed == AUDIT_SEED else ["--seed", str(seed)]
    words += ["--trust-code"] if trust_code else []
    return shlex.join(words)


def _overridden(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings by audit, and those of `--data`, from "section.key=value"."""
    raw: dict[str, Any] = {}
    for text in overrides:
        key, value = parsed(text)
        if len(key.split(".")) != {"audits": 3, "data": 2}.get(key.partition(".")[0]):
            raise UsageError(
                f"--set {key} is not a setting of an audit of a stored trace",
                expected="audits.NAME.KEY=VALUE or data.KEY=VALUE",
                got=repr(text),
                remedy="how a run trains is set with `fedaudit run --set`",
            )
        override(raw, key, value)
    return raw.get("audits", {}), raw.get("data", {})


def _refuse_unasked(built: Mapping[str, Any], which: str) -> None:
    """Records and a model were handed over: refuse if no audit would look at them."""
    if any({"records", "games"}.intersection(audit.needs) for audit in built.values()):
        return
    asking = [
        n for n in AUDITS if {"records", "games"}.intersection(find(AUDITS, "audit", n).needs)
    ]
    raise UsageError(
        "records were given, and no audit asks about any",
        expected=f"one of the audits that do: {', '.join(asking)}",
        got=f"the audits {which}: {', '.join(built) or 'none'}",
        remedy="--only two_stage_membership, or leave --data and --model out",
    )


def _refuse_study(folder: Path) -> None:
    """A study has no trace of its own: each of its runs has."""
    if not is_study(folder) or (folder / "trace").is_dir():
        return
    runs = ", ".join(str(e.path) for e in entries(folder))
    raise UsageError(
        f"{folder} is a study of several runs",
        expected="one trace, or the run that holds it",
        got=f"a study; its runs are {runs}",
        remedy=f"fedaudit audit {entries(folder)[0].path}",
    )


def _private(home: Path, in_run: bool) -> Config | None:
    """The whole config of a run, where it lies beside its truth."""
    file = home / "truth" / "config.toml"
    if not in_run or not file.is_file():
        return None
    try:
        raw = read_toml(file)
        return load({k: v for k, v in raw.items() if k != "audits"})
    except ConfigError:
        return None  # audits that need it say so


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
