"""`fedaudit init`: what it writes for a user's data runs as it stands."""

import csv
import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.setup.config import load
from fedaudit.setup.toml import to_toml
from fedaudit.study import run as run_one
from fedaudit.study import study
from fedaudit.study.forecast import estimate_cost
from fedaudit.study.init import init

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


def lines_of(chosen):
    return "\n".join(choice.line for choice in chosen.choices)


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
    chosen = init(source, config)
    written = tomllib.loads(config.read_text())
    assert written["task"]["kind"] == task
    assert written["partition"]["kind"] == partition
    assert written["federation"]["clients"] == clients
    assert (chosen.path, chosen.text) == (config, config.read_text())
    assert chosen["clients"] == clients
    assert chosen["task"].startswith(task)
    assert chosen.choices[0].setting == "format"
    assert all(chosen.why(setting) for setting in ("clients", "task"))
    fewer = [*overrides, *QUICK, *GAMES]
    done = study.study(study.plan([config], overrides=fewer), tmp_path / "run")
    assert not done.failed
    asked = set(written["audits"])
    assert asked >= {"coverage", "fingerprint", "two_stage_membership", "active_membership"}
    # a corpus that is too small to mark has it off
    assert ("[audits.attribution]" in config.read_text()) == (task == "gpt")
    hidden = "secure aggregation"
    assert [c.variant for c in done.chapters] == ["as it is", hidden, f"{hidden}, DP-SGD"]
    for run in done.runs:
        assert {f.audit for f in run.findings} >= asked
        assert run.summary["federation"].startswith(f"{clients} clients, 2 rounds")


def test_the_columns_of_a_table_are_told_apart(tmp_path):
    config = tmp_path / "c.toml"
    chosen = init(hospital_table(tmp_path), config)
    data = tomllib.loads(config.read_text())["data"]
    assert data["label"] == "diagnosis"
    assert data["client"] == "hospital"
    assert data["organisation"] == "region"
    assert data["person"] == "patient_id"
    assert data["ignore"] == ["remark"]
    assert "# the column is called 'diagnosis'" in config.read_text()
    assert chosen["ignore"] == "remark"
    assert "free text" in chosen.why("ignore")


def test_the_columns_of_a_comparison_ask_about_the_same_attack(tmp_path):
    """One adversary for the whole row, and it plants in the federation's own model everywhere."""
    config = tmp_path / "c.toml"
    init(hospital_table(tmp_path), config)
    text = config.read_text()
    variants = study.plan([config])
    assert len(variants) == 3
    assert {v.config.audits["active_membership"].adversary for v in variants} == {"auto"}
    parts = [estimate_cost(v.config) for v in variants]
    stages = [s for p in parts for s in p.stages if s.name == "active_membership"]
    assert [s.missing for s in stages] == [None] * 3
    # what is off says so in lines that an editor shows whole
    assert "Off:" in text
    assert max(map(len, text.splitlines())) <= 120


def test_what_the_user_says_comes_first(tmp_path):
    config = tmp_path / "c.toml"
    chosen = init(hospital_table(tmp_path), config, label="sex", client="region")
    data = tomllib.loads(config.read_text())["data"]
    assert (data["label"], data["client"]) == ("sex", "region")
    assert "organisation" not in data or data["organisation"] != "region"
    assert {chosen.why(role) for role in ("label", "client")} == {"as you said"}
    run = run_one(load(config, overrides=SMALLER), tmp_path / "run")
    assert run.summary["federation"].startswith("2 clients")


def test_the_datas_own_held_out_part_is_used(tmp_path):
    config = tmp_path / "c.toml"
    init(images_of_clients(tmp_path), config)
    assert "test_fraction" not in config.read_text()


def test_a_mistake_shows_at_once(tmp_path):
    source = plain_table(tmp_path)
    with pytest.raises(DataError, match="no column 'lable'"):
        init(source, tmp_path / "c.toml", label="lable")
    assert not (tmp_path / "c.toml").exists()


def test_without_data_the_built_in_config_is_written(tmp_path):
    config = tmp_path / "c.toml"
    init(None, config)
    assert load(config) == load()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        init(None, tmp_path / "file" / "below.toml")


def test_thorough_takes_more_of_everything(tmp_path):
    config = tmp_path / "c.toml"
    for make in (hospital_table, texts(60)):
        init(make(tmp_path), config, force=True)
        for usual, more in zip(
            study.plan([config]), study.plan([config], thorough=True), strict=True
        ):
            a, b = usual.config, more.config
            assert b.federation.rounds == 3 * a.federation.rounds
            stage = "two_stage_membership"
            assert b.audits[stage].records > a.audits[stage].records
            if make is hospital_table:
                assert b.audits["active_membership"].games > a.audits["active_membership"].games
            assert list(a.audits) == list(b.audits)


def test_what_a_fill_does_and_to_whom_it_shows_is_said(tmp_path):
    source, config = gaps(tmp_path), tmp_path / "c.toml"
    said = lines_of(init(source, config))
    for text in (said, config.read_text()):
        assert "becomes the mean of its column" in text
        assert 'category "(missing)"' in text
        assert "over the records of all clients" in text
        assert "no epsilon covers it" in text
    said = lines_of(init(source, config, missing="drop", force=True))
    assert tomllib.loads(config.read_text())["data"]["missing"] == "drop"
    assert "missing: drop (as you said; " in said
    assert "no epsilon" not in said


def test_a_label_with_gaps_can_be_dropped_by_the_option_that_the_message_names(tmp_path):
    source, config = gaps(tmp_path), tmp_path / "c.toml"
    with pytest.raises(DataError, match="is missing") as refused:
        init(source, config, label="b")
    assert refused.value.remedy.endswith("`missing=drop`")
    init(source, config, label="b", missing="drop")
    assert load(config).data["missing"] == "drop"
    with pytest.raises(UsageError, match="`missing`") as refused:
        init(source, config, missing="median", force=True)
    with pytest.raises(UsageError, match="`missing`") as refused:
        init(arrays(tmp_path), config, missing="drop", force=True)
    assert "leave `missing` out" in refused.value.remedy


def test_a_quantity_as_label_is_doubted(tmp_path):
    source = tmp_path / "ages.csv"
    rows = [f"{20 + i % 60},{i % 7},{i % 2}" for i in range(180)]
    source.write_text("age,b,outcome\n" + "\n".join(rows) + "\n")
    (doubt,) = init(source, tmp_path / "c.toml", label="age").doubts
    assert "age has 60 different numbers" in doubt
    # seven classes may be classes
    assert init(source, tmp_path / "c.toml", label="b", force=True).doubts == ()


def test_images_have_no_label_to_name(tmp_path):
    with pytest.raises(UsageError, match="no label to name") as refused:
        init(folder_of_images(tmp_path), tmp_path / "c.toml", label="x")
    assert refused.value.got == "`label=x`"
    assert "folder of an image is its class" in refused.value.expected


def test_a_name_that_toml_cannot_hold_leaves_no_config_behind(in_process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff\xfe.csv")
    Path(name).write_text("a,y,hospital\n1,0,h\n2,1,g\n")
    done = in_process("init", name, "--label", "y", "--client", "hospital", "--out", "on.toml")
    assert (done.code, "expected:" in done.err, Path("on.toml").exists()) == (3, True, False)
    with pytest.raises(ConfigError, match="cannot be written"):
        to_toml({"topology": {"path": name}})
