"""Aliases of array types for signatures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
"""Updates or models, one flat vector per row: (n, d)."""
