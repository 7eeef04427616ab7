from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_other_files(
    write: Callable[..., Path], refused: Callable[..., str], patients: Path
) -> None:
    refused(patients.with_name("patient.csv"), "did you mean 'patients.csv'")
    refused(write("t.xlsx", ""), "save it as CSV")
    refused(write("t.pkl", ""), "numpy.savez")
