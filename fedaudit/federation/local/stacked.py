"""Tier 2: one autograd graph over stacked parameters (batched matmul, grouped convolution)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedaudit.federation.local.images import FastImages
from fedaudit.tasks.task import Task

# Limit on the largest image tensor of one pass of a convolutional model, in bytes: beyond it
# activations leave the cache, and 20 clients at once take a third longer than 8 at a time.
IMAGE_BYTES = 6 << 20
# The same for the examples of one large batch: 400 images of the autoencoder of [TwoStage] take
# 4.7 s at once and 3.2 s in slices of 50.
SLICE_BYTES = 12 << 20


class Stacked:
    """Gradient sums of all clients by one backward pass over stacked layers."""

    name = "stacked"

    def __init__(self, task: Task) -> None:
        self.task = task
        self._image_bytes = 0  # of one client, measured at the first step
        self._example_bytes: int | None = None  # of one example of one client
        # glibc returns freed memory to the system unless a larger block was freed before, and every
        # step would then fault its activations in again. This block is never touched, so it costs
        # nothing.
        torch.empty(31 << 20, dtype=torch.uint8)

    def leaves(self, p: Tensor) -> dict[str, Tensor]:
        """Leaf views by name that share storage with p (K, d), but not its version counter."""
        return {k: v.data.requires_grad_() for k, v in self.task.named(p).items()}

    def sums(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None) -> Tensor:
        """p (K, d), x (K, B, ...), weight (K, B) -> (K, d)."""
        k, b = weight.shape
        each = self._bytes_of_one(p, x, y, noise)
        size = max(1, SLICE_BYTES // (each * k)) if each else b
        if size >= b:
            return self._sums(p, x, y, weight, noise)
        out = torch.zeros_like(p)
        for low in range(0, b, size):
            part = slice(low, low + size)
            z = None if noise is None else noise[:, part]
            out += self._sums(p, x[:, part], y[:, part], weight[:, part], z)
        return out

    def _bytes_of_one(self, p: Tensor, x: Tensor, y: Tensor, noise: Tensor | None) -> int:
        """Bytes of the largest image tensor of one example.

        Measured before the first sums, so that a resumed run slices its batches as before.
        """
        if self._example_bytes is None:
            z = None if noise is None else noise[:1, :1]
            with torch.no_grad(), FastImages() as seen:
                self.task.stacked_losses(self.task.named(p[:1]), x[:1, :1], y[:1, :1], z)
            self._example_bytes = seen.image_bytes
        return self._example_bytes

    def _sums(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> Tensor:
        named = self.leaves(p)
        with FastImages():
            total = (self.task.stacked_losses(named, x, y, noise) * weight).sum()
        grads = torch.autograd.grad(total, list(named.values()), materialize_grads=True)
        return torch.cat([g.reshape(len(p), -1) for g in grads], dim=1)

    def per_example(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Per-example gradients (K, B, d), zero for weight 0: each example is run as a client."""
        k, b = weight.shape
        z = None if noise is None else noise.flatten(0, 1).unsqueeze(1)
        each = self.sums(
            p.repeat_interleave(b, dim=0),
            x.flatten(0, 1).unsqueeze(1),
            y.flatten(0, 1).unsqueeze(1),
            (weight != 0).to(p.dtype).reshape(k * b, 1),
            z,
        )
        return each.view(k, b, -1)

    def sgd_(
        self,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        noise: Tensor | None,
        rate: float,
    ) -> None:
        """p -= rate * sums, in place; linear layers take their step inside the backward pass."""
        size = max(1, IMAGE_BYTES // self._image_bytes) if self._image_bytes else len(p)
        for low in range(0, len(p), size):
            part = slice(low, low + size)
            z = None if noise is None else noise[part]
            self._descend_(p[part], x[part], y[part], weight[part], z, rate)

    def _descend_(
        self,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        noise: Tensor | None,
        rate: float,
    ) -> None:
        named = self.leaves(p)
        views = list(named.values())
        with _FusedLinear(views, rate) as mode:
            total = (self.task.stacked_losses(named, x, y, noise) * weight).sum()
        self._image_bytes = mode.image_bytes // len(p)
        grads = torch.autograd.grad(total, views, allow_unused=True)
        with torch.no_grad():
            for v, g in zip(views, grads, strict=True):
                if g is not None:
                    v.sub_(g, alpha=rate)


class _Use:
    """Counts uses of a leaf in a forward pass: a leaf used twice cannot be updated early."""

    def __init__(self) -> None:
        self.count = 0


class _FusedLinear(FastImages):
    """Replaces `baddbmm(bias, input, weight)` on stacked leaves by one that also updates them.

    The gradient of a large layer is never stored: `weight.baddbmm_` adds the step as it is
    computed. A fully connected model spends most of its time there.
    """

    def __init__(self, leaves: Iterable[Tensor], rate: float) -> None:
        super().__init__()
        self._uses = {id(leaf): _Use() for leaf in leaves}
        self._rate = rate

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.baddbmm and len(args) == 3 and not kwargs:
            uses = [self._uses.get(id(args[i]._base)) for i in (0, 2)]
            if uses[0] is not None and uses[1] is not None:
                for use in uses:
                    use.count += 1  # type: ignore[union-attr]
                return _Linear.apply(*args, uses, self._rate)  # type: ignore[no-untyped-call]
        return super().__torch_function__(func, types, args, kwargs)


class _Linear(torch.autograd.Function):
    """bias (K, 1, out) + input (K, n, in) @ weight (K, in, out), with an SGD step in backward."""

    @staticmethod
    def forward(
        ctx: Any, bias: Tensor, x: Tensor, weight: Tensor, uses: list[_Use], rate: float
    ) -> Tensor:
        ctx.save_for_backward(bias, x, weight)
        ctx.uses, ctx.rate = uses, rate
        return torch.baddbmm(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        bias, x, weight = ctx.saved_tensors
        passed = torch.bmm(delta, weight.transpose(1, 2)) if ctx.needs_input_grad[1] else None
        across = delta.sum(dim=1, keepdim=True)
        if any(use.count > 1 for use in ctx.uses):
            return across, passed, torch.bmm(x.transpose(1, 2), delta), None, None
        # `.data`: other leaves view the same storage, and must not look modified
        weight.data.transpose(1, 2).baddbmm_(delta.transpose(1, 2), x, alpha=-ctx.rate)
        bias.data.sub_(across, alpha=ctx.rate)
        return None, passed, None, None, None
