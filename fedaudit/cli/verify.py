"""`fedaudit verify`: is a recording whole?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.cli.app import app
from fedaudit.cli.output import AsJson, Names
from fedaudit.errors import IntegrityError
from fedaudit.trace.health import CODES, Health, Problem

MOST = 40
"""Problems that are printed; --json has all."""

BREAKS = {
    "updates": "updates (an answer minus the model that its sender had received)",
    "members": "sums that no question describes (who is in them)",
    "ledger": "sums that were asked for (which were answered)",
    "rows": "whatever reads a payload that is not finite",
    "everything": "all audits",
}


@app.command("verify")
def verify_command(
    trace: Annotated[Path, typer.Argument(help="A trace, or a run that holds one.")],
    names: Names = False,
    as_json: AsJson = False,
) -> None:
    """Say whether a recording is whole: torn files, lost messages, answers that did not arrive."""
    from fedaudit.trace import Trace
    from fedaudit.trace.health import examine

    opened = Trace.open(trace, verify_hashes=False)
    health = examine(opened, rehash=True)
    if not names:
        health = pseudonymous(health, opened.manifest.federation)
    if as_json:
        plain = {"trace": str(opened.path), "rounds": len(opened.rounds), **as_plain(health)}
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
    else:
        for line in verify_trace_lines(health, len(opened.rounds)):
            typer.echo(line)
    if not health.whole:
        raise typer.Exit(IntegrityError.exit_code)


def pseudonymous(health: Health, federation: Mapping[str, Any]) -> Health:
    """The same with "client i" for every party that is not a server or a middleman."""
    from fedaudit.report.names import Renaming, pseudonyms
    from fedaudit.trace.schema import hub_depths

    hubs = hub_depths(federation)
    named = [p.party for p in health.problems if p.party is not None]
    everyone = [*federation.get("clients", ()), *health.by_party, *named]
    new = pseudonyms([name for name in everyone if name not in hubs])
    by = Renaming(new)
    return replace(
        health,
        problems=tuple(
            replace(p, party=p.party and new.get(p.party, p.party), what=by.text(p.what))
            for p in health.problems
        ),
        by_party={new.get(p, p): a for p, a in health.by_party.items()},
    )


def verify_trace_lines(health: Health, rounds: int) -> list[str]:
    """What `fedaudit verify TRACE` prints."""
    lines = [
        f"{rounds} rounds, {health.sent} models sent, {arrived_words(health)}",
    ]
    if health.silent:
        shown = ", ".join(health.silent[:MOST])
        more = f" and {len(health.silent) - MOST} more" if len(health.silent) > MOST else ""
        lines.append(f"nothing arrived from {shown}{more}: of these nothing can be said")
    noted = [p for p in health.problems if not p.torn]
    if health.torn:
        lines += ["", *_table(health.torn)]
        broken = [b for b in BREAKS if any(b in CODES[p.code].breaks for p in health.torn)]
        lines += ["", f"The recording is torn: {_count(len(health.torn), 'problem')}."]
        lines += [f"  breaks {BREAKS[b]}" for b in broken]
        lines.append("  audits refuse what is broken, and name the rest in their results")
    else:
        lines.append("The recording is whole.")
    if noted:
        lines += ["", "On record as it happened:", *_table(noted)]
    from fedaudit.report.text import clean

    return [clean(line) for line in lines]


def arrived_words(health: Health) -> str:
    if not health.expected:
        return "no answer was expected"
    return f"{health.arrived} of {_count(health.expected, 'answer')} arrived"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _table(problems: Sequence[Problem]) -> list[str]:
    head = ("round", "message", "party", "problem", "")
    cells = [
        (
            str(p.round or "-"),
            "-" if p.message is None else str(p.message),
            p.party or "-",
            p.code,
            p.what,
        )
        for p in problems[:MOST]
    ]
    widths = [max(len(row[i]) for row in (head, *cells)) for i in range(4)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in (head, *cells)
    ]
    left = len(problems) - MOST
    return [*lines, f"and {left} more: --json lists all"] if left > 0 else lines


def as_plain(health: Health) -> dict[str, Any]:
    """A recording's health as JSON types."""
    return {
        "whole": health.whole,
        "sent": health.sent,
        "expected": health.expected,
        "arrived": health.arrived,
        "by_round": {str(n): asdict(a) for n, a in health.by_round.items()},
        "by_party": {p: asdict(a) for p, a in health.by_party.items()},
        "problems": [
            {**asdict(p), "torn": p.torn, "breaks": sorted(CODES[p.code].breaks)}
            for p in health.problems
        ],
    }
