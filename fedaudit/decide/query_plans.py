"""Query plans before and after they are asked: `check` a ledger or a table, `design` a plan.

A table is a CSV file with one row per query and one column per client (1 where the client is in the
query, 0 where it is not, or a weight). A column `round` says which queries belong together; the
other columns of a ledger (`query`, `answered`, `reason`, `bytes_up`, `bytes_down`, `seconds`) are
understood and need not be there.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.query_plan import PlanAudit, align_clients, audit_plan
from fedaudit.errors import DataError, NotApplicable, UsageError, nearest
from fedaudit.files import Unreadable, read_text
from fedaudit.results import Estimate
from fedaudit.stats import plan_design, query_plans
from fedaudit.stats.intervals import mean
from fedaudit.stats.query_algebra import Addition, added_by
from fedaudit.study.seal import open_trace
from fedaudit.trace import SERVER
from fedaudit.trace.health import examine
from fedaudit.trace.ledger import asked

ABOUT = ("round", "query", "answered", "reason", "bytes_up", "bytes_down", "seconds")
"""Columns of a table that are no clients."""

# -- check -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Answered queries by round, (Q, K) each; `threshold` where secure aggregation declared one."""

    names: tuple[str, ...]
    rounds: Mapping[int, Floats]
    threshold: int | None = None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the answers give away: round by round, and as if updates were the same in all rounds.

    `added` is what one more query would add to its round, where one was asked about.
    """

    names: tuple[str, ...]
    threshold: int
    rounds: Mapping[int, PlanAudit]
    stacked: PlanAudit
    added: Addition | None = None

    @property
    def smallest(self) -> PlanAudit:
        """The round in which the smallest group was found; a bounded search may have missed a
        smaller one in another: see `floor`."""
        return min(self.rounds.values(), key=lambda p: p.min_support)

    @property
    def floor(self) -> int:
        """No combination of a round's answers has fewer clients, in any round: proven."""
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
) -> Checked:
    """Audit the queries of a trace, a run, or a CSV table.

    With `training`, the training aggregate over all clients counts among the answers of every round
    of a table; a trace has its own. `add` names the clients of one more query, asked in round
    `add_to` (default: the last).
    """
    path = Path(source)
    if path.is_dir():
        queries = of_trace(path, vantage)
    else:
        queries = of_table(path)
        if training:
            everyone = np.ones((1, len(queries.names)))
            rounds = {r: np.concatenate([m, everyone]) for r, m in queries.rounds.items()}
            queries = Queries(names=queries.names, rounds=rounds)
    many = len(queries.names)
    if threshold is not None and not 1 <= threshold <= many:
        raise UsageError(
            "a threshold is out of range",
            expected=f"1 to {many}, the clients of the plan: no sum is over more",
            got=str(threshold),
            remedy=f"--threshold {min(5, many)}",
        )
    if threshold is None:
        threshold = queries.threshold or 2
    return Checked(
        names=queries.names,
        threshold=threshold,
        rounds={r: audit_plan(m) for r, m in queries.rounds.items()},
        stacked=audit_plan(np.concatenate(list(queries.rounds.values()))),
        added=_added(queries, add, add_to) if add is not None else None,
    )


def _added(queries: Queries, add: Sequence[str], add_to: int | None) -> Addition:
    number = max(queries.rounds) if add_to is None else add_to
    if number not in queries.rounds:
        raise UsageError(
            f"there is no round {number} to add a query to",
            expected=", ".join(map(str, queries.rounds)),
            got=str(number),
            remedy="name a round of the plan with --round",
        )
    if not add:
        raise UsageError(
            "one more query names nobody",
            expected="clients by name or number, separated by commas",
            got="none",
            remedy=f"--add {','.join(queries.names[:3])}",
        )
    row = np.zeros(len(queries.names))
    for name in add:
        at = queries.names.index(name) if name in queries.names else None
        if at is None and name.isdecimal() and int(name) < len(queries.names):
            at = int(name)
        if at is not None and row[at]:
            raise UsageError(
                f"one more query names {queries.names[at]!r} twice",
                expected="every client once",
                got=",".join(add),
                remedy="remove one of them",
            )
        if at is not None:
            row[at] = 1.0
        else:
            raise UsageError(
                f"{name!r} is no client of the plan",
                expected="a client's name, or its number from 0",
                got=repr(name),
                remedy=nearest(name, queries.names),
            )
    return added_by(queries.rounds[number], row)


