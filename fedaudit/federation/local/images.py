"""Pooling and first convolutions of packed images, several times faster than torch's own.

For images in planes, torch takes the maxima of a pooling one number at a time, and computes a
grouped convolution with few input channels in a slow general way. Here both are a few vectorised
operations. They stand in for torch's while a pass of stacked clients runs (`FastImages`), which
takes first derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

_ATEN = torch.ops.aten

FEW_CHANNELS = 4
"""Input channels per client up to which a grouped convolution is split into one per client."""
PIXELS = 4096
"""Smallest images x height x width for which the split pays: 8x at 16 images of 28 x 28 with one
channel, 1.7x with four; below it, starting the small operations costs more."""

Pair = tuple[int, int]


class FastImages(TorchFunctionMode):
    """Replaces 2 x 2 pooling and small grouped convolutions; notes the largest convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.image_bytes = 0  # of the largest convolution output

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.max_pool2d and len(args) == 2 and _in_pairs(*args, kwargs):
            return PairPooling.apply(args[0])  # type: ignore[no-untyped-call]
        if func is torch.conv2d and len(args) == 7 and _worth_splitting(args):
            out = SplitConvolution.apply(*args)  # type: ignore[no-untyped-call]
        else:
            out = func(*args, **kwargs)
        if func in (torch.conv2d, torch.conv_transpose2d):
            self.image_bytes = max(self.image_bytes, out.nbytes)
        return out


def _in_pairs(x: Tensor, size: int | Pair, settings: Mapping[str, Any]) -> bool:
    """Whether a pooling is 2 x 2 on whole windows of images (n, C, H, W)."""
    two = (2, (2, 2))
    plain = {"padding": (0, (0, 0)), "dilation": (1, (1, 1)), "ceil_mode": (False,)}
    return (
        size in two
        and settings.get("stride") in (None, *two)
        and all(settings.get(name, known[0]) in known for name, known in plain.items())
        and not settings.get("return_indices", False)
        and x.dim() == 4
        and not (x.shape[2] % 2 or x.shape[3] % 2)
    )


def _worth_splitting(args: tuple[Any, ...]) -> bool:
    x, weight, *_, groups = args
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    return bool(groups > 1 and weight.shape[1] <= FEW_CHANNELS and pixels >= PIXELS)


class PairPooling(torch.autograd.Function):
    """`max_pool2d(x, 2)` of images (n, C, H, W) with even H and W.

    Maxima of neighbours in a row, then of the two rows. Ties break as in torch, towards the first
    in reading order: in both passes backwards only a strictly larger second one takes the gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.contiguous()
        row = x.view(-1, 2)
        wide = torch.maximum(row[:, 0], row[:, 1]).view(-1, 2, w // 2)
        ctx.save_for_backward(x, wide)
        out = x.new_empty(n, c, h // 2, w // 2)  # not a view: a ReLU may act in place
        torch.maximum(wide[:, 0], wide[:, 1], out=out.view(len(wide), -1))
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, delta: Tensor) -> Tensor:
        x, wide = ctx.saved_tensors
        delta = delta.reshape(len(wide), -1)
        across = torch.empty_like(wide)
        _share(delta, wide[:, 0], wide[:, 1], across[:, 0], across[:, 1])
        out, row = torch.empty_like(x), x.view(-1, 2)
        pairs = out.view(-1, 2)
        _share(across.view(-1), row[:, 0], row[:, 1], pairs[:, 0], pairs[:, 1])
        return out


def _share(
    delta: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor
) -> None:
    """Write delta to the place of the larger value, and zero to the other; ties to the first."""
    # where() on a boolean takes five times as long
    won = _ATEN.threshold_backward(delta, second - first, 0)
    to_second.copy_(won)
    torch.sub(delta, won, out=to_first)


class SplitConvolution(torch.autograd.Function):
    """`conv2d` of `groups` clients packed in one batch, client by client in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
        ctx.biases = None if bias is None else [len(bias)]
        biases = [None] * groups if bias is None else bias.chunk(groups)
        out: Tensor | None = None
        clients = zip(x.chunk(groups, 1), weight.chunk(groups), biases, strict=True)
        for k, (own, kernel, shift) in enumerate(clients):
            y = F.conv2d(own, kernel, shift, stride, padding, dilation)
            if out is None:
                out = y.new_empty(len(y), groups * y.shape[1], *y.shape[2:])
            out[:, k * y.shape[1] : (k + 1) * y.shape[1]] = y
        assert out is not None
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = [*ctx.needs_input_grad[:2], ctx.biases is not None]
        grads = _ATEN.convolution_backward(delta, x, weight, ctx.biases, *ctx.settings, wanted)
        return (*grads, None, None, None, None)
