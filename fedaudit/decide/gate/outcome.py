"""Outcome of a gate: one check per limit and run, with the numbers behind it.

passed    the confidence bound keeps the limit
failed    the confidence bound breaks the limit
missing   no evidence, too little evidence, or evidence of another trace: the gate fails
allowed   evidence is missing, and the policy or the command line allows that by name
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedaudit.frames import Row, Tabular
from fedaudit.results import Estimate

Status = Literal["passed", "failed", "missing", "allowed"]


@dataclass(frozen=True, kw_only=True)
class LimitReading:
    """One number compared with its limit, for the federation or for one client (`who`).

    `bound` is the end of the interval that is compared with `limit`; `side` is the direction.
    `missing` gives the reason if there is no number.
    """

    who: str = ""
    side: Literal["at most", "at least"] = "at most"
    bound: float | None = None
    limit: float | None = None
    estimate: Estimate | None = None
    missing: str = ""

    @property
    def kept(self) -> bool:
        if self.bound is None or self.limit is None:
            return False
        return self.bound <= self.limit if self.side == "at most" else self.bound >= self.limit

    @property
    def distance(self) -> float:
        """Distance beyond the limit; infinite if the number is missing."""
        if self.bound is None or self.limit is None:
            return math.inf
        if self.bound == self.limit:
            return 0.0
        return (self.bound - self.limit) * (1 if self.side == "at most" else -1)


@dataclass(frozen=True, kw_only=True)
class LimitCheck:
    """One limit, applied to one run.

    `rule` is the limit in words. `readings` are the compared numbers, one per client for a limit
    per client. `explanation` replaces their text, for example for a verdict. `file` holds the
    evidence. `code` tells programs the reason where numbers alone do not decide: the code of a
    need, or "underpowered", "stale", "no_result", "not_stated", "no_audits", "low_confidence",
    "unfinished", "purged", "no_such_run", "two_runs_needed", "no_value", "nothing_left".
    `leak`: of a broken verdict, the share of the way from chance to the most that is surely leaked;
    0 where a leak did not show, but could not have shown either.
    """

    limit: str
    metric: str
    rule: str
    status: Status
    run: str = ""
    readings: tuple[LimitReading, ...] = ()
    explanation: str = ""
    missing: str = ""
    code: str = ""
    remedy: str = ""
    why: str = ""
    file: str = ""
    leak: float | None = None

    @property
    def title(self) -> str:
        return f"{self.limit} ({self.run})" if self.run else self.limit

    @property
    def fingerprint(self) -> str:
        """Identifies the limit and the run; does not depend on measurements."""
        return hashlib.sha256(f"{self.run}\0{self.limit}\0{self.metric}".encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class Gate(Tabular):
    """All checks of a policy; `traces` maps a run to the hash of its trace."""

    run: str
    policy: str
    policy_sha256: str
    version: str
    checks: tuple[LimitCheck, ...]
    traces: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(c.status in ("passed", "allowed") for c in self.checks)

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(c.status for c in self.checks)
        return {s: found.get(s, 0) for s in ("passed", "failed", "missing", "allowed")}

    def rows(self) -> Sequence[Row]:
        """One row per number that was compared; a check without numbers is one row."""
        return [
            {
                "limit": c.limit,
                "status": c.status,
                "run": c.run,
                "metric": c.metric,
                "client": r.who,
                "bound": r.bound,
                "side": r.side,
                "at": r.limit,
                "code": c.code,
                "missing": c.missing or r.missing,
            }
            for c in self.checks
            for r in c.readings or (LimitReading(),)
        ]
