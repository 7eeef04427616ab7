"""Run choices as cells, one run directory per choice and seed.

The name of a cell is a hash of its public config and a running number for its private settings:
seed, keys of marks, names of clients. A later search with other limits reuses the cell. Names of
cells may be published, and a hash of a small seed would reveal it; so only the truth of a cell says
what its number stands for. A cell that a budget or Ctrl-C interrupts resumes where it stopped.
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

import torch

from fedaudit import shapes
from fedaudit.decide.gate.evidence import Evidence, run_evidence
from fedaudit.errors import FedauditError, UsageError
from fedaudit.files import Unreadable, read_object, read_toml
from fedaudit.progress import Progress
from fedaudit.setup.config import Config
from fedaudit.setup.prepare import SharedData
from fedaudit.study.sweep import run_cell
from fedaudit.workers import prepare_worker, spawn_context

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_budget(text: str) -> float:
    """Seconds of a time budget such as "90", "90s", "10m" or "1.5h"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|min|h|)\s*", text)
    if found is None or float(found[1]) <= 0:
        raise UsageError(
            "cannot read the time budget",
            expected="a number above 0, followed by s, m or h",
            got=repr(text),
            remedy="`budget=10m`",
        )
    return float(found[1]) * UNITS[found[2]]


class OutOfTime(Exception):
    """The time budget is used up."""


