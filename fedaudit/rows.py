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
import sys
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


REUSED_BYTES = 256 << 20
"""Largest storage that is kept for the next round: beyond it, page faults no longer count."""


class RowBuffer:
    """Storage for the rows of a round, handed out again once nobody holds it.

    Fresh memory costs a page fault per 4 kB: 12,800 in a round of 52 MB. Storage that a recorder, a
    view or an array still refers to is left to its holder, and the next round gets its own.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def take(self, n: int, width: int) -> Tensor:
        """Rows (n, width) with any contents."""
        if 4 * n * width > REUSED_BYTES:
            self._kept = None
            return empty_rows(n, width)
        kept = self._kept
        if kept is None or kept.numel() != n * width or _held_elsewhere(kept):
            kept = self._kept = empty_rows(n, width)
        return kept.view(n, width)


def _held_elsewhere(rows: Tensor) -> bool:
    """Whether anything but `rows` refers to its storage; True where torch cannot tell."""
    import torch

    if not hasattr(torch._C, "_storage_Use_Count"):
        return True
    found, alone = _holders(rows), _holders(torch.empty(1))
    return found[0] > alone[0] or found[1] > alone[1]


def _holders(rows: Tensor) -> tuple[int, int]:
    """How many tensors and how many Python names refer to a tensor's storage."""
    import torch

    storage = rows.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)
