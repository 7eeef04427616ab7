"""The error classes and their exit codes.

    FedauditError                 1   any other error
    ├── UsageError                2   a wrong command or argument
    │   ├── ConfigError           2   a key, type or value in a config
    │   └── UntrustedCode         2   code named by a stored folder, not by the user
    ├── DataError                 3   a dataset that cannot be used
    │   ├── OutOfRange            3   features beyond the range that a mechanism covers
    │   └── FetchError            3   a download that failed or did not match its checksum
    ├── TraceError                3   a recording that cannot be used
    │   ├── IntegrityError        3   a torn or altered file; nothing of it is used
    │   ├── FormatError           3   not a trace, or a newer format
    │   └── NotObservable         3   this party does not see the requested data
    ├── NotApplicable             3   the audit's question does not arise in this trace
    │   └── NothingToSay          3   too little was recorded for a result
    ├── LimitBroken               4   a limit of a policy broke while a federation was running
    └── Interrupted             130   stopped by the user; finished work is kept

Every message states what was expected, what was found and how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class FedauditError(Exception):
    """Root of the tree.

    `what` is one sentence; `expected`, `got` and `remedy` complete it. Programs compare `code`:
    wording may change, codes do not.
    """

    exit_code = 1
    code = "error"

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        if code is not None:
            self.code = code
        self.what, self.expected, self.got, self.remedy = what, expected, got, remedy
        lines = [what]
        for label, text in (("expected", expected), ("got", got), ("try", remedy)):
            if text is not None:
                lines.append(f"  {label + ':':<9} {text}")
        super().__init__("\n".join(lines))

    def with_advice(self, more: str) -> Self:
        """The same error with a further remedy."""
        remedy = more if self.remedy is None else f"{self.remedy}; {more}"
        return type(self)(
            self.what, expected=self.expected, got=self.got, remedy=remedy, code=self.code
        )

    @classmethod
    def unknown(
        cls, what: str, name: object, valid: Iterable[str], *, expected: str = "a valid name"
    ) -> Self:
        """A name that is not among the `valid` ones: the remedy says which is nearest."""
        names = tuple(valid)
        remedy = nearest(str(name), names) if names else f"remove {name!r}"
        return cls(what, expected=expected, got=repr(name), remedy=remedy)


class UsageError(FedauditError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class UntrustedCode(UsageError):
    pass


class DataError(FedauditError):
    exit_code = 3


class OutOfRange(DataError):
    """Features beyond the range that a local mechanism covers."""


class FetchError(DataError):
    pass


class TraceError(FedauditError):
    exit_code = 3
    code = "unusable_recording"


class IntegrityError(TraceError):
    pass


class FormatError(TraceError):
    pass


class NotObservable(TraceError):
    code = "not_observable"


class NotApplicable(FedauditError):
    """The audit's question does not arise. `code` says why and is required."""

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        code: str,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(what, expected=expected, got=got, remedy=remedy, code=code)


class NothingToSay(NotApplicable):
    pass


class LimitBroken(FedauditError):
    exit_code = 4
    code = "limit_broken"


class Interrupted(FedauditError):
    exit_code = 130


def count_of(number: int, noun: str, plural: str = "") -> str:
    """A count with its noun: "1 round", "2 rounds"; `plural` if an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def nearest(name: str, valid: Iterable[str], *, most: int = 8, see: str = "") -> str:
    """A remedy line: the nearest valid name, then all of them.

    Long lists show the `most` nearest, how many more there are, and where to `see` them.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listing = ", ".join(names) if names else "(none)"
    if len(names) > most:
        near = difflib.get_close_matches(name, names, n=most, cutoff=0.0)
        listing = f"{', '.join(near)} and {len(names) - most} more" + (f": {see}" if see else "")
    return f"did you mean {close[0]!r}? Valid: {listing}" if close else f"one of: {listing}"
