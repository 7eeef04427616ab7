"""Thresholds for scores or distances, from games with known coins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats


def midpoint(closest: Floats, member: Bools) -> float:
    """Halfway between the mean distances of members and of non-members."""
    return 0.5 * (float(closest[member].mean()) + float(closest[~member].mean()))


def best_cut(scores: npt.ArrayLike, member: Bools) -> float:
    """The cut with the largest TPR + TNR; scores above it are called members.

    It lies midway between neighbouring scores. Among equally good cuts it is the middle one.
    """
    s = np.asarray(scores, dtype=np.float64)
    levels, where = np.unique(s, return_inverse=True)
    inside = np.bincount(where[member], minlength=len(levels)).cumsum() / max(1, member.sum())
    out = np.bincount(where[~member], minlength=len(levels)).cumsum() / max(1, (~member).sum())
    gain = out - inside  # TNR + TPR - 1 for a cut just above each level
    best = np.flatnonzero(gain >= gain.max() - 1e-12)
    at = int(best[len(best) // 2])
    if at + 1 == len(levels):
        return float(levels[-1])
    return 0.5 * float(levels[at] + levels[at + 1])
