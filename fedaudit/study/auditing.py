"""Audits of a run or of any stored trace: attack a view, score the guess, keep the result."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import __version__, foreign, shapes
from fedaudit.allocate import keep_allocation
from fedaudit.audits.outright import need_uploads
from fedaudit.codec import to_json
from fedaudit.errors import (
    DataError,
    FedauditError,
    FormatError,
    IntegrityError,
    NotApplicable,
    NothingToSay,
    NotObservable,
    TraceError,
    UsageError,
)
from fedaudit.files import Unreadable, read_object, write_atomically, writing
from fedaudit.hooks import Hook
from fedaudit.knowledge import KnowledgeBuilder, Records, of_config, of_files, of_run
from fedaudit.knowledge.owner_marks import OwnerMarks, model_for_marks
from fedaudit.progress import Progress, no_progress
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import settled
from fedaudit.reporting.shown_records import write_shown_records
from fedaudit.results import AuditResult, Need, Status
from fedaudit.setup.catalogue import AUDITS
from fedaudit.setup.config import Config, plain
from fedaudit.setup.identity import FRESH, code_identity, code_sha256, contents_of, files_named_in
from fedaudit.setup.prepare import Prepared
from fedaudit.study import promised
from fedaudit.study.audit_request import (
    AUDIT_SEED,
    AuditChoice,
    AuditOptions,
    AuditTarget,
    ChosenAudits,
    Place,
    as_command,
    asks_about_records,
    choose_audits,
    choose_protections,
    refuse_nothing_to_show,
    refuse_unused_marks,
    refuse_unused_records,
)
from fedaudit.study.chapters import ALLOCATION, OpenedRun, Run, write_report
from fedaudit.study.folders import AUDITED, AuditCommand, commands_but
from fedaudit.study.recording import examined, resting_on
from fedaudit.study.replay import replay
from fedaudit.study.reuse import Explain, Reuse, differing, keyed, no_explain, truth_digest
from fedaudit.study.seal import (
    SEAL,
    check_seal,
    is_sealed_as,
    require_seal,
    seal,
    seal_written,
)
from fedaudit.study.stored import is_about, stored_results
from fedaudit.study.summary import clients_of
from fedaudit.tasks.catalogue import SCIKIT, load_factory
from fedaudit.trace import WIRETAP, Trace, Truth
from fedaudit.trace.examination import examine


@dataclass(frozen=True, kw_only=True)
class TraceAuditOptions:
    """How audits of one trace are run.

    `keep` is the folder of stored results. `records` loads the records that membership audits ask
    about, when one does; `given` identifies records that do not come from the run itself. `config`
    is that of the run, where it is known. `marks` loads the owner's documents and the model, where
    they were brought. `explain` learns which results were reused, and why.
    Audits in `typed` raise where they fail: the caller just gave their settings. `shown` is the
    private page for training records beside what was rebuilt of them.
    """

    seed: int = AUDIT_SEED
    keep: Path | None = None
    records: Callable[[], Records] | None = None
    given: Callable[[], Mapping[str, Any]] = dict
    config: Config | Prepared | None = None
    marks: Callable[[], tuple[OwnerMarks, Any]] | None = None
    progress: Progress = no_progress
    explain: Explain = no_explain
    typed: Collection[str] = ()
    shown: Path | None = None


def audit_trace(
    audits: Mapping[str, Any], trace: Trace, truth: Truth | None, how: TraceAuditOptions
) -> list[AuditResult]:
    """Run audits on a trace. A stored result that would come out the same is kept.

    An audit that fails is named in its result, and the others go on.
    """
    health = examine(trace)
    builder = KnowledgeBuilder(trace, truth, Seed(how.seed), how.records, how.config, how.marks)
    results = []
    for done, (name, audit) in enumerate(audits.items()):
        how.progress("audit", done, len(audits), name)
        asked = _asked(audit, how.seed, truth, None if how.keep is None else how.keep.parent)
        if asks_about_records(audit):
            asked["records"] = {**how.given(), **_source("score", getattr(audit, "score_by", None))}
        if "marks" in audit.needs and how.marks is not None:
            asked["marks"] = how.given()
        kept, why = _kept(how.keep, name, asked, trace)
        show = how.shown if hasattr(audit, "pairs") else None
        if show is not None:
            kept, why = None, "records are to be shown, which no result keeps"
        how.explain(Reuse(name, kept is not None, why))
        one = audit_one if name in how.typed else _guarded
        result = kept or resting_on(health, one(audit, trace, truth, how.seed, builder, show))
        if how.keep is not None and kept is None:
            _store(how.keep / f"{name}.json", asked, result)
            seal_written(how.keep.parent, "results", how.keep / f"{name}.json")
        results.append(result)
    how.progress("audit", len(audits), len(audits), "")
    return results


def _asked(
    audit: Any, seed: int, truth: Truth | None, folder: Path | None = None
) -> dict[str, Any]:
    """What a stored result depends on: settings, the contents of files that these name, draws,
    version, code, and the truth. `folder` holds the result."""
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


def _given(folder: Path, options: AuditOptions) -> dict[str, Any]:
    """What identifies records and a model of the caller's own: contents, not file names.

    Results are public, and a digest of records confirms guesses: it is keyed, with a key that stays
    in the private part of `folder`.
    """
    if options.data is None and options.marks is None:
        return {}
    marks = options.marks
    return {
        **({} if marks is None else {"marks_sha256": keyed(folder / "truth", contents_of(marks))}),
        **({} if options.data is None else _records_given(folder, options)),
        **_source("model", options.model),
    }


def _records_given(folder: Path, options: AuditOptions) -> dict[str, Any]:
    assert options.data is not None
    return {
        "data_sha256": keyed(folder / "truth", contents_of(options.data)),
        "columns": {k: str(v) for k, v in options.columns.items()},
    }


def _source(what: str, where: str | None) -> dict[str, str]:
    """Identify a function of the user's own by name, and by its file and those it imports."""
    if where is None or where.startswith(SCIKIT):
        return {} if where is None else {what: where}
    load_factory(where)  # raises if it cannot be loaded
    return {what: where, f"{what}_sha256": code_identity(where)}


