"""The attack: the rows of a round, the model before it and records of every site, in; names, out.

Shapes: K rows (K, d), P sites with n records each, (P, n, ...) with `present` where pools are
padded; fits (K, P) as in `stats.naming`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices, Rows
from fedaudit.audits.records.pools import flatten_pools
from fedaudit.stats import naming
from fedaudit.stats.combine import stouffer

if TYPE_CHECKING:
    import torch

    from fedaudit.audits.records.scoring import RecordBatch, Scorer

Kinds = tuple[Floats, Floats]
"""Fits (K, P) of a round's rows to the sites: by the scores and by the gradient of records."""


@dataclass(frozen=True)
class Pools:
    """Records of the sites side by side, `present` (P, n) those that count."""

    batch: RecordBatch
    present: Bools


@dataclass(frozen=True, kw_only=True)
class RoundEvidence:
    """Evidence of the records about the rows of one round.

    `by_count`: number of candidate records -> fits. `enrolled`: fits by enrolled records, None
    without any. `scores` (K, P, n): evidence for every candidate under every row, and `moved`
    (P, n) what all rows together did to it.
    """

    by_count: Mapping[int, Kinds]
    enrolled: Kinds | None
    scores: Rows
    moved: Rows


def round_evidence(
    scorer: Scorer,
    start: torch.Tensor,
    rows: Rows,
    step: float,
    pools: Pools,
    enrolled: Pools | None,
    counts: Sequence[int],
) -> RoundEvidence:
    """Evidence of one round: rows (K, d) on top of the model `start` (d,).

    `step` turns a row into a step of the model. `counts`: of how many candidate records per site.
    """
    scores = _scores_by_row(scorer, start, rows, step, pools)
    first = scorer.evidence(scorer.one(start, flatten_pools(pools.batch))).view(pools.present.shape)
    cuts = [pools.present & (np.arange(pools.present.shape[1]) < m) for m in counts]
    # gradients add up over records: what lies between two counts is computed once
    parts = [cut & ~before for cut, before in zip(cuts, [cuts[0] & False, *cuts], strict=False)]
    each = [_gradients(scorer, start, pools, part) for part in parts]
    by_count = {}
    for i, (m, cut) in enumerate(zip(counts, cuts, strict=True)):
        gradient = np.sum(each[: i + 1], axis=0)
        by_count[m] = naming.fits(scores, cut), along(rows, gradient, cut)
    known = None
    if enrolled is not None:
        own = _scores_by_row(scorer, start, rows, step, enrolled)
        gradient = _gradients(scorer, start, enrolled, enrolled.present)
        known = naming.fits(own, enrolled.present), along(rows, gradient, enrolled.present)
    return RoundEvidence(
        by_count=by_count,
        enrolled=known,
        scores=scores.astype(np.float32),
        moved=(scores.mean(axis=0) - first.double().numpy()).astype(np.float32),
    )


def along(rows: Rows, gradients: Rows, present: Bools) -> Floats:
    """Inner products (K, P) of rows (K, d) with the mean gradient of each site's records (P, d).

    The parts that all rows or all sites have in common are subtracted: they identify no site. Under
    equal noise on all coordinates this is the likelihood ratio of a step along the gradient.
    """
    mean = gradients / np.maximum(present.sum(axis=1), 1)[:, None]
    own = mean - mean.mean(axis=0)
    return np.asarray((rows - rows.mean(axis=0)).astype(np.float64) @ own.T)


def _scores_by_row(
    scorer: Scorer, start: torch.Tensor, rows: Rows, step: float, pools: Pools
) -> Floats:
    """Evidence (K, P, n) for every record under the model plus every single row."""
    from fedaudit.audits.records.scoring import Models, score_pools

    pairs: list[Sequence[int]] = [range(len(pools.present))] * len(rows)
    found = score_pools(scorer, Models(start, rows, step), pools.batch, pairs)
    return np.asarray(scorer.evidence(found).double().numpy())


