"""`fedaudit plan`: check which sums expose a client, and design plans that do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.output import interruptible
from fedaudit.codec import to_json
from fedaudit.decide.query_plans import check, check_name, design, write_table
from fedaudit.stats.plan_design import Scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedaudit.audits.query_plan import PlanAudit
    from fedaudit.decide.query_plans import Designs, PlanCheck
    from fedaudit.results import Estimate
    from fedaudit.stats.plan_design import RoundsNeeded

app = new_app()
plan_app = typer.Typer(
    help="Query plans of secure aggregation: check and design.",
    no_args_is_help=True,
)
app.add_typer(plan_app, name="plan")

PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
MOST_ROWS = 20
EXPOSED = 4
"""Exit code when a group below the threshold is exposed."""


@plan_app.command("check")
def plan_check(
    ledger: Annotated[
        Path,
        typer.Argument(
            help="A run, a trace, or a CSV table: a row per query, a column per client."
        ),
    ],
    threshold: Annotated[
        int | None,
        typer.Option(help="Smallest group that may be exposed; default: declared, or 2."),
    ] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training/--no-training",
            help="Count the sum over all clients among the answers of a table's rounds.",
        ),
    ] = True,
    vantage: Annotated[str, typer.Option(help="Party that asked, in a trace.")] = "server",
    add: Annotated[
        str | None,
        typer.Option(help="One more query: clients by name or number, separated by commas."),
    ] = None,
    round_: Annotated[
        int | None, typer.Option("--round", help="The round of that query; default: the last.")
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Say what the answers to a set of queries expose together.

    Exit codes: 0 no group below the threshold is exposed, 4 one is (or, with --add, would be), or
    the search was bounded and cannot say; 2 the command is wrong, 3 the queries cannot be read.
    """
    checked = check(
        ledger,
        threshold=threshold,
        training=training,
        vantage=vantage,
        add=None if add is None else [n.strip() for n in add.split(",") if n.strip()],
        add_to=round_,
    )
    if as_json:
        typer.echo(to_json(checked.to_dict()))
    else:
        _show_check(checked)
    if not _kept(checked):
        raise typer.Exit(EXPOSED)


