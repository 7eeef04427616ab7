"""Measure what is missing, keep it, write the page.

python -m reproductions.topology.run                    all of it; continues where it stopped
python -m reproductions.topology.run --quick            a tiny version, into a folder of its own
python -m reproductions.topology.run --render           the page alone, from the stored results
python -m reproductions.topology.run --only channels    some experiments
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproductions import pieces
from reproductions.pieces import PAGE, Results
from reproductions.topology import experiments
from reproductions.topology.page import write
from reproductions.topology.setting import FULL, QUICK, Scale, described

HERE = Path(__file__).resolve().parent


def load(file: Path, scale: Scale) -> Results:
    """Stored results of this very scale."""
    return pieces.load(file, described(scale), free=("sets",))


def save(file: Path, results: Results) -> None:
    """As every reproduction does, measurements `rounded`."""
    pieces.save(file, {**results, "measured": rounded(results["measured"])})


def rounded(value: Any) -> Any:
    """Seven digits: enough for every table, and the file stays small."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    given = pieces.parser(
        __doc__,
        quick="a tiny version, about a minute",
        only=pieces.some_of(experiments.EXPERIMENTS),
    ).parse_args(arguments)
    scale = QUICK if given.quick else FULL
    missing = pieces.not_fetched(scale.sets)
    pieces.say_skipped(missing)
    scale = replace(scale, sets=tuple(s for s in scale.sets if s not in missing))
    out = pieces.place(given)
    file = HERE / "results.json" if out is None else out / "topology.json"
    published = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
    results = load(file, scale)
    if not given.render:
        pieces.Store(file, results, save).one_by_one(
            pieces.lacking(experiments.pieces(scale, tuple(given.only)), results),
            lambda p: experiments.measure(p, scale, published),
        )
    lacking = [p.key for p in pieces.lacking(experiments.pieces(scale), results)]
    print(write(results, published, out or PAGE, lacking))
    return 0


if __name__ == "__main__":
    sys.exit(main())
