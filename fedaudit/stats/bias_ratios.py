"""Inputs of a linear layer from its update: x = dW_u / db_u. [Geiping] Proposition 3.1"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats

ROUNDING = 32.0
"""Changes of a bias below so many float32 steps of the model are taken for rounding."""


def ratios(
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    smallest: float | npt.NDArray[np.float32],
) -> tuple[Floats, Bools]:
    """x (..., h, D) of every unit from updates dW (..., h, D) and db (..., h), and which are
    defined.

    `smallest`: a change of the bias below it carries no information.
    """
    usable = np.abs(bias) > smallest
    safe = np.where(usable, bias, 1.0).astype(np.float64)
    return weight.astype(np.float64) / safe[..., None], usable
