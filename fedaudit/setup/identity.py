"""Identity of a run's inputs: digests of its data, of files named in settings and of user code.

Settings themselves are compared elsewhere, key by key. This module covers what settings only name,
such as a truncated file or an edited module. Contents count; file names and times do not.

    DIR/truth/identity.json    digests: private, since they confirm guesses
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit import shapes
from fedaudit.codec import to_json
from fedaudit.data import builtin, files
from fedaudit.errors import DataError, FedauditError
from fedaudit.files import (
    Unreadable,
    is_lost,
    make_folder,
    read_object,
    sha256_of,
    write_atomically,
)
from fedaudit.foreign import source_files
from fedaudit.randomness import Seed
from fedaudit.settings import check_arguments
from fedaudit.setup.config import Config

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset

FILE = "identity.json"
FRESH = "restore the inputs, run into another folder with `out`, or start over with `fresh=True`"

_FILE = re.compile(r"[/\\]|\.\w{1,8}\Z")
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def check_and_store(
    folder: Path, configs: Iterable[Config], *, begun: bool, audits: bool = False
) -> None:
    """Check that `folder` belongs to these data, files and code, and store their digests there.

    `begun`: the folder already holds results. A difference then raises a DataError that names it.
    `audits`: include files named in audit settings; otherwise each result stores its own.
    """
    file = folder / "truth" / FILE
    now = identity_of(configs, audits=audits)
    before = {} if is_lost(file) else read_object(file, shapes.IDENTITY)
    if begun and not before:
        raise DataError(
            f"the inputs of {folder} are not known",
            expected=f"{file}, with digests of its data and code",
            got="no such file, or an empty one",
            remedy=FRESH,
        )
    if begun:
        changed = [c for name in now for c in _changes(name, before, now)]
        if changed:
            raise DataError(
                f"{folder} was made of something else",
                expected="the data, files and code that it began with",
                got="changed since: " + "; ".join(changed),
                remedy=FRESH,
            )
    kept = {name: {**(before.get(name, {}) if begun else {}), **now[name]} for name in now}
    if kept != before:
        make_folder(folder / "truth", private=True)
        write_atomically(file, to_json(kept, sort_keys=True) + "\n", private=True)


def identity_of(configs: Iterable[Config], *, audits: bool = False) -> dict[str, dict[str, Any]]:
    """Digests and sizes of data and files, by the setting that names them, and of user code.

    `audits`: include the files named in audit settings.
    """
    data: dict[str, Any] = {}
    files: dict[str, Any] = {}
    code: dict[str, Any] = {}
    wanted = list(configs)
    # a single data set may move; several are told apart by their paths
    moves = len({str(c.data.get("path")) for c in wanted}) == 1
    for config in wanted:
        named = {k: v for k, v in config.data.items() if k not in ("test_fraction", "standardise")}
        drawn = None if "path" in named else config.seed  # built-in sets may be drawn
        asked = json.dumps([named, drawn], sort_keys=True, default=str)
        key = asked
        if moves and "path" in named:
            key = json.dumps([{**named, "path": ""}, drawn], sort_keys=True, default=str)
        data[hashlib.sha256(key.encode()).hexdigest()[:16]] = _data_identity(asked)
        # audits can be added later: each result stores the code that made it
        own = {k: v for k, v in config.raw.items() if k != "audits"}
        code |= {where: code_identity(where) for where in code_named_in(own)}
        files |= files_named_in(
            {k: v for k, v in (config.raw if audits else own).items() if k != "data"}
        )
    return {"data": data, "files": files, "code": code}


def _changes(
    name: str, before: Mapping[str, Any], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    old = before.get(name, {})
    for key, new in now[name].items():
        if key in old and old[key] != new:
            if name == "data":
                yield f"data ({_sizes(old[key], new)})"
            else:
                gone = f" ({GONE})" if new == GONE else ""
                yield f"code of {key}" if name == "code" else f"file of {key}{gone}"


def _sizes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """How the sizes of two data sets differ, without names."""
    parts = [
        f"{new.get(what)} {what} where there were {old.get(what)}"
        for what in ("records", "clients", "columns")
        if old.get(what) != new.get(what)
    ]
    return ", ".join(parts) or "as many records, with other contents"


# -- data ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _loaded_identity(key: str, stamp: Any) -> dict[str, Any]:
    named, seed = json.loads(key)
    if "path" in named:
        path = named.pop("path")
        dataset = files.read(path, **check_arguments(files.read, named, "data"))
    else:
        dataset = builtin.load(named.pop("name"), seed=Seed(seed), **named)
    return {
        "sha256": digest(dataset, *([dataset.test] if dataset.test is not None else [])),
        "records": len(dataset) + (0 if dataset.test is None else len(dataset.test)),
        "clients": None if dataset.client is None else len(set(dataset.client)),
        "columns": None if isinstance(dataset.x, tuple) else int(np.prod(dataset.x.shape[1:])),
    }


def _data_identity(key: str) -> dict[str, Any]:
    """Digest and sizes of a dataset, read once per process while its files stay untouched."""
    named, _ = json.loads(key)
    return _loaded_identity(key, file_stamps(named))


def file_stamps(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Stamps of the files of a data section, which change when one is touched."""
    places = [Path(str(data[k])) for k in ("path", "labels") if data.get(k) is not None]
    return tuple(map(_stamps, places))


