"""Where the updates of a round stand: in memory, or in a file that memory is mapped to.

Clients train in blocks, so a model that is too large to stack is trained one client at a time; but
the round needs all their updates (n, d) until it is summed and recorded. Where these are more than
a quarter of the machine's memory they stand in an unnamed temporary file (`TMPDIR` says where),
which the system reads and writes as pages are needed. Nobody else can open it, and it is gone when
the round is.
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
"""What stands in memory may take one part in so many of it."""


@functools.cache
def memory() -> int:
    """Bytes that this process may use: the machine's, or fewer where a container allows fewer."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(allowed)) if allowed.isdigit() else total


def space(n: int, width: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Room for rows (n, width): uninitialised memory, or zeros in a mapped temporary file."""
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


def tensor(n: int, width: int) -> Tensor:
    """`space` for float32 rows, as a tensor."""
    import torch

    if 4 * n * width <= memory() // SHARE:
        return torch.empty(n, width)
    return torch.from_numpy(space(n, width))


def taken(rows: Tensor, order: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
    """Rows (n, d) in another order, or some of them: a copy."""
    import torch

    index = torch.as_tensor(np.asarray(order, dtype=np.int64))
    return torch.index_select(rows, 0, index, out=tensor(len(index), rows.shape[1]))
