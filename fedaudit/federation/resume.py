"""What the next round starts from, kept on disk, so that a run that was killed can go on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedaudit.errors import TraceError
from fedaudit.tasks.task import Task
from fedaudit.trace.recorder import Recorder
from fedaudit.trace.store import RoundReader, write_blocks

FILE = "state.safetensors"


@dataclass
class State:
    """What the next round starts from: one model, or one per gossip node; server momentum."""

    round: int
    models: Tensor  # (1, d) or (n, d)
    velocity: Tensor | None = None


def save(checkpoint: str | os.PathLike[str] | None, state: State) -> None:
    """Write the state into the folder `checkpoint`, if there is to be one."""
    if checkpoint is None:
        return
    folder = Path(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    blocks = {"models": [state.models.numpy()]}
    if state.velocity is not None:
        blocks["velocity"] = [state.velocity.unsqueeze(0).numpy()]
    write_blocks(folder / FILE, blocks, {"state": json.dumps({"round": state.round})})


def restore(
    checkpoint: str | os.PathLike[str] | None, recorder: Recorder | None, task: Task
) -> State:
    """The state after the last complete round, or that before the first.

    A recorder forgets the rounds after it.
    """
    fresh = State(0, task.initial().unsqueeze(0))
    recorded = recorder.rounds if recorder is not None else 0
    file = None if checkpoint is None else Path(checkpoint) / FILE
    if file is None or not file.exists():
        if recorder is not None:
            recorder.forget_after(0)
        return fresh
    reader = RoundReader(file)
    number = int(json.loads(reader.metadata["state"])["round"])
    if recorder is not None and recorded < number:
        raise TraceError(
            "the checkpoint is ahead of the trace",
            expected=f"{number} recorded rounds",
            got=f"{recorded}",
            remedy="remove the checkpoint folder and run again",
        )
    if recorder is not None:
        recorder.forget_after(number)
    width = reader.blocks["models"].shape[1]
    if width != task.layout.width:
        raise TraceError(
            f"{file} belongs to another model",
            expected=f"{task.layout.width} numbers",
            got=str(width),
            remedy="choose another checkpoint folder",
        )
    velocity = reader.blocks.get("velocity")
    return State(
        number,
        torch.from_numpy(reader.blocks["models"].copy()),
        None if velocity is None else torch.from_numpy(velocity[0].copy()),
    )
