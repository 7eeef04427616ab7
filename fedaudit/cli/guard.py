"""`fedaudit guard`: look at a received model before training on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.cli.app import app
from fedaudit.errors import UsageError

if TYPE_CHECKING:
    from fedaudit.protections.guard import Calibration, GuardReport
    from fedaudit.protections.guard.files import Seen

FLAGGED, NOTHING_TO_SAY = 4, 5
"""The exit codes where something was found, and where nothing can be said."""
SHOWN = 5
"""Layers that are listed on the terminal; all are in the JSON."""


@app.command("guard")
def guard_command(
    model: Annotated[
        Path | None,
        typer.Argument(help="What was received: .safetensors, .npz, or a trace (every model)."),
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(help="The model before it: .safetensors or .npz.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Own records; needs --model.")] = None,
    factory: Annotated[
        str | None,
        typer.Option("--model", help="package.module:function that builds the torch module."),
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
    out: Annotated[Path, typer.Option(help="Of --calibrate.")] = Path("guard-calibration.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Is something planted in this model?

    Exit codes: 0 no evidence, 4 flagged (planted, or not finite), 5 nothing to say, 2 and 3 input
    that cannot be used, or is not a model.
    """
    from fedaudit.protections.guard.files import calibrate as calibrated
    from fedaudit.protections.guard.files import check_trace, is_trace, read_model

    if (model is None) == (calibrate is None):
        raise UsageError(
            "what to look at is not clear",
            expected="a model, a trace, or --calibrate FOLDER",
            got="both" if model else "neither",
            remedy="fedaudit guard received.safetensors",
        )
    if calibrate is not None:
        made = calibrated(calibrate, **_own(data, factory, label))
        made.write(out)
        least = 1 / (len(made.runs) + 1)
        typer.echo(f"{len(made.runs)} honest runs are ranked, for levels from {least:.2g}: {out}")
        return
    assert model is not None
    table = _table(calibration)
    own = _own(data, factory, label)

    def check(state: Any, before: Any) -> GuardReport:
        from fedaudit.protections.guard import guard

        return guard(state, before, level=level, calibration=table, sent_as_model=recorded, **own)

    recorded = is_trace(model)  # its messages say what they are
    if recorded:
        if previous is not None:
            raise UsageError(
                "a trace holds the models before",
                expected="--previous with a single model",
                got=f"{previous} beside a trace",
                remedy="leave --previous out",
            )
        from fedaudit.experiment.seal import open_trace

        seen = check_trace(open_trace(model), check, client or ())
        flagged = [s for s in seen if s.report.flagged]
        if as_json:
            typer.echo(json.dumps([_plain(s) for s in seen], indent=1, allow_nan=False))
        else:
            _show_trace(seen, flagged)
        verdicts = {s.report.verdict for s in seen}
        found = bool(flagged)
    else:
        if client:
            raise UsageError(
                "one model has no clients",
                expected="--client with a trace",
                got=", ".join(client),
                remedy="leave --client out",
            )
        report = check(read_model(model), None if previous is None else read_model(previous))
        typer.echo(report.to_json() if as_json else "\n".join(_lines(report)), nl=not as_json)
        verdicts, found = {report.verdict}, report.flagged
    if found:
        raise typer.Exit(FLAGGED)
    if "nothing_to_say" in verdicts:
        raise typer.Exit(NOTHING_TO_SAY)


def _table(file: Path | None) -> Calibration | None:
    from fedaudit.protections.guard import Calibration

    return None if file is None else Calibration.read(file)


def _own(data: Path | None, factory: str | None, label: str | None) -> dict[str, Any]:
    """Own records and the module that reads them."""
    if data is None and factory is None:
        return {}
    if data is None or factory is None:
        raise UsageError(
            "own records and a model that reads them go together",
            expected="--data FILE --model package.module:function, or neither",
            got="--data alone" if factory is None else "--model alone",
            remedy="give both",
        )
    import torch

    from fedaudit.data.files import read
    from fedaudit.tasks.catalogue import build_own
    from fedaudit.tasks.classifier import Classifier

    module = build_own(factory)
    records = read(data, label=label, one_class=True)
    examples = Classifier(module).encode(records)
    y = examples.y
    if records.classes and all(c.isdecimal() for c in records.classes):
        # one client may not have every class: a number is the class that it names
        y = torch.tensor([int(c) for c in records.classes])[y]
    return {"data": (examples.x, y), "module": module}


def _plain(s: Seen) -> dict[str, Any]:
    report = json.loads(s.report.to_json())
    return {"party": s.party, "round": s.round, "sender": s.sender, **report}


def _show_trace(seen: list[Seen], flagged: list[Seen]) -> None:
    clients = len({s.party for s in seen})
    rounds = len({s.round for s in seen})
    unsaid = [s for s in seen if s.report.verdict == "nothing_to_say"]
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
    lines = [report.summary if quiet else report.summary.upper()]
    if report.checks and report.p_value is not None:
        lines[0] += (
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


def _unsaid(report: GuardReport) -> list[str]:
    """Layers on which some check could not have raised an alarm, those without any first."""
    partly = [x for x in report.layers if x.checks and x.out_of_reach]
    found = [f"   nothing to say on {x.words}" for x in report.layers if not x.checks]
    found += [f"   in part on {x.words}" for x in partly]
    more = [f"   and {len(found) - SHOWN} more layers in part or not at all: --json lists them"]
    return found[:SHOWN] + (more if found[SHOWN:] else [])