def _stamps(place: Path) -> tuple[Any, ...]:
    """Stamps that change when a file, or a file of a folder, is touched within this process."""
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    found = []
    for file in files:
        try:
            s = file.stat()
        except OSError:
            continue
        found.append((str(file), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
    return tuple(found)


def digest(*parts: Dataset) -> str:
    """A hash of all records, labels and owners."""
    made = hashlib.sha256()

    def add(texts: Sequence[str]) -> None:
        made.update(f"{len(texts)};".encode())
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            made.update(f"{len(raw)}:".encode() + raw)

    for part in parts:
        if isinstance(part.x, tuple):
            add(part.x)
        else:
            made.update(f"{part.x.shape}{part.x.dtype}".encode())
            made.update(np.ascontiguousarray(part.x).data)
        made.update(np.ascontiguousarray(part.y).data)
        for column in (part.client, part.organisation, part.person):
            add(column if column is not None else ())
        add(part.classes)
        add(part.columns)
    return made.hexdigest()


# -- files ---------------------------------------------------------------------------------------

GONE = "nothing there"


def files_named_in(values: Any, at: str = "") -> dict[str, str]:
    """ "setting = path" -> digest, for every text in a config's values that names a file or folder.

    A path without a file is included too: a removed file counts as a change.
    """
    found: dict[str, str] = {}
    if isinstance(values, Mapping):
        for key, value in values.items():
            found |= files_named_in(value, f"{at}.{key}" if at else str(key))
    elif isinstance(values, list | tuple):
        for value in values:
            found |= files_named_in(value, at)
    elif isinstance(values, str | os.PathLike):
        text = os.fspath(values)
        named = at.endswith("path") or _FILE.search(text) or os.path.isfile(text)
        # a parent of the working directory would include the run itself, which grows
        around = os.path.isdir(text) and Path.cwd().is_relative_to(Path(text).resolve())
        if named and not around and not _CODE.match(text):
            found[f"{at} = {text}"] = contents_of(text)
    return found


def contents_of(place: str | os.PathLike[str]) -> str:
    """Hash of a file, or of the names and contents of all files in a folder; else `GONE`."""
    if not os.path.exists(place):
        return GONE
    root = Path(place)
    files = sorted(f for f in root.rglob("*") if f.is_file()) if root.is_dir() else [root]
    made = hashlib.sha256()
    for file in files:
        made.update(f"{file.relative_to(root)}:{_hash(file)};".encode("utf-8", "surrogateescape"))
    return made.hexdigest()


def _hash(file: Path) -> str:
    try:
        return sha256_of(file)
    except (OSError, Unreadable) as error:
        return type(error).__name__  # the code that reads the file reports the error


# -- code ----------------------------------------------------------------------------------------


def code_named_in(values: Any) -> list[str]:
    """Every `package.module:name` in a config's values."""
    if isinstance(values, Mapping):
        return sorted({w for v in values.values() for w in code_named_in(v)})
    if isinstance(values, list | tuple):
        return sorted({w for v in values for w in code_named_in(v)})
    return [values] if isinstance(values, str) and _CODE.match(values) else []


def code_identity(where: str) -> str:
    """Hash of the file that `where` names and of the user's own files that it imports or names."""
    try:
        files = source_files(where)
    except FedauditError:
        return "cannot be found"  # not code, or the code that loads it reports the error
    made = hashlib.sha256()
    for name, file in files.items():
        made.update(f"{name}:{_hash(file)};".encode("utf-8", "surrogateescape"))
    return made.hexdigest()


@functools.cache
def code_sha256() -> str:
    """Hash of fedaudit's own code: results of other code are computed again."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
