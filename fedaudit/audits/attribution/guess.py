"""The attack's answer: named clients, and the candidates of all rounds behind the decision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.attribution import calibration, over_rounds, scoring, template


@dataclass(frozen=True, kw_only=True)
class AttributionGuess:
    """`designs` (R_t, K) and `scores` (R_t, S + U) per round, and the decision from them.

    `published` (T, K, S + U): differential z-scores of [FedAttr] Eq. (7), NaN where a client was
    absent, None if no single client's update was estimated. `apart`: each key has U unused keys of
    its own; `linear`: scores are about linear in updates. `tables`: scores of each client's update
    as estimated from the groups of all rounds, if these decide. `drawn`: clients, N and M of the
    published pairs. `by_template`: designs and scores are rows of `template.TemplateRows`.
    """

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    keys: int
    designs: tuple[Floats, ...]
    scores: tuple[Floats, ...]
    published: Floats | None
    parts: calibration.Parts
    decision: calibration.NamingDecision
    sequential: calibration.Sequential
    queries: tuple[int, ...]
    uploads: Floats
    reading: str
    notes: tuple[str, ...]
    trace_sha256: str
    vantage: str
    apart: bool = False
    linear: bool = True
    tables: over_rounds.ScoreTables | None = None
    drawn: tuple[int, int, int] | None = None
    by_template: bool = False

    @property
    def blocks(self) -> tuple[scoring.KeyBlock, ...]:
        """Columns of keys, each block with its unused keys."""
        return scoring.blocks(self.scores[0].shape[1], self.keys, self.apart)

    @property
    def rows(self) -> list[template.TemplateRows]:
        """Rows of all rounds, if marks were read by templates."""
        return [template.TemplateRows(a, y) for a, y in zip(self.designs, self.scores, strict=True)]

    @property
    def whole(self) -> bool:
        """Whether every client was tested against every other."""
        return self.tables is None or len(self.names) * (len(self.names) - 1) <= over_rounds.PAIRS

    def named_from(self, error: float) -> Floats:
        """How far (K,) a client has to stand out to be named, in deviations of unused keys."""
        if self.by_template:
            many = len(self.blocks[0].null)
            return template.smallest_named(self.decision.testable, self.keys, many, error)
        design = np.concatenate(self.designs)
        if self.tables is not None:
            return over_rounds.smallest_named(
                design, self.tables, self.keys, error, apart=self.apart
            )
        by = {"apart": self.apart, "linear": self.linear}
        scores, row_rounds = np.concatenate(self.scores), calibration.rounds_of_rows(self.designs)
        return calibration.smallest_named(
            design, scores, self.keys, error, **by, row_rounds=row_rounds
        )

    def decided(
        self, columns: npt.NDArray[np.int64], keys: int, error: float
    ) -> calibration.NamingDecision:
        """The same decision on the keys `columns` alone, the first `keys` of them as the
        owner's."""
        if self.by_template:
            some = [template.TemplateRows(r.design, r.values[:, columns]) for r in self.rows]
            return template.decide(some, keys, error)
        design = np.concatenate(self.designs)
        if self.tables is not None:
            return over_rounds.decide(
                design, over_rounds.select_columns(self.tables, columns), keys, error
            )
        scores = np.concatenate(self.scores)[:, columns]
        row_rounds = calibration.rounds_of_rows(self.designs)
        return calibration.decide(
            design, scores, keys, error, linear=self.linear, row_rounds=row_rounds
        )
