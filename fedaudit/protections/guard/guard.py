"""`guard`: is anything planted in this model?

Question  Did the server send a model that was made to reveal a record, not to learn?
Vantage   A client, before training: the model it received, the one before, its own records.
Paper     [ActiveMembership] Eqs. (2, 3), Algorithm 3: the weights that known adversaries plant.
Ours      The checks, and the test that joins them. See docs/guard.md for measured rates.

Every check is a number that does not depend on the order or scale of a layer's rows. All numbers
are put on one scale, and the most unusual one is ranked among honest runs (`calibration`). The rank
is a p-value: the level holds for honest models like those ranked, for any number of checks.
"no_evidence" is not "safe": an adversary who knows the checks can pass them. Where the client has
own records and earlier models, those decide (`exposure`, `tampering`), and the weights only join.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.guard import (
    constant,
    local_steps,
    no_model,
    one_entry,
    own_data,
    query_key,
    rewritten,
    thresholds,
    twins,
)
from fedaudit.protections.guard.calibration import Calibration, shipped
from fedaudit.protections.guard.exposure import ExposureReport, exposure
from fedaudit.protections.guard.local_steps import LocalSteps
from fedaudit.protections.guard.reading import Numbers, check_shapes, numbers
from fedaudit.protections.guard.report import (
    CheckResult,
    GuardReport,
    GuardVerdict,
    LayerResult,
    OutOfReach,
)
from fedaudit.protections.guard.tampering import TamperingReport, tampering
from fedaudit.protections.guard.tensors import WIDE, CheckScore, Received, WeightArray, extents
from fedaudit.settings import Fraction, require

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
"""Every check and the smallest meaningful difference of its values. A large step avoids alarms on
layers that were trained longer than those of the honest runs."""

ALONE = "the weights look planted"
"""Begins the note on weights that raise an alarm and decide nothing."""

BY_SHAPE: dict[str, Callable[[int, int], float]] = {
    one_entry.NAME: one_entry.reach,
    twins.MIRRORED: twins.reach,
    twins.REPEATED: twins.reach,
    constant.ROW: lambda rows, n: constant.reach(n),
}
"""Largest value of each check on a number of rows of some width."""


def guard(
    model: Any,
    previous: Any = None,
    data: tuple[Any, Any] | None = None,
    level: float = 0.01,
    *,
    module: Any = None,
    calibration: Calibration | None = None,
    sent_as_model: bool = False,
    local: LocalSteps | None = None,
) -> GuardReport:
    """Check a received model before training on it.

    `model`: a state dict, named arrays, or a torch module that holds the weights; `previous`: the
    model before, or several, oldest first; weights are compared with the last. `data` (x, y): own
    records in the module's input format, with a class each; used only if there is a module to run:
    `model` itself, or `module`, into which the received tensors are loaded. `level`: share of
    honest runs that may raise an alarm. `calibration`: your own; default: fedaudit's.
    `sent_as_model`: the protocol says that this is a model, so small numbers are not mistaken for
    an update. `local`: the steps of this client; with own records, the report then says what the
    answer gives away and whether the model was altered.
    """
    require(Fraction, remedy="level = 0.01: one honest run in 100 raises an alarm", level=level)
    table = calibration if calibration is not None else shipped()
    read = numbers(model, module=module)
    broken = _not_finite(read.tensors)
    if broken:
        return GuardReport(
            verdict="not_finite",
            p_value=None,
            level=level,
            runs=len(table.runs),
            notes=(
                f"{broken} are NaN or infinite",
                "a diverged run sends such models too: training on this one teaches nothing",
            ),
        )
    history = _as_history(previous)
    before, notes = _previous_tensors(read, history[-1] if history else None)
    if before is None and not sent_as_model:
        no_model.refuse_update(read.tensors, read.tables)
    runnable = _runnable(model, module, data)
    scores = _scores(read, before, runnable, data)
    report = _ranked(read, scores, table, level, notes)
    if runnable is None or data is None or local is None:
        return report
    return _with_behaviour(report, runnable, history, data, local)


def _as_history(previous: Any) -> list[Any]:
    """Earlier models, oldest first."""
    if previous is None:
        return []
    return list(previous) if isinstance(previous, list | tuple) else [previous]


def _with_behaviour(
    report: GuardReport,
    runnable: Any,
    history: Sequence[Any],
    data: tuple[Any, Any],
    local: LocalSteps,
) -> GuardReport:
    """The report with exposure and tampering, and a verdict that joins the voices."""
    visits = local_steps.run(runnable, *data, local)
    covered = {f"{name}.weight" for name in visits}
    unread = tuple(
        n
        for n, p in runnable.named_parameters()
        if p.requires_grad and p.ndim >= 2 and n not in covered
    )
    exposed = exposure(visits.values(), local.noise, unread)
    older = [
        copy.deepcopy(m) if hasattr(m, "named_parameters") else _load_into(runnable, m)
        for m in history
    ]
    tampered = tampering([*older, runnable], *data)
    verdict, why = _joined(report, exposed, tampered)
    return replace(
        report,
        verdict=verdict,
        exposure=exposed,
        tampering=tampered,
        notes=(*why, *report.notes),
    )


def _joined(
    report: GuardReport, exposed: ExposureReport, tampered: TamperingReport
) -> tuple[GuardVerdict, list[str]]:
    """The verdict of the three voices, and a note where weights are overruled.

    The client's history decides. Where there is none, strange weights count if a record is exposed
    as well: ways of training that were not calibrated look strange too.
    """
    if report.verdict != "planted" or tampered.verdict == "altered":
        return tampered.verdict, []
    if tampered.verdict == "nothing_to_say" and exposed.exposed:
        return "planted", []
    names = ", ".join(c.name for c in report.alarms)
    return tampered.verdict, [
        f"{ALONE} ({names}), and nothing else shows it: training that was not calibrated looks so"
    ]


def _ranked(
    read: Numbers,
    scores: Sequence[tuple[str, CheckScore]],
    table: Calibration,
    level: float,
    notes: Sequence[str],
) -> GuardReport:
    """The report on a finite model."""
    inside = [s for s in scores if table.knows(s[1].kind, s[1].shape)]
    values = {n: s.value for n, s in _largest(inside).items() if table.covers(n)}
    p = table.p_value(values) if values else None
    alarm = {n: table.value(n, table.cut(list(values), level)) for n in values}
    able = _largest(s for s in inside if _out_of_reach(*s, table, alarm) is None)
    layers = _layers(read, scores, table, alarm)
    # a layer kind without honest runs cannot be ranked, but an unusual value there rules out "no
    # evidence"
    outside = _largest(s for s in scores if not table.knows(s[1].kind, s[1].shape))
    strange = {
        n: s
        for n, s in outside.items()
        if table.covers(n) and s.value > table.value(n, table.cut([n, *values], level))
    }
    verdict, why = _verdict(p, level, table, layers, bool(strange))
    found = [
        f"not calibrated for a {s.kind} of {s.shape[0]} x {s.shape[1]}, but unusual: "
        f"{n} {s.value:.2f} in {s.where}"
        for n, s in strange.items()
    ]
    return GuardReport(
        verdict=verdict,
        p_value=p if able else None,
        level=level,
        runs=len(table.runs),
        checks=tuple(
            CheckResult(
                name=n,
                value=s.value,
                threshold=alarm[n],
                p=table.p_value({n: s.value}),
                where=s.where,
                words=s.words,
            )
            for n, s in able.items()
        ),
        layers=layers,
        notes=(*notes, *why, *found, *_not_examined(read, layers, set(UNITS) - set(able))),
    )


def _verdict(
    p: float | None,
    level: float,
    table: Calibration,
    layers: Sequence[LayerResult],
    strange: bool,
) -> tuple[GuardVerdict, list[str]]:
    """The verdict, and a note on why there is nothing to say."""
    if p is not None and p <= level:
        return "planted", []
    if not table.attains(level):
        has, needs = len(table.runs), math.ceil(1 / level) - 1
        return "nothing_to_say", [
            f"{has} honest runs cannot carry a level of {level:g}: {needs} are needed"
        ]
    if not any(x.examined for x in layers):
        return "nothing_to_say", [
            "no layer lets every check raise an alarm",
        ]
    return "nothing_to_say" if strange else "no_evidence", []


def _layers(
    read: Numbers,
    scores: Iterable[tuple[str, CheckScore]],
    table: Calibration,
    alarm: Mapping[str, float],
) -> tuple[LayerResult, ...]:
    """Per layer: the checks that could raise an alarm on some reading of it, and those that could
    not on a reading of its units. Of several such readings, the one farthest from an alarm counts,
    since an adversary may plant units there."""
    able: set[tuple[str, str]] = set()
    worst: dict[tuple[str, str], OutOfReach] = {}
    for check, score in scores:
        found = _out_of_reach(check, score, table, alarm)
        for at in ((layer, check) for layer in score.layers):
            if found is None:
                able.add(at)
            elif not score.aside:
                worst[at] = _farther_from_alarm(worst.get(at, found), found)
    out = [
        LayerResult(
            name=name,
            shape=t.shape,
            checks=tuple(c for c in UNITS if (name, c) in able),
            out_of_reach=tuple(worst[name, c] for c in UNITS if (name, c) in worst),
            reason="table" if name in read.tables else None,
        )
        for name, t in read.tensors.items()
        if t.ndim >= 2 and t.size
    ]
    out += [
        LayerResult(name=name, shape=shape, reason="unread")
        for name, (_, shape) in read.unread.items()
        if len(shape) >= 2
    ]
    return tuple(out)


def _out_of_reach(
    check: str, score: CheckScore, table: Calibration, alarm: Mapping[str, float]
) -> OutOfReach | None:
    """Why a check cannot raise an alarm with this score; None if it can."""
    if score.reach == -math.inf:
        return OutOfReach(check=check, reason="small")
    if score.zero:
        return OutOfReach(check=check, reason="zero")
    if not table.knows(score.kind, score.shape):
        return OutOfReach(check=check, reason="kind")
    if check not in alarm:
        return OutOfReach(check=check, reason="check")
    if math.isinf(alarm[check]):
        return OutOfReach(check=check, reason="level")
    if score.reach > alarm[check]:
        return None
    rows, width = score.shape
    reach = BY_SHAPE.get(check)
    wider = range(width + 1, WIDE + 1) if reach else ()
    return OutOfReach(
        check=check,
        reason="narrow",
        most=score.reach,
        threshold=alarm[check],
        width=width if reach else None,
        needed=next((n for n in wider if reach and reach(rows, n) > alarm[check]), None),
    )


def _farther_from_alarm(one: OutOfReach, other: OutOfReach) -> OutOfReach:
    """The reading of a layer that is farther from an alarm."""
    return min(one, other, key=lambda o: (o.most is not None, o.most or 0.0))


def measure(
    model: Any, previous: Any = None, data: tuple[Any, Any] | None = None, *, module: Any = None
) -> dict[str, CheckScore]:
    """The value of every check that applies, by name: the input of a calibration."""
    read = numbers(model, module=module)
    before, _ = _previous_tensors(read, previous)
    return _largest(_scores(read, before, _runnable(model, module, data), data))


def observed(
    model: Any, previous: Any = None, data: tuple[Any, Any] | None = None, *, module: Any = None
) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
    """The values of `measure` for an honest model, and the kinds and sizes of its layers."""
    read = numbers(model, module=module)
    broken = _not_finite(read.tensors)
    if broken:
        raise DataError(
            "an honest model contains values that are not finite",
            expected="finite weights",
            got=f"{broken} are NaN or infinite",
            remedy="leave this run out: it diverged",
        )
    before, _ = _previous_tensors(read, previous)
    found = _largest(_scores(read, before, _runnable(model, module, data), data))
    return {n: s.value for n, s in found.items()}, extents(read.tensors, read.tables)


def _not_finite(tensors: Mapping[str, WeightArray]) -> str:
    """Describe non-finite numbers; empty if there are none."""
    bad = {n: int((~np.isfinite(t)).sum()) for n, t in tensors.items()}
    bad = {n: count for n, count in bad.items() if count}
    return f"{sum(bad.values())} numbers in {', '.join(list(bad)[:3])}" if bad else ""


def _previous_tensors(
    read: Numbers, previous: Any
) -> tuple[Mapping[str, WeightArray] | None, list[str]]:
    """The previous model's tensors, if comparable, and notes."""
    if previous is None:
        return None, []
    last = numbers(previous, "the previous model")
    check_shapes(read.tensors, last.tensors)
    changed = [n for n in read.tensors if read.dtypes[n] != last.dtypes[n]]
    notes = [
        f"{n} arrived as {read.dtypes[n]}, and as {last.dtypes[n]} before" for n in changed[:3]
    ] + ([f"and {len(changed) - 3} more changed their type"] if changed[3:] else [])
    broken = _not_finite(last.tensors)
    if broken:
        return None, [
            f"not compared with the previous model: {broken} are not finite in it",
            *notes,
        ]
    return last.tensors, notes


