"""Score the candidates of one round on the owner's keys and on unused ones.

Shapes: candidates (R, d); scores (R, S + U) on S keys of the owner and U unused ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.attribution import estimator, scoring
from fedaudit.audits.attribution.answers import (
    DrawPairs,
    candidates_of,
    check_size,
    in_model_order,
    model_of,
    updates_of,
)
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.trace import View
from fedaudit.trace.ledger import RoundQueries

SOLVED = "updates that the sums of the published pairs determine"

AT_ONCE = 2**26
"""Numbers of candidate updates that are made and scored at a time: half a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class RoundScores:
    """Scores of one round's candidates.

    `design` (R, K) and differential `scores` (R, S + U) belong to the candidates that decide.
    `published` (K, S + U) are differential z-scores of [FedAttr] Eq. (7), None unless every
    candidate estimates a single client. `start` (d,) and `means` (R, d) are the model and the group
    means, None unless groups of all rounds may be read together. `reading` says how candidates
    were made, `lost` how many are missing.
    """

    number: int
    design: Floats
    scores: Floats
    reading: str
    lost: int
    published: Floats | None = None
    start: Floats | None = None
    means: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class CandidateScorer:
    """Makes and scores the candidates of a round.

    `names` (K,) are the clients; `columns`: recorded columns in the model's order, if it differs;
    `weight`: factor of the recorded updates; `draw`: the pairs that the server drew, if known.
    """

    view: View
    names: tuple[str, ...]
    marks: Marks
    unused_keys: int
    draw: DrawPairs | None
    columns: npt.NDArray[np.int64] | None
    weight: float

    def score(self, ledger: RoundQueries, kept: int) -> RoundScores | None:
        """Scores of one round; None if its answers estimate no client.

        `kept`: number of group means of earlier rounds that are in memory.
        """
        found = candidates_of(self.view, ledger, self.names, self.draw)
        if found is None:
            return None
        candidates, queries, reading, lost = found
        decisive = estimator.decisive(candidates, queries)
        if decisive is not candidates:
            reading = f"{SOLVED} (published scores: {reading})"
        start = in_model_order(model_of(self.view, ledger.round), self.columns)
        linear = bool(getattr(self.marks, "linear", True))
        grouped = not linear and bool((candidates.target < 0).all())
        if grouped:
            check_size(kept + len(candidates) + len(self.names), len(start))
        coefficients = [c.coefficients for c in dict.fromkeys((candidates, decisive))]
        raw, means = self._statistics(ledger, np.concatenate(coefficients), start, grouped)
        published = None
        if (candidates.target >= 0).all():
            published = self._published(raw[: 1 + len(candidates)], candidates.target)
        return RoundScores(
            number=ledger.round,
            design=decisive.design,
            scores=scoring.differential(raw[-len(decisive) :], raw[0]),
            reading=reading,
            lost=lost,
            published=published,
            start=start if grouped else None,
            means=means,
        )

    def _statistics(
        self, ledger: RoundQueries, coefficients: Floats, start: Floats, keep: bool
    ) -> tuple[Floats, npt.NDArray[np.float32] | None]:
        """Statistics (1 + R, S + U) of the model and of model + candidate; candidates if `keep`."""
        pieces: list[Floats] = []
        updates: list[npt.NDArray[np.float32]] = []
        for some in updates_of(self.view, ledger, coefficients, AT_ONCE):
            own = in_model_order(some / self.weight, self.columns)
            # the model itself is scored with the first of them
            first = [] if pieces else [start[None]]
            rows = np.vstack([*first, start + own])
            pieces.append(self.marks.statistics(rows, self.unused_keys))
            if keep:
                updates.append(own.astype(np.float32))
        return np.concatenate(pieces), np.concatenate(updates) if keep else None

    def _published(self, raw: Floats, target: npt.NDArray[np.int64]) -> Floats:
        """[FedAttr] Eq. (7) on z-scores from statistics (1 + R, S + U), the model first: (K, S +
        U).

        NaN for clients without an estimate.
        """
        z = raw
        if not getattr(self.marks, "standard", False):
            apart = bool(getattr(self.marks, "apart", False))
            z = scoring.standardised(raw, len(self.marks.keys), apart=apart, every=True)
        out = np.full((len(self.names), z.shape[1]), np.nan)
        out[target] = scoring.differential(z[1:], z[0])
        return out
