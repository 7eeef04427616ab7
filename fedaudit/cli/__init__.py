"""The command line: parses arguments, calls the public functions, prints.

Exit codes: 0 done, 2 usage or config, 3 data or trace, 4 leak or policy not kept (gate, guard, plan
check, ldp check), 5 nothing to say (guard), 130 interrupted, 1 anything else.
A user's mistake never ends in a traceback.
"""

from __future__ import annotations

import os
import sys

import typer

from fedaudit.cli.app import app
from fedaudit.cli.options import in_reports, with_options
from fedaudit.errors import FedauditError
from fedaudit.reporting.wording import worded

__all__ = ["app", "main"]


def main() -> None:
    """Entry point: turns our own errors into one message and an exit code."""
    try:
        with worded(in_reports):
            app(standalone_mode=True)
    except FedauditError as error:
        typer.echo(f"fedaudit: {with_options(str(error))}", err=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("fedaudit: stopped", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # the reader closed the pipe, as `head` does: do not write at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        typer.echo(f"fedaudit: {error}", err=True)
        raise SystemExit(1) from None
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        typer.echo(f"fedaudit: {out_of_memory(error)}", err=True)
        raise SystemExit(1) from None


#: messages of C libraries that run out of memory without raising a MemoryError
_SHORT = (
    "allocate memory",
    "map segment",
    "std::bad_alloc",
    "not enough memory",
    "out of memory",
    "start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that this process ran out of memory."""
    return isinstance(error, MemoryError) or any(w in str(error).lower() for w in _SHORT)


def out_of_memory(error: BaseException) -> FedauditError:
    return FedauditError(
        "there is not enough memory for this",
        expected="enough memory for the federation or the file",
        got=str(error).splitlines()[0] if str(error) else "no more memory",
        remedy="use a smaller model, fewer records or fewer clients at once; see whether "
        "`ulimit -v` or the container sets a limit. A run resumes where it stopped",
    )
