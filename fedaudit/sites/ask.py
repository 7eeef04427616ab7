"""At a site: write candidate records, and the key that stays here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit import knowledge
from fedaudit.files import writing
from fedaudit.randomness import Seed
from fedaudit.sites.files import KEY, VERSION, sha256, write
from fedaudit.sites.recordings import owner_of
from fedaudit.study.seal import open_trace


def ask(
    own: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    model: str,
    columns: Mapping[str, Any] | None = None,
    records: int = 64,
) -> int:
    """Write candidate records, half of them this site's own, and the key that stays here.

    `data` is a table whose client column holds this site's party (see its recording `own`), or any
    other word for records that nobody trained on. Returns the number of candidates.
    """
    trace = open_trace(own)
    party = owner_of(trace)
    found = knowledge.of_files(trace, Path(data), model=model, settings=columns)
    mine = replace(found, own={k: v for k, v in found.own.items() if k == party})
    pools, members, _ = knowledge.candidates(mine, records, Seed(secrets.randbits(64)))
    pool = pools[party]
    path = Path(out)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            classes = np.array(mine.own[party].classes, dtype=str)
            np.savez(
                file, party=np.array(party), classes=classes, x=pool.x.numpy(), y=pool.y.numpy()
            )
    answers = {"asked_sha256": sha256(path), "member": [bool(m) for m in members[party]]}
    write(key, {"format": KEY, "version": VERSION, **answers})
    return len(pool)