def _store(file: Path, asked: Mapping[str, Any], result: AuditResult) -> None:
    stamped = {"asked": asked, "result": json.loads(result.to_json())}
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_json(stamped) + "\n")


def _kept(
    folder: Path | None, name: str, asked: Mapping[str, Any], trace: Trace
) -> tuple[AuditResult | None, str]:
    """A stored and sealed result that would come out the same, or None; and why."""
    if folder is None:
        return None, "results are not stored"
    found, why = _stored(folder / f"{name}.json", asked, trace)
    if found is not None and not is_sealed_as(folder.parent, folder / f"{name}.json"):
        return None, "the stored result is not as it was sealed"
    return found, why


def _stored(file: Path, asked: Mapping[str, Any], trace: Trace) -> tuple[AuditResult | None, str]:
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
        return None, f"changed since: {changed}"
    if result.headline is None:
        return None, "it measured nothing: tried again"
    return result, f"same settings, code, truth, and trace {trace.sha256[:12]}"


def _guarded(
    audit: Any,
    trace: Trace,
    truth: Truth | None,
    seed: int,
    builder: KnowledgeBuilder,
    shown: Path | None = None,
) -> AuditResult:
    """One audit of several. If it fails, its result says so, and the others go on.

    Torn files end everything: no result of them would be worth anything.
    """
    try:
        return audit_one(audit, trace, truth, seed, builder, shown)
    except (IntegrityError, FormatError):
        raise
    except Exception as error:
        if isinstance(error, FedauditError):
            return _unmeasured(audit, trace, "failed", Need.of(error))
        said = foreign.describe_error(error, package=True)
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
    audit: Any,
    trace: Trace,
    truth: Truth | None,
    seed: int,
    builder: KnowledgeBuilder | None = None,
    shown: Path | None = None,
) -> AuditResult:
    """One audit: attack a view, then score the guess. A missing need is a result, not a crash.

    `shown`: where true and rebuilt records go, side by side.
    """
    draws = Seed(seed)
    builder = builder or KnowledgeBuilder(trace, truth, draws, None)
    try:
        examined(trace)
        need_uploads(trace.seen_by(WIRETAP))
        view = trace.seen_by(*audit.vantage.split("+"))
        knowledge, known = builder.knowledge_for(audit)
        guess = audit.attack(view, knowledge, draws.generator("attack/" + audit.name))
        scored: AuditResult = audit.score(guess, known, draws.generator("score/" + audit.name))
        if shown is not None:
            _show(shown, audit, guess, known, draws.generator("score/" + audit.name))
    except (IntegrityError, FormatError):
        raise  # a torn file says nothing about the federation
    except (NotApplicable, TraceError) as error:
        absent = isinstance(error, NotApplicable | NotObservable)
        absent &= not isinstance(error, NothingToSay)
        status: Status = "not_applicable" if absent else "nothing_to_say"
        return _unmeasured(audit, trace, status, Need.of(error))
    return settled(scored)


