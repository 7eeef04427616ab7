"""Green mass: the probability that models give to green tokens, averaged over contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.watermarks.kgw.lists import GreenLists, blocks
from fedaudit.watermarks.score import Tokens

LIKELY = 2e-3
"""`GreenMarks` ignores tokens to which a model gives less probability."""


def green_mass(lists: GreenLists, keys: Sequence[int], contexts: Tokens, p: Any) -> Floats:
    """Mean over contexts (C, width) of the green probability of p (M, C, V), minus gamma: (M, J).

    One matrix product per block of keys. A model's mass under one key says little, since a few
    likely tokens dominate it. Calibrate its change against a reference instead
    (`score.differential`).
    """
    flat = np.ascontiguousarray(p, dtype=np.float32).reshape(len(p), -1)
    parts = []
    for some in blocks(keys, flat.shape[1]):
        green = lists.tables(some, contexts)
        parts.append(flat @ green.reshape(len(green), -1).T.astype(np.float32))
    return np.concatenate(parts, axis=1).astype(np.float64) / len(contexts) - lists.gamma


def likely_mass(
    lists: GreenLists,
    keys: Sequence[int],
    contexts: Tokens,
    p: Any,
    floor: float = LIKELY,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """`green_mass` of every model over tokens with probability at least `floor`, (M, J).

    Most tokens of a vocabulary share a few per cent of the probability; skipping them saves most
    hashes. The floor applies to each model separately, so its mass does not depend on the models
    scored with it. `weights` (C,) of the contexts (default: equal).
    """
    each = np.ones(len(contexts)) if weights is None else np.asarray(weights, dtype=np.float64)
    where, tokens = np.nonzero(p.max(axis=0) >= floor)
    kept = p[:, where, tokens]
    kept = np.where(kept >= floor, kept, 0.0)
    values = (kept * (each / each.sum())[where]).astype(np.float32)
    parts = []
    for some in blocks(keys, len(tokens)):
        green = lists.green(some, contexts[where], tokens)
        parts.append(values @ green.T.astype(np.float32))
    mass = np.concatenate(parts, axis=1).astype(np.float64)
    # the expectation is gamma of the kept probability, which differs between models
    return np.asarray(mass - lists.gamma * values.sum(axis=1, dtype=np.float64)[:, None])
