"""Tier 1: classifiers and autoencoders made of Linear and ReLU, forward and backward written out.

With inputs a_0 = x, pre-activations z_i = W_i a_{i-1} + b_i, a_i = relu(z_i), cross-entropy on z_L:

    delta_L = (softmax(z_L) - onehot(y)) * weight
    delta_{i-1} = (delta_i W_i) * [z_{i-1} > 0]
    dW_i = delta_i^T a_{i-1},  db_i = sum over the batch of delta_i

An autoencoder with code (m, v), z = m + noise * exp(v / 2) and logits t has

    delta_t = sigmoid(t) - x
    delta_m = delta_z + m,  delta_v = delta_z * noise * exp(v / 2) / 2 + (exp(v) - 1) / 2

so that no loss is computed. For clipping, the squared norm of one example's gradient is the sum
over layers of |delta_i|^2 (|a_{i-1}|^2 + 1): no per-example gradient is formed, and clipping scales
delta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaudit.layout import TensorSpec
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import ConditionalVAE
from fedaudit.tasks.task import Task
from fedaudit.tasks.vae import Autoencoder


@dataclass(frozen=True)
class _LinearLayer:
    weight: TensorSpec
    bias: TensorSpec


class Analytic:
    """Gradient sums of stacked fully connected classifiers, a few batched products per step."""

    name = "analytic"
    direct = False

    def __init__(self, task: Task) -> None:
        self.task = task
        entries = {e.name: e for e in task.layout.entries}
        self.layers = [
            _LinearLayer(entries[f"{name}.weight"], entries[f"{name}.bias"])
            for name, child in task.module.named_modules()
            if isinstance(child, nn.Linear)
        ]
        self._scratch: dict[int, Tensor] = {}
        # glibc returns freed memory to the system unless a larger block was freed before, and every
        # round would then fault its rows in again. This block is never touched, so it costs
        # nothing.
        torch.empty(31 << 20, dtype=torch.uint8)

    @classmethod
    def fits(cls, task: Task) -> bool:
        """Whether the layers are Flatten, Linear with bias and ReLU in turn, and Linear last."""
        return type(task) is Classifier and _is_mlp(task.module)

    @staticmethod
    def _view(p: Tensor, e: TensorSpec) -> Tensor:
        return p[:, e.columns].view(len(p), *e.shape)

    def _forward(self, p: Tensor, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Inputs of every layer [(K, B, in_i)], and the logits (K, B, C)."""
        a = x.reshape(*x.shape[:2], -1)
        inputs = []
        for i, layer in enumerate(self.layers):
            inputs.append(a)
            w, b = self._view(p, layer.weight), self._view(p, layer.bias)
            if w.shape[1] < 2 * a.shape[1]:  # with few outputs, the transposed product is faster
                a = torch.bmm(w, a.transpose(1, 2)).transpose(1, 2).add_(b.unsqueeze(1))
            else:
                a = torch.baddbmm(b.unsqueeze(1), a, w.transpose(1, 2))
            if i < len(self.layers) - 1:
                a.relu_()
        return inputs, a

    def _deltas(self, p: Tensor, inputs: list[Tensor], delta: Tensor) -> list[Tensor]:
        """Loss gradients of every layer's pre-activation, from the last delta (K, B, C)."""
        deltas = [delta]
        for i in range(len(self.layers) - 1, 0, -1):
            delta = torch.bmm(delta, self._view(p, self.layers[i].weight))
            # mask in one pass; multiplying by a boolean tensor takes six times as long
            torch.ops.aten.threshold_backward.grad_input(delta, inputs[i], 0, grad_input=delta)
            deltas.append(delta)
        return deltas[::-1]

    def _last_delta(self, logits: Tensor, y: Tensor) -> Tensor:
        minus_one = logits.new_full((1, 1, 1), -1.0).expand(*y.shape, 1)
        return torch.softmax(logits, dim=2).scatter_add_(2, y.unsqueeze(2), minus_one)

    def _pass(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, noise: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs (K, B, in_i) and deltas (K, B, out_i) of every layer; None: weights of one."""
        inputs, logits = self._forward(p, x)
        delta = self._last_delta(logits, y)
        if weight is not None:
            delta.mul_(weight.unsqueeze(2))
        return inputs, self._deltas(p, inputs, delta)

    def _into(self, out: Tensor, inputs: list[Tensor], deltas: list[Tensor], scale: float) -> None:
        """out += scale * sums, layer by layer.

        The layers of `out` (K, d) are strided, for which `baddbmm_` processes one client at a time.
        A batched product into cached memory plus an addition takes half the time.
        """
        for i, (layer, a, delta) in enumerate(zip(self.layers, inputs, deltas, strict=True)):
            if self.direct:
                self._view(out, layer.weight).baddbmm_(delta.transpose(1, 2), a, alpha=scale)
                self._view(out, layer.bias).add_(delta.sum(dim=1), alpha=scale)
                continue
            product = torch.bmm(delta.transpose(1, 2), a, out=self._buffer(i, len(out), layer))
            self._view(out, layer.weight).add_(product, alpha=scale)
            self._view(out, layer.bias).add_(delta.sum(dim=1), alpha=scale)

    def _buffer(self, i: int, clients: int, layer: _LinearLayer) -> Tensor:
        """Memory for layer i's weight gradients (K, out, in), kept from step to step."""
        buffer = self._scratch.get(i)
        if buffer is None or len(buffer) < clients:
            buffer = self._scratch[i] = torch.empty(clients, *layer.weight.shape)
        return buffer[:clients]

    @torch.no_grad()
    def sums(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None) -> Tensor:
        """p (K, d), x (K, B, ...), weight (K, B) -> (K, d)."""
        out = torch.zeros_like(p)
        self._into(out, *self._pass(p, x, y, weight, noise), 1.0)
        return out

    @torch.no_grad()
    def sgd_(
        self,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        noise: Tensor | None,
        rate: float,
    ) -> None:
        """p -= rate * sums, in place: the update is fused into the products."""
        self._into(p, *self._pass(p, x, y, weight, noise), -rate)

    @torch.no_grad()
    def clipped_sums(
        self,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        noise: Tensor | None,
        clip: float,
    ) -> Tensor:
        """Sum over a batch of weight * clip(gradient of the example): (K, d)."""
        inputs, deltas = self._pass(p, x, y, None, noise)
        square = torch.zeros_like(weight)
        for a, delta in zip(inputs, deltas, strict=True):
            square += delta.square().sum(2) * (a.square().sum(2) + 1)
        factor = weight * (clip / square.sqrt().clamp_min(1e-12)).clamp_max(1.0)
        for delta in deltas:
            delta.mul_(factor.unsqueeze(2))
        out = torch.zeros_like(p)
        self._into(out, inputs, deltas, 1.0)
        return out


def _is_mlp(module: nn.Module) -> bool:
    if type(module) is not nn.Sequential:
        return False
    kinds = [type(m) for m in module if type(m) is not nn.Flatten]
    expected = [nn.Linear if i % 2 == 0 else nn.ReLU for i in range(len(kinds))]
    biased = all(m.bias is not None for m in module if isinstance(m, nn.Linear))
    return len(kinds) % 2 == 1 and kinds == expected and biased


_ATEN = torch.ops.aten
_SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda delta, before: _ATEN.threshold_backward(delta, before, 0),
    nn.GELU: lambda delta, before: _ATEN.gelu_backward(delta, before),
    nn.SiLU: lambda delta, before: _ATEN.silu_backward(delta, before),
    nn.Tanh: lambda delta, before: _ATEN.tanh_backward(delta, before.tanh()),
}
"""Activation -> its backward pass, from the delta behind it and the values before it."""


