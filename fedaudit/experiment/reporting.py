"""From stored results to a report: report.html, report.md, results.json and findings.json.

A chapter is one recorded federation; a study is several of them on one page. findings.json and
results/ are logs beside the truth and keep the names of the trace; in everything else clients have
pseudonyms unless names are asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import platform
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Any

from fedaudit import __version__
from fedaudit.errors import TraceError, UsageError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.folders import AUDITED, NOT_RERUN, Command, commands, config_text, places
from fedaudit.experiment.promised import promised
from fedaudit.report.chapter import Chapter
from fedaudit.report.findings import BLIND, FAILED, REMEDY, judge_all
from fedaudit.report.machine import machine
from fedaudit.report.markdown import markdown
from fedaudit.report.names import renamed
from fedaudit.report.page import page
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
    what was promised. `chapter` is what its report shows, clients named as there.
    """

    path: Path
    results: tuple[AuditResult, ...]
    findings: tuple[Finding, ...]
    summary: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    guarantees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chapter: Chapter | None = None


def quietly(stage: str, done: int, total: int, note: str) -> None:
    """The progress of someone who does not look."""


UNNAMED = (ANONYMOUS, AGGREGATOR)
"""Senders that name nobody."""


def summarise(
    trace: Trace,
    truth: Truth | None,
    guarantees: Mapping[str, Any] | None = None,
    config: str = "",
    members_given: bool = False,
) -> dict[str, str]:
    """The federation in a few lines; `guarantees` as in `Run`, by default those of the truth.

    `config`: the settings of the run as TOML, which name the data and what is learnt from it.
    `members_given`: whether membership was scored by records that were handed over (--data).
    """
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
    about_data = _data(trace, truth, config)
    lines = {"data": about_data} if about_data else {}
    lines |= {
        "federation": f"{len(clients)} clients, {len(trace.rounds)} rounds"
        + (f", {how}" if how else ""),
        "model": f"{_model(trace)}, {trace.layout.width:,} recorded numbers per message",
        "protected by": ", ".join(_named(d) for d in trace.manifest.declared)
        or "nothing that was declared",
    }
    if guarantees is None:
        guarantees = {} if truth is None else truth.facts.get("guarantees", {})
    said = [_promise(name, list(given.values())) for name, given in guarantees.items() if given]
    if said:
        lines["promised"] = "; ".join(said)
    if truth is not None and truth.facts.get("notes"):
        lines["noted"] = "; ".join(_noted(str(n)) for n in truth.facts["notes"])
    if truth is None:
        lines["truth"] = (
            "none beside the trace: membership is scored by the records that were given (--data); "
            "other attacks run blind, their guesses are not scored"
            if members_given
            else "none beside the trace: attacks run blind, their guesses are not scored"
        )
    elif not_rerun(trace):
        lines["held out"] = (
            f"not known: the model was trained without {_listed(not_rerun(trace))}, and training "
            "was not rerun"
        )
    elif len(trace.rounds):
        metrics = truth.metrics(trace.rounds[-1])
        if metrics:
            lines["held out"] = _held_out(
                metrics,
                int(truth.facts.get("held_out", 0)),
                truth.facts.get("guessing", {}),
                vocabulary_of(trace),
            )
    if not trace.manifest.complete:
        lines["state"] = "unfinished: what was recorded so far"
    return lines


def not_rerun(trace: Trace) -> list[str]:
    """Protections that were applied to the stored trace and would have changed its model: what the
    recorded model is worth says nothing of a model under them."""
    return [
        str(d.get("name", "?")) for d in trace.manifest.declared if d.get("applied") == NOT_RERUN
    ]


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


MODELS = {
    "mlp": "a fully connected network (mlp)",
    "cnn": "a convolutional network (cnn)",
    "vit": "a vision transformer (vit)",
    "vae": "a variational autoencoder (vae)",
    "gpt": "a small language model (gpt)",
    "lora": "low-rank adapters on a frozen language model (lora)",
    "module": "a network of the user's own (module)",
}


def _model(trace: Trace) -> str:
    kind = str(trace.manifest.task.get("kind", "a model of unknown kind"))
    return MODELS.get(kind, kind)


LEARNT = {
    "gpt": "continue its texts",
    "lora": "continue its texts",
    "vae": "draw records like it",
}
"""What a model of each kind learns from the data; any other, a class or label."""


