"""Exposure limit at the client: drop what few records drive, clip the update, add a little noise.

In every batch, a unit (a row of a linear layer, a filter) whose gradient fewer than k records drive
adds nothing: dW / db of such a unit is a record ([Geiping] Proposition 3.1). Differences of units
hold records too, where dropping does not act; the noise is for those.

Formal guarantees: none for the dropping: what is dropped depends on the data. Clip and noise come
after it, so those of `update_noise` hold for what leaves: (epsilon, delta) for replacing a client's
whole data set. At z = 0.1 that epsilon is in the thousands: a measured protection, hardly a proven
one.

Trust: the client's own code.

    limit = ExposureLimit()
    with limit.dropping():             # around your own training loop, in plain torch
        train(model)
    answer = limit.answer(received, model.state_dict())
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.accounting import check_one_noise
from fedaudit.errors import UsageError
from fedaudit.hooks import NoiseSearch
from fedaudit.layout import Layout, TensorSpec
from fedaudit.protections.clip import clip_rows
from fedaudit.protections.guard.exposure import EXACT
from fedaudit.protections.guard.local_steps import by_position, is_readable
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.settings import Count, NonNegative, ShareBelowOne, checked

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

DRIVES = EXACT
"""A record drives a unit if it adds at least this share of what the largest one adds: with less
beside it, dW / db is that one record, exactly."""

LITTLE = 0.1
"""The default noise multiplier."""


@dataclass(frozen=True, kw_only=True)
@checked("protections.exposure_limit")
class ExposureLimit(UpdateNoise):
    """Drop the answer of units that fewer than `least_records` of a batch drive, clip the update
    and add Gaussian noise before upload.

    `refuse_above`: a batch in which more than this share of all units would be dropped adds nothing
    at all. Whoever reads an update of noise alone learns that its client refused.
    """

    name: ClassVar[str] = "exposure_limit"
    slowdown: ClassVar[float] = 4.0  # per-example gradients, and noise
    limits_units: ClassVar[bool] = True
    search: ClassVar[NoiseSearch | None] = NoiseSearch(
        label="exposure limit", low=0.01, high=4.0, rank=3, unit="client", tried="advised"
    )

    noise_multiplier: NonNegative = LITTLE
    least_records: Count = 2
    refuse_above: ShareBelowOne | None = None
    _layout: Layout | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_one_noise(self.name, self.noise_multiplier, self.epsilon, default=LITTLE)

    def declare(self) -> dict[str, object]:
        own = {"least_records": self.least_records, "refuse_above": self.refuse_above}
        return {**super().declare(), **own}

    def remarks(self, count: int = 0) -> tuple[str, ...]:
        return ("exposure_limit: dropping units promises nothing; epsilon is that of its noise",)

    # -- inside a run ------------------------------------------------------------------------------

    def for_layout(self, layout: Layout) -> ExposureLimit:
        """This hook for models of these tensors; without one, every number is a unit."""
        made = replace(self)
        object.__setattr__(made, "_layout", layout)
        return made

    def gradient(self, each: Tensor) -> Tensor:
        """Gradients (K, B, d) of a batch without what fewer than `least_records` of them drive."""
        import torch

        out = each.clone()
        dropped = torch.zeros(len(each))
        count = 0
        for tensors in units_of(self._layout, each.shape[2]):
            shapes = [(*each.shape[:2], unit_count(e), -1) for e in tensors]
            parts = [out[:, :, e.columns].view(s) for e, s in zip(tensors, shapes, strict=True)]
            squares = torch.stack([p.square().sum(dim=3) for p in parts]).sum(dim=0)
            kept, lone = self.kept(squares.transpose(0, 1))
            for part in parts:
                part.mul_(kept[:, None, :, None])
            dropped += lone.sum(dim=1)
            count += kept.shape[1]
        if self.refuse_above is not None:
            out[dropped > self.refuse_above * count] = 0.0
        return out

    def kept(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Which units (..., U) enough of the records drive, and which some do, but not enough.

        squares (B, ..., U): squared norms of what records add to units.
        """
        drives = (squares >= DRIVES**2 * squares.amax(dim=0)) & (squares > 0)
        records = drives.sum(dim=0)
        return records >= self.least_records, (records > 0) & (records < self.least_records)

    # -- in plain torch ----------------------------------------------------------------------------

    @contextmanager
    def dropping(self) -> Iterator[WatchedLayers]:
        """Drop units in every backward pass of this process until the end of the block.

        Acts on linear layers and plain 2-d convolutions that have records along their first axis;
        the result names the kinds of layers it leaves alone.
        """
        from torch.nn.modules.module import register_module_forward_hook

        watched = WatchedLayers(self)
        handle = register_module_forward_hook(watched.called)
        try:
            yield watched
        finally:
            handle.remove()
            watched.release()

    def answer(
        self,
        received: Mapping[str, Tensor],
        trained: Mapping[str, Tensor],
        generator: Any = None,
    ) -> dict[str, Tensor]:
        """The model to send: received plus the clipped update plus noise.

        Tensors of whole numbers stay as received. Without a generator, the noise is seeded by the
        operating system.
        """
        import torch

        floats = [k for k, v in received.items() if v.is_floating_point()]
        if set(received) != set(trained) or not floats:
            raise UsageError(
                "the update cannot be computed",
                expected="the tensors that were received, under their names",
                got=", ".join(sorted(set(received) ^ set(trained))[:3]) or "no weights",
                remedy="pass the state dict of the trained model",
            )
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        moved = [(trained[k].detach() - received[k]).flatten().float() for k in floats]
        row = torch.cat(moved).unsqueeze(0)
        if not bool(torch.isfinite(row).all()):
            row = torch.zeros_like(row)  # it cannot be clipped: send none of it
        row = clip_rows(row, self.clip)[0]
        noise = torch.randn(row.shape, generator=generator)
        row.add_(noise, alpha=self.noise_multiplier * self.clip)
        parts = torch.split(row, [received[k].numel() for k in floats])
        out = {k: v.detach().clone() for k, v in received.items()}
        for k, part in zip(floats, parts, strict=True):
            out[k] += part.view_as(out[k]).to(out[k].dtype)
        return out


