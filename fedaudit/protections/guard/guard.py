"""`guard`: is there something planted in this model?

Question  Did the server send a model that was made to answer about a record, not to learn?
Vantage   A client, before training: the model it received, the one before, its own records.
Paper     [ActiveMembership] Eqs. (2, 3), Algorithm 3: what the known adversaries plant.
Ours      The checks, and the test that joins them. See docs/guard.md for measured rates.

Every check is a number that neither the order nor the scale of a layer's rows changes. Numbers are
put on one scale, the strangest is ranked among honest runs (`calibration`), and the rank is a
p-value: the level holds for honest models like those that were ranked, however many checks there
are. "no_evidence" is not "safe": an adversary who knows the checks can pass them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedaudit.errors import DataError, UsageError
from fedaudit.files import parse_json
from fedaudit.protections.guard import (
    constant,
    one_entry,
    own_data,
    query_key,
    rewritten,
    thresholds,
    twins,
)
from fedaudit.protections.guard.calibration import Calibration, shipped
from fedaudit.protections.guard.tensors import (
    Floats,
    Numbers,
    Received,
    Score,
    check_shapes,
    extents,
    numbers,
)

Verdict = Literal["planted", "no_evidence", "not_finite", "underpowered"]

UNITS: dict[str, float] = {
    one_entry.NAME: one_entry.UNIT,
    twins.MIRRORED: twins.UNIT,
    twins.REPEATED: twins.UNIT,
    constant.ROW: constant.UNIT,
    constant.BIAS: constant.UNIT,
    query_key.NAME: query_key.UNIT,
    thresholds.NAME: thresholds.UNIT,
    rewritten.NAME: rewritten.UNIT,
    own_data.SILENT: own_data.UNIT,
    own_data.ONE: own_data.UNIT,
}
"""Every check, and the smallest step in which its values are told apart. A wide step keeps a check
from raising alarms on layers that were trained for longer than those of the honest runs."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check: its value, the value above which it raises an alarm in this combination, its own
    p-value among honest runs, and the tensor where it is largest."""

    name: str
    value: float
    threshold: float
    p: float
    where: str
    words: str

    @property
    def alarms(self) -> bool:
        return self.value > self.threshold


@dataclass(frozen=True, kw_only=True)
class GuardReport:
    """What was found in one model. `p_value` of all checks together, among `runs` honest runs; none
    where nothing can be ranked: not finite, or no check applies."""

    verdict: Verdict
    p_value: float | None
    level: float
    runs: int
    checks: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flagged(self) -> bool:
        """Whether a client should not train on this model before somebody has looked at it."""
        return self.verdict in ("planted", "not_finite")

    @property
    def alarms(self) -> tuple[CheckResult, ...]:
        """The checks behind an alarm, the strangest first."""
        found = [c for c in self.checks if c.alarms]
        return tuple(sorted(found, key=lambda c: c.p)) if self.verdict == "planted" else ()

    def to_json(self) -> str:
        plain = asdict(self)
        for each in plain["checks"]:
            if math.isinf(each["threshold"]):
                each["threshold"] = None  # JSON has no infinity: no value would raise an alarm
        return json.dumps(plain, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> GuardReport:
        """The inverse of `to_json`; ValueError for anything else."""
        raw = parse_json(text)
        try:
            if raw["verdict"] not in get_args(Verdict):
                raise ValueError(f"verdict {raw['verdict']!r}")
            for each in raw["checks"]:
                if each["threshold"] is None:
                    each["threshold"] = math.inf
            checks = tuple(CheckResult(**c) for c in raw.pop("checks"))
            return cls(checks=checks, notes=tuple(raw.pop("notes")), **raw)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a guard report: {error}") from None


def guard(
    model: Any,
    previous: Any = None,
    data: tuple[Any, Any] | None = None,
    level: float = 0.01,
    *,
    module: Any = None,
    calibration: Calibration | None = None,
) -> GuardReport:
    """Look at a model before training on it.

    `model` is what was received: a state dict, named arrays, or a torch module that holds it;
    `previous` the one before, for what changed. `data` (x, y): own records as the module takes them
    and a class each, looked at only where there is a module to run: `model` itself, or `module`, in
    which the received tensors are then loaded. `level` is the share of honest runs that may raise
    an alarm. `calibration`: of your own, by default the one that comes with fedaudit.
    """
    if not 0 < level < 1:
        raise UsageError(
            "the level is out of range",
            expected="above 0 and below 1",
            got=repr(level),
            remedy="level = 0.01: one honest run in a hundred raises an alarm",
        )
    table = calibration if calibration is not None else shipped()
    runs = len(table.runs)
    read = numbers(model, module=module)
    broken = _broken(read.tensors)
    if broken:
        return GuardReport(
            verdict="not_finite",
            p_value=None,
            level=level,
            runs=runs,
            notes=(
                f"{broken} are NaN or infinite",
                "a diverged run sends such models too: nothing can be learnt from it",
            ),
        )
    before, notes = _before(read, previous)
    scores = _scores(read, before, _runnable(model, module, data), data)
    inside = _largest(s for s in scores if table.knows(s[1].kind, s[1].shape))
    outside = _largest(s for s in scores if not table.knows(s[1].kind, s[1].shape))
    known = {n: s for n, s in inside.items() if table.covers(n)}
    values = {n: s.value for n, s in known.items()}
    p = table.p_value(values) if values else None
    cut = table.cut(list(values), level)
    verdict: Verdict = "planted" if p is not None and p <= level else "no_evidence"
    # a layer of a kind that no honest run has cannot be ranked, but it can keep us from saying
    # that there is nothing
    strange = {
        n: s
        for n, s in outside.items()
        if table.covers(n) and s.value > table.value(n, table.cut([n, *values], level))
    }
    if not known:
        verdict = "underpowered"
        notes.append("no check applies to tensors of these kinds and sizes")
    elif not table.attains(level):
        verdict = "underpowered"
        notes.append(
            f"{runs} honest runs cannot carry a level of {level:g}: "
            f"{math.ceil(1 / level) - 1} are needed"
        )
    elif strange and verdict == "no_evidence":
        verdict = "underpowered"
    notes += [
        f"not calibrated for a {s.kind} of {s.shape[0]} x {s.shape[1]}, and strange: "
        f"{n} {s.value:.2f} in {s.where}"
        for n, s in strange.items()
    ]
    unused = sorted(set(UNITS) - set(values))
    if unused:
        notes.append(f"not looked at: {', '.join(unused)}")
    notes += _left_out(read, table)
    return GuardReport(
        verdict=verdict,
        p_value=p,
        level=level,
        runs=runs,
        checks=tuple(
            CheckResult(
                name=n,
                value=s.value,
                threshold=table.value(n, cut),
                p=table.p_value({n: s.value}),
                where=s.where,
                words=s.words,
            )
            for n, s in known.items()
        ),
        notes=tuple(notes),
    )


def measure(
    model: Any, previous: Any = None, data: tuple[Any, Any] | None = None, *, module: Any = None
) -> dict[str, Score]:
    """The value of every check that applies, by name: what a calibration is made of."""
    read = numbers(model, module=module)
    before, _ = _before(read, previous)
    return _largest(_scores(read, before, _runnable(model, module, data), data))


def observed(
    model: Any, previous: Any = None, data: tuple[Any, Any] | None = None, *, module: Any = None
) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
    """Of an honest model: the values of `measure`, and the kinds and sizes of its layers."""
    read = numbers(model, module=module)
    broken = _broken(read.tensors)
    if broken:
        raise DataError(
            "a model that is not finite cannot stand for honest ones",
            expected="finite weights",
            got=f"{broken} are NaN or infinite",
            remedy="leave this run out: it diverged",
        )
    before, _ = _before(read, previous)
    found = _largest(_scores(read, before, _runnable(model, module, data), data))
    return {n: s.value for n, s in found.items()}, extents(read.tensors, read.tables)


def _broken(tensors: Mapping[str, Floats]) -> str:
    """Words for numbers that are not finite; empty without any."""
    bad = {n: int((~np.isfinite(t)).sum()) for n, t in tensors.items()}
    bad = {n: count for n, count in bad.items() if count}
    return f"{sum(bad.values())} numbers in {', '.join(list(bad)[:3])}" if bad else ""


def _before(read: Numbers, previous: Any) -> tuple[Mapping[str, Floats] | None, list[str]]:
    """The tensors of the last model if they can be compared with, and notes."""
    if previous is None:
        return None, []
    last = numbers(previous, "the previous model")
    check_shapes(read.tensors, last.tensors)
    changed = [n for n in read.tensors if read.dtypes[n] != last.dtypes[n]]
    notes = [
        f"{n} came as {read.dtypes[n]}, and as {last.dtypes[n]} before" for n in changed[:3]
    ] + ([f"and {len(changed) - 3} more changed their type"] if changed[3:] else [])
    broken = _broken(last.tensors)
    if broken:
        return None, [
            f"not compared with the previous model: {broken} of it are not finite",
            *notes,
        ]
    return last.tensors, notes


def _runnable(model: Any, module: Any, data: Any) -> Any:
    if data is None:
        return None
    return model if hasattr(model, "named_parameters") else _loaded(module, model)


def _scores(
    read: Numbers, before: Mapping[str, Floats] | None, runnable: Any, data: Any
) -> list[tuple[str, Score]]:
    """Every check on every tensor that it applies to."""
    received = Received(read.tensors, before, runnable, data, read.tables)
    out: list[tuple[str, Score | None]] = []
    for matrix in received.matrices():
        mirrored, repeated = twins.both(matrix)
        out += [
            (one_entry.NAME, one_entry.check(matrix)),
            (twins.MIRRORED, mirrored),
            (twins.REPEATED, repeated),
            (constant.ROW, constant.row(matrix)),
        ]
    out += [(constant.BIAS, s) for s in constant.biases(received)]
    out += [(query_key.NAME, s) for s in query_key.check(received)]
    out += [(thresholds.NAME, s) for s in thresholds.check(received)]
    out += [(rewritten.NAME, s) for s in rewritten.check(received)]
    out += own_data.both(received)
    return [(n, s) for n, s in out if s is not None]


def _largest(scores: Iterable[tuple[str, Score]]) -> dict[str, Score]:
    """Of every check the largest value, in the order of `UNITS`."""
    best: dict[str, Score] = {}
    for name, score in scores:
        if name not in best or score.value > best[name].value:
            best[name] = score
    return {n: best[n] for n in UNITS if n in best}


def _left_out(read: Numbers, table: Calibration) -> list[str]:
    """Notes on tensors that were not looked at, or are of kinds that no honest run has."""
    out = []
    if read.tables:
        out.append(f"rows not looked at (tables, or not trained): {_few(read.tables)}")
    if read.unread:
        out.append(
            f"not looked at: {_few(f'{n} ({why})' for n, why in read.unread.items())}",
        )
    of = {
        m.name
        for m in Received(read.tensors, tables=read.tables).matrices()
        if not table.knows(m.kind, m.shape)
    }
    if of:
        out.append(f"not ranked, of no kind and size in the calibration: {_few(of)}")
    return out


def _few(names: Iterable[str]) -> str:
    own = sorted(names)
    return ", ".join(own[:3]) + (f" and {len(own) - 3} more" if own[3:] else "")


def _loaded(module: Any, state: Mapping[str, Any]) -> Any:
    """A copy of a module with the received tensors in it."""
    import copy

    import torch

    if module is None:
        raise UsageError(
            "own records need a model that runs",
            expected="a torch module, beside a state dict",
            got="tensors alone",
            remedy="guard(state, data=(x, y), module=make_model()), or leave data out",
        )
    own = copy.deepcopy(module)
    tensors = {
        k: v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v))
        for k, v in state.items()
    }
    try:
        wrong = own.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        problem = str(error).replace("\n", " ")[:200]
    else:
        # counters may stay behind, parameters may not
        missing = [k for k in wrong.missing_keys if k in dict(own.named_parameters())]
        problem = ", ".join([*wrong.unexpected_keys, *missing][:3])
    if problem:
        raise UsageError(
            "the received tensors do not fit the module",
            expected="the names and shapes of the module's state dict",
            got=problem,
            remedy="hand over the module that the federation trains",
        )
    return own
