from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.data.builtin import load
from fedaudit.data.files import describe, idx_array, read, sniff
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed

PATIENTS = """\
patient_id,hospital,region,age,smoker,bmi,diagnosis
p1,north,A,61,yes,24.5,sick
p2,north,A,45,no,22.1,well
p2,north,A,46,no,22.3,well
p3,south,B,70,former,31.0,sick
p4,south,B,33,no,27.25,well
"""


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def refused(path: Path, *words: str, **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **settings)  # type: ignore[arg-type]
    message = str(caught.value)
    for word in (*words, path.name, "expected:", "got:", "try:"):
        assert word in message
    return message


# ---------------------------------------------------------------- tables


def test_a_table_with_owners(tmp_path: Path) -> None:
    data = read(
        write(tmp_path, "patients.csv", PATIENTS),
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


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_delimiters_line_ends_and_byte_order_marks(tmp_path: Path, mark: str, ending: str) -> None:
    text = PATIENTS.replace(",", mark).replace("\n", ending)
    plain = read(write(tmp_path, "a.csv", PATIENTS), label="diagnosis")
    other = read(write(tmp_path, "b.csv", text, "utf-8-sig"), label="diagnosis")
    assert other.columns == plain.columns
    assert np.array_equal(other.x, plain.x)


def test_gzip_quotes_and_selected_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b'a,"b, or c",y\n1,"x, y",0\n\n2,"line\nbreak",1\n'))
    data = read(path, label="y", features=["b, or c"])
    assert data.columns == ("b, or c=line\nbreak", "b, or c=x, y")
    assert data.x.tolist() == [[0, 1], [1, 0]]
    assert read(path, label="y", ignore=["b, or c"]).columns == ("a",)


def test_number_labels_are_sorted_as_numbers(tmp_path: Path) -> None:
    data = read(write(tmp_path, "t.csv", "a,y\n1,10\n2,9\n3,1.0\n4,1\n"), label="y")
    assert data.classes == ("1", "9", "10")
    assert data.y.tolist() == [2, 1, 0, 0]


def test_the_index_that_pandas_writes_is_left_out(tmp_path: Path) -> None:
    data = read(write(tmp_path, "t.csv", ",a,y\n0,5,u\n1,6,v\n"), label="y")
    assert data.columns == ("a",)
    assert "left out" in data.notes[0]
    refused(write(tmp_path, "u.csv", ",a,y\n7,5,u\n1,6,v\n"), "no name", label="y")


def test_misspelt_columns_get_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "patients.csv", PATIENTS)
    refused(path, "given as label", "did you mean 'diagnosis'", label="diagnosys")
    refused(path, "given as client", "did you mean 'hospital'", label="diagnosis", client="hospitl")
    refused(path, "given as ignore", "did you mean 'bmi'", label="diagnosis", ignore=["bim"])
    refused(path, 'label = "diagnosis"')
    refused(path, "also listed as a feature", label="diagnosis", features=["diagnosis"])
    refused(path, "without a client", label="diagnosis", organisation="region")
    with pytest.raises(ConfigError, match=r'ignore = \["age"\]'):
        read(path, label="diagnosis", ignore="age")
    with pytest.raises(ConfigError, match="did you mean 'drop'"):
        read(path, label="diagnosis", missing="dropp")  # type: ignore[arg-type]


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
        ("a,y\n1,u\n2,u\n", ("one class only",)),
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
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    refused(write(tmp_path, "t.csv", text), *words, label="y")


def test_decimal_comma_and_forced_categories(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "a;b;y\n1,5;2;u\n-2;1;v\n")
    assert read(path, label="y", decimal=",").x.tolist() == [[1.5, 2], [-2, 1]]
    data = read(path, label="y", decimal=",", categorical=["b"])
    assert data.columns == ("a", "b=1", "b=2")


def test_identifiers_and_measurements_are_not_taken_for_classes(tmp_path: Path) -> None:
    rows = "".join(f"{i},name{i},{i * 0.37:.2f},{i % 2}\n" for i in range(60))
    path = write(tmp_path, "t.csv", "id,who,value,y\n" + rows)
    refused(path, "measurement", label="value")
    refused(path, "identifier", label="who")
    refused(path, "too many categories", 'ignore = ["who"]', label="y")
    data = read(path, label="y", ignore=["who"])
    assert any("'id'" in note and "identifier" in note for note in data.notes)


def test_not_utf8_and_binary_files_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "a,y\n1,u\n2,é\n", "latin-1")
    refused(path, "line 3", "UTF-8", label="y")
    (tmp_path / "b.csv").write_bytes(b"a,y\0\0\0\n1,2\n")
    refused(tmp_path / "b.csv", "binary", label="y")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a,y\n1,2\n")[:-6])
    refused(tmp_path / "c.csv.gz", "gzip", label="y")


HOLES = "a,b,site,y\n1,x,s,u\n,x,s,v\n3,?,s,v\nNaN,z,t,u\n"


