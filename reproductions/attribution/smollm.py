"""Attribution on a real language model: SmolLM2-135M, adapters, the published plan.

python -m reproductions.attribution.smollm            K=5, T=5, both marks: about an hour
python -m reproductions.attribution.smollm --quick    K=4, T=1, two steps: that it runs, no more

Needs `fedaudit data get smollm2` and the packages transformers and gguf. Fictitious knowledge is
read by the likelihood of planted values, green lists by the likeliest tokens in one pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from fedaudit.setup.config import load
from reproductions.attribution import page, recorded
from reproductions.attribution.run import HERE, save
from reproductions.pieces import PAGE

Row = dict[str, Any]


def measure(kind: str, *, quick: bool) -> Row:
    """One federation with marks of one kind: who is found, and what it took."""
    clients, rounds, steps = (4, 1, 2) if quick else (5, 5, 12)
    config = load(
        {
            "seed": 1,
            # few held-out windows: each round reads them all
            "data": {"name": "docs", "test_fraction": 0.05},
            "task": {"kind": "lora", "model": "smollm2", "length": 32},
            "federation": {"clients": clients, "rounds": rounds},
            "training": {
                "optimizer": "adam", "learning_rate": 0.002, "steps": steps, "batch_size": 4
            },
            "marks": {"kind": kind, "clients": 1 if quick else 2},
            "protections": {
                "secure_aggregation": {
                    "threshold": clients - 2, "subset_size": clients - 2, "plan": "paired",
                    "refuse_isolating": False, "masks": "skipped",
                }
            },
            "audits": {"attribution": {"prompts": 8 if quick else 24}},
        }
    )  # fmt: skip
    return {
        "clients": clients,
        "rounds": rounds,
        "steps": steps * clients * rounds,
        **recorded.found(config),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="that it runs: a few minutes")
    quick = parser.parse_args(arguments).quick
    file = HERE / "results.json"
    results = json.loads(file.read_text(encoding="utf-8"))
    for kind in ("fictitious", "kgw"):
        key = f"smollm/{kind}/1"
        if quick or key not in results["measured"]:
            found = measure(kind, quick=quick)
            print(key, json.dumps(found), flush=True)
            if not quick:
                results["measured"][key] = found
                save(file, results)
    if not quick:
        print(f"page: {page.write(results, PAGE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
