"""The built-in architectures: small, plain, with parameter names that an audit can select.

Transformer blocks are named `blocks.N.{norm1,attn.qkv,attn.proj,norm2,mlp.fc,mlp.proj}`. No layer
keeps running statistics: normalisation is by groups or by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: all except the first have a second derivative, which curvature along an update needs
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str = "relu"
) -> nn.Sequential:
    """Flatten, then alternate Linear and activation: parameters `1.weight`, `1.bias`,
    `3.weight`..."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = inputs
    for h in hidden:
        layers += [nn.Linear(width, h), ACTIVATIONS[activation]()]
        width = h
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def cnn(shape: tuple[int, int, int], channels: Sequence[int], outputs: int) -> nn.Sequential:
    """Convolution, group normalisation, ReLU, pooling; then one linear layer."""
    c, height, width = shape
    layers: list[nn.Module] = []
    for o in channels:
        layers += [
            # without bias: normalisation with one channel per group cancels it, and Adam would
            # amplify the rounding error of its zero gradient
            nn.Conv2d(c, o, 3, padding=1, bias=False),
            nn.GroupNorm(math.gcd(4, o), o),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        c, height, width = o, height // 2, width // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(c * height * width, outputs))


class Attention(nn.Module):
    """Multi-head self-attention on (..., L, D)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        # without bias: softmax cancels a key bias, and Adam would amplify the rounding error of
        # its zero gradient
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def mix(self, qkv: Tensor, *, last: bool = False) -> Tensor:
        """Attend: (..., L, 3D) to (..., L, D), or (..., 1, D) for the last position alone.

        Uses no parameters.
        """
        *lead, length, triple = qkv.shape
        split = qkv.reshape(-1, length, 3, self.heads, triple // 3 // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        if last:  # the last position attends to all, causal or not
            q, length = q[:, :, -1:], 1
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and not last)
        return out.transpose(1, 2).reshape(*lead, length, triple // 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(self.mix(self.qkv(x)))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.proj = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(self.act(self.fc(x)))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class TinyViT(nn.Module):
    """Vision transformer: patches, a few blocks, mean over tokens, one linear layer."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        patch: int,
        width: int,
        depth: int,
        heads: int,
        outputs: int,
    ) -> None:
        super().__init__()
        c, h, w = shape
        self.patch = patch
        self.embed = nn.Linear(c * patch * patch, width)
        self.position = nn.Parameter(torch.randn((h // patch) * (w // patch), width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def patches(self, x: Tensor) -> Tensor:
        """(..., C, H, W) to (..., tokens, C * patch * patch)."""
        *lead, c, h, w = x.shape
        p = self.patch
        x = x.reshape(-1, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(*lead, (h // p) * (w // p), c * p * p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(self.patches(x)) + self.position
        out: Tensor = self.head(self.norm(self.blocks(x)).mean(-2))
        return out


class TinyGPT(nn.Module):
    """Decoder-only language model: tokens (..., L) to logits (..., L, vocabulary)."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.position[: tokens.shape[-1]]
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank adapter: W x + b + scale * B A x.

    Tensors have peft's names of a saved adapter: `lora_A.weight` (rank, in) and `lora_B.weight`
    (out, rank) beside `base_layer`. A starts as in peft, B at zero.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.scale = scale
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        down, up = self.lora_A.weight, self.lora_B.weight
        out: Tensor
        if down.dim() == 3:
            # adapters of K models on K equal parts of x: one product with the shared base layer,
            # then two thin batched products
            out = self.base_layer(x)
            low = torch.bmm(x.reshape(len(down), -1, x.shape[-1]), down.transpose(1, 2))
            wide = out.view(len(down), -1, out.shape[-1])
            return torch.baddbmm(wide, low, up.transpose(1, 2), alpha=self.scale).view(out.shape)
        out = self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale
        return out


class ConditionalVAE(nn.Module):
    """Label-conditional variational autoencoder over an encoder and a decoder.

    `features` maps x to a flat code, `code` maps (code, label) to mean and log variance, `decoder`
    maps (latent, label) to logits of x. With `planes`, the encoder instead gets the label as
    constant image planes after the colours. The reparameterisation noise is an argument.
    """

    def __init__(
        self,
        features: nn.Sequential,
        code_width: int,
        latent: int,
        decoder: nn.Sequential,
        classes: int,
        planes: bool = False,
    ) -> None:
        super().__init__()
        self.latent, self.classes, self.planes = latent, classes, planes
        self.features = features
        self.code = nn.Linear(code_width + (0 if planes else classes), 2 * latent)
        self.decoder = decoder

    def label(self, y: Tensor, like: Tensor) -> Tensor:
        """One-hot labels (..., classes); `one_hot` cannot be vmapped."""
        return (y.unsqueeze(-1) == torch.arange(self.classes)).to(like.dtype)

    def condition(self, h: Tensor, y: Tensor) -> Tensor:
        """Append the one-hot label; an unconditional model appends nothing."""
        return torch.cat([h, self.label(y, h)], dim=-1) if self.classes else h

    def encoder_input(self, x: Tensor, y: Tensor) -> Tensor:
        """The input of `features`: x (..., C, H, W), plus label planes if the model has them."""
        if not (self.planes and self.classes):
            return x
        planes = self.label(y, x)[..., None, None].expand(*y.shape, self.classes, *x.shape[-2:])
        return torch.cat([x, planes], dim=-3)

    def code_input(self, h: Tensor, y: Tensor) -> Tensor:
        """The input of `code`: the features, plus the label unless the planes held it."""
        return h if self.planes else self.condition(h, y)

    def sample(self, code: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = code[..., : self.latent], code[..., self.latent :]
        return mean + noise * (0.5 * log_variance).exp(), mean, log_variance

    def forward(self, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.code(self.code_input(self.features(self.encoder_input(x, y)), y))
        z, mean, log_variance = self.sample(code, noise)
        return self.decoder(self.condition(z, y)), mean, log_variance


def mlp_vae(
    inputs: int, hidden: int, latent: int, classes: int, activation: str = "relu"
) -> ConditionalVAE:
    """One hidden layer on each side."""
    act = ACTIVATIONS[activation]
    features = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), act())
    decoder = nn.Sequential(nn.Linear(latent + classes, hidden), act(), nn.Linear(hidden, inputs))
    return ConditionalVAE(features, hidden, latent, decoder, classes)


def conv_vae(
    shape: tuple[int, int, int],
    channels: Sequence[int],
    latent: int,
    classes: int,
    activation: str = "relu",
) -> ConditionalVAE:
    """Strided convolutions down, transposed convolutions up; sides must divide by 2^depth."""
    c, h, w = shape
    act = ACTIVATIONS[activation]
    down: list[nn.Module] = []
    width = c
    for o in channels:
        down += [nn.Conv2d(width, o, 3, stride=2, padding=1), act()]
        width, h, w = o, h // 2, w // 2
    features = nn.Sequential(*down, nn.Flatten())
    up: list[nn.Module] = [
        nn.Linear(latent + classes, width * h * w),
        act(),
        nn.Unflatten(1, (width, h, w)),
    ]
    for o in [*reversed(list(channels)[:-1]), c]:
        up += [nn.ConvTranspose2d(width, o, 4, stride=2, padding=1), act()]
        width = o
    decoder = nn.Sequential(*up[:-1])  # logits: no activation after the last layer
    return ConditionalVAE(features, list(channels)[-1] * h * w, latent, decoder, classes)


def published_vae(shape: tuple[int, int, int], latent: int, classes: int) -> ConditionalVAE:
    """The convolutional autoencoder of [TwoStage] Section 6.2, layer by layer as in its public code
    (the paper does not print it); sides must divide by 4.

    With 3 colours, 10 classes and 32 latent numbers, 28 x 28: 515,296 parameters in the encoder,
    2,576,259 in the decoder. All layers are smooth: the published clamp of the log variance and
    dropout of latent numbers are omitted. It returns logits; the published one ends in a sigmoid.
    """
    c, h, w = shape
    small, flat = (h // 4, w // 4), 128 * (h // 4) * (w // 4)

    def layer(kind: type[nn.Module], i: int, o: int, side: int, stride: int) -> list[nn.Module]:
        return [kind(i, o, side, stride, 1), nn.GroupNorm(8, o), nn.GELU()]

    features = nn.Sequential(
        *layer(nn.Conv2d, c + classes, 32, 4, 2),
        *layer(nn.Conv2d, 32, 64, 4, 2),
        *layer(nn.Conv2d, 64, 128, 3, 1),
        nn.Flatten(),
    )
    decoder = nn.Sequential(
        nn.Linear(latent + classes, 256),
        nn.GELU(),
        nn.Linear(256, flat),
        nn.GELU(),
        nn.Unflatten(1, (128, *small)),
        *layer(nn.Conv2d, 128, 256, 3, 1),
        *layer(nn.ConvTranspose2d, 256, 128, 4, 2),
        *layer(nn.ConvTranspose2d, 128, 64, 4, 2),
        nn.Conv2d(64, c, 3, padding=1),
    )
    return ConditionalVAE(features, flat, latent, decoder, classes, planes=True)
