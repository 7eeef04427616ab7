"""From a table of clients to files: names, columns, edges, and a config that runs as it is."""

import csv
import json
import tomllib

import numpy as np
import pytest

from fedaudit.errors import DataError, UsageError
from fedaudit.experiment.allocate import allocate
from fedaudit.experiment.config import load
from fedaudit.protections.noise_allocation import allocate as allocate_noise
from fedaudit.protections.noise_allocation import leverage, shares

TABLE = """\
site,n,region,risk
Zagreb,9930,south,0.5
Aachen,3163,north,0.1
Malmo,2691,north,0
Brno,1807,west,2.5
Turin,655,south,1
Cork,351,west,0.2
"""
NAMES = ("Zagreb", "Aachen", "Malmo", "Brno", "Turin", "Cork")
SIZES = np.array([9930, 3163, 2691, 1807, 655, 351])
RING = "# a ring\nZagreb,Aachen\nAachen,Malmo\nMalmo,Brno\nBrno,Turin\nTurin,Cork\nCork,Zagreb\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def run(table, **more):
    setting = {"rounds": 10, "batch_size": 32, "budget": 0.05, "accountant": "rdp"}
    return allocate(table, **{**setting, **more})


def test_sizes_are_the_published_setting(table):
    found = run(table, size_column="n", rounds=100)
    assert found.clients == NAMES
    assert found.allocation.worst_case == pytest.approx(7.096461855, abs=1e-9)
    assert found.document["leverage"] == "size, to unit mean"
    first = found.document["clients"][0]
    assert first["client"] == "Zagreb"
    assert first["records"] == 9930
    assert first["published_before"] == pytest.approx(9.063117539, abs=1e-9)
    assert first["published_after"] == pytest.approx(7.096461855, abs=1e-9)
    assert [r["less_noise_than_uniform"] for r in found.document["clients"]] == [False] + [True] * 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"group_column": "region"}, np.ones(6)),
        ({"size_column": "n", "leverage_by": "column:risk"}, [0.5, 0.1, 0, 2.5, 1, 0.2]),
        ({"size_column": "n", "group_column": "region"}, (leverage.from_size(SIZES) + 1) / 2),
        (
            {"size_column": "n", "group_column": "region", "leverage_by": "blend:size=3,group=1"},
            (3 * leverage.from_size(SIZES) + 1) / 4,
        ),
        (
            {"size_column": "n", "leverage_by": "blend:size=1,column:risk=1"},
            (leverage.from_size(SIZES) + leverage.unit_mean([0.5, 0.1, 0, 2.5, 1, 0.2])) / 2,
        ),
        ({"edges": RING}, np.ones(6)),
        ({"edges": RING, "leverage_by": "betweenness"}, np.ones(6)),
        ({"edges": RING, "leverage_by": "eigenvector"}, np.ones(6)),
        (
            {"edges": RING, "leverage_by": "degree", "coupling": 0.5, "classes": 10},
            np.full(6, 0.5 * np.log(10)),
        ),
    ],
)
def test_leverages(table, given, expected):
    if "edges" in given:
        (table.parent / "edges.txt").write_text(given["edges"], encoding="utf-8")
        given = {**given, "edges": table.parent / "edges.txt"}
    np.testing.assert_allclose(run(table, **given).allocation.leverage, expected, rtol=1e-9)


