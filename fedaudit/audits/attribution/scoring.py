"""Scores of candidate models: differential, combined over rounds, on all keys at once.

An audit works with `Marks`: scores of models on the owner's keys and on unused keys, as one matrix.
The unused keys, which nobody trained on, give the null.

Shapes: models (M, d); statistics (M, S + U) with the S keys of the owner first. Where each key has
a null of its own (`apart`), there are U columns for every key, one key's after the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError


class Marks(Protocol):
    """The owner's `keys`, and scores on them and on `unused` others.

    A mark whose keys cannot share a null has `apart = True`: `unused` others for each key. One
    whose score is far from linear in an update has `linear = False`: clients are then not held
    against others of a round, and groups with a client are held against those without it. One whose
    scores are z-scores by themselves has `standard = True`: the published score is their difference
    as it is.
    """

    @property
    def keys(self) -> Sequence[Any]: ...

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d), or (M, keys + keys unused)."""
        ...


@dataclass(frozen=True)
class KeyBlock:
    """Columns of keys and of the unused ones that are their null: `own` (s,), `null` (u,)."""

    own: npt.NDArray[np.int64]
    null: npt.NDArray[np.int64]

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        return np.concatenate([self.own, self.null])


def blocks(columns: int, keys: int, apart: bool) -> tuple[KeyBlock, ...]:
    """Which of S + U columns belong together: one block, or one for each key."""
    if not apart or keys == 0:
        return (KeyBlock(np.arange(keys), np.arange(keys, columns)),)
    unused = (columns - keys) // keys
    return tuple(
        KeyBlock(np.array([s]), keys + s * unused + np.arange(unused)) for s in range(keys)
    )


def standardised(
    statistics: npt.ArrayLike, keys: int, *, apart: bool = False, every: bool = False
) -> Floats:
    """z-scores (M, keys) of models on the owner's keys, against the unused ones of the same model.

    This is the published kind of score: a z of one model. A difference of two is not a z. With
    `every` unused keys are standardised like the owner's, each among all of its null.
    """
    raw = np.asarray(statistics, dtype=np.float64)
    out = np.empty_like(raw)
    for block in blocks(raw.shape[1], keys, apart):
        centre, deviation = _null_of(raw[:, block.null])
        off = raw[:, block.columns] - centre
        # a model under which all unused keys score alike says nothing
        out[:, block.columns] = np.divide(off, deviation, np.zeros_like(off), where=deviation > 0)
    return out if every else out[:, :keys]


def _null_of(null: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation (M, 1) of unused keys (M, U)."""
    if null.shape[1] < 2:
        raise UsageError(
            "a null needs unused keys",
            expected="at least 2, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )
    deviation = null.std(axis=1, ddof=1, keepdims=True)
    if (deviation == 0).all():
        raise UsageError(
            "unused keys all score the same",
            expected="scores that differ between keys",
            got="a deviation of 0",
            remedy="check the score: it does not depend on its probes",
        )
    return null.mean(axis=1, keepdims=True), deviation


def differential(candidates: npt.ArrayLike, reference: npt.ArrayLike) -> Floats:
    """[FedAttr] Eq. (7): scores of w + estimate (R, S) minus the score of w (S,)."""
    return np.asarray(candidates, dtype=np.float64) - np.asarray(reference, dtype=np.float64)


def stouffer_by_client(scores: npt.ArrayLike) -> Floats:
    """[FedAttr] Eqs. (8) and (28): (T, K, ...) -> (K, ...), each over the rounds it took part in.

    NaN where a client was not there. A client in no round has no evidence at all: NaN.
    """
    z = np.asarray(scores, dtype=np.float64)
    rounds = (~np.isnan(z)).sum(axis=0)
    total = np.nansum(z, axis=0)
    return np.divide(total, np.sqrt(rounds), out=np.full(total.shape, np.nan), where=rounds > 0)
