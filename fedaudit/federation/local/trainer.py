"""Train all clients of a round in blocks that fit the cache, with the fastest correct tier.

Tiers, tried in this order and each checked once against the loop on a few examples before use:
analytic (fully connected classifiers and autoencoders), stacked (one autograd graph over known
layers), vmap (any module torch.func can trace, up to a size), loop. All of them compute sums over a
batch; hooks act on the sums, and the division comes afterwards, so that a sensitivity is never
rescaled by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedaudit.arrays import Floats, Indices
from fedaudit.errors import ConfigError, UsageError
from fedaudit.federation.local.analytic import Analytic, analytic_kernel
from fedaudit.federation.local.loop import Loop
from fedaudit.federation.local.schedule import Schedule, Training, plan
from fedaudit.federation.local.stacked import Stacked
from fedaudit.federation.local.vmapped import Vmapped
from fedaudit.randomness import Seed
from fedaudit.rows import RowBuffer
from fedaudit.tasks.task import Task

# Parameter bytes per block of clients. Measured (benchmarks/federation.py): the analytic kernel is
# fastest if a block fits the second-level cache, convolutions with fewer clients.
BLOCK_BYTES = {"analytic": 5 << 20, "stacked": 16 << 20, "vmap": 16 << 20}
# Per-example gradients of one block: larger ones leave the cache and fault their pages in again at
# every step. 8 MB against 256: 2.7x on a transformer of width 64, 2.5x on a GELU network, 1.4x CNN.
EXAMPLE_BYTES = 8 << 20
PLANNED = 1 << 24  # numbers in one plan: (client, step, example, noise)


class StepHook(Protocol):
    """Acts on the sums (K, d) of a batch, in place, before they are divided."""

    def __call__(self, sums: Tensor, *, clients: Indices, round_number: int, step: int) -> None: ...


class PlantedRows(Protocol):
    """Canaries of a pool of examples: see `federation.local.planted`."""

    @property
    def extra(self) -> Indices: ...

    def log(
        self, rows: Tensor, weight: Tensor, expected: Floats, at: tuple[int, int], clients: Indices
    ) -> None: ...

    def has_gradient(self, rows: Tensor) -> Tensor: ...

    def drawn(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


GradientHook = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ClientData:
    """The examples of all clients in one pool, client by client.

    Client c owns rows starts[c] .. starts[c] + sizes[c] of `x` (N, ...) and `y` (N,). `person` (N,)
    numbers the unit of privacy of each example within its client: a person, or the record from
    which the example was cut. None if every example is its own unit. `planted`: canaries, which
    stand after the `sizes[c]` real examples of their clients.
    """

    x: Tensor
    y: Tensor
    starts: Indices
    sizes: Indices
    person: Tensor | None = None
    planted: PlantedRows | None = None

    @classmethod
    def join(
        cls, parts: list[tuple[Tensor, Tensor]], persons: list[Tensor] | None = None
    ) -> ClientData:
        sizes = np.array([len(x) for x, _ in parts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        x = torch.cat([x for x, _ in parts])
        person = None if persons is None else torch.cat(persons)
        return cls(x, torch.cat([y for _, y in parts]), starts, sizes, person)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(int(self.starts[client]), int(self.starts[client] + self.sizes[client]))
        return self.x[rows], self.y[rows]


class Trainer:
    """Local training of many clients for one round.

    `clip`: bound on the norm of every example's gradient, or of the sum per person (`clip_unit`).
    `gradient`: any other function of per-example gradients (K, B, d). `step`: acts on the sums of a
    batch. `tier`: name of a tier, or "auto". `block`: clients trained together (default: measured).
    """

    def __init__(
        self,
        task: Task,
        training: Training,
        seed: Seed,
        *,
        clip: float | None = None,
        clip_unit: str = "record",
        gradient: GradientHook | None = None,
        step: StepHook | None = None,
        tier: str = "auto",
        block: int | None = None,
    ) -> None:
        self.task, self.training, self.seed = task, training, seed
        self.clip, self.gradient, self.step = clip, gradient, step
        self.clip_unit = clip_unit
        self.tier, self._block = tier, block
        self._kernel: Any = None
        self._rows, self._ordered = RowBuffer(), RowBuffer()
        if clip is not None or gradient is not None:
            _refuse_batch_statistics(task)

    # -- choosing a tier ---------------------------------------------------------------------

    def kernel(self, data: ClientData) -> Any:
        if self._kernel is None:
            with torch.random.fork_rng(devices=()):  # the trial may draw random numbers
                self._kernel = self._choose(data)
        return self._kernel

    def _choose(self, data: ClientData) -> Any:
        makers: dict[str, Callable[[Task], Any]] = {
            "analytic": analytic_kernel(self.task) or Analytic,
            "stacked": Stacked,
            "vmap": Vmapped,
            "loop": Loop,
        }
        if self.tier != "auto":
            if self.tier not in makers:
                raise UsageError.unknown(
                    f"no trainer tier {self.tier!r}", self.tier, [*makers, "auto"]
                )
            if self.tier != "loop" and not self._agrees(self.tier, makers[self.tier], data):
                raise UsageError(
                    f"tier {self.tier!r} cannot train this model",
                    expected="gradients that equal those of the loop",
                    got=f"{type(self.task.module).__name__} with layers this tier does not support",
                    remedy='tier = "auto" picks the fastest correct tier',
                )
            return makers[self.tier](self.task)
        for name, make in makers.items():
            if name == "vmap" and not Vmapped.fits(self.task):
                continue
            if name == "loop" or self._agrees(name, make, data):
                return make(self.task)
        raise AssertionError("the loop is always there")

    def _agrees(self, name: str, make: Callable[[Task], Any], data: ClientData) -> bool:
        """Compare a tier with the loop: one gradient of two clients on three examples each.

        Checks every entry point of the tier (plain sums, fused step, fused clipping).
        """
        if name == "analytic" and analytic_kernel(self.task) is None:
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
        slow = Loop(self.task).sums(*args)
        largest = float(slow.abs().max())
        rate = 1.0 / max(largest, 1e-30)  # a step of size 1: rounding of p stays below it
        pairs: list[tuple[Tensor, Tensor, float]] = []
        try:
            kernel = make(self.task)
            pairs.append((kernel.sums(*args), slow, 1e-5 * largest))
            if hasattr(kernel, "sgd_"):
                stepped = p.clone()
                kernel.sgd_(stepped, *args[1:], rate)
                pairs.append((p - stepped, rate * slow, 1e-5 * (1 + float(p.abs().max()))))
            if self.clip is not None and hasattr(kernel, "clipped_sums"):
                each = Loop(self.task).per_example(*args)
                each *= (self.clip / each.norm(dim=2, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
                bounded = torch.einsum("kb,kbd->kd", weight, each)
                atol = 1e-5 * float(bounded.abs().max())
                pairs.append((kernel.clipped_sums(*args, self.clip), bounded, atol))
        except Exception:  # any failure of a faster tier: the loop trains any module
            return False
        return all(torch.allclose(fast, s, rtol=1e-4, atol=atol) for fast, s, atol in pairs)

    def _block_size(self, kernel: Any, batch: int) -> int:
        if kernel.name == "loop":
            return 1
        if self._block is not None:
            return self._block
        width = self.task.layout.width
        size = BLOCK_BYTES[kernel.name] // (4 * width)
        size = min(size, self.task.clients_per_block(batch) or size)
        fused = self.gradient is None and (self.clip is None or self._fuses_clipping(kernel))
        if not fused:
            size = min(size, EXAMPLE_BYTES // (4 * width * batch))
        return max(1, size)

    # -- one round ---------------------------------------------------------------------------

    def train(self, start: Tensor, clients: Indices, data: ClientData, round_number: int) -> Tensor:
        """Deltas (K, d) of `clients`, trained from start (d,) or from a row each (K, d)."""
        kernel = self.kernel(data)
        n = data.sizes[clients]
        steps = self.training.steps_of(n)
        batch = self.training.expected_batch(int(n.max()))
        out = self._rows.take(len(clients), self.task.layout.width)
        # memory bounds the clients planned together, the cache those trained together
        noise = math.prod(self.task.noise_shape() or (1,))
        planned = max(1, PLANNED // (int(steps.max()) * batch * noise))
        block = min(planned, self._block_size(kernel, batch))
        planned -= planned % block
        order = np.lexsort((-n, -steps))  # similar clients share a block: little padding
        trained: list[Indices] = []
        for first in range(0, len(clients), planned):
            together = order[first : first + planned]
            schedule = self._plan(clients[together], data, round_number)
            together = together[schedule.order]
            trained.append(together)
            for low in range(0, len(together), block):
                rows = together[low : low + block]
                # train in the output rows: a copy costs as much as a step
                at = first + low if block > 1 else int(rows[0])
                p = out[at : at + len(rows)]
                base = start if start.dim() == 1 else start[torch.from_numpy(rows)]
                p.copy_(base)
                own = schedule.part(slice(low, low + block))
                with self._seeded_module(kernel, int(clients[rows[0]]), round_number):
                    self._train_block(kernel, p, own, clients[rows], data, round_number)
                p.sub_(base)
        done = np.concatenate(trained)
        if block > 1 and not np.array_equal(done, np.arange(len(done))):
            index = torch.from_numpy(np.argsort(done))
            out = torch.index_select(out, 0, index, out=self._ordered.take(*out.shape))
        return out

    def replay_draws(self, clients: Indices, data: ClientData, round_number: int) -> None:
        """Note which steps draw which canaries, as training does, without training."""
        if data.planted is None:
            return
        schedule = self._plan(clients, data, round_number)
        who = clients[schedule.order]
        index, valid = torch.from_numpy(schedule.index), torch.from_numpy(schedule.valid).float()
        for s in range(int(schedule.steps[0])):
            a = schedule.active(s)
            expected = schedule.divisor[:a, s].astype(np.float64)
            data.planted.log(index[:a, s], valid[:a, s], expected, (round_number, s), who[:a])

    def _plan(self, clients: Indices, data: ClientData, round_number: int) -> Schedule:
        """The batches of some clients in a round."""
        person = data.person if self.clip_unit == "person" else None
        return plan(
            self.training,
            clients,
            data.starts,
            data.sizes,
            self.seed,
            round_number,
            None if person is None else person.numpy(),
            None if data.planted is None else data.planted.extra,
        )

    @contextmanager
    def _seeded_module(self, kernel: Any, client: int, round_number: int) -> Iterator[None]:
        """Seed a module's own random draws (dropout) by (seed, client, round).

        Only the loop trains such modules, one client at a time.
        """
        if kernel.name != "loop":
            yield
            return
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed.key("module", client, round_number))
            yield

    def _train_block(
        self,
        kernel: Any,
        p: Tensor,
        schedule: Schedule,
        clients: Indices,
        data: ClientData,
        round_number: int,
    ) -> None:
        index = torch.from_numpy(schedule.index)
        weight = torch.from_numpy(schedule.valid).float()
        divisor = torch.from_numpy(schedule.divisor)
        noise = self._noise(schedule, clients, round_number)
        trained = self.task.trained  # later columns are buffers, which no optimiser changes
        hooked = self.clip is not None or self.gradient is not None or self.step is not None
        plain = (
            not hooked
            and self.training.optimizer == "sgd"
            and self.training.momentum == 0
            and self.training.weight_decay == 0
            and hasattr(kernel, "sgd_")
            and data.planted is None
        )
        optimiser = Optimiser(self.training, p[:, :trained])
        for s in range(int(schedule.steps[0])):
            a = schedule.active(s)
            i, w, q = index[:a, s], weight[:a, s], p[:a]
            drawn = None
            if data.planted is not None:
                expected = divisor[:a, s].numpy()
                data.planted.log(i, w, expected, (round_number, s), clients[:a])
                drawn = data.planted.drawn(i, w)
                # a gradient canary stands for its example, which the kernel need not see
                w = torch.where(data.planted.has_gradient(i), 0.0, w)
                if noise is None:
                    i, w = _with_weight(i, w)
            flat = i.reshape(-1)
            x = data.x.index_select(0, flat).view(*i.shape, *data.x.shape[1:])
            y = data.y.index_select(0, flat).view(i.shape)
            z = None if noise is None else noise[:a, s]
            if plain:
                mean = w / divisor[:a, s].unsqueeze(1)
                kernel.sgd_(q, x, y, mean, z, self.training.learning_rate)
                continue
            person = None if data.person is None else data.person[i]
            sums = self._sums(kernel, q, x, y, w, z, person, drawn)
            if drawn is not None and self.gradient is None:
                sums = self._with_planted(sums, drawn)
            if self.step is not None:
                self.step(sums, clients=clients[:a], round_number=round_number, step=s)
            optimiser.step(a, s, sums.div_(divisor[:a, s].unsqueeze(1))[:, :trained])

    def _fuses_clipping(self, kernel: Any) -> bool:
        """Whether the kernel clips by itself, without per-example gradients."""
        return self.clip_unit == "record" and hasattr(kernel, "clipped_sums")

    def _sums(
        self,
        kernel: Any,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        w: Tensor,
        z: Tensor | None,
        person: Tensor | None,
        planted: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        if self.gradient is None and self.clip is None:
            summed: Tensor = kernel.sums(p, x, y, w, z)
            return summed
        if self.gradient is None and self._fuses_clipping(kernel):
            clipped: Tensor = kernel.clipped_sums(p, x, y, w, z, self.clip)
            return clipped
        if self.gradient is None and self.clip_unit != "person":
            return self._clipped_sums(kernel, p, x, y, w, z)
        each = self._per_example(kernel)(p, x, y, w, z)
        canaries: Tensor | float = 0.0
        if self.gradient is not None:
            # a hook may look at all examples of a batch, so canaries stand among them
            together = each if planted is None else torch.cat([each, _dense(planted, p)], dim=1)
            each, own = self.gradient(together).tensor_split([each.shape[1]], dim=1)
            if planted is not None:
                canaries = torch.einsum("kb,kbd->kd", planted[2], self._clipped(own))
        if self.clip_unit == "person" and self.clip is not None:
            if person is None:
                raise no_persons()
            each, w = by_person(each, w, person)
        return torch.einsum("kb,kbd->kd", w, self._clipped(each)) + canaries

    def _clipped_sums(
        self, kernel: Any, p: Tensor, x: Tensor, y: Tensor, w: Tensor, z: Tensor | None
    ) -> Tensor:
        """Sums (K, d) of clipped gradients, over slices of the batch that the cache holds."""
        per_example, out = self._per_example(kernel), torch.zeros_like(p)
        size = max(1, EXAMPLE_BYTES // (4 * p.numel()))
        for low in range(0, w.shape[1], size):
            part = slice(low, low + size)
            own = None if z is None else z[:, part]
            each = self._clipped(per_example(p, x[:, part], y[:, part], w[:, part], own))
            out += torch.einsum("kb,kbd->kd", w[:, part], each)
        return out

    def _clipped(self, each: Tensor) -> Tensor:
        """Gradients (K, B, s), each cut to the bound on its norm."""
        if self.clip is None:
            return each
        norms = each.norm(dim=2, keepdim=True).clamp_min(1e-12)
        return each * (self.clip / norms).clamp_max(1.0)

    def _with_planted(self, sums: Tensor, planted: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Add the gradient canaries of a step to its sums (K, d), clipped as every example."""
        columns, values, w = planted
        share = self._clipped(values) * w.unsqueeze(2)
        return sums.scatter_add_(1, columns.flatten(1), share.flatten(1))

    def _per_example(self, kernel: Any) -> Callable[..., Tensor]:
        if hasattr(kernel, "per_example"):
            own: Callable[..., Tensor] = kernel.per_example
            return own
        return Vmapped(self.task).per_example

    def example_gradients(self, model: Tensor, x: Tensor, y: Tensor, data: ClientData) -> Tensor:
        """Gradients (n, d) of single examples at a model (d,), before any clipping."""
        stacked = self._agrees("stacked", Stacked, data)
        each = Stacked(self.task).per_example if stacked else Vmapped(self.task).per_example
        weight = torch.ones(1, len(x))
        return each(model.unsqueeze(0), x.unsqueeze(0), y.unsqueeze(0), weight, None)[0]

    def _noise(self, schedule: Schedule, clients: Indices, round_number: int) -> Tensor | None:
        """(K, S, B, ...) random numbers of a stochastic loss, each client's from its own stream."""
        shape = self.task.noise_shape()
        if shape is None:
            return None
        valid, steps = schedule.valid, schedule.steps
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


