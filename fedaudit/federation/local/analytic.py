"""Tier 1: classifiers made of Linear and ReLU, forward and backward written out.

With inputs a_0 = x, pre-activations z_i = W_i a_{i-1} + b_i, a_i = relu(z_i), cross-entropy on z_L:

    delta_L = (softmax(z_L) - onehot(y)) * weight
    delta_{i-1} = (delta_i W_i) * [z_{i-1} > 0]
    dW_i = delta_i^T a_{i-1},  db_i = sum over the batch of delta_i

For clipping, the squared norm of one example's gradient is the sum over layers of
|delta_i|^2 (|a_{i-1}|^2 + 1): no per-example gradient is formed, and clipping scales delta.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaudit.layout import TensorSpec
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.task import Task


@dataclass(frozen=True)
class _LinearLayer:
    weight: TensorSpec
    bias: TensorSpec


class Analytic:
    """Gradient sums of stacked fully connected classifiers, a few batched products per step."""

    name = "analytic"

    def __init__(self, task: Task) -> None:
        self.task = task
        entries = {e.name: e for e in task.layout.entries}
        module = task.module
        assert isinstance(module, nn.Sequential)
        self.layers = [
            _LinearLayer(entries[f"{name}.weight"], entries[f"{name}.bias"])
            for name, child in module.named_children()
            if isinstance(child, nn.Linear)
        ]
        self.classes = self.layers[-1].weight.shape[0]
        self._scratch: dict[int, Tensor] = {}
        # glibc returns freed memory to the system unless a larger block was freed before, and every
        # round would then fault its rows in again. This block is never touched, so it costs
        # nothing.
        torch.empty(31 << 20, dtype=torch.uint8)

    @staticmethod
    def fits(task: Task) -> bool:
        """Whether the layers are Flatten, Linear with bias and ReLU in turn, and Linear last."""
        if type(task) is not Classifier or type(task.module) is not nn.Sequential:
            return False
        kinds = [type(m) for m in task.module if type(m) is not nn.Flatten]
        expected = [nn.Linear if i % 2 == 0 else nn.ReLU for i in range(len(kinds))]
        biased = all(m.bias is not None for m in task.module if isinstance(m, nn.Linear))
        return len(kinds) % 2 == 1 and kinds == expected and biased

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
        minus_one = torch.full((1, 1, 1), -1.0).expand(*y.shape, 1)
        return torch.softmax(logits, dim=2).scatter_add_(2, y.unsqueeze(2), minus_one)

    def _into(self, out: Tensor, inputs: list[Tensor], deltas: list[Tensor], scale: float) -> None:
        """out += scale * sums, layer by layer.

        The layers of `out` (K, d) are strided, for which `baddbmm_` processes one client at a time.
        A batched product into cached memory plus an addition takes half the time.
        """
        for i, (layer, a, delta) in enumerate(zip(self.layers, inputs, deltas, strict=True)):
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
        inputs, logits = self._forward(p, x)
        delta = self._last_delta(logits, y).mul_(weight.unsqueeze(2))
        out = torch.zeros_like(p)
        self._into(out, inputs, self._deltas(p, inputs, delta), 1.0)
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
        inputs, logits = self._forward(p, x)
        delta = self._last_delta(logits, y).mul_(weight.unsqueeze(2))
        self._into(p, inputs, self._deltas(p, inputs, delta), -rate)

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
        inputs, logits = self._forward(p, x)
        deltas = self._deltas(p, inputs, self._last_delta(logits, y))
        square = torch.zeros_like(weight)
        for a, delta in zip(inputs, deltas, strict=True):
            square += delta.square().sum(2) * (a.square().sum(2) + 1)
        factor = weight * (clip / square.sqrt().clamp_min(1e-12)).clamp_max(1.0)
        for delta in deltas:
            delta.mul_(factor.unsqueeze(2))
        out = torch.zeros_like(p)
        self._into(out, inputs, deltas, 1.0)
        return out
