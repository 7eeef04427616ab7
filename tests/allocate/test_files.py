"""What is written: a table, a document, and a config that runs as it is."""

import csv
import json
import re
import tomllib

import numpy as np
import pytest

from fedaudit.allocate.base import read_base
from fedaudit.errors import ConfigError, UsageError
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import assign_records, load_data
from fedaudit.study.forecast import estimate_cost
from fedaudit.study.run import run as run_config
from fedaudit.trace import Trace, Truth

NAMES = ("Zagreb", "Aachen", "Malmo", "Brno", "Turin", "Cork")


def test_files(allocated, table, tmp_path):
    found = allocated(table, size_column="n", group_column="region", window=4, out=tmp_path / "out")
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
    assert raw["protections"]["dp_sgd"]["noise_multiplier"] == z
    # the names stand there as data, and a run's public config does not keep them
    assert raw["allocation"]["clients"] == list(NAMES)
    with pytest.raises(ConfigError, match="names no data"):
        load(tmp_path / "out" / "dp_sgd.toml")
    raw["data"] = {"path": "data.csv"}
    config = load(raw)
    assert "allocation" not in config.public()
    assert config.raw["allocation"] == {"clients": list(NAMES)}
    assert (config.federation.clients, config.federation.rounds) == (6, 10)
    assert (config.training.batch_size, config.training.steps) == (32, 1)


SIZES = {"west": 90, "east": 60, "north": 30}


