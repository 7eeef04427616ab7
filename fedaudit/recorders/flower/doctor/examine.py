"""Examine a Flower app."""

from __future__ import annotations

import os
from pathlib import Path

from fedaudit.recorders.flower.doctor.app import App
from fedaudit.recorders.flower.doctor.diagnosis import Diagnosis
from fedaudit.recorders.flower.doctor.observers import audits, lines, secure_aggregation, sees
from fedaudit.recorders.flower.doctor.problems import problems_of
from fedaudit.recorders.flower.doctor.protections import protections_of
from fedaudit.recorders.flower.doctor.source import SourceFile
from fedaudit.recorders.flower.project import read_project

DELTA = 1e-5


def examine(folder: str | os.PathLike[str], *, delta: float = DELTA) -> Diagnosis:
    """The diagnosis of the app in `folder`; epsilons at `delta` by default."""
    root = Path(folder)
    project = read_project(root)
    sources = [
        SourceFile(file, root, project.config)
        for file in sorted(root.rglob("*.py"))
        if not any(part.startswith(".") or part == "__pycache__" for part in file.parts)
    ]
    app = App(sources, project.config)
    protections = protections_of(app, delta)
    return Diagnosis(
        app=project.name,
        kind=app.kind,
        strategies=tuple(c.short for c in app.strategies) or tuple(app.own_strategies),
        mods=tuple(m.rsplit(".", 1)[-1] or "unknown" for m, _, _ in app.mods),
        rounds=app.rounds,
        recorded=app.recorded,
        fields=app.fields,
        protections=tuple(protections),
        secure_aggregation=secure_aggregation(app),
        sees=sees(app, protections),
        audits=audits(app),
        problems=tuple(problems_of(app)),
        lines=() if app.recorded else lines(app),
    )
