"""`python -m fuzz`: see the package."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

from fedaudit.setup.identity import code_sha256
from fuzz.campaign import HARMLESS, State, meanings, outcomes, prepared, run_case, table, target_of

STATE = Path(".cache") / "fuzz.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="default: that of .cache/fuzz.jsonl")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int, default=None, help="one case again, in this process")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    given = parser.parse_args()
    if given.fresh:
        given.state.unlink(missing_ok=True)
    seed = _seed(given.seed, given.state)
    print(f"seed {seed}; again with: python -m fuzz --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fedaudit-fuzz-", dir=_memory()) as scratch:
        root = Path(scratch) / "corpus"
        prepared(root)
        if given.case is not None:
            name = target_of(given.case)
            print(run_case(root, seed, given.case, name, meanings(root)))
            return 0
        return _all(root, seed, given)


def _memory() -> str | None:
    """A folder that no disk has to keep up with, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _seed(given: int | None, state: Path) -> int:
    """That which was given, that of a campaign that is under way, or a new one."""
    if given is not None:
        return given
    try:
        return int(json.loads(state.read_text().splitlines()[0])["seed"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return secrets.randbelow(1 << 32)


def _all(root: Path, seed: int, given: argparse.Namespace) -> int:
    state = State(given.state, seed, code_sha256())
    done = {o.case for o in state.found}
    todo = [c for c in range(given.cases) if c not in done]
    if done:
        print(f"{len(done)} cases are done already", flush=True)
    began = time.monotonic()
    for n, outcome in enumerate(outcomes(root, seed, todo, given.workers), 1):
        state.add(outcome)
        if n % 1_000 == 0:
            print(f"{n} of {len(todo)} in {time.monotonic() - began:.0f} s", flush=True)
    print(table(state.found))
    failed = [o for o in state.found if o.result not in HARMLESS or o.detail]
    for o in failed[:50]:
        print(f"\n{o.result}: {o.target}, {o.damage}\n{o.detail}")
        print(f"again: python -m fuzz --seed {seed} --case {o.case}")
    print(f"\n{len(state.found)} mutations, {len(failed)} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
