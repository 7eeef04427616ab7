"""Forward passes of K models at once: stacked parameters, one batched operation per layer.

A Linear layer becomes one batched matrix product, a convolution one grouped convolution, a group
normalisation one with K times the groups. Each rule is the layer's own forward with one more
leading dimension; tests compare every rule with the plain module.

Shapes: inputs (K, n, ...), parameters (K, *shape), or (1, *shape) if all clients share them (frozen
layers under adapters: one product serves all clients). Between convolutions, images stay packed as
(n, K*C, H, W), the layout of grouped kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaudit.tasks.models import (
    Attention,
    Block,
    ConditionalVAE,
    FeedForward,
    LowRank,
    TinyGPT,
    TinyViT,
)

Parameters = Mapping[str, Tensor]
"""Parameters and buffers by name, of one model or stacked."""

# glibc returns freed memory to the system unless a larger block was freed before, and every pass
# would then fault its activations in again, at two to four times the cost of the pass. This block
# is never touched, so it costs nothing.
torch.empty(31 << 20, dtype=torch.uint8)


class NotStackable(Exception):
    """A layer without a stacked form; another tier trains the model."""


@dataclass
class _Packed:
    """Images of K clients in one batch: x is (n, K*C, H, W)."""

    x: Tensor
    clients: int


Value = Tensor | _Packed


def _pack(v: Value) -> _Packed:
    if isinstance(v, _Packed):
        return v
    if v.dim() != 5:
        raise NotStackable(
            f"images (K, n, C, H, W) expected, got a value of shape {tuple(v.shape)}"
        )
    k, n, c, h, w = v.shape
    return _Packed(v.transpose(0, 1).reshape(n, k * c, h, w), k)


def _unpack(v: Value) -> Tensor:
    if not isinstance(v, _Packed):
        return v
    n, kc, h, w = v.x.shape
    return v.x.reshape(n, v.clients, kc // v.clients, h, w).transpose(0, 1)


def _own(p: Parameters, at: str, name: str) -> Tensor:
    """A layer's parameter; raises NotStackable if it is shared with another layer, or frozen."""
    if at + name not in p:
        raise NotStackable(f"{at}{name} is shared with another layer, or frozen")
    return p[at + name]


def _linear(m: nn.Module, p: Parameters, at: str, v: Value) -> Tensor:
    x = _unpack(v)
    if isinstance(m, LowRank):
        return _low_rank(m, p, at, x)
    weight = _own(p, at, "weight")
    bias = _own(p, at, "bias") if getattr(m, "bias", None) is not None else None
    if len(weight) == 1 < len(x) and (bias is None or len(bias) == 1):
        return F.linear(x, weight[0], None if bias is None else bias[0])
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    if bias is None:
        out = torch.bmm(flat, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias.unsqueeze(1), flat, weight.transpose(1, 2))
    return out.view(*x.shape[:-1], weight.shape[1])


def _low_rank(m: LowRank, p: Parameters, at: str, x: Tensor) -> Tensor:
    """The shared layer on all clients' inputs at once, then two thin batched products."""
    out = _linear(m.base_layer, p, at + "base_layer.", x)
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    down, up = _own(p, at, "lora_A.weight"), _own(p, at, "lora_B.weight")
    low = torch.bmm(flat, down.transpose(1, 2))
    wide = out.view(x.shape[0], -1, out.shape[-1])
    return torch.baddbmm(wide, low, up.transpose(1, 2), alpha=m.scale).view(out.shape)


def _conv(m: nn.Conv2d, p: Parameters, at: str, v: Value) -> _Packed:
    if m.groups != 1 or m.padding_mode != "zeros" or isinstance(m.padding, str):
        raise NotStackable(f"{at} is a grouped or specially padded convolution")
    packed = _pack(v)
    weight = _own(p, at, "weight").flatten(0, 1)
    bias = _own(p, at, "bias").flatten() if m.bias is not None else None
    x = F.conv2d(packed.x, weight, bias, m.stride, m.padding, m.dilation, packed.clients)
    return _Packed(x, packed.clients)


