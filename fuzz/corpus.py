"""Whole files of every kind, small: a folder for each target."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.decide.gate import write_example
from fedaudit.protections.guard.calibration import SHIPPED
from fedaudit.study import run as run_one
from fedaudit.study.seal import seal
from fedaudit.study.study import plan, study

HOSPITALS = ("north", "south", "east", "west")


def table(file: Path, rows: int = 96) -> Path:
    rng = np.random.default_rng(3)
    lines = ["hospital,age,dose,outcome"]
    for i in range(rows):
        lines.append(f"{HOSPITALS[i % 4]},{rng.integers(20, 90)},{rng.normal():.3f},{'ab'[i % 2]}")
    file.write_text("\n".join(lines) + "\n")
    return file


def config(data: Path, **more: Any) -> dict[str, Any]:
    """Four hospitals, three rounds, a linear model."""
    return {
        "seed": 11,
        "data": {"path": str(data), "label": "outcome", "client": "hospital"},
        "partition": {"kind": "by_owner"},
        "federation": {"rounds": 3},
        "training": {"batch_size": 8, "epochs": 1},
        "protections": {"shuffle": {}, "dp_sgd": {"noise_multiplier": 1.0, "clip": 1.0}},
        "audits": {"coverage": {}, "fingerprint": {}},
        **more,
    }


def build(root: Path) -> None:
    """Make every folder of the corpus below `root`."""
    root.mkdir(parents=True)
    data = table(root / "hospitals.csv")
    run_one(config(data), root / "run")
    (root / "run" / "promised.json").write_text(_promised(root / "run"))
    seal(root / "run", "results")
    _stopped(root / "half", data)
    compared = config(data, compare={"base": "plain", "quiet": {"federation": {"rounds": 2}}})
    del compared["protections"]
    study(plan([compared]), root / "study")
    masked = config(
        data, protections={"secure_aggregation": {"threshold": 2}}, audits={"coverage": {}}
    )
    run_one(masked, root / "sums")
    _policies(root / "policies")
    _configs(root / "configs", data)
    _plans(root / "plans")
    _tables(root / "data")
    _sites(root / "sites")
    _models(root / "models")
    _loose(root / "loose")


def _stopped(folder: Path, data: Path) -> None:
    """A run that was interrupted after two of its three rounds."""

    def progress(stage: str, done: int, _: int, __: str) -> None:
        if stage == "train" and done == 2:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        run_one(config(data), folder, progress=progress)


def _promised(run: Path) -> str:
    from fedaudit.trace import Trace

    guarantee = {"epsilon": 3.0, "delta": 1e-5, "unit": "record", "relation": "add_or_remove"}
    by_client = dict.fromkeys(("client-0", "client-1"), guarantee)
    kept = {"trace_sha256": Trace.open(run / "trace").sha256, "guarantees": {"opacus": by_client}}
    return json.dumps(kept)


def _policies(folder: Path) -> None:
    folder.mkdir()
    write_example(folder / "policy.toml")
    (folder / "limits.toml").write_text(
        '[policy]\nconfidence = 0.9\nallow_missing = ["links"]\n'
        '[[limit]]\nname = "links"\nmetric = "fingerprint.linkage_accuracy"\nat_most = 0.9\n'
        '[[limit]]\nmetric = "epsilon"\nat_most = 90.0\nunit = "record"\ndelta_at_most = 1e-3\n'
        '[[limit]]\nmetric = "accuracy"\nat_least = 0.1\n'
        '[[limit]]\nmetric = "coverage.verdict"\nforbid = ["disagreement"]\n'
    )


def _configs(folder: Path, data: Path) -> None:
    from fedaudit.setup.toml import to_toml
    from fedaudit.study.study import built_in_text

    folder.mkdir()
    (folder / "own.toml").write_text(to_toml(config(data)))
    for name in ("digits", "docs"):
        (folder / f"{name}.toml").write_text(built_in_text(name))
    (folder / "edges.csv").write_text("0,1\n1,2\n2,3\n3,0\n")


def _plans(folder: Path) -> None:
    folder.mkdir()
    (folder / "plan.csv").write_text("round,a,b,c,d\n1,1,1,0,0\n1,0,0,1,1\n2,1,0,1,0\n2,0,1,0,1\n")
    (folder / "bare.csv").write_text("1,1,0\n0,1,1\n")
    (folder / "clients.csv").write_text("client,size,region\na,100,x\nb,200,x\nc,400,y\nd,50,y\n")
    (folder / "edges.txt").write_text("a b\nb c\nc,d\n")


def _tables(folder: Path) -> None:
    folder.mkdir()
    table(folder / "own.csv")
    (folder / "own.tsv").write_text((folder / "own.csv").read_text().replace(",", "\t"))
    (folder / "own.csv.gz").write_bytes(gzip.compress((folder / "own.csv").read_bytes()))
    rng = np.random.default_rng(1)
    y = np.arange(20) % 2
    np.savez(folder / "own.npz", x=rng.random((20, 3)), y=y, client=np.array(list("ab") * 10))
    np.savez_compressed(folder / "image.npz", x=rng.random((6, 4, 4)), y=np.arange(6) % 2)
    lines = [json.dumps({"text": f"word {i} again", "label": "pq"[i % 2]}) for i in range(12)]
    (folder / "own.jsonl").write_text("\n".join(lines) + "\n")
    pixels = rng.integers(0, 255, (6, 5, 5)).astype(np.uint8)
    idx = folder / "idx"
    idx.mkdir()
    images = struct.pack(">4B3I", 0, 0, 8, 3, *pixels.shape) + pixels.tobytes()
    labels = struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes([0, 1, 0, 1, 0, 1])
    (idx / "train-images-idx3-ubyte").write_bytes(images)
    (idx / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    from PIL import Image

    for i, (kind, end) in enumerate([("a", "png"), ("a", "bmp"), ("b", "png"), ("b", "gif")]):
        (folder / "images" / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i]).save(folder / "images" / kind / f"{i}.{end}")


def _sites(folder: Path) -> None:
    folder.mkdir()
    guess = {"question": "q", "source": "s", "vantage": "server", "settings": {"clients": 2}}
    labels = {"cosine": [[0, 1], [1, 0]]}
    linked = {"messages": [["d0", "d1"], ["d2", "d3"]], "labels": labels, "methods": ["cosine"]}
    scores = {**guess, "statistic": "loss", "scores": {"0" * 64: [0.1, 0.2, None, 0.4]}}
    raw = {
        "format": "fedaudit-guesses",
        "version": 1,
        "audits": {
            "fingerprint": {**guess, **linked, "rounds": [1, 2]},
            "two_stage_membership": scores,
        },
        "trace_sha256": "0" * 64,
        "layout": {"tensors": [{"name": "w", "shape": [2]}], "dtype": "float32"},
        "federation": "f",
    }
    (folder / "guesses.json").write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")
    from fedaudit.sites.files import sha256

    for site in ("a", "b"):
        links = {"cosine": {"links": 4, "found": 3, "expected": 2.0}}
        pairs = {"loss": {"members": 2, "others": 1, "ordered": 1.5}}
        counts = {
            "format": "fedaudit-counts",
            "version": 1,
            "site": site,
            "guesses_sha256": sha256(folder / "guesses.json"),
            "audits": {"fingerprint": links, "two_stage_membership": pairs},
        }
        (folder / f"counts-{site}.json").write_text(json.dumps(counts))
    key = {"format": "fedaudit-key", "version": 1, "asked_sha256": "0" * 64}
    key["member"] = [True, False, True, False]
    (folder / "key.json").write_text(json.dumps(key))
    with (folder / "asked.npz").open("wb") as file:
        np.savez(file, party="client-0", x=np.ones((3, 2)), y=[0, 1, 0], classes=["a", "b"])


def _models(folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir()
    rng = np.random.default_rng(2)
    state = {
        "0.weight": rng.normal(size=(8, 6)).astype(np.float32),
        "0.bias": rng.normal(size=8).astype(np.float32),
        "2.weight": rng.normal(size=(3, 8)).astype(np.float32),
    }
    save_file(state, folder / "model.safetensors")
    np.savez(folder / "model.npz", **state)
    raw = json.loads(SHIPPED.read_text())
    raw["runs"] = raw["runs"][:20]
    (folder / "calibration.json").write_text(json.dumps(raw))


def _loose(folder: Path) -> None:
    from fedaudit.data.fetch.sources import SOURCES
    from fedaudit.setup.identity import code_sha256

    folder.mkdir()
    history = {"history": [[1.0, 0.1, 20]], "mechanism": "rdp"}
    (folder / "opacus.json").write_text(json.dumps(history))
    cell = {"fedaudit": "0", "code": code_sha256(), "measured": {"a.b": [0.1, 0.0, 0.2, None]}}
    (folder / "cell.json").write_text(json.dumps(cell))
    (folder / "running.part").write_text(json.dumps({"pid": os.getpid(), "began": 1, "host": None}))
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "app"\n[tool.flwr.app.components]\nserverapp = "own.server:app"\n'
        'clientapp = "own.client:app"\n[tool.flwr.app.config]\nrounds = 3\n'
    )
    for name in ("server", "client"):
        (folder / "own").mkdir(exist_ok=True)
        (folder / "own" / f"{name}.py").write_text("app = 1\n")
    wanted = SOURCES["mnist"]
    about = {"fedaudit_data": 1, "package_sha256": wanted.sha256, "records": 4}
    about["classes"] = list("0123456789")
    pixels = np.zeros((4, 1, 3, 3), dtype=np.uint8)
    y = np.arange(4)
    with (folder / wanted.filename).open("wb") as out:
        np.savez(out, about=np.array(json.dumps(about)), x=pixels, y=y, test_x=pixels, test_y=y)
