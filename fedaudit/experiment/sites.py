"""Truth that stays at the sites: guesses go out, counts come back, nobody holds it all.

    attack   at the server: a trace in, guesses out (JSON). No truth is read.
    score    at a site: guesses and the site's own recording in, counts out.
    merge    anywhere: guesses and the counts of the sites in, a report out.

A site finds its own messages among the guesses by their digest: it sent these numbers. What it
returns are counts over all rounds (links there were, links that were found, links that chance would
have found), from which nobody learns which message was whose.

For membership a site first writes records to be asked about, half of them its own, and keeps the
key (`ask`); the server scores them blindly; the site counts how many pairs of a member and another
record were put in the right order. Records do leave the site then: ask about those that may.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit import __version__
from fedaudit.audits.fingerprint import scores
from fedaudit.errors import FormatError, NotApplicable, TraceError, UsageError
from fedaudit.experiment.catalogue import AUDITS, find
from fedaudit.experiment.config import plain
from fedaudit.experiment.reporting import Run, unwritable, write_study
from fedaudit.randomness import Seed
from fedaudit.report.chapter import Chapter
from fedaudit.report.findings import judge_all
from fedaudit.results import AuditResult, Estimate
from fedaudit.settings import check
from fedaudit.trace import Trace
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import strict_json
from fedaudit.trace.store import write_atomically

GUESSES, COUNTS = "fedaudit-guesses", "fedaudit-counts"
VERSION = 1
LINKS, MEMBERS = "fingerprint", "two_stage_membership"
AT_SITES = (LINKS, MEMBERS)
"""Audits whose guesses a site can score by itself."""
KEY = "fedaudit-key"


def digest(row: npt.NDArray[Any], trace_sha256: str) -> str:
    """What tells a message apart, to those who know its numbers (d,)."""
    own = np.ascontiguousarray(row, dtype=np.float32)
    return hashlib.sha256(trace_sha256.encode() + own.tobytes()).hexdigest()[:32]


# -- at the server --------------------------------------------------------------------------------


def attack(
    trace: Trace,
    out: str | os.PathLike[str],
    audits: Sequence[str] | None = None,
    *,
    asked: Sequence[str | os.PathLike[str]] = (),
    model: str | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Guess, and write the guesses to the file `out`. Needs no truth, and looks for none.

    `asked` are the sites' files of records, for membership, and `model` the
    "package.module:function" that builds the torch module. By default: membership if records are
    asked about, linkage otherwise.
    """
    found = {}
    for name in audits or ([MEMBERS] if asked else [LINKS]):
        if name not in AT_SITES:
            raise UsageError(
                f"{name} cannot be scored at sites",
                expected=", ".join(AT_SITES),
                got=name,
                remedy="score it where its truth is: fedaudit audit",
            )
        audit = check(find(AUDITS, "audit", name), {}, f"audits.{name}")
        view = trace.seen_by(*audit.vantage.split("+"))
        rng = Seed(seed).generator("attack/" + name)
        told = (
            _linked(audit, view, trace, rng)
            if name == LINKS
            else _surveyed(audit, view, trace, rng, asked, model)
        )
        about = {"question": audit.question, "source": audit.source, "vantage": view.vantage}
        found[name] = {"settings": plain(audit), **about, **told}
    raw = {
        "format": GUESSES,
        "version": VERSION,
        "fedaudit": __version__,
        "trace_sha256": trace.sha256,
        "layout": trace.layout.to_dict(),
        "federation": f"{len(trace.rounds)} rounds",
        "audits": found,
    }
    _write(out, raw)
    return raw


