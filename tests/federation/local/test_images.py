"""Fast pooling against torch's own: values, gradients and ties."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaudit.federation.local.images import FastImages, PairPooling
from fedaudit.tasks.stacked import forward


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


@pytest.mark.parametrize("levels", [2, 3, 1000])
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1, 2, 2), (3, 2, 28, 28), (1, 1, 2, 254)])
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


@pytest.mark.parametrize(
    ("pool", "size", "replaced"),
    [
        (nn.MaxPool2d(2), 8, True),
        (nn.MaxPool2d((2, 2), stride=(2, 2)), 8, True),
        (nn.MaxPool2d(2), 9, False),  # the last row and column belong to no window
        (nn.MaxPool2d(2), 256, False),  # places of maxima are stored as bytes
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
