from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.files import read, sniff


def test_sniff_finds_the_roles_and_read_accepts_them(patients: Path) -> None:
    guess = sniff(patients)
    assert guess.label == "diagnosis"
    assert guess.client == "hospital"
    assert guess.organisation == "region"
    assert guess.person == "patient_id"
    assert guess.missing == "refuse"
    assert guess.reasons is not None
    assert "'hospital'" in guess.reasons["client"]
    data = read(patients, label=guess.label, client=guess.client, person=guess.person)
    assert len(data) == guess.records_seen == 5


@pytest.mark.parametrize(
    ("header", "label"),
    [("y,a,b", "y"), ("a,Outcome,b", "Outcome"), ("a,b,c", "c"), ("a,my_target,b", "my_target")],
)
def test_sniff_labels(header: str, label: str, write: Callable[..., Path]) -> None:
    assert sniff(write("t.csv", header + "\n1,2,3\n2,1,4\n")).label == label


def test_sniff_suggests_what_to_leave_out_and_how_to_fill(write: Callable[..., Path]) -> None:
    rows = "".join(
        f"{i};note {i};{i % 7},5;{'' if i == 3 else i % 3};;s{i % 2};{i % 2}\n" for i in range(40)
    )
    path = write("t.csv", "row_id;remark;dose;level;empty;site;y\n" + rows)
    guess = sniff(path)
    assert guess.ignore == ("row_id", "remark", "empty")
    assert (guess.decimal, guess.missing, guess.client) == (",", "mean", "site")
    data = read(
        path, label=guess.label, client=guess.client, ignore=guess.ignore,
        missing=guess.missing, decimal=guess.decimal,
    )  # fmt: skip
    assert data.columns == ("dose", "level")


def test_sniff_other_formats(tmp_path: Path, write: Callable[..., Path]) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=[0, 1], client=["a", "b"])
    assert (sniff(tmp_path / "a.npz").format, sniff(tmp_path / "a.npz").client) == ("npz", "client")
    text = write("t.jsonl", '{"text": "a", "user_id": "u"}\n{"text": "b", "user_id": "v"}\n')
    assert (sniff(text).format, sniff(text).client) == ("jsonl", "user_id")
    (tmp_path / "pictures/a").mkdir(parents=True)
    assert sniff(tmp_path / "pictures").format == "images"
