"""Query plans of secure aggregation: `check` recorded or planned queries, `design` a plan.

A table is a CSV file with one row per query and one column per client: 1 if the client is in the
query, 0 if not, or a weight. The column `round` groups queries. The other columns of a ledger
(`query`, `answered`, `reason`, `bytes_up`, `bytes_down`, `seconds`) are optional.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedaudit.arrays import Floats
from fedaudit.audits.query_plan import PlanAudit, align_clients, audit_plan
from fedaudit.errors import DataError, NotApplicable, UsageError
from fedaudit.files import Unreadable, read_text, writing
from fedaudit.results import Estimate
from fedaudit.settings import AtLeastTwo, Count, require
from fedaudit.stats import plan_design, query_plans
from fedaudit.stats.intervals import mean
from fedaudit.stats.query_algebra import Addition, added_by
from fedaudit.study.folders import recording_at
from fedaudit.study.seal import open_trace
from fedaudit.trace import SERVER
from fedaudit.trace.examination import examine
from fedaudit.trace.ledger import round_queries

OTHER_COLUMNS = ("round", "query", "answered", "reason", "bytes_up", "bytes_down", "seconds")
"""Columns of a table that are not clients."""

# -- check -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Answered queries by round, (Q, K) each; `threshold` if secure aggregation declares one."""

    names: tuple[str, ...]
    rounds: Mapping[int, Floats]
    threshold: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanCheck:
    """What the answers give away: per round, and stacked as if updates were equal in all rounds.

    `added`: effect of one more query on its round, if `check` was given one.
    """

    names: tuple[str, ...]
    threshold: int
    rounds: Mapping[int, PlanAudit]
    stacked: PlanAudit
    added: Addition | None = None

    @property
    def smallest(self) -> PlanAudit:
        """The round with the smallest exposed group found. A bounded search may miss a smaller
        group in another round: see `floor`."""
        return min(self.rounds.values(), key=lambda p: p.min_support)

    @property
    def floor(self) -> int:
        """Proven lower bound: no combination of a round's answers exposes a smaller group."""
        return min(p.min_support_floor for p in self.rounds.values())

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "clients": list(self.names),
            "threshold": self.threshold,
            "rounds": {str(r): asdict(p) for r, p in self.rounds.items()},
            "stacked": asdict(self.stacked),
        }
        if self.added is not None:
            plain["added"] = {
                "rank": self.added.rank,
                "recoverable": list(self.added.recoverable),
                "min_support": self.added.support.value,
                "min_support_floor": self.added.support.floor,
                "share": self.added.share.tolist(),
            }
        return plain


def check(
    source: str | os.PathLike[str],
    *,
    threshold: int | None = None,
    training: bool = True,
    vantage: str = SERVER,
    add: Sequence[str] | None = None,
    add_to: int | None = None,
) -> PlanCheck:
    """Audit the queries of a trace, a run, or a CSV table.

    With `training`, every round of a table also answers the training aggregate over all clients; a
    trace records its own. `add` names the clients of one more query in round `add_to` (default: the
    last).
    """
    path = Path(source)
    if path.is_dir():
        queries = queries_of_trace(recording_at(path, "plan check"), vantage)
    else:
        queries = queries_of_table(path)
        if training:
            everyone = np.ones((1, len(queries.names)))
            rounds = {r: np.concatenate([m, everyone]) for r, m in queries.rounds.items()}
            queries = Queries(names=queries.names, rounds=rounds)
    many = len(queries.names)
    if threshold is not None and not 1 <= threshold <= many:
        raise UsageError(
            "the threshold is out of range",
            expected=f"1 to {many}, the number of clients in the plan",
            got=str(threshold),
            remedy=f"`threshold={min(5, many)}`",
        )
    if threshold is None:
        threshold = queries.threshold or 2
    return PlanCheck(
        names=queries.names,
        threshold=threshold,
        rounds={r: audit_plan(m) for r, m in queries.rounds.items()},
        stacked=audit_plan(np.concatenate(list(queries.rounds.values()))),
        added=_add_query(queries, add, add_to) if add is not None else None,
    )


