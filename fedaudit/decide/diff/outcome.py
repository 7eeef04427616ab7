"""Outcome of a comparison of two runs: worse, better, changed, or same within the intervals."""

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
    """One measure in two runs; `low` to `high` is the interval of second minus first.

    `p` is the error level at which that interval ends at 0, `adjusted` the level after Holm's
    correction. Both are 0 for exact numbers that differ. `change` is the verdict.
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
    """One column per client: clients that changed beyond their intervals, the largest in `most`."""

    audit: str
    column: str
    clients: int
    worse: int
    better: int
    changed: int
    most: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EpsilonChange:
    """Smallest and largest epsilon of a protection over the clients, in both runs."""

    protection: str
    unit: str
    first: tuple[float, float] | None
    second: tuple[float, float] | None
    worse: int = 0
    better: int = 0


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """An audit with a changed verdict; `why` gives the reason for `change`."""

    audit: str
    first: str
    second: str
    change: Change
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison(Tabular):
    """All differences between two runs of one federation.

    different: differences between the federations themselves, with `--anyway`
    lost: evidence of the first run that the second lacks
    unpaired: results that only the second run has
    notes: remarks for the reader
    """

    run: str
    first: str
    second: str
    differences: tuple[Difference, ...] = ()
    clients: tuple[ClientChanges, ...] = ()
    epsilon: tuple[EpsilonChange, ...] = ()
    verdicts: tuple[VerdictChange, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    lost: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether an estimate, client, epsilon or verdict is worse, or evidence is lost."""
        return (
            any(d.change == "worse" for d in self.differences)
            or any(c.worse for c in self.clients)
            or any(s.worse for s in self.epsilon)
            or any(v.change == "worse" for v in self.verdicts)
            or bool(self.lost)
        )

    def rows(self) -> Sequence[Row]:
        """One row per measure, and one per piece of evidence that was lost."""
        lost = [{"run": self.run, "measure": what, "change": "lost"} for what in self.lost]
        return [
            *lost,
            *(
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
            ),
        ]


class Comparisons(tuple[Comparison, ...], Tabular):
    """The comparisons of two runs (one) or of two studies (one per pair of runs), in order."""

    @property
    def worse(self) -> bool:
        """Whether anything got worse in any pair of runs."""
        return any(c.worse for c in self)

    def rows(self) -> Sequence[Row]:
        return [row for c in self for row in c.rows()]
