"""Clients with few examples: the first layer's algebra, then gradient matching where it fails.

Matching works on groups of equal size, with labels counted first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedaudit.arrays import Floats, Indices
from fedaudit.audits.reconstruction import analytic, matching, separation
from fedaudit.audits.reconstruction.layers import LinearEnds
from fedaudit.audits.reconstruction.prior import Prior

if TYPE_CHECKING:
    from fedaudit.audits.reconstruction.audit import Reconstruction
    from fedaudit.audits.reconstruction.rows import SeenRows
    from fedaudit.tasks.task import Task

LEARNING_RATE = 0.1
"""Rate of local steps where nobody said one: it decides label counts, and unrolled steps."""


def rebuild(
    task: Task,
    seen: SeenRows,
    ends: LinearEnds,
    prior: Prior,
    audit: Reconstruction,
    rng: np.random.Generator,
    labels: dict[str, Indices],
) -> Iterator[tuple[str, Floats, Literal["separated", "matched"]]]:
    """Guessed records (n, D) of every named sender with at most `matched_size` examples, and how
    they were found; `labels` receives the counts (C,) of their classes."""
    start, rows, senders = seen.start, seen.rows, seen.senders
    by_size: dict[int, list[int]] = defaultdict(list)
    small = [
        j
        for j, sender in enumerate(senders)
        if 0 < prior.sizes.get(sender, 0) <= audit.matched_size and np.any(rows[j])
    ]
    tried = small[: audit.matched_clients]
    if ends.last is not None:
        labels |= _label_counts(task, start, rows, senders, tried, ends.last[1], prior)
    for j in tried:
        apart = ends.first and _separated(task, start, rows[j], ends.first, prior, rng)
        if apart is not None:
            yield senders[j], apart, "separated"
        if apart is None or len(apart) < prior.sizes[senders[j]]:
            by_size[prior.sizes[senders[j]]].append(j)
    if ends.last is None or not by_size:
        return
    model = torch.from_numpy(start.copy())
    low, high = (
        torch.from_numpy(v.astype(np.float32)).view(prior.shape) for v in (prior.low, prior.high)
    )
    rate = prior.learning_rate or LEARNING_RATE
    for size, mine in sorted(by_size.items()):
        local = _steps(prior, size)
        search = matching.MatchingSearch(
            steps=audit.steps,
            restarts=audit.restarts,
            tv=audit.variation,
            local=local,
            learning_rate=rate,
        )
        known = [np.repeat(np.arange(len(c)), c) for c in (labels[senders[j]] for j in mine)]
        x, _ = matching.match(
            task,
            model,
            torch.from_numpy(rows[mine]),
            torch.from_numpy(np.stack(known)),
            low,
            high,
            search,
            rng,
        )
        for j, guessed in zip(mine, x.flatten(2).double().numpy(), strict=True):
            yield senders[j], guessed, "matched"


def _separated(
    task: Task,
    start: npt.NDArray[np.float32],
    row: npt.NDArray[np.float32],
    first: tuple[str, str],
    prior: Prior,
    rng: np.random.Generator,
) -> Floats | None:
    """Plausible records (n, D) that the first layer's zeros tell apart."""
    at = {e.name: slice(e.offset, e.offset + e.size) for e in task.layout.entries}
    weight, bias = (at[name] for name in first)
    db = row[bias]
    rounding = 0.5 * float(np.finfo(np.float32).eps) * float(np.abs(start[weight]).max())
    x = separation.separate(row[weight].reshape(len(db), -1), db, rounding, rng)
    if x is None:
        return None
    fits = analytic.plausible(x, prior.low, prior.high)
    return np.clip(x[fits], prior.low, prior.high)


def _label_counts(
    task: Task,
    start: npt.NDArray[np.float32],
    rows: npt.NDArray[np.float32],
    senders: tuple[str, ...],
    which: list[int],
    last_bias: str,
    prior: Prior,
) -> dict[str, Indices]:
    """Counts (C,) of classes for each of some senders, from the last bias's update."""
    typical = _softmax(task, torch.from_numpy(start.copy()), prior)
    rate = prior.learning_rate or LEARNING_RATE
    bias = next(e for e in task.layout.entries if e.name == last_bias)
    out = {}
    for j in which:
        moved = rows[j, bias.offset : bias.offset + bias.size].astype(np.float64)
        size = prior.sizes[senders[j]]
        out[senders[j]] = matching.label_counts(moved, typical, size, rate * _steps(prior, size))
    return out


def _steps(prior: Prior, size: int) -> int:
    """Local steps to unroll: full batches, because the order of smaller ones is unknown."""
    batch = min(prior.batch_size or size, size)
    return prior.epochs * -(-size // batch)


def _softmax(task: Task, model: torch.Tensor, prior: Prior) -> npt.NDArray[np.float64]:
    """Mean softmax (C,) of the model at the typical record."""
    x = torch.from_numpy(prior.middle.astype(np.float32)).view(1, *prior.shape)
    with torch.no_grad(), task.evaluating():
        output = task.output(task.named(model), x, torch.zeros(1, dtype=torch.int64), None)
        found: npt.NDArray[np.float64] = output.softmax(-1).mean(0).double().numpy()
    return found