def _data(trace: Trace, truth: Truth | None, config: str) -> str:
    """Which data there is, how much of it, and what is learnt from it; empty if nobody knows."""
    given, kind = _table(config, "data"), str(trace.manifest.task.get("kind", ""))
    if given.get("name"):
        from fedaudit.data.builtin import BUILTIN
        from fedaudit.data.fetch import SOURCES

        name = str(given["name"])
        known = BUILTIN.get(name) or SOURCES.get(name)
        text = f"{known.summary} ({name})" if known is not None and known.summary else name
    elif given.get("path"):
        text = Path(str(given["path"]).replace("\\", "/")).name
    else:
        return ""
    if truth is not None:
        own = [c.get("records", ()) for c in truth.facts.get("clients", {}).values()]
        text += f", {sum(map(len, own)):,} records with the clients"
        if truth.facts.get("held_out"):
            text += f" and {int(truth.facts['held_out']):,} held out"
    label = f"predict {given['label']}" if given.get("label") else "predict its class"
    return f"{text}; to {LEARNT.get(kind, label)}" if kind else text


POOLED = {
    "missing values filled over all records": "filling",
    "columns standardised over all training records": "standardising",
}
"""Notes on what looks at everybody's records, and what to call it."""


def _noted(note: str) -> str:
    """A note on the data; what looked at everybody's records says that nothing covers it."""
    for start, doing in POOLED.items():
        if note.startswith(start):
            return f"{note} ({doing} looks at the records of all clients; no epsilon covers that)"
    return note


def vocabulary_of(trace: Trace) -> int | None:
    """How many tokens a language model of ours chooses from; None for any other."""
    task = trace.manifest.task
    if task.get("kind") == "gpt":
        for entry in trace.layout.entries:
            if entry.name == "tokens.weight":
                return int(entry.shape[0])
    known = task.get("kind") == "gpt" or (task.get("kind") == "lora" and not task.get("model"))
    size = task.get("vocabulary_size")
    return size if known and isinstance(size, int) and size > 1 else None


def _held_out(
    metrics: Mapping[str, float],
    records: int,
    guessing: Mapping[str, float] | None = None,
    vocabulary: int | None = None,
) -> str:
    """Held-out metrics of the last model with intervals, and what guessing gives: by the
    frequency of classes, or (`vocabulary`) with every token alike."""
    parts = []
    for name, value in metrics.items():
        if name.endswith("_error"):
            continue
        text = f"{name} {value:.3f}"
        if name == "accuracy" and records:
            e = wilson(round(value * records), records)
            text += f" [{e.low:.3f}, {e.high:.3f}] at 95 % (Wilson, n = {records})"
        elif f"{name}_error" in metrics and math.isfinite(value):
            wide = NormalDist().inv_cdf(0.975) * metrics[f"{name}_error"]
            of = f"n = {records}" if vocabulary is None else f"over the windows of {records} texts"
            how = f"normal interval, {of}" if records else "normal interval"
            text += f" [{value - wide:.3f}, {value + wide:.3f}] at 95 % ({how})"
        if guessing and name in guessing:
            text += f", by guessing {guessing[name]:.3f}"
        elif name == "loss" and vocabulary is not None:
            text += f", by guessing among {vocabulary:,} tokens alike {math.log(vocabulary):.3f}"
        parts.append(text)
    return "; ".join(parts)


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


ALLOCATION = "allocation.json"
TRUTHLESS = ("coverage", "query_plan")
"""Audits that read the recording alone: nothing of theirs is scored."""

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
    """What a report says of one run or audited trace, under the names of the trace."""
    guarantees = promised(path, trace, truth)
    known = {} if truth is None else truth.facts.get("clients", {})
    config = config_text(path)
    given = asked_with_records(path)
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
        findings=judge_all(results, {str(d.get("name", "?")) for d in trace.manifest.declared}),
        results=tuple(results),
        guarantees=guarantees,
        evidence=_evidence(path, trace, truth),
        config=_without_folders(config),
        clients=tuple(clients_of(trace)),
        notices=_notices(trace, truth, results, config, given),
        trust={str(d.get("name", "?")): str(d.get("trust", "")) for d in trace.manifest.declared},
        cards={r.audit: card(r.audit) for r in results if r.audit in AUDITS},
        names={
            party: str(about["name"])
            for party, about in known.items()
            if isinstance(about, Mapping) and about.get("name")
        },
        allocation=_allocation(path / ALLOCATION),
    )


