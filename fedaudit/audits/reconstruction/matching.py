"""Gradient matching: records whose own training would give the update. [Geiping] Eq. (4)

All rows of equal size and all restarts are one batch: the model is stacked, the gradient of the
gradient is one graph. Signed Adam with three drops of the step, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.tasks.task import Task

DROPS = (3 / 8, 5 / 8, 7 / 8)
"""Parts of the search after which the step falls to a tenth, as in the published code."""


@dataclass(frozen=True, kw_only=True)
class MatchingSearch:
    """Settings of the search: `steps` iterations from `restarts` random starts; `tv` weighs total
    variation (images); `rate` is the first step as a part of the range; `local` full-batch steps of
    `learning_rate` are unrolled."""

    steps: int = 400
    restarts: int = 2
    rate: float = 0.1
    tv: float = 1e-4
    local: int = 1
    learning_rate: float = 0.1


def label_counts(
    bias: npt.NDArray[np.float64], mean_output: npt.NDArray[np.float64], size: int, scale: float
) -> npt.NDArray[np.int64]:
    """Number of a client's records of each class, (C,), from the last bias's update (C,).

    A step moves bias c by -rate (mean softmax_c - share of class c). `scale`: the sum of the rates
    of all steps. `mean_output` (C,): softmax of the model at typical records. The largest
    remainders make the counts sum to `size`.
    """
    share = np.clip(mean_output + bias / scale, 0.0, None)
    expected = size * share / max(share.sum(), 1e-12)
    counts = np.floor(expected).astype(np.int64)
    rest = np.argsort(-(expected - counts), kind="stable")[: size - int(counts.sum())]
    counts[rest] += 1
    return counts


def match(
    task: Task,
    start: Tensor,
    target: Tensor,
    labels: Tensor,
    low: Tensor,
    high: Tensor,
    search: MatchingSearch,
    generator: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Records (R, n, ...) for updates `target` (R, d) of the model `start` (d,), and their cosine.

    `labels` (R, n); `low`, `high` (...) of a record. Of the restarts of a row the best is kept.
    """
    import torch

    rows, size = labels.shape
    many = rows * search.restarts
    y = labels.repeat_interleave(search.restarts, dim=0)
    wanted = target[:, : task.trained].repeat_interleave(search.restarts, dim=0)
    wanted = wanted / wanted.norm(dim=1, keepdim=True).clamp_min(1e-30)
    drawn = generator.random((many, size, *low.shape), dtype=np.float32)
    part = torch.from_numpy(drawn).requires_grad_(True)  # position in the range, 0 to 1
    optimizer = torch.optim.Adam([part], lr=search.rate)
    drops = [int(search.steps * at) for at in DROPS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=0.1)
    best = torch.full((many,), -2.0)
    found = torch.zeros_like(part)
    for _ in range(search.steps):
        x = low + (high - low) * part
        cosine = (_update(task, start, x, y, search) * wanted).sum(dim=1)
        with torch.no_grad():
            better = cosine > best
            best = torch.where(better, cosine, best)
            found[better] = x[better]
        loss = (1.0 - cosine).sum() + search.tv * _variation(x)
        (gradient,) = torch.autograd.grad(loss, [part], allow_unused=True)
        if gradient is None:
            raise NotApplicable(
                "the model cuts the slope from its update to its records",
                code="not_differentiable",
                expected="layers whose output changes smoothly with their input",
                got="a layer that rounds, compares or picks",
                remedy="gradient matching cannot search here; other ways of rebuilding go on",
            )
        part.grad = gradient.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            part.clamp_(0.0, 1.0)
    best, found = best.view(rows, -1), found.view(rows, search.restarts, *found.shape[1:])
    which = best.argmax(dim=1)
    return found[torch.arange(rows), which], best.max(dim=1).values


def _update(task: Task, start: Tensor, x: Tensor, y: Tensor, search: MatchingSearch) -> Tensor:
    """Unit direction (R, d) of the update that training on x (R, n, ...) gives, with a graph."""
    import torch

    p = start.expand(len(x), -1).clone().requires_grad_(True)
    begin = p
    for _ in range(search.local):
        gradient = _gradient(task, p, x, y)
        p = p - search.learning_rate * gradient
    moved = (p - begin)[:, : task.trained]
    return moved / torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp_min(1e-30)


def _gradient(task: Task, p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradients (R, d) of the mean losses of R models p (R, d) on x (R, n, ...)."""
    import torch

    from fedaudit.tasks.stacked import NotStackable

    try:
        losses = task.stacked_losses(task.differentiable(p), x, y, None).mean(dim=1)
    except NotStackable:
        own = zip(p, x, y, strict=True)
        losses = torch.stack(
            [task.losses(task.differentiable(q), a, b, None).mean() for q, a, b in own]
        )
    (gradient,) = torch.autograd.grad(losses.sum(), [p], create_graph=True, allow_unused=True)
    return gradient


def _variation(x: Tensor) -> Tensor:
    """Total variation of images (R, n, [C,] H, W), summed; 0 for rows of numbers."""
    import torch

    if x.dim() < 4:
        return torch.zeros(())
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    right = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
    return (down + right) * len(x)
