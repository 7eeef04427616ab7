"""Measure what is missing, keep it, write the page.

python -m reproductions.active_membership.run             all of it; continues where it stopped
python -m reproductions.active_membership.run --quick     a tiny version, into a folder of its own
python -m reproductions.active_membership.run --render    the page alone, from the stored results
python -m reproductions.active_membership.run --only fc   some experiments
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedaudit.errors import FetchError
from reproductions import pieces
from reproductions.active_membership import experiments, text
from reproductions.active_membership.experiments import Piece
from reproductions.active_membership.page import write
from reproductions.active_membership.setting import FULL, QUICK, Scale, features
from reproductions.pieces import PAGE, Results, save

HERE = Path(__file__).resolve().parent


def load(file: Path, scale: Scale) -> Results:
    """Stored results of this scale, whatever its sets."""
    return pieces.load(file, scale.described(), free=("sets",))


def ready(todo: list[Piece]) -> list[Piece]:
    """Fetch and make what pieces share, before the workers start; the pieces that can be run."""
    for name in sorted({p.data for p in todo if p.experiment == "fc"}):
        features(name)  # embeddings are made once
    if any(p.data == experiments.TEXT for p in todo):
        try:
            text.get_weights()
        except FetchError as error:
            print(f"skipped text: {error}", file=sys.stderr)
            return [p for p in todo if p.data != experiments.TEXT]
    return todo


def main(arguments: Sequence[str] | None = None) -> int:
    given = pieces.parser(
        __doc__,
        quick="a tiny version, under a minute",
        only=pieces.some_of(experiments.EXPERIMENTS),
        workers=pieces.WORKERS,
    ).parse_args(arguments)
    scale = QUICK if given.quick else FULL
    missing: list[str] = []
    if not given.render:
        scale, missing = experiments.available(scale)
    pieces.say_skipped(missing)
    out = pieces.place(given)
    file = (out or HERE) / "results.json"
    results = load(file, scale)
    if not given.render:
        todo = ready(pieces.lacking(experiments.pieces(scale, tuple(given.only)), results))
        with pieces.workers(given.workers) as pool:
            pieces.Store(file, results, save).side_by_side(
                todo, lambda p: pool.submit(experiments.measure, p, scale)
            )
    lacking = [p.key for p in pieces.lacking(experiments.pieces(scale), results)]
    print(write(results, out or PAGE, missing, lacking))
    return 0


if __name__ == "__main__":
    sys.exit(main())
