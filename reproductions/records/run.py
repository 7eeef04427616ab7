"""Measure what is missing, keep it, write the page.

python -m reproductions.records.run                      published tables; goes on where it stopped
python -m reproductions.records.run --only inversion     some experiments
python -m reproductions.records.run --peers DIR          beside breaching and sacroml in DIR
python -m reproductions.records.run --render             the page alone, from the stored results
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from reproductions import pieces
from reproductions.pieces import PAGE
from reproductions.records import experiments, peers
from reproductions.records.page import write

HERE = Path(__file__).resolve().parent
EXPERIMENTS = ("inversion", "table", "shadows")
NEEDS = {"inversion": "cifar10", "table": "adult", "shadows": "fashion-mnist"}


def main(arguments: Sequence[str]) -> int:
    options = pieces.parser(
        __doc__,
        quick="two images and nine models, into a temporary folder",
        only=pieces.some_of(EXPERIMENTS),
        peers={"type": Path, "help": "folder with the unpacked packages"},
        most={"type": int, "help": "with --peers: stop after so many comparisons"},
    )
    given = options.parse_args(arguments)
    out = pieces.place(given)
    scale = experiments.QUICK if given.quick else experiments.FULL
    file = (out or HERE) / "results.json"
    results = pieces.load(
        file, {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scale).items()}
    )
    store = pieces.Store(file, results, pieces.save)
    if not given.render and given.peers is None:
        asked = [p for p in experiments.pieces() if p.experiment in (given.only or EXPERIMENTS)]
        todo = pieces.lacking(asked, results)
        missing = pieces.not_fetched(NEEDS[p.experiment] for p in todo)
        pieces.say_skipped(missing)
        ready = [p for p in todo if NEEDS[p.experiment] not in missing]
        store.one_by_one(ready, partial(experiments.measure, scale=scale))
    if given.peers is not None:
        found = peers.pieces(given.peers, quick=given.quick)[: given.most]
        store.one_by_one(pieces.lacking(found, results), partial(peers.measure, home=given.peers))
    write(results, (out or PAGE) / "records.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