def _conv_transpose(m: nn.ConvTranspose2d, p: Parameters, at: str, v: Value) -> _Packed:
    if m.groups != 1 or m.output_padding != (0, 0) or isinstance(m.padding, str):
        raise NotStackable(f"{at} is a grouped transposed convolution")
    packed = _pack(v)
    weight = _own(p, at, "weight").flatten(0, 1)
    bias = _own(p, at, "bias").flatten() if m.bias is not None else None
    x = F.conv_transpose2d(
        packed.x, weight, bias, m.stride, m.padding, 0, packed.clients, m.dilation
    )
    return _Packed(x, packed.clients)


def _group_norm(m: nn.GroupNorm, p: Parameters, at: str, v: Value) -> _Packed:
    packed = _pack(v)
    weight = _own(p, at, "weight").flatten() if m.affine else None
    bias = _own(p, at, "bias").flatten() if m.affine else None
    x = F.group_norm(packed.x, m.num_groups * packed.clients, weight, bias, m.eps)
    return _Packed(x, packed.clients)


def _layer_norm(m: nn.LayerNorm, p: Parameters, at: str, v: Value) -> Tensor:
    x = _unpack(v)
    if len(m.normalized_shape) != 1:
        raise NotStackable(f"{at} normalises over several dimensions")
    weight = _own(p, at, "weight") if m.elementwise_affine else None
    bias = _own(p, at, "bias") if weight is not None and m.bias is not None else None
    if weight is not None and len(weight) == 1 < len(x) and (bias is None or len(bias) == 1):
        own = None if bias is None else bias[0]
        return F.layer_norm(x, m.normalized_shape, weight[0], own, m.eps)
    x = F.layer_norm(x, m.normalized_shape, None, None, m.eps)
    shape = (-1, *([1] * (x.dim() - 2)), x.shape[-1])
    if weight is not None:
        x = x * weight.view(shape)
    if bias is not None:
        x = x + bias.view(shape)
    return x


def _embedding(m: nn.Embedding, p: Parameters, at: str, v: Value) -> Tensor:
    special = m.max_norm is not None or m.padding_idx is not None
    if special or m.sparse or m.scale_grad_by_freq:
        raise NotStackable(f"{at} is an embedding with side effects")
    tokens, table = _unpack(v), _own(p, at, "weight")
    k, size, width = table.shape
    first = torch.arange(k).view(k, *([1] * (tokens.dim() - 1))) * size
    return F.embedding(tokens + first, table.reshape(k * size, width))


def _flatten(m: nn.Flatten, p: Parameters, at: str, v: Value) -> Tensor:
    if (m.start_dim, m.end_dim) != (1, -1):
        raise NotStackable(f"{at} flattens only some dimensions")
    return _unpack(v).flatten(2)


def _unflatten(m: nn.Unflatten, p: Parameters, at: str, v: Value) -> Tensor:
    if m.dim != 1:
        raise NotStackable(f"{at} unflattens another dimension")
    x = _unpack(v)
    return x.reshape(*x.shape[:2], *tuple(m.unflattened_size), *x.shape[3:])


