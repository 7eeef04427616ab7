"""`fedaudit init` for a folder of tables, for frames, and where a guess stays open."""

import gzip
import stat
import tomllib

import numpy as np
import pandas as pd
import pytest

from fedaudit.data.files import read
from fedaudit.errors import DataError, UsageError
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import load_data
from fedaudit.study.init import init

RNG = np.random.default_rng(5)


def rows(count, extra=""):
    """Lines of age, pressure, anything extra, and an outcome."""
    return "".join(
        f"{RNG.integers(20, 90)},{RNG.normal(120, 9):.1f},{extra}{i % 2}\n" for i in range(count)
    )


def sites(folder, names=("leeds", "mayo", "ucl"), header="age,bp,outcome\n", suffix=".csv"):
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}{suffix}").write_text(header + rows(20))
    return folder


def written(chosen):
    return tomllib.loads(chosen.text)["data"]


def data_of(chosen):
    train, test = load_data(load(chosen.path), Seed(1))
    return train, test


def test_a_folder_of_tables_has_a_client_per_table(tmp_path):
    folder = sites(tmp_path / "hospitals")
    with gzip.open(folder / "yale.csv.gz", "wt") as file:
        file.write("outcome,age,bp\n1,33,101.5\n0,44,120.1\n" * 1)
    (folder / "README.txt").write_text("what the columns mean")
    chosen = init(folder, tmp_path / "c.toml")
    assert written(chosen)["client"] == "(file)"
    assert chosen.why("client").startswith("one table per site; 4 in 62 records")
    train, test = data_of(chosen)
    assert {*train.client, *test.client} == {"leeds", "mayo", "ucl", "yale"}
    assert train.columns == ("age", "bp")


def test_an_audit_that_could_not_answer_is_off_with_the_reason(tmp_path):
    """Few large sites: half of the held-out records are fewer than one site trains on."""
    few = init(sites(tmp_path / "few"), tmp_path / "few.toml")
    assert "membership" not in tomllib.loads(few.text)["audits"]
    assert "# [audits.membership]" in few.text
    (why,) = [c.value for c in few.choices if str(c.value).startswith("membership is off: ")]
    assert "its shadows draw from 6 held-out records" in why
    many = init(sites(tmp_path / "many", [f"s{i}" for i in range(20)]), tmp_path / "many.toml")
    assert "membership" in tomllib.loads(many.text)["audits"]


def test_a_busy_machine_switches_no_audit_off(tmp_path, monkeypatch):
    """Prices are held against the reference machine: the same tables give the same config."""
    folder = sites(tmp_path / "many", [f"s{i}" for i in range(20)])
    monkeypatch.setattr("fedaudit.study.forecast._slowness", lambda: 1.0)
    idle = init(folder, tmp_path / "idle.toml")
    monkeypatch.setattr("fedaudit.study.forecast._slowness", lambda: 50.0)
    busy = init(folder, tmp_path / "busy.toml")
    assert tomllib.loads(busy.text)["audits"] == tomllib.loads(idle.text)["audits"]


def test_tables_without_a_header_keep_what_their_names_do_not_share(tmp_path):
    names = [f"processed.{n}" for n in ("cleveland", "hungarian", "va")]
    folder = sites(tmp_path / "heart", names, header="", suffix=".data")
    (folder / "raw.data").write_text("1 2 3 4 5\n" * 9)
    with pytest.raises(DataError, match=r"raw\.data in .* has other columns") as refused:
        init(folder, tmp_path / "c.toml")
    assert 'files = "processed.*"' in refused.value.remedy
    chosen = init(folder, tmp_path / "c.toml", files="processed.*", label="column 3")
    train, test = data_of(chosen)
    assert {*train.client, *test.client} == {"cleveland", "hungarian", "va"}
    assert len(train) + len(test) == 60


@pytest.mark.parametrize(
    ("layout", "client", "organisation"),
    [
        (["a/patients", "b/patients"], "(folder)", None),
        (["north/leeds", "north/york", "south/bath"], "(file)", "(folder)"),
        (["a/2023", "a/2024", "b/2025"], "(folder)", None),
    ],
)
def test_a_folder_of_folders_tells_sites_from_their_parts(layout, client, organisation, tmp_path):
    for name in layout:
        place = tmp_path / "all" / f"{name}.tsv"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(("age,bp,outcome\n" + rows(20)).replace(",", "\t"))
    data = written(init(tmp_path / "all", tmp_path / "c.toml"))
    assert (data["client"], data.get("organisation")) == (client, organisation)


@pytest.mark.parametrize(
    ("column", "client"),
    [
        ("Hospital", True),
        ("treating_hospital_id", True),
        ("site", True),
        ("Centre", True),
        ("bankName", True),
        ("branch no", True),
        ("clinic of admission", True),
        ("Krankenhaus", True),
        ("hospital_beds", False),
        ("bank_balance", False),
        ("n_sites", False),
        ("age", False),
    ],
)
def test_the_head_of_a_name_tells_owners_from_what_they_own(column, client, tmp_path):
    file = tmp_path / "t.csv"
    lines = [f"{RNG.normal():.3f},{i % 2},{i % 4}" for i in range(60)]
    # last, where a label is usually looked for
    file.write_text(f"x,group of outcome,{column}\n" + "\n".join(lines) + "\n")
    data = written(init(file, tmp_path / "c.toml"))
    assert data.get("client") == (column if client else None)
    if client:
        assert data["label"] != column


