"""Measure what is missing, keep it, write the page.

python -m reproductions.two_stage.run                 all of it; continues where it stopped
python -m reproductions.two_stage.run --quick         a tiny version, into a folder of its own
python -m reproductions.two_stage.run --render        the page alone, from the stored results
python -m reproductions.two_stage.run --only faults   some experiments
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reproductions import pieces
from reproductions.pieces import PAGE, Results, save
from reproductions.two_stage import experiments
from reproductions.two_stage.page import write
from reproductions.two_stage.setting import FULL, QUICK, Scale

HERE = Path(__file__).resolve().parent


def load(file: Path, scale: Scale) -> Results:
    """Stored results of this scale, whatever its sets, seeds and amounts of noise."""
    return pieces.load(file, experiments.described(scale), free=("sets", "seeds", "noises"))


def main(arguments: Sequence[str] | None = None) -> int:
    given = pieces.parser(
        __doc__,
        quick="a tiny version, about a minute",
        only=pieces.some_of(experiments.EXPERIMENTS),
        seeds=pieces.SEEDS,
        sets={"nargs": "+", "help": "measure these data sets alone"},
        workers=pieces.WORKERS,
    ).parse_args(arguments)
    full = QUICK if given.quick else FULL
    missing = pieces.not_fetched(full.sets)
    pieces.say_skipped(missing)
    scale = replace(full, sets=tuple(s for s in full.sets if s not in missing))
    out = pieces.place(given)
    file = (out or HERE) / ("two_stage.json" if given.quick else "results.json")
    results = load(file, scale)
    if not given.render:
        asked = replace(
            scale,
            seeds=tuple(given.seeds or scale.seeds),
            sets=tuple(s for s in scale.sets if not given.sets or s in given.sets),
        )
        todo = pieces.lacking(experiments.pieces(asked, tuple(given.only)), results)
        with pieces.workers(given.workers) as pool:
            pieces.Store(file, results, save).side_by_side(
                todo, lambda p: pool.submit(experiments.measure, p, asked)
            )
    lacking = [p.key for p in pieces.lacking(experiments.pieces(scale), results)]
    print(write(results, HERE / "published.json", out or PAGE, missing, lacking))
    return 0


if __name__ == "__main__":
    sys.exit(main())
