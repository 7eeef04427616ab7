"""Sweeps: a grid of settings times seeds from one config, with one table and one figure.

Every cell is a run, named by the hash of its config. A stopped sweep continues, identical cells run
once, and a failed cell is reported without stopping the others. Processes of this machine or Ray's
workers (`--workers ray`, `--workers ray://HOST:PORT`) run the cells; results do not depend on the
workers or their number.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from fedaudit import __version__, shapes
from fedaudit.audits import facts_of
from fedaudit.codec import json_number, to_json
from fedaudit.errors import UsageError
from fedaudit.files import Unreadable, is_lost, parse_toml, read_object, write_atomically, writing
from fedaudit.progress import Progress, no_progress
from fedaudit.reporting.plots import Line, Polyline, lines
from fedaudit.results import Estimate
from fedaudit.settings import Count, require
from fedaudit.setup import seeds as seeding
from fedaudit.setup.config import check, load
from fedaudit.setup.identity import check_and_store, code_identity, code_named_in, code_sha256
from fedaudit.setup.prepare import Prepared
from fedaudit.setup.toml import override
from fedaudit.stats import intervals
from fedaudit.stats.intervals import wilson
from fedaudit.study.run import run
from fedaudit.study.seal import gone, is_sealed_as, remove_parts, seal_written
from fedaudit.trace import Truth
from fedaudit.workers import JobFailed, fan_out, parse_workers


@dataclass(frozen=True)
class Axis:
    """One `--grid key=v1,v2`: a dotted key and its values."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Axis:
        key, equals, rest = text.partition("=")
        if not equals or not key.strip() or not rest.strip():
            raise UsageError(
                "`grid` needs a key and values",
                expected="section.key=v1,v2,...",
                got=repr(text),
                remedy="for example federation.clients=5,10,20",
            )
        try:
            values = parse_toml(f"v = [{rest}]")["v"]
        except ValueError:
            values = [part.strip() for part in rest.split(",")]  # bare words are text
        if len({json.dumps(v, default=str) for v in values}) != len(values):
            raise UsageError(
                f"`grid` names a value of {key} twice",
                expected="different values",
                got=rest,
                remedy="list every value once",
            )
        return cls(key.strip(), tuple(values))


@dataclass(frozen=True)
class Cell:
    """One point of the grid with one seed; `number` counts from 1 and does not reveal the seed."""

    point: tuple[Any, ...]
    number: int
    raw: dict[str, Any]
    name: str
    drawn: bool = False


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: the rows of the table, and cells that failed or had a failed audit."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    failed: tuple[tuple[str, str], ...]
    reused: int


def cells(
    config: str | Path | None,
    axes: Sequence[Axis],
    seeds: int,
    overrides: Sequence[str] = (),
    drawn: Callable[[], int] | None = None,
) -> list[Cell]:
    """All cells, each checked, so that a mistake shows before anything runs.

    Seeds count up from the config's seed; without one, from `drawn()` or a new one.
    """
    require(Count, seeds=seeds, remedy="`seeds=3`")
    first = load(config, overrides=overrides)
    base = drawn() if first.drawn and drawn is not None else first.seed
    out = []
    for point in itertools.product(*(a.values for a in axes)):
        for s in range(seeds):
            raw = json.loads(json.dumps(dict(first.raw)))
            for axis, value in zip(axes, point, strict=True):
                override(raw, axis.key, value)
            raw["seed"] = (base + s) % seeding.SEEDS
            checked = check(raw)
            name = checked.full_sha256[:16]
            out.append(Cell(point, s + 1, dict(checked.raw), name, first.drawn))
    return out