class CellRunner:
    """Run configs within a time budget in seconds. A context manager."""

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
        self._deadline = None if budget is None else clock() + budget
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None
        self._other_children: set[int | None] = set()
        self._durations: list[float] = []
        self._reused_last = False
        self._measured: dict[str, Evidence | FedauditError] = {}
        #: the data of every seed, shared by the runs of this process
        self.loaded = SharedData()
        self._numbers, self._last = _existing_numbers(path / "cells")

    def __enter__(self) -> CellRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._terminate_workers()
        elif self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # -- time ----------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until the search must stop."""
        if self._deadline is None:
            return float("inf")
        return self._deadline - self.reserve - self._clock()

    def expected(self, cells: int) -> float:
        """Expected seconds for a number of cells, from the median so far."""
        each = statistics.median(self._durations) if self._durations else 0.0
        return each * -(-cells // self._workers)

    def _check_time(self) -> None:
        if self.left <= 0 or self.expected(1) > self.left:
            raise OutOfTime

    # -- cells ---------------------------------------------------------------------------------

    def folder(self, config: Config) -> Path:
        """Folder of a config, `HASH-NUMBER`; neither part reveals the seed."""
        own = _private_settings(config.raw)
        if own not in self._numbers:
            self._last += 1
            self._numbers[own] = self._last
        plain = json.dumps(config.public(), sort_keys=True).encode()
        made = hashlib.sha256(plain).hexdigest()
        return self.path / "cells" / f"{made[:16]}-{self._numbers[own]}"

    def measure(self, wanted: Iterable[tuple[str, Config]]) -> dict[str, Evidence | FedauditError]:
        """Run the `wanted` (label, config) pairs: cell name -> evidence or error.

        Raises OutOfTime if the budget ends first. A later call reuses finished cells.
        """
        asked = {self.folder(c).name: (label, c) for label, c in wanted}
        todo = {name: one for name, one in asked.items() if name not in self._measured}
        if self._workers == 1:
            self._run_in_process(todo)
        else:
            self._run_in_pool(todo)
        return {name: self._measured[name] for name in asked}

    def is_measured(self, config: Config) -> bool:
        return self.folder(config).name in self._measured

    def result_of(self, config: Config) -> Evidence | FedauditError:
        return self._measured[self.folder(config).name]

    def _run_in_process(self, todo: dict[str, tuple[str, Config]]) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker, for equal rounding
        try:
            for n, (name, (label, config)) in enumerate(todo.items()):
                folder = self._folder_of(name)
                if not _is_done(folder):
                    self._check_time()
                start = self._clock()
                try:
                    loaded = self.loaded.beside(config)
                    done = run_cell(dict(config.raw), str(folder), True, config.drawn, loaded)
                    self._store(name, done)
                except Exception as error:  # a failed cell must not stop the others
                    self._measured[name] = _as_fedaudit_error(error)
                self._durations += [self._clock() - start] if not self._was_reused(name) else []
                self._report_progress(label, len(todo) - n - 1)
        finally:
            torch.set_num_threads(threads)

    def _run_in_pool(self, todo: dict[str, tuple[str, Config]]) -> None:
        waiting = list(todo.items())
        under_way: dict[Future[dict[str, Any]], tuple[str, str, float]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._workers:
                    name, (label, config) = waiting[0]
                    folder = self._folder_of(name)
                    if not _is_done(folder):
                        self._check_time()
                    job = self._worker_pool().submit(
                        run_cell, dict(config.raw), str(folder), True, config.drawn
                    )
                    under_way[job] = (name, label, self._clock())
                    waiting.pop(0)
                timeout = None if self._deadline is None else max(self.left, 0.0)
                done, _ = wait(under_way, timeout=timeout, return_when=FIRST_COMPLETED)
                if not done:
                    raise OutOfTime
                for job in done:
                    name, label, start = under_way.pop(job)
                    try:
                        self._store(name, job.result())
                    except Exception as error:  # a failed cell must not stop the others
                        self._measured[name] = _as_fedaudit_error(error)
                    self._durations += [self._clock() - start] if not self._was_reused(name) else []
                    self._report_progress(label, len(waiting) + len(under_way))
        except OutOfTime:
            self._terminate_workers()
            raise

    def _worker_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._other_children = {child.pid for child in active_children()}
            # spawn: torch's threads do not survive a fork
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=spawn_context(), initializer=prepare_worker
            )
        return self._pool

    def _terminate_workers(self) -> None:
        """Stop the running cells; a later search resumes them."""
        if self._pool is None:
            return
        for child in active_children():
            if child.pid not in self._other_children:
                child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def _folder_of(self, name: str) -> Path:
        """The folder of a cell; a cell without its recording runs again."""
        folder = self.path / "cells" / name
        if not (folder / "trace" / "manifest.json").exists():
            (folder / "cell.json").unlink(missing_ok=True)
        return folder

    def _store(self, name: str, summary: dict[str, Any]) -> None:
        self.reused += bool(summary["reused"])
        self.ran += not summary["reused"]
        self._measured[name] = run_evidence(self.path / "cells" / name)
        self._reused_last = bool(summary["reused"])

    def _was_reused(self, name: str) -> bool:
        return isinstance(self._measured[name], Evidence) and self._reused_last

    def _report_progress(self, label: str, more: int) -> None:
        done = self.reused + self.ran
        self._progress("harden", done, done + more, label)


def _private_settings(raw: Mapping[str, Any]) -> str:
    """The settings that `Config.public` leaves out, as one text."""
    inner = (
        table.get(key) if isinstance(table := raw.get(section), Mapping) else None
        for section, key in (("marks", "keys"), ("topology", "clients"), ("allocation", "clients"))
    )
    return json.dumps([raw.get("seed"), *inner], sort_keys=True, default=str)


def _existing_numbers(cells: Path) -> tuple[dict[str, int], int]:
    """Private settings -> running number of the existing cells, and the last number.

    The number of a cell without truth is not reused.
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
            numbers.setdefault(_private_settings(truth), int(tail))
        except Unreadable as error:
            if not error.absent:
                raise
    return numbers, last


def _is_done(folder: Path) -> bool:
    """Whether a cell is finished and its summary readable."""
    try:
        read_object(folder / "cell.json", shapes.CELL)
    except Unreadable:
        return False
    return True


def _as_fedaudit_error(error: Exception) -> FedauditError:
    if isinstance(error, FedauditError):
        return error
    return FedauditError(f"{type(error).__name__}: {error}")


def failures(found: Sequence[Evidence | FedauditError]) -> list[FedauditError]:
    return [e for e in found if isinstance(e, FedauditError)]
