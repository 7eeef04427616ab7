"""Measure what is missing, keep it, write the page.

python -m reproductions.active_membership.run             all of it; continues where it stopped
python -m reproductions.active_membership.run --quick     a tiny version, into a folder of its own
python -m reproductions.active_membership.run --render    the page alone, from the stored results
python -m reproductions.active_membership.run --only fc   some experiments
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
from pathlib import Path
from typing import Any

from fedaudit.errors import FetchError
from fedaudit.trace.store import write_atomically
from reproductions.active_membership import experiments, text
from reproductions.active_membership.page import write
from reproductions.active_membership.setting import FULL, QUICK, Scale, features

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reproductions"


def load(file: Path, scale: Scale) -> dict[str, Any]:
    """Stored results; those of another scale are not mixed with these."""
    asked = scale.described()
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    same = {k: v for k, v in asked.items() if k != "sets"}
    if any(stored.get("scale", {}).get(k) != v for k, v in same.items()):
        stored = {"measured": {}}
    return {**stored, "scale": asked}


def save(file: Path, results: dict[str, Any]) -> None:
    """One line per measurement: small, and a change shows where it is."""
    rows = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
        for k, v in sorted(results["measured"].items())
    )
    head = json.dumps({k: v for k, v in results.items() if k != "measured"}, indent=1)
    write_atomically(file, head.removesuffix("\n}") + f',\n "measured": {{\n{rows}\n }}\n}}\n')


def measure(
    results: dict[str, Any], file: Path, scale: Scale, only: tuple[str, ...], workers: int
) -> None:
    """Run the pieces that are missing, several at a time, and store each when it is there."""
    todo = [p for p in experiments.pieces(scale, only) if p.key not in results["measured"]]
    if not todo:
        return
    for name in sorted({p.data for p in todo if p.experiment == "fc"}):
        features(name)  # embeddings are made once, before the workers start
    if any(p.data == experiments.TEXT for p in todo):
        try:
            text.get_weights()
        except FetchError as error:
            print(f"skipped text: {error}", file=sys.stderr)
            todo = [p for p in todo if p.data != experiments.TEXT]
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(experiments.measure, p, scale): p for p in todo}
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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for results and page (default: in place)")
    given = parser.parse_args(arguments)
    scale = QUICK if given.quick else FULL
    missing: list[str] = []
    if not given.render:
        scale, missing = experiments.available(scale)
    for name in missing:
        print(f"skipped {name}: not fetched (fedaudit data get {name})", file=sys.stderr)
    out = given.out
    if given.quick and out is None:
        out = Path(tempfile.gettempdir()) / "fedaudit-reproductions"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    file = (out or HERE) / "results.json"
    results = load(file, scale)
    if not given.render:
        measure(results, file, scale, tuple(given.only), given.workers)
    lacking = [p.key for p in experiments.pieces(scale) if p.key not in results["measured"]]
    print(write(results, out or PAGE, missing, lacking))
    return 0


if __name__ == "__main__":
    sys.exit(main())