def _show(file: Path, audit: Any, guess: Any, truth: Truth | None, rng: Any) -> None:
    """Write the private page of an audit that rebuilds records."""
    pairs = None if truth is None else audit.pairs(guess, truth, rng)
    if pairs is None:
        raise UsageError(
            "there are no records to show",
            expected="rebuilt images or tables, and the truth",
            got="texts, or no truth",
            remedy="leave show_records out",
        )
    with writing(file):
        write_shown_records(file, pairs, "Records and what was rebuilt of them")


def audit_run(
    given: Config | Prepared,
    path: Path,
    progress: Progress = no_progress,
    *,
    names: bool = False,
    explain: Explain = no_explain,
) -> tuple[Run, OpenedRun]:
    """Audit a recorded run and write its report; the trace and truth stay open for the caller."""
    prepared = Prepared.of(given)
    config = prepared.config
    trace, truth = Trace.open(path / "trace"), Truth.open(path / "truth")
    results = audit_trace(
        config.audits,
        trace,
        truth,
        TraceAuditOptions(
            keep=path / "results",
            records=lambda: of_config(prepared, trace, truth),
            config=prepared,
            progress=progress,
            explain=explain,
        ),
    )
    if not is_sealed_as(path, path / ALLOCATION):
        (path / ALLOCATION).unlink(missing_ok=True)
    keep_allocation(config, truth, path / ALLOCATION)
    seal_written(path, "results", path / ALLOCATION)
    done_by = commands_but(path, config.audits)  # the run itself asks for these now
    done = write_report(path, trace, truth, results, names=names, done_by=done_by)
    seal_written(path, "config", path / AUDITED)
    return done, OpenedRun(path, trace, truth)


def audit(
    trace: Place,
    audits: AuditChoice = None,
    *,
    as_if: Sequence[str | Hook] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    truth: Place | None = None,
    out: Place | None = None,
    data: Place | None = None,
    model: str | None = None,
    marks: Place | None = None,
    columns: Mapping[str, Any] | None = None,
    opacus: Place | None = None,
    delta: float = 1e-5,
    seed: int = AUDIT_SEED,
    names: bool = False,
    fresh: bool = False,
    trust_code: bool = False,
    show_records: Place | None = None,
    progress: Progress = no_progress,
    explain: Explain = no_explain,
) -> Run:
    """Attack a recording, and say how much each attack learnt.

    Parameters
        trace: the folder of a run, or of a recording that other software wrote.
        audits: which attacks: objects such as `Fingerprint(methods=("joint",))`, names, or a
            mapping of names to settings. By default those of the run's config, or all. A named
            audit that fails says so in its result; one whose settings are given here raises.
        as_if: protections to apply to the recording first, as objects (`Shuffle()`,
            `Clip(bound=0.5)`) or names. The result is what would have been seen with them.
        settings: single settings of named audits, {"fingerprint": {"methods": ["joint"]}}.
        truth: the folder with the right answers. By default the one beside the recording; without
            it, attacks guess and are not scored.
        out: the folder for results. By default the run, or a folder beside the recording.
        data: a file with the records that membership attacks ask about, whose client column uses
            the recording's names. By default the records of the run.
        model: with `data` or `marks`, the "package.module:function" that builds the torch module,
            or "sklearn:LogisticRegression".
        marks: a folder with a corpus owner's documents and controls, for `attribution`.
        columns: with `data`, its label and client columns and other settings of `[data]`.
        opacus: a JSON file with the state of an Opacus accountant, or one state per client.
        delta: the delta at which the report states what was spent.
        seed: the seed of the attacks' own random draws.
        names: show clients' own names in the report instead of pseudonyms.
        fresh: delete stored results first. Otherwise the files must be unchanged, and stored
            results about the same `data` and `model`.
        trust_code: also load code that the stored config names. Otherwise only code that you name
            here is loaded.
        show_records: a private page to write, with training records beside what
            `reconstruction` rebuilt of them. Reports never show any.
        progress: called as progress(stage, done, total, note).
        explain: called with what was reused, and why.
    """
    options = AuditOptions(
        as_if=choose_protections(as_if),
        settings=settings or {},
        truth=truth,
        out=out,
        data=data,
        model=model,
        marks=marks,
        columns=columns or {},
        opacus=opacus,
        delta=delta,
        seed=seed,
        names=names,
        fresh=fresh,
        trust_code=trust_code,
        show_records=show_records,
        progress=progress,
        explain=explain,
    )
    return audit_with(trace, audits, options)


