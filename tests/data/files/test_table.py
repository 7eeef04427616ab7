from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.data.files import read
from fedaudit.data.files.table import read_table
from fedaudit.errors import DataError


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_delimiters_line_ends_and_byte_order_marks(
    mark: str, ending: str, write: Callable[..., Path], patients: Path
) -> None:
    text = patients.read_text().replace(",", mark).replace("\n", ending)
    plain = read(patients, label="diagnosis")
    other = read(write("b.csv", text, "utf-8-sig"), label="diagnosis")
    assert other.columns == plain.columns
    assert np.array_equal(other.x, plain.x)


def test_gzip_quotes_and_selected_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b'a,"b, or c",y\n1,"x, y",0\n\n2,"line\nbreak",1\n'))
    data = read(path, label="y", features=["b, or c"])
    assert data.columns == ("b, or c=line\nbreak", "b, or c=x, y")
    assert data.x.tolist() == [[0, 1], [1, 0]]
    assert read(path, label="y", ignore=["b, or c"]).columns == ("a",)


def test_the_index_that_pandas_writes_is_left_out(
    write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    data = read(write("t.csv", ",a,y\n0,5,u\n1,6,v\n"), label="y")
    assert data.columns == ("a",)
    assert "left out" in data.notes[0]
    assert not unsaid(write("u.csv", ",a,y\n7,5,u\n1,6,v\n"), "no name", label="y")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty file",)),
        ("a,y\n", ("header line only",)),
        ("1,2,3\n4,5,6\n", ("header line is missing", "line 1")),
        ("a,a,y\n1,2,3\n", ("called 'a'",)),
        ("a,,y\n1,2,3\n", ("column 2 has no name",)),
        ("a,y\n1,u\n2,v,w\n", ("line 3", "3 fields", "a comma")),
        ("a,b,y\n1,2,u\n\n2,v\n", ("line 4", "2 fields", "3 fields")),
        ('a,y\n"x\ny",u\n2\n', ("line 4", "1 fields")),
        ("a,y\n1,u\n2,u\n", ("only one class",)),
        ("y\nu\nv\n", ("no feature columns",)),
        ("a,y\n1,u\n2,v\nx,v\n", ("line 4", "'x' in column 'a'", 'categorical = ["a"]')),
        ("a,y\n1,u\n2,v\ninf,v\n", ("line 4", "'inf'")),
        ("a,y\n1,u\n2,v\n1_0,v\n", ("line 4", "'1_0'")),
        ("a,y\n1,u\n2,v\n1e39,v\n", ("line 4", "too large")),
        ("a;y\n1,5;u\n2;v\n", ("line 2", 'decimal = ","')),
        ("a,y\n1,u\n2,\n", ("line 3", "label")),
    ],
)
def test_what_is_wrong_in_a_table_is_named(
    text: str, words: tuple[str, ...], write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    assert not unsaid(write("t.csv", text), *words, label="y")


def test_not_utf8_and_binary_files_are_told(
    tmp_path: Path, write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    path = write("t.csv", "a,y\n1,u\n2,é\n", "latin-1")
    assert not unsaid(path, "line 3", "UTF-8", label="y")
    (tmp_path / "b.csv").write_bytes(b"a,y\0\0\0\n1,2\n")
    assert not unsaid(tmp_path / "b.csv", "binary", label="y")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a,y\n1,2\n")[:-6])
    assert not unsaid(tmp_path / "c.csv.gz", "gzip", label="y")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6, width=32), st.sampled_from(["red", "green", "b, l", 'q"q'])),
        min_size=2,
        max_size=15,
    )
)
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["value", "colour", "y"])
        writer.writerows([repr(v), c, i % 2] for i, (v, c) in enumerate(rows))
    data = read(path, label="y")
    np.testing.assert_array_equal(data.x[:, 0], np.array([v for v, _ in rows], dtype=np.float32))
    for i, (_, colour) in enumerate(rows):
        (one,) = np.flatnonzero(data.x[i, 1:])
        assert data.columns[1 + one] == f"colour={colour}"


@pytest.mark.parametrize("where", [10, 5_000])
def test_a_nul_anywhere_is_refused(tmp_path: Path, where: int) -> None:
    rows = "\n".join(f"{i},{i % 2}" for i in range(2_000))
    text = "a,b\n" + rows
    (tmp_path / "t.csv").write_text(text[:where] + "\0" + text[where:])
    with pytest.raises(DataError, match="not a text table"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("rows", [3, 20_000])
def test_a_quotation_mark_that_is_never_closed_is_named_by_its_line(
    tmp_path: Path, end: str, rows: int
) -> None:
    """The message shows nothing of the swallowed records."""
    text = 'name,y\nann,0\nbob,1\n"eve,0\n' + "\n".join(f"zoe{i},1" for i in range(rows)) + end
    (tmp_path / "t.csv").write_text(text, newline="")
    with pytest.raises(DataError, match="line 4: ") as caught:
        read(tmp_path / "t.csv", label="y")
    assert "zoe" not in str(caught.value)


def test_errors_quote_the_beginning_of_a_cell_only(tmp_path: Path) -> None:
    swallowed = "\n".join(f"zoe{i},1" for i in range(50))
    (tmp_path / "t.csv").write_text(f'a,y\n1,"u{swallowed}"\n')
    with pytest.raises(DataError, match="only one class") as caught:
        read(tmp_path / "t.csv", label="y")
    assert "zoe9" not in str(caught.value)
    (tmp_path / "t.csv").write_text("3.5,1\n2.5,0\n")
    with pytest.raises(DataError, match="header line is missing") as caught:
        read(tmp_path / "t.csv", label="y")
    assert "3.5" not in str(caught.value)
