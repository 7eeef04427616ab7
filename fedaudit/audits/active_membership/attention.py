"""The attention adversary: heads that retrieve every pattern except the target.

    W_Q^1 orthogonal to v, W_K = beta pinv(W_Q)^T, W_V = I, W_O = [I -I 0 0; 0 0 -I I], b_O = -gamma
                                                          [ActiveMembership] Algorithm 3, Eq. (8)

Head 1 returns the mean of all patterns in place of the target, and every other pattern unchanged.
Head 2 leaves out a random direction u instead of v. A unit of the output layer is active if and
only if the two heads differ by more than gamma somewhere: [ActiveMembership] Eq. (35).

Differs: in the paper heads 2 and 4 leave out a random direction. The paper assumes that patterns
are as nearly orthogonal to it as to each other; one-hot patterns are not. By default the server
here leaves out a direction that the data hardly use (`least_used_direction`). Softmax logits carry
1 / sqrt(d - 1), so beta sqrt(d - 1) is planted. The closed form uses pinv(W_Q) W_Q = I - v v^T /
|v|^2. Heads 2 and 4 get orthonormal rows: the same projection as any W_Q with that kernel, but well
conditioned.

Shapes: n records of N patterns of d numbers; G games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Rows
from fedaudit.audits.active_membership import theory
from fedaudit.audits.active_membership.patterns import Embedding
from fedaudit.errors import DataError, UsageError
from fedaudit.stats.intervals import clopper_pearson_bounds

if TYPE_CHECKING:
    from fedaudit.tasks.classifier import Classifier


ANSWER_TENSOR = "out_weight"
"""The tensor whose gradient is the answer."""


# -- planted weights ------------------------------------------------------------------------------


def task(embedding: Embedding, *, classes: int = 10) -> Classifier:
    """The model of the game, before weights are planted."""
    import torch

    from fedaudit.audits.active_membership.planted import Memory
    from fedaudit.tasks.classifier import Classifier

    with torch.random.fork_rng(devices=()):  # initial weights are drawn and overwritten
        module = Memory(embedding, classes)
    return Classifier(module, {"kind": "planted"})


def orthogonal_rows(direction: npt.ArrayLike, rng: np.random.Generator) -> Floats:
    """Orthonormal rows (d - 1, d) orthogonal to a direction (d,).

    Lines 5 to 8 of [ActiveMembership] Algorithm 3.
    """
    v = np.asarray(direction, dtype=np.float64)
    if not np.isfinite(v).all() or not np.linalg.norm(v) > 0:
        raise DataError(
            "a target pattern has no direction",
            expected="finite numbers, not all 0",
            got="a zero vector" if np.isfinite(v).all() else "NaN or infinity",
            remedy="choose another pattern of the record",
        )
    w = rng.normal(size=(len(v), len(v)))
    w[:, 0] = v
    q, _ = np.linalg.qr(w)
    return q[:, 1:].T


def weights(
    target: npt.ArrayLike,
    other: npt.ArrayLike,
    *,
    beta: float,
    gamma: float,
    classes: int = 10,
    rng: np.random.Generator,
) -> Rows:
    """One planted model (w,) for a target pattern (d,); heads 2 and 4 leave out `other` (d,).

    [ActiveMembership] Algorithm 3, as a flat row in the order of `task`'s layout.
    """
    if not beta > 0 or not gamma >= 0:
        raise UsageError(
            "beta or gamma is out of range",
            expected="beta above 0, gamma 0 or more",
            got=f"beta = {beta:g}, gamma = {gamma:g}",
            remedy="let AttentionAdversary.prepare choose both",
        )
    first, second = orthogonal_rows(target, rng), orthogonal_rows(other, rng)
    d = first.shape[1]
    query = np.stack([first, second, first, second])
    # the rows are orthonormal: their pseudo-inverse is the transpose
    key = beta * math.sqrt(d - 1) * query
    value = np.broadcast_to(np.eye(d), (4, d, d))
    eye, none = np.eye(d), np.zeros((d, d))
    out = np.block([[eye, -eye, none, none], [none, none, -eye, eye]])
    head = np.zeros(classes + 1)
    head[classes] = 1.0
    parts = (query, key, value, out, np.full(2 * d, -gamma), head, np.zeros(classes + 1))
    return np.concatenate([np.ravel(p) for p in parts]).astype(np.float32)


def least_used_direction(patterns: Floats) -> Floats:
    """The direction (d,) that patterns (..., d) of the known distribution use least."""
    flat = patterns.reshape(-1, patterns.shape[-1])
    return np.asarray(np.linalg.eigh(flat.T @ flat)[1][:, 0])


# -- closed form ----------------------------------------------------------------------------------


def differences(patterns: Floats, target: Floats, other: Floats, beta: float) -> Floats:
    """The largest difference between heads 1 and 2 in every record (..., n).

    `patterns` (..., n, N, d) as trained on; the heads leave out `target` and `other` (..., d).
    """
    x = np.asarray(patterns)
    gram = x @ np.swapaxes(x, -1, -2)
    weights_ = [
        _softmax(beta * (gram - along[..., :, None] * along[..., None, :]))
        for along in (_along(x, target), _along(x, other))
    ]
    apart = (weights_[0] - weights_[1]) @ x
    return np.asarray(np.abs(apart).max(axis=(-1, -2)), dtype=np.float64)


def _along(x: Floats, direction: Floats) -> Floats:
    """Components (..., n, N) of patterns along a direction (..., d)."""
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    return np.asarray((x @ unit.astype(x.dtype)[..., None, :, None])[..., 0])


def _softmax(logits: Floats) -> Floats:
    """Softmax over the last axis, in place."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


