"""`fedaudit init`: what it writes for a user's data runs as it stands."""

import csv
import json
import tomllib

import numpy as np
import pytest
from PIL import Image

from fedaudit import experiment
from fedaudit.errors import DataError, UsageError
from fedaudit.experiment import study
from fedaudit.experiment.begin import write_config
from fedaudit.experiment.config import load

RNG = np.random.default_rng(3)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "far", "home"]


def hospital_table(folder):
    path = folder / "visits.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["patient_id", "hospital", "region", "age", "sex", "remark", "diagnosis"])
        for i in range(90):
            where = [f"P{i // 2:03d}", f"Saint {i % 5}", f"North {i % 5 % 2}"]
            what = [RNG.integers(20, 90), "mf"[i % 2], f"words number {i}", ["ill", "well"][i % 2]]
            out.writerow([*where, *what])
    return path


def plain_table(folder):
    path = folder / "table.tsv"
    rows = [f"{a:.2f}\t{b:.2f}\t{'yes' if a > b else 'no'}" for a, b in RNG.normal(size=(60, 2))]
    path.write_text("first\tsecond\toutcome\n" + "\n".join(rows) + "\n")
    return path


def gaps(folder):
    path = folder / "gaps.csv"
    rows = [f"{a:.2f};{i % 4 or ''};{i % 2}" for i, a in enumerate(RNG.normal(size=50))]
    path.write_text("a;b;label\n" + "\n".join(rows).replace(".", ",") + "\n")
    return path


def arrays(folder):
    path = folder / "arrays.npz"
    np.savez(path, x=RNG.normal(size=(60, 5)).astype("f4"), y=np.arange(60) % 3)
    return path


def images_of_clients(folder):
    path = folder / "scans.npz"
    owners = np.array([f"site {i % 3}" for i in range(60)])
    x = RNG.random((60, 1, 8, 8)).astype("f4")
    np.savez(path, x=x, y=np.arange(60) % 2, client=owners, x_test=x[:9], y_test=np.arange(9) % 2)
    return path


def texts(length):
    def write(folder):
        path = folder / "notes.jsonl"
        lines = [
            {"text": " ".join(RNG.choice(WORDS, size=length)), "client": f"Anna {i % 4}"}
            for i in range(40)
        ]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
        return path

    return write


def loose_texts(folder):
    path = folder / "posts.jsonl"
    lines = [{"text": " ".join(RNG.choice(WORDS, size=30))} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def folder_of_images(folder):
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(25):
            pixels = RNG.integers(0, 255, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    return folder / "photos"


SMALLER = ["federation.rounds=2"]
QUICK = ["audits.two_stage_membership.records=4", "audits.two_stage_membership.checked_records=2"]
GAMES = [f"audits.active_membership.{k}" for k in ("games=40", "recorded=2", "simulated=50")]
TINY_GPT = [*SMALLER, "task.width=16", "task.depth=1", "task.heads=2"]


@pytest.mark.parametrize(
    ("make", "task", "partition", "clients", "overrides"),
    [
        (hospital_table, "mlp", "by_owner", 5, SMALLER),
        (plain_table, "mlp", "dirichlet", 3, SMALLER),
        (gaps, "mlp", "dirichlet", 2, SMALLER),
        (arrays, "mlp", "dirichlet", 3, SMALLER),
        (images_of_clients, "cnn", "by_owner", 3, SMALLER),
        (texts(60), "gpt", "by_owner", 4, TINY_GPT),
        (texts(7), "gpt", "by_owner", 4, TINY_GPT),
        (loose_texts, "gpt", "iid", 3, TINY_GPT),
        (folder_of_images, "cnn", "dirichlet", 2, SMALLER),
    ],
)
def test_what_init_writes_runs_from_end_to_end(make, task, partition, clients, overrides, tmp_path):
    source, config = make(tmp_path), tmp_path / "fedaudit.toml"
    said = write_config(source, config)
    written = tomllib.loads(config.read_text())
    assert written["task"]["kind"] == task
    assert written["partition"]["kind"] == partition
    assert written["federation"]["clients"] == clients
    assert said[0].startswith("format: ")
    assert any(line.startswith("clients: ") for line in said)
    assert any(line.startswith("task: ") for line in said)
    assert said[-1].endswith(f"fedaudit run {config}")
    fewer = [*overrides, *QUICK, *([] if task == "gpt" else GAMES)]
    done = study.study(study.plan([config], overrides=fewer), tmp_path / "run")
    assert not done.failed
    asked = {"coverage", "fingerprint", "two_stage_membership"}
    asked |= set() if task == "gpt" else {"active_membership"}
    assert [c.variant for c in done.chapters] == ["shuffled", "shuffled, DP-SGD"]
    for run in done.runs:
        assert {f.audit for f in run.findings} == asked
        assert run.summary["federation"].startswith(f"{clients} clients, 2 rounds")


def test_the_columns_of_a_table_are_told_apart(tmp_path):
    config = tmp_path / "c.toml"
    said = write_config(hospital_table(tmp_path), config)
    data = tomllib.loads(config.read_text())["data"]
    assert data["label"] == "diagnosis"
    assert data["client"] == "hospital"
    assert data["organisation"] == "region"
    assert data["person"] == "patient_id"
    assert data["ignore"] == ["remark"]
    assert "# the column is called 'diagnosis'" in config.read_text()
    assert any("free text" in line for line in said)


def test_what_the_user_says_comes_first(tmp_path):
    config = tmp_path / "c.toml"
    said = write_config(hospital_table(tmp_path), config, label="sex", client="region")
    data = tomllib.loads(config.read_text())["data"]
    assert (data["label"], data["client"]) == ("sex", "region")
    assert "organisation" not in data or data["organisation"] != "region"
    assert any("as you said" in line for line in said)
    run = experiment.run(config, tmp_path / "run", overrides=SMALLER)
    assert run.summary["federation"].startswith("2 clients")


def test_the_datas_own_held_out_part_is_used(tmp_path):
    config = tmp_path / "c.toml"
    write_config(images_of_clients(tmp_path), config)
    assert "test_fraction" not in config.read_text()


def test_a_mistake_shows_at_once(tmp_path):
    source = plain_table(tmp_path)
    with pytest.raises(DataError, match="no column 'lable'"):
        write_config(source, tmp_path / "c.toml", label="lable")
    assert not (tmp_path / "c.toml").exists()


def test_without_data_the_built_in_config_is_written(tmp_path):
    config = tmp_path / "c.toml"
    write_config(None, config)
    assert load(config) == load()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_config(None, tmp_path / "file" / "below.toml")
