"""Scores of many models on many records: one batched pass, and derivatives along an update.

A higher score means that a model fits a record better. It is the negative loss of an example (for a
language model the log-likelihood of a window, for an autoencoder the evidence lower bound), or any
callable `(task, parameters, x, y, noise) -> (n,)`. Random numbers of a score are fixed per record,
so that two models are compared on the same draws. [TwoStage] Section 4.1
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.tasks.models import (
    Attention,
    Block,
    ConditionalVAE,
    FeedForward,
    LowRank,
    TinyGPT,
    TinyViT,
)
from fedaudit.tasks.stacked import NotStackable, Parameters
from fedaudit.tasks.task import Task

Score = Callable[[Task, Parameters, Tensor, Tensor, Tensor | None], Tensor]

NUMBERS_AT_ONCE = 2**20
"""Most outputs of a block of models and records: they fit in the cache."""
WEIGHTS_AT_ONCE = 2**23
"""Most weights of the models of a block (32 MB): models of a round are formed block by block."""


@dataclass(frozen=True)
class Models:
    """K models: `base` (d,) or (K', d) plus `factor` times `rows` (K', d), rows `which` (K,) of
    them.

    `which` None: all. Indexing forms the models, a block at a time.
    """

    base: Tensor | npt.NDArray[np.float32]
    rows: Tensor | npt.NDArray[np.float32]
    factor: float = 1.0
    which: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.which is None else len(self.which)

    def __getitem__(self, at: int | slice) -> Tensor:
        """One model (d,) or some (k, d)."""
        take = at if self.which is None else np.asarray(self.which)[at]
        base = self.base if self.base.ndim == 1 else self.base[take]
        # recorded arrays are read-only, and torch would warn: copy the block
        steps, start = (
            v if isinstance(v, Tensor) else torch.from_numpy(np.array(v, dtype=np.float32))
            for v in (self.rows[take], base)
        )
        return start + self.factor * steps


@dataclass(frozen=True)
class RecordBatch:
    """Records with the random numbers of their scores: `x` (n, ...), `y` (n,), `noise` (draws, n,
    ...) or None where the score is deterministic."""

    x: Tensor
    y: Tensor
    noise: Tensor | None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> RecordBatch:
        noise = None if self.noise is None else self.noise[:, rows]
        return RecordBatch(self.x[rows], self.y[rows], noise)

    def block(self, models: slice, records: slice) -> RecordBatch:
        """Some models' part of some records, of stacked records (K, n, ...)."""
        noise = None if self.noise is None else self.noise[:, models, records]
        return RecordBatch(self.x[models, records], self.y[models, records], noise)

    def double(self) -> RecordBatch:
        x = self.x.double() if self.x.is_floating_point() else self.x
        return RecordBatch(x, self.y, None if self.noise is None else self.noise.double())