def of_trace(path: str | os.PathLike[str], vantage: str = SERVER) -> Queries:
    """The ledger of a trace as one party saw it."""
    trace = open_trace(path)
    examine(trace, payloads=False)  # who is in a sum is not read from a torn round
    view = trace.seen_by(*vantage.split("+"))
    ledgers = [a for a in (asked(view, number) for number in view.rounds) if len(a.answered)]
    if not ledgers:
        raise NotApplicable(
            f"{vantage} sees no sums in {path}",
            code="no_sums",
            expected="answers of secure aggregation",
            got="none",
            remedy="record a run with [protections.secure_aggregation], or give a table",
        )
    names, matrices = align_clients(ledgers)
    declared = [d.get("threshold") for d in view.declared]
    stated = [t for t in declared if isinstance(t, int) and not isinstance(t, bool)]
    return Queries(
        names=names,
        rounds={a.round: m for a, m in zip(ledgers, matrices, strict=True)},
        threshold=max(stated) if stated else None,
    )


def of_table(path: str | os.PathLike[str]) -> Queries:
    """A CSV table, or a ledger that secure aggregation wrote; refused queries are left out."""
    lines = _lines(Path(path))
    head = lines[0][1]
    if all(_number(cell) is not None for cell in head):
        names, body = [f"client-{i:02d}" for i in range(len(head))], lines
        columns = {name: i for i, name in enumerate(names)}
    else:
        body = lines[1:]
        columns = {name: i for i, name in enumerate(head)}
        names = [name for name in head if name.lower() not in ABOUT]
        if len(columns) != len(head):
            raise _bad(path, lines[0][0], "different column names", "one that stands twice")
    if not names or not body:
        raise _bad(
            path,
            lines[0][0],
            "a column for each client and a row for each query",
            f"{len(names)} clients, {len(body)} queries",
        )
    about = {name.lower(): i for name, i in columns.items() if name not in names}
    rounds: dict[int, list[list[float]]] = {}
    for line, cells in body:
        if len(cells) != len(head):
            raise _bad(path, line, f"{len(head)} cells", f"{len(cells)}")
        if "answered" in about and cells[about["answered"]].strip().lower() in ("0", "false", "no"):
            continue
        number = _number(cells[about["round"]]) if "round" in about else 1.0
        row = [_number(cells[columns[name]]) for name in names]
        if number is None or number != int(number):
            raise _bad(path, line, "a whole number of a round", repr(cells[about["round"]]))
        if None in row:
            wrong = cells[columns[names[row.index(None)]]]
            raise _bad(
                path,
                line,
                f"numbers: 0, 1 or a weight from {LIGHTEST:g} to {HEAVIEST:g}",
                repr(wrong[:60]),
            )
        if not any(row):
            raise _bad(path, line, "a query over somebody", "0 for every client")
        rounds.setdefault(int(number), []).append([float(v or 0.0) for v in row])
    if not rounds:
        raise _bad(path, lines[-1][0], "at least one query that was answered", "none")
    return Queries(names=tuple(names), rounds={r: np.array(m) for r, m in sorted(rounds.items())})


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not empty."""
    try:
        text = read_text(path, encoding="utf-8-sig")
    except Unreadable as error:
        raise DataError(
            f"{path} cannot be read",
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
        raise _bad(path, table.line_num, "a CSV table", str(error)) from None
    if not found:
        raise _bad(path, 1, "a row for each query", "an empty file")
    return found


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if value == 0 or LIGHTEST <= abs(value) <= HEAVIEST else None


LIGHTEST, HEAVIEST = 1e-9, 1e9
"""Weights of a query besides 0: sums and products of others lose their digits."""


def _bad(path: str | os.PathLike[str], line: int, expected: str, got: str) -> DataError:
    return DataError(
        f"{path}, line {line}, is no row of a query plan",
        expected=expected,
        got=got,
        remedy="write one row per query: round, then 1 or 0 for every client",
    )


# -- design ----------------------------------------------------------------------------------------

MOST = 16
"""How many times the earliest round the search for the rounds needed goes."""

SWAPS = (0.1, 0.25, 0.5)
"""Shares of clients that change places between two rounds, for the designs in between."""

PERSISTENCE = (0.0, 0.5, 0.9, 1.0)
"""How much of an update is the same in the next round, for the price across rounds."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """One way to choose queries, and what it gives and costs over the rounds asked for.

    `exposed` clients in the smallest group that a round's answers expose; `rank` over all rounds,
    and `identifiable` clients, of the drawn `plan` (T, G, K); `from_round` the earliest round after
    which all could be identified (None: never); `power` and `needed` as in `plan_design`;
    `cosine`, `guessed` persistence -> mean over clients and plans of the cosine of their mean
    update with its estimate by least squares, and by the best linear guess. None or empty where a
    design is not for that.
    """

    name: str
    queries_per_round: int
    uploads_per_client: float
    exposed: int
    rank: int
    identifiable: int
    from_round: int | None
    power: plan_design.Power | None
    needed: plan_design.Needed | None
    cosine: Mapping[float, Estimate]
    guessed: Mapping[float, Estimate]
    plan: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Designs:
    """All designs for one federation, with what was assumed."""

    clients: int
    threshold: int
    rounds: int
    scores: plan_design.Scores
    designs: tuple[Design, ...]

    @property
    def earliest(self) -> int:
        """The first round after which partitions could identify everybody."""
        groups = query_plans.group_count(self.clients, self.threshold)
        return query_plans.rounds_to_identify(self.clients, groups)

    def of(self, name: str) -> Design:
        for design in self.designs:
            if design.name == name:
                return design
        check_name(name)
        raise UsageError(
            f"{name} does not fit these clients",
            expected="one of the designs of the table",
            got=repr(name),
            remedy=nearest(name, [d.name for d in self.designs]),
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
    """What the designs are called, the published plan last."""
    between = (f"swapped {100 * f:g} %" for f in swaps)
    return ("groups", *between, "partitions", "paired (published)")


def check_name(name: str) -> None:
    """Refuse a design that is none."""
    if name not in design_names():
        raise UsageError(
            f"there is no design {name!r}",
            expected="a design of the table",
            got=repr(name),
            remedy=nearest(name, design_names()),
        )


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
    """Fixed groups, groups with swaps, fresh partitions, and the published pairs beside them.

    `scores` says what is to be attributed; `runs` simulated runs behind every share; `repeats` is M
    of the published plan, which is left out where it does not fit (N = threshold < K - 1).
    """
    from threadpoolctl import threadpool_limits

    for what, least, got, remedy in (
        ("rounds", 1, rounds, "--rounds 10"),
        ("a threshold: a sum over one client is no secret", 2, threshold, "--threshold 5"),
        ("simulated runs", 2, runs, "--runs 200"),
    ):
        if got < least:
            raise UsageError(
                f"a plan needs {what}", expected=f"at least {least}", got=str(got), remedy=remedy
            )
    groups = query_plans.group_count(clients, threshold)
    wanted = scores or plan_design.Scores(marked=max(1, round(0.3 * clients)))
    earliest = query_plans.rounds_to_identify(clients, groups)

    def fixed(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.fixed_groups(clients, threshold, t, rng)

    def fresh(t: int) -> npt.NDArray[np.uint8]:
        return query_plans.random_partitions(clients, threshold, t, rng)

    def swapping(fraction: float) -> plan_design.Draw:
        return lambda t: query_plans.swapped_groups(clients, threshold, t, rng, fraction=fraction)

    draws: list[plan_design.Draw] = [fixed, *(swapping(f) for f in swaps), fresh]
    # thousands of small matrices: a second thread would wait for the first, not help it
    with threadpool_limits(1):
        found = [
            _partition(name, draw, rounds, wanted, None if draw is fixed else earliest, runs, rng)
            for name, draw in zip(design_names(swaps), draws, strict=False)
        ]
        if threshold < clients - 1:
            found.append(_published(clients, threshold, repeats, rounds, rng))
    return Designs(
        clients=clients, threshold=threshold, rounds=rounds, scores=wanted, designs=tuple(found)
    )


def _partition(
    name: str,
    draw: plan_design.Draw,
    rounds: int,
    scores: plan_design.Scores,
    earliest: int | None,
    runs: int,
    rng: np.random.Generator,
) -> Design:
    plan = draw(rounds)
    groups, clients = plan.shape[1:]
    stacked = audit_plan(plan.reshape(-1, clients), work=10_000_000)
    within = min(audit_plan(round_).min_support for round_ in plan)
    plans = [draw(rounds) for _ in range(min(runs, 50))]
    return Design(
        name=name,
        queries_per_round=groups,
        uploads_per_client=1.0,
        exposed=within,
        rank=stacked.rank,
        identifiable=len(stacked.recoverable),
        from_round=earliest,
        power=plan_design.power(draw, rounds, scores, rng, runs=runs),
        needed=None
        if earliest is None
        else plan_design.rounds_needed(draw, scores, first=earliest, most=MOST * earliest),
        cosine={p: _cosine(plans, p) for p in PERSISTENCE},
        guessed={p: _cosine(plans, p, best=True) for p in PERSISTENCE},
        plan=plan,
    )


def _cosine(
    plans: Sequence[npt.NDArray[np.uint8]], persistence: float, *, best: bool = False
) -> Estimate:
    """Mean over clients and plans; the baseline is the training aggregate alone."""
    rounds, _, clients = plans[0].shape
    alone = np.ones((rounds, 1, clients))
    each = [float(plan_design.persistence_cosine(p, persistence, best=best).mean()) for p in plans]
    baseline = float(plan_design.persistence_cosine(alone, persistence).mean())
    found = mean(each, baseline=baseline)
    if not isinstance(found, Estimate):
        raise UsageError(
            "an interval needs several plans",
            expected="at least 2 simulated runs",
            got=str(len(each)),
            remedy="--runs 200",
        )
    return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))


def _published(
    clients: int, others: int, repeats: int, rounds: int, rng: np.random.Generator
) -> Design:
    """The published plan for comparison: what one round exposes, whatever is attributed.

    [FedAttr] Eq. (3). A client is in M (1 + 2N) of a round's subsets on average, and uploads a
    masked vector for each.
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
        from_round=1,
        power=None,
        needed=None,
        cosine={},
        guessed={},
        plan=np.stack(rows),
    )


def client_names(clients: int) -> tuple[str, ...]:
    """Names as a federation gives them."""
    width = max(2, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def write_table(path: str | os.PathLike[str], plan: npt.NDArray[np.uint8]) -> None:
    """A plan (T, G, K) as a CSV table that `check` reads."""
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["round", "query", *client_names(plan.shape[-1])])
            for t, rows in enumerate(plan, start=1):
                for q, row in enumerate(rows):
                    table.writerow([t, q, *row.tolist()])
    except OSError as error:
        raise DataError(
            f"{path} cannot be written",
            expected="a file in a folder that exists",
            got=error.strerror or str(error),
            remedy="choose another place",
        ) from None