def audit_with(folder: Place, audits: AuditChoice, options: AuditOptions) -> Run:
    """`audit`, with its options as one object."""
    target = AuditTarget.open(folder)
    chosen = choose_audits(audits, options.settings, target.configured)
    if options.data is not None:
        refuse_unused_records(chosen, bool(target.configured))
    if options.marks is not None:
        refuse_unused_marks(chosen)
    if options.show_records is not None:
        refuse_nothing_to_show(chosen)
    truth = target.truth(options.truth)
    path = target.folder_for(options.as_if) if options.out is None else Path(options.out)
    if options.fresh:
        _forget_results(path, replayed=bool(options.as_if))
    _check_folder(path, target, options)
    trace, truth = _as_seen(path, target.trace, truth, options)
    own = {*chosen.texts, *([] if options.model is None else [options.model])}
    with foreign.only(None if options.trust_code else own):
        how = _trace_options(path, target, chosen, options, trace, truth)
        results = audit_trace(chosen.audits, trace, truth, how)
    results += _earlier(path, trace, results)
    typed = AuditCommand(as_command(target, chosen, options), tuple(chosen.audits))
    done_by = [*commands_but(path, chosen.audits), typed]
    done = write_report(path, trace, truth, results, names=options.names, done_by=done_by)
    seal_written(path, "config", path / AUDITED)
    if not (target.in_run and path == target.home):
        seal(path, "trace", "truth")
    return done


def _check_folder(path: Path, target: AuditTarget, options: AuditOptions) -> None:
    """Refuse files that were changed since they were sealed, and results about other records."""
    if target.in_run:
        require_seal(target.home, but=("results",), rewritten=(AUDITED,))
    if path != target.home and (path / SEAL).exists():
        # a trace that lies elsewhere may have grown since: earlier results about it are left out
        check_seal(path, but=("results", "trace"), rewritten=(AUDITED,))
    _refuse_other_records(path, _given(path, options))


def _as_seen(
    path: Path, trace: Trace, truth: Truth | None, options: AuditOptions
) -> tuple[Trace, Truth | None]:
    """The trace behind the protections of `as_if`, and its truth with what was promised."""
    if options.as_if:
        # drawn in secret: who knows the seed of a shuffle can undo it
        trace, truth = replay(trace, options.as_if, path, Seed(secrets.randbits(64)), truth)
    for name in (promised.FILE, ALLOCATION):
        _refuse_unsealed(path, name)
    if options.opacus is not None:
        spent = promised.read_opacus(Path(options.opacus), options.delta, clients_of(trace))
        promised.hand_over(path, trace, "opacus", spent)
        seal_written(path, "results", path / promised.FILE)
    return trace, promised.with_guarantees(path, trace, truth)


def _trace_options(
    path: Path,
    target: AuditTarget,
    chosen: ChosenAudits,
    options: AuditOptions,
    trace: Trace,
    truth: Truth | None,
) -> TraceAuditOptions:
    def records() -> Records:
        if options.data is None:
            return of_run(target.home, trace, truth)
        return of_files(
            trace,
            Path(options.data),
            model=options.model,
            settings=options.columns,
            # a score of one's own takes whatever the module gives
            logits=any(
                asks_about_records(a) and not getattr(a, "score_by", None)
                for a in chosen.audits.values()
            ),
        )

    config = target.private_config()
    place = options.marks

    def brought() -> tuple[OwnerMarks, Any]:
        assert place is not None
        return OwnerMarks.read(place), model_for_marks(trace, config, options.model)

    return TraceAuditOptions(
        seed=options.seed,
        keep=path / "results",
        marks=None if place is None else brought,
        records=records,
        given=lambda: _given(path, options),
        config=config,
        progress=options.progress,
        explain=options.explain,
        shown=None if options.show_records is None else Path(options.show_records),
        typed=chosen.typed if options.data is None and place is None else chosen.audits,
    )


def _earlier(path: Path, trace: Trace, now: Sequence[AuditResult]) -> list[AuditResult]:
    """Stored results of other audits about the same trace: they stay in the report."""
    names = {r.audit for r in now}
    earlier = [r for r in stored_results(path) if r.audit not in names and is_about(r, trace)]
    for r in earlier:
        _refuse_unsealed(path, f"results/{r.audit}.json")
    return earlier


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
    """Refuse a folder whose results are about other records, or made with another model."""
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
            remedy="restore it from a copy, audit again, or remove all results with `fresh=True`",
        )
