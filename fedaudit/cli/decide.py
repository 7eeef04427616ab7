"""`fedaudit gate`, `diff`, `power`: from stored results to a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import Names, console, interruptible
from fedaudit.codec import to_json
from fedaudit.decide.diff.compare import diff
from fedaudit.decide.diff.page import plain_diff, show_diff
from fedaudit.decide.gate import gate, write_example
from fedaudit.decide.gate import page as words
from fedaudit.decide.gate.policy import EXAMPLE
from fedaudit.decide.gate.starting import starting_policy
from fedaudit.decide.power.page import plain_power, show_power
from fedaudit.decide.power.sample_sizes import power as plan_power
from fedaudit.errors import UsageError
from fedaudit.files import write_atomically, writing

POLICY_FAILED = 4
"""Exit code of a broken policy, and of `diff --fail-on-worse`."""

PrintJson = Annotated[bool, typer.Option("--json", help="Print as JSON on standard output.")]


app = new_app()


@app.command("gate")
def gate_command(
    run: Annotated[Path | None, typer.Argument(help="A run, or a study of several.")] = None,
    policy: Annotated[Path | None, typer.Option(help="TOML file with the limits.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="Limit whose evidence may be missing, repeatable."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json-file", help="Write JSON here.")] = None,
    as_json: PrintJson = False,
    require_signature: Annotated[
        Path | None,
        typer.Option(help="Public key (PEM): refuse a run that its owner has not signed."),
    ] = None,
    names: Names = False,
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Write a first policy for RUN, or an example, here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --init: overwrite.")] = False,
) -> None:
    """Check a run against limits on its confidence bounds. Missing evidence fails.

    Exit codes: 0 all limits kept, 4 a limit is broken or has no evidence, 2 the command or the
    policy is wrong, 3 the run cannot be read.
    """
    if init is not None:
        _refuse_beside("--init", policy=policy, junit=junit, sarif=sarif, json_file=json_file)
        write_example(init, force, EXAMPLE if run is None else starting_policy(run))
        shown = "RUN" if run is None else str(run)
        typer.echo(f"wrote {init}: set the limits, then `fedaudit gate {shown} --policy {init}`")
        return
    if run is None or policy is None:
        raise _incomplete(run, policy)
    with interruptible("nothing was changed"):
        found = gate(
            run, policy, allow=allow or (), names=names, require_signature=require_signature
        )
    plain = to_json(words.plain(found)) + "\n"
    for file, text in ((junit, words.junit(found)), (sarif, words.sarif(found))):
        if file is not None:
            _write(file, text)
    if json_file is not None:
        _write(json_file, plain)
    if as_json:
        typer.echo(plain, nl=False)
    else:
        words.show_gate(console(), found)
    if not found.passed:
        raise typer.Exit(POLICY_FAILED)


@app.command("diff")
def diff_command(
    first: Annotated[Path, typer.Argument(help="A run, or a study: before.")],
    second: Annotated[Path, typer.Argument(help="A run, or a study: after.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also print estimates that did not change.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even two different federations.")
    ] = False,
    fail_on_worse: Annotated[
        bool, typer.Option("--fail-on-worse", help="Exit with 4 if anything got worse.")
    ] = False,
    names: Names = False,
    as_json: PrintJson = False,
) -> None:
    """Say what got worse or better between two runs of one federation, beyond the intervals."""
    with interruptible("nothing was changed"):
        found = diff(first, second, anyway=anyway, names=names)
    if as_json:
        typer.echo(to_json(plain_diff(found)))
    else:
        show_diff(console(), found, everything)
    if fail_on_worse and found.worse:
        raise typer.Exit(POLICY_FAILED)


@app.command("power")
def power_command(
    run: Annotated[
        Path | None, typer.Argument(help="A run or study; none: plan with --audit.")
    ] = None,
    audit: Annotated[
        list[str] | None, typer.Option("--audit", help="Audit to look at, repeatable.")
    ] = None,
    effect: Annotated[
        float | None,
        typer.Option(help="Smallest leak to find, as a distance from chance."),
    ] = None,
    power: Annotated[float, typer.Option(help="Probability of finding it.")] = 0.9,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    clients: Annotated[
        int | None, typer.Option(help="Without a run: clients of the federation (20).")
    ] = None,
    threshold: Annotated[
        int, typer.Option(help="Attribution: clients in the smallest group that may be exposed.")
    ] = 5,
    rate: Annotated[
        float | None, typer.Option(help="Membership: false-positive rate, as 0.001.")
    ] = None,
    as_json: PrintJson = False,
) -> None:
    """How many rounds, records or games an audit needs before it can conclude.

    For a run: what it has, the smallest leak it would have shown, and what the wanted one takes.
    """
    with interruptible("nothing was changed"):
        found = plan_power(
            run,
            audits=audit or (),
            effect=effect,
            power=power,
            confidence=confidence,
            clients=clients,
            threshold=threshold,
            rate=rate,
        )
    if as_json:
        plain = plain_power(found.sizes, power, confidence)
        typer.echo(to_json(plain))
    else:
        show_power(console(), found.sizes, power, confidence)


def _write(file: Path, text: str) -> None:
    with writing(file, UsageError, remedy="make the folder first, or choose another"):
        write_atomically(file, text)


def _refuse_beside(option: str, **others: Any) -> None:
    given = [name.replace("_", "-") for name, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"{option} writes a policy and does nothing else",
            expected=f"{option} FILE, and RUN if limits should start from it",
            got=f"{option} with {', '.join(given)}",
            remedy="write the policy first, then check a run with it",
        )


def _incomplete(run: Path | None, policy: Path | None) -> Exception:
    return UsageError(
        "a gate needs a run and a policy",
        expected="fedaudit gate RUN --policy policy.toml",
        got="neither"
        if run is None and policy is None
        else "no " + ("run" if run is None else "policy"),
        remedy="fedaudit gate --init policy.toml writes a policy to start from",
    )
