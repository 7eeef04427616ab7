"""What a run is about: the contents of its data, of the files that its settings name and of the
user's own code.

Settings are compared elsewhere, key by key. Here stands what settings only name: a file that was
halved, a module that was edited. Names and times do not count, contents do.

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
from fedaudit.setup.config import Config

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset

FILE = "identity.json"
FRESH = "restore what has changed, run into another folder with --out, or start anew with --fresh"

_FILE = re.compile(r"[/\\]|\.\w{1,8}\Z")
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def settle(folder: Path, configs: Iterable[Config], *, begun: bool, audits: bool = False) -> None:
    """See that `folder` is about these data, files and this code, and remember them.

    `begun`: something was computed there already. Then a difference is a DataError that names it.
    `audits`: files that settings of audits name count too; else each result knows its own.
    """
    file = folder / "truth" / FILE
    now = identity_of(configs, audits=audits)
    before = {} if is_lost(file) else read_object(file, shapes.IDENTITY)
    if begun and not before:
        raise DataError(
            f"what {folder} was made of is not known",
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
        write_atomically(file, json.dumps(kept, indent=1, sort_keys=True) + "\n", private=True)


def identity_of(configs: Iterable[Config], *, audits: bool = False) -> dict[str, dict[str, Any]]:
    """Data and files by the settings that name them, and user code by its name; digests and sizes.

    `audits`: with the files that settings of audits name.
    """
    data: dict[str, Any] = {}
    files: dict[str, Any] = {}
    code: dict[str, Any] = {}
    wanted = list(configs)
    # one set of records may move; several are told apart by where they lie
    moves = len({str(c.data.get("path")) for c in wanted}) == 1
    for config in wanted:
        named = {k: v for k, v in config.data.items() if k not in ("test_fraction", "standardise")}
        drawn = None if "path" in named else config.seed  # built-in sets may be drawn
        asked = json.dumps([named, drawn], sort_keys=True, default=str)
        key = asked
        if moves and "path" in named:
            key = json.dumps([{**named, "path": ""}, drawn], sort_keys=True, default=str)
        data[hashlib.sha256(key.encode()).hexdigest()[:16]] = _data_identity(asked)
        # audits can be added later: a result knows the code that made it
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
    """How the sizes of data differ, without naming anybody."""
    parts = [
        f"{new.get(what)} {what} where there were {old.get(what)}"
        for what in ("records", "clients", "columns")
        if old.get(what) != new.get(what)
    ]
    return ", ".join(parts) or "as many records, of other content"


# -- data ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _loaded_identity(key: str, stamp: Any) -> dict[str, Any]:
    from fedaudit.data import builtin, files
    from fedaudit.randomness import Seed
    from fedaudit.settings import check_arguments

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
    """Digest and sizes of a dataset. Read once per process while its files stay untouched."""
    named, _ = json.loads(key)
    places = [Path(str(named[k])) for k in ("path", "labels") if named.get(k) is not None]
    return _loaded_identity(key, tuple(map(_stamps, places)))


def _stamps(place: Path) -> tuple[Any, ...]:
    """What tells whether a file, or a folder of files, was touched within this process."""
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
    """ "setting = path" -> digest, of every text in a config's values that names a file or folder.

    A text that looks like a path and leads nowhere is in it too: what is gone has changed.
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
        # a folder around this one holds the run itself, which grows
        around = os.path.isdir(text) and Path.cwd().is_relative_to(Path(text).resolve())
        if named and not around and not _CODE.match(text):
            found[f"{at} = {text}"] = contents_of(text)
    return found


def contents_of(place: str | os.PathLike[str]) -> str:
    """A hash of a file, or of the names and contents of all files of a folder; or `GONE`."""
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
        return type(error).__name__  # whoever reads it says what is wrong


# -- code ----------------------------------------------------------------------------------------


def code_named_in(values: Any) -> list[str]:
    """Every `package.module:name` in a config's values that names a module which can be found."""
    if isinstance(values, Mapping):
        return sorted({w for v in values.values() for w in code_named_in(v)})
    if isinstance(values, list | tuple):
        return sorted({w for v in values for w in code_named_in(v)})
    return [values] if isinstance(values, str) and _CODE.match(values) else []


def code_identity(where: str) -> str:
    """A hash of the file that `where` names and of the user's own that it imports or names."""
    try:
        files = source_files(where)
    except FedauditError:
        return "cannot be found"  # not code, or whoever loads it says what is wrong
    made = hashlib.sha256()
    for name, file in files.items():
        made.update(f"{name}:{_hash(file)};".encode("utf-8", "surrogateescape"))
    return made.hexdigest()


@functools.cache
def code_sha256() -> str:
    """A hash of all of fedaudit's own code: results of other code are not taken for ours."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
