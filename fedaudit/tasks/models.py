"""The built-in architectures: small, plain, with names an audit can select.

Transformer blocks are called `blocks.N.{norm1,attn.qkv,attn.proj,norm2,mlp.fc,mlp.proj}`. Nothing
here keeps running statistics: normalisation is by groups or by layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Flatten, then Linear and ReLU alternating: parameters `1.weight`, `1.bias`, `3.weight`..."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = inputs
    for h in hidden:
        layers += [nn.Linear(width, h), nn.ReLU()]
        width = h
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def cnn(shape: tuple[int, int, int], channels: Sequence[int], outputs: int) -> nn.Sequential:
    """Convolution, group normalisation, ReLU, pooling; then one linear layer."""
    c, height, width = shape
    layers: list[nn.Module] = []
    for o in channels:
        layers += [
            # without bias: normalisation has its own, and with one channel per group it cancels
            # this one, so that Adam would amplify the rounding error of a zero gradient
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

    def mix(self, qkv: Tensor) -> Tensor:
        """Attend: (..., L, 3D) to (..., L, D); no parameters in here."""
        *lead, length, triple = qkv.shape
        split = qkv.reshape(-1, length, 3, self.heads, triple // 3 // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
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


class VAE(nn.Module):
    """Label-conditional variational autoencoder over an encoder and a decoder.

    `features` maps x to a flat code, `code` maps (code, label) to mean and log variance, `decoder`
    maps (latent, label) to logits of x. The reparameterisation noise is an argument.
    """

    def __init__(
        self,
        features: nn.Sequential,
        code_width: int,
        latent: int,
        decoder: nn.Sequential,
        classes: int,
    ) -> None:
        super().__init__()
        self.latent, self.classes = latent, classes
        self.features = features
        self.code = nn.Linear(code_width + classes, 2 * latent)
        self.decoder = decoder

    def condition(self, h: Tensor, y: Tensor) -> Tensor:
        """Append the label, one-hot; nothing when the model is unconditional."""
        if not self.classes:
            return h
        label = y.unsqueeze(-1) == torch.arange(self.classes)  # one_hot cannot be vmapped
        return torch.cat([h, label.to(h.dtype)], dim=-1)

    def sample(self, code: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = code[..., : self.latent], code[..., self.latent :]
        return mean + noise * (0.5 * log_variance).exp(), mean, log_variance

    def forward(self, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.code(self.condition(self.features(x), y))
        z, mean, log_variance = self.sample(code, noise)
        return self.decoder(self.condition(z, y)), mean, log_variance


def mlp_vae(inputs: int, hidden: int, latent: int, classes: int) -> VAE:
    """One hidden layer on each side."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU())
    decoder = nn.Sequential(
        nn.Linear(latent + classes, hidden), nn.ReLU(), nn.Linear(hidden, inputs)
    )
    return VAE(features, hidden, latent, decoder, classes)


def conv_vae(
    shape: tuple[int, int, int], channels: Sequence[int], latent: int, classes: int
) -> VAE:
    """Strided convolutions down, transposed convolutions up; sides must divide by 2^depth."""
    c, h, w = shape
    down: list[nn.Module] = []
    width = c
    for o in channels:
        down += [nn.Conv2d(width, o, 3, stride=2, padding=1), nn.ReLU()]
        width, h, w = o, h // 2, w // 2
    features = nn.Sequential(*down, nn.Flatten())
    up: list[nn.Module] = [
        nn.Linear(latent + classes, width * h * w),
        nn.ReLU(),
        nn.Unflatten(1, (width, h, w)),
    ]
    for o in [*reversed(list(channels)[:-1]), c]:
        up += [nn.ConvTranspose2d(width, o, 4, stride=2, padding=1), nn.ReLU()]
        width = o
    decoder = nn.Sequential(*up[:-1])  # logits: no activation after the last layer
    return VAE(features, list(channels)[-1] * h * w, latent, decoder, classes)