@plan_app.command("design")
def plan_design(
    clients: Annotated[int, typer.Option(help="Clients K.")],
    threshold: Annotated[int, typer.Option(help="Smallest group that may be exposed, N_sa.")],
    rounds: Annotated[int, typer.Option(help="Rounds T.")],
    marked: Annotated[
        int | None, typer.Option(help="Clients to be found; default: three in ten.")
    ] = None,
    effect: Annotated[
        float,
        typer.Option(
            help="What one marked member adds to a group's score, in its noise's deviations."
        ),
    ] = 1.0,
    error: Annotated[
        float, typer.Option(help="Wanted error: false alarms, and marked clients missed.")
    ] = 0.05,
    runs: Annotated[int, typer.Option(help="Simulated runs behind every share.")] = 200,
    csv: Annotated[Path | None, typer.Option(help="Write a plan to this table.")] = None,
    name: Annotated[str, typer.Option("--design", help="Which design --csv writes.")] = "cycled",
    seed: Annotated[int, typer.Option(help="Seed of plans and simulations.")] = 1,
    as_json: PlainJson = False,
) -> None:
    """Design plans of disjoint groups: what they attribute, in how many rounds, and expose."""

    check_name(name)
    scores = Scores(
        effect=effect,
        marked=max(1, round(0.3 * clients)) if marked is None else marked,
        error=error,
    )
    with interruptible("nothing was written"):
        found = design(
            clients, threshold, rounds, scores=scores, runs=runs, rng=np.random.default_rng(seed)
        )
    if csv is not None:
        write_table(csv, found.of(name).plan)
    if as_json:
        typer.echo(to_json(found.to_dict()))
        return
    _show_designs(found)
    if csv is not None:
        typer.echo(f"\nplan {name!r}: {csv}; `fedaudit plan check {csv}` audits it")


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text. The first row is the header; columns after the first align right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        first, *others = row
        cells = [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
        return "  ".join([first.ljust(widths[0]), *cells]).rstrip()

    return "\n".join(line(row) for row in rows)


def _show_check(checked: PlanCheck) -> None:
    head = ("round", "queries", "rank", "recoverable", "smallest group", "condition")
    rows: list[tuple[str, ...]] = [head]
    alike: list[tuple[list[int], tuple[str, ...]]] = []
    for number, p in checked.rounds.items():
        cells = _figures(p)
        if alike and alike[-1][1] == cells:
            alike[-1][0].append(number)  # equal rounds share a line
        else:
            alike.append(([number], cells))
    for numbers, cells in alike[:MOST_ROWS]:
        label = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        rows.append((label, *cells))
    if len(checked.rounds) > 1:
        rows.append(("all", *_figures(checked.stacked)))
    typer.echo(_columns(rows))
    if len(alike) > MOST_ROWS:
        left = sum(len(numbers) for numbers, _ in alike[MOST_ROWS:])
        typer.echo(f"and {left} more rounds, see --json")
    typer.echo("\n" + _verdict(checked))
    if len(checked.rounds) > 1:
        many = len(checked.stacked.recoverable)
        typer.echo(
            f"Over all rounds, what persists of the updates of {many} of {len(checked.names)} "
            "clients can be estimated alone (line `all`: as if updates never changed)."
        )
    if checked.added is not None:
        extra = checked.added
        opened = ", ".join(checked.names[k] for k in extra.recoverable) or "nobody"
        typer.echo(
            f"One more query: rank +{extra.rank}, would lay open {opened}; smallest group then "
            f"{extra.support.value}" + ("" if extra.support.exact else " or fewer")
        )


def _figures(p: PlanAudit) -> tuple[str, ...]:
    least = f"{p.min_support_floor} to {p.min_support}"
    return (
        str(p.queries),
        str(p.rank),
        f"{len(p.recoverable)} of {p.clients}",
        str(p.min_support) if p.min_support_exact else least,
        f"{p.condition:.3g}",
    )


def _verdict(checked: PlanCheck) -> str:
    worst = checked.smallest
    if worst.min_support < checked.threshold:
        who = ", ".join(checked.names[k] for k in worst.smallest)
        alone = {k for p in checked.rounds.values() for k in p.recoverable}
        if len(alone) > 1:
            found = [checked.names[k] for k in sorted(alone)]
            who = ", ".join(found[:MOST_ROWS]) + (" and more" if len(found) > MOST_ROWS else "")
            who = f"{len(found)} clients are laid open: {who}"
        return (
            f"LEAK: combined, the answers of a round expose a group of {worst.min_support} (at "
            f"least {checked.threshold} were promised): {who}"
        )
    if checked.floor < checked.threshold:
        open_ones = [
            r for r, p in checked.rounds.items() if p.min_support_floor < checked.threshold
        ]
        where = ", ".join(map(str, open_ones[:MOST_ROWS]))
        more = f" and {len(open_ones) - MOST_ROWS} more" if len(open_ones) > MOST_ROWS else ""
        return (
            f"UNDECIDED: no group below {checked.threshold} was found, none below "
            f"{checked.floor} exists; the search was bounded "
            f"(round{'s' if len(open_ones) > 1 else ''} {where}{more})"
        )
    return (
        f"No combination of a round's answers exposes fewer than {checked.floor} clients "
        f"(threshold {checked.threshold}). This follows from the queries, whatever the answers are."
    )


def _kept(checked: PlanCheck) -> bool:
    """Whether no group below the threshold is exposed, for certain; one more query included."""
    floors = [checked.floor]
    if checked.added is not None:
        floors.append(checked.added.support.floor)
    return min(floors) >= checked.threshold


def _show_designs(found: Designs) -> None:
    scores = found.scores
    typer.echo(
        f"{found.clients} clients, groups of at least {found.threshold}, {found.rounds} rounds; "
        f"{scores.marked} marked, each adds {scores.effect:g} to its group's score (noise of "
        f"deviation 1); level {scores.error:g}\n"
    )
    head = ("design", "queries", "uploads", "exposed", "rank", "alone", "apart", "twice")
    rows = [(*head, "detected", "false alarms", "rounds needed")]
    prices, guesses = [], []
    for d in found.designs:
        rows.append(
            (
                d.name,
                str(d.queries_per_round),
                f"{d.uploads_per_client:g}",
                str(d.exposed),
                f"{d.rank}/{found.clients}",
                str(d.identifiable),
                "" if d.power is None else str(d.separation),
                "" if d.power is None else str(d.apart_from or "never"),
                "" if d.power is None else _percent(d.power.detected),
                "" if d.power is None else _percent(d.power.false_alarms),
                _needed(d.needed) if d.power is not None else "",
            )
        )
        if d.cosine:
            prices.append((d.name, *(_interval(e) for e in d.cosine.values())))
            guesses.append((d.name, *(_interval(e) for e in d.guessed.values())))
    typer.echo(_columns(rows))
    typer.echo(
        "\nqueries: sums a round; uploads: masked vectors a client sends for them; exposed: clients"
        "\nin the smallest group that a round's answers expose; rank, alone: over all rounds, and"
        "\nhow many clients are identified (all of them not before round "
        f"{found.earliest}); apart: fewest rounds"
        "\nin which two clients are in different groups; twice: rounds until all pairs are apart"
        "\ntwice, which testing a client without each other one needs; detected, false alarms: by"
        "\nthat test, with 95 % intervals over simulated runs"
    )
    typer.echo(
        "\ncycled (the default) asks for five balanced partitions again and again: it finds almost"
        "\nas much, and the rank, and with it what the sums tell of a client, stops growing there."
    )
    if any(d.power is None for d in found.designs):
        typer.echo(
            "The published pairs are not simulated: one round of them lays every update open, so\n"
            "that there is nothing left to guess."
        )
    typer.echo("")
    priced = next(d.cosine for d in found.designs if d.cosine)
    typer.echo("what it gives away across rounds: cosine of a client's mean update with the truth,")
    typer.echo("by how much of an update is the same in the next round\n")
    alone = ("training aggregate alone", *(f"{e.baseline:.3f}" for e in priced.values()))
    shares = [f"persistence {p:g}" for p in priced]
    typer.echo(_columns([("by least squares", *shares), *prices, alone]))
    typer.echo("")
    typer.echo(_columns([("by the best linear guess", *shares), *guesses, alone]))


def _percent(e: Estimate) -> str:
    return f"{100 * e.value:.0f} % [{100 * e.low:.0f}, {100 * e.high:.0f}]"


def _interval(e: Estimate) -> str:
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


def _needed(needed: RoundsNeeded | None) -> str:
    if needed is None:
        return "never"
    if needed.rounds is None:
        return f"over {needed.most}"
    return f"{needed.rounds} [{needed.low or needed.rounds}, {needed.high or needed.most}]"