def test_missing_values_are_refused_with_their_count(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", HOLES)
    refused(path, "line 3", "'a' 2", "'b' 1", 'missing = "drop"', label="y", client="site")


def test_missing_values_dropped_filled_or_marked(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", HOLES)
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


def test_an_empty_column_and_a_missing_owner_cannot_be_filled(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "a,e,site,y\n1,,s,u\n2,,,v\n")
    for how in ("mean", "drop"):
        refused(path, "'e' is empty", 'ignore = ["e"]', label="y", missing=how)
    refused(path, "line 3", "client", label="y", client="site", missing="mean", ignore=["e"])


def test_a_client_belongs_to_one_organisation(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "a,c,o,y\n1,k,A,u\n2,k,B,v\n")
    refused(path, "line 3", "two organisations", label="y", client="c", organisation="o")


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
    import csv

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


# ---------------------------------------------------------------- arrays


def test_npz_features_images_and_text(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(
        path, x=np.eye(3), y=[5, 7, 5], client=["a", "b", "b"], x_test=np.eye(3)[:1], y_test=[7]
    )
    data = read(path)
    assert (data.kind, data.classes, data.y.tolist()) == ("features", ("5", "7"), [0, 1, 0])
    assert data.client == ("a", "b", "b")
    assert data.test is not None
    assert data.test.y.tolist() == [1]

    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(path, x=pixels, y=["cat", "dog"])
    data = read(path)
    assert data.kind == "image"
    np.testing.assert_allclose(data.x, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    assert data.classes == ("cat", "dog")

    np.savez(path, x=np.array(["one", "two"]))
    assert read(path).x == ("one", "two")


def test_npz_refusals(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}, []], dtype=object), y=[0, 1])
    refused(path, "'x' holds Python objects")
    np.savez(path, x=np.eye(2))
    refused(path, "no array 'y'")
    np.savez(path, x=np.eye(2), y=[0, 1], klient=["a", "b"])
    refused(path, "did you mean 'klient'", client="client")
    np.savez(path, x=np.eye(2), y=np.eye(2))
    refused(path, "argmax")
    np.savez(path, x=np.eye(2), y=[0.0, np.nan])
    refused(path, "missing labels")
    np.savez(path, x=np.full((2, 3, 3), 200.0), y=[0, 1])
    refused(path, "not scaled", "200")
    np.savez(path, x=np.array([["a", "b"], ["c", "d"]]), y=[0, 1])
    refused(path, "does not hold numbers")
    path.write_bytes(b"PK no zip")
    refused(path, "numpy.savez")


# ---------------------------------------------------------------- IDX


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def test_idx_pair_and_folder(tmp_path: Path) -> None:
    pixels = np.arange(3 * 2 * 2).reshape(3, 2, 2)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(idx(pixels))
    refused(images, "labels file")
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([0, 2, 1]))))
    data = read(images)
    np.testing.assert_allclose(data.x[:, 0], pixels / 255, rtol=1e-6)
    assert data.y.tolist() == [0, 2, 1]
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(pixels[:1]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([3])))
    data = read(tmp_path)
    assert data.test is not None
    assert data.classes == data.test.classes == ("0", "1", "2", "3")
    images.write_bytes(idx(pixels)[:-1])
    refused(images, "torn", "28 bytes", "27 bytes")
    images.write_bytes(idx(pixels[:2]))
    refused(images, "do not fit")
    images.write_bytes(b"hello")
    refused(images, "not an IDX file")
    with pytest.raises(ConfigError, match="leave client out"):
        read(images, client="x")


def test_idx_of_other_types() -> None:
    raw = struct.pack(">BBBBI2f", 0, 0, 0x0D, 1, 2, 1.5, -2.0)
    assert idx_array(raw, "here").tolist() == [1.5, -2.0]


# ---------------------------------------------------------------- images