def _runnable(model: Any, module: Any, data: Any) -> Any:
    if data is None:
        return None
    return model if hasattr(model, "named_parameters") else _load_into(module, model)


def _scores(
    read: Numbers, before: Mapping[str, WeightArray] | None, runnable: Any, data: Any
) -> list[tuple[str, CheckScore]]:
    """Run every check on every tensor that it applies to."""
    received = Received(read.tensors, before, runnable, data, read.tables)
    out: list[tuple[str, CheckScore]] = []
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
    return out


def _largest(scores: Iterable[tuple[str, CheckScore]]) -> dict[str, CheckScore]:
    """The largest value of every check that measured something, in the order of `UNITS`."""
    best: dict[str, CheckScore] = {}
    for name, score in scores:
        if score.value == -math.inf:
            continue
        if name not in best or score.value > best[name].value:
            best[name] = score
    return {n: best[n] for n in UNITS if n in best}


def _not_examined(read: Numbers, layers: Iterable[LayerResult], unused: Iterable[str]) -> list[str]:
    """Notes on checks and tensors that did not count in the verdict."""
    out = []
    if unused:
        out.append(f"checks not run: {', '.join(c for c in UNITS if c in unused)}")
    if read.tables:
        out.append(f"rows not examined (lookup tables, or not trained): {_first_few(read.tables)}")
    if read.unread:
        out.append(
            f"not examined: {_first_few(f'{n} ({why})' for n, (why, _) in read.unread.items())}",
        )
    unranked = {x.name for x in layers if any(o.reason == "kind" for o in x.out_of_reach)}
    if unranked:
        out.append(
            f"not ranked, no layer of this kind and size in the calibration: {_first_few(unranked)}"
        )
    return out


def _first_few(names: Iterable[str]) -> str:
    own = sorted(names)
    return ", ".join(own[:3]) + (f" and {len(own) - 3} more" if own[3:] else "")


def _load_into(module: Any, state: Mapping[str, Any]) -> Any:
    """A copy of a module with the received tensors loaded."""
    import torch

    if module is None:
        raise UsageError(
            "checking own records needs a runnable model",
            expected="a torch module in addition to the state dict",
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
        # missing counters are fine, missing parameters are not
        missing = [k for k in wrong.missing_keys if k in dict(own.named_parameters())]
        problem = ", ".join([*wrong.unexpected_keys, *missing][:3])
    if problem:
        raise UsageError(
            "the received tensors do not fit the module",
            expected="the names and shapes of the module's state dict",
            got=problem,
            remedy="pass the module that the federation trains",
        )
    return own
