"""`python -m fedaudit` and `fedaudit` are the command line."""

import os
import sys

# `python -m` puts the working folder first, so that a file `json.py` in it would be imported
if __name__ == "__main__" and sys.path[0] in ("", os.getcwd()) and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))


def main() -> None:
    """Run the command line; beside a bare recorder, say how to get it."""
    try:
        from fedaudit.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "fedaudit").partition(".")[0] == "fedaudit":
            raise  # a fault of ours
        message = (
            "fedaudit: this is a bare installation: it records, and does nothing else\n"
            "  expected: the libraries that fedaudit depends on\n"
            f"  got:      no package {error.name}\n"
            "  try:      pip install fedaudit, here or where the trace is audited"
        )
        print(message, file=sys.stderr)
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
