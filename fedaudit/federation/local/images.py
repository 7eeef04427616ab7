"""Pooling of packed images, several times faster than torch's own.

For images in planes, torch searches the maxima of a pooling one number at a time. Comparing whole
rows finds the same maxima at the same places in a few vectorised operations. They stand in for
torch's while a pass of stacked clients runs (`FastImages`), which takes first derivatives only.
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

WIDEST = 254
"""Largest width of an image: the place of a maximum in its window is stored as one byte."""


class FastImages(TorchFunctionMode):
    """Replaces pooling of 2 x 2 windows, and notes the size of the largest convolution."""

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
        out = func(*args, **kwargs)
        if func in (torch.conv2d, torch.conv_transpose2d):
            self.image_bytes = max(self.image_bytes, out.nbytes)
        return out


def _in_pairs(x: Tensor, size: int | tuple[int, int], settings: Mapping[str, Any]) -> bool:
    """Whether a pooling is of 2 x 2 windows that cover images (n, C, H, W)."""
    two = (2, (2, 2))
    plain = {"padding": (0, (0, 0)), "dilation": (1, (1, 1)), "ceil_mode": (False,)}
    return (
        size in two
        and settings.get("stride") in (None, *two)
        and all(settings.get(name, known[0]) in known for name, known in plain.items())
        and not settings.get("return_indices", False)
        and x.dim() == 4
        and x.shape[3] <= WIDEST
        and not (x.shape[2] % 2 or x.shape[3] % 2)
    )


class PairPooling(torch.autograd.Function):
    """`max_pool2d(x, 2)` of images (n, C, H, W) with even H and W.

    Maxima of neighbours in a row, then of the two rows. Ties go to the first in reading order, as
    in torch: only a strictly larger second number wins. Backwards is torch's own operation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, c, height, width = x.shape
        x = x.contiguous()
        left, right = x.view(-1, 2).unbind(1)
        rows = torch.maximum(left, right).view(-1, 2, width // 2)
        second = torch.gt(right, left).view(torch.uint8).view_as(rows)
        above, below = rows.unbind(1)
        out = x.new_empty(n, c, height // 2, width // 2)  # not a view: a ReLU may act in place
        torch.maximum(above, below, out=out.view_as(above))
        lower = torch.gt(below, above).view(torch.uint8)
        place = (second[:, 0] & (1 - lower)) | (second[:, 1] & lower)
        place.add_(lower, alpha=width)
        first = torch.arange(0, height, 2).unsqueeze(1) * width + torch.arange(0, width, 2)
        ctx.save_for_backward(x, place.view_as(out) + first)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Tensor:
        x, index = ctx.saved_tensors
        window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        out: Tensor = _ATEN.max_pool2d_with_indices_backward(delta, x, *window, index)
        return out
