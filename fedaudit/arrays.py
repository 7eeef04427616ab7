"""Aliases of array types for signatures, and the refusal of numbers that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import FedauditError, UsageError

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
"""Updates or models, one flat vector per row: (n, d)."""
AnyRows = npt.NDArray[Any]
"""The same in any number type, as recorded."""


def require_finite(
    values: npt.NDArray[np.floating],
    what: str,
    error: type[FedauditError] = UsageError,
    *,
    remedy: str,
) -> None:
    """Raise `error` if a number is NaN or infinite."""
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        got = f"{count} of {values.size} numbers are NaN or infinite"
        raise error(f"{what} are not finite", expected="finite numbers", got=got, remedy=remedy)
