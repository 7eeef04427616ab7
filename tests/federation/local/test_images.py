"""Fast pooling and split convolutions against torch's own: values, gradients and ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaudit.federation.local.images import FastImages, PairPooling, SplitConvolution
from fedaudit.tasks.stacked import forward


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


@pytest.mark.parametrize("levels", [2, 3, 1000])
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1, 2, 2), (3, 2, 28, 28)])
def test_pooling_equals_torch_in_every_bit_and_tie(levels: int, shape: tuple[int, ...]) -> None:
    """With two levels, nearly every window of four has a tie."""
    g = torch.Generator().manual_seed(levels)
    x = torch.randint(-levels, levels, shape, generator=g).float().requires_grad_()
    slow = F.max_pool2d(x, 2)
    fast = PairPooling.apply(x)  # type: ignore[no-untyped-call]
    assert torch.equal(fast, slow)
    weight = torch.randn(slow.shape, generator=g)
    assert torch.equal(*gradients((fast * weight).sum(), x), *gradients((slow * weight).sum(), x))


def test_pooling_of_images_that_are_not_contiguous() -> None:
    x = torch.randn(4, 6, 3, 2, generator=torch.Generator().manual_seed(1)).permute(3, 2, 0, 1)
    x = x.requires_grad_()
    assert not x.is_contiguous()
    slow, fast = F.max_pool2d(x, 2), PairPooling.apply(x)  # type: ignore[no-untyped-call]
    assert torch.equal(fast, slow)
    assert torch.equal(*gradients(fast.square().sum(), x), *gradients(slow.square().sum(), x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("settings", [((1, 1), (1, 1), (1, 1)), ((2, 1), (0, 2), (1, 2))])
def test_split_convolution_equals_the_grouped_one(bias: bool, settings: tuple[Any, ...]) -> None:
    g, groups = torch.Generator().manual_seed(3), 3
    x = torch.randn(4, groups * 2, 9, 8, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.randn(groups * 5, 2, 3, 3, generator=g, dtype=torch.float64, requires_grad=True)
    b = torch.randn(groups * 5, generator=g, dtype=torch.float64, requires_grad=True)
    given = b if bias else None
    slow = F.conv2d(x, w, given, *settings, groups)
    fast = SplitConvolution.apply(x, w, given, *settings, groups)  # type: ignore[no-untyped-call]
    assert torch.allclose(fast, slow, rtol=1e-12, atol=1e-12)
    of = (x, w, b) if bias else (x, w)
    pairs = zip(
        gradients(fast.square().sum(), *of), gradients(slow.square().sum(), *of), strict=True
    )
    assert all(torch.allclose(a, e, rtol=1e-12, atol=1e-12) for a, e in pairs)


@pytest.mark.parametrize(
    ("pool", "size", "replaced"),
    [
        (nn.MaxPool2d(2), 8, True),
        (nn.MaxPool2d((2, 2), stride=(2, 2)), 8, True),
        (nn.MaxPool2d(2), 9, False),  # the last row and column belong to no window
        (nn.MaxPool2d(2, stride=1), 8, False),
        (nn.MaxPool2d(2, padding=1), 8, False),
        (nn.MaxPool2d(2, dilation=2), 8, False),
        (nn.MaxPool2d(3), 9, False),
        (nn.MaxPool2d(2, ceil_mode=True), 9, False),
    ],
)
def test_only_poolings_of_pairs_are_replaced(
    pool: nn.Module, size: int, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    real = PairPooling.apply

    def counted(x: Tensor) -> Tensor:
        calls.append(x)
        out: Tensor = real(x)  # type: ignore[no-untyped-call]
        return out

    monkeypatch.setattr(PairPooling, "apply", counted)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    expected = pool(x)
    with FastImages():
        assert torch.equal(pool(x), expected)
    assert len(calls) == replaced


@pytest.mark.parametrize(("images", "split"), [(16, True), (2, False)])
def test_convolutions_are_split_where_it_pays(
    images: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    real = SplitConvolution.apply

    def counted(*args: Any) -> Tensor:
        calls.append(args)
        out: Tensor = real(*args)  # type: ignore[no-untyped-call]
        return out

    monkeypatch.setattr(SplitConvolution, "apply", counted)
    g = torch.Generator().manual_seed(7)
    x, w = torch.randn(images, 4, 28, 28, generator=g), torch.randn(12, 1, 3, 3, generator=g)
    expected = F.conv2d(x, w, None, 1, 1, 1, 4)
    with FastImages() as seen:
        torch.testing.assert_close(
            torch.conv2d(x, w, None, (1, 1), (1, 1), (1, 1), 4), expected, rtol=1e-5, atol=1e-5
        )
    assert len(calls) == split
    assert seen.image_bytes == expected.nbytes


@pytest.mark.parametrize("inplace", [False, True])
def test_pooling_before_the_relu_changes_no_value_and_no_gradient(inplace: bool) -> None:
    module = nn.Sequential(nn.ReLU(inplace), nn.MaxPool2d(2), nn.Flatten())
    g = torch.Generator().manual_seed(9)
    x = torch.randint(-2, 3, (3, 5, 2, 4, 4), generator=g).float().requires_grad_()
    weight = torch.randn(3, 5, 8, generator=g)
    slow = torch.stack([module(own.clone()) for own in x])
    with FastImages():
        fast = forward(module, {}, x)
    assert torch.equal(fast, slow)
    assert torch.equal(*gradients((fast * weight).sum(), x), *gradients((slow * weight).sum(), x))
