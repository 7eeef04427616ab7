"""What a gate finds: one check per limit and run, with the numbers behind it.

passed    the confidence bound keeps the limit
failed    it does not
missing   there is no evidence, too little, or evidence of another trace: this fails as well
allowed   the same, and the policy or the command line allows it to be missing, by name
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
    """One number compared with its limit: of the federation, or of one client.

    `bound` is the end of the interval that was compared with `limit`, `side` the direction.
    `missing` says why there is no number; it is empty where there is one.
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
        """How far beyond the limit; infinite where a number is missing."""
        if self.bound is None or self.limit is None:
            return math.inf
        if self.bound == self.limit:
            return 0.0
        return (self.bound - self.limit) * (1 if self.side == "at most" else -1)


@dataclass(frozen=True, kw_only=True)
class LimitCheck:
    """One limit, applied to one run.

    `rule` is the limit in words; `readings` are the numbers that were compared (one per client
    where the limit is per client); `said` replaces them where the limit is on a verdict. `file`
    holds the evidence. `code` tells programs why, where numbers alone do not decide: a need's code,
    "underpowered", "stale", "edited", "nothing_left".
    """

    limit: str
    metric: str
    rule: str
    status: Status
    run: str = ""
    readings: tuple[LimitReading, ...] = ()
    said: str = ""
    missing: str = ""
    code: str = ""
    remedy: str = ""
    why: str = ""
    file: str = ""

    @property
    def title(self) -> str:
        return f"{self.limit} ({self.run})" if self.run else self.limit

    @property
    def fingerprint(self) -> str:
        """Identifies the limit and the run, whatever was measured."""
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
