"""What two runs of one federation differ in: worse, better, changed, or within the intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedaudit.frames import Row, Tabular
from fedaudit.results import Estimate

Change = Literal["worse", "better", "changed", "same"]
SIGNIFICANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One measure in two runs: `low` to `high` encloses second minus first.

    `p` is the error at which that interval would end at 0, `adjusted` the same after Holm's
    correction; both are 0 for exact numbers that differ. `change` is the verdict.
    """

    audit: str
    measure: str
    first: Estimate
    second: Estimate
    value: float
    low: float
    high: float
    p: float
    adjusted: float
    change: Change
    headline: bool = False
    who: str = ""


@dataclass(frozen=True, kw_only=True)
class ClientChanges:
    """One per-client column: how many clients changed beyond their intervals, and which most."""

    audit: str
    column: str
    clients: int
    worse: int
    better: int
    changed: int
    most: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a protection promised in both runs: smallest and largest epsilon over the clients."""

    protection: str
    unit: str
    first: tuple[float, float] | None
    second: tuple[float, float] | None
    worse: int = 0
    better: int = 0


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """An audit that says something else now; `why` says what makes it worse or excuses it."""

    audit: str
    first: str
    second: str
    change: Change
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison(Tabular):
    """All that two runs of one federation differ in.

    `different` says in what the federations themselves differ, where they were compared anyway;
    `lost` what the first run shows and the second does not, `unpaired` what only the second has;
    `notes` what a reader should know.
    """

    run: str
    first: str
    second: str
    differences: tuple[Difference, ...] = ()
    clients: tuple[ClientChanges, ...] = ()
    epsilon: tuple[Spent, ...] = ()
    verdicts: tuple[VerdictChange, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    lost: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether anything got worse: an estimate, a client, a promise, a verdict; or is gone."""
        return (
            any(d.change == "worse" for d in self.differences)
            or any(c.worse for c in self.clients)
            or any(s.worse for s in self.epsilon)
            or any(v.change == "worse" for v in self.verdicts)
            or bool(self.lost)
        )

    def rows(self) -> Sequence[Row]:
        """One row per measure."""
        return [
            {
                "run": self.run,
                "audit": d.audit,
                "measure": d.measure,
                "client": d.who,
                "change": d.change,
                "first": d.first.value,
                "second": d.second.value,
                "difference": d.value,
                "low": d.low,
                "high": d.high,
                "p": d.adjusted,
            }
            for d in self.differences
        ]


class Comparisons(tuple[Comparison, ...], Tabular):
    """The comparisons of two runs (one) or of two studies (one per pair of runs), in order."""

    @property
    def worse(self) -> bool:
        """Whether anything got worse in any pair of runs."""
        return any(c.worse for c in self)

    def rows(self) -> Sequence[Row]:
        return [row for c in self for row in c.rows()]
