"""A task: a model and a loss as pure functions of a flat vector of parameters.

The federation does not know layers: it moves rows of numbers. A task defines the layout of a row,
the examples, and the loss of each example, for one client's parameters or for the stacked
parameters of many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.tasks.stacked import Parameters, forward

EVALUATED_AT_ONCE = 512  # held-out examples per forward pass: logits over a vocabulary are large


@dataclass(frozen=True)
class Examples:
    """Training examples: `x` (n, ...), `y` (n,), and `record` (n,), the number of each example's
    record in the dataset (a document gives several windows)."""

    x: Tensor
    y: Tensor
    record: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> Examples:
        return Examples(self.x[rows], self.y[rows], self.record[rows])


class Task:
    """A torch module with a loss per example. Subclasses define the examples and the loss.

    `settings` rebuild the task; they are stored with a trace. The flat vector holds all trained
    parameters, then the floating-point buffers of the state dict (normalisation statistics), in the
    order of `named_parameters` and `named_buffers`. Frozen parameters (requires_grad is off) and
    buffers outside the state dict stay in the module: they are equal for all clients and are never
    sent.
    """

    kind: str = "task"

    def __init__(self, module: nn.Module, settings: Mapping[str, Any] | None = None) -> None:
        self.module = module
        self.settings = dict(settings or {})
        trained = [(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise ConfigError(
                "the model has nothing to train",
                expected="a module with parameters",
                got=f"{type(module).__name__} without a parameter that requires a gradient",
                remedy="leave requires_grad on for the parameters to be trained",
            )
        kept = module.state_dict().keys()
        state = [
            (n, tuple(b.shape))
            for n, b in module.named_buffers()
            if b.dtype.is_floating_point and n in kept
        ]
        self.layout = Layout.of([*trained, *state], buffers=[n for n, _ in state])
        self.has_buffers = bool(state)
        #: number of trained columns; buffers follow them
        self.trained = sum(e.size for e in self.layout.entries if e.role == "parameter")
        travelling = set(self.layout.names)
        self._aside = [n for n, _ in module.named_buffers() if n not in travelling]
        self._tied = {n: first for n, first in _tied(module).items() if first in travelling}

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

    def differentiable(self, flat: Tensor) -> dict[str, Tensor]:
        """The same views of rows that need a gradient; buffers are statistics and have none."""
        buffers = {e.name for e in self.layout.entries if e.role != "parameter"}
        views = self.named(flat)
        return {name: v.detach() if name in buffers else v for name, v in views.items()}

    # -- defined by subclasses ---------------------------------------------------------------

    def encode(self, dataset: Dataset) -> Examples:
        """Turn records into examples."""
        raise TypeError(f"{type(self).__name__} does not define examples")

    def inputs(self, x: Tensor, y: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """The arguments of the module's forward."""
        return (x,)

    def criterion(self, output: Any, x: Tensor, y: Tensor) -> Tensor:
        """Loss per example, for any number of leading dimensions."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def clients_per_block(self, batch: int) -> int | None:
        """Largest number of clients to train as one block; None: parameters alone decide."""
        return None

    def evaluated_at_once(self) -> int:
        """Held-out examples per forward pass."""
        return EVALUATED_AT_ONCE

    def noise_shape(self) -> tuple[int, ...] | None:
        """Shape per example of the random numbers in the loss; None: the loss is deterministic."""
        return None

    def metrics(self, flat: Tensor, examples: Examples, seed: Seed) -> dict[str, float]:
        """Means of `measures` over held-out examples, with the model in evaluation mode.

        `loss_error` is the standard error of the mean loss, over examples.
        """
        noise = self.draw_noise(len(examples), seed, "evaluation")
        sums: dict[str, float] = {}
        squares = 0.0
        with torch.no_grad(), self.evaluating():
            size = self.evaluated_at_once()
            for low in range(0, len(examples), size):
                rows = slice(low, low + size)
                z = None if noise is None else noise[rows]
                each = self.measures(self.named(flat), examples.x[rows], examples.y[rows], z)
                for name, values in each.items():
                    sums[name] = sums.get(name, 0.0) + float(values.double().sum())
                squares += float(each["loss"].double().square().sum())
        n = len(examples)
        means = {name: total / n for name, total in sums.items()}
        if n > 1:
            variance = max(squares / n - means["loss"] ** 2, 0.0) * n / (n - 1)
            means["loss_error"] = (variance / n) ** 0.5
        return means

    def measures(
        self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None
    ) -> dict[str, Tensor]:
        """Metrics of held-out examples: name -> (n,)."""
        return {"loss": self.losses(p, x, y, noise)}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the module in evaluation mode: stored statistics, no dropout."""
        modes = [(m, m.training) for m in self.module.modules()]
        self.module.eval()
        try:
            yield
        finally:
            for m, mode in modes:
                m.training = mode

    # -- losses ------------------------------------------------------------------------------

    def draw_noise(self, n: int, seed: Seed, purpose: str, *at: int) -> Tensor | None:
        """Standard normal numbers (n, ...) for n examples, or None if the loss is deterministic."""
        shape = self.noise_shape()
        if shape is None:
            return None
        return torch.randn(n, *shape, generator=seed.torch_generator(purpose, *at))

    def losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """Loss per example (n,) of one model on x (n, ...)."""
        return self.criterion(self.output(p, x, y, noise), x, y)

    def scores(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """How well a model fits each example (n,): the log-likelihood, or a substitute."""
        return -self.losses(p, x, y, noise)

    def stacked_scores(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """`scores` of K models on x (K, n, ...): (K, n)."""
        return -self.stacked_losses(p, x, y, noise)

    def evidence(self, scores: Tensor) -> Tensor:
        """Transform scores so that those of one record under many models are about normal."""
        return scores

    def output(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Any:
        """The module's output with parameters `p`; the module itself does not change."""
        # counters (num_batches_tracked) change in place: each call gets a copy
        own = dict(self.module.named_buffers()) if self._aside else {}
        aside = {n: own[n].clone() for n in self._aside}
        tied = {n: p[first] for n, first in self._tied.items()}
        # torch's own tying leaves tensors behind in a layer that is used twice
        every = {**aside, **p, **tied}
        return functional_call(self.module, every, self.inputs(x, y, noise), tie_weights=False)

    def stacked_losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """Loss per client and example (K, n) of K models on x (K, n, ...).

        Raises `stacked.NotStackable` for layers without a stacked form.
        """
        return self.criterion(forward(self.module, p, *self.inputs(x, y, noise)), x, y)


def _tied(module: nn.Module) -> dict[str, str]:
    """Other name -> first name of parameters and buffers that several layers share.

    A layer that is used twice is one layer, under either name.
    """
    first: dict[int, str] = {}
    places: set[tuple[int, str]] = set()
    out = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        layer, _, attribute = name.rpartition(".")
        place = (id(module.get_submodule(layer)), attribute)
        if place not in places and first.setdefault(id(tensor), name) != name:
            out[name] = first[id(tensor)]
        places.add(place)
    return out


def seeded(seed: Seed, purpose: str, build: Any, *args: Any, **settings: Any) -> nn.Module:
    """Build a module whose initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed.key(purpose))
        module: nn.Module = build(*args, **settings)
    return module


def refuse_text(dataset: Dataset, reader: str) -> None:
    """Raise for a dataset of texts: `reader` takes numbers."""
    if isinstance(dataset.x, tuple):
        raise DataError(
            f"dataset {dataset.name!r} is text, which {reader} cannot read",
            expected="features or images",
            got="documents",
            remedy='use task.kind = "gpt"',
        )


def as_tensor(values: npt.NDArray[Any]) -> Tensor:
    """An array as a tensor; read-only arrays are copied, since torch has no read-only tensors."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
