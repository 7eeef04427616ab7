"""A gate as terminal text, JUnit XML, SARIF and JSON."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fedaudit.codec import fields_of, to_json
from fedaudit.decide.gate.outcome import Gate, LimitCheck, LimitReading
from fedaudit.errors import count_of
from fedaudit.reporting.findings import interval, number
from fedaudit.reporting.text import longest_word
from fedaudit.reporting.wording import said

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_CLIENTS = 5
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


# -- words ---------------------------------------------------------------------------------------


def reading_text(r: LimitReading) -> str:
    who = f"{r.who}: " if r.who else ""
    if r.bound is None or r.limit is None:
        return f"{who}{r.missing}"
    end = "upper" if r.side == "at most" else "lower"
    shown = f"{end} bound {number(r.bound)}"
    if r.estimate is None:
        shown = number(r.bound)
    word = "keeps" if r.kept else "breaks"
    text = f"{who}{shown} {word} {r.side} {number(r.limit)}"
    if r.estimate is None:
        return text
    chance = "" if r.estimate.baseline is None else f", chance {number(r.estimate.baseline)}"
    count = f", n = {r.estimate.n}" if r.estimate.n else ""
    return f"{text} (measured {interval(r.estimate)}{chance}{count})"


def _worst_first(readings: Sequence[LimitReading]) -> list[LimitReading]:
    return sorted(readings, key=lambda r: r.distance, reverse=True)


def statement(check: LimitCheck) -> str:
    """The outcome of a check in one or two sentences."""
    if check.missing:
        return check.missing
    if check.explanation:
        return check.explanation
    lacking = [r for r in check.readings if r.missing]
    known = _worst_first([r for r in check.readings if not r.missing])
    broken = [r for r in known if not r.kept]
    of_clients = any(r.who for r in check.readings)
    if not of_clients:
        text = "; ".join(reading_text(r) for r in broken or known or lacking)
        return text + _nearly(broken)
    everyone = len({r.who for r in check.readings})
    parts = []
    if broken:
        many = len({r.who for r in broken})
        shown = "; ".join(reading_text(r) for r in broken[:SHOWN_CLIENTS])
        more = f"; and {len(broken) - SHOWN_CLIENTS} more" if len(broken) > SHOWN_CLIENTS else ""
        parts.append(f"{many} of {everyone} clients break it: {shown}{more}")
    if lacking:
        many = len({r.who for r in lacking})
        shown = "; ".join(reading_text(r) for r in lacking[:SHOWN_CLIENTS])
        more = f"; and {len(lacking) - SHOWN_CLIENTS} more" if len(lacking) > SHOWN_CLIENTS else ""
        parts.append(f"no evidence for {many} of {everyone} clients: {shown}{more}")
    if not parts:
        parts.append(f"all {everyone} clients keep it; the nearest is {reading_text(known[0])}")
    return ". ".join(parts) + _nearly(broken)


def _nearly(broken: Sequence[LimitReading]) -> str:
    """A hint for values that keep a limit while their intervals break it."""
    inside = [
        r
        for r in broken
        if r.estimate is not None
        and r.limit is not None
        and (r.estimate.value <= r.limit if r.side == "at most" else r.estimate.value >= r.limit)
    ]
    if not inside or len(inside) < len(broken):
        return ""
    return (
        ". The measured value keeps the limit, its interval does not: more evidence may help "
        "(`fedaudit power`)"
    )


MARKS = {
    "passed": ("passed", "green"),
    "failed": ("FAILED", "bold red"),
    "missing": ("NO EVIDENCE", "bold red"),
    "allowed": ("allowed", "yellow"),
}


def summary(gate: Gate) -> str:
    c = gate.counts
    word = "PASSED" if gate.passed else "FAILED"
    parts = [f"{c['passed']} kept"]
    parts += [f"{c['failed']} broken"] if c["failed"] else []
    parts += [f"{c['missing']} without evidence"] if c["missing"] else []
    parts += [f"{c['allowed']} without evidence, allowed by name"] if c["allowed"] else []
    return f"{word}: {count_of(len(gate.checks), 'check')}, " + ", ".join(parts)


def show_gate(console: Console, gate: Gate) -> None:
    """Print the gate as a table, failures first."""
    from rich.table import Table
    from rich.text import Text

    order = {"failed": 0, "missing": 1, "allowed": 2, "passed": 3}
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    limits = [f"{c.title} {c.metric}: {c.rule}" for c in gate.checks]
    narrow = longest_word(limits, most=40)
    table.add_column("limit", width=max(30, narrow), overflow="fold")
    table.add_column("found", ratio=1)
    for check in sorted(gate.checks, key=lambda c: order[c.status]):
        mark, style = MARKS[check.status]
        found = Text(said(statement(check)))
        if check.status != "passed":
            if check.remedy:
                found.append(f"\ntry: {said(check.remedy)}", style="dim")
            if check.why:
                found.append(f"\nwhy: {check.why}", style="dim")
        table.add_row(
            Text(mark, style=style),
            Text.assemble(check.title, "\n", (f"{check.metric}: {check.rule}", "dim")),
            found,
        )
    console.print(table)
    console.print()
    console.print(Text(summary(gate), style="bold green" if gate.passed else "bold red"))


# -- files ---------------------------------------------------------------------------------------

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """Text with characters that XML 1.0 forbids replaced."""
    return _NOT_XML.sub("\ufffd", text)


def junit(gate: Gate) -> str:
    """JUnit XML with one suite per run.

    A broken limit is a failure, missing evidence an error, allowed missing evidence is skipped.
    """
    root = ElementTree.Element("testsuites", {"name": "fedaudit gate"})
    totals: Counter[str] = Counter()
    for run in dict.fromkeys(c.run for c in gate.checks):
        own = [c for c in gate.checks if c.run == run]
        count: Counter[str] = Counter(c.status for c in own)
        totals.update(count)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            {"name": _xml(f"fedaudit gate: {run or gate.run}"), **_tallies(count)},
        )
        for c in own:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                {"classname": _xml(c.metric), "name": _xml(c.limit), "time": "0"},
            )
            tag = {"failed": "failure", "missing": "error", "allowed": "skipped"}.get(c.status)
            if tag is None:
                ElementTree.SubElement(case, "system-out").text = _xml(statement(c))
                continue
            entry = ElementTree.SubElement(case, tag, {"message": _xml(statement(c))})
            if tag != "skipped":
                entry.set("type", "limit" if tag == "failure" else "evidence")
                entry.text = _xml(_details(c))
    for key, value in _tallies(totals).items():
        root.set(key, value)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _tallies(count: Counter[str]) -> dict[str, str]:
    return {
        "tests": str(count.total()),
        "failures": str(count["failed"]),
        "errors": str(count["missing"]),
        "skipped": str(count["allowed"]),
        "time": "0",
    }


def _details(c: LimitCheck) -> str:
    lines = [f"limit: {c.metric}: {c.rule}", statement(c)]
    lines += [f"try: {said(c.remedy)}"] if c.remedy else []
    lines += [f"why: {c.why}"] if c.why else []
    lines += [f"evidence: {c.file}"] if c.file else []
    return "\n".join(lines)


def rule_id(limit: str) -> str:
    """Stable SARIF id of a limit; a short hash keeps ids unique if characters are replaced."""
    slug = re.sub(r"[^a-z0-9]+", "-", limit.lower()).strip("-")
    if slug == limit:
        return f"fedaudit/{slug}"
    return f"fedaudit/{slug or 'limit'}-{hashlib.sha256(limit.encode()).hexdigest()[:6]}"


def sarif(gate: Gate) -> str:
    """SARIF 2.1.0 with one rule per limit and one result per check.

    Allowed missing evidence is a suppressed result.
    """
    limits = list(dict.fromkeys(c.limit for c in gate.checks))
    first = {c.limit: c for c in reversed(gate.checks)}
    rules = [
        {
            "id": rule_id(name),
            "name": name,
            "shortDescription": {"text": f"{first[name].metric}: {first[name].rule}"},
            "fullDescription": {
                "text": first[name].why or "a limit on the confidence bound; missing evidence fails"
            },
            "defaultConfiguration": {"level": "error"},
            "properties": {"tags": ["privacy"]},
        }
        for name in limits
    ]
    results = [_sarif_result(c, limits.index(c.limit), gate) for c in gate.checks]
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "fedaudit",
                        "version": gate.version,
                        "rules": rules,
                    }
                },
                "automationDetails": {"id": f"fedaudit-gate/{gate.policy_sha256[:16]}"},
                "columnKind": "utf16CodeUnits",
                "originalUriBaseIds": {"RUN": {"description": {"text": "the run directory"}}},
                "results": results,
                "properties": {"passed": gate.passed, "traces": gate.traces},
            }
        ],
    }
    return to_json(log) + "\n"


def _sarif_result(c: LimitCheck, index: int, gate: Gate) -> dict[str, Any]:
    passed = c.status == "passed"
    message = statement(c) + (f". Try: {said(c.remedy)}" if c.remedy and not passed else "")
    result: dict[str, Any] = {
        "ruleId": rule_id(c.limit),
        "ruleIndex": index,
        # SARIF requires level none unless the kind is fail
        "kind": "pass" if passed else "fail",
        "level": "none" if passed else "note" if c.status == "allowed" else "error",
        "message": {"text": f"{c.title}: {message}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": c.file or "run.json", "uriBaseId": "RUN"},
                    "region": {"startLine": 1},
                }
            }
        ],
        "partialFingerprints": {"fedauditLimit/v1": c.fingerprint},
        "properties": {"status": c.status, "metric": c.metric, "run": c.run},
    }
    if c.status == "allowed":
        result["suppressions"] = [
            {"kind": "external", "justification": "missing evidence is allowed by name"}
        ]
    return result


ESTIMATE = ("value", "low", "high", "confidence", "baseline", "n", "method")
"""Fields of an estimate in JSON."""


def plain(gate: Gate) -> dict[str, Any]:
    """The gate as JSON types; an infinity is "inf" or "-inf"."""
    return {
        **fields_of(gate, "passed", "run", "policy", "policy_sha256"),
        "fedaudit": gate.version,
        "traces": gate.traces,
        "counts": gate.counts,
        "checks": [
            {
                **fields_of(c, "limit", "run", "metric", "rule", "status"),
                "statement": statement(c),
                **fields_of(c, "code", "remedy", "why"),
                "evidence": c.file,
                "fingerprint": c.fingerprint,
                "readings": [_plain_reading(r) for r in c.readings],
            }
            for c in gate.checks
        ],
    }


def _plain_reading(r: LimitReading) -> dict[str, Any]:
    out = fields_of(r, "who", "side", "kept", "missing", "bound", "limit")
    if r.estimate is not None:
        out["estimate"] = fields_of(r.estimate, *ESTIMATE)
    return out