# -- Theorem 3 ------------------------------------------------------------------------------------


MARGIN = 0.05
"""Safety margin on the measured separation and noise before beta is chosen: other draws of the
noise may be a little more extreme."""


@dataclass(frozen=True, kw_only=True)
class PatternExtremes:
    """Inputs of Theorem 3: extremes over sampled records of the known distribution.

    `separation` (Delta): the smallest |x_i|^2 - max_j x_i x_j over all patterns. `norm` (M): the
    largest norm of a pattern without noise. `noise` (R): the largest norm of the added noise.
    `spread` (m_max): the largest distance of a pattern from the mean of its record. `records`: the
    number of sampled records.
    """

    patterns: int
    separation: float
    norm: float
    noise: float
    spread: float
    records: int

    @property
    def bound(self) -> float:
        """M + R: an upper bound on the norm of a protected pattern."""
        return self.norm + self.noise

    def with_margin(self) -> PatternExtremes:
        """The same with `MARGIN` less separation and more noise; unchanged without noise."""
        if not self.noise:
            return self
        less = self.separation - MARGIN * abs(self.separation)
        return replace(self, separation=less, noise=(1.0 + MARGIN) * self.noise)


def pattern_extremes(clean: Floats, shown: Floats) -> PatternExtremes:
    """Extremes of clean and protected patterns (n, N, d).

    Differs: M^eps is printed as sqrt(M^2 + R^2), which does not bound a protected norm; M + R does.
    "Delta^eps >= Delta" holds only in the mean, so Delta^eps is measured.
    """
    gram = shown @ np.swapaxes(shown, -1, -2)
    n = shown.shape[-2]
    own = np.diagonal(gram, axis1=-2, axis2=-1)
    others = gram - np.where(np.eye(n, dtype=bool), np.inf, 0.0)
    return PatternExtremes(
        patterns=n,
        separation=float((own - others.max(axis=-1)).min()),
        norm=float(np.linalg.norm(clean, axis=-1).max()),
        noise=float(np.linalg.norm(shown - clean, axis=-1).max()),
        spread=float(np.linalg.norm(shown - shown.mean(axis=-2, keepdims=True), axis=-1).max()),
        records=len(shown),
    )


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Theorem 3 at one beta: the lower bound on the advantage and its terms.

    `low` uses the unfavourable ends of the Monte-Carlo intervals of the three probabilities.
    `sampled`: the number of records behind the extremes.
    """

    beta: float
    gamma: float
    value: float
    low: float
    near_target: float
    near_other: float
    in_box: float
    draws: int
    sampled: int


def floor(
    clean: Floats,
    shown: Floats,
    beta: float,
    *,
    records: int,
    rng: np.random.Generator,
    draws: int = 20_000,
    confidence: float = 0.95,
    other: Floats | None = None,
    measured: PatternExtremes | None = None,
) -> Floor:
    """[ActiveMembership] Theorem 3 by Monte-Carlo, from clean and protected patterns (n, N, d).

    `other` (m, d): directions that heads 2 and 4 leave out; random by default. `measured`: the
    extremes behind beta and gamma; by default those of these patterns. If beta is too small for
    the theorem, the error states one that is large enough.

    Differs from the statement, see the package's card: targets are clean, as in the proof. From the
    proof: the box lies around the mean over all records, not that of the record.
    """
    m = pattern_extremes(clean, shown) if measured is None else measured
    theory.check_beta(beta, m.separation, m.patterns, m.bound)
    error = theory.retrieval_error(beta, m.separation, m.patterns, m.bound)
    radius = theory.projection_radius(beta, m.patterns, m.bound)
    box = theory.box_radius(beta, error, m.spread, m.noise)
    flat, free = shown.reshape(-1, shown.shape[-1]), clean.reshape(-1, clean.shape[-1])
    target = free[rng.integers(0, len(free), draws)]
    target = target[np.linalg.norm(target, axis=1) > 0]
    each = flat[rng.integers(0, len(flat), len(target))]
    left_out = (
        rng.normal(size=each.shape)
        if other is None
        else other[rng.integers(0, len(other), len(target))]
    )
    near = [
        int((np.abs(np.einsum("id,id->i", each, v)) <= radius * np.linalg.norm(v, axis=1)).sum())
        for v in (target, left_out)
    ]
    boxed = int((np.abs(each - flat.mean(axis=0)).max(axis=1) <= box).sum())
    n = len(target)
    # the three probabilities share the error rate
    low, high = clopper_pearson_bounds(np.array([*near, boxed]), n, (1.0 - confidence) / 3.0)
    value = theory.theorem3(near[0] / n, near[1] / n, boxed / n, records, m.patterns)
    return Floor(
        beta=beta,
        gamma=2.0 * error,
        value=value,
        low=theory.theorem3(float(low[0]), float(low[1]), float(high[2]), records, m.patterns),
        near_target=near[0] / n,
        near_other=near[1] / n,
        in_box=boxed / n,
        draws=n,
        sampled=m.records,
    )