def _add_query(queries: Queries, add: Sequence[str], add_to: int | None) -> Addition:
    number = max(queries.rounds) if add_to is None else add_to
    if number not in queries.rounds:
        raise UsageError(
            f"the plan has no round {number}",
            expected=", ".join(map(str, queries.rounds)),
            got=str(number),
            remedy="name one of these rounds with `add_to`",
        )
    if not add:
        raise UsageError(
            "the added query has no clients",
            expected="clients by name or number, separated by commas",
            got="none",
            remedy=f"`add={','.join(queries.names[:3])}`",
        )
    row = np.zeros(len(queries.names))
    for name in add:
        at = queries.names.index(name) if name in queries.names else None
        if at is None and name.isdecimal() and int(name) < len(queries.names):
            at = int(name)
        if at is not None and row[at]:
            raise UsageError(
                f"the added query names {queries.names[at]!r} twice",
                expected="each client once",
                got=",".join(add),
                remedy="remove one of the two",
            )
        if at is not None:
            row[at] = 1.0
        else:
            raise UsageError.unknown(
                f"{name!r} is not a client in this plan",
                name,
                queries.names,
                expected="a client's name, or its number from 0",
            )
    return added_by(queries.rounds[number], row)


def queries_of_trace(path: str | os.PathLike[str], vantage: str = SERVER) -> Queries:
    """The queries of a trace as one party sees them."""
    trace = open_trace(path)
    examine(trace, payloads=False)  # a damaged round does not reliably say who is in a sum
    view = trace.seen_by(*vantage.split("+"))
    ledgers = [
        a for a in (round_queries(view, number) for number in view.rounds) if len(a.answered)
    ]
    if not ledgers:
        raise NotApplicable(
            f"{vantage} sees no sums in {path}",
            code="no_sums",
            expected="sums of secure aggregation",
            got="none",
            remedy="record a run with [protections.secure_aggregation], or use a table",
        )
    names, matrices = align_clients(ledgers)
    declared = [d.get("threshold") for d in view.declared]
    stated = [t for t in declared if isinstance(t, int) and not isinstance(t, bool)]
    return Queries(
        names=names,
        rounds={a.round: m for a, m in zip(ledgers, matrices, strict=True)},
        threshold=max(stated) if stated else None,
    )


