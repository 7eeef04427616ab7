"""`fedaudit.guard`: examine received models before training on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedaudit.data.files import read
from fedaudit.errors import UsageError
from fedaudit.frames import Row, Tabular
from fedaudit.protections.guard import Calibration, GuardReport, LocalSteps
from fedaudit.protections.guard import guard as guard_model
from fedaudit.protections.guard.files import CheckedModel, check_trace, is_trace, read_model
from fedaudit.randomness import Seed
from fedaudit.study.folders import recordings_at
from fedaudit.study.seal import open_trace
from fedaudit.tasks.catalogue import SCIKIT, build_module, scikit_learn
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.task import Task
from fedaudit.trace import Trace

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class ReceivedModels(Tabular):
    """Reports on all models that the clients of a trace received."""

    seen: tuple[CheckedModel, ...]

    @property
    def flagged(self) -> tuple[CheckedModel, ...]:
        """Models in which the guard found something."""
        return tuple(s for s in self.seen if s.report.flagged)

    @property
    def undecided(self) -> tuple[CheckedModel, ...]:
        """Models with the verdict "nothing to say"."""
        return tuple(s for s in self.seen if s.report.verdict == "nothing_to_say")

    def rows(self) -> Sequence[Row]:
        return [
            {
                "client": s.party,
                "round": s.round,
                "sender": s.sender,
                "verdict": s.report.verdict,
                "p_value": s.report.p_value,
            }
            for s in self.seen
        ]


def guard(
    model: Any,
    previous: Any = None,
    *,
    data: Any = None,
    module: Any = None,
    label: str | None = None,
    clients: Sequence[str] = (),
    level: float = 0.01,
    calibration: Calibration | Place | None = None,
    local: LocalSteps | None = None,
) -> GuardReport | ReceivedModels:
    """What would answering this model give away, and was it altered?

    model: a .safetensors or .npz file, a state dict, a torch module, or a trace; in a trace, or
        those of a study, every model that a client received is examined
    previous: the model of the round before, or a list of earlier models, oldest first; with own
        records and two or more of them, the report says whether this model was altered
    data, label: own records as a file with its label column, or as (x, y)
    module: the model that reads `data`, a torch module or "package.module:function"
    clients: examine the models of these clients of a trace only
    level: accepted share of honest runs that are flagged
    calibration: own honest runs, or the file that holds them
    local: the steps that you run on the model; default: one step on all own records
    """
    own = own_records(data, module, label)
    table = (
        calibration
        if calibration is None or isinstance(calibration, Calibration)
        else Calibration.read(Path(calibration))
    )
    if traces := _traces(model):
        if previous is not None and previous != []:
            raise UsageError(
                "a trace contains its previous models",
                expected="a previous model together with a single model",
                got="a previous model together with a trace",
                remedy="remove `previous`",
            )

        def check(state: Any, before: Any) -> GuardReport:
            # the kind of a message is known in a trace
            return guard_model(
                state, before, level=level, calibration=table, sent_as_model=True, **own
            )

        found = {name: check_trace(trace, check, clients) for name, trace in traces.items()}
        named = len(found) > 1
        return ReceivedModels(
            tuple(
                replace(s, party=f"{name}, {s.party}") if named else s
                for name, seen in found.items()
                for s in seen
            )
        )
    if clients:
        raise UsageError(
            "a single model has no clients",
            expected="clients together with a trace",
            got=", ".join(clients),
            remedy="remove `clients`",
        )
    several = isinstance(previous, list | tuple)
    history = list(previous) if several else [] if previous is None else [previous]
    return guard_model(
        _load_model(model),
        [_load_model(m) for m in history],
        level=level,
        calibration=table,
        local=local or LocalSteps(),
        **own,
    )


def _traces(model: Any) -> dict[str, Trace]:
    """The traces that were given, by folder: one, or those of a study; empty for a single model."""
    if isinstance(model, Trace):
        return {"": model}
    if not isinstance(model, str | os.PathLike):
        return {}
    return {p.name: open_trace(p) for p in recordings_at(model) if is_trace(p)}


def _load_model(model: Any) -> Any:
    return read_model(model) if isinstance(model, str | os.PathLike) else model


def own_records(data: Any, module: Any, label: str | None = None) -> dict[str, Any]:
    """Own records (x, y) and the module that reads them, loaded from files if needed."""
    if data is None and module is None:
        return {}
    if data is None or module is None:
        raise UsageError(
            "own records and a model that reads them go together",
            expected="`data` and `module` (package.module:function), or neither",
            got="`data` alone" if module is None else "`module` alone",
            remedy="give both",
        )
    if isinstance(data, tuple):
        return {"data": data, "module": module}

    records = read(data, label=label, one_class=True)
    if not isinstance(module, str):
        task: Task = Classifier(module)
    elif module.startswith(SCIKIT):
        task = scikit_learn(module).build(records, Seed(0))
    else:
        task = Classifier(build_module(module))
    examples = task.encode(records)
    y = examples.y
    if records.classes and all(c.isdecimal() for c in records.classes):
        # one client may lack classes: a numeric label is its class index
        y = torch.tensor([int(c) for c in records.classes])[y]
    return {"data": (examples.x, y), "module": task.module}