def test_options_reach_the_allocation(table):
    found = run(
        table,
        size_column="n",
        weights="size",
        optimise="dataset",
        steps_per_round="epoch",
        delta=1e-6,
        budget=0.5,
    ).allocation
    expected = allocate_noise(
        leverage.from_size(SIZES),
        rounds=10,
        batch_size=32,
        budget=0.5,
        budget_weights=shares(SIZES) ** 2,
        sizes=SIZES,
        delta=1e-6,
        steps_per_round=-(-SIZES // 32),
        optimise="dataset",
        accountant="rdp",
    )
    np.testing.assert_array_equal(found.sigma_squared, expected.sigma_squared)
    np.testing.assert_array_equal(found.epsilon, expected.epsilon)
    assert found.objective == "dataset"


def test_a_target_gives_its_budget(table):
    found = run(table, size_column="n", budget=None, target_worst_case=5.0)
    assert found.allocation.worst_case == pytest.approx(5.0, rel=1e-12)
    assert found.document["target_worst_case"] == 5.0
    assert found.document["budget"] == found.allocation.budget


def test_files(table, tmp_path):
    found = run(table, size_column="n", group_column="region", window=4, out=tmp_path / "out")
    with (tmp_path / "out" / "allocation.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["client"] for r in rows] == list(NAMES)
    z = [float(r["noise_multiplier"]) for r in rows]
    assert z == found.allocation.noise_multiplier.tolist()
    stored = json.loads((tmp_path / "out" / "allocation.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(found.document))
    assert stored["window"]["rounds"] == 4
    assert [s["scale"] for s in stored["scales"]] == [0.5, 1, 2]
    raw = tomllib.loads((tmp_path / "out" / "dp_sgd.toml").read_text(encoding="utf-8"))
    by_name = dict(zip(NAMES, z, strict=True))
    assert raw["protections"]["dp_sgd"]["noise_multiplier"] == [by_name[n] for n in sorted(NAMES)]
    # the names stand there as data, and a run's own config does not keep them
    assert raw["allocation"]["clients"] == sorted(NAMES)
    config = load(tmp_path / "out" / "dp_sgd.toml")
    assert "allocation" not in config.raw
    assert config.protections["dp_sgd"].multiplier(0) == by_name["Aachen"]
    assert (config.federation.clients, config.federation.rounds) == (6, 10)
    assert (config.training.batch_size, config.training.steps) == (32, 1)


def test_the_config_runs_and_every_client_gets_its_own_noise(tmp_path):
    """End to end on data with owners: the order of multipliers is that of the federation."""
    from fedaudit.experiment import run as run_config
    from fedaudit.trace import Truth

    rng = np.random.default_rng(0)
    owners = np.repeat(["west", "east", "north"], [90, 60, 30])
    x = rng.normal(size=(180, 3))
    lines = [
        ",".join([f"{v:.4f}" for v in row] + [owner, str(int(row[0] > 0))])
        for row, owner in zip(x, owners, strict=True)
    ]
    data = tmp_path / "data.csv"
    data.write_text("a,b,c,owner,y\n" + "\n".join(lines) + "\n", encoding="utf-8")
    table = tmp_path / "clients.csv"
    table.write_text("owner,n\nwest,72\neast,48\nnorth,24\n", encoding="utf-8")
    found = run(
        table, size_column="n", client_column="owner", batch_size=8, rounds=2, out=tmp_path / "out"
    )
    text = (tmp_path / "out" / "dp_sgd.toml").read_text(encoding="utf-8")
    config = tomllib.loads(text)
    config["data"] = {"path": str(data), "label": "y", "client": "owner"}
    config["partition"] = {"kind": "by_owner"}
    config["task"] = {"kind": "mlp", "hidden": [4]}
    config["audits"] = {"coverage": {}}
    run_config(config, tmp_path / "run")
    facts = Truth.open(tmp_path / "run" / "truth").facts
    expected = dict(zip(found.clients, found.allocation.noise_multiplier, strict=True))
    assert len(set(expected.values())) == 3
    for party, about in facts["clients"].items():
        promise = facts["guarantees"]["dp_sgd"][party]
        assert promise["covers"].endswith(f"z = {expected[about['name']]:g}")


def test_names_are_found_or_counted(tmp_path):
    def clients(text, **more):
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        return run(path, size_column="n", **more).clients

    assert clients("n,id\n100,x\n200,y\n") == ("x", "y")
    assert clients("n,where\n100,x\n200,y\n") == ("x", "y")
    assert clients("n,where\n100,x\n200,x\n") == ("client-0", "client-1")
    assert clients("n\n100\n200\n") == ("client-0", "client-1")
    assert clients("n,a,b\n100,x,p\n200,y,q\n", client_column="b") == ("p", "q")
    # rows of a table without names are numbered in the edge list
    edges = tmp_path / "e.txt"
    edges.write_text("0 1\n", encoding="utf-8")
    assert len(clients("n\n100\n200\n", edges=edges)) == 2


def test_progress_is_reported_where_it_is_long(table, monkeypatch):
    seen = []
    run(table, size_column="n", progress=lambda *a: seen.append(a))
    assert seen == []
    monkeypatch.setattr("fedaudit.experiment.allocate.WORTH_A_BAR", 6)
    run(table, size_column="n", progress=lambda *a: seen.append(a))
    assert seen == [("epsilon", i, 6, "") for i in range(1, 7)] * 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, UsageError, "needs a leverage"),
        ({"size_column": "m"}, DataError, "no column 'm'"),
        ({"size_column": "region"}, DataError, "line 2.*whole number"),
        ({"group_column": "site"}, DataError, "one member only"),
        ({"leverage_by": "column:region"}, DataError, "line 2"),
        ({"leverage_by": "size"}, UsageError, "--size-column"),
        ({"leverage_by": "group"}, UsageError, "--group-column"),
        ({"leverage_by": "degree"}, UsageError, "--edges"),
        ({"leverage_by": "betweeness"}, UsageError, "did you mean 'betweenness'"),
        ({"leverage_by": "blend:size"}, UsageError, "blend:size=2,group=1"),
        ({"size_column": "n", "leverage_by": "blend:size=1,size=2"}, UsageError, "every name once"),
        ({"size_column": "n", "coupling": 0.5}, UsageError, "--classes"),
        ({"size_column": "n", "coupling": 0.5, "classes": 3}, UsageError, "--leverage degree"),
        ({"size_column": "n", "budget": None}, UsageError, "neither"),
        ({"size_column": "n", "target_worst_case": 5.0}, UsageError, "both"),
        ({"size_column": "n", "budget": -1.0}, UsageError, "above 0"),
        ({"size_column": "n", "batch_size": 400}, UsageError, "'Cork' has 351"),
        ({"group_column": "region", "weights": "size"}, UsageError, "--size-column"),
        ({"group_column": "region", "steps_per_round": "epoch"}, UsageError, "--size-column"),
        ({"group_column": "region", "delta": 1e-5}, UsageError, "sizes"),
        ({"size_column": "n", "client_column": "region"}, DataError, "lines 2, 6"),
        ({"size_column": "n", "window": 0}, UsageError, "at least 1 round"),
    ],
)
def test_bad_input(table, given, error, words):
    import re

    with pytest.raises(error) as caught:
        run(table, **given)
    assert re.search(words, str(caught.value), flags=re.DOTALL)
    assert "try:" in str(caught.value)


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ("Zagreb,Aachen\nMalmo,Brno\n", "4 components: {Zagreb, Aachen} (2); {Malmo, Brno} (2)"),
        ("Zagreb,Achen\n", "unknown client 'Achen'"),
        ("Zagreb\n", "not an edge"),
    ],
)
def test_bad_edges(table, tmp_path, edges, words):
    path = tmp_path / "edges.txt"
    path.write_text(edges, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        run(table, edges=path)
    assert words in str(caught.value)


def test_pieces_can_be_allowed_where_they_make_sense(table, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("Zagreb,Aachen\nZagreb,Malmo\nBrno,Turin\nTurin,Cork\n", encoding="utf-8")
    found = run(table, edges=path, allow_disconnected=True)
    np.testing.assert_allclose(found.allocation.leverage * 8 / 6, [2, 1, 1, 1, 2, 1])
    with pytest.raises(DataError, match="not connected"):
        run(table, edges=path, allow_disconnected=True, leverage_by="eigenvector")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,n\na,100\n", "at least two clients"),
        ("client,n\na,100\na,200\n", "several rows"),
        ("client,n\na,100\n,200\n", "line 3"),
        ("client,n\na,100\nb,nan\n", "line 3"),
        ("client,n\na,100\nb,-5\n", "line 3"),
        ("client,n\na,100\nb,0\n", "at least 1"),
        ("client,n\na,100\nb,1e999\n", "line 3"),
    ],
)
def test_bad_tables(tmp_path, text, words):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((DataError, UsageError), match=words):
        run(path, size_column="n")


def test_a_leverage_column_of_the_users_own_is_checked(tmp_path):
    path = tmp_path / "t.csv"
    for value in ("-0.1", "nan", ""):
        path.write_text(f"client,l\na,1\nb,{value}\n", encoding="utf-8")
        with pytest.raises(DataError, match="line 3"):
            run(path, leverage_by="column:l")


def test_a_folder_that_cannot_be_written(table, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write"):
        run(table, size_column="n", out=tmp_path / "file")