def queries_of_table(path: str | os.PathLike[str]) -> Queries:
    """The answered queries of a CSV table or of a ledger of secure aggregation."""
    lines = _lines(Path(path))
    head = lines[0][1]
    if all(_weight(cell) is not None for cell in head):
        names, body = [f"client-{i:02d}" for i in range(len(head))], lines
        columns = {name: i for i, name in enumerate(names)}
    else:
        body = lines[1:]
        columns = {name: i for i, name in enumerate(head)}
        names = [name for name in head if name.lower() not in OTHER_COLUMNS]
        if len(columns) != len(head):
            raise _bad_row(path, lines[0][0], "unique column names", "one name twice")
    if not names or not body:
        raise _bad_row(
            path,
            lines[0][0],
            "a column for each client and a row for each query",
            f"{len(names)} clients, {len(body)} queries",
        )
    about = {name.lower(): i for name, i in columns.items() if name not in names}
    rounds: dict[int, list[list[float]]] = {}
    for line, cells in body:
        if len(cells) != len(head):
            raise _bad_row(path, line, f"{len(head)} cells", f"{len(cells)}")
        if "answered" in about and cells[about["answered"]].strip().lower() in ("0", "false", "no"):
            continue
        number = _weight(cells[about["round"]]) if "round" in about else 1.0
        row = [_weight(cells[columns[name]]) for name in names]
        if number is None or number != int(number):
            raise _bad_row(path, line, "a whole round number", repr(cells[about["round"]]))
        if None in row:
            wrong = cells[columns[names[row.index(None)]]]
            raise _bad_row(
                path,
                line,
                f"numbers: 0, 1 or a weight from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}",
                repr(wrong[:60]),
            )
        if not any(row):
            raise _bad_row(path, line, "a query with at least one client", "0 for every client")
        rounds.setdefault(int(number), []).append([float(v or 0.0) for v in row])
    if not rounds:
        raise _bad_row(path, lines[-1][0], "at least one answered query", "none")
    return Queries(names=tuple(names), rounds={r: np.array(m) for r, m in sorted(rounds.items())})


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not empty."""
    try:
        text = read_text(path, encoding="utf-8-sig")
    except Unreadable as error:
        raise DataError(
            f"cannot read {path}",
            expected="a trace folder, or a CSV file in UTF-8",
            got=error.got,
            remedy="check the path",
        ) from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    table = csv.reader(text.splitlines(), delimiter=separator)
    try:
        found = [(table.line_num, cells) for cells in table if any(c.strip() for c in cells)]
    except csv.Error as error:
        raise _bad_row(path, table.line_num, "a CSV table", str(error)) from None
    if not found:
        raise _bad_row(path, 1, "a row for each query", "an empty file")
    return found


def _weight(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if value == 0 or MIN_WEIGHT <= abs(value) <= MAX_WEIGHT else None


MIN_WEIGHT, MAX_WEIGHT = 1e-9, 1e9
"""Range of non-zero weights: outside it, sums and products lose precision."""


def _bad_row(path: str | os.PathLike[str], line: int, expected: str, got: str) -> DataError:
    return DataError(
        f"{path}, line {line}, is not a row of a query plan",
        expected=expected,
        got=got,
        remedy="write one row per query: round, then 1 or 0 for every client",
    )


# -- design ----------------------------------------------------------------------------------------

MAX_ROUNDS_FACTOR = 16
"""The search for the rounds needed ends at this multiple of the earliest possible round."""

MOST_APART = 64
"""The search for rounds that separate all clients ends here."""

MANY = 40
"""Clients above which fewer plans are drawn, and renamed: a search for a plan takes longer."""

SWAPS = (0.1, 0.25, 0.5)
"""Shares of clients that swap groups between two rounds, one design each."""

GroupSize = Annotated[int, Ge(2), "a sum over one client is the client's own update"]

PERSISTENCE = (0.0, 0.5, 0.9, 1.0)
"""Shares of an update that persist in the next round, for the cost across rounds."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """One design of queries: its power, and what it exposes.

    plan: the drawn plan (T, G, K)
    exposed: clients in the smallest group that a round's answers expose
    rank, identifiable: of `plan` over all rounds
    separation: fewest rounds in which two clients of `plan` are in different groups
    apart_from: first round after which all are apart at least twice; None: not within the search
    power, needed: of the test of each client without every other; None for the published pairs
    cosine, guessed: persistence -> cosine between a client's mean update and its estimate, by least
        squares and by the best linear guess; mean over clients and plans
    """

    name: str
    queries_per_round: int
    uploads_per_client: float
    exposed: int
    rank: int
    identifiable: int
    separation: int
    apart_from: int | None
    power: plan_design.Power | None
    needed: plan_design.RoundsNeeded | None
    cosine: Mapping[float, Estimate]
    guessed: Mapping[float, Estimate]
    plan: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Designs:
    """All designs for one federation, with the assumed `scores`."""

    clients: int
    threshold: int
    rounds: int
    scores: plan_design.Scores
    designs: tuple[Design, ...]

    @property
    def earliest(self) -> int:
        """First round after which partitions identify all clients."""
        groups = query_plans.group_count(self.clients, self.threshold)
        return query_plans.rounds_to_identify(self.clients, groups)

    def of(self, name: str) -> Design:
        for design in self.designs:
            if design.name == name:
                return design
        check_name(name)
        raise UsageError.unknown(
            f"{name} does not fit these clients", name, [d.name for d in self.designs]
        )

    def to_dict(self) -> dict[str, Any]:
        def plain(d: Design) -> dict[str, Any]:
            row = asdict(d)
            del row["plan"]
            for name in ("cosine", "guessed"):
                row[name] = {f"{p:g}": asdict(e) for p, e in getattr(d, name).items()}
            return row

        return {
            "clients": self.clients,
            "threshold": self.threshold,
            "rounds": self.rounds,
            "scores": asdict(self.scores),
            "designs": [plain(d) for d in self.designs],
        }


def design_names(swaps: Sequence[float] = SWAPS) -> tuple[str, ...]:
    """Names of the designs, the published plan last."""
    between = (f"swapped {100 * f:g} %" for f in swaps)
    return ("cycled", "balanced", "groups", *between, "partitions", "paired (published)")


def check_name(name: str) -> None:
    """Refuse an unknown design."""
    if name not in design_names():
        raise UsageError.unknown(f"there is no design {name!r}", name, design_names())


def design(
    clients: int,
    threshold: int,
    rounds: int,
    *,
    scores: plan_design.Scores | None = None,
    swaps: Sequence[float] = SWAPS,
    repeats: int = 5,
    runs: int = 200,
    rng: np.random.Generator,
) -> Designs:
    """Compare balanced partitions, fixed groups, swaps, random partitions, the published pairs.

    "cycled" repeats five balanced partitions; "balanced" never repeats one. `scores`: assumptions
    on attribution. `runs`: number of simulated runs. `repeats`: M of the published plan, which
    needs N = threshold < K - 1 and is left out otherwise.
    """
    from threadpoolctl import threadpool_limits

    require(Count, rounds=rounds, remedy="`rounds=10`")
    require(GroupSize, threshold=threshold, remedy="`threshold=5`")
    require(AtLeastTwo, runs=runs, remedy="`runs=200`")
    query_plans.group_count(clients, threshold)  # raises where they do not fill two groups
    wanted = scores or plan_design.Scores(marked=max(1, round(0.3 * clients)))

    def cycled(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.cycled_partitions(clients, threshold, t, rng)

    def balanced(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.balanced_partitions(clients, threshold, t, rng)

    def fixed(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.fixed_groups(clients, threshold, t, rng)

    def fresh(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.random_partitions(clients, threshold, t, rng)

    def swapping(fraction: float) -> plan_design.Draw:
        return lambda t: query_plans.swapped_groups(clients, threshold, t, rng, fraction=fraction)

    draws: list[plan_design.Draw] = [cycled, balanced, fixed, *(swapping(f) for f in swaps), fresh]
    # many small matrices: more threads make it slower
    with threadpool_limits(1):
        found = [
            _design_partition(name, draw, rounds, wanted, draw is not fixed, runs, rng)
            for name, draw in zip(design_names(swaps), draws, strict=False)
        ]
        if threshold < clients - 1:
            found.append(_design_published(clients, threshold, repeats, rounds, rng))
    return Designs(
        clients=clients, threshold=threshold, rounds=rounds, scores=wanted, designs=tuple(found)
    )


def _design_partition(
    name: str,
    draw: plan_design.Draw,
    rounds: int,
    scores: plan_design.Scores,
    mixes: bool,
    runs: int,
    rng: np.random.Generator,
) -> Design:
    """One design of partitions; `mixes`: whether clients change groups at all."""
    plan = draw(rounds)
    groups, clients = plan.shape[1:]
    stacked = audit_plan(plan.reshape(-1, clients), work=10_000_000)
    within = min(audit_plan(round_).min_support for round_ in plan)
    few = 50 if clients <= MANY else 5
    plans = [draw(rounds) for _ in range(min(runs, few))]
    drawn = draw if clients <= MANY else _again(plans, draw, rounds, rng)
    apart = _rounds_apart(draw) if mixes else None
    return Design(
        name=name,
        queries_per_round=groups,
        uploads_per_client=1.0,
        exposed=within,
        rank=stacked.rank,
        identifiable=len(stacked.recoverable),
        separation=query_plans.least_separation(plan),
        apart_from=apart,
        power=plan_design.contrast_power(drawn, rounds, scores, rng, runs=runs),
        needed=None
        if apart is None
        else plan_design.rounds_needed(
            draw,
            scores,
            first=apart,
            most=MAX_ROUNDS_FACTOR * apart,
            plans=min(few, 30),
            expected=plan_design.expected_contrast_power,
        ),
        cosine={p: _cosine(plans, p) for p in PERSISTENCE},
        guessed={p: _cosine(plans, p, best=True) for p in PERSISTENCE},
        plan=plan,
    )


def _again(
    plans: Sequence[npt.NDArray[np.uint8]],
    draw: plan_design.Draw,
    rounds: int,
    rng: np.random.Generator,
) -> plan_design.Draw:
    """Draws of `rounds` rounds come from `plans`, with clients renamed: as likely, and cheaper."""

    def one(t: int) -> npt.NDArray[np.uint8]:
        if t != rounds:
            return draw(t)
        picked = plans[int(rng.integers(len(plans)))]
        return np.asarray(picked[:, :, rng.permutation(picked.shape[2])])

    return one


def _rounds_apart(draw: plan_design.Draw) -> int | None:
    """Fewest rounds after which all pairs were apart `APART` times, in one drawn plan each."""
    for t in range(1, MOST_APART + 1):
        if query_plans.least_separation(draw(t)) >= query_plans.APART:
            return t
    return None


def _cosine(
    plans: Sequence[npt.NDArray[np.uint8]], persistence: float, *, best: bool = False
) -> Estimate:
    """Mean cosine over clients and plans; the baseline uses the training aggregate alone."""
    rounds, _, clients = plans[0].shape
    alone = np.ones((rounds, 1, clients))
    each = [float(plan_design.persistence_cosine(p, persistence, best=best).mean()) for p in plans]
    baseline = float(plan_design.persistence_cosine(alone, persistence).mean())
    found = mean(each, baseline=baseline)
    if not isinstance(found, Estimate):
        raise UsageError(
            "an interval needs at least two plans",
            expected="at least 2 simulated runs",
            got=str(len(each)),
            remedy="`runs=200`",
        )
    return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))


def _design_published(
    clients: int, others: int, repeats: int, rounds: int, rng: np.random.Generator
) -> Design:
    """The published plan: what one of its rounds exposes. [FedAttr] Eq. (3)

    On average, a client is in M (1 + 2N) subsets of a round and uploads a masked vector for each.
    """
    rows = [
        np.concatenate([p.queries for p in query_plans.paired_plan(clients, others, repeats, rng)])
        for _ in range(rounds)
    ]
    first = audit_plan(rows[0])
    return Design(
        name=design_names()[-1],
        queries_per_round=len(rows[0]),
        uploads_per_client=float(np.mean([r.sum(axis=0).mean() for r in rows])),
        exposed=first.min_support,
        rank=first.rank,
        identifiable=len(first.recoverable),
        separation=0,
        apart_from=1,
        power=None,
        needed=None,
        cosine={},
        guessed={},
        plan=np.stack(rows),
    )


def client_names(clients: int) -> tuple[str, ...]:
    """Client names as in a federation."""
    width = max(2, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def write_table(path: str | os.PathLike[str], plan: npt.NDArray[np.uint8]) -> None:
    """Write a plan (T, G, K) as a CSV table; `check` reads it."""
    with (
        writing(path, DataError, remedy="choose another place"),
        Path(path).open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.writer(file)
        table.writerow(["round", "query", *client_names(plan.shape[-1])])
        for t, rows in enumerate(plan, start=1):
            for q, row in enumerate(rows):
                table.writerow([t, q, *row.tolist()])
