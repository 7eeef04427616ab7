"""Anywhere: guesses and the counts of the sites in, a report out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit import __version__
from fedaudit.codec import to_json
from fedaudit.errors import FormatError, TraceError, UsageError, count_of
from fedaudit.files import write_atomically, writing
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all, settled
from fedaudit.results import AuditResult, Estimate, Need
from fedaudit.sites.coins import merge_coins
from fedaudit.sites.files import COINS, COUNTS, GUESSES, LINKS, MEMBERS, read, sha256
from fedaudit.stats import intervals, power
from fedaudit.study.chapters import Run, write_study


@dataclass(frozen=True)
class SiteCounts:
    """The counts that one site returned."""

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
    """Write the report of all sites that answered; with pseudonyms unless `names`."""
    raw = read(guesses, GUESSES)
    about = sha256(guesses)
    sites: dict[str, SiteCounts] = {}
    for file in counts:
        one = read(file, COUNTS)
        if one["guesses_sha256"] != about:
            raise TraceError(
                f"{file} scores other guesses",
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
        _refuse_other_methods(file, raw["audits"], one["audits"])
        sites[one["site"]] = SiteCounts(one["site"], one["audits"])
    if not sites:
        raise UsageError(
            "no site has answered", expected="counts", got="none", remedy="fedaudit score ..."
        )
    merged = {LINKS: _merge_linkage, MEMBERS: _merge_membership, COINS: _merge_epsilon}
    results = []
    for name, guess in raw["audits"].items():
        answered = [s for s in sites.values() if name in s.audits]
        result = settled(merged[name](name, guess, answered, raw, confidence))
        counted = _counted(raw)
        results.append(
            replace(result, arrived=counted.get("arrived"), expected=counted.get("expected"))
        )
    return _report(Path(out), raw, results, list(sites), names)


def _counted(raw: Mapping[str, Any]) -> dict[str, int]:
    """Answers that arrived and were expected; empty for files without these counts."""
    arrived, expected = raw.get("arrived"), raw.get("expected")
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (arrived, expected))
    if not whole or not 0 <= (arrived or 0) <= (expected or 0):
        return {}
    return {"arrived": arrived or 0, "expected": expected or 0}


def _refuse_other_methods(
    file: str | os.PathLike[str], guesses: Mapping[str, Any], counts: Mapping[str, Any]
) -> None:
    """Refuse counts that lack a method of the guesses, for the audits that the site scored."""
    for name, counted in counts.items():
        guess = guesses.get(name, {})
        wanted = guess.get("methods") or [guess.get("statistic", "guessed")]
        lacking = [str(m) for m in wanted if m not in counted]
        if lacking:
            raise FormatError(
                f"{file} does not count all methods of the guesses",
                expected=f"counts of {', '.join(map(str, wanted))} for {name}",
                got=", ".join(counted) or "none",
                remedy="score the file of guesses again at that site",
            )


def _about(name: str, guess: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that every merged result of an audit has."""
    same = {key: guess[key] for key in ("question", "vantage", "settings", "source")}
    return {"audit": name, "trace_sha256": raw["trace_sha256"], **same}


def _merge_linkage(
    name: str,
    guess: Mapping[str, Any],
    sites: Sequence[SiteCounts],
    raw: Mapping[str, Any],
    confidence: float,
) -> AuditResult:
    shared = _about(name, guess, raw)
    methods = guess["methods"]
    linked = [s for s in sites if s.audits[name][methods[0]]["links"]]
    if not linked:
        lack = Need(code="too_few_rounds", what="no site took part in two rounds")
        return AuditResult(**shared, status="nothing_to_say", need=lack)
    counts = {m: [s.audits[name][m] for s in linked] for m in methods}
    strongest = max(methods, key=lambda m: sum(c["found"] for c in counts[m]))
    # whichever of the linkers is the strongest, its interval holds
    wider = 1.0 - (1.0 - confidence) / len(methods)
    headline = replace(_share(counts[strongest], wider), confidence=confidence)
    estimates = {"linkage_accuracy": headline}
    if len(methods) > 1:
        estimates |= {f"linkage_accuracy ({m})": _share(c, confidence) for m, c in counts.items()}
    own = counts[strongest]
    hits, tries = [c["found"] for c in own], [c["links"] for c in own]
    baseline = float(headline.baseline or 0.0)
    everything = intervals.wilson(len(tries), len(tries), confidence=wider)
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
    notes = [f"{count_of(len(linked), 'site')} counted, each against its own records"]
    if absent > 0:
        notes.append(f"{absent} of {absent + len(linked)} clients did not answer: not counted")
    return AuditResult(
        **shared,
        headline="linkage_accuracy",
        estimates=estimates,
        per_client=per_client,
        detectable=intervals.smallest_share_above(baseline, effective, confidence=wider)
        if everything.low > baseline
        else math.inf,
        notes=tuple(notes),
    )


