"""Run a client's local steps and keep what every record adds to every unit of every layer.

The change of a unit's row is the sum, over steps and records, of (error of the record at the unit)
times (input of the layer, 1). Inputs and errors are all that is kept: n (D + U) numbers per layer
and visit instead of n gradients of D U numbers.

Shapes  n records, P visits (epochs x positions of tokens or patches), D inputs, U units.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from fedaudit.arrays import Floats
from fedaudit.protections.guard.own_data import (
    UNREADABLE,
    checked_records,
    fails_on_records,
    logits,
)
from fedaudit.settings import Count, NonNegative, PositiveFinite, checked

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Conv2d, Linear, Module


@dataclass(frozen=True, kw_only=True)
@checked("guard")
class LocalSteps:
    """The steps that this client would run on the model: plain SGD on the mean cross-entropy.

    `batch_size` None: all records in one batch. `noise`: standard deviation of the noise that the
    client adds to every number of its update.
    """

    learning_rate: PositiveFinite = 0.1
    epochs: Count = 1
    batch_size: Count | None = None
    noise: NonNegative = 0.0
    seed: Annotated[int, Gt(-1), Lt(2**63)] = 0


@dataclass(frozen=True)
class LayerVisits:
    """What the records add to one layer: `inputs` (P, n, D) and `errors` (P, n, U), the latter
    times learning rate / batch size. `weight` (U, D) and `bias` (U,) as received and after the
    steps, in float32. `sees_records`: its input is the record itself."""

    name: str
    inputs: Floats
    errors: Floats
    weight: npt.NDArray[np.float32]
    weight_after: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    bias_after: npt.NDArray[np.float32] | None
    sees_records: bool


def run(module: Module, x: Any, y: Any, steps: LocalSteps) -> dict[str, LayerVisits]:
    """Layer name -> visits of the linear layers and plain 2-d convolutions of a module.

    x (n, ...), y (n, ...): own records in the module's format. Dropout is off and batch statistics
    stay as received, so that what a record adds does not depend on chance.
    """
    import torch
    import torch.nn.functional as F

    x, y = checked_records(x, y)
    own = copy.deepcopy(module).eval()
    layers = readable(own)
    trained = [p for p in own.parameters() if p.requires_grad]
    before = {n: _weights(m) for n, m in layers.items()}
    size = min(steps.batch_size or len(x), len(x))
    order = torch.Generator().manual_seed(steps.seed)
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    first: set[str] = set(layers)
    try:
        for epoch in range(steps.epochs):
            shuffled = torch.arange(len(x))
            if size < len(x):
                shuffled = torch.randperm(len(x), generator=order)
            for rows in torch.split(shuffled, size):
                calls, output = watched(own, layers, x[rows])
                loss = F.cross_entropy(logits(output).flatten(0, -2), y[rows].flatten())
                ends = [out for each in calls.values() for _, out in each]
                grads = torch.autograd.grad(loss, [*trained, *ends], allow_unused=True)
                back = iter(grads[len(trained) :])
                errors: dict[str, list[Tensor | None]] = {
                    n: [next(back) for _ in each] for n, each in calls.items()
                }
                first &= {n for n in layers if _reads(calls.get(n, []), x[rows])}
                visits = _visits(layers, calls, errors, len(rows))
                _keep(kept, visits, rows, (epoch, steps.epochs, len(x)), steps.learning_rate)
                with torch.no_grad():
                    for p, g in zip(trained, grads[: len(trained)], strict=True):
                        if g is not None:
                            p.sub_(steps.learning_rate * g)
    except UNREADABLE as error:
        raise fails_on_records(error) from None
    return {
        name: LayerVisits(
            name,
            into.transpose(0, 1).numpy(),
            errors.transpose(0, 1).numpy(),
            before[name][0],
            _weights(layers[name])[0],
            before[name][1],
            _weights(layers[name])[1],
            name in first,
        )
        for name, (into, errors) in kept.items()
    }


def readable(module: Module) -> dict[str, Module]:
    """The linear layers and convolutions whose units are read, by name."""
    return {n: m for n, m in module.named_modules() if is_readable(m) and m.weight.requires_grad}


def is_readable(layer: Module) -> TypeGuard[Linear | Conv2d]:
    """Whether a layer is linear, or a plain 2-d convolution."""
    from torch import nn

    return isinstance(layer, nn.Linear) or (
        isinstance(layer, nn.Conv2d)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def has_units(layer: Module) -> TypeGuard[Linear | Conv2d]:
    """Whether outputs of a layer are those of units: a linear layer, or any convolution."""
    from torch import nn

    return isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)


def watched(
    module: Module, layers: Mapping[str, Module], x: Tensor
) -> tuple[dict[str, list[tuple[Tensor, Tensor]]], Any]:
    """(input, output) of every call of some layers in a forward pass over x, and its output."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(name: str) -> Any:
        def hook(_: Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # what a layer read cannot change afterwards: autograd needs it for the weights
            calls.setdefault(name, []).append((inputs[0].detach(), output))
            return output.clone()  # an in-place activation must not change what was noted

        return hook

    handles = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        output = module(x)
    finally:
        for handle in handles:
            handle.remove()
    return calls, output


def by_position(layer: Module, tensor: Tensor, n: int, *, inputs: bool) -> Tensor | None:
    """A layer's input or output as (positions, n, numbers); None if its first axis is not records.

    The input of a convolution is read as patches, so that a filter is a linear unit of each.
    """
    import torch.nn.functional as F
    from torch import nn

    if len(tensor) != n:
        return None
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        if inputs:
            # `readable` leaves out the others
            assert isinstance(layer, nn.Conv2d)
            assert not isinstance(layer.padding, str)
            patches = F.unfold(
                tensor, layer.kernel_size, layer.dilation, layer.padding, layer.stride
            )
            return patches.permute(2, 0, 1)
        return tensor.flatten(2).permute(2, 0, 1)
    return tensor.reshape(n, -1, tensor.shape[-1]).transpose(0, 1)


def _visits(
    layers: Mapping[str, Module],
    calls: Mapping[str, list[tuple[Tensor, Tensor]]],
    errors: Mapping[str, list[Tensor | None]],
    n: int,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs (P, n, D) and errors (P, n, U) of one batch."""
    import torch

    out = {}
    for name, each in calls.items():
        into, back = [], []
        for (given, _), error in zip(each, errors[name], strict=True):
            if error is None:
                continue
            a = by_position(layers[name], given, n, inputs=True)
            b = by_position(layers[name], error, n, inputs=False)
            if a is not None and b is not None:
                into.append(a)
                back.append(b)
        if into:
            single = len(into) == 1
            out[name] = (into[0], back[0]) if single else (torch.cat(into), torch.cat(back))
    return out


def _keep(
    kept: dict[str, tuple[Tensor, Tensor]],
    visits: Mapping[str, tuple[Tensor, Tensor]],
    rows: Tensor,
    sizes: tuple[int, int, int],
    learning_rate: float,
) -> None:
    """Write a batch's visits (P, b, .) to their places in `kept` (n, epochs x P, .).

    sizes: number of the epoch, epochs, n. A layer that a batch leaves out is zero there.
    """
    import torch

    epoch, epochs, n = sizes
    for name, both in visits.items():
        positions = len(both[0])
        if name not in kept:
            # records first: a batch then writes whole rows
            made = [torch.zeros(n, epochs * positions, v.shape[2]) for v in both]
            kept[name] = made[0], made[1]
        into, errors = kept[name]
        if into.shape[1] != epochs * positions:
            raise ValueError(f"{name} is called a different number of times in each batch")
        low, high = epoch * positions, (epoch + 1) * positions
        into[rows, low:high] = both[0].transpose(0, 1).float()
        errors[rows, low:high] = both[1].transpose(0, 1).float().mul(learning_rate)


def _reads(calls: list[tuple[Tensor, Tensor]], x: Tensor) -> bool:
    """Whether a layer's input is the record, flattened or not."""
    import torch

    return any(
        into.dim() == 2
        and into.shape == (len(x), x[0].numel())
        # compared as the layer sees it: a module may convert the type
        and torch.equal(into, x.reshape(len(x), -1).to(into.dtype))
        for into, _ in calls
    )


def _weights(
    layer: Module,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    weight: Any = layer.weight
    bias: Any = layer.bias
    flat = weight.detach().flatten(1).float().numpy().copy()
    return flat, None if bias is None else bias.detach().float().numpy().copy()
