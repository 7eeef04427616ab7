"""Updates larger than memory go to a file; the numbers stay equal."""

import os
import tempfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit import rows
from fedaudit.errors import DataError


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A machine with too little memory for any row."""
    monkeypatch.setattr(rows, "memory", lambda: 16)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mapped(array) -> bool:
    return isinstance(array, np.memmap)


def test_what_fits_stands_in_memory():
    assert not mapped(rows.empty_array(3, 4))
    assert rows.memory() > 1 << 28


def test_what_does_not_fit_stands_in_a_file_without_a_name(small):
    found = rows.empty_array(3, 1000, np.float16)
    assert mapped(found)
    assert found.shape == (3, 1000)
    assert found.dtype == np.float16
    assert os.listdir(small) == []
    found[:] = 7
    assert float(np.asarray(found, np.float64).sum()) == 21_000


def test_a_tensor_over_the_file_is_written_in_place(small):
    t = rows.empty_rows(2, 50)
    t.copy_(torch.arange(100.0).view(2, 50))
    assert t.sum() == 4950
    assert t.numpy().base is not None


@pytest.mark.parametrize("order", [[2, 0, 1], [1], np.array([0, 0, 2])])
def test_taken_is_indexing(small, order):
    t = torch.arange(12.0).view(3, 4)
    assert torch.equal(rows.take_rows(t, order), t[torch.as_tensor(order)])


def test_no_room_anywhere_says_how_much_was_asked_for(small, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(rows.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(DataError, match=r"8,000 bytes for 2 rows of 1,000 numbers"):
        rows.empty_array(2, 1000)


def test_a_container_that_allows_less_counts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(rows, "Path", lambda _: Path(tmp_path / "memory.max"))
    assert rows.memory.__wrapped__() == 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert rows.memory.__wrapped__() > 1 << 28


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t,
        lambda t: t[1:],
        lambda t: t.numpy()[2],
        lambda t: memoryview(t.numpy()),
        lambda t: t.detach().T,
        lambda t: {"a": [t.untyped_storage()]},
    ],
)
def test_storage_is_handed_out_again_only_when_nobody_holds_it(hold):
    buffer = rows.RowBuffer()
    place = buffer.take(3, 4).data_ptr()
    assert buffer.take(3, 4).data_ptr() == place
    assert buffer.take(4, 3).data_ptr() == place
    held = hold(buffer.take(3, 4))
    assert buffer.take(3, 4).data_ptr() != place
    del held
    again = buffer.take(3, 4).data_ptr()
    assert buffer.take(3, 4).data_ptr() == again
    assert tuple(buffer.take(5, 4).shape) == (5, 4)


def test_storage_is_never_shared_where_torch_cannot_tell(monkeypatch):
    import torch

    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    buffer = rows.RowBuffer()
    one = buffer.take(3, 4).fill_(1)
    buffer.take(3, 4).fill_(2)
    assert bool((one == 1).all())


def test_large_storage_is_not_kept(monkeypatch):
    monkeypatch.setattr(rows, "REUSED_BYTES", 47)
    buffer = rows.RowBuffer()
    first = buffer.take(3, 4)
    assert buffer.take(3, 4).data_ptr() != first.data_ptr()
    assert buffer._kept is None
