"""The fully connected adversary: two layers that measure the distance to the target.

    W1 = [I; -I], b1 = [-T; T], W2 = -1, b2 = tau                 [ActiveMembership] Eqs. (2, 3)

For an input X the neuron is max(tau - |X - T|_1, 0): [ActiveMembership] Eq. (10). The gradient of
b2 is non-zero if and only if some example of the batch lies closer than tau to the target.

Beyond the paper: the second layer may have one neuron per client. A client for whom neuron j is
armed (b2[j] = tau) leaves its mark there; the others are silent (b2 < 0). Of a sum over clients, or
of uploads without names, the server then reads whose data hold the target.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows
from fedaudit.errors import DataError, UsageError

if TYPE_CHECKING:
    from fedaudit.tasks.classifier import Classifier


READ = "2.bias"
"""The tensor whose gradient answers."""
SILENT = -1.0


def task(features: int, *, detectors: int = 1, classes: int = 10) -> Classifier:
    """The model of the game, before anything is planted in it."""
    import torch

    from fedaudit.audits.active_membership.planted import fully_connected
    from fedaudit.tasks.classifier import Classifier

    with torch.random.fork_rng(devices=()):  # a layer draws weights, which are overwritten
        module = fully_connected(features, detectors, classes)
    return Classifier(module, {"kind": "planted"})


def weights(
    targets: npt.ArrayLike,
    tau: float,
    *,
    detectors: int = 1,
    armed: npt.ArrayLike | None = None,
    classes: int = 10,
    gain: float = 1.0,
    scale: float = 1.0,
) -> Rows:
    """Planted models (K, w) of targets (K, r), as flat rows in the order of `task`'s layout.

    `armed` (K,): the neuron that is armed in each; by default the first. -1 arms none. `gain`: the
    weight of the output that no label uses. `scale` multiplies W2 and b2, published as 1: a power
    of two decides alike to the last bit, and keeps activations small.
    """
    t = np.atleast_2d(np.asarray(targets, dtype=np.float64))
    if not np.isfinite(t).all():
        raise DataError(
            "the target is not finite",
            expected="finite features",
            got=f"{int((~np.isfinite(t)).sum())} NaN or infinite",
            remedy="fill or drop them first",
        )
    if not (tau > 0 and math.isfinite(tau)):
        raise UsageError(
            "tau is out of range",
            expected="a finite number above 0",
            got=repr(tau),
            remedy="half the smallest distance of two records always is one",
        )
    count, r = t.shape
    chosen = np.zeros(count, dtype=np.int64) if armed is None else np.asarray(armed, dtype=np.int64)
    sizes = (2 * r * r, 2 * r, 2 * r * detectors, detectors, (classes + 1) * detectors, classes + 1)
    out = np.zeros((count, sum(sizes)), dtype=np.float32)
    first, bias, second, cut, last, _ = np.split(out, np.cumsum(sizes)[:-1], axis=1)
    first[:, 0 : r * r : r + 1] = 1.0  # the diagonal of I
    first[:, r * r :: r + 1] = -1.0  # and of -I
    bias[:, :r], bias[:, r:] = -t, t
    second[:] = -scale
    cut[:] = SILENT
    rows = np.flatnonzero(chosen >= 0)
    cut[rows, chosen[rows]] = scale * tau
    last[:, classes * detectors :] = gain
    return out


def scale_for(tau: float) -> float:
    """The power of two that brings tau to at most 1."""
    return float(2.0 ** -max(0, math.ceil(math.log2(tau))))


def learning_rate(records: int, classes: int) -> float:
    """A rate at which one example's gradient survives next to a bias of size 1 in 32 bits.

    A client sends its model after a step minus the one before; one example of n moves b2 by at
    least rate / ((C + 1) n), which must be more than rounding.
    """
    needed = 256.0 * float(np.finfo(np.float32).eps) * (classes + 1) * records
    return float(max(1.0, 2.0 ** math.ceil(math.log2(needed))))
