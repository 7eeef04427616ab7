"""Examine a Flower app."""

from __future__ import annotations

import os
from pathlib import Path

from fedaudit.errors import ConfigError
from fedaudit.recorders.flower.doctor.app import App
from fedaudit.recorders.flower.doctor.diagnosis import Diagnosis
from fedaudit.recorders.flower.doctor.observers import audits, lines, secure_aggregation, sees
from fedaudit.recorders.flower.doctor.problems import problems_of
from fedaudit.recorders.flower.doctor.protections import protections_of
from fedaudit.recorders.flower.doctor.source import SourceFile
from fedaudit.recorders.flower.project import Project, read_project

DELTA = 1e-5


def examine(folder: str | os.PathLike[str], *, delta: float = DELTA) -> Diagnosis:
    """The diagnosis of the app in `folder`, of a folder of scripts, or of one script."""
    root = Path(folder)
    if root.is_file():
        files, root = [root], root.parent
    else:
        hidden = (".", "__pycache__")
        files = [
            file
            for file in sorted(root.rglob("*.py"))
            if not any(part.startswith(hidden) for part in file.relative_to(root).parts)
        ]
    if files and not (root / "pyproject.toml").is_file():
        # scripts that are started with python: there is no run config
        project = Project(root.resolve().name, "", "", {})
    else:
        project = read_project(root)
    sources = [SourceFile(file, root, project.config) for file in files]
    if not project.server and not any(s.imports("flwr") for s in sources):
        raise ConfigError(
            f"{folder} is not a Flower app",
            expected="the folder that you pass to `flwr run`, or scripts that import flwr",
            got=f"{len(files)} Python file{'s' * (len(files) != 1)} without that import",
        )
    app = App(sources, project.config)
    protections = protections_of(app, delta)
    return Diagnosis(
        app=project.name,
        kind=app.kind,
        strategies=tuple(c.short for c in app.strategies)
        or (tuple(app.own_strategies) if not app.stacks else ()),
        alternatives=tuple(tuple(c.short for c in stack) for stack in app.stacks)
        if len(app.stacks) > 1
        else (),
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