def _sequential(m: nn.Sequential, p: Parameters, at: str, v: Value) -> Value:
    # not named_children, which omits a layer's second use (one ReLU used twice)
    layers = list(zip(m._modules, m, strict=True))
    for i, ((_, first), (_, second)) in enumerate(itertools.pairwise(layers)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d:
            # the same values and gradients, with a ReLU of a quarter of the size
            layers[i : i + 2] = layers[i + 1], layers[i]
    for name, child in layers:
        v = _apply(child, p, f"{at}{name}.", v)
    return v


def _on_images(m: nn.Module, p: Parameters, at: str, v: Value) -> _Packed:
    if getattr(m, "return_indices", False):
        raise NotStackable(f"{at} returns indices")
    packed = _pack(v)
    return _Packed(m(packed.x), packed.clients)


def _pointwise(m: nn.Module, p: Parameters, at: str, v: Value) -> Value:
    if isinstance(v, _Packed):
        return _Packed(m(v.x), v.clients)
    out: Tensor = m(v)
    return out


def _attention(m: Attention, p: Parameters, at: str, v: Value, *, last: bool = False) -> Tensor:
    mixed = m.mix(_linear(m.qkv, p, at + "qkv.", v), last=last)
    return _linear(m.proj, p, at + "proj.", mixed)


def _feed_forward(m: FeedForward, p: Parameters, at: str, v: Value) -> Tensor:
    return _linear(m.proj, p, at + "proj.", m.act(_linear(m.fc, p, at + "fc.", v)))


def _block(m: Block, p: Parameters, at: str, v: Value, *, last: bool = False) -> Tensor:
    """All positions, or only the `last`, which still attends to all: (K, n, 1, D)."""
    x = _unpack(v)
    normal = _layer_norm(m.norm1, p, at + "norm1.", x)
    x = x[..., -1:, :] if last else x
    x = x + _attention(m.attn, p, at + "attn.", normal, last=last)
    return x + _feed_forward(m.mlp, p, at + "mlp.", _layer_norm(m.norm2, p, at + "norm2.", x))


def _tiny_vit(m: TinyViT, p: Parameters, at: str, v: Value) -> Tensor:
    x = _linear(m.embed, p, at + "embed.", m.patches(_unpack(v)))
    x = x + _own(p, at, "position").unsqueeze(1)
    x = _unpack(_sequential(m.blocks, p, at + "blocks.", x))
    return _linear(m.head, p, at + "head.", _layer_norm(m.norm, p, at + "norm.", x).mean(-2))


def tiny_gpt_hidden(
    m: TinyGPT, p: Parameters, tokens: Tensor, at: str = "", *, last: bool = False
) -> Tensor:
    """The hidden state before the head of a tiny GPT: tokens (K, n, L) to (K, n, L, D).

    `last`: only the last position (K, n, 1, D), which saves most of the last block's work.
    """
    x = _embedding(m.tokens, p, at + "tokens.", tokens)
    x = x + _own(p, at, "position")[:, : tokens.shape[-1]].unsqueeze(1)
    for i, block in enumerate(m.blocks):
        assert isinstance(block, Block)
        final = last and i == len(m.blocks) - 1
        x = _block(block, p, f"{at}blocks.{i}.", x, last=final)
    return _layer_norm(m.norm, p, at + "norm.", x)


def _tiny_gpt(m: TinyGPT, p: Parameters, at: str, v: Value) -> Tensor:
    return _linear(m.head, p, at + "head.", tiny_gpt_hidden(m, p, _unpack(v), at))


_RULES: dict[type, Callable[[Any, Parameters, str, Value], Value]] = {
    nn.Sequential: _sequential,
    nn.Linear: _linear,
    LowRank: _linear,
    nn.Conv2d: _conv,
    nn.ConvTranspose2d: _conv_transpose,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.MaxPool2d: _on_images,
    nn.AvgPool2d: _on_images,
    nn.AdaptiveAvgPool2d: _on_images,
    Attention: _attention,
    FeedForward: _feed_forward,
    Block: _block,
    TinyViT: _tiny_vit,
    TinyGPT: _tiny_gpt,
    **dict.fromkeys(
        (nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.Softplus, nn.LeakyReLU),
        _pointwise,
    ),
    nn.Identity: _pointwise,
}


def apply(m: nn.Module, p: Parameters, at: str, x: Tensor) -> Tensor:
    """One layer, named `at`, of K models on x (K, n, ...)."""
    return _unpack(_apply(m, p, at, x))


def _apply(m: nn.Module, p: Parameters, at: str, v: Value) -> Value:
    rule = _RULES.get(type(m))
    if rule is None:
        raise NotStackable(f"no stacked form for {type(m).__name__} at {at or 'the top'}")
    return rule(m, p, at, v)


def forward(module: nn.Module, p: Parameters, *inputs: Tensor) -> Any:
    """The output of `module(*inputs)` for each of K clients, with a leading dimension K."""
    if type(module) is ConditionalVAE:
        x, y, noise = inputs
        return decoded(module, p, encoded(module, p, x, y), y, noise)
    if len(inputs) != 1:
        raise NotStackable(f"no stacked form for {type(module).__name__}")
    return _unpack(_apply(module, p, "", inputs[0]))


def encoded(module: ConditionalVAE, p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    """The codes (K, n, 2 * latent) of K autoencoders: the part of a pass without noise."""
    h = _unpack(_apply(module.features, p, "features.", module.encoder_input(x, y)))
    return _linear(module.code, p, "code.", module.code_input(h, y))


def decoded(
    module: ConditionalVAE, p: Parameters, code: Tensor, y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of K autoencoders for given codes and noise (K, n, latent)."""
    z, mean, log_variance = module.sample(code, noise)
    out = _unpack(_apply(module.decoder, p, "decoder.", module.condition(z, y)))
    return out, mean, log_variance