def run_cell(
    raw: dict[str, Any],
    folder: str,
    keep_traces: bool,
    drawn: bool = False,
    loaded: Prepared | None = None,
) -> dict[str, Any]:
    """Run one cell in its folder and write its summary (called in a worker process).

    `drawn`: the seed counts up from a drawn one. A cell with a failed audit is not stored: "failed"
    holds the reason, and the next sweep tries again. `loaded` has the data, where the caller
    loaded them.
    """
    path = Path(folder)
    stored = _stored(path, raw)
    if stored is not None:
        return stored
    own_code = _own_code(raw)  # before the run: later edits then count as a change
    # start over if the recording was not kept, or if the folder holds another cell
    fresh = "trace" in gone(path) or _is_another(path)
    prepared = Prepared(replace(check(raw), drawn=drawn), beside=loaded)
    finished = run(prepared, path, fresh=fresh)
    measured: dict[str, Any] = {}
    for result in finished.results:
        for name, e in result.estimates.items():
            numbers = (e.value, e.low, e.high, e.baseline)
            measured[f"{result.audit}.{name}"] = [json_number(x) for x in numbers]
    measured |= _utility(finished.metrics, Truth.open(path / "truth").facts)
    spent = [float(g["epsilon"]) for of in finished.guarantees.values() for g in of.values()]
    if spent:
        # an accountant's upper bound, not an estimate; "inf" because JSON has no infinity
        most = json_number(max(spent))
        measured["epsilon.largest"] = [most, most, most, None]
    summary: dict[str, Any] = {
        "fedaudit": __version__,
        "cell": path.name,
        "code": code_sha256(),
        "own_code": own_code,
        "measured": measured,
    }
    failed = [
        f"audit {r.audit} failed: {r.need.what if r.need else 'unknown reason'}"
        for r in finished.results
        if r.status == "failed"
    ]
    if not failed:
        _keep(path, summary)
    if not keep_traces:
        remove_parts(path, ("trace", "truth", "checkpoint"), "not kept by a sweep")
    return {**summary, "reused": False, "failed": "\n".join(failed)}