def picture(path: Path, colour: object, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new(mode, size, colour).save(path)


def test_image_folders(tmp_path: Path) -> None:
    picture(tmp_path / "cat/1.png", (255, 0, 0))
    picture(tmp_path / "cat/2.png", (0, 255, 0))
    picture(tmp_path / "dog/1.png", (0, 0, 255))
    (tmp_path / "dog/notes.txt").write_text("not an image")
    data = read(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.y.tolist() == [0, 0, 1]
    assert data.x.shape == (3, 3, 3, 4)  # records, channels, height, width
    assert data.x[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert read(tmp_path, greyscale=True, size=(2, 6)).x.shape == (3, 1, 2, 6)

    picture(tmp_path / "dog/2.png", (0, 0, 9), size=(5, 3))
    with pytest.raises(DataError, match=r"2\.png has another size") as caught:
        read(tmp_path)
    assert "size = [3, 4]" in str(caught.value)
    assert read(tmp_path, size=(3, 4)).x.shape == (4, 3, 3, 4)
    (tmp_path / "dog/2.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"2\.png cannot be read"):
        read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read(tmp_path)


def test_image_folders_with_their_own_test_part(tmp_path: Path) -> None:
    for part in ("train", "test"):
        picture(tmp_path / part / "a/1.png", 0, mode="L")
        picture(tmp_path / part / "b/1.png", 255, mode="L")
    data = read(tmp_path)
    assert data.x.shape == (2, 1, 3, 4)
    assert data.test is not None
    assert data.test.x.max() == 1.0
    picture(tmp_path / "test/c/1.png", 255, mode="L")
    refused(tmp_path, "do not fit")


# ---------------------------------------------------------------- text


def lines(*records: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


def test_jsonl(tmp_path: Path) -> None:
    text = lines(
        {"text": "a\u2028b", "client": "x", "label": 1}, {"text": "c", "client": "y", "label": 0}
    )
    data = read(write(tmp_path, "t.jsonl", text + "\n"))
    assert data.x == ("a\u2028b", "c")
    assert data.client == ("x", "y")
    assert (data.classes, data.y.tolist()) == (("0", "1"), [1, 0])
    bare = read(write(tmp_path, "u.jsonl", lines({"body": "a"}, {"body": "b"})), text="body")
    assert (bare.classes, bare.client, bare.y.tolist()) == ((), None, [0, 0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty file",)),
        ('{"text": "a"}\n{"text": \n', ("line 2", "not JSON")),
        ('{"text": "a"}\n[1]\n', ("line 2", "not an object")),
        ('{"text": "a"}\n{"txt": "b"}\n', ("line 2", "did you mean 'txt'")),
        ('{"text": "a"}\n{"text": 5}\n', ("line 2", "there is no text", "5")),
        ('{"text": "a", "client": "x"}\n\n{"text": "b"}\n', ("line 3", "client is missing")),
    ],
)
def test_what_is_wrong_in_jsonl_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    refused(write(tmp_path, "t.jsonl", text), *words)


def test_other_files(tmp_path: Path) -> None:
    write(tmp_path, "patients.csv", PATIENTS)
    refused(tmp_path / "patient.csv", "did you mean 'patients.csv'")
    refused(write(tmp_path, "t.xlsx", ""), "save it as CSV")
    refused(write(tmp_path, "t.pkl", ""), "numpy.savez")


# ---------------------------------------------------------------- summaries


def test_describe_counts(tmp_path: Path) -> None:
    data = read(write(tmp_path, "p.csv", PATIENTS), label="diagnosis", client="hospital")
    summary = describe(data)
    assert summary["records"] == 5
    assert summary["classes"] == {"sick": 2, "well": 3}
    assert summary["clients"]["sizes"] == {"north": 3, "south": 2}
    assert (summary["clients"]["count"], summary["clients"]["largest"]) == (2, 3)
    assert summary["features"] == data.x.shape[1]
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    docs = describe(load("docs", seed=Seed(0)))
    assert docs["characters"] > 400_000
    assert "shape" not in docs


def test_sniff_finds_the_roles_and_read_accepts_them(tmp_path: Path) -> None:
    path = write(tmp_path, "p.csv", PATIENTS)
    guess = sniff(path)
    assert guess.label == "diagnosis"
    assert guess.client == "hospital"
    assert guess.organisation == "region"
    assert guess.person == "patient_id"
    assert guess.missing == "refuse"
    assert guess.reasons is not None
    assert "'hospital'" in guess.reasons["client"]
    data = read(path, label=guess.label, client=guess.client, person=guess.person)
    assert len(data) == guess.records_seen == 5


@pytest.mark.parametrize(
    ("header", "label"),
    [("y,a,b", "y"), ("a,Outcome,b", "Outcome"), ("a,b,c", "c"), ("a,my_target,b", "my_target")],
)
def test_sniff_labels(tmp_path: Path, header: str, label: str) -> None:
    assert sniff(write(tmp_path, "t.csv", header + "\n1,2,3\n2,1,4\n")).label == label


def test_sniff_suggests_what_to_leave_out_and_how_to_fill(tmp_path: Path) -> None:
    rows = "".join(
        f"{i};note {i};{i % 7},5;{'' if i == 3 else i % 3};;s{i % 2};{i % 2}\n" for i in range(40)
    )
    path = write(tmp_path, "t.csv", "row_id;remark;dose;level;empty;site;y\n" + rows)
    guess = sniff(path)
    assert guess.ignore == ("row_id", "remark", "empty")
    assert (guess.decimal, guess.missing, guess.client) == (",", "mean", "site")
    data = read(
        path, label=guess.label, client=guess.client, ignore=guess.ignore,
        missing=guess.missing, decimal=guess.decimal,
    )  # fmt: skip
    assert data.columns == ("dose", "level")


def test_sniff_other_formats(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=[0, 1], client=["a", "b"])
    assert (sniff(tmp_path / "a.npz").format, sniff(tmp_path / "a.npz").client) == ("npz", "client")
    text = write(
        tmp_path, "t.jsonl", lines({"text": "a", "user_id": "u"}, {"text": "b", "user_id": "v"})
    )
    assert (sniff(text).format, sniff(text).client) == ("jsonl", "user_id")
    (tmp_path / "pictures/a").mkdir(parents=True)
    assert sniff(tmp_path / "pictures").format == "images"
