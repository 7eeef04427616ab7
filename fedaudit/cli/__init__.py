"""The command line: parses arguments, calls the experiment, prints. One file per group of commands.

Exit codes: 0 done, 2 usage or config, 3 data or trace, 4 leak or policy not kept (gate, guard, plan
check, ldp check), 5 nothing can be said (guard), 130 interrupted, 1 anything else.
A user's mistake never ends in a traceback.
"""

from __future__ import annotations

import os
import sys

import typer

from fedaudit.cli import (
    allocate,
    begin,
    data,
    decide,
    flower,
    guard,
    harden,
    ldp,
    plan,
    runs,
    sites,
    verify,
)
from fedaudit.cli.app import app
from fedaudit.errors import FedauditError

__all__ = [
    "allocate",
    "app",
    "begin",
    "data",
    "decide",
    "flower",
    "guard",
    "harden",
    "ldp",
    "main",
    "plan",
    "runs",
    "sites",
    "verify",
]


def main() -> None:
    """Entry point: our own errors become one message and an exit code."""
    try:
        app(standalone_mode=True)
    except FedauditError as error:
        typer.echo(f"fedaudit: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("fedaudit: stopped", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # whoever read our output has gone, as `head` does; the interpreter must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        typer.echo(f"fedaudit: {error}", err=True)
        raise SystemExit(1) from None
