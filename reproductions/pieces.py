"""What every reproduction does: take options, measure the pieces that are missing, keep them.

A reproduction is a package with

- `experiments.py`: a frozen dataclass `Piece` with a `key`, all pieces of a scale (`pieces`), and
  what measures one of them (`measure`), which depends on nothing but its arguments;
- `page.py`: `write`, the page from results;
- `run.py`: what is its own about options and scales, and a `main` of these steps:
  `parser`, `place`, `load`, then a `Store` of the `lacking` pieces, measured `one_by_one` or by
  `workers` and `side_by_side`, then the page.

Results are one JSON file, `{"scale": ..., "measured": {key: result}}`. It is written again after
every piece, so that a run which was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedaudit.data import fetch
from fedaudit.files import write_atomically

Results = dict[str, Any]
Save = Callable[[Path, Results], None]
PAGE = Path(__file__).resolve().parent.parent / "docs" / "reproductions"
"""Where pages go."""


class Piece(Protocol):
    """One measurement: its key names it in the file of results."""

    @property
    def key(self) -> str: ...


P = TypeVar("P", bound=Piece)

# -- options ---------------------------------------------------------------------------------------

SEEDS = {"type": int, "nargs": "+", "help": "measure these seeds alone"}
WORKERS = {"type": int, "default": 2}


def some_of(experiments: Iterable[str]) -> dict[str, Any]:
    """The option that names experiments."""
    return {"nargs": "+", "default": (), "choices": list(experiments)}


def parser(doc: str, *, quick: str, **own: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Options of a reproduction: those that all have, and between them its `own` by name.

    `doc`: docstring of its `run.py`; `quick`: what its quick version is.
    """
    out = argparse.ArgumentParser(description=doc.splitlines()[0])
    out.add_argument("--quick", action="store_true", help=quick)
    out.add_argument("--render", action="store_true", help="write the page from stored results")
    for name, how in own.items():
        out.add_argument(f"--{name}", **how)
    out.add_argument("--out", type=Path, help="folder for results and page (default: in place)")
    return out


def place(given: argparse.Namespace) -> Path | None:
    """The folder that was asked for, made; a temporary one of a quick run; None: in place."""
    out: Path | None = given.out
    if given.quick and out is None:
        out = Path(tempfile.gettempdir()) / "fedaudit-reproductions"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return out


def not_fetched(names: Iterable[str]) -> list[str]:
    """Which of the data sets would have to be fetched first."""
    return [
        name
        for name in names
        if name in fetch.SOURCES
        and not (fetch.cache_folder() / fetch.source(name).filename).is_file()
    ]


def say_skipped(missing: Iterable[str]) -> None:
    for name in missing:
        print(f"skipped {name}: not fetched (fedaudit data get {name})", file=sys.stderr)


# -- results ---------------------------------------------------------------------------------------


def load(file: Path, asked: Mapping[str, Any], free: Collection[str] | None = None) -> Results:
    """Stored results; those of another scale are not mixed with these.

    `asked`: the scale; `free`: what of it may be another now, as may what is gone from it.
    None: the scale has to be the same altogether.
    """
    try:
        stored: Results = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    before = stored.get("scale", {})
    if free is None:
        same = before == asked
    else:
        same = all(before.get(k) == v for k, v in asked.items() if k not in free)
    return {**(stored if same else {"measured": {}}), "scale": asked}


def save(file: Path, results: Results) -> None:
    """One line per measurement: small, and a change shows where it is."""
    rows = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
        for k, v in sorted(results["measured"].items())
    )
    head = json.dumps({k: v for k, v in results.items() if k != "measured"}, indent=1)
    write_atomically(file, head.removesuffix("\n}") + f',\n "measured": {{\n{rows}\n }}\n}}\n')


def lacking(pieces: Iterable[P], results: Results) -> list[P]:
    """Pieces that have no result yet."""
    return [p for p in pieces if p.key not in results["measured"]]


# -- measuring -------------------------------------------------------------------------------------


class Store:
    """Keeps results in a file, each when it is there, and says how far it is.

    `save`: how they are written, by `save` of this module or in a way of their own.
    """

    def __init__(self, file: Path, results: Results, save: Save) -> None:
        self.file, self.results, self.save = file, results, save
        self.began = time.monotonic()

    def keep(self, found: Iterable[tuple[Piece, Any]], count: int) -> None:
        """Store pieces and results, `count` of them, as they come."""
        for done, (piece, result) in enumerate(found, start=1):
            self.results["measured"][piece.key] = result
            self.save(self.file, self.results)
            took = time.monotonic() - self.began
            print(f"[{done}/{count}] {took:5.0f} s  {piece.key}", flush=True)

    def one_by_one(self, todo: Collection[P], measure: Callable[[P], Any]) -> None:
        """Measure in this process."""
        self.keep(((p, measure(p)) for p in todo), len(todo))

    def side_by_side(self, todo: Collection[P], submit: Callable[[P], Future[Any]]) -> None:
        """Measure in `workers`, to which `submit` gives a piece."""
        futures = {submit(p): p for p in todo}
        self.keep(((futures[f], f.result()) for f in as_completed(futures)), len(todo))


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that measure; what has not begun is cancelled when something fails."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
