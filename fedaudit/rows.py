"""Storage for the updates of a round: in memory, or in a memory-mapped temporary file.

Clients train in blocks, so a model too large to stack trains one client at a time; but a round
keeps all updates (n, d) until they are summed and recorded. Updates larger than a quarter of the
machine's memory go to an unnamed temporary file (in `TMPDIR`), which the system pages in and out.
No other process can open the file; it disappears with the round.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 4
"""Updates stay in memory up to this fraction of it: one part in `SHARE`."""


@functools.cache
def memory() -> int:
    """Bytes this process may use: the machine's memory, or a container's lower limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(allowed)) if allowed.isdigit() else total


def empty_array(n: int, width: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Array for rows (n, width): uninitialised memory, or zeros in a mapped temporary file."""
    size = math.prod((n, width, np.dtype(dtype).itemsize))
    if size <= memory() // SHARE:
        return np.empty((n, width), dtype)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise DataError(
            "the updates of a round fit neither memory nor the temporary folder",
            expected=f"{size:,} bytes for {n} rows of {width:,} numbers",
            got=f"{memory():,} bytes of memory, {free:,} free in the temporary folder",
            remedy="set TMPDIR to a folder with more room, or let fewer clients take part at once",
        )
    with tempfile.TemporaryFile() as file:  # the mapping keeps it; it has no name
        file.truncate(size)
        return np.memmap(file, dtype, mode="r+", shape=(n, width))


def empty_rows(n: int, width: int) -> Tensor:
    """Tensor for float32 rows (n, width), from `empty_array` if large."""
    import torch

    if 4 * n * width <= memory() // SHARE:
        return torch.empty(n, width)
    return torch.from_numpy(empty_array(n, width))


def take_rows(rows: Tensor, order: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
    """Copy rows (n, d) in the given order; `order` may select some of them."""
    import torch

    index = torch.as_tensor(np.asarray(order, dtype=np.int64))
    return torch.index_select(rows, 0, index, out=empty_rows(len(index), rows.shape[1]))