@pytest.fixture
def owners(tmp_path, monkeypatch):
    """A folder with data of three owners, a config for them and a table in another order."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [(name, row) for name, n in SIZES.items() for row in rng.normal(size=(n, 3))]
    lines = [
        ",".join([*(f"{v:.4f}" for v in row), name, str(int(row[0] > 0))]) for name, row in rows
    ]
    (tmp_path / "data.csv").write_text("a,b,c,owner,y\n" + "\n".join(lines) + "\n", "utf-8")
    (tmp_path / "clients.csv").write_text("owner,n\nwest,72\nnorth,24\neast,48\n", "utf-8")
    (tmp_path / "mine.toml").write_text(CONFIG, "utf-8")
    return tmp_path


CONFIG = """
seed = 5
[data]
path = "data.csv"
label = "y"
client = "owner"
[partition]
kind = "by_owner"
[task]
kind = "mlp"
hidden = [4]
[federation]
rounds = 2
[training]
epochs = 2
batch_size = 8
[protections.dp_sgd]
clip = 0.5
[audits.coverage]
[compare."two".protections.dp_sgd]
noise_multiplier = 2.0
"""


def table_allocated(allocated, owners, **more):
    setting = {"rounds": None, "batch_size": None, "config": owners / "mine.toml"}
    return allocated(
        owners / "clients.csv", size_column="n", **{**setting, "out": owners / "out", **more}
    )


def test_the_config_keeps_the_comments_of_the_one_it_contains(allocated, owners):
    noted = "# ours, do not edit\n" + CONFIG.replace("hidden = [4]", "hidden = [4]  # small")
    noted = noted.replace("clip = 0.5", "# agreed with the sites\nclip = 0.5  # L2")
    (owners / "mine.toml").write_text(noted, "utf-8")
    table_allocated(allocated, owners)
    text = (owners / "out" / "dp_sgd.toml").read_text(encoding="utf-8")
    lines = text.splitlines()
    for kept in ("# ours, do not edit", "hidden = [4]  # small", "# agreed with the sites"):
        assert kept in lines
    assert "clip = 0.5  # L2" in lines
    z = tomllib.loads(text)["protections"]["dp_sgd"]["noise_multiplier"]
    named = [line.partition("#")[2].strip() for line in lines if line.startswith("  ")]
    assert (len(z), named) == (3, ["west", "north", "east"])


def test_the_config_runs_and_every_client_gets_its_own_noise(allocated, owners):
    """End to end on data with owners, whatever the order of the table."""
    found = table_allocated(allocated, owners)
    assert (found.allocation.rounds, found.allocation.batch_size) == (2, 8)
    raw = tomllib.loads((owners / "out" / "dp_sgd.toml").read_text(encoding="utf-8"))
    mine = tomllib.loads(CONFIG)
    # the file stands in another folder than the config, and paths are relative to it
    mine["data"]["path"] = str(owners / mine["data"]["path"])
    for section in ("data", "partition", "task", "training", "federation", "audits"):
        assert raw[section] == mine[section]
    assert raw["protections"]["dp_sgd"]["clip"] == 0.5
    assert "compare" not in raw
    run_config(owners / "out" / "dp_sgd.toml", owners / "run")
    facts = Truth.open(owners / "run" / "truth").facts
    expected = dict(zip(found.clients, found.allocation.noise_multiplier, strict=True))
    assert len(set(expected.values())) == 3
    declared = Trace.open(owners / "run" / "trace").manifest.declared[0]["noise_multiplier"]
    for z, (party, about) in zip(declared, facts["clients"].items(), strict=True):
        promise = facts["guarantees"]["dp_sgd"][party]
        assert promise["covers"].endswith(f"z = {expected[about['name']]:g}")
        assert z == expected[about["name"]]
    steps = dict(zip(found.clients, found.allocation.steps_per_round.tolist(), strict=True))
    assert steps == {
        about["name"]: 2 * -(-about["examples"] // 8) for about in facts["clients"].values()
    }
    public = (owners / "run" / "config.toml").read_text(encoding="utf-8")
    assert "west" not in public


def test_names_without_a_partner_end_a_run_and_an_allocation(allocated, owners):
    table_allocated(allocated, owners)
    text = (owners / "out" / "dp_sgd.toml").read_text(encoding="utf-8")
    bad = tomllib.loads(text.replace('"west"', '"wets"'))
    with pytest.raises(ConfigError) as caught:
        run_config(bad, owners / "run")
    assert "'wets'" in caught.value.got
    assert "'west'" in caught.value.got
    with pytest.raises(ConfigError, match="same names"):
        estimate_cost(load(bad))
    few = tomllib.loads(text)
    few["federation"]["clients"] = 2
    with pytest.raises(ConfigError, match="same names"):
        estimate_cost(load(few))
    (owners / "clients.csv").write_text("owner,n\nwest,72\nnorth,24\nsouth,48\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        table_allocated(allocated, owners)
    assert "'south'" in caught.value.got
    assert "'east'" in caught.value.got


def test_noise_for_named_owners_needs_their_names(allocated, owners):
    table_allocated(allocated, owners)
    raw = tomllib.loads((owners / "out" / "dp_sgd.toml").read_text(encoding="utf-8"))
    del raw["allocation"]
    with pytest.raises(ConfigError, match="without the clients' names"):
        estimate_cost(load(raw))
    # clients that are numbers go by their order
    raw["partition"], raw["federation"] = {"kind": "iid"}, {"clients": 3, "rounds": 2}
    del raw["data"]["client"]
    assert estimate_cost(load(raw)).clients == 3
    raw["allocation"] = {"clients": ["a", "b", "b"]}
    with pytest.raises(ConfigError, match="does not fit"):
        load(raw)


def test_options_that_contradict_the_config_are_refused(allocated, owners):
    for more in ({"rounds": 3}, {"batch_size": 9}, {"steps_per_round": 1}):
        with pytest.raises(ConfigError, match="differ in"):
            table_allocated(allocated, owners, **more)
    with pytest.raises(UsageError, match="needs rounds"):
        table_allocated(allocated, owners, config=None)


@pytest.mark.parametrize(("size", "fits"), [(71, True), (90, True), (5, False), (7200, False)])
def test_sizes_that_the_data_contradict_are_refused(allocated, owners, size, fits):
    """Held-out records may be counted or left out; which ones they are can move sizes by a few."""
    file = owners / "clients.csv"
    text = file.read_text("utf-8")
    assert "west,72" in text
    file.write_text(text.replace("west,72", f"west,{size}"), "utf-8")
    if fits:
        assert table_allocated(allocated, owners).clients
        return
    with pytest.raises(ConfigError, match="differ from the data") as caught:
        table_allocated(allocated, owners)
    assert caught.value.got == f"west: {size}"
    assert "72" in caught.value.expected
    assert not (owners / "out").exists()


def test_edges_by_name_follow_the_owners_of_the_data(owners):
    (owners / "edges.txt").write_text("west north\nnorth east\n", "utf-8")
    raw = {k: v for k, v in tomllib.loads(CONFIG).items() if k != "compare"}
    names = ["west", "north", "east"]
    raw["topology"] = {"kind": "edge_list", "path": "edges.txt", "clients": names}
    raw["federation"]["aggregation"] = "gossip"
    config = load(raw)
    seed = Seed(config.seed)
    train, _ = load_data(config, seed)
    assignment = assign_records(config, train, seed)
    assert assignment.parts.names == ("east", "north", "west")
    assert assignment.topology.edges == ((0, 1), (1, 2))
    raw["topology"]["clients"] = ["west", "north", "south"]
    with pytest.raises(ConfigError, match="same names"):
        assign_records(load(raw), train, seed)


def test_a_folder_that_cannot_be_written(allocated, table, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write"):
        allocated(table, size_column="n", out=tmp_path / "file")


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label"])
def test_clients_that_a_seed_makes_need_the_seed(allocated, owners, kind):
    """Noise is sized for the clients of the run that follows, or not at all."""
    text = CONFIG.replace('kind = "by_owner"', f'kind = "{kind}"')
    text = text.replace("[federation]", "[federation]\nclients = 3")
    (owners / "mine.toml").write_text(text.replace("seed = 5", ""), "utf-8")
    (owners / "numbered.csv").write_text("n\n1\n2\n3\n", "utf-8")

    def sized():
        setting = {"rounds": None, "batch_size": None, "config": owners / "mine.toml"}
        return allocated(
            owners / "numbered.csv", leverage_by="column:n", out=owners / "out", **setting
        )

    with pytest.raises(ConfigError) as caught:
        sized()
    assert kind in caught.value.got
    (line,) = re.findall(r"seed = \d+", caught.value.remedy)
    assert not (owners / "out").exists()
    (owners / "mine.toml").write_text(text.replace("seed = 5", line), "utf-8")
    sized()
    config = load(owners / "out" / "dp_sgd.toml")
    assert not config.drawn
    run_config(owners / "out" / "dp_sgd.toml", owners / "run")
    facts = Truth.open(owners / "run" / "truth").facts
    sizes = [len(one["records"]) for one in facts["clients"].values()]
    assert read_base(owners / "mine.toml").sizes.tolist() == sizes


def test_owners_in_a_file_need_no_seed(allocated, owners):
    (owners / "mine.toml").write_text(CONFIG.replace("seed = 5", ""), "utf-8")
    assert table_allocated(allocated, owners).path is not None
