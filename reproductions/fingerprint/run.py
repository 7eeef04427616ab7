"""Measure what is missing, keep it, write the page.

python -m reproductions.fingerprint.run               all of it; continues where it stopped
python -m reproductions.fingerprint.run --quick       a tiny version, into a folder of its own
python -m reproductions.fingerprint.run --render      the page alone, from the stored results
python -m reproductions.fingerprint.run --only grid   some experiments
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaudit.data import fetch
from fedaudit.trace.store import write_atomically
from reproductions.fingerprint import experiments
from reproductions.fingerprint.page import write
from reproductions.fingerprint.setting import FULL, QUICK, Scale

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reproductions"


def available(scale: Scale) -> tuple[Scale, list[str]]:
    """The scale without data sets that are not on this machine, and their names."""
    missing = [
        name
        for name in scale.corpora
        if name in fetch.SOURCES
        and not (fetch.cache_folder() / fetch.source(name).filename).is_file()
    ]
    return replace(scale, corpora=tuple(c for c in scale.corpora if c not in missing)), missing


def load(file: Path, scale: Scale) -> dict[str, Any]:
    """Stored results; those of another scale are not mixed with these."""
    asked = experiments.described(scale)
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    same = {k: v for k, v in asked.items() if k not in ("corpora", "seeds")}
    if any(stored.get("scale", {}).get(k) != v for k, v in same.items()):
        stored = {"start": {}, "measured": {}}
    return {**stored, "scale": asked}


def save(file: Path, results: dict[str, Any]) -> None:
    """One line per measurement: small, and a change shows where it is."""
    rows = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
        for k, v in sorted(results["measured"].items())
    )
    head = json.dumps({k: v for k, v in results.items() if k != "measured"}, indent=1)
    write_atomically(file, head.removesuffix("\n}") + f',\n "measured": {{\n{rows}\n }}\n}}\n')


def begin(results: dict[str, Any], name: str, start: dict[str, Any]) -> None:
    """Take `start` for a corpus; what was measured from another start does not stay beside it."""
    before = results["start"].get(name)
    if before is not None and before != start:
        stale = [k for k in results["measured"] if k.split("/")[1] == name]
        print(f"{name}: the start has changed, {len(stale)} measurements are done again")
        for key in stale:
            del results["measured"][key]
    results["start"][name] = start
    print(f"{name}: pretrained, {start}", flush=True)


def measure(
    results: dict[str, Any], file: Path, scale: Scale, only: tuple[str, ...], workers: int
) -> None:
    """Run the pieces that are missing, several at a time, and store each when it is there."""
    todo = [p for p in experiments.pieces(scale, only) if p.key not in results["measured"]]
    if not todo:
        return
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with (
        tempfile.TemporaryDirectory(prefix="fingerprint-") as folder,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        names = sorted({p.corpus for p in todo})
        begun = {n: pool.submit(experiments.prepare, n, scale, Path(folder)) for n in names}
        for name, future in begun.items():
            begin(results, name, future.result())
        todo = [p for p in experiments.pieces(scale, only) if p.key not in results["measured"]]
        futures = {
            pool.submit(experiments.measure, p, scale, Path(folder), results["start"][p.corpus]): p
            for p in todo
        }
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                piece = futures[future]
                results["measured"][piece.key] = future.result()
                save(file, results)
                took = time.monotonic() - began
                print(f"[{done}/{len(todo)}] {took:5.0f} s  {piece.key}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny version, under a minute")
    parser.add_argument("--render", action="store_true", help="write the page from stored results")
    parser.add_argument("--only", nargs="+", default=(), choices=list(experiments.EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+", help="measure these seeds alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for results and page (default: in place)")
    given = parser.parse_args(arguments)
    scale, missing = available(QUICK if given.quick else FULL)
    for name in missing:
        print(f"skipped {name}: not fetched (fedaudit data get {name})", file=sys.stderr)
    if given.seeds:
        scale = replace(scale, seeds=tuple(given.seeds))
    out = given.out
    if given.quick and out is None:
        out = Path(tempfile.gettempdir()) / "fedaudit-reproductions"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    file = (out or HERE) / "results.json"
    results = load(file, scale)
    if not given.render:
        if "epsilons" not in results:
            results["epsilons"] = experiments.epsilons(scale)
        measure(results, file, scale, tuple(given.only), given.workers)
    lacking = [p.key for p in experiments.pieces(scale) if p.key not in results["measured"]]
    page = write(results, HERE / "published.json", out or PAGE, missing, lacking)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
