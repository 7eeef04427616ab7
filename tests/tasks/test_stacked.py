"""Every stacked rule against the plain module: values and gradients, for each of K clients.

In double precision: two kernels add in different orders, and what that does to a single number
depends on the machine. A wrong rule is wrong by far more than `CLOSE`.
"""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaudit.tasks import models
from fedaudit.tasks.stacked import NotStackable, forward

K, N = 3, 2
CLOSE = 1e-10


def image(channels: int = 3, side: int = 8) -> tuple[int, ...]:
    return (channels, side, side)


act = nn.Tanh()

# layer, shape of one example
SUPPORTED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 4), (5,)),
    "linear without bias": (nn.Linear(5, 4, bias=False), (5,)),
    "linear on tokens": (nn.Linear(5, 4), (6, 5)),
    "linear on images": (nn.Linear(8, 4), image()),
    "conv": (nn.Conv2d(3, 4, 3, padding=1), image()),
    "conv without bias": (nn.Conv2d(3, 4, 3, bias=False), image()),
    "conv strided, dilated": (nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2), image()),
    "conv oblong": (nn.Conv2d(3, 4, (1, 3), padding=(0, 1), stride=(1, 2)), image()),
    "transposed": (nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), image()),
    "transposed without bias": (nn.ConvTranspose2d(3, 4, 3, bias=False, dilation=2), image()),
    "group norm": (nn.GroupNorm(2, 4), image(4)),
    "group norm plain": (nn.GroupNorm(4, 4, affine=False), image(4)),
    "layer norm": (nn.LayerNorm(5), (6, 5)),
    "layer norm on vectors": (nn.LayerNorm(5), (5,)),
    "layer norm plain": (nn.LayerNorm(5, elementwise_affine=False), (6, 5)),
    "layer norm without bias": (nn.LayerNorm(5, bias=False), (6, 5)),
    "embedding": (nn.Embedding(11, 4), (6,)),
    "flatten": (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), image()),
    "unflatten": (nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 2, 2))), (4,)),
    "max pool": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), image()),
    "max pool padded": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1)), image()),
    "average pool": (nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(3, 4, 3)), image()),
    "adaptive pool": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), image()),
    "identity": (nn.Sequential(nn.Identity(), nn.Linear(5, 4)), (5,)),
    **{
        type(a).__name__.lower(): (nn.Sequential(nn.Linear(5, 4), a), (5,))
        for a in (
            nn.ReLU(),
            nn.GELU(),
            nn.SiLU(),
            nn.Sigmoid(),
            nn.Tanh(),
            nn.ELU(),
            nn.Softplus(),
            nn.LeakyReLU(),
        )
    },
    "relu on packed images": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), image()),
    "one activation twice": (nn.Sequential(nn.Linear(5, 4), act, nn.Linear(4, 3), act), (5,)),
    "nested": (
        nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()),
            nn.Flatten(),
            nn.Sequential(nn.Linear(256, 5), nn.Tanh(), nn.Linear(5, 2)),
        ),
        image(),
    ),
    "conv after unflatten": (
        nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 2, 1)),
        (4,),
    ),
    "attention": (models.Attention(8, 2, causal=False), (6, 8)),
    "causal attention": (models.Attention(8, 2, causal=True), (6, 8)),
    "feed forward": (models.FeedForward(8, 16), (6, 8)),
    "block": (models.Block(8, 2, causal=True), (6, 8)),
    "cnn": (models.cnn((3, 8, 8), (4, 6), 5), image()),
    "mlp": (models.mlp(192, (7, 6), 5), image()),
    "vit": (models.TinyViT((3, 8, 8), 4, 8, 2, 2, 5), image()),
    "gpt": (models.TinyGPT(11, 6, 8, 2, 2), (6,)),
    "gpt on a shorter text": (models.TinyGPT(11, 6, 8, 2, 2), (4,)),
}


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """K different sets of parameters, (K, *shape) each."""
    draw = torch.Generator().manual_seed(1)
    return {
        n: p.detach() + 0.2 * torch.randn(K, *p.shape, generator=draw, dtype=p.dtype)
        for n, p in module.named_parameters()
    }