def units_of(layout: Layout | None, width: int) -> list[list[TensorSpec]]:
    """Trained tensors whose first axis counts the same units: weight and bias of one layer."""
    if layout is None:
        return [[TensorSpec("", (width,), 0)]]
    found: dict[tuple[str, int], list[TensorSpec]] = {}
    for e in layout.entries:
        if e.role == "parameter" and e.size:
            found.setdefault((e.name.rpartition(".")[0], unit_count(e)), []).append(e)
    return list(found.values())


def unit_count(tensor: TensorSpec) -> int:
    """Units of a tensor: its first axis; a single number is one unit."""
    return tensor.shape[0] if tensor.shape else 1


# -- layers of plain torch -------------------------------------------------------------------------


@dataclass
class _LayerCalls:
    """Inputs and errors of one layer in a backward pass, and the units to keep once it is over."""

    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    kept: Tensor | None = None


class WatchedLayers:
    """The layers that ran since `ExposureLimit.dropping` began.

    `dropped`, `units`: units dropped and looked at, over all batches. `unread`: kinds of layers
    with weights of their own on which nothing is dropped.
    """

    def __init__(self, limit: ExposureLimit) -> None:
        self.limit = limit
        self.dropped, self.units = 0, 0
        self.unread: set[str] = set()
        self._layers: dict[Module, _LayerCalls] = {}
        self._handles: list[Any] = []

    def called(self, layer: Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Forward hook of all modules."""
        trained = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if not trained:
            return
        if not is_readable(layer) or len(inputs[0]) != len(output):
            self.unread.add(type(layer).__name__)
            return
        if not output.requires_grad:
            return
        if layer not in self._layers:
            own = self._layers[layer] = _LayerCalls()
            parameters: list[Any] = trained
            self._handles += [p.register_hook(self._masked(layer, own)) for p in parameters]
        given = inputs[0].detach()
        noted: Any = output
        noted.register_hook(lambda error: self._note(self._layers[layer], given, error))

    def _note(self, own: _LayerCalls, given: Tensor, error: Tensor) -> None:
        if own.kept is not None:  # another backward pass
            own.calls, own.kept = [], None
        own.calls.append((given, error.detach()))

    def _masked(self, layer: Module, own: _LayerCalls) -> Any:
        """Hook of a parameter: its gradient (U, ...) without the units to drop.

        All errors of a pass are noted before autograd hands over a parameter's gradient.
        """

        def mask(gradient: Tensor) -> Tensor:
            if own.kept is None:
                own.kept, lone = self.limit.kept(_added_squares(layer, own.calls))
                self.dropped += int(lone.sum())
                self.units += len(lone)
                if self.limit.refuse_above is not None:
                    refused = int(lone.sum()) > self.limit.refuse_above * len(lone)
                    own.kept &= not refused
            return gradient * own.kept.view(-1, *[1] * (gradient.dim() - 1))

        return mask

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()


def _added_squares(layer: Module, calls: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Squared norms (n, U) of what each record adds to each unit of a layer."""
    import torch

    into, errors = [], []
    for given, error in calls:
        a = by_position(layer, given, len(error), inputs=True)
        b = by_position(layer, error, len(error), inputs=False)
        assert a is not None
        assert b is not None
        into.append(a.float())
        errors.append(b.float())
    x, d = torch.cat(into).transpose(0, 1), torch.cat(errors).transpose(0, 1)
    # |sum_p d_p (x_p, 1)|^2 = sum over pairs of positions: no gradient per record is formed
    similar = x @ x.transpose(1, 2) + float(layer.bias is not None)
    return ((similar @ d) * d).sum(dim=1).clamp_min(0.0)
