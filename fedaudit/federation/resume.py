"""Checkpoints: the state after each round on disk, so that a killed run can resume.

    checkpoint/checkpoint.json            the last two states, each with its hash
    checkpoint/state-00007.safetensors    the models after round 7

A state is used only if it is unchanged: an altered file is refused; a file that a power cut emptied
is skipped, and the state before it is used.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaudit.codec import to_json
from fedaudit.errors import IntegrityError, TraceError
from fedaudit.files import (
    Unreadable,
    is_lost,
    make_folder,
    read_object,
    write_atomically,
)
from fedaudit.tasks.task import Task
from fedaudit.trace.recorder import Recorder
from fedaudit.trace.schema import RoundFile
from fedaudit.trace.store import RoundReader, verify, write_blocks
from fedaudit.trace.truth import TruthRecorder

LIST = "checkpoint.json"
KEPT = 2
"""Number of states kept: if a power cut empties the last one, the one before it remains."""


@dataclass
class FederationState:
    """The start of the next round: one model, or one per gossip node; server momentum; what
    protections remember of earlier rounds."""

    round: int
    models: Tensor  # (1, d) or (n, d)
    velocity: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)


def save(checkpoint: str | os.PathLike[str] | None, state: FederationState) -> None:
    """Write the state into the folder `checkpoint`; None writes nothing."""
    if checkpoint is None:
        return
    folder = Path(checkpoint)
    make_folder(folder, private=True)
    blocks = {"models": [state.models.numpy()]}
    if state.velocity is not None:
        blocks["velocity"] = [state.velocity.unsqueeze(0).numpy()]
    name = f"state-{state.round:05d}.safetensors"
    about = {"state": json.dumps({"round": state.round, "memory": state.memory})}
    entry = write_blocks(folder / name, blocks, about, private=True)
    earlier = {n: e for n, e in _read_list(folder).items() if n < state.round}
    kept = dict(sorted({**earlier, state.round: entry}.items())[-KEPT:])
    listed = [
        {"round": n, "file": e.file, "sha256": e.sha256, "size": e.size} for n, e in kept.items()
    ]
    # remove a state only after the list no longer names it: a kill in between loses nothing
    write_atomically(folder / LIST, to_json({"states": listed}) + "\n", private=True)
    for file in folder.glob("state-*.safetensors*"):
        if file.name not in {e.file for e in kept.values()}:
            file.unlink(missing_ok=True)


def _read_list(folder: Path) -> dict[int, RoundFile]:
    """Round -> file of the state after it; empty if there is no list, or a power cut emptied it."""
    file = folder / LIST
    if is_lost(file):
        return {}
    try:
        raw = read_object(file)
        found: dict[int, RoundFile] = {}
        for s in raw["states"]:
            if type(s["round"]) is not int or s["round"] < 0:
                raise ValueError(f"round {s['round']!r}")
            found[s["round"]] = RoundFile(s["file"], s["sha256"], s["size"])
    except Unreadable as error:
        raise _damaged(file, error.got or "") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    return dict(sorted(found.items(), reverse=True))


def check_states(folder: Path) -> None:
    """Raise IntegrityError if a saved state was altered."""
    for entry in _read_list(folder).values():
        verify(folder / entry.file, entry)


def _damaged(file: Path, got: str) -> IntegrityError:
    return IntegrityError(
        f"{file} is damaged or altered and was not read",
        expected="a list of states, as written by a run",
        got=got,
        remedy="remove the checkpoint folder and run again: recorded rounds are repeated and must "
        "come out equal",
    )


def restore(
    checkpoint: str | os.PathLike[str] | None,
    recorder: Recorder | None,
    truth: TruthRecorder | None,
    task: Task,
) -> FederationState:
    """The last saved state that both trace and truth contain, or the initial state.

    Rounds recorded after it are repeated and must come out equal.
    """
    folder = None if checkpoint is None else Path(checkpoint)
    saved = {} if folder is None else _read_list(folder)
    if recorder is not None and not recorder.recovered and min(saved, default=0) > recorder.rounds:
        raise TraceError(
            "the checkpoint is ahead of the trace",
            expected=f"{max(saved)} recorded rounds",
            got=f"{recorder.rounds}",
            remedy="remove the checkpoint folder and run again",
        )
    written = [r.rounds for r in (recorder, truth) if r is not None]
    reached = min(written, default=max(saved, default=0))
    state = FederationState(0, task.initial().unsqueeze(0))
    for number, entry in saved.items():
        assert folder is not None
        if number <= reached and not is_lost(folder / entry.file):
            verify(folder / entry.file, entry)
            state = _load(number, folder / entry.file, task)
            break
    if recorder is not None:
        recorder.redo_after(state.round)
    return state


def _load(number: int, file: Path, task: Task) -> FederationState:
    reader = RoundReader(file)
    blocks: dict[str, Any] = reader.blocks
    width = blocks["models"].shape[1] if "models" in blocks else 0
    if width != task.layout.width:
        raise TraceError(
            f"{file} belongs to another model",
            expected=f"{task.layout.width} numbers",
            got=str(width),
            remedy="choose another checkpoint folder",
        )
    velocity = blocks.get("velocity")
    return FederationState(
        number,
        torch.from_numpy(blocks["models"].copy()),
        None if velocity is None else torch.from_numpy(velocity[0].copy()),
        json.loads(reader.metadata["state"]).get("memory", {}),
    )
