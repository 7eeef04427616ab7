"""The answer of `fedaudit.power`: a sample size per measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedaudit.audits.planning import SampleSize
from fedaudit.frames import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class SampleSizes(Tabular):
    """What audits have and need, at one power and one confidence."""

    sizes: tuple[SampleSize, ...]
    power: float
    confidence: float

    def __iter__(self) -> Iterator[SampleSize]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def enough(self) -> bool | None:
        """Whether every measure has what it needs; None where no run was looked at."""
        known = [n.enough for n in self.sizes]
        return None if None in known else all(known)

    def rows(self) -> Sequence[Row]:
        """One row per measure."""
        return [
            {
                "audit": n.audit,
                "measure": n.measure,
                "run": n.run,
                "chance": n.chance,
                "have": n.have,
                "smallest_seen": n.seen,
                "wanted": n.wanted,
                "needed": n.needed,
                "unit": n.unit,
                "enough": n.enough,
                "how": n.how,
            }
            for n in self.sizes
        ]