def _gradients(scorer: Scorer, start: torch.Tensor, pools: Pools, counted: Bools) -> Rows:
    """Summed score gradients (P, d) of the counted records (P, n), of trained numbers only."""
    import torch

    sums = scorer.pool_gradients(start, pools.batch, torch.from_numpy(counted.astype(np.float32)))
    out: Rows = sums.numpy()
    for entry in scorer.task.layout.entries:
        if entry.role != "parameter":
            out[:, entry.offset : entry.offset + entry.size] = 0.0
    return out


# -- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to name: P(client | row) of every round [(K_t, P_t)], the client of every row
    [(K_t,)] as a number in `asked`, and how far links were trusted."""

    posterior: list[Floats]
    names: list[Indices]
    trust: float


@dataclass(frozen=True, kw_only=True)
class AskedRounds:
    """Clients asked in every round, by number: `asked` [(P_t,)]; `holds` (P,): clients of which the
    adversary has records; `groups` [(K_t,)]: linked rows, None if they were not linked."""

    asked: Sequence[Indices]
    holds: Bools
    groups: Sequence[Indices] | None = field(default=None)

    def until(self, rounds: int, groups: Sequence[Indices] | None) -> AskedRounds:
        return AskedRounds(asked=self.asked[:rounds], holds=self.holds, groups=groups)


def read(
    kinds: Sequence[Sequence[Floats]], design: AskedRounds, rng: np.random.Generator, *, links: bool
) -> Reading:
    """Names from several kinds of fits, each [(K_t, P)] over all clients with records.

    A client without records has the likelihood ratio one: it can be named by exclusion.
    """
    place = np.cumsum(design.holds) - 1
    here = [place[own[design.holds[own]]] for own in design.asked]
    cut = [[fit[:, at] for fit, at in zip(kind, here, strict=True)] for kind in kinds]
    ratios = []
    for own, found in zip(design.asked, naming.weigh_fits(cut), strict=True):
        ratio = np.zeros((len(found), len(own)))
        ratio[:, design.holds[own]] = found
        ratios.append(ratio)
    posterior, trust = naming.posteriors(ratios, design.asked, design.groups if links else None)
    names = []
    for p, own in zip(posterior, design.asked, strict=True):
        chosen = naming.names(p, rng)
        names.append(np.where(chosen >= 0, own[chosen], -1))
    return Reading(posterior=posterior, names=names, trust=trust)


# -- membership -----------------------------------------------------------------------------------


def membership_statistics(
    evidence: Sequence[RoundEvidence], names: Sequence[Indices], holds: Bools, present: Bools
) -> dict[str, Floats]:
    """Statistics (P', n) of each held site's candidates, greater means member, over all rounds.

    `named`: the row named as the site's against all others. `best row` and `all rows`: what an
    adversary without names has.
    """
    clients = np.flatnonzero(holds)
    found: dict[str, list[Floats]] = {"named": [], "best row": [], "all rows": []}
    for own, given in zip(evidence, names, strict=True):
        rows = np.full(len(clients), -1, dtype=np.int64)
        for i, client in enumerate(clients):
            at = np.flatnonzero(given == client)
            if len(at):
                rows[i] = at[0]
        scores = own.scores.astype(np.float64)
        found["named"].append(naming.own_row(scores, rows, present))
        found["best row"].append(naming.best_row(scores, present))
        found["all rows"].append(own.moved.astype(np.float64))
    return {name: _summed(each, present) for name, each in found.items()}


def _summed(each: Sequence[Floats], present: Bools) -> Floats:
    """Stouffer's sum over the rounds in which a site has a value, each in its own spread."""
    scaled = []
    for values in each:
        usable = present & np.isfinite(values)
        spread = float(values[usable].std()) if usable.any() else 0.0
        scaled.append(np.where(np.isfinite(values), values, np.nan) / (spread or 1.0))
    return stouffer(np.stack(scaled))
