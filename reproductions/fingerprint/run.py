"""Measure what is missing, keep it, write the page.

python -m reproductions.fingerprint.run               all of it; continues where it stopped
python -m reproductions.fingerprint.run --quick       a tiny version, into a folder of its own
python -m reproductions.fingerprint.run --render      the page alone, from the stored results
python -m reproductions.fingerprint.run --only grid   some experiments
python -m reproductions.fingerprint.run --wide        large batches, a wide model, 70 clients
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reproductions import pieces
from reproductions.fingerprint import experiments, wide
from reproductions.fingerprint.experiments import Piece
from reproductions.fingerprint.page import write
from reproductions.fingerprint.setting import FULL, QUICK, Scale
from reproductions.pieces import PAGE, Results, save

HERE = Path(__file__).resolve().parent


def load(file: Path, scale: Scale) -> Results:
    """Stored results of this scale, whatever its corpora and seeds."""
    found = pieces.load(file, experiments.described(scale), free=("corpora", "seeds"))
    return {"start": {}, **found}


def begin(results: Results, name: str, start: Results) -> None:
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
    results: Results, file: Path, scale: Scale, asked: Sequence[Piece], workers: int
) -> None:
    """Pretrain on the corpora that are needed, then measure the pieces that are missing."""
    todo = pieces.lacking(asked, results)
    if not todo:
        return
    store = pieces.Store(file, results, save)
    with (
        tempfile.TemporaryDirectory(prefix="fingerprint-") as folder,
        pieces.workers(workers) as pool,
    ):
        home = Path(folder)
        names = sorted({p.corpus for p in todo})
        begun = {n: pool.submit(experiments.prepare, n, scale, home) for n in names}
        for name, future in begun.items():
            begin(results, name, future.result())
        start = results["start"]
        store.side_by_side(
            pieces.lacking(asked, results),
            lambda p: pool.submit(experiments.measure, p, scale, home, start[p.corpus]),
        )


def measure_wide(file: Path, scale: Scale, given: argparse.Namespace) -> Results:
    """What is stored of the wide scale, and what `--wide` adds to it."""
    results = load(file, scale)
    if given.wide and not given.render:
        measure(results, file, scale, wide.pieces(scale), given.workers)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    given = pieces.parser(
        __doc__,
        quick="a tiny version, under a minute",
        only=pieces.some_of(experiments.EXPERIMENTS),
        seeds=pieces.SEEDS,
        workers=pieces.WORKERS,
        wide={"action": "store_true", "help": "measure the wide scale alone"},
    ).parse_args(arguments)
    scale = QUICK if given.quick else FULL
    # a page of stored results needs no data
    missing = [] if given.render or given.wide else pieces.not_fetched(scale.corpora)
    pieces.say_skipped(missing)
    scale = replace(scale, corpora=tuple(c for c in scale.corpora if c not in missing))
    widest = wide.QUICK if given.quick else wide.WIDE
    if given.seeds:
        scale = replace(scale, seeds=tuple(given.seeds))
        widest = replace(widest, seeds=tuple(given.seeds))
    out = pieces.place(given)
    file = (out or HERE) / "results.json"
    results = load(file, scale)
    if not (given.render or given.wide):
        if "epsilons" not in results:
            results["epsilons"] = experiments.epsilons(scale)
        measure(results, file, scale, experiments.pieces(scale, tuple(given.only)), given.workers)
    beside = measure_wide((out or HERE) / "wide.json", widest, given)
    lacking = [p.key for p in pieces.lacking(experiments.pieces(scale), results)]
    print(
        write(
            results, HERE / "published.json", out or PAGE, missing, lacking, wide=(beside, widest)
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