class Scorer:
    """Scores of models by one task; `custom` replaces the negative loss."""

    def __init__(self, task: Task, custom: Score | None = None) -> None:
        self.task, self.custom = task, custom
        self._stackable = custom is None
        self._width: int | None = None
        self._precise: Scorer | None = None

    def precise(self) -> Scorer:
        """The same scores in double precision, including frozen layers that clients do not send."""
        if self._precise is None:
            task = copy.copy(self.task)
            task.module = copy.deepcopy(self.task.module).double()
            self._precise = Scorer(task, self.custom)
        return self._precise

    def one(self, model: Tensor, batch: RecordBatch) -> Tensor:
        """Scores (n,) of one model (d,) on n records."""
        with torch.no_grad(), self._evaluation_mode():
            p = self.task.named(model)
            fit = max(1, NUMBERS_AT_ONCE // self._numbers_per_record(model, batch))
            parts = [
                self._mean(partial(self._single, p), batch.take(rows))
                for rows in torch.split(torch.arange(len(batch)), fit)
            ]
            return self._finite(torch.cat(parts))

    def each(self, models: Tensor | Models, batch: RecordBatch) -> Tensor:
        """Scores (K, n) of K models (K, d), each on its own n records: x (K, n, ...).

        In blocks of models and records whose outputs stay in the cache.
        """
        with torch.no_grad(), self._evaluation_mode():
            first = RecordBatch(
                batch.x[0], batch.y[0], None if batch.noise is None else batch.noise[:, 0]
            )
            fit = max(1, NUMBERS_AT_ONCE // self._numbers_per_record(models[0], first))
            most = min(len(models), max(1, WEIGHTS_AT_ONCE // models[0].numel()))
            across = max(1, min(most, fit // max(1, min(batch.x.shape[1], fit))))
            # few models with many records each, or many models with few records
            along = max(1, fit // across)
            parts = []
            for low in range(0, len(models), across):
                rows = slice(low, low + across)
                cuts = [
                    self._block(models[rows], batch.block(rows, slice(at, at + along)))
                    for at in range(0, batch.x.shape[1], along)
                ]
                parts.append(torch.cat(cuts, dim=1))
            return self._finite(torch.cat(parts))

    def _numbers_per_record(self, model: Tensor, batch: RecordBatch) -> int:
        """Numbers that one model computes per record: its output, or a few times its input."""
        if self._width is None and self.custom is not None:
            # a custom score may use the module in any way
            self._width = max(4 * batch.x[0].numel(), 1)
        if self._width is None:
            few = batch.take(torch.arange(1))
            z = None if few.noise is None else few.noise[0]
            out = self.task.output(self.task.named(model), few.x, few.y, z)
            tensors = out if isinstance(out, tuple | list) else (out,)
            made = sum(t.numel() for t in tensors if isinstance(t, Tensor))
            self._width = max(made, 4 * few.x.numel(), 1)
        return self._width

    def evidence(self, scores: Tensor) -> Tensor:
        """Scores on the scale of the task's likelihood-ratio test."""
        return scores if self.custom is not None else self.task.evidence(scores)

    def _block(self, models: Tensor, batch: RecordBatch) -> Tensor:
        if self._stackable:
            try:
                p = self.task.named(models)
                return self._mean(lambda x, y, z: self._stacked(p, x, y, z), batch)
            except NotStackable:
                self._stackable = False
        out = []
        for k, model in enumerate(models):
            noise = None if batch.noise is None else batch.noise[:, k]
            own = RecordBatch(batch.x[k], batch.y[k], noise)
            p = self.task.named(model)
            out.append(self._mean(partial(self._single, p), own))
        return torch.stack(out)

    def _single(self, p: Parameters, x: Tensor, y: Tensor, z: Tensor | None) -> Tensor:
        if self.custom is None:
            return self.task.scores(p, x, y, z)
        out = self.custom(self.task, p, x, y, z)
        if not isinstance(out, Tensor) or out.shape != y.shape:
            raise ConfigError(
                "a score function does not give one number per record",
                expected=f"a tensor of shape {tuple(y.shape)}",
                got=f"a tensor of shape {tuple(out.shape)}"
                if isinstance(out, Tensor)
                else type(out).__name__,
                remedy="return a higher number the better the model fits the record",
            )
        return out

    def _stacked(self, p: Parameters, x: Tensor, y: Tensor, z: Tensor | None) -> Tensor:
        return self.task.stacked_scores(p, x, y, z)

    @staticmethod
    def _mean(
        score: Callable[[Tensor, Tensor, Tensor | None], Tensor], batch: RecordBatch
    ) -> Tensor:
        """Mean over the draws of a score's own random numbers."""
        if batch.noise is None:
            return score(batch.x, batch.y, None)
        return torch.stack([score(batch.x, batch.y, z) for z in batch.noise]).mean(0)

    def _finite(self, scores: Tensor) -> Tensor:
        if not bool(torch.isfinite(scores).all()):
            count = int((~torch.isfinite(scores)).sum())
            raise NotApplicable(
                "a score is not a number",
                code="not_finite",
                expected="finite scores of every record under every model",
                got=f"{count} of {scores.numel()} scores are NaN or infinite",
                remedy="look at the model (it may have diverged) or at the score function",
            )
        return scores

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Evaluation mode, and plain attention: other kernels have no second derivative."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with self.task.evaluating(), sdpa_kernel(SDPBackend.MATH):
            yield

    # -- derivatives along an update -------------------------------------------------------------
    # By reverse mode throughout: forward mode would load torch's compiler, which takes seconds.

    def slopes(
        self, models: Tensor, directions: Tensor, batch: RecordBatch
    ) -> tuple[Tensor, Tensor]:
        """Scores (K, n) and directional derivatives <grad score, u> (K, n) of K models (K, d)
        along K directions (K, d), each on its own records.

        sum_i v_i grad score_i is linear in v, and so is its product with u. So its derivative by v
        is the slope of every record at once.
        """
        with self._evaluation_mode(), torch.enable_grad():
            at = models.detach().requires_grad_()
            scores = self._differentiable(at, batch)
            v = torch.zeros_like(scores, requires_grad=True)
            (pulled,) = torch.autograd.grad(scores, at, v, create_graph=True)
            (slopes,) = torch.autograd.grad((pulled * directions).sum(), v)
        return scores.detach(), self._finite(slopes)

    def pool_gradients(self, model: Tensor, pools: RecordBatch, weights: Tensor) -> Tensor:
        """Gradient (P, d), at one model (d,), of each pool's score summed with `weights` (P, n).

        Pools are stacked as if each had a model of its own: one backward pass for a block of them.
        """
        first = RecordBatch(
            pools.x[0], pools.y[0], None if pools.noise is None else pools.noise[:, 0]
        )
        fit = NUMBERS_AT_ONCE // (self._numbers_per_record(model, first) * pools.x.shape[1])
        step = max(1, min(fit, WEIGHTS_AT_ONCE // model.numel()))
        out = []
        with self._evaluation_mode(), torch.enable_grad():
            for low in range(0, len(pools), step):
                some, every = slice(low, low + step), slice(None)
                at = model.expand(len(pools.x[some]), -1).clone().requires_grad_()
                total = (self._differentiable(at, pools.block(some, every)) * weights[some]).sum()
                (gradient,) = torch.autograd.grad(total, at)
                out.append(gradient)
        return self._finite(torch.cat(out))

    def _differentiable(self, models: Tensor, batch: RecordBatch) -> Tensor:
        """Scores (K, n) as a differentiable function of the models (K, d)."""
        p = self.task.differentiable(models)
        if self._stackable:
            try:
                return self._mean(lambda x, y, z: self._stacked(p, x, y, z), batch)
            except NotStackable:
                self._stackable = False
        out = []
        for k in range(len(models)):
            noise = None if batch.noise is None else batch.noise[:, k]
            own = {name: value[k] for name, value in p.items()}
            out.append(
                self._mean(partial(self._single, own), RecordBatch(batch.x[k], batch.y[k], noise))
            )
        return torch.stack(out)

    def hessian_products(self, model: Tensor, direction: Tensor, batch: RecordBatch) -> Tensor:
        """Hessian(score of a record) u (n, d) at one model (d,): change of its gradient along u."""
        out = []
        with self._evaluation_mode():
            for at, gradient in self._gradients(model, batch, create_graph=True):
                change = torch.zeros_like(at)
                if gradient.requires_grad:  # not where the score is linear
                    (found,) = torch.autograd.grad(
                        (gradient * direction).sum(), at, allow_unused=True
                    )
                    change = change if found is None else found
                out.append(change)
        return self._finite(torch.stack(out))

    def gradient_products(self, model: Tensor, batch: RecordBatch) -> Tensor:
        """Inner products of the records' score gradients at one model, (n, n).

        |s|^2 of any subset's mean score vector is the mean over its block.
        """
        with self._evaluation_mode():
            each = torch.stack([g.detach() for _, g in self._gradients(model, batch)])
            return self._finite(each @ each.T)

    def _gradients(
        self, model: Tensor, batch: RecordBatch, *, create_graph: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The model (d,) and the score's gradient (d,) at it, one record after the other."""
        for i in range(len(batch)):
            with torch.enable_grad():
                at = model.detach().requires_grad_()
                one = batch.take(torch.tensor([i]))
                score = self._mean(partial(self._single, self.task.named(at)), one).sum()
                (gradient,) = torch.autograd.grad(score, at, create_graph=create_graph)
                yield at, gradient


SMOOTH = frozenset(
    {
        *(nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding),
        *(nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList),
        *(nn.GroupNorm, nn.LayerNorm, nn.Dropout),
        *(nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.LogSoftmax),
        *(nn.AvgPool2d, nn.AdaptiveAvgPool2d),
        *(Attention, FeedForward, Block, LowRank, TinyGPT, TinyViT, ConditionalVAE),
    }
)
"""Smooth layers, by type and not by name: a user's `Block` may hold a ReLU. Batch normalisation is
smooth too, but torch has no derivative by its statistics, which are part of the sent model."""


def score_pools(
    scorer: Scorer, models: Tensor | Models, pools: RecordBatch, pairs: Sequence[Sequence[int]]
) -> Tensor:
    """Scores (K, R, n) of K models (K, d), model j on the pools `pairs[j]` (R,); `pools` x
    (P, n, ...).

    Works on a block of models at a time: all models and pools together would take K x P x n
    records. If all models score the same pools, they share one view of them.
    """
    which = torch.as_tensor(np.asarray(pairs, dtype=np.int64))
    count, asked_pools = which.shape
    if bool((which == which[0]).all()):
        shared = _side_by_side(pools, which[:1])
        return scorer.each(models, _for_all(shared, count)).view(count, asked_pools, -1)
    numbers = asked_pools * (pools.x[0].numel() + _draws(pools))
    rows = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    rows = min(rows, max(1, WEIGHTS_AT_ONCE // models[0].numel()))
    parts = [
        scorer.each(models[low : low + rows], _side_by_side(pools, which[low : low + rows]))
        for low in range(0, count, rows)
    ]
    return torch.cat(parts).view(count, asked_pools, -1)


def _draws(pools: RecordBatch) -> int:
    """Random numbers of one pool."""
    return 0 if pools.noise is None else pools.noise[:, 0].numel()


def _side_by_side(pools: RecordBatch, which: Tensor) -> RecordBatch:
    """The pools (K, R) that each of K models scores, one after the other: (K, R n, ...)."""
    noise = None if pools.noise is None else pools.noise[:, which].flatten(2, 3)
    return RecordBatch(pools.x[which].flatten(1, 2), pools.y[which].flatten(1, 2), noise)


def _for_all(one: RecordBatch, count: int) -> RecordBatch:
    """The records of one model (1, n, ...), shared by `count` models without a copy."""
    noise = None if one.noise is None else one.noise.expand(-1, count, *one.noise.shape[2:])
    x = one.x.expand(count, *one.x.shape[1:])
    return RecordBatch(x, one.y.expand(count, *one.y.shape[1:]), noise)


def rough_layers(task: Task, *, claimed_smooth: bool = False) -> tuple[str, ...]:
    """Layers without a second derivative (ReLU, max-pooling), or unknown to be smooth.

    ELU of slope 1 has a continuous derivative, and a second one except at one point.
    `claimed_smooth`: trust that user modules are smooth; torch's own layers are known.
    """
    names = {
        type(m).__name__
        for m in task.module.modules()
        if type(m) not in SMOOTH
        and not (type(m) is nn.ELU and m.alpha == 1)
        and not (claimed_smooth and not type(m).__module__.startswith("torch."))
    }
    return tuple(sorted(names))
