from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.files import read
from fedaudit.errors import ConfigError, DataError

HOLES = "a,b,site,y\n1,x,s,u\n,x,s,v\n3,?,s,v\nNaN,z,t,u\n"


def test_a_table_with_owners(patients: Path) -> None:
    data = read(
        patients,
        label="diagnosis", client="hospital", organisation="region", person="patient_id",
    )  # fmt: skip
    assert data.name == "patients"
    assert data.columns == ("age", "smoker=former", "smoker=no", "smoker=yes", "bmi")
    np.testing.assert_allclose(
        data.x,
        [
            [61, 0, 0, 1, 24.5],
            [45, 0, 1, 0, 22.1],
            [46, 0, 1, 0, 22.3],
            [70, 1, 0, 0, 31.0],
            [33, 0, 1, 0, 27.25],
        ],
    )
    assert data.x.dtype == np.float32
    assert data.classes == ("sick", "well")
    assert data.y.tolist() == [0, 1, 1, 0, 1]
    assert data.client == ("north",) * 3 + ("south",) * 2
    assert data.organisation == ("A",) * 3 + ("B",) * 2
    assert data.person == ("p1", "p2", "p2", "p3", "p4")


def test_number_labels_are_sorted_as_numbers(write: Callable[..., Path]) -> None:
    data = read(write("t.csv", "a,y\n1,10\n2,9\n3,1.0\n4,1\n"), label="y")
    assert data.classes == ("1", "9", "10")
    assert data.y.tolist() == [2, 1, 0, 0]


def test_misspelt_columns_get_the_nearest(unsaid: Callable[..., list[str]], patients: Path) -> None:
    assert not unsaid(patients, "given as label", "did you mean 'diagnosis'", label="diagnosys")
    assert not unsaid(
        patients, "given as client", "did you mean 'hospital'", label="diagnosis", client="hospitl"
    )
    assert not unsaid(
        patients, "given as ignore", "did you mean 'bmi'", label="diagnosis", ignore=["bim"]
    )
    assert not unsaid(patients, 'label = "diagnosis"')
    assert not unsaid(
        patients, "also listed as a feature", label="diagnosis", features=["diagnosis"]
    )
    assert not unsaid(patients, "without a client", label="diagnosis", organisation="region")
    with pytest.raises(ConfigError, match=r'ignore = \["age"\]'):
        read(patients, label="diagnosis", ignore="age")
    with pytest.raises(ConfigError, match="did you mean 'drop'"):
        read(patients, label="diagnosis", missing="dropp")  # type: ignore[arg-type]


def test_decimal_comma_and_forced_categories(write: Callable[..., Path]) -> None:
    path = write("t.csv", "a;b;y\n1,5;2;u\n-2;1;v\n")
    assert read(path, label="y", decimal=",").x.tolist() == [[1.5, 2], [-2, 1]]
    data = read(path, label="y", decimal=",", categorical=["b"])
    assert data.columns == ("a", "b=1", "b=2")


def test_identifiers_and_measurements_are_not_taken_for_classes(
    write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    rows = "".join(f"{i},name{i},{i * 0.37:.2f},{i % 2}\n" for i in range(60))
    path = write("t.csv", "id,who,value,y\n" + rows)
    assert not unsaid(path, "measurement", label="value")
    assert not unsaid(path, "identifier", label="who")
    assert not unsaid(path, "too many categories", 'ignore = ["who"]', label="y")
    data = read(path, label="y", ignore=["who"])
    assert any("'id'" in note and "identifier" in note for note in data.notes)


def test_missing_values_are_refused_with_their_count(
    write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    path = write("t.csv", HOLES)
    assert not unsaid(
        path, "line 3", "'a' 2", "'b' 1", 'missing = "drop"', label="y", client="site"
    )


def test_missing_values_dropped_filled_or_marked(write: Callable[..., Path]) -> None:
    path = write("t.csv", HOLES)
    dropped = read(path, label="y", client="site", missing="drop", ignore=["b"])
    assert dropped.x.tolist() == [[1], [3]]
    assert dropped.client == ("s", "s")
    assert "2 of 4 records dropped" in dropped.notes[0]
    mean = read(path, label="y", client="site", missing="mean")
    assert mean.columns == ("a", "b=x", "b=z", "b=(missing)")
    assert mean.x.tolist() == [[1, 1, 0, 0], [2, 1, 0, 0], [3, 0, 0, 1], [2, 0, 1, 0]]
    marked = read(path, label="y", client="site", missing="category")
    assert marked.columns == ("a", "a=(missing)", "b=x", "b=z", "b=(missing)")
    assert marked.x[:, 1].tolist() == [0, 1, 0, 1]
    assert "filled" in marked.notes[0]


def test_an_empty_column_and_a_missing_owner_cannot_be_filled(
    write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    path = write("t.csv", "a,e,site,y\n1,,s,u\n2,,,v\n")
    for how in ("mean", "drop"):
        assert not unsaid(path, "'e' is empty", 'ignore = ["e"]', label="y", missing=how)
    assert not unsaid(
        path, "line 3", "client", label="y", client="site", missing="mean", ignore=["e"]
    )


def test_a_client_belongs_to_one_organisation(
    write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    path = write("t.csv", "a,c,o,y\n1,k,A,u\n2,k,B,v\n")
    assert not unsaid(path, "line 3", "two organisations", label="y", client="c", organisation="o")


@pytest.mark.parametrize("label", [None, "client"])
def test_texts_in_a_table_are_sent_to_where_texts_are_read(tmp_path: Path, label: str) -> None:
    lines = [f"the patient of bed {i} came in at night with a fever,site{i % 2}" for i in range(8)]
    file = tmp_path / "notes.csv"
    file.write_text("\n".join(["text,client", *lines]) + "\n", encoding="utf-8")
    owner = {} if label else {"client": "client"}
    with pytest.raises(DataError, match=r"'text' holds texts: save them as a \.jsonl"):
        read(file, label=label, **({"ignore": ["text"]} if label else owner))


def test_a_folder_of_texts_is_sent_to_where_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("one document", encoding="utf-8")
    with pytest.raises(DataError, match=r"texts into one \.jsonl file"):
        read(tmp_path / "notes")