def _allocation(file: Path) -> dict[str, Any] | None:
    """What noise per client would change, where a run worked it out."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "clients" in found else None


def chapter_at(
    path: str | os.PathLike[str], *, federation: str | None = None, variant: str = ""
) -> Chapter:
    """The chapter of a folder with a run or an audited trace, from what is stored there."""
    folder = Path(path)
    return chapter_of(folder, *_stored(folder), federation=federation, variant=variant)


def _table(config: str, name: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(config).get(name, {})
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _name(path: Path, trace: Trace, config: str) -> str:
    """What to call a federation that was not given a name: after its data, or its folder."""
    data = _table(config, "data")
    if data.get("name"):
        return str(data["name"])
    if data.get("path"):
        return Path(str(data["path"])).stem
    folder = trace.path.resolve()
    return folder.name if folder.name != "trace" else path.resolve().name


def _without_folders(config: str) -> str:
    """Where a file lies on one's disk is nobody's business: its name is enough."""
    return re.sub(r'^(\s*path = ")[^"\n]*[/\\]([^"/\\\n]+")', r"\1\2", config, flags=re.MULTILINE)


def _notices(
    trace: Trace,
    truth: Truth | None,
    results: Sequence[AuditResult],
    config: str,
    given: Collection[str],
) -> list[str]:
    """What must be known before the first number. `given`: audits by records that were handed
    over, whose clients tell members without a truth."""
    out = []
    if not trace.manifest.complete:
        planned = _table(config, "federation").get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        out.append(
            f"Unfinished: {len(trace.rounds)}{of} rounds are recorded so far. Everything below "
            "rests on these alone."
        )
    done = {r.audit for r in results}
    missing = [name for name in _table(config, "audits") if name not in done]
    if missing:
        out.append(f"Unfinished: no result yet of {', '.join(missing)}.")
    failed = [r for r in results if (r.not_applicable or "").startswith(FAILED)]
    out += [f"Failed: {r.audit}: {(r.not_applicable or '').removeprefix(FAILED)}" for r in failed]
    if truth is not None:
        return out
    scored = [r for r in results if r.estimates and r.audit not in TRUTHLESS]
    if any(r.audit not in given for r in scored):
        out.append("The truth has been removed since: scores are as they were stored.")
    else:
        out.append(_blind(results, [r.audit for r in scored]))
    return out


def _blind(results: Sequence[AuditResult], by_records: Collection[str] = ()) -> str:
    """What a trace without truth still tells: which attacks were scored by the records that were
    given, which guessed, and which could not run."""
    attacks = [r for r in results if r.audit not in TRUTHLESS and r.audit not in by_records]
    guessed = [r.audit.replace("_", " ") for r in attacks if _guessed(r)]
    others = [r.audit.replace("_", " ") for r in attacks if not _guessed(r)]
    said = "Blind: there is no truth beside the trace, so that no attack can be scored."
    if by_records:
        names = _listed([name.replace("_", " ") for name in by_records])
        was = "was" if len(by_records) == 1 else "were"
        said = (
            f"No truth beside the trace: {names} {was} scored by the records that were given "
            "(--data), which say whose they are; no other attack can be scored."
        )
    if guessed:
        said += f" What {_listed(guessed)} guessed is shown below; it may be right."
    if others:
        said += f" {_listed(others)} did not run: what each needs is said beside it."
    return said


def _guessed(r: AuditResult) -> bool:
    return (r.not_applicable or "").startswith(BLIND)


def asked_with_records(folder: Path) -> set[str]:
    """Audits whose stored result is about records that were handed over (--data)."""
    out = set()
    for name in AUDITS:
        try:
            stamped = json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))
            if stamped["asked"]["records"].get("data_sha256"):
                out.add(name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # no result, or of an audit that asks about no records
    return out


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


LIBRARIES = ("numpy", "torch", "scipy", "scikit-learn", "dp-accounting")


def _evidence(path: Path, trace: Trace, truth: Truth | None) -> dict[str, str]:
    """Hashes, versions, and how to do it again."""
    out = {"trace sha256": trace.sha256}
    try:
        stamp = json.loads((path / "run.json").read_text(encoding="utf-8"))
        out["config sha256"] = str(stamp["config_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a foreign trace has no config of ours
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


RUN_AGAIN = "fedaudit run config.toml --seed SEED --out NEW (seed: truth/)"


def _again(path: Path, trace: Trace) -> str:
    """The commands that led to a report: the run, where it was one, and audits with arguments."""
    done = list(dict.fromkeys(c.command for c in commands(path)))
    ran = (path / "run.json").is_file() and trace.path.resolve() == (path / "trace").resolve()
    if ran:
        # what the run itself asks is asked again by it
        return "; then ".join([RUN_AGAIN, *(c for c in done if c != "fedaudit audit RUN")])
    if not done:  # written before commands were kept: what the trace says of itself
        applied = [str(d.get("name")) for d in trace.manifest.declared if "applied" in d]
        done = [" ".join(["fedaudit audit TRACE", *(f"--as {name}" for name in applied)])]
    return "; then ".join(done)


def result_sha256(file: Path) -> str:
    """Of a stored result: of what was found, as JSON with sorted keys and no blanks.

    What it was asked for holds a keyed hash, which is another in every run.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["result"]
    except (OSError, ValueError, KeyError, TypeError):
        return "cannot be read"
    plain = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def _versions() -> list[str]:
    out = []
    for name in LIBRARIES:
        try:
            out.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return out


