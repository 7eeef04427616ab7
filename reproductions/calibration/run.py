"""Measure what is missing, keep it, write docs/calibration.md.

python -m reproductions.calibration.run                       all of it; continues where it stopped
python -m reproductions.calibration.run --minutes 10          stops at the next block after 10
python -m reproductions.calibration.run --only fingerprint    some audits
python -m reproductions.calibration.run --quick               3 federations each, elsewhere
python -m reproductions.calibration.run --render              the page alone
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from reproductions import pieces
from reproductions.calibration import experiments
from reproductions.calibration.designs import rows
from reproductions.calibration.page import write

HERE = Path(__file__).resolve().parent
QUICK = 3


def main(arguments: Sequence[str] | None = None) -> int:
    given = pieces.parser(
        __doc__,
        quick=f"{QUICK} federations of each design, a minute",
        only=pieces.some_of(rows()),
        minutes={"type": float, "help": "begin no block after so many minutes"},
    ).parse_args(arguments)
    out = pieces.place(given)
    file = HERE / "results.json" if out is None else out / "calibration.json"
    results = pieces.load(file, {"block": QUICK if given.quick else experiments.BLOCK})
    results["measured"] = experiments.current(results["measured"])
    asked = experiments.pieces(given.only, QUICK if given.quick else None)
    if not given.render:
        ends = time.monotonic() + 60 * (given.minutes or float("inf"))
        store = pieces.Store(file, results, pieces.save)
        todo = pieces.lacking(asked, results)
        began = (p for p in todo if time.monotonic() < ends)
        store.keep(((p, experiments.measure(p)) for p in began), len(todo))
    page = pieces.PAGE.parent if out is None else out
    print(write(results["measured"], page / "calibration.md"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