def _linked(audit: Any, view: Any, trace: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Labels of all messages, which are named by their digests."""
    from fedaudit.audits.audit import Knowledge

    guess = audit.attack(view, Knowledge(), rng)
    block = {number: trace.block(number) for number in guess.rounds}
    messages = {number: trace.messages(number) for number in guess.rounds}
    return {
        "settings": {**plain(audit), "clients": guess.clients},
        "rounds": list(guess.rounds),
        "messages": [
            [digest(block[n][messages[n][i].parts[MODEL]], trace.sha256) for i in own]
            for n, own in zip(guess.rounds, guess.messages, strict=True)
        ],
        "methods": list(guess.labels),
        "labels": {m: [list(own) for own in v] for m, v in guess.labels.items()},
    }


def _surveyed(
    audit: Any,
    view: Any,
    trace: Trace,
    rng: np.random.Generator,
    asked: Sequence[str | os.PathLike[str]],
    model: str | None,
) -> dict[str, Any]:
    """One number per record that was asked about: greater means that its site trained on it."""
    import torch

    from fedaudit.audits.audit import Candidates, Knowledge
    from fedaudit.audits.two_stage_membership.scores import statistics_of
    from fedaudit.data.dataset import Dataset
    from fedaudit.experiment.knowledge import fits, noise_of
    from fedaudit.tasks.catalogue import Module

    if not asked or model is None:
        raise NotApplicable(
            "no records to ask about",
            expected="files that sites wrote with `fedaudit ask`, and the model",
            got=f"{len(asked)} files, model {model!r}",
            remedy="--asked FILE, once per site, and --model package.module:function",
        )
    pools: dict[str, Candidates] = {}
    files: dict[str, str] = {}
    classes: tuple[str, ...] = ()
    for file in asked:
        party, x, y, own = _read_asked(file)
        classes = classes or own
        if own != classes:
            raise UsageError(
                "sites number their classes differently",
                expected=", ".join(classes),
                got=f"{', '.join(own)} ({file})",
                remedy="give every site's table at least one record of every class",
            )
        if party in pools:
            raise UsageError(
                f"{party} asks twice",
                expected="one file per site",
                got=str(file),
                remedy="leave one out",
            )
        pools[party] = Candidates(torch.from_numpy(x), torch.from_numpy(y))
        files[party] = _sha256(file)
    together = Dataset(
        name="records that sites ask about",
        kind="image" if next(iter(pools.values())).x.ndim > 2 else "features",
        classes=classes,
        x=np.concatenate([p.x.numpy() for p in pools.values()]),
        y=np.concatenate([p.y.numpy() for p in pools.values()]),
    )
    task = Module(factory=model).build(together, Seed(0))
    fits(task, trace)
    known = Knowledge(task=task, candidates=pools, noise=noise_of(trace))
    guess = audit.attack(view, known, rng)
    name, values = next(iter(statistics_of(guess).items()))
    scored = {}
    for at, party in enumerate(guess.parties):
        own = values[at][guess.present[at]]
        scored[files[party]] = [float(v) if np.isfinite(v) else None for v in own]
    return {"statistic": name, "scores": scored}


def _read_asked(file: str | os.PathLike[str]) -> tuple[str, Any, Any, tuple[str, ...]]:
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as raw:
            party, x, y = str(raw["party"]), raw["x"], raw["y"]
            classes = tuple(str(c) for c in raw["classes"])
        if len(x) != len(y) or not len(x):
            raise ValueError(f"{len(x)} records and {len(y)} labels")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"{file} holds no records to ask about",
            expected="a file that `fedaudit ask` wrote",
            got=f"{type(error).__name__}: {error}",
            remedy="ask the site to send it again",
        ) from None
    return party, x, y, classes


# -- at a site ------------------------------------------------------------------------------------


def ask(
    own: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    model: str,
    columns: Mapping[str, Any] | None = None,
    records: int = 64,
) -> int:
    """Write records to be asked about, half of them this site's own, and the key that stays here.

    `data` is a table whose client column names this site's party (see its recording `own`), and
    anything else for records that nobody trained on. Returns how many records are asked about.
    """
    import secrets
    from dataclasses import replace

    from fedaudit.experiment import knowledge

    trace = Trace.open(own)
    party = _whose(trace)
    found = knowledge.of_files(trace, Path(data), model=model, settings=columns)
    mine = replace(found, own={k: v for k, v in found.own.items() if k == party})
    pools, members, _ = knowledge.candidates(mine, records, Seed(secrets.randbits(64)))
    pool = pools[party]
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            classes = np.array(mine.own[party].classes, dtype=str)
            np.savez(
                file, party=np.array(party), classes=classes, x=pool.x.numpy(), y=pool.y.numpy()
            )
    except OSError as error:
        raise unwritable(path.parent, error) from None
    said = {"asked_sha256": _sha256(path), "member": [bool(m) for m in members[party]]}
    _write(key, {"format": KEY, "version": VERSION, **said})
    return len(pool)


def score(
    guesses: str | os.PathLike[str],
    own: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    site: str,
    key: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Compare guesses with a site's own recording and key; write its counts to the file `out`."""
    raw = _read(guesses, GUESSES)
    counts: dict[str, Any] = {}
    if LINKS in raw["audits"]:
        counts[LINKS] = _score_links(raw, raw["audits"][LINKS], Trace.open(own))
    if MEMBERS in raw["audits"]:
        counts[MEMBERS] = _score_members(raw["audits"][MEMBERS], key)
    found = {
        "format": COUNTS,
        "version": VERSION,
        "site": site,
        "guesses_sha256": _sha256(guesses),
        "audits": counts,
    }
    _write(out, found)
    return found


def _score_links(raw: Mapping[str, Any], guess: Mapping[str, Any], trace: Trace) -> dict[str, Any]:
    party = _whose(trace)
    if trace.layout.to_dict() != raw["layout"]:
        raise TraceError(
            "the site recorded other tensors than the server",
            expected=f"{len(raw['layout']['tensors'])} tensors of {raw['layout']['dtype']}",
            got=f"{len(trace.layout.names)} tensors of {trace.layout.dtype}",
            remedy="record with the same `tensors` and `dtype` on both sides",
        )
    mine = _sent_by(trace, party, raw["trace_sha256"])
    there = [[d in mine for d in round_] for round_ in guess["messages"]]
    if not any(any(r) for r in there):
        raise NotApplicable(
            f"none of the messages of {party} are among the guesses",
            expected="guesses about the federation that this site recorded",
            got=f"{len(mine)} messages of its own, none of which the server has",
            remedy="see that nothing changes a message between the recording and the server",
        )
    return {m: _links(there, v) for m, v in guess["labels"].items()}


def _score_members(guess: Mapping[str, Any], key: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Pairs of a member and another record, and those that the scores put in the right order."""
    if key is None:
        raise UsageError(
            "the guesses are about records",
            expected="the key that `fedaudit ask` wrote at this site",
            got="none",
            remedy="--key FILE",
        )
    known = _read(key, KEY)
    given = guess["scores"].get(known["asked_sha256"])
    if given is None or len(given) != len(known["member"]):
        raise NotApplicable(
            "the records of this site are not among the guesses",
            expected=f"scores of {len(known['member'])} records",
            got="none" if given is None else str(len(given)),
            remedy="send the file that belongs to this key, and ask the server to attack again",
        )
    member = np.array(known["member"], dtype=bool)
    usable = np.array([v is not None for v in given])
    values = np.array([0.0 if v is None else float(v) for v in given])
    inside, outside = values[member & usable], values[~member & usable]
    above = (inside[:, None] > outside[None]).sum()
    ties = (inside[:, None] == outside[None]).sum()
    count = {"members": len(inside), "others": len(outside)}
    return {guess["statistic"]: {**count, "ordered": float(above + 0.5 * ties)}}


def _links(there: Sequence[Sequence[bool]], labels: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A site's links, those that were found, and how many chance would have found."""
    senders = [
        ["here" if own else f"{t}/{i}" for i, own in enumerate(round_)]
        for t, round_ in enumerate(there)
    ]
    joined = scores.links(senders, labels)
    hits = joined.found.get("here", [])
    # only this site's links are links here: their number times the chance is what chance finds
    return {"links": len(hits), "found": int(sum(hits)), "expected": joined.chance * len(hits)}


def _whose(trace: Trace) -> str:
    """The party whose own recording this is: the only one that speaks to the server."""
    senders = {m.sender for n in trace.rounds for m in trace.messages(n)}
    own = sorted(senders - {*trace.manifest.federation.get("hubs", ()), "server"})
    if len(own) != 1:
        raise TraceError(
            f"{trace.path} is not the recording of one site",
            expected="messages of one party, as record_mod writes them",
            got=", ".join(own[:4]) or "no party at all",
            remedy="point to a folder run-ID/node-ID that record_mod wrote at this site",
        )
    return own[0]


def _sent_by(trace: Trace, party: str, salt: str) -> set[str]:
    """Digests of all that a party sent."""
    return {
        digest(trace.block(number)[m.parts[MODEL]], salt)
        for number in trace.rounds
        for m in trace.messages(number)
        if m.sender == party and MODEL in m.parts
    }


# -- anywhere -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """The counts of one site, as they came back."""

    name: str
    audits: Mapping[str, Any]


def merge(
    guesses: str | os.PathLike[str],
    counts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    confidence: float = 0.95,
    names: bool = False,
) -> Run:
    """The report of all sites that answered; under pseudonyms unless `names`."""
    raw = _read(guesses, GUESSES)
    about = _sha256(guesses)
    sites: dict[str, Site] = {}
    for file in counts:
        one = _read(file, COUNTS)
        if one["guesses_sha256"] != about:
            raise TraceError(
                f"{file} counts other guesses",
                expected=f"guesses of sha256 {about[:16]}...",
                got=f"{str(one['guesses_sha256'])[:16]}...",
                remedy="score the same file of guesses at every site",
            )
        if one["site"] in sites:
            raise UsageError(
                f"the site {one['site']!r} answered twice",
                expected="one file of counts per site",
                got=str(file),
                remedy="leave one out, or give sites different names",
            )
        sites[one["site"]] = Site(one["site"], one["audits"])
    if not sites:
        raise UsageError(
            "no site has answered", expected="counts", got="none", remedy="fedaudit score ..."
        )
    merged = {LINKS: _merged, MEMBERS: _merged_members}
    results = [
        merged[name](name, guess, [s for s in sites.values() if name in s.audits], raw, confidence)
        for name, guess in raw["audits"].items()
    ]
    return _report(Path(out), raw, results, list(sites), names)


def _merged(
    name: str,
    guess: Mapping[str, Any],
    sites: Sequence[Site],
    raw: Mapping[str, Any],
    confidence: float,
) -> AuditResult:
    from fedaudit.stats import intervals

    shared: dict[str, Any] = {
        "audit": name,
        "question": guess["question"],
        "vantage": guess["vantage"],
        "settings": guess["settings"],
        "source": guess["source"],
        "trace_sha256": raw["trace_sha256"],
    }
    methods = guess["methods"]
    estimates: dict[str, Estimate] = {}
    linked = [s for s in sites if s.audits[name][methods[0]]["links"]]
    if not linked:
        return AuditResult(**shared, not_applicable="no site took part in two rounds")
    for method in methods:
        of = [s.audits[name][method] for s in linked]
        hits, tries = [c["found"] for c in of], [c["links"] for c in of]
        chance = sum(c["expected"] for c in of) / sum(tries)
        suffix = "" if method == methods[0] else f" ({method})"
        estimates[f"linkage_accuracy{suffix}"] = intervals.clustered_share(
            hits, tries, confidence=confidence, baseline=chance
        )
    own = [s.audits[name][methods[0]] for s in linked]
    hits, tries = [c["found"] for c in own], [c["links"] for c in own]
    headline = estimates["linkage_accuracy"]
    baseline = float(headline.baseline or 0.0)
    everything = intervals.wilson(len(tries), len(tries), confidence=confidence)
    effective = max(1, int(sum(tries) / intervals.design_effect(hits, tries)))
    per_client: dict[str, dict[str, float | int | str | None]] = {}
    for site, c in zip(linked, own, strict=True):
        share = intervals.wilson(c["found"], c["links"], confidence=confidence)
        per_client[site.name] = {
            "links": c["links"],
            "found": c["found"],
            "share": share.value,
            "low": share.low,
            "high": share.high,
        }
    absent = int(guess["settings"].get("clients") or 0) - len(linked)
    notes = [f"counted by {len(linked)} sites, each against its own records"]
    if absent > 0:
        notes.append(f"{absent} of {absent + len(linked)} clients did not answer: not counted")
    return AuditResult(
        **shared,
        headline="linkage_accuracy",
        estimates=estimates,
        per_client=per_client,
        detectable=intervals.smallest_share_above(baseline, effective, confidence=confidence)
        if everything.low > baseline
        else None,
        notes=tuple(notes),
    )


def _merged_members(
    name: str,
    guess: Mapping[str, Any],
    sites: Sequence[Site],
    raw: Mapping[str, Any],
    confidence: float,
) -> AuditResult:
    """AUC over all pairs within sites: Hanley and McNeil's interval of the records, or that of the
    sites' own AUCs where it is wider."""
    from scipy.stats import norm
    from scipy.stats import t as student

    shared: dict[str, Any] = {
        "audit": name,
        "question": guess["question"],
        "vantage": guess["vantage"],
        "settings": guess["settings"],
        "source": f"{guess['source']}; the attack ({guess['statistic']}) is ours",
        "trace_sha256": raw["trace_sha256"],
    }
    counted = [(s.name, s.audits[name][guess["statistic"]]) for s in sites]
    counted = [(n, c) for n, c in counted if c["members"] and c["others"]]
    if not counted:
        return AuditResult(**shared, not_applicable="no site had records of both kinds")
    pairs = np.array([c["members"] * c["others"] for _, c in counted], dtype=np.float64)
    own = np.array([c["ordered"] for _, c in counted]) / pairs
    share = pairs / pairs.sum()
    auc = float(share @ own)
    errors = np.array([_hanley(a, c) for a, (_, c) in zip(own, counted, strict=True)])
    reach = float(norm.ppf(0.5 + confidence / 2)) * float(np.sqrt(share**2 @ errors**2))
    method, k = "Hanley and McNeil over records", len(counted)
    if k >= 3:
        spread = float(np.sqrt((share**2 @ (own - auc) ** 2) * k / (k - 1)))
        wider = float(student.ppf(0.5 + confidence / 2, k - 1)) * spread
        if wider > reach:
            reach, method = wider, "t interval over sites"
    low, high = max(0.0, auc - reach), min(1.0, auc + reach)
    records = sum(c["members"] + c["others"] for _, c in counted)
    estimate = Estimate(
        value=auc,
        low=low,
        high=high,
        n=records,
        confidence=confidence,
        baseline=0.5,
        method=method,
    )
    per_client: dict[str, dict[str, float | int | str | None]] = {
        n: {"members": c["members"], "others": c["others"], "auc": float(a)}
        for a, (n, c) in zip(own, counted, strict=True)
    }
    return AuditResult(
        **shared,
        headline="membership_auc",
        estimates={"membership_auc": estimate},
        per_client=per_client,
        detectable=min(1.0, 0.5 + reach) if reach > 0 else None,
        notes=(f"counted by {k} sites, each with a key of its own",),
    )


def _hanley(auc: float, c: Mapping[str, Any]) -> float:
    """Standard error of an AUC (Hanley and McNeil 1982); never zero at the ends of the scale."""
    m, n = c["members"], c["others"]
    a = min(max(auc, 0.5 / (m * n)), 1 - 0.5 / (m * n))
    first, second = a / (2 - a), 2 * a * a / (1 + a)
    variance = a * (1 - a) + (m - 1) * (first - a * a) + (n - 1) * (second - a * a)
    return float(np.sqrt(max(variance, 0.0) / (m * n)))


def _report(
    path: Path,
    raw: Mapping[str, Any],
    results: Sequence[AuditResult],
    sites: Sequence[str],
    names: bool,
) -> Run:
    findings = judge_all(results)
    summary = {
        "federation": f"{raw['federation']}, {len(sites)} sites answered: {', '.join(sites)}",
        "truth": "stayed at the sites: counts alone came back",
    }
    evidence = {
        "trace sha256": str(raw["trace_sha256"]),
        "fedaudit": __version__,
        "again": "fedaudit merge GUESSES COUNTS...",
    }
    try:
        (path / "results").mkdir(parents=True, exist_ok=True)
        for result in results:
            write_atomically(path / "results" / f"{result.audit}.json", result.to_json())
        dumped = json.dumps([f.to_dict() for f in findings], indent=1, allow_nan=False) + "\n"
        write_atomically(path / "findings.json", dumped)
    except OSError as error:
        raise unwritable(path, error) from None
    (shown,) = write_study(
        path,
        [
            Chapter(
                federation="this federation",
                summary=summary,
                findings=findings,
                results=tuple(results),
                evidence=evidence,
                clients=tuple(sites),
            )
        ],
        names=names,
    )
    return Run(
        path=path,
        results=tuple(results),
        findings=tuple(findings),
        summary=summary,
        metrics={},
        guarantees={},
        chapter=shown,
    )


# -- files ----------------------------------------------------------------------------------------


def _write(file: str | os.PathLike[str], raw: Mapping[str, Any]) -> None:
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(raw, indent=1, sort_keys=True, allow_nan=False) + "\n")
    except OSError as error:
        raise unwritable(path.parent, error) from None


def _sha256(file: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _read(file: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """A file of guesses or counts, with the shape that it must have."""
    try:
        raw = strict_json(Path(file).read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != kind:
            raise ValueError(f"not {kind}")
        if raw.get("version") != VERSION:
            raise ValueError(f"version {raw.get('version')!r}")
        {GUESSES: _check_guesses, COUNTS: _check_counts, KEY: _check_key}[kind](raw)
    except OSError as error:
        raise UsageError(
            f"{file} could not be read",
            expected=kind,
            got=error.strerror or str(error),
            remedy="point to the file that was sent",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{file} holds no {kind.removeprefix('fedaudit-')}",
            expected=f'"format": "{kind}", version {VERSION}',
            got=f"{type(error).__name__}: {error}",
            remedy="send it again, as `fedaudit attack` or `fedaudit score` wrote it",
        ) from None
    return raw


def _check_guesses(raw: Mapping[str, Any]) -> None:
    for name, guess in raw["audits"].items():
        if name not in AT_SITES:
            raise ValueError(f"an audit {name!r} that sites do not score")
        if not all(isinstance(guess[k], str) for k in ("question", "source", "vantage")):
            raise ValueError("question, source and vantage are text")
        if not isinstance(guess["settings"], dict):
            raise ValueError("settings are an object")
        (_check_labels if name == LINKS else _check_scores)(guess)
    if not isinstance(raw["trace_sha256"], str) or not isinstance(raw["layout"]["tensors"], list):
        raise ValueError("no trace, or no layout")
    if not isinstance(raw["federation"], str) or not raw["audits"]:
        raise ValueError("nothing was guessed")


def _check_labels(guess: Mapping[str, Any]) -> None:
    sizes = [len(round_) for round_ in guess["messages"]]
    for labels in guess["labels"].values():
        whole = all(type(v) is int for own in labels for v in own)
        if [len(own) for own in labels] != sizes or not whole:
            raise ValueError("labels do not fit the messages")
    if not guess["methods"] or sorted(guess["methods"]) != sorted(guess["labels"]):
        raise ValueError("methods do not fit the labels")
    if len(guess["rounds"]) != len(sizes):
        raise ValueError("rounds do not fit the messages")


def _check_scores(guess: Mapping[str, Any]) -> None:
    if not isinstance(guess["statistic"], str):
        raise ValueError("a statistic has a name")
    for own in guess["scores"].values():
        if not all(v is None or type(v) in (int, float) for v in own):
            raise ValueError("scores are numbers")


def _check_key(raw: Mapping[str, Any]) -> None:
    if not isinstance(raw["asked_sha256"], str) or not all(type(m) is bool for m in raw["member"]):
        raise ValueError("a key says of every record whether it is a member")


def _check_counts(raw: Mapping[str, Any]) -> None:
    if not isinstance(raw["site"], str) or not isinstance(raw["guesses_sha256"], str):
        raise ValueError("a site has a name, guesses have a hash")
    for name, methods in raw["audits"].items():
        for c in methods.values():
            whole, part, free = (
                ("links", "found", "expected")
                if name == LINKS
                else ("members", "others", "ordered")
            )
            a, b, x = c[whole], c[part], float(c[free])
            if type(a) is not int or type(b) is not int or a < 0 or b < 0:
                raise ValueError(f"{b!r} and {a!r} are no counts")
            if name == LINKS and b > a:
                raise ValueError(f"{b!r} of {a!r} links")
            if not 0 <= x <= (a if name == LINKS else a * b):
                raise ValueError(f"{free} {x!r} is out of range")
