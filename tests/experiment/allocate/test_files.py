"""What is written: a table, a document, and a config that runs as it is."""

import csv
import json
import tomllib

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.experiment.config import load

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
    by_name = dict(zip(NAMES, z, strict=True))
    assert raw["protections"]["dp_sgd"]["noise_multiplier"] == [by_name[n] for n in sorted(NAMES)]
    # the names stand there as data, and a run's own config does not keep them
    assert raw["allocation"]["clients"] == sorted(NAMES)
    config = load(tmp_path / "out" / "dp_sgd.toml")
    assert "allocation" not in config.raw
    assert config.protections["dp_sgd"].multiplier(0) == by_name["Aachen"]
    assert (config.federation.clients, config.federation.rounds) == (6, 10)
    assert (config.training.batch_size, config.training.steps) == (32, 1)


def test_the_config_runs_and_every_client_gets_its_own_noise(allocated, tmp_path):
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
    found = allocated(
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


def test_a_folder_that_cannot_be_written(allocated, table, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write"):
        allocated(table, size_column="n", out=tmp_path / "file")
