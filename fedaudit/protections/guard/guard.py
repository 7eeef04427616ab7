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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedaudit.errors import UsageError
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
from fedaudit.protections.guard.tensors import Floats, Received, Score, check_shapes, floating

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
"""Every check, and the smallest step in which its values are told apart."""


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
    """What was found in one model. `p_value` of all checks together, among `runs` honest runs."""

    verdict: Verdict
    p_value: float
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
        raw = json.loads(text)
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
    tensors = floating(model)
    broken = [n for n, t in tensors.items() if not np.isfinite(t).all()]
    if broken:
        count = sum(int((~np.isfinite(tensors[n])).sum()) for n in broken)
        note = f"{count} numbers in {', '.join(broken[:3])} are NaN or infinite"
        return GuardReport(
            verdict="not_finite",
            p_value=1 / (runs + 1),
            level=level,
            runs=runs,
            notes=(note, "a diverged run sends such models too: nothing can be learnt from it"),
        )
    scores = measure(model, previous, data, module=module)
    known = {n: s for n, s in scores.items() if table.covers(n)}
    values = {n: s.value for n, s in known.items()}
    cut = table.cut(list(values), level)
    p = table.p_value(values) if values else 1.0
    notes = []
    verdict: Verdict = "planted" if p <= level else "no_evidence"
    if not known:
        verdict = "underpowered"
        notes.append("no check applies to tensors of these shapes")
    elif not table.attains(level):
        verdict = "underpowered"
        notes.append(
            f"{runs} honest runs cannot carry a level of {level:g}: "
            f"{math.ceil(1 / level) - 1} are needed"
        )
    unused = sorted(set(UNITS) - set(values))
    if unused:
        notes.append(f"not looked at: {', '.join(unused)}")
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
    tensors = floating(model)
    before: Mapping[str, Floats] | None = None
    if previous is not None:
        before = floating(previous, "the previous model")
        check_shapes(tensors, before)
    runnable = None
    if data is not None:
        runnable = model if hasattr(model, "named_parameters") else _loaded(module, model)
    received = Received(tensors, before, runnable, data)
    mirrored, repeated = twins.both(received)
    silent, one = own_data.both(received)
    found = {
        one_entry.NAME: one_entry.check(received),
        twins.MIRRORED: mirrored,
        twins.REPEATED: repeated,
        constant.ROW: constant.rows(received),
        constant.BIAS: constant.bias(received),
        query_key.NAME: query_key.check(received),
        thresholds.NAME: thresholds.check(received),
        rewritten.NAME: rewritten.check(received),
        own_data.SILENT: silent,
        own_data.ONE: one,
    }
    return {name: score for name, score in found.items() if score is not None}


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
