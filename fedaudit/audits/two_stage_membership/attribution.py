"""Stage II of all clients of a round: how a surviving update changes the scores of records.

`leave_one_out` and `update_alone` serve the attack and TS-MIA. `measure_segment` measures slopes,
curvature and the remainder on a few records of one client, as Lemma 6 and Theorem 1 need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.arrays import Floats
from fedaudit.audits.records.scoring import (
    Models,
    RecordBatch,
    Scorer,
    score_pools,
)
from fedaudit.audits.two_stage_membership.theory import published_smoothness

COARSE, FINE = 5, 9
"""Gauss-Legendre nodes: the difference of the two rules is the error estimate."""
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Points along the segment where curvature is measured: a grid, not a supremum."""
BOOLE = np.array([7.0, 32.0, 12.0, 32.0, 7.0]) / 90.0
"""Weights of an integral over the grid; Simpson's rule on its ends and middle gives the error."""
KINK = 0.05
"""Share of a slope's change that curvature may leave unexplained before it counts as a jump."""


def leave_one_out(
    scorer: Scorer,
    after: Tensor,
    contributions: Tensor,
    pools: RecordBatch,
    pairs: Sequence[Sequence[int]],
    after_scores: Tensor,
) -> Floats:
    """delta_j(x) = score(x; W + dW) - score(x; W + dW - u_j) (K, R, n): W_base of each client is
    the model without it. [TwoStage] Eqs. (14), (16)

    `after` W + dW (d,), `contributions` u (K, d), `after_scores` (P, n).
    """
    without = score_pools(scorer, Models(after, contributions, -1.0), pools, pairs)
    return _apart(after_scores, without, contributions, pairs)


def update_alone(
    scorer: Scorer,
    before: Tensor,
    contributions: Tensor,
    pools: RecordBatch,
    pairs: Sequence[Sequence[int]],
    before_scores: Tensor,
) -> Floats:
    """score(x; W + u_j) - score(x; W) (K, R, n): each client's update alone. [TwoStage] Eq. (11)

    `before` W (d,), `contributions` u (K, d), `before_scores` (P, n).
    """
    with_it = score_pools(scorer, Models(before, contributions), pools, pairs)
    return -_apart(before_scores, with_it, contributions, pairs)


def _apart(
    common: Tensor, single: Tensor, contributions: Tensor, pairs: Sequence[Sequence[int]]
) -> Floats:
    """Scores of the model that all share (P, n) minus those of single models (K, R, n)."""
    which = torch.as_tensor(np.asarray(pairs, dtype=np.int64))
    out: Floats = (common[which].double() - single.double()).numpy()
    # one model and many use different kernels: their rounding difference is not an increment
    out[~contributions.any(dim=1).numpy()] = 0.0
    return out


@dataclass(frozen=True)
class UpdateSegment:
    """The segment from W_base to W_base + u, for n records of one client; arrays (n,) but for
    `products` (n, n) of score gradients at W_base.

    `increment` delta (Eq. 16), `slope` <H(0), u>, `remainder` integral of <H(t) - H(0), u> with
    `error`, its quadrature error estimate; `directional` sup |u' Hess u| / |u|^2 on the grid,
    `smoothness` sup |Hess u| / |u| on the grid (None: not smooth), `calibrated` the published L.
    `kinked`: slopes jump, although the user declared the score smooth.
    """

    norm: float
    increment: Floats
    slope: Floats
    remainder: Floats
    error: Floats
    directional: Floats | None
    smoothness: Floats | None
    calibrated: Floats
    products: Floats
    kinked: bool = False


def measure_segment(
    scorer: Scorer,
    base: Tensor,
    update: Tensor,
    batch: RecordBatch,
    *,
    smooth: bool,
    claimed_smooth: bool = False,
) -> UpdateSegment:
    """Measure scores along one client's update, in double precision.

    [TwoStage] Lemmas 5 and 6, Eqs. (17, 18)

    `claimed_smooth`: the user declared the score smooth; its layers do not show it. Curvature must
    then explain how slopes change along the segment, which fails if they jump (a ReLU).
    """
    base, u, batch, scorer = base.double(), update.double(), batch.double(), scorer.precise()
    one = RecordBatch(
        batch.x.unsqueeze(0),
        batch.y.unsqueeze(0),
        None if batch.noise is None else batch.noise.unsqueeze(1),
    )

    def at(t: float) -> tuple[Floats, Floats]:
        scores, slopes = scorer.slopes((base + t * u).unsqueeze(0), u.unsqueeze(0), one)
        return scores[0].numpy(), slopes[0].numpy()

    start, slope = at(0.0)
    end, last = at(1.0)
    rules = []
    for count in (COARSE, FINE):
        nodes, weights = np.polynomial.legendre.leggauss(count)
        slopes = np.stack([at(float(t))[1] for t in (nodes + 1) / 2])
        rules.append((weights / 2) @ (slopes - slope))
    # the fine rule's own error is smaller than the difference; rounding is not
    error = np.abs(rules[1] - rules[0]) + 1e-12 * (np.abs(start) + np.abs(end))
    squared = float(u @ u)
    directional = smoothness = None
    kinked = False
    if smooth and squared > 0:
        along, across = [], []
        for t in GRID:  # one at a time: each record's product is as large as the model
            products = scorer.hessian_products(base + t * u, u, batch)
            along.append((products @ u).numpy())
            across.append(products.norm(dim=1).numpy())
        kinked = claimed_smooth and bool(jumps(np.stack(along), last - slope).any())
        if not kinked:
            directional = np.abs(along).max(axis=0) / squared
            smoothness = np.max(across, axis=0) / np.sqrt(squared)
    return UpdateSegment(
        norm=float(np.sqrt(squared)),
        increment=end - start,
        slope=slope,
        remainder=rules[1],
        error=error,
        directional=directional,
        smoothness=smoothness,
        calibrated=_calibrated(at, slope, start, np.sqrt(squared)),
        products=scorer.gradient_products(base, batch).numpy(),
        kinked=kinked,
    )


def jumps(curvature: Floats, change: Floats) -> npt.NDArray[np.bool_]:
    """Records (n,) whose slope changes by another amount than the integral of its curvature (5, n).

    The difference must exceed the rule's error and a share of the curvature. On five points a jump
    without curvature shows; a small jump next to much curvature does not.
    """
    whole = BOOLE @ curvature
    error = np.abs(whole - (curvature[0] + 4.0 * curvature[2] + curvature[4]) / 6.0)
    size = np.abs(curvature).max(axis=0) + np.abs(change)
    return np.asarray(np.abs(change - whole) > 2.0 * error + KINK * size)


def _calibrated(at, slope: Floats, start: Floats, norm: float) -> Floats:  # type: ignore[no-untyped-def]
    """L of each record (n,) as the paper calibrates it: max 2 err / |v|^2 over steps v = t u.

    Every other step in ascending order calibrates; the others, with the whole update, test.
    [TwoStage] Section 6.2
    """
    scales = (1 / 6, 3 / 6, 5 / 6)
    errors = np.stack([np.abs(at(t)[0] - start - t * slope) for t in scales], axis=1)
    lengths = [t * norm for t in scales]
    return np.array([published_smoothness(e, lengths) for e in errors])
