from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.files import read
from fedaudit.errors import DataError


def test_other_files(
    write: Callable[..., Path], unsaid: Callable[..., list[str]], patients: Path
) -> None:
    assert not unsaid(patients.with_name("patient.csv"), "did you mean 'patients.csv'")
    assert not unsaid(write("t.xlsx", ""), "save it as CSV")
    assert not unsaid(write("t.pkl", ""), "numpy.savez")


@pytest.mark.parametrize("role", ["client", "person", "y", "classes", "x", "columns"])
def test_text_that_no_file_can_hold_is_refused_with_its_record(tmp_path: Path, role: str) -> None:
    half = "b\ud800"
    arrays = {
        "x": np.array(["t", "u", half]) if role == "x" else np.eye(3),
        "y": np.array(["a", half, "a"]) if role == "y" else np.array([0, 1, 0]),
        **({role: np.array(["a", "a", half])} if role in ("client", "person", "columns") else {}),
        **({"classes": np.array(["a", half])} if role == "classes" else {}),
    }
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.npz")
    at = {"y": "record 1", "classes": "record 1", "columns": "name of column 2"}
    assert at.get(role, "record 2") in caught.value.what
    assert caught.value.got == ascii(half)


def test_the_name_of_a_file_has_to_be_text(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.csv")
    Path(path).write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(DataError, match="not UTF-8") as caught:
        read(path, label="y")
    assert str(caught.value).encode("utf-8")


@pytest.mark.parametrize("name", ["x" * 5_000 + ".csv", "x" * 300 + "/y.csv"])
def test_a_name_that_is_too_long_is_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read(tmp_path / name)
