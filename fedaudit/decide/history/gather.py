"""Collect the headlines of many runs, in order, with the limits of a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedaudit.decide.diff.compare import diff
from fedaudit.decide.diff.outcome import Comparison
from fedaudit.decide.diff.page import summary
from fedaudit.decide.diff.pairing import pair_runs
from fedaudit.decide.gate.evidence import Evidence, gather_evidence
from fedaudit.decide.gate.policy import Limit, load_policy
from fedaudit.errors import FedauditError, UsageError
from fedaudit.files import write_atomically, writing
from fedaudit.reporting.findings import judge_all, words_for
from fedaudit.reporting.rules import label_of
from fedaudit.reporting.timeline import Moment, NeighbouringRuns, TimeLine, timeline_page


@dataclass(frozen=True, kw_only=True)
class History:
    """The page over several runs: where it is, what it shows, which folders were left out."""

    path: Path
    lines: tuple[TimeLine, ...]
    changes: tuple[NeighbouringRuns, ...]
    left_out: tuple[str, ...] = ()


def history(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    policy: str | os.PathLike[str] | None = None,
) -> History:
    """Write `out`/index.html over several runs or studies, in the order given.

    `policy`: a file with limits; those on the measures that are shown are drawn.
    """
    limits = () if policy is None else load_policy(Path(policy)).limits
    given: list[tuple[str, Path, list[Evidence]]] = []
    left_out = []
    for name, path in zip(_labels([Path(r) for r in runs]), map(Path, runs), strict=True):
        try:
            given.append((name, path, gather_evidence(path)))
        except FedauditError as error:
            left_out.append(f"{name}: {error.what}")
    if len(given) < 2:
        raise UsageError(
            "a time line needs several runs",
            expected="at least two runs or studies that can be read",
            got="; ".join(left_out) or f"{len(given)} of them",
            remedy="fedaudit report RUN RUN, or fedaudit report FOLDER with runs in it",
        )
    lines, changes, folder = _lines(given, limits), _changes(given), Path(out)
    pages = [(name, path / "report.html") for name, path, _ in given]
    there = [(name, os.path.relpath(p, folder) if p.is_file() else "") for name, p in pages]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "index.html", timeline_page(there, lines, changes, left_out))
    return History(
        path=folder / "index.html",
        lines=tuple(lines),
        changes=tuple(changes),
        left_out=tuple(left_out),
    )


def _labels(paths: Sequence[Path]) -> list[str]:
    """Folder names; where two are equal, with the folder above."""
    names = [p.resolve().name for p in paths]
    return [
        "/".join(p.resolve().parts[-2:]) if names.count(n) > 1 else n
        for p, n in zip(paths, names, strict=True)
    ]


def _lines(
    given: Sequence[tuple[str, Path, Sequence[Evidence]]], limits: Sequence[Limit]
) -> list[TimeLine]:
    """One line per federation, protection and measure that two runs have."""
    found: dict[tuple[str, str, str], dict[str, Moment]] = {}
    before: Sequence[Evidence] = ()
    labels: dict[int, str] = {}
    for run, _, every in given:
        labels = _same_labels(before, every, labels)
        before = every
        for e in every:
            for audit, measure, moment in _moments(run, e):
                found.setdefault((labels[id(e)], audit, measure), {})[run] = moment
    out = []
    for (label, audit, measure), moments in found.items():
        if len(moments) < 2:
            continue
        of = tuple(moments.get(run) or Moment(run) for run, _, _ in given)
        words = words_for(audit) if audit else None
        title = (
            measure if words is None else f"{words.short or audit}: {measure}".replace("?:", "?")
        )
        bounds = [
            (limit.name or limit.metric, value)
            for limit in limits
            if limit.metric == (f"{audit}.{measure}" if audit else f"utility.{measure}")
            and (value := _bound(limit, of)) is not None
        ]
        percent = words.percent if words is not None else measure == "accuracy"
        out.append(TimeLine(label, title.replace("_", " "), percent, of, tuple(bounds)))
    return out


def _same_labels(
    before: Sequence[Evidence], now: Sequence[Evidence], labels: Mapping[int, str]
) -> dict[int, str]:
    """id -> label of the evidence `now`: that of what corresponds to it in the run before, whatever
    the files were called; else its own."""
    own = {id(e): e.label for e in now}
    try:
        pairs = pair_runs(before, now)[0] if before else []
    except UsageError:
        return own
    return own | {id(b): labels[id(a)] for a, b in pairs}


def _moments(run: str, e: Evidence) -> list[tuple[str, str, Moment]]:
    """(audit, measure, value) of one run: headlines with their verdicts, and held-out metrics."""
    out = []
    for name, result in e.results.items():
        if name in e.stale or e.unusable or result.headline is None:
            continue
        worst, estimate = judge_all([result])[0], result.estimates[result.headline]
        moment = Moment(run, estimate, worst.verdict, label_of(worst).words)
        out.append((name, result.headline, moment))
    for metric in e.metric_names[:1]:
        if (known := e.utility(metric)) is not None:
            out.append(("", metric, Moment(run, known)))
    return out


def _bound(limit: Limit, of: Sequence[Moment]) -> float | None:
    """The value of a limit on the scale of the measure; None if it depends on an unknown chance."""
    chances = [m.estimate.baseline for m in of if m.estimate is not None]
    chance = next((c for c in chances if c is not None), None)
    plain = limit.at_most if limit.at_most is not None else limit.at_least
    if plain is not None or chance is None:
        return plain
    if limit.at_most_above_chance is not None:
        return chance + limit.at_most_above_chance
    times = limit.at_most_times_chance or limit.at_least_times_chance
    return None if times is None else chance * times


def _changes(given: Sequence[tuple[str, Path, Sequence[Evidence]]]) -> list[NeighbouringRuns]:
    """What `fedaudit diff` says of every two neighbours."""
    out = []
    for (a, first, _), (b, second, _) in pairwise(given):
        try:
            found = diff(first, second, anyway=True)
        except FedauditError as error:
            out.append(NeighbouringRuns(a, b, (error.what,)))
            continue
        told = [text for c in found for text in _told(c)]
        out.append(NeighbouringRuns(a, b, tuple(told)))
    return out


def _told(c: Comparison) -> list[str]:
    """What changed between two runs: counts, settings, verdicts, headlines, lost evidence."""
    of = f"{c.run}: " if c.run else ""
    told = [summary(c)]
    told += [f"{name}: {old} before, {new} now" for name, old, new in c.settings]
    told += [f"{v.audit}: {v.first} before, {v.second} now" for v in c.verdicts]
    for d in c.differences:
        if d.headline and d.change != "same":
            by = f"{d.value:+.3g} [{d.low:.3g}, {d.high:.3g}]"
            told.append(f"{d.audit} {d.measure}: {d.change}, by {by}")
    told += [f"evidence lost: {text}" for text in c.lost]
    return [f"{of}{text}" for text in told]
