"""A task: a model and a loss as pure functions of a flat vector of parameters.

The federation knows nothing of layers: it moves rows of numbers. A task says how a row becomes a
model (its layout), what an example is, and what the loss of each example is, for one client's
parameters or for the stacked parameters of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaudit.data.dataset import Dataset
from fedaudit.layout import Layout
from fedaudit.randomness import Seed

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Examples:
    """What a model is trained on: `x` (n, ...), `y` (n,), and `record` (n,), the record number
    in the dataset each example came from (a document gives several windows)."""

    x: Tensor
    y: Tensor
    record: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> Examples:
        return Examples(self.x[rows], self.y[rows], self.record[rows])


class Task:
    """A torch module with a loss per example. Subclasses say what an example is.

    `settings` is what rebuilds the task; it is stored with a trace. The flat vector holds all
    trained parameters, then the floating-point buffers (normalisation statistics), each in the
    order of `named_parameters` and `named_buffers`.
    """

    kind: str = "task"

    def __init__(self, module: nn.Module, settings: Mapping[str, Any] | None = None) -> None:
        self.module = module
        self.settings = dict(settings or {})
        trained = [(n, tuple(p.shape)) for n, p in module.named_parameters()]
        state = [
            (n, tuple(b.shape)) for n, b in module.named_buffers() if b.dtype.is_floating_point
        ]
        self.layout = Layout.of([*trained, *state], buffers=[n for n, _ in state])
        self.has_buffers = bool(state)

    # -- flat vectors ------------------------------------------------------------------------

    def initial(self) -> Tensor:
        """The module's own weights as a flat vector (d,)."""
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return torch.cat([own[e.name].detach().reshape(-1).float() for e in self.layout.entries])

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector (d,) or of stacked rows (K, d) by parameter name."""
        lead = flat.shape[:-1]
        return {
            e.name: flat[..., e.offset : e.offset + e.size].view(*lead, *e.shape)
            for e in self.layout.entries
        }

    # -- what subclasses define --------------------------------------------------------------

    def encode(self, dataset: Dataset) -> Examples:
        """Turn records into examples."""
        raise TypeError(f"{type(self).__name__} does not say what an example is")

    def inputs(self, x: Tensor, y: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """The arguments of the module's forward."""
        return (x,)

    def criterion(self, output: Any, x: Tensor, y: Tensor) -> Tensor:
        """Loss per example; any number of leading dimensions."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def noise_shape(self) -> tuple[int, ...] | None:
        """Shape per example of the random numbers that the loss consumes, or None."""
        return None

    def metrics(self, flat: Tensor, examples: Examples, seed: Seed) -> dict[str, float]:
        """Held-out loss, and what else is worth knowing."""
        with torch.no_grad():
            noise = self.draw_noise(len(examples), seed, "evaluation")
            losses = self.losses(self.named(flat), examples.x, examples.y, noise)
        return {"loss": float(losses.mean())}

    # -- losses ------------------------------------------------------------------------------

    def draw_noise(self, n: int, seed: Seed, purpose: str, *at: int) -> Tensor | None:
        """Standard normal numbers (n, ...) for n examples, or None if the loss is deterministic."""
        shape = self.noise_shape()
        if shape is None:
            return None
        return torch.randn(n, *shape, generator=seed.torch_generator(purpose, *at))

    def losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """Loss per example (n,) of one model on x (n, ...)."""
        output = functional_call(self.module, dict(p), self.inputs(x, y, noise))
        return self.criterion(output, x, y)

    def stacked_losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """Loss per client and example (K, n) of K models on x (K, n, ...).

        Raises `stacked.NotStackable` for layers that have no stacked form.
        """
        from fedaudit.tasks.stacked import forward

        return self.criterion(forward(self.module, p, *self.inputs(x, y, noise)), x, y)


def seeded(seed: Seed, purpose: str, build: Any, *args: Any, **settings: Any) -> nn.Module:
    """Build a module with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed.key(purpose))
        module: nn.Module = build(*args, **settings)
    return module


def image_shape(x: Tensor) -> tuple[int, int, int]:
    """(channels, height, width) of image examples (n, C, H, W)."""
    shape: Sequence[int] = x.shape[1:]
    channels, height, width = shape
    return channels, height, width
