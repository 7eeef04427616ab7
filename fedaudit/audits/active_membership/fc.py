"""The fully connected adversary: two layers that measure the distance to the target.

    W1 = [I; -I], b1 = [-T; T], W2 = -1, b2 = tau                 [ActiveMembership] Eqs. (2, 3, 7)

For an input X the neuron is max(tau - |X - T|_1, 0): [ActiveMembership] Eq. (10). The gradient of
b2 is non-zero if and only if some example of the batch lies closer than tau to the target.

Beyond the paper: the second layer may have one neuron per client. Neuron j is armed for one client
(b2[j] = tau) and silent for the others (b2 < 0). The server then sees who holds the target, even in
a sum over clients or in uploads without names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows, require_finite
from fedaudit.errors import DataError, UsageError

if TYPE_CHECKING:
    from fedaudit.tasks.classifier import Classifier


ANSWER_TENSOR = "2.bias"
"""The tensor whose gradient is the answer."""
SILENT = -1.0


def task(features: int, *, detectors: int = 1, classes: int = 10) -> Classifier:
    """The model of the game, before weights are planted."""
    import torch

    from fedaudit.audits.active_membership.planted import fully_connected
    from fedaudit.tasks.classifier import Classifier

    with torch.random.fork_rng(devices=()):  # initial weights are drawn and overwritten
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
    """Planted models (K, w) for targets (K, r), as flat rows in the order of `task`'s layout.

    `armed` (K,): the armed neuron of each model, by default the first; -1 arms none. `gain`: the
    weight of the extra output. `scale` multiplies W2 and b2 (published: 1). A power of two leaves
    decisions bit-identical and keeps activations small.
    """
    t = np.atleast_2d(np.asarray(targets, dtype=np.float64))
    remedy = "fill in or drop these features first"
    require_finite(t, "the target's features", DataError, remedy=remedy)
    if not (tau > 0 and math.isfinite(tau)):
        raise UsageError(
            "tau is out of range",
            expected="a finite number above 0",
            got=repr(tau),
            remedy="use half the smallest distance between two records",
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
    """The power of two that scales tau to at most 1."""
    return float(2.0 ** -max(0, math.ceil(math.log2(tau))))


def learning_rate(records: int, classes: int) -> float:
    """A rate at which one example's gradient survives rounding beside a 32-bit bias of size 1.

    A client sends the difference of its models after and before a step. One example of n moves b2
    by at least rate / ((C + 1) n), which must exceed rounding.
    """
    needed = 256.0 * float(np.finfo(np.float32).eps) * (classes + 1) * records
    return float(max(1.0, 2.0 ** math.ceil(math.log2(needed))))
