"""Trains all clients of a round, in blocks that fit the cache, by the fastest tier that is right.

Tiers, tried in this order and each checked once against the loop on a few examples before use:
analytic (fully connected classifiers), stacked (one autograd graph over known layers), vmap (any
module torch.func can trace), loop. All of them compute sums over a batch; hooks act on the sums,
and the division comes afterwards, so that a sensitivity is never rescaled by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.errors import UsageError, nearest
from fedaudit.federation.local.analytic import Analytic
from fedaudit.federation.local.loop import Loop
from fedaudit.federation.local.schedule import Schedule, Training, plan
from fedaudit.federation.local.stacked import Stacked
from fedaudit.federation.local.vmapped import Vmapped
from fedaudit.randomness import Seed
from fedaudit.tasks.stacked import NotStackable
from fedaudit.tasks.task import Task

Indices = npt.NDArray[np.int64]

# Bytes of parameters that one block of clients may take. Measured (benchmarks/federation.py): the
# written-out kernel wants a block in the second-level caches, the convolutions want fewer clients.
BLOCK_BYTES = {"analytic": 5 << 20, "stacked": 16 << 20, "vmap": 16 << 20, "loop": 1 << 62}
EXAMPLE_BYTES = 256 << 20  # per-example gradients of one block


class Kernel(Protocol):
    name: str

    def sums(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> Tensor: ...


class StepHook(Protocol):
    """Acts on the sums (K, d) of a batch, in place, before they are divided."""

    def __call__(self, sums: Tensor, *, clients: Indices, round_number: int, step: int) -> None: ...


GradientHook = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ClientData:
    """The examples of all clients in one pool, client by client.

    Client c owns rows starts[c] .. starts[c] + sizes[c] of `x` (N, ...) and `y` (N,).
    """

    x: Tensor
    y: Tensor
    starts: Indices
    sizes: Indices

    @classmethod
    def join(cls, parts: list[tuple[Tensor, Tensor]]) -> ClientData:
        sizes = np.array([len(x) for x, _ in parts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        x = torch.cat([x for x, _ in parts])
        return cls(x, torch.cat([y for _, y in parts]), starts, sizes)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(int(self.starts[client]), int(self.starts[client] + self.sizes[client]))
        return self.x[rows], self.y[rows]


class Trainer:
    """Local training of many clients for one round.

    `clip` bounds every example's gradient; `gradient` is any other function of per-example
    gradients (K, B, d); `step` acts on the sums of a batch. `tier` names a tier, or "auto".
    """

    def __init__(
        self,
        task: Task,
        training: Training,
        seed: Seed,
        *,
        clip: float | None = None,
        gradient: GradientHook | None = None,
        step: StepHook | None = None,
        tier: str = "auto",
        block: int | None = None,
    ) -> None:
        self.task, self.training, self.seed = task, training, seed
        self.clip, self.gradient, self.step = clip, gradient, step
        self.tier, self._block = tier, block
        self._kernel: Any = None

    # -- choosing a tier ---------------------------------------------------------------------

    def kernel(self, data: ClientData) -> Any:
        if self._kernel is None:
            self._kernel = self._choose(data)
        return self._kernel

    def _choose(self, data: ClientData) -> Any:
        makers: dict[str, Callable[[Task], Any]] = {
            "analytic": Analytic,
            "stacked": Stacked,
            "vmap": Vmapped,
            "loop": Loop,
        }
        if self.tier != "auto":
            if self.tier not in makers:
                raise UsageError(
                    f"no trainer tier {self.tier!r}",
                    expected="a tier",
                    got=repr(self.tier),
                    remedy=nearest(self.tier, [*makers, "auto"]),
                )
            return makers[self.tier](self.task)
        for name, make in makers.items():
            if name == "loop" or self._agrees(name, make, data):
                return make(self.task)
        raise AssertionError("the loop is always there")

    def _agrees(self, name: str, make: Callable[[Task], Any], data: ClientData) -> bool:
        """One gradient of two clients on three examples each, against the loop."""
        if name == "analytic" and not Analytic.fits(self.task):
            return False
        if self.task.has_buffers:
            return False
        p = self.task.initial().repeat(2, 1)
        p[1] *= 1.01
        rows = torch.arange(6).remainder(len(data.x)).view(2, 3)
        weight = torch.tensor([[0.5, 0.25, 0.0], [1.0, 0.5, 0.25]])
        noise = self.task.draw_noise(6, self.seed, "check")
        if noise is not None:
            noise = noise.view(2, 3, *noise.shape[1:])
        args = (p, data.x[rows], data.y[rows], weight, noise)
        try:
            fast = make(self.task).sums(*args)
        except (NotStackable, RuntimeError, NotImplementedError, TypeError, ValueError):
            return False
        slow = Loop(self.task).sums(*args)
        return bool(torch.allclose(fast, slow, rtol=1e-4, atol=1e-5 * float(slow.abs().max())))

    def _block_size(self, kernel: Any, batch: int) -> int:
        if self._block is not None:
            return self._block
        width = self.task.layout.width
        size = BLOCK_BYTES[kernel.name] // (4 * width)
        fused = self.gradient is None and (self.clip is None or hasattr(kernel, "clipped_sums"))
        if not fused:
            size = min(size, EXAMPLE_BYTES // (4 * width * max(1, batch)))
        return max(1, size)

    # -- one round ---------------------------------------------------------------------------

    def train(self, start: Tensor, clients: Indices, data: ClientData, round_number: int) -> Tensor:
        """Deltas (K, d) of `clients`, trained from start (d,) or from a row each (K, d)."""
        kernel = self.kernel(data)
        schedule = plan(self.training, clients, data.starts, data.sizes, self.seed, round_number)
        index = torch.from_numpy(schedule.index)
        weight = torch.from_numpy(schedule.valid).float()
        ordered = clients[schedule.order]
        out = torch.empty(len(clients), self.task.layout.width)
        block = self._block_size(kernel, index.shape[2])
        for low in range(0, len(clients), block):
            rows = slice(low, min(low + block, len(clients)))
            where = torch.from_numpy(schedule.order[rows])
            base = start.expand(len(where), -1) if start.dim() == 1 else start[where]
            p = base.clone()
            self._train_block(
                kernel,
                p,
                schedule,
                rows,
                index[rows],
                weight[rows],
                ordered[rows],
                data,
                round_number,
            )
            out[where] = p.sub_(base)
        return out

    def _train_block(
        self,
        kernel: Any,
        p: Tensor,
        schedule: Schedule,
        rows: slice,
        index: Tensor,
        weight: Tensor,
        clients: Indices,
        data: ClientData,
        round_number: int,
    ) -> None:
        steps = schedule.steps[rows]
        divisor = torch.from_numpy(schedule.divisor[rows])
        noise = self._noise(schedule, rows, clients, round_number)
        hooked = self.clip is not None or self.gradient is not None or self.step is not None
        plain = (
            not hooked
            and self.training.optimizer == "sgd"
            and self.training.momentum == 0
            and self.training.weight_decay == 0
            and hasattr(kernel, "sgd_")
        )
        optimiser = Optimiser(self.training, p)
        for s in range(int(steps[0])):
            a = int(np.searchsorted(-steps, -s, side="left"))
            i, w, q = index[:a, s], weight[:a, s], p[:a]
            x, y = data.x[i], data.y[i]
            z = None if noise is None else noise[:a, s]
            if plain:
                mean = w / divisor[:a, s].unsqueeze(1)
                kernel.sgd_(q, x, y, mean, z, self.training.learning_rate)
                continue
            sums = self._sums(kernel, q, x, y, w, z)
            if self.step is not None:
                self.step(sums, clients=clients[:a], round_number=round_number, step=s)
            optimiser.step(a, s, sums.div_(divisor[:a, s].unsqueeze(1)))

    def _sums(
        self, kernel: Any, p: Tensor, x: Tensor, y: Tensor, w: Tensor, z: Tensor | None
    ) -> Tensor:
        if self.gradient is None and self.clip is None:
            summed: Tensor = kernel.sums(p, x, y, w, z)
            return summed
        if self.gradient is None and hasattr(kernel, "clipped_sums"):
            clipped: Tensor = kernel.clipped_sums(p, x, y, w, z, self.clip)
            return clipped
        each = self._per_example(kernel)(p, x, y, w, z)
        if self.gradient is not None:
            each = self.gradient(each)
        if self.clip is not None:
            norms = each.norm(dim=2, keepdim=True).clamp_min(1e-12)
            each = each * (self.clip / norms).clamp_max(1.0)
        return torch.einsum("kb,kbd->kd", w, each)

    def _per_example(self, kernel: Any) -> Callable[..., Tensor]:
        if hasattr(kernel, "per_example"):
            own: Callable[..., Tensor] = kernel.per_example
            return own
        return Vmapped(self.task).per_example

    def _noise(
        self, schedule: Schedule, rows: slice, clients: Indices, round_number: int
    ) -> Tensor | None:
        """(K, S, B, ...) random numbers of a stochastic loss, each client's from its own stream."""
        shape = self.task.noise_shape()
        if shape is None:
            return None
        valid, steps = schedule.valid[rows], schedule.steps[rows]
        out = torch.zeros(*valid.shape, *shape)
        for k, client in enumerate(clients):
            width = max(1, int(valid[k].sum(axis=1).max()))
            own = torch.randn(
                int(steps[k]),
                width,
                *shape,
                generator=self.seed.torch_generator("loss", int(client), round_number),
            )
            out[k, : int(steps[k]), :width] = own
        return out


