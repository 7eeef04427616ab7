from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.data.files import read
from fedaudit.errors import DataError


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(name, text): a file in the test's own folder."""

    def file(name: str, text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return file


@pytest.fixture
def patients(write: Callable[..., Path]) -> Path:
    """A table with every kind of owner."""
    return write(
        "patients.csv",
        """\
patient_id,hospital,region,age,smoker,bmi,diagnosis
p1,north,A,61,yes,24.5,sick
p2,north,A,45,no,22.1,well
p2,north,A,46,no,22.3,well
p3,south,B,70,former,31.0,sick
p4,south,B,33,no,27.25,well
""",
    )


@pytest.fixture
def unsaid() -> Callable[..., list[str]]:
    """unsaid(path, *words, **settings): words missing in the refusal of a file, including
    those that every refusal has. Fails if the file is accepted."""

    def lacking(path: Path, *words: str, **settings: object) -> list[str]:
        with pytest.raises(DataError) as caught:
            read(path, **settings)  # type: ignore[arg-type]
        message = str(caught.value)
        wanted = (*words, path.name, "expected:", "got:", "try:")
        return [word for word in wanted if word not in message]

    return lacking