def _utility(metrics: Mapping[str, float], facts: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Held-out metrics of the last model as [value, low, high, value of guessing]."""
    out: dict[str, list[Any]] = {}
    records, guessing = int(facts.get("held_out", 0)), facts.get("guessing", {})
    for name, value in metrics.items():
        # a diverged model has no loss to average
        if not math.isfinite(value) or name.endswith("_error"):
            continue
        wide = NormalDist().inv_cdf(0.975) * metrics.get(f"{name}_error", 0.0)
        low, high = value - wide, value + wide
        if name == "accuracy" and records:
            e = wilson(round(value * records), records)
            low, high = e.low, e.high
        out[f"held_out.{name}"] = [value, low, high, guessing.get(name)]
    return out


def _own_code(raw: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of user code that a cell's audits name; `check_and_store` covers the rest."""
    return {where: code_identity(where) for where in code_named_in(raw.get("audits", {}))}


def _stored(folder: Path, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stored summary of this cell, if fedaudit's and the user's code are unchanged."""
    done = folder / "cell.json"
    if is_lost(done) or not is_sealed_as(folder, done):
        return None
    try:
        stored = read_object(done, shapes.CELL)
    except Unreadable:
        return None  # torn: run again
    if stored.get("cell") != folder.name:
        return None
    if stored["code"] != code_sha256() or stored["own_code"] != _own_code(raw):
        return None
    return {**stored, "reused": True, "failed": ""}


def _is_another(folder: Path) -> bool:
    """Whether a folder holds another cell: the name is a hash of the config."""
    try:
        stored = read_object(folder / "cell.json", shapes.CELL)
    except Unreadable:
        return False
    return bool(stored.get("cell", folder.name) != folder.name)


def _keep(folder: Path, summary: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = {k: summary[k] for k in ("fedaudit", "cell", "code", "own_code", "measured")}
    write_atomically(folder / "cell.json", to_json(own) + "\n")
    seal_written(folder, "results", folder / "cell.json")


def _outcomes(
    jobs: Mapping[str, tuple[dict[str, Any], str, bool, bool]], workers: int | str
) -> Generator[tuple[str, Any], None, None]:
    """(name, summary or `Failed`) of every cell.

    Ray's workers may be on other machines with folders of their own: stored cells are not sent to
    them, and their summaries are stored here.
    """
    if not isinstance(workers, str):
        yield from fan_out(run_cell, jobs, workers)
        return
    missing = {}
    for name, (raw, folder, *how) in jobs.items():
        stored = _stored(Path(folder), raw)
        if stored is None:
            missing[name] = (raw, str(Path(folder).resolve()), *how)
        else:
            yield name, stored
    with closing(fan_out(run_cell, missing, str(parse_workers(workers)))) as outcomes:
        for name, found in outcomes:
            if not isinstance(found, JobFailed) and not found["failed"]:
                _keep(Path(jobs[name][1]), found)
            yield name, found


def sweep(
    config: str | Path | None,
    grid: Sequence[str],
    out: str | os.PathLike[str] = "fedaudit-sweep",
    *,
    seeds: int = 1,
    workers: int | str | None = None,
    overrides: Sequence[str] = (),
    keep_traces: bool = False,
    progress: Progress = no_progress,
    fresh: bool = False,
) -> Sweep:
    """Run a grid of experiments and write sweep.csv, sweep.md and sweep.svg.

    `workers`: a number of processes, "ray" or "ray://HOST:PORT". Workers on other machines keep
    their traces there; the table is written here. Stored cells are reused for the same data and
    code; `fresh` removes them. A cell with a failed audit is listed as failed; the results of its
    other audits count.
    """
    axes = [Axis.parse(text) for text in grid]
    path = Path(out)
    cells(config, axes, seeds, overrides)  # check before making a folder
    with writing(path):
        (path / "cells").mkdir(parents=True, exist_ok=True)
        wanted = cells(config, axes, seeds, overrides, lambda: seeding.base_seed(path))
    if fresh:
        shutil.rmtree(path / "cells")
    begun = any(path.glob("cells/*/run.json"))
    check_and_store(path, (check(c.raw) for c in wanted), begun=begun, audits=True)
    unique = {c.name: c for c in wanted}
    jobs = {
        name: (c.raw, str(path / "cells" / name), keep_traces, c.drawn)
        for name, c in unique.items()
    }
    measured: dict[str, dict[str, Any]] = {}
    failed: list[tuple[str, str]] = []
    reused = 0
    progress("sweep", 0, len(unique), "")
    with closing(_outcomes(jobs, workers or os.cpu_count() or 1)) as outcomes:
        for done, (name, found) in enumerate(outcomes, start=1):
            cell = unique[name]
            label = ", ".join(f"{a.key}={v}" for a, v in zip(axes, cell.point, strict=True))
            if why := found.why if isinstance(found, JobFailed) else found["failed"]:
                failed.append((f"{label} (seed {cell.number} of {seeds})", why))
            if not isinstance(found, JobFailed):
                measured[name] = found["measured"]
                reused += bool(found["reused"])
            progress("sweep", done, len(unique), label)
    rows = table(axes, wanted, measured)
    columns = tuple(dict.fromkeys(k for row in rows for k in row))
    finished = Sweep(path, columns, tuple(rows), tuple(failed), reused)
    _write(finished, axes)
    return finished


def over_seeds(
    runs: Sequence[tuple[float, float, float]],
) -> tuple[float, float | None, float | None, str]:
    """Mean over runs (value, low, high) with Student's t interval between runs.

    The interval is at least as wide as the average of the runs' own intervals, since equal values
    over two seeds are not certain. It stays within [0, 1] if every run's interval does.
    """
    if any(math.isinf(value) for value, _, _ in runs):
        return math.inf, None, None, "none: no bound in some run"
    if len(runs) == 1:
        value, low, high = runs[0]
        if low == value == high:
            return value, None, None, "none: a single run"
        return value, low, high, "of the single run"
    n = len(runs)
    e = intervals.mean([value for value, _, _ in runs])
    assert isinstance(e, Estimate)
    below = sum(value - low for value, low, _ in runs) / n / math.sqrt(n)
    above = sum(high - value for value, _, high in runs) / n / math.sqrt(n)
    low, high = min(e.low, e.value - below), max(e.high, e.value + above)
    if all(bottom >= 0 for _, bottom, _ in runs):
        low = max(0.0, low)
        if all(top <= 1 for _, _, top in runs):
            high = min(1.0, high)
    return e.value, low, high, "t over seeds, at least the runs' own"


def table(
    axes: Sequence[Axis], wanted: Sequence[Cell], measured: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row per point of the grid and measure: mean and interval over seeds."""
    points: dict[str, list[Cell]] = {}
    for cell in wanted:
        points.setdefault(json.dumps(cell.point), []).append(cell)
    rows = []
    for group in points.values():
        found = [measured[c.name] for c in group if c.name in measured]
        names = dict.fromkeys(n for m in found for n in m)
        for name in names:
            values = [m[name] for m in found if name in m]
            runs = [(float(v[0]), float(v[1]), float(v[2])) for v in values]
            value, low, high, by = over_seeds(runs)
            row = {a.key: v for a, v in zip(axes, group[0].point, strict=True)}
            chance = [v[3] for v in values if v[3] is not None]
            row |= {
                "measure": name,
                "value": value,
                "low": low,
                "high": high,
                "chance": sum(chance) / len(chance) if chance else None,
                "seeds": len(values),
                "interval": by,
            }
            rows.append(row)
    return rows


def _write(finished: Sweep, axes: Sequence[Axis]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(finished.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(finished.rows)
    write_atomically(finished.path / "sweep.csv", text.getvalue())
    write_atomically(finished.path / "sweep.md", markdown(finished, axes))
    figure = headline_figure(finished, axes)
    if figure is not None:
        write_atomically(finished.path / "sweep.svg", figure)


def markdown(finished: Sweep, axes: Sequence[Axis]) -> str:
    """The grid as a table, one row per point: headlines, utility and epsilon (the CSV has all)."""
    measures = headlines([str(r["measure"]) for r in finished.rows])
    keys = [a.key for a in axes]
    head = [*keys, *measures]
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    points: dict[str, dict[str, str]] = {}
    for row in finished.rows:
        if row["measure"] not in measures:
            continue
        point = json.dumps([row[k] for k in keys])
        at = points.setdefault(point, {k: str(row[k]) for k in keys})
        at[row["measure"]] = f"{row['value']:.3f}" if math.isfinite(row["value"]) else "∞"
        if row["low"] is not None:
            at[row["measure"]] += f" [{row['low']:.3f}, {row['high']:.3f}]"
        if row["chance"] is not None:
            at[row["measure"]] += f", chance {row['chance']:.3f}"
    for at in points.values():
        out.append("| " + " | ".join(at.get(h, "") for h in head) + " |")
    for label, message in finished.failed:
        first = message.splitlines()[0]
        out.append(f"\nFailed: {label}: {first}")
    return "\n".join(out) + "\n"


def headlines(names: Sequence[str]) -> list[str]:
    """The first measure of every audit, by every method, what the audit shows beside it, and all
    utility and epsilon measures."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.split(".")[0], name)
    return [
        name
        for name in dict.fromkeys(names)
        if name.startswith(("held_out.", "epsilon."))
        or name.split(" (")[0] == first[name.split(".")[0]]
        or _beside_headline(name)
    ]


def _beside_headline(measure: str) -> bool:
    audit, _, name = measure.partition(".")
    return facts_of(audit).shows(name)


def _checks_declaration(measure: str) -> bool:
    return facts_of(measure.partition(".")[0]).checks_declaration


def headline_figure(finished: Sweep, axes: Sequence[Axis]) -> str | None:
    """The first audit measure over the first numeric axis, a line per remaining point.

    Checks of the declared protections are left out.
    """
    numeric = [a for a in axes if all(isinstance(v, int | float) for v in a.values)]
    measures = [r["measure"] for r in finished.rows if not _checks_declaration(r["measure"])]
    if not numeric or not measures:
        return None
    x, measure = numeric[0].key, measures[0]
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    chances: dict[str, list[tuple[float, float]]] = {}
    for row in finished.rows:
        if row["measure"] != measure:
            continue
        rest = ", ".join(f"{a.key.split('.')[-1]}={row[a.key]}" for a in axes if a.key != x)
        low, high = row["low"], row["high"]
        point = (
            float(row[x]),
            row["value"],
            row["value"] if low is None else low,
            row["value"] if high is None else high,
        )
        series.setdefault(rest or measure, []).append(point)
        if row["chance"] is not None:
            chances.setdefault(rest, []).append((float(row[x]), row["chance"]))
    levels = sorted({round(c, 4) for points in chances.values() for _, c in points})
    drawn = [Line(name, tuple(sorted(points))) for name, points in series.items()]
    by_guessing = {tuple(sorted(points)): name for name, points in chances.items()}
    guesses = [
        Polyline("chance" if len(by_guessing) == 1 else f"chance, {name}", points, dashed=True)
        for points, name in by_guessing.items()
    ]
    return lines(
        drawn,
        x_label=x,
        y_label=measure,
        baseline=levels[0] if len(levels) == 1 else None,
        beside=guesses if len(levels) > 1 else (),
    )