def _share(counts: Sequence[Mapping[str, Any]], confidence: float) -> Estimate:
    """Share of the links that were found, over all sites."""
    hits, tries = ([c[k] for c in counts] for k in ("found", "links"))
    chance = sum(c["expected"] for c in counts) / sum(tries)
    return intervals.clustered_share(hits, tries, confidence=confidence, baseline=chance)


def _merge_epsilon(
    name: str,
    guess: Mapping[str, Any],
    sites: Sequence[SiteCounts],
    raw: Mapping[str, Any],
    confidence: float,
) -> AuditResult:
    return AuditResult(
        **_about(name, guess, raw),
        **merge_coins(guess, {s.name: s.audits[name]["guessed"] for s in sites}, confidence),
    )


def _merge_membership(
    name: str,
    guess: Mapping[str, Any],
    sites: Sequence[SiteCounts],
    raw: Mapping[str, Any],
    confidence: float,
) -> AuditResult:
    """AUC over all pairs within sites, with the wider of two intervals: Hanley and McNeil over
    records, or Student's t over the sites' own AUCs."""
    from scipy.stats import norm
    from scipy.stats import t as student

    shared = _about(name, guess, raw)
    shared["source"] += f"; the attack ({guess['statistic']}) is ours"
    counted = [(s.name, s.audits[name][guess["statistic"]]) for s in sites]
    counted = [(n, c) for n, c in counted if c["members"] and c["others"]]
    if not counted:
        lack = Need(code="no_matched_records", what="no site had records of both kinds")
        return AuditResult(**shared, status="nothing_to_say", need=lack)
    pairs = np.array([c["members"] * c["others"] for _, c in counted], dtype=np.float64)
    own = np.array([c["ordered"] for _, c in counted]) / pairs
    share = pairs / pairs.sum()
    auc = float(share @ own)
    errors = np.array([_auc_error(a, c) for a, (_, c) in zip(own, counted, strict=True)])
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
        notes=(f"{count_of(k, 'site')} counted, each with its own key",),
    )


def _auc_error(auc: float, c: Mapping[str, Any]) -> float:
    """Standard error of a site's AUC; above zero even for an AUC of 0 or 1."""
    half_a_pair = 0.5 / (c["members"] * c["others"])
    inside = min(max(auc, half_a_pair), 1 - half_a_pair)
    return power.auc_deviation(inside, c["members"], c["others"])


def _report(
    path: Path,
    raw: Mapping[str, Any],
    results: Sequence[AuditResult],
    sites: Sequence[str],
    names: bool,
) -> Run:
    findings, counted = judge_all(results), _counted(raw)
    summary = {
        "federation": f"{raw['federation']}, {count_of(len(sites), 'site')} answered: "
        f"{', '.join(sites)}",
        "truth": "stayed at the sites, which returned only counts",
    }
    evidence = {
        "trace sha256": str(raw["trace_sha256"]),
        "fedaudit": __version__,
        "again": "fedaudit merge GUESSES COUNTS...",
    }
    with writing(path):
        (path / "results").mkdir(parents=True, exist_ok=True)
        for result in results:
            write_atomically(path / "results" / f"{result.audit}.json", result.to_json())
        dumped = to_json([f.to_dict() for f in findings]) + "\n"
        write_atomically(path / "findings.json", dumped)
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
                arrived=counted.get("arrived"),
                expected=counted.get("expected"),
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
