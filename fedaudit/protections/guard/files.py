"""Read received models from files, and from traces of a client's own messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fedaudit.errors import DataError, NotApplicable, NotObservable
from fedaudit.files import Unreadable, read_npz
from fedaudit.protections.guard import no_model
from fedaudit.protections.guard.calibration import Calibration, HonestRun, together
from fedaudit.protections.guard.guard import UNITS, observed
from fedaudit.protections.guard.report import GuardReport
from fedaudit.protections.guard.tensors import WeightArray
from fedaudit.trace import AGGREGATOR, PUBLIC, SERVER, SHUFFLER, Trace

MODEL = "model"
NamedTensors = dict[str, WeightArray]
CheckModel = Callable[[NamedTensors, NamedTensors | None], GuardReport]


def read_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Named tensors of a safetensors or NPZ file. Pickle files are refused: they can run code."""
    file = Path(path)
    if not file.is_file():
        below = [p for deep in ("*", "*/*") for p in sorted(file.glob(deep)) if is_trace(p)]
        raise DataError(
            f"there is no model at {file}",
            expected="a .safetensors or .npz file of named tensors, or a trace folder",
            got="a folder without a trace" if file.is_dir() else "no such file",
            remedy=f"fedaudit guard {below[0]} (or another of {len(below)} traces in it)"
            if below
            else no_model.SAVE,
        )
    try:
        if file.suffix == ".npz":
            return read_npz(file)
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as stored:
                beside = [p for p in (file.parent, file.parent.parent) if is_trace(p)]
                metadata = stored.metadata() or {}
                no_model.refuse_own_file(file, metadata, beside[0] if beside else None)
                return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except Unreadable as error:
        raise error.as_error(DataError, remedy="save it again") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # anything a reader raises on a damaged file
        raise DataError(
            f"{file} cannot be read",
            expected="a complete file of named tensors",
            got=f"{type(error).__name__}: {error}",
            remedy="save it again",
        ) from None
    raise DataError(
        f"{file} has an unknown file type",
        expected=".safetensors or .npz",
        got=file.suffix or "no suffix",
        remedy="save the state dict as safetensors: opening a .pt file can run code",
    )


def is_trace(path: Path) -> bool:
    """Whether a folder is a trace or a run that contains one."""
    return any((p / "manifest.json").is_file() for p in (path, path / "trace"))


@dataclass(frozen=True)
class CheckedModel:
    """The report on one received model: who received it, in which round, from whom."""

    party: str
    round: int
    sender: str
    report: GuardReport


def clients_of(trace: Trace) -> tuple[str, ...]:
    """Parties that received a model, except servers and the public."""
    hubs = {SERVER, AGGREGATOR, SHUFFLER, PUBLIC, *trace.manifest.federation.get("hubs", ())}
    found: dict[str, None] = {}
    for number in trace.rounds:
        for m in trace.messages(number):
            if m.kind == "model" and m.receiver not in hubs:
                found.setdefault(m.receiver)
    return tuple(found)


def received(trace: Trace, party: str) -> Iterator[tuple[int, str, int, NamedTensors]]:
    """(round, sender, stored row, tensors) of every model in a party's view."""
    view = trace.seen_by(party)
    for number in view.rounds:
        for index, m in view.indexed(number):
            if m.kind != "model" or m.receiver != party or MODEL not in m.parts:
                continue
            try:
                row = view.payload(number, index)
            except NotObservable:
                continue
            tensors = {e.name: row[e.columns].reshape(e.shape) for e in view.layout.entries}
            yield number, m.sender, m.parts[MODEL], tensors


def check_trace(
    trace: Trace, check: CheckModel, parties: Sequence[str] = (), *, compare: bool = True
) -> list[CheckedModel]:
    """Check every model that each party received, against the previous one from the same sender.

    Equal models are checked once: a server usually sends one model to all clients.
    """
    out: list[CheckedModel] = []
    done: dict[tuple[Any, Any], GuardReport] = {}
    for party in parties or clients_of(trace):
        last: dict[str, tuple[tuple[int, int], NamedTensors]] = {}
        for number, sender, row, tensors in received(trace, party):
            before = last.get(sender) if compare else None
            key = ((number, row), before and before[0])
            if key not in done:
                done[key] = check(tensors, before and before[1])
            out.append(CheckedModel(party, number, sender, done[key]))
            last[sender] = (number, row), tensors
    if not out:
        raise NotApplicable(
            "this trace stores no model that a client received",
            code="no_models",
            expected="models sent to clients, with their tensors",
            got="none",
            remedy="record whole models: no sketch, all weight tensors",
        )
    return out


def calibrate(
    folder: str | os.PathLike[str],
    *,
    data: tuple[Any, Any] | None = None,
    module: Any = None,
) -> Calibration:
    """Make a calibration from your own honest models. Every trace below `folder` is a run, and so
    is every subfolder of model files (in name order), or a single file beside them.

    One run in six sets the scale, the others give the ranks. `data` (x, y) and `module`: own
    records and the model that reads them, for the checks that need them. A run with a non-finite
    model is refused.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DataError(
            f"there is no folder {place}",
            expected="a folder of honest runs: traces, or subfolders of .safetensors files",
            got="a file" if place.exists() else "nothing",
            remedy="put every run into a subfolder of its own",
        )
    runs = [_run(name, models, data, module) for name, models in _runs(place)]
    if len(runs) < 2:
        raise DataError(
            "a calibration needs several honest runs",
            expected="at least 2; 99 ranked ones for a level of 1 %",
            got=str(len(runs)),
            remedy="put traces, or subfolders of .safetensors files, into this folder",
        )
    scaling = runs[::6]
    ranked = [r for i, r in enumerate(runs) if i % 6]
    source = {"made_by": "fedaudit guard --calibrate", "runs": f"{len(runs)} in {place.name}"}
    return Calibration.of(scaling, ranked, UNITS, source)


def _runs(place: Path) -> Iterator[tuple[str, Iterable[Any]]]:
    """(name, its models in order) of every run."""
    manifests = sorted(place.rglob("manifest.json"))
    traces = [m.parent for m in manifests]
    for folder in traces:
        trace = Trace.open(folder)
        # all clients of an honest run receive the same models: use the first client
        party = clients_of(trace)[:1]
        models = (tensors for p in party for _, _, _, tensors in received(trace, p))
        yield str(folder.relative_to(place)), models
    for folder in sorted(p for p in place.rglob("*") if p.is_dir()):
        files = [f for f in sorted(folder.iterdir()) if f.suffix in (".safetensors", ".npz")]
        if files and folder not in traces:
            yield str(folder.relative_to(place)), (read_model(f) for f in files)
    for file in sorted(place.iterdir()):
        if file.suffix in (".safetensors", ".npz") and place not in traces:
            yield file.name, [read_model(file)]


def _run(name: str, models: Iterable[Any], data: Any, module: Any) -> HonestRun:
    """Summarise one run for a calibration."""
    parts = []
    before = None
    for state in models:
        try:
            parts.append(HonestRun(name, *observed(state, before, data, module=module)))
        except DataError as error:
            raise DataError(
                f"run {name} cannot be used: {error.what}",
                expected=error.expected,
                got=error.got,
                remedy=error.remedy,
            ) from None
        before = state
    top: dict[str, float] = {}
    for part in parts:
        for check, value in part.largest.items():
            top[check] = max(value, top.get(check, value))
    return HonestRun(name, top, together(parts))