def _with_weight(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and weights (K, B) without columns that no client gives weight, once sorted by it."""
    order = torch.argsort((weight == 0).int(), dim=1, stable=True)
    order = order[:, : max(1, int((weight != 0).sum(dim=1).max()))]
    return rows.gather(1, order), weight.gather(1, order)


def _dense(planted: tuple[Tensor, Tensor, Tensor], p: Tensor) -> Tensor:
    """Gradient canaries (K, b, d) of a step, of the width of p (K, d); zero without weight."""
    columns, values, w = planted
    out = torch.zeros(*w.shape, p.shape[1])
    return out.scatter_add_(2, columns, values * (w != 0).unsqueeze(2))


def no_persons() -> ConfigError:
    return ConfigError(
        "clipping per person needs a person column",
        expected="a person for every example",
        got="none",
        remedy='name the column with data.person, or use unit = "record"',
    )


def by_person(each: Tensor, weight: Tensor, person: Tensor) -> tuple[Tensor, Tensor]:
    """Sum example gradients (K, B, d) per person, stored at the person's first example in a batch.

    Returns the sums (K, B, d) and weights (K, B) that keep one entry per person.
    """
    same = (person.unsqueeze(2) == person.unsqueeze(1)).to(each.dtype) * weight.unsqueeze(1)
    earlier = torch.tril(same, diagonal=-1).sum(dim=2) > 0
    return torch.bmm(same, each), torch.where(earlier, 0.0, weight)


def _refuse_batch_statistics(task: Task) -> None:
    """Raise if a layer mixes the examples of a batch: per-example gradients do not exist."""
    for name, layer in task.module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"layer {name!r} mixes the examples of a batch, so no example can be clipped",
                expected="normalisation within an example (GroupNorm, LayerNorm)",
                got=type(layer).__name__,
                remedy="replace the layer, or remove the protection that clips",
            )


class Optimiser:
    """SGD with momentum, or Adam; state (K, d) is fresh every round, the first rows are active."""

    def __init__(self, training: Training, p: Tensor) -> None:
        self.training, self.p = training, p
        adam = training.optimizer == "adam"
        self._first = torch.zeros_like(p) if adam or training.momentum else None
        self._second = torch.zeros_like(p) if adam else None

    def step(self, active: int, step: int, grad: Tensor) -> None:
        """Update the first `active` rows by their mean gradients (active, d)."""
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
