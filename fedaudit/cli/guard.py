"""`fedaudit guard`: check a received model before training on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.options import with_options
from fedaudit.codec import to_json
from fedaudit.decide.received import ReceivedModels, guard, own_records
from fedaudit.errors import UsageError
from fedaudit.protections.guard import GuardReport, LocalSteps
from fedaudit.protections.guard.files import CheckedModel, is_trace
from fedaudit.protections.guard.files import calibrate as calibrated
from fedaudit.settings import Whole, require

FLAGGED, NOTHING_TO_SAY = 4, 5
"""Exit codes: something was found; nothing to say."""
SHOWN = 5
"""Maximum number of layers in the terminal; the JSON has all."""


app = new_app()


@app.command("guard")
def guard_command(
    model: Annotated[
        Path | None,
        typer.Argument(help="Received model: .safetensors, .npz, or a trace (every model)."),
    ] = None,
    previous: Annotated[
        list[Path] | None,
        typer.Option(help="Earlier models, oldest first, repeatable: .safetensors or .npz."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Own records; needs --model.")] = None,
    factory: Annotated[
        str | None,
        typer.Option("--model", help="The torch module: package.module:function, or sklearn:NAME."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of --data.")] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="Of a trace: this client only, repeatable.")
    ] = None,
    level: Annotated[float, typer.Option(help="Share of honest runs that may be flagged.")] = 0.01,
    calibration: Annotated[
        Path | None, typer.Option(help="Honest runs of your own, from --calibrate.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Folder of honest runs: writes --out for --calibration, and stops. "
            "With --data and --model the checks on own records are in it too."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File that --calibrate writes.")] = Path(
        "guard-calibration.json"
    ),
    learning_rate: Annotated[
        float, typer.Option(help="Of your local steps, for what an answer gives away.")
    ] = 0.1,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(help="Records per local step; default: all.")
    ] = None,
    max_exposed: Annotated[
        int | None, typer.Option(help="Exit with 4 if answering exposes more records.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What would answering this model give away, and was it altered?

    Exit codes: 0 no evidence, 4 flagged (altered, planted, not finite, or more than --max-exposed
    records exposed), 5 nothing to say, 2 and 3 input that cannot be used, or is not a model.
    """
    if (model is None) == (calibrate is None):
        raise UsageError(
            "nothing to check, or two things at once",
            expected="a model, a trace, or --calibrate FOLDER",
            got="both" if model else "neither",
            remedy="fedaudit guard received.safetensors",
        )
    if calibrate is not None:
        made = calibrated(calibrate, **own_records(data, factory, label))
        made.write(out)
        least = 1 / (len(made.runs) + 1)
        typer.echo(f"{len(made.runs)} honest runs are ranked, for levels from {least:.2g}: {out}")
        return
    local = LocalSteps(learning_rate=learning_rate, epochs=epochs, batch_size=batch_size)
    _check_limit(max_exposed, data, model)
    found = guard(
        model,
        previous or None,
        data=data,
        module=factory,
        label=label,
        clients=client or (),
        level=level,
        calibration=calibration,
        local=local,
    )
    if isinstance(found, GuardReport):
        typer.echo(found.to_json() if as_json else "\n".join(_lines(found)), nl=not as_json)
        flagged, unsaid = found.flagged, found.verdict == "nothing_to_say"
        if max_exposed is not None and found.exposure is not None:
            flagged = flagged or len(found.exposure.exposed) > max_exposed
            unsaid = unsaid or not found.exposure.layers
    else:
        if as_json:
            typer.echo(to_json([_plain(s) for s in found.seen]))
        else:
            _show_trace(found)
        flagged, unsaid = bool(found.flagged), bool(found.undecided)
    if flagged:
        raise typer.Exit(FLAGGED)
    if unsaid:
        raise typer.Exit(NOTHING_TO_SAY)


def _check_limit(max_exposed: int | None, data: Path | None, model: Path | None) -> None:
    if max_exposed is None:
        return
    require(Whole, remedy="--max-exposed 0: no record may be exposed", max_exposed=max_exposed)
    if data is None:
        raise UsageError(
            "--max-exposed counts own records, and there are none",
            expected="--data and --model",
            got="no --data",
            remedy="give your records, or leave --max-exposed out",
        )
    if model is not None and is_trace(model):
        raise UsageError(
            "exposure is measured on a single model",
            expected="a .safetensors or .npz file with --max-exposed",
            got="a trace",
            remedy="give the model of one round, or leave --max-exposed out",
        )


def _plain(s: CheckedModel) -> dict[str, Any]:
    report = json.loads(s.report.to_json())
    return {"party": s.party, "round": s.round, "sender": s.sender, **report}


def _show_trace(found: ReceivedModels) -> None:
    seen, flagged, unsaid = found.seen, found.flagged, found.undecided
    clients = len({s.party for s in seen})
    rounds = len({s.round for s in seen})
    typer.echo(
        f"{len(flagged)} of {len(seen)} received models were flagged "
        f"({clients} clients, {rounds} rounds)"
        + (f"; nothing can be said of {len(unsaid)}" if unsaid else "")
    )
    shown: dict[tuple[int, int], list[str]] = {}
    reports = {}
    for s in flagged or unsaid or seen[-1:]:
        key = (s.round, id(s.report))
        shown.setdefault(key, []).append(s.party)
        reports[key] = s.report
    for (number, identity), parties in shown.items():
        who = ", ".join(parties[:3]) + (f" and {len(parties) - 3} more" if parties[3:] else "")
        typer.echo(f"\nround {number}, to {who}")
        typer.echo("\n".join(_lines(reports[number, identity])))


def _lines(report: GuardReport) -> list[str]:
    quiet = report.verdict == "no_evidence"
    lines = _behaviour(report)
    lines.append(report.summary if quiet else report.summary.upper())
    by_weights = report.verdict != "altered"
    if report.checks and report.p_value is not None and by_weights:
        lines[-1] += (
            f": p = {report.p_value:.2g} among {report.runs} honest runs, level {report.level:g}"
        )
    for c in sorted(report.checks, key=lambda c: (not c.alarms, c.p)):
        mark = "!" if c.alarms else " "
        lines.append(
            f" {mark} {c.name:<13} {c.value:8.2f}  (alarm above {c.threshold:.2f})  "
            f"{c.where}: {c.words}"
        )
    lines += [f"   {note}" for note in report.notes]
    lines += _unsaid(report)
    if quiet:
        lines.append("   an adversary who knows these checks can pass them: see docs/guard.md")
    return lines


def _behaviour(report: GuardReport) -> list[str]:
    """What own records show: the tampering and the exposure of a model."""

    if report.exposure is None or report.tampering is None:
        return []
    lines = [with_options(report.tampering.words, "guard"), report.exposure.words]
    lines += [f"   {r.words}" for r in report.exposure.exposed[1:SHOWN]]
    if report.exposure.unread:
        lines.append(f"   not read for exposure: {', '.join(report.exposure.unread[:SHOWN])}")
    return lines


def _unsaid(report: GuardReport) -> list[str]:
    """Lines on layers that some check could not reach, those out of reach of all checks first."""
    partly = [x for x in report.layers if x.checks and x.out_of_reach]
    found = [f"   nothing to say on {x.words}" for x in report.layers if not x.checks]
    found += [f"   in part on {x.words}" for x in partly]
    more = [f"   and {len(found) - SHOWN} more layers in part or not at all: --json lists them"]
    return found[:SHOWN] + (more if found[SHOWN:] else [])
