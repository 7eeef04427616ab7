"""Limits that a recorder checks after every round of training by other software."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fedaudit.errors import LimitBroken, UsageError
from fedaudit.trace.limits import FAULTS, reason_of

log = logging.getLogger("fedaudit.recorder")


def watch_of(policy: Any, stop: bool) -> RoundWatch | None:
    """The watch that a recorder was asked for, if any."""
    if stop and policy is None:
        raise UsageError(
            "there is no limit at which to stop",
            expected="a policy beside stop=True",
            got="no policy",
            remedy='policy="policy.toml", as in docs/watch.md',
        )
    return None if policy is None else RoundWatch(policy, stop=stop)


class RoundWatch:
    """Checks a policy after every recorded round: a broken limit is logged, once.

    `stop`: `after_round` then raises LimitBroken, which ends the federation. A fault of the watch
    itself is logged and ends the watch alone. Needs the whole of fedaudit.
    """

    def __init__(self, policy: Any, *, stop: bool = False) -> None:
        try:
            from fedaudit.decide.watch import Watch
        except ImportError as error:
            raise UsageError(
                "a policy cannot be checked here",
                expected="the whole of fedaudit with its dependencies",
                got=f"a bare installation: {error}",
                remedy="pip install fedaudit, or `fedaudit watch TRACE` on another machine",
            ) from None
        self._watch = Watch(policy, names=True)
        self._stop, self._said, self._faulty = stop, set[str](), False

    def after_round(self, path: Path) -> None:
        """Read the rounds written since the last call."""
        if self._faulty:
            return
        try:
            readings = self._watch.update(path)
        except FAULTS as error:
            self._faulty = True
            log.error("fedaudit does not watch %s any more: %s", path, reason_of(error))
            return
        for reading in readings:
            if not reading.broken:
                continue
            new = {c.limit for c in reading.broken} - self._said
            self._said |= new
            if new:
                log.warning("round %d breaks a limit: %s", reading.round, reading.reason)
            if self._stop:
                raise LimitBroken(
                    f"round {reading.round} breaks a limit, the federation is stopped",
                    expected=", ".join(f"{c.limit}: {c.rule}" for c in reading.broken),
                    got=reading.reason,
                    remedy="change the protection, or the limit, and start again",
                )
