"""Local differential privacy in a Flower app: at the data, not at the messages.

    x = protect_data(x, "kept.npz", mechanism="grr", epsilon=4.0, alphabet=8)

A mod cannot do this: it sees messages, after training. Local DP protects records, randomised
**once** before anything reads them. Flower calls a client's training function in every round, often
in a new process. Noise drawn there would be new in every round: it would average out, and every
round would spend the budget again. So the draw is stored in a file at the client and read again.
The operating system seeds the noise.
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
    """Features (n, ...) of this client, randomised once and stored in the file `kept`.

    `settings` are those of `[protections.local_dp]`. The first call draws and writes `kept`; later
    calls with the same records and settings return the same draw. Other records or settings are
    refused: a second draw of a record spends the budget again. Labels are not randomised.
    """
    records = np.asarray(x)
    if records.dtype.kind != "f" or records.ndim < 2 or not records.size:
        raise DataError(
            "local DP randomises features, and these records do not have any",
            expected="floating-point numbers of shape (records, ...)",
            got=f"{records.dtype} of shape {records.shape}",
            remedy="pass all records of this client at once, as an array",
        )
    hook = LocalDP(**settings)
    file = Path(kept)
    # only a digest of the records is stored: enough to notice other records
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
        os.link(part, file)  # if two processes start at once, the first draw counts
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
            raise ValueError("no description of settings and records")
    except (Unreadable, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{file} does not hold a draw of local DP",
            expected="the file that protect_data wrote",
            got=f"{type(error).__name__}: {error}",
            remedy="restore the file; a second draw would spend the budget again",
        ) from None
    if before != asked:
        new = json.loads(asked)
        keys = ("settings", "shape", "records")
        changed = next((k for k in keys if old.get(k) != new[k]), "settings")
        raise DataError(
            f"{file} holds a draw for other {changed}",
            expected="the records and settings of the first call",
            got=f"other {changed}" + (f": {new[changed]}" if changed != "records" else ""),
            remedy="use another file: every draw of a record spends its budget again",
        )
    return x


def local_guarantee(features: int, **settings: Any) -> Guarantee:
    """The guarantee of one draw of `protect_data` for a record of `features` features, over any
    number of rounds: the exact worst case of the mechanism."""
    hook = LocalDP(**settings)
    hook._facts.features = features
    found = hook.guarantee(0, Exposure(sampling_rate=1.0, steps=1, rounds=1))
    assert found is not None
    return found