class AnalyticVAE(Analytic):
    """Gradient sums of stacked autoencoders with one hidden layer on each side."""

    direct = True

    @classmethod
    def fits(cls, task: Task) -> bool:
        m = task.module
        if type(task) is not Autoencoder or type(m) is not ConditionalVAE or m.planes:
            return False
        kinds = [[type(layer) for layer in part] for part in (m.features, m.decoder)]
        layers = [layer for layer in m.modules() if isinstance(layer, nn.Linear)]
        act = type(m.decoder[1]) if len(m.decoder) > 1 else nn.Identity
        return (
            kinds == [[nn.Flatten, nn.Linear, act], [nn.Linear, act, nn.Linear]]
            and act in _SLOPES
            and getattr(m.decoder[1], "approximate", "none") == "none"
            and len(layers) == 4
            and all(layer.bias is not None for layer in layers)
        )

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        entries = {e.name: e for e in task.layout.entries}
        self.layers = [
            _LinearLayer(entries[f"{name}.weight"], entries[f"{name}.bias"])
            for name in ("features.1", "code", "decoder.0", "decoder.2")
        ]
        assert isinstance(task.module, ConditionalVAE)
        self._act = task.module.decoder[1]
        self._slope = _SLOPES[type(self._act)]

    def _linear(self, i: int, p: Tensor, a: Tensor) -> Tensor:
        layer = self.layers[i]
        bias = self._view(p, layer.bias).unsqueeze(1)
        return torch.baddbmm(bias, a, self._view(p, layer.weight).transpose(1, 2))

    def _back(self, i: int, p: Tensor, delta: Tensor, before: Tensor) -> Tensor:
        """The delta at the values `before` the activation that feeds layer i."""
        back = torch.bmm(delta, self._view(p, self.layers[i].weight)[..., : before.shape[-1]])
        return self._slope(back, before)

    def _pass(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, noise: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        m = self.task.module
        assert isinstance(m, ConditionalVAE)
        assert noise is not None, "an autoencoder's loss needs noise"
        x = x.reshape(*x.shape[:2], -1)
        before_first = self._linear(0, p, x)
        code_input = m.condition(self._act(before_first), y)
        code = self._linear(1, p, code_input)
        mean, half = code[..., : m.latent], (0.5 * code[..., m.latent :]).exp_()
        spread = noise * half
        z = m.condition(mean + spread, y)
        before_second = self._linear(2, p, z)
        second = self._act(before_second)
        last = self._linear(3, p, second).sigmoid_().sub_(x)
        if weight is not None:
            last.mul_(weight.unsqueeze(2))
        hidden = self._back(3, p, last, before_second)
        through = torch.bmm(hidden, self._view(p, self.layers[2].weight)[..., : m.latent])
        by_mean, by_variance = mean, half.square_().sub_(1).mul_(0.5)
        if weight is not None:
            by_mean, by_variance = mean * weight.unsqueeze(2), by_variance.mul_(weight.unsqueeze(2))
        delta = torch.cat([through + by_mean, by_variance.addcmul_(through, spread, value=0.5)], 2)
        return [x, code_input, z, second], [
            self._back(1, p, delta, before_first),
            delta,
            hidden,
            last,
        ]


def analytic_kernel(task: Task) -> type[Analytic] | None:
    """The written-out kernel of a task, if there is one."""
    return next((kind for kind in (Analytic, AnalyticVAE) if kind.fits(task)), None)
