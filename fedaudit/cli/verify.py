"""`fedaudit verify`, `seal`, `purge`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import AsJson, Names
from fedaudit.codec import to_json
from fedaudit.errors import IntegrityError, UsageError
from fedaudit.files import read_bytes
from fedaudit.reporting.names import Renaming, pseudonyms
from fedaudit.reporting.text import clean
from fedaudit.study.folders import entries, is_study, places, runs_at
from fedaudit.study.purge import RECORDED, find, purge
from fedaudit.study.seal import SEAL, SIGNATURE, examine_run, sign
from fedaudit.trace import PUBLIC, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.health import CODES, Health, Problem
from fedaudit.trace.schema import hub_depths

if TYPE_CHECKING:
    from fedaudit.study.seal import PartCheck

MOST = 40
"""Maximum number of problems in the terminal; --json has all."""

BREAKS = {
    "updates": "updates (an answer minus the model that its sender had received)",
    "members": "sums that no question describes (who is in them)",
    "ledger": "sums that were asked for (which were answered)",
    "rows": "whatever reads a payload that is not finite",
    "everything": "all audits",
}


app = new_app()


@app.command("verify")
def verify_command(
    folder: Annotated[Path, typer.Argument(help="A run, a study of several, or a trace.")],
    names: Names = False,
    as_json: AsJson = False,
) -> None:
    """Say which parts of a run are whole, changed or missing, and whether its recording is torn.

    Exit codes: 0 whole, 3 something is changed, missing or torn.
    """
    found: dict[str, Any] = {}
    fine = True
    for name, place in _places(folder):
        if name and not as_json:
            typer.echo(f"{name}:")
        found[name], whole = _verified(place, names, as_json, indent="  " if name else "")
        fine = fine and whole
    if as_json:
        plain = found.get("", {"parts": found})
        typer.echo(to_json({**plain, "whole": fine}))
    if not fine:
        raise typer.Exit(IntegrityError.exit_code)


def _places(folder: Path) -> list[tuple[str, Path]]:
    """What is verified, with headings: a run or trace alone, a study and its runs, or all below."""
    every = [folder] if folder.name == "trace" else runs_at(folder)
    if len(every) == 1 and not is_study(every[0]):
        return [("", every[0])]
    out = []
    for place in every:
        above = f"{place.name}/" if len(every) > 1 else ""
        if is_study(place):
            out += [(f"{above}study", place)]
            out += [(f"{above}{e.path.name}", e.path) for e in entries(place)]
        else:
            out.append((place.name, place))
    return out


def _verified(
    folder: Path, names: bool, as_json: bool, indent: str = ""
) -> tuple[dict[str, Any], bool]:
    """Verify one run, one trace or the list of a study: JSON types, and whether it is whole."""
    plain: dict[str, Any] = {}
    fine, lines = True, []
    if (folder / SEAL).exists() or (folder / "run.json").exists() or is_study(folder):
        parts: list[PartCheck] = examine_run(folder)
        fine = all(c.fine for c in parts)
        plain["seal"] = [asdict(c) for c in parts]
        lines += verify_run_lines(parts)
    recorded = places(folder)[0]
    health = None
    if (folder / "manifest.json").is_file() or (recorded / "manifest.json").is_file():
        opened = Trace.open(
            folder if (folder / "manifest.json").is_file() else recorded, verify_hashes=False
        )
        health = examine(opened, rehash=True)
        if not names:
            health = pseudonymous(health, opened.manifest.federation)
        about = {"trace": str(opened.path), "rounds": len(opened.rounds), **as_plain(health)}
        plain |= {"recording": about} if plain else about
        lines += verify_trace_lines(health, len(opened.rounds))
    if not plain:
        Trace.open(folder)  # raises, and says what was expected
    if not as_json:
        for line in lines:
            typer.echo(f"{indent}{line}".rstrip())
    return plain, fine and (health is None or health.whole)


def verify_run_lines(parts: Sequence[PartCheck]) -> list[str]:
    """Lines on the seal of a run."""
    lines = []
    for c in parts:
        more = "; ".join(t for t in (", ".join(c.files), c.note) if t)
        lines.append(f"{c.part:<11} {c.state:<10} {more}".rstrip())
    wrong = [c.part for c in parts if not c.fine]
    told = "Not as it was sealed: " + ", ".join(dict.fromkeys(wrong)) if wrong else ""
    return [*lines, told or "Every part that is here is as it was sealed."]


@app.command("seal")
def seal_command(
    run: Annotated[Path, typer.Argument(help="A run, or a study of several.")],
    key: Annotated[Path, typer.Option(help="Ed25519 private key, PEM without a password.")],
) -> None:
    """Sign the seal of a run, so that `gate --require-signature` can check who vouches for it.

    Make a key: openssl genpkey -algorithm ed25519 -out key.pem; its public half, for others:
    openssl pkey -in key.pem -pubout -out public.pem
    """
    for folder in runs_at(run):
        typer.echo(sign(folder, read_bytes(key, limit=1 << 16)), nl=False)
        where = folder / SIGNATURE
        typer.echo(f"signed: {where}. Audits that are added later need a new signature.")


@app.command("purge")
def purge_command(
    folder: Annotated[
        Path, typer.Argument(help="A run, a study or a trace; with --expired, anything above.")
    ],
    expired: Annotated[
        bool,
        typer.Option("--expired", help="Everything below this folder whose retention has ended."),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Of a run: truth or checkpoint stays; repeatable."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this, only list what would be removed.")
    ] = False,
) -> None:
    """Remove what was recorded (trace, truth, checkpoint); results and report stay readable."""
    for part in keep or ():
        if part not in RECORDED:
            raise UsageError.unknown(f"there is no part {part!r} to keep", part, RECORDED)
    today = datetime.datetime.now(datetime.UTC).date()
    found = find(folder, below=expired, keep=keep or ())
    if not found:
        typer.echo(f"nothing to purge below {folder}")
    for one in found:
        what = "trace" if one.is_trace else ", ".join(one.parts)
        over = one.until is not None and one.until < today
        if expired and one.unknown:
            typer.echo(f"retention unknown: {one.path}: {one.unknown}", err=True)
        elif expired and not over:
            until = f"until {one.until}" if one.until else "no retention stated"
            typer.echo(f"kept: {one.path} ({until})")
        elif not yes:
            typer.echo(f"would be removed: {one.path}: {what} (add --yes)")
        else:
            typer.echo(f"removed: {one.path}: {purge(one, today)}")
    if expired and any(one.unknown for one in found):
        raise typer.Exit(IntegrityError.exit_code)


def pseudonymous(health: Health, federation: Mapping[str, Any]) -> Health:
    """The same health, with "client i" for every party that is not a server or a hub."""
    hubs = hub_depths(federation)
    named = [p.party for p in health.problems if p.party is not None]
    everyone = [*federation.get("clients", ()), *health.by_party, *named]
    new = pseudonyms([name for name in everyone if name not in {*hubs, PUBLIC}])
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
    """Lines on a recording."""
    lines = [
        f"{rounds} rounds, {health.sent} models sent, {arrived_words(health)}",
    ]
    if health.silent:
        shown = ", ".join(health.silent[:MOST])
        more = f" and {len(health.silent) - MOST} more" if len(health.silent) > MOST else ""
        lines.append(f"nothing arrived from {shown}{more}: nothing can be said about these")
    noted = [p for p in health.problems if not p.torn]
    if health.torn:
        lines += ["", *_table(health.torn)]
        broken = [b for b in BREAKS if any(b in CODES[p.code].breaks for p in health.torn)]
        lines += ["", f"The recording is torn: {_count(len(health.torn), 'problem')}."]
        lines += [f"  breaks {BREAKS[b]}" for b in broken]
        lines.append("  audits refuse the broken parts, and name the others in their results")
    else:
        lines.append("The recording is whole.")
    if noted:
        lines += ["", "Recorded as it happened, not torn:", *_table(noted)]
    return [clean(line) for line in lines]


def arrived_words(health: Health) -> str:
    if not health.expected:
        return "no answer was expected"
    rounds = health.round_by_round
    total = f"{health.arrived} of {_count(health.expected, 'answer')} arrived"
    return f"{total}: {rounds}" if rounds else total


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
    """The health of a recording as JSON types."""
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
