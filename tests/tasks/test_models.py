"""The built-in architectures: shapes, names, causality."""

import pytest
import torch

from fedaudit.tasks import models


def test_gpt_does_not_look_ahead() -> None:
    module = models.TinyGPT(11, 6, 8, 2, 2)
    tokens = torch.arange(6).unsqueeze(0)
    other = tokens.clone()
    other[0, 4] = 9
    a, b = module(tokens), module(other)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert (a[:, 4:] - b[:, 4:]).abs().max() > 1e-4


def test_vit_looks_everywhere() -> None:
    module = models.TinyViT((1, 8, 8), 4, 8, 1, 2, 3)
    x = torch.zeros(1, 1, 8, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(module(x).sum(), x)
    assert (grad != 0).float().mean() > 0.9


def test_patches_are_the_image_cut_up() -> None:
    module = models.TinyViT((2, 4, 4), 2, 8, 1, 2, 3)
    x = torch.arange(32.0).view(1, 2, 4, 4)
    cut = module.patches(x)
    assert torch.equal(cut[0, 1], x[0, :, :2, 2:].flatten())


@pytest.mark.parametrize("channels", [(3,), (4, 6), (5, 10)])
def test_cnn_of_any_width(channels: tuple[int, ...]) -> None:
    assert models.cnn((3, 8, 8), channels, 5)(torch.zeros(2, 3, 8, 8)).shape == (2, 5)


@pytest.mark.parametrize("classes", [0, 3])
def test_vae_shapes_and_condition(classes: int) -> None:
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([0, 2])
    for module in (
        models.mlp_vae(64, 10, 4, classes),
        models.conv_vae((1, 8, 8), (3, 5), 4, classes),
    ):
        logits, mean, log_variance = module(x, y, torch.zeros(2, 4))
        assert logits.flatten(1).shape == (2, 64)
        assert mean.shape == log_variance.shape == (2, 4)
        other, _, _ = module(x, torch.tensor([1, 1]), torch.zeros(2, 4))
        assert torch.equal(logits, other) == (classes == 0)


def test_vae_noise_enters_by_reparameterisation() -> None:
    module = models.mlp_vae(4, 6, 2, 0)
    code = torch.tensor([[1.0, 2.0, 0.0, 2 * torch.log(torch.tensor(3.0))]])
    z, _, _ = module.sample(code, torch.tensor([[10.0, 10.0]]))
    torch.testing.assert_close(z, torch.tensor([[11.0, 32.0]]))


def test_the_published_autoencoder_has_the_published_numbers_of_parameters() -> None:
    """[TwoStage] prints none; its public model has 515,296 + 2,576,259."""
    module = models.published_vae((3, 28, 28), 32, 10)
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    decoder = sum(n for name, n in sizes.items() if name.startswith("decoder"))
    assert (sum(sizes.values()) - decoder, decoder) == (515_296, 2_576_259)


@pytest.mark.parametrize("classes", [0, 3])
def test_the_published_autoencoder_sees_the_label_on_both_sides(classes: int) -> None:
    module = models.published_vae((2, 8, 12), 4, classes)
    x, none = torch.rand(2, 2, 8, 12), torch.zeros(2, 4)
    logits, mean, _ = module(x, torch.tensor([0, 2]), none)
    assert logits.shape == x.shape
    other, shifted, _ = module(x, torch.tensor([1, 1]), none)
    assert torch.equal(mean, shifted) == (classes == 0)
    assert torch.equal(logits, other) == (classes == 0)


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_an_activation_changes_no_weight(activation: str) -> None:
    def built(*more: str) -> list[torch.nn.Module]:
        torch.manual_seed(1)
        return [
            models.mlp(6, (5, 4), 3, *more),
            models.mlp_vae(6, 5, 2, 3, *more),
            models.conv_vae((1, 4, 4), (2, 3), 2, 3, *more),
        ]

    for plain, chosen in zip(built(), built(activation), strict=True):
        pairs = zip(plain.named_parameters(), chosen.named_parameters(), strict=True)
        assert all(n == m and torch.equal(p, q) for (n, p), (m, q) in pairs)
        layers = {type(m) for m in chosen.modules()}
        assert layers & {torch.nn.ReLU, torch.nn.GELU, torch.nn.Tanh, torch.nn.SiLU} == {
            models.ACTIVATIONS[activation]
        }
