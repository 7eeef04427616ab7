"""`fedaudit allocate` as a user with a spreadsheet meets it."""

import json
import tomllib

import pytest

TABLE = "client,n,region\na,9930,s\nb,3163,n\nc,2691,n\nd,1807,w\ne,655,s\nf,351,w\n"


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    """Run `fedaudit ...` in this process and in a folder with a table of clients."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients.csv").write_text(TABLE, encoding="utf-8")

    return lambda line: in_process(*line.split())


USUAL = (
    "allocate clients.csv --size-column n --group-column region --rounds 100 --batch 32 "
    "--budget 0.05"
)


def test_the_usual_command(command, tmp_path):
    code, out, err = command(USUAL)
    assert (code, err) == (0, "")
    for part in ("K* =", "not a guarantee", "Vacuous", "0.5 x", "2 x", "who pays", "epsilon"):
        assert part in out
    folder = tmp_path / "fedaudit-allocation"
    assert sorted(f.name for f in folder.iterdir()) == [
        "allocation.csv",
        "allocation.json",
        "dp_sgd.toml",
    ]
    raw = tomllib.loads((folder / "dp_sgd.toml").read_text(encoding="utf-8"))
    assert len(raw["protections"]["dp_sgd"]["noise_multiplier"]) == 6
    again = command(USUAL + " --out elsewhere --quiet")
    assert again[0] == 0
    first = (folder / "allocation.json").read_bytes()
    assert (tmp_path / "elsewhere" / "allocation.json").read_bytes() == first


def test_json_on_standard_output(command):
    code, out, _ = command(USUAL + " --leverage size --json --accountant rdp --window 10")
    assert code == 0
    document = json.loads(out)
    assert document["worst_case"] == pytest.approx(7.096461855, abs=1e-9)
    assert document["window"]["rounds"] == 10


def test_a_target_instead_of_a_budget(command):
    line = USUAL.replace("--budget 0.05", "--target-worst-case 8 --leverage size --json")
    code, out, _ = command(line + " --accountant rdp")
    assert code == 0
    document = json.loads(out)
    assert document["worst_case"] == pytest.approx(8)
    assert 0.01 < document["budget"] < 0.05


def test_the_other_options(command, tmp_path):
    (tmp_path / "edges.txt").write_text("a b\nb c\nc d\nd e\ne f\n", encoding="utf-8")
    line = (
        "allocate clients.csv --size-column n --organisation-column region --rounds 5 --batch 32 "
        "--budget 9 --edges edges.txt --leverage blend:degree=1,group=2 --weights size "
        "--optimise dataset --delta 1e-6 --steps-per-round epoch --accountant rdp --json"
    )
    code, out, err = command(line)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["leverage"] == "0.333 degree + 0.667 group, each to unit mean"
    assert (document["objective"], document["budget_counts"]) == ("dataset", "size")
    assert document["delta"] == 1e-6
    assert max(document["steps_per_round"]) == 311


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (USUAL.replace("--budget 0.05", "--budget 0"), 2, "above 0"),
        (USUAL.replace("--budget 0.05", ""), 2, "--target-worst-case"),
        (USUAL.replace("--batch 32", "--batch 400"), 2, "'f' has 351 records"),
        (USUAL.replace("--size-column n", "--size-column m"), 3, "no column 'm'"),
        (USUAL.replace("region", "client"), 3, "one member only"),
        (USUAL + " --steps-per-round many", 2, "whole number, or epoch"),
        (USUAL + " --edges none.txt", 3, "cannot be read"),
        (USUAL + " --weights wrong", 2, "wrong"),
        (USUAL.replace("clients.csv", "none.csv"), 3, "cannot be read"),
    ],
)
def test_mistakes_end_with_a_message_and_a_code(command, line, code, words):
    got, _, err = command(line)
    assert got == code
    assert words in err
    assert "Traceback" not in err
