"""Runs choices, one cell per choice and seed: `sweep`'s cells, kept as ordinary run directories.

A cell is named by the hash of what its config may show, and by a running number for the rest: the
seed, keys of marks, names of clients. So what was measured before is not run again, in this search
or in a later one with other limits. Names stand in what may be published, and a hash of a small
seed gives it away: what a number stands for is in the truth of the cells alone. Cells that a budget
or Ctrl-C cuts off go on where they stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from fedaudit import shapes
from fedaudit.decide.gate.evidence import Evidence, of_run
from fedaudit.errors import FedauditError, UsageError
from fedaudit.files import Unreadable, read_object, read_toml
from fedaudit.progress import Progress
from fedaudit.setup.config import Config
from fedaudit.study.sweep import run_cell
from fedaudit.workers import prepare_worker, spawn_context

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """A time budget: "90", "90s", "10m", "1.5h"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|min|h|)\s*", text)
    if found is None or float(found[1]) <= 0:
        raise UsageError(
            "this time budget cannot be read",
            expected="a number above 0 with s, m or h behind it",
            got=repr(text),
            remedy="--budget 10m",
        )
    return float(found[1]) * UNITS[found[2]]


class OutOfTime(Exception):
    """The budget is spent: what is measured so far has to do."""


class Bench:
    """Measures configs within a budget of seconds. Use as a context."""

    def __init__(
        self,
        path: Path,
        *,
        workers: int,
        budget: float | None,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.reused = 0
        self.ran = 0
        self.reserve = 0.0
        self._workers = workers
        self._clock = clock
        self._end = None if budget is None else clock() + budget
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[int | None] = set()
        self._took: list[float] = []
        self._reused_last = False
        self._seen: dict[str, Evidence | FedauditError] = {}
        self._numbers, self._last = _numbered(path / "cells")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._cut()
        elif self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # -- time ----------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until the search has to stop."""
        if self._end is None:
            return float("inf")
        return self._end - self.reserve - self._clock()

    def expected(self, cells: int) -> float:
        """Seconds that so many cells will take, from those that were run."""
        each = statistics.median(self._took) if self._took else 0.0
        return each * -(-cells // self._workers)

    def _check_time(self) -> None:
        if self.left <= 0 or self.expected(1) > self.left:
            raise OutOfTime

    # -- cells ---------------------------------------------------------------------------------

    def folder(self, config: Config) -> Path:
        """Where a config is run: `HASH-NUMBER`, neither of which tells the seed."""
        own = _private(config.raw)
        if own not in self._numbers:
            self._last += 1
            self._numbers[own] = self._last
        plain = json.dumps(config.public(), sort_keys=True).encode()
        made = hashlib.sha256(plain).hexdigest()
        return self.path / "cells" / f"{made[:16]}-{self._numbers[own]}"

    def measure(self, wanted: Iterable[tuple[str, Config]]) -> dict[str, Evidence | FedauditError]:
        """Cell name -> its evidence, or why it failed; `wanted` are labels and configs.

        Raises OutOfTime if the budget ends first; what was finished counts next time.
        """
        asked = {self.folder(c).name: (label, c) for label, c in wanted}
        todo = {name: one for name, one in asked.items() if name not in self._seen}
        if self._workers == 1:
            self._alone(todo)
        else:
            self._together(todo)
        return {name: self._seen[name] for name in asked}

    def has(self, config: Config) -> bool:
        return self.folder(config).name in self._seen

    def of(self, config: Config) -> Evidence | FedauditError:
        return self._seen[self.folder(config).name]

    def _alone(self, todo: dict[str, tuple[str, Config]]) -> None:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker: sums then round the same way
        try:
            for n, (name, (label, config)) in enumerate(todo.items()):
                folder = self._place(name)
                if not _is_done(folder):
                    self._check_time()
                start = self._clock()
                try:
                    done = run_cell(dict(config.raw), str(folder), True, config.drawn)
                    self._keep(name, done)
                except Exception as error:  # one broken cell must not stop the others
                    self._seen[name] = _as_ours(error)
                self._took += [self._clock() - start] if not self._was_there(name) else []
                self._say(label, len(todo) - n - 1)
        finally:
            torch.set_num_threads(threads)

    def _together(self, todo: dict[str, tuple[str, Config]]) -> None:
        waiting = list(todo.items())
        under_way: dict[Future[dict[str, Any]], tuple[str, str, float]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._workers:
                    name, (label, config) = waiting[0]
                    folder = self._place(name)
                    if not _is_done(folder):
                        self._check_time()
                    job = self._workforce().submit(
                        run_cell, dict(config.raw), str(folder), True, config.drawn
                    )
                    under_way[job] = (name, label, self._clock())
                    waiting.pop(0)
                timeout = None if self._end is None else max(self.left, 0.0)
                done, _ = wait(under_way, timeout=timeout, return_when=FIRST_COMPLETED)
                if not done:
                    raise OutOfTime
                for job in done:
                    name, label, start = under_way.pop(job)
                    try:
                        self._keep(name, job.result())
                    except Exception as error:  # one broken cell must not stop the others
                        self._seen[name] = _as_ours(error)
                    self._took += [self._clock() - start] if not self._was_there(name) else []
                    self._say(label, len(waiting) + len(under_way))
        except OutOfTime:
            self._cut()
            raise

    def _workforce(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._others = {child.pid for child in active_children()}
            # spawn: torch's threads do not survive a fork
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=spawn_context(), initializer=prepare_worker
            )
        return self._pool

    def _cut(self) -> None:
        """End the cells under way: they resume by themselves, nothing is gained by waiting."""
        if self._pool is None:
            return
        for child in active_children():
            if child.pid not in self._others:
                child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def _place(self, name: str) -> Path:
        """The folder of a cell; one whose recording was removed is measured again."""
        folder = self.path / "cells" / name
        if not (folder / "trace" / "manifest.json").exists():
            (folder / "cell.json").unlink(missing_ok=True)
        return folder

    def _keep(self, name: str, summary: dict[str, Any]) -> None:
        self.reused += bool(summary["reused"])
        self.ran += not summary["reused"]
        self._seen[name] = of_run(self.path / "cells" / name)
        self._reused_last = bool(summary["reused"])

    def _was_there(self, name: str) -> bool:
        return isinstance(self._seen[name], Evidence) and self._reused_last

    def _say(self, label: str, more: int) -> None:
        done = self.reused + self.ran
        self._progress("harden", done, done + more, label)


def _private(raw: Mapping[str, Any]) -> str:
    """What `Config.public` leaves out, as one text."""
    inner = (
        table.get(key) if isinstance(table := raw.get(section), Mapping) else None
        for section, key in (("marks", "keys"), ("topology", "clients"), ("allocation", "clients"))
    )
    return json.dumps([raw.get("seed"), *inner], sort_keys=True, default=str)


def _numbered(cells: Path) -> tuple[dict[str, int], int]:
    """The running numbers that the cells of a folder have by now, and the last of them.

    The number of a cell whose truth is gone is never given again.
    """
    numbers: dict[str, int] = {}
    last = 0
    for folder in sorted(cells.glob("*-*")):
        tail = folder.name.rpartition("-")[2]
        if not tail.isdecimal():
            continue
        last = max(last, int(tail))
        try:
            truth = read_toml(folder / "truth" / "config.toml")
            numbers.setdefault(_private(truth), int(tail))
        except Unreadable as error:
            if not error.absent:
                raise
    return numbers, last


def _is_done(folder: Path) -> bool:
    """Whether a cell need not be run; a torn summary is made again."""
    try:
        read_object(folder / "cell.json", shapes.CELL)
    except Unreadable:
        return False
    return True


def _as_ours(error: Exception) -> FedauditError:
    if isinstance(error, FedauditError):
        return error
    return FedauditError(f"{type(error).__name__}: {error}")


def failures(found: Sequence[Evidence | FedauditError]) -> list[FedauditError]:
    return [e for e in found if isinstance(e, FedauditError)]