def test_a_second_owner_column_is_never_a_feature(tmp_path):
    file = tmp_path / "t.csv"
    lines = [f"{RNG.normal():.3f},h{i % 4},c{i % 4},b{i % 3},{i % 2}" for i in range(60)]
    file.write_text("x,hospital,city,bank,outcome\n" + "\n".join(lines) + "\n")
    chosen = init(file, tmp_path / "c.toml")
    data = written(chosen)
    assert data["client"] == "hospital"
    assert set(data["ignore"]) == {"city", "bank"}  # the city says which hospital it is
    assert "client: hospital is a guess; `client=bank`?" in str([c.value for c in chosen.choices])


def test_an_open_guess_is_asked_once_and_only_if_nothing_was_said(tmp_path):
    file = tmp_path / "t.csv"
    lines = [f"{RNG.normal():.3f},h{i % 4},b{i % 3},{i % 2}" for i in range(60)]
    file.write_text("x,hospital,bank,outcome\n" + "\n".join(lines) + "\n")
    asked = []

    def last(question):
        asked.append(question)
        return question.options[-1]

    data = written(init(file, tmp_path / "c.toml", ask=last))
    assert data["client"] == "bank"
    assert [(q.setting, q.options) for q in asked] == [("client", ("hospital", "bank"))]
    init(file, tmp_path / "c.toml", client="bank", ask=last, force=True)
    assert len(asked) == 1


def test_a_frame_is_written_for_its_owner_alone_and_never_over_another_file(tmp_path):
    frame = pd.DataFrame(
        {"x": RNG.normal(size=40), "site": list("abcd") * 10, "y": [0, 1, 1, 0] * 10}
    )
    chosen = init(frame, tmp_path / "c.toml", label="y", client="site")
    place = tmp_path / "c.csv"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert chosen.choices[0].kind == "note"
    assert np.allclose(np.sort(read(place, label="y", client="site").x[:, 0]), np.sort(frame.x))
    (tmp_path / "c.toml").unlink()
    with pytest.raises(UsageError, match=r"c\.csv exists already"):
        init(frame, tmp_path / "c.toml", label="y")
    with pytest.raises(UsageError, match="of a kind that init does not know"):
        init([1, 2], tmp_path / "d.toml")


def test_frames_by_site_become_one_table_with_their_names(tmp_path):
    frames = {
        name: pd.DataFrame({"x": RNG.normal(size=20), "y": [0, 1] * 10}) for name in ("a", "b")
    }
    chosen = init(frames, tmp_path / "c.toml", label="y")
    assert chosen["client"] == "site"
    assert chosen["clients"] == 2


def test_the_path_of_a_config_is_relative_to_the_config(tmp_path, monkeypatch):
    folder = sites(tmp_path / "here" / "hospitals")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    chosen = init("here/hospitals", "configs/c.toml")
    assert written(chosen)["path"] == "../here/hospitals"
    monkeypatch.chdir(folder)
    train, _ = load_data(load(tmp_path / "configs" / "c.toml"), Seed(1))
    assert len(train) == 48
    assert "here" not in str(load(tmp_path / "configs" / "c.toml").public())


def test_an_error_in_a_folder_names_the_file(tmp_path):
    folder = sites(tmp_path / "hospitals")
    with (folder / "mayo.csv").open("a") as file:
        file.write("oops,1.0,1\n")
    with pytest.raises(DataError, match=r"hospitals, line 22 of mayo\.csv"):
        init(folder, tmp_path / "c.toml")


@pytest.mark.parametrize("suffix", [".parquet", ".xlsx"])
def test_parquet_and_excel_read_as_the_same_table(suffix, tmp_path):
    library = {".parquet": "pyarrow", ".xlsx": "openpyxl"}[suffix]
    frame = pd.DataFrame({"x": [1.5, None, 3.0], "n": [1, 2, 3], "y": ["no", "yes", "no"]})
    file = tmp_path / f"t{suffix}"
    try:
        __import__(library)
    except ImportError:
        file.write_bytes(b"anything")
        with pytest.raises(DataError, match=f"needs {library}") as refused:
            read(file, label="y")
        assert "fedaudit[tables]" in refused.value.remedy
        return
    (frame.to_parquet if suffix == ".parquet" else frame.to_excel)(file, index=False)
    data = read(file, label="y", missing="mean")
    assert data.classes == ("no", "yes")
    assert data.columns == ("x", "n")
    assert np.allclose(data.x, [[1.5, 1], [2.25, 2], [3, 3]])
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match="cannot be read"):
        read(file, label="y")
