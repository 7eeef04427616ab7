from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest


@pytest.fixture
def idx_bytes() -> Callable[[np.ndarray], bytes]:
    """An array of bytes as an IDX file, the format of MNIST."""

    def written(array: np.ndarray) -> bytes:
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        return head + array.astype(np.uint8).tobytes()

    return written
