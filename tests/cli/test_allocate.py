"""`fedaudit allocate` as a user with a spreadsheet meets it."""

import csv
import json
import random
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


def test_the_printed_command_runs_on_the_users_own_data(command, tmp_path):
    """init, allocate, then what `next:` says: with the config's data, rounds and batches."""
    rng = random.Random(0)
    rows = [
        f"{rng.gauss(0, 1):.3f},{rng.gauss(0, 1):.3f},{name},{rng.choice(('yes', 'no'))}"
        for name, n in (("Zagreb", 60), ("Aachen", 50), ("Malmo", 40), ("Brno", 30))
        for _ in range(n)
    ]
    (tmp_path / "data.csv").write_text("a,b,hospital,y\n" + "\n".join(rows) + "\n", "utf-8")
    (tmp_path / "hospitals.csv").write_text("name\nZagreb\nBrno\nAachen\nMalmo\n", "utf-8")
    line = "allocate hospitals.csv --budget 0.05 --accountant rdp"
    assert command("init data.csv --label y --client hospital")[0] == 0
    code, out, _ = command(line)
    assert code == 0
    (following,) = [x for x in out.splitlines() if x.startswith("next: fedaudit ")]
    change = " --set federation.rounds=2 --set training.epochs=1 -q"
    assert command(following.removeprefix("next: fedaudit ") + change)[0] == 0
    truth = json.loads(
        (tmp_path / "fedaudit-allocation-run" / "truth" / "truth.json").read_text("utf-8")
    )
    about = truth["clients"].values()
    assert sorted(one["name"] for one in about) == ["Aachen", "Brno", "Malmo", "Zagreb"]
    with (tmp_path / "fedaudit-allocation" / "allocation.csv").open(encoding="utf-8") as file:
        noise = {row["client"]: float(row["noise_multiplier"]) for row in csv.DictReader(file)}
    for party, one in truth["clients"].items():
        promise = truth["guarantees"]["dp_sgd"][party]
        assert promise["covers"].endswith(f"z = {noise[one['name']]:g}")
    (tmp_path / "fedaudit.toml").unlink()
    code, out, _ = command(USUAL)
    assert code == 0
    assert "fedaudit run" not in out  # nothing is known of any data


OPTIONS = """
clients = "clients.csv"
size-column = "n"
group_column = "region"
rounds = 100
batch = 32
budget = 0.05
accountant = "rdp"
json = true
"""


def test_options_of_a_file_are_as_if_typed_and_what_is_typed_wins(command, tmp_path):
    (tmp_path / "noise.toml").write_text(OPTIONS, encoding="utf-8")
    typed = command(USUAL + " --accountant rdp --json")
    assert typed[0] == 0
    assert command("allocate --options noise.toml") == typed
    other = json.loads(command("allocate --options noise.toml --rounds 7 --budget 0.5")[1])
    assert (other["rounds"], other["budget"]) == (7, 0.5)
    assert other["accountant"] == "rdp"


def test_paths_in_a_file_of_options_start_at_its_folder(command, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "clients.csv").rename(tmp_path / "kept" / "clients.csv")
    text = OPTIONS + 'out = "noise"\n'
    (tmp_path / "kept" / "noise.toml").write_text(text, encoding="utf-8")
    assert command("allocate --options kept/noise.toml")[0] == 0
    assert (tmp_path / "kept" / "noise" / "allocation.csv").is_file()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("rouns = 3", "did you mean 'rounds'?"),
        ("rounds = 1.5", "--rounds"),
        ("rounds = [1]", "expected: a number, or a text in quotes"),
        ("rounds = true", "expected: a number, or a text in quotes"),
        ("quiet = 1", "expected: true or false"),
        ('group-column = "a"\norganisation-column = "b"', "is given twice"),
        ('weights = "sizes"', "--weights"),
        ('options = "other.toml"', "is not an option of this command"),
        ("rounds = ", "cannot read the options"),
    ],
)
def test_a_file_of_options_is_checked_like_the_command(command, tmp_path, line, part):
    (tmp_path / "noise.toml").write_text(line + "\n", encoding="utf-8")
    code, out, err = command("allocate clients.csv --options noise.toml")
    assert (code, out) == (2, "")
    assert part in err
    assert not (tmp_path / "fedaudit-allocation").exists()


def test_a_missing_file_of_options_is_named(command):
    code, _, err = command("allocate clients.csv --options absent.toml")
    assert code == 2
    assert "absent.toml" in err
