"""Scores of candidate models: differential, combined over rounds, on all keys at once.

The audit works with `Marks`: scores of models on the owner's keys and on unused keys, as one
matrix. Nobody trained on the unused keys: they give the null.

Shapes: models (M, d); statistics (M, S + U) with the S keys of the owner first. If each key has a
separate null (`apart`), every key has U columns of its own, one key's after the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.stats import combine


class Marks(Protocol):
    """The owner's `keys`, and scores on them and on `unused` others.

    `apart = True`: keys cannot share a null, each has `unused` keys of its own. `linear = False`:
    the score is far from linear in an update. Clients are then not compared with others of a round;
    groups with a client are compared with groups without it. `standard = True`: scores already are
    z-scores, and the published score is their plain difference.
    """

    @property
    def keys(self) -> Sequence[Any]: ...

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d), or (M, keys + keys unused)."""
        ...


@dataclass(frozen=True)
class KeyBlock:
    """Columns of keys and of the unused keys that form their null: `own` (s,), `null` (u,)."""

    own: npt.NDArray[np.int64]
    null: npt.NDArray[np.int64]

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        return np.concatenate([self.own, self.null])


def blocks(columns: int, keys: int, apart: bool) -> tuple[KeyBlock, ...]:
    """Blocks of columns with a common null: one block, or one per key."""
    if not apart or keys == 0:
        return (KeyBlock(np.arange(keys), np.arange(keys, columns)),)
    unused = (columns - keys) // keys
    return tuple(
        KeyBlock(np.array([s]), keys + s * unused + np.arange(unused)) for s in range(keys)
    )


def standardised(
    statistics: npt.ArrayLike, keys: int, *, apart: bool = False, every: bool = False
) -> Floats:
    """z-scores (M, keys) of models on the owner's keys, against unused keys of the same model.

    The published score is such a z of one model. A difference of two is not a z. With `every`,
    unused keys are standardised too, each against its whole null.
    """
    raw = np.asarray(statistics, dtype=np.float64)
    out = np.empty_like(raw)
    for block in blocks(raw.shape[1], keys, apart):
        centre, deviation = _null_of(raw[:, block.null])
        off = raw[:, block.columns] - centre
        # a model that scores all unused keys alike is no evidence
        out[:, block.columns] = np.divide(off, deviation, np.zeros_like(off), where=deviation > 0)
    return out if every else out[:, :keys]


def need_unused(null: Floats, fewest: int) -> None:
    """Raise for scores (M, U) of too few unused keys."""
    if null.shape[1] < fewest:
        raise UsageError(
            "a null needs unused keys",
            expected=f"at least {fewest}, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )


def _null_of(null: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation (M, 1) of unused keys (M, U)."""
    need_unused(null, 2)
    deviation = null.std(axis=1, ddof=1, keepdims=True)
    if (deviation == 0).all():
        raise UsageError(
            "unused keys all score the same",
            expected="scores that differ between keys",
            got="a deviation of 0",
            remedy="check the score function: its value does not depend on its probes",
        )
    return null.mean(axis=1, keepdims=True), deviation


def differential(candidates: npt.ArrayLike, reference: npt.ArrayLike) -> Floats:
    """[FedAttr] Eq. (7): scores of w + estimate (R, S) minus the score of w (S,)."""
    return np.asarray(candidates, dtype=np.float64) - np.asarray(reference, dtype=np.float64)


def stouffer_by_client(scores: npt.ArrayLike) -> Floats:
    """[FedAttr] Eqs. (8) and (28): (T, K, ...) -> (K, ...), each over the client's own rounds.

    NaN marks rounds without the client; a client in no round gets NaN.
    """
    return combine.stouffer(scores)