class Optimiser:
    """SGD with momentum, or Adam; state (K, d) fresh for every round, rows active from the top."""

    def __init__(self, training: Training, p: Tensor) -> None:
        self.training, self.p = training, p
        adam = training.optimizer == "adam"
        self._first = torch.zeros_like(p) if adam or training.momentum else None
        self._second = torch.zeros_like(p) if adam else None

    def step(self, active: int, step: int, grad: Tensor) -> None:
        """One update of the first `active` rows by their mean gradients (active, d)."""
        t, p = self.training, self.p[:active]
        if t.weight_decay:
            grad = grad.add(p, alpha=t.weight_decay)
        if self._second is not None and self._first is not None:
            b1, b2, eps = 0.9, 0.999, 1e-8
            m, v = self._first[:active], self._second[:active]
            m.lerp_(grad, 1 - b1)
            v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
            scale = (1 - b2 ** (step + 1)) ** 0.5
            p.addcdiv_(
                m, v.sqrt().div_(scale).add_(eps), value=-t.learning_rate / (1 - b1 ** (step + 1))
            )
        elif self._first is not None:
            m = self._first[:active]
            m.mul_(t.momentum).add_(grad)
            p.sub_(m, alpha=t.learning_rate)
        else:
            p.sub_(grad, alpha=t.learning_rate)
