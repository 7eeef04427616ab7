"""Run every reproduction, or those that are named: `python -m reproductions [NAME ...] [--render]`.

Options that a reproduction knows (`--quick`, `--render`) are passed on to it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import reproductions


def main(arguments: Sequence[str]) -> int:
    known = sorted(m.name for m in pkgutil.iter_modules(reproductions.__path__) if m.ispkg)
    names = [a for a in arguments if not a.startswith("-")]
    wrong = [n for n in names if n not in known]
    if wrong:
        print(f"no reproduction {wrong[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    options = [a for a in arguments if a.startswith("-")]
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed |= importlib.import_module(f"reproductions.{name}.run").main(options)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