HEADINGS = ("Question", "Vantage", "Paper", "Differs", "Shapes")


PARTIES = {"SERVER": "the server", "WIRETAP": "a wiretap"}
"""How a card writes who looks, and how a report does."""


def card(audit: str) -> dict[str, tuple[str, ...]]:
    """The card of an audit, from the docstring of its module: heading -> paragraphs."""
    module = find(AUDITS, "audit", audit).__module__
    for name in (module, module.rpartition(".")[0]):
        text = importlib.import_module(name).__doc__ or ""
        if re.search(r"^Differs:", text, re.MULTILINE):
            return read_card(text)
    return {}


def read_card(text: str) -> dict[str, tuple[str, ...]]:
    """Headings of a docstring and what stands below them; lists of files are left out."""
    pieces = re.split(rf"^({'|'.join(HEADINGS)}):", text, flags=re.MULTILINE)
    out = {}
    for heading, inside in zip(pieces[1::2], pieces[2::2], strict=True):
        paragraphs = []
        for block in re.split(r"\n\s*\n", inside):
            if not block.strip() or re.match(r"\n*    \S", block) or block.startswith("Read "):
                continue
            for item in re.split(r"(?:^|\n)- |\s(?=\(\d\) )", block):
                plain = " ".join(item.split()).replace(" One file per part:", "").replace("`", "")
                for party, words in PARTIES.items():
                    plain = plain.replace(party, words)
                if plain:
                    paragraphs.append(plain[0].upper() + plain[1:])
        out[heading] = tuple(paragraphs)
    return out


# -- files ----------------------------------------------------------------------------------------


def write_report(
    path: Path,
    trace: Trace,
    truth: Truth | None,
    results: Sequence[AuditResult],
    *,
    names: bool = False,
    done_by: Sequence[Command] | None = None,
) -> Run:
    """Judge the results and write findings.json and the report in all its forms.

    `done_by`: the commands that asked for the results; None: as they are stored already.
    """
    done = commands(path) if done_by is None else done_by
    try:
        path.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {}
        if trace.path.resolve() != (path / "trace").resolve():
            about["trace"] = os.path.relpath(trace.path, path)
            if truth is not None:
                about["truth"] = os.path.relpath(truth.path, path)
        if done:
            about["done_by"] = [asdict(c) for c in done]
        if about or (path / AUDITED).exists():
            write_atomically(path / AUDITED, json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise unwritable(path, error) from None
    chapter = chapter_of(path, trace, truth, results)
    try:
        found = [f.to_dict() for f in chapter.findings]
        dumped = json.dumps(found, indent=1, allow_nan=False) + "\n"
        write_atomically(path / "findings.json", dumped)
    except OSError as error:
        raise unwritable(path, error) from None
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

    `notices` are about all of them: what is not in the report, and why. Clients are pseudonymised
    unless `names`. Back come the chapters as they are shown.
    """
    if not chapters:
        raise UsageError(
            "there is nothing to report",
            expected="at least one audited run",
            got="none",
            remedy="fedaudit run, then fedaudit report RUN",
        )
    folder, shown = Path(path), [renamed(c, names) for c in chapters]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "results.json", machine(shown, notices))
        write_atomically(folder / "report.md", markdown(shown, notices))
        write_atomically(folder / "report.html", page(shown, notices=notices))
    except OSError as error:
        raise unwritable(folder, error) from None
    return shown


def report(path: str | os.PathLike[str], *, names: bool = False) -> Run:
    """Write the report of a run again from its stored results."""
    folder = Path(path)
    return write_report(folder, *_stored(folder), names=names)


def _stored(folder: Path) -> tuple[Trace, Truth | None, list[AuditResult]]:
    """What a folder holds; refused where nothing was recorded or audited."""
    recorded, known = places(folder)
    trace = Trace.open(recorded)
    truth = Truth.open(known) if (known / "truth.json").exists() else None
    if not len(trace.rounds):
        raise TraceError(
            f"{folder} is empty: nothing was recorded yet",
            expected="at least one recorded round",
            got="none",
            remedy=f"fedaudit run config.toml --out {folder}",
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
    return trace, truth, results


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
