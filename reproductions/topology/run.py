"""Measure what is missing, keep it, write the page.

python -m reproductions.topology.run                    all of it; continues where it stopped
python -m reproductions.topology.run --quick            a tiny version, into a folder of its own
python -m reproductions.topology.run --render           the page alone, from the stored results
python -m reproductions.topology.run --only channels    some experiments
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaudit.trace.store import write_atomically
from reproductions.topology import experiments
from reproductions.topology.page import write
from reproductions.topology.setting import FULL, QUICK, Scale, described

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reproductions"


def load(file: Path, scale: Scale) -> dict[str, Any]:
    """Stored results; those of another scale are not mixed with these."""
    asked = described(scale)
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = {}
    if stored.get("scale") != asked:
        stored = {"measured": {}}
    return {**stored, "scale": asked}


def save(file: Path, results: dict[str, Any]) -> None:
    """One line per measurement: small, and a change shows where it is."""
    rows = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(rounded(v), separators=(',', ':'))}"
        for k, v in sorted(results["measured"].items())
    )
    head = json.dumps({k: v for k, v in results.items() if k != "measured"}, indent=1)
    write_atomically(file, head.removesuffix("\n}") + f',\n "measured": {{\n{rows}\n }}\n}}\n')


def rounded(value: Any) -> Any:
    """Seven digits: enough for every table, and the file stays small."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny version, about a minute")
    parser.add_argument("--render", action="store_true", help="write the page from stored results")
    parser.add_argument("--only", nargs="+", default=(), choices=list(experiments.EXPERIMENTS))
    parser.add_argument("--out", type=Path, help="folder for results and page (default: in place)")
    given = parser.parse_args(arguments)
    scale = QUICK if given.quick else FULL
    out = given.out
    if given.quick and out is None:
        out = Path(tempfile.gettempdir()) / "fedaudit-reproductions"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    file = (out or HERE) / ("topology.json" if out is not None else "results.json")
    published = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
    results = load(file, scale)
    every = experiments.pieces(scale)
    if not given.render:
        chosen = experiments.pieces(scale, tuple(given.only))
        todo = [p for p in chosen if p.key not in results["measured"]]
        began = time.monotonic()
        for done, piece in enumerate(todo, start=1):
            results["measured"][piece.key] = experiments.measure(piece, scale, published)
            save(file, results)
            print(
                f"[{done}/{len(todo)}] {time.monotonic() - began:5.0f} s  {piece.key}", flush=True
            )
    lacking = [p.key for p in every if p.key not in results["measured"]]
    print(write(results, published, out or PAGE, lacking))
    return 0


if __name__ == "__main__":
    sys.exit(main())