def inputs_of(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    if isinstance(module, nn.Embedding | models.TinyGPT):
        return torch.randint(0, 11, (K, N, *shape), generator=draw)
    return torch.randn(K, N, *shape, generator=draw)


def double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def close(a: Tensor, b: Tensor) -> bool:
    same = a.shape == b.shape and a.dtype == b.dtype == torch.float64
    return same and torch.allclose(a, b, rtol=0, atol=CLOSE * (1 + float(b.detach().abs().max())))


def differences(module: nn.Module, *inputs: Tensor) -> list[str]:
    """What of outputs and gradients is not that of K plain modules, one after the other."""
    wrong: list[str] = []
    module, inputs = copy.deepcopy(module).double(), tuple(map(double, inputs))
    p = parameters_of(module)
    leaves = {n: v.clone().requires_grad_() for n, v in p.items()}
    got = forward(module, leaves, *inputs)
    gots = got if isinstance(got, tuple) else (got,)
    draw = torch.Generator().manual_seed(3)
    direction = [torch.randn(g.shape, generator=draw, dtype=g.dtype) for g in gots]
    loss = sum((g * d).sum() for g, d in zip(gots, direction, strict=True))
    grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True) if p else ()
    for k in range(K):
        own = {n: v[k].clone().requires_grad_() for n, v in p.items()}
        plain = functional_call(module, own, tuple(i[k] for i in inputs))
        plains = plain if isinstance(plain, tuple) else (plain,)
        for a, b in zip(gots, plains, strict=True):
            if not close(a[k], b):
                wrong.append(f"output of {k}")
        one = sum((b * d[k]).sum() for b, d in zip(plains, direction, strict=True))
        expected = torch.autograd.grad(one, list(own.values()), materialize_grads=True) if p else ()
        for name, g, e in zip(p, grads, expected, strict=True):
            if not close(g[k], e):
                wrong.append(f"gradient of {name} of {k}")
    return wrong


@pytest.mark.parametrize("name", SUPPORTED)
def test_rule_equals_plain_module(name: str) -> None:
    module, shape = SUPPORTED[name]
    assert not differences(module, inputs_of(module, shape))


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("convolutional", [False, True])
def test_vae_equals_plain_module(classes: int, convolutional: bool) -> None:
    if convolutional:
        module = models.conv_vae((1, 8, 8), (4, 6), 3, classes)
    else:
        module = models.mlp_vae(64, 10, 3, classes)
    draw = torch.Generator().manual_seed(4)
    x = torch.rand(K, N, 1, 8, 8, generator=draw)
    y = torch.randint(0, 3, (K, N), generator=draw)
    assert not differences(module, x, y, torch.randn(K, N, 3, generator=draw))


@pytest.mark.parametrize("classes", [0, 3])
def test_published_vae_equals_plain_module(classes: int) -> None:
    draw = torch.Generator().manual_seed(4)
    x = torch.rand(K, N, 2, 4, 8, generator=draw)
    y = torch.randint(0, 3, (K, N), generator=draw)
    noise = torch.randn(K, N, 3, generator=draw)
    assert not differences(models.published_vae((2, 4, 8), 3, classes), x, y, noise)


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x) * 2


shared = nn.Linear(5, 5)
frozen = nn.Linear(5, 4)
frozen.bias.requires_grad_(False)

UNSUPPORTED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "grouped conv": (nn.Conv2d(4, 4, 3, groups=2), image(4)),
    "circular padding": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), image()),
    "same padding": (nn.Conv2d(3, 4, 3, padding="same"), image()),
    "grouped transposed": (nn.ConvTranspose2d(4, 4, 3, groups=2), image(4)),
    "output padding": (nn.ConvTranspose2d(3, 4, 3, 2, output_padding=1), image()),
    "wide layer norm": (nn.LayerNorm((6, 5)), (6, 5)),
    "group norm on vectors": (nn.GroupNorm(2, 4), (4,)),
    "padded embedding": (nn.Embedding(11, 4, padding_idx=0), (6,)),
    "renormed embedding": (nn.Embedding(11, 4, max_norm=1.0), (6,)),
    "scaled embedding": (nn.Embedding(11, 4, scale_grad_by_freq=True), (6,)),
    "partial flatten": (nn.Flatten(2), image()),
    "other unflatten": (nn.Unflatten(2, (2, 4)), image()),
    "indices": (nn.MaxPool2d(2, return_indices=True), image()),
    "pool on vectors": (nn.AvgPool2d(2), (4, 4)),
    "softmax": (nn.Softmax(-1), (5,)),
    "dropout": (nn.Dropout(0.5), (5,)),
    "batch norm": (nn.BatchNorm1d(5), (5,)),
    "foreign": (Foreign(), (5,)),
    "shared layer": (nn.Sequential(shared, nn.ReLU(), shared), (5,)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_variants_are_refused(name: str) -> None:
    module, shape = UNSUPPORTED[name]
    with pytest.raises(NotStackable):
        forward(module, parameters_of(module), inputs_of(module, shape))


def test_frozen_parameters_are_refused() -> None:
    p = parameters_of(frozen)
    del p["bias"]  # a task's layout holds what is trained
    with pytest.raises(NotStackable, match="frozen"):
        forward(frozen, p, torch.zeros(K, N, 5))


def test_foreign_modules_of_several_inputs_are_refused() -> None:
    with pytest.raises(NotStackable, match="Bilinear"):
        forward(nn.Bilinear(2, 2, 2), {}, torch.zeros(K, N, 2), torch.zeros(K, N, 2))
