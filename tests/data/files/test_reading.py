from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_other_files(
    write: Callable[..., Path], unsaid: Callable[..., list[str]], patients: Path
) -> None:
    assert not unsaid(patients.with_name("patient.csv"), "did you mean 'patients.csv'")
    assert not unsaid(write("t.xlsx", ""), "save it as CSV")
    assert not unsaid(write("t.pkl", ""), "numpy.savez")
