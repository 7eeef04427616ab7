"""Local differential privacy in a Flower app: at the data, not at the messages.

    x = protect_data(x, "kept.npz", mechanism="grr", epsilon=4.0, alphabet=8)

Why this is no mod: a mod sees messages, and a message holds what training made of the records. What
local DP promises is about records, randomised **once**, before anything reads them. Flower calls a
client's training function in every round, often in a new process: drawn there, the noise would be
new in every round, averaged away over them, and its budget spent as many times. So the draw is kept
in a file at the client and read again. Noise comes from the operating system.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Exposure, Guarantee
from fedaudit.errors import DataError
from fedaudit.files import Unreadable, parse_json, read_npz
from fedaudit.protections.local_dp.protection import LocalDP


def protect_data(
    x: npt.ArrayLike, kept: str | os.PathLike[str], **settings: Any
) -> npt.NDArray[np.float32]:
    """Features (n, ...) of this client, randomised by the mechanism of `settings`, and kept.

    `settings` are those of `[protections.local_dp]`. The first call draws and writes `kept`; every
    later one with the same records and settings returns the same draw. Other records or settings
    are refused: a second draw of a record is a second expense. Labels are not randomised.
    """
    records = np.asarray(x)
    if records.dtype.kind != "f" or records.ndim < 2 or not records.size:
        raise DataError(
            "local DP randomises features, and these records have none",
            expected="floating-point numbers of shape (records, ...)",
            got=f"{records.dtype} of shape {records.shape}",
            remedy="hand over all records of this client at once, as an array",
        )
    hook = LocalDP(**settings)
    file = Path(kept)
    # of the records only a digest is kept: enough to tell others from these
    digest = hashlib.sha256(np.ascontiguousarray(records).tobytes()).hexdigest()
    asked = json.dumps({"settings": repr(hook), "shape": records.shape, "records": digest})
    if file.exists():
        return _read(file, asked)
    flat = records.reshape(len(records), -1).astype(np.float64)
    values, _ = hook.randomise(flat, np.random.default_rng())
    out = values.reshape(records.shape).astype(np.float32)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    with part.open("wb") as stream:
        np.savez(stream, x=out, asked=np.array(asked))
    try:
        os.link(part, file)  # whoever is first has drawn: two processes may begin at once
    except FileExistsError:
        return _read(file, asked)
    finally:
        part.unlink()
    return out


def _read(file: Path, asked: str) -> npt.NDArray[np.float32]:
    try:
        stored = read_npz(file, ("asked", "x"))
        before, x = str(stored["asked"]), np.asarray(stored["x"], dtype=np.float32)
        old = json.loads(asked) if before == asked else parse_json(before)
        if not isinstance(old, dict):
            raise ValueError("no description of what was asked")
    except (Unreadable, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{file} holds no draw of local DP",
            expected="the file that protect_data wrote",
            got=f"{type(error).__name__}: {error}",
            remedy="a second draw is a second expense: remove the file only if it is worth that",
        ) from None
    if before != asked:
        new = json.loads(asked)
        keys = ("settings", "shape", "records")
        changed = next((k for k in keys if old.get(k) != new[k]), "settings")
        raise DataError(
            f"{file} holds a draw for other {changed}",
            expected="the records and settings of the first call",
            got=f"other {changed}" + (f": {new[changed]}" if changed != "records" else ""),
            remedy="keep another file for them: every draw of a record is charged again",
        )
    return x


def local_guarantee(features: int, **settings: Any) -> Guarantee:
    """What one draw of `protect_data` promises for a record of so many features, in any number of
    rounds: the exact worst case of the mechanism."""
    hook = LocalDP(**settings)
    hook._facts.features = features
    found = hook.guarantee(0, Exposure(sampling_rate=1.0, steps=1, rounds=1))
    assert found is not None
    return found
