"""Where a record meets a layer, and where logits leave one: found by running the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedaudit.tasks.task import Task


@dataclass(frozen=True)
class LinearEnds:
    """Weight and bias of the linear layers that see the record itself and that give the output;
    None if there is none.

    Both need a bias: without one, dW / db is undefined and labels leave no count.
    """

    first: tuple[str, str] | None = None
    last: tuple[str, str] | None = None


@dataclass(frozen=True)
class EmbeddingEnd:
    """The trained table that looks up a record's tokens: its `tensor`, and whether the last token
    of a record is looked up too (in next-token prediction it is a target only). `position`: the
    trained tensor whose row l is added to token l; "" if none."""

    tensor: str
    last_is_read: bool
    position: str = ""


def embedding_end(task: Task, x: Tensor, y: Tensor) -> EmbeddingEnd | None:
    """The embedding that sees tokens x (n, L), from one forward pass; None if none is trained."""
    from torch import nn

    for (tensor,), into, _ in _layers_passed(task, x, y, nn.Embedding, ("weight",))[0]:
        for last_is_read, read in ((True, x), (False, x[..., :-1])):
            if _equal(into, read.clamp_min(0)):
                return EmbeddingEnd(tensor, last_is_read, _position(task, tensor, x, y, read))
    return None


def _position(task: Task, tensor: str, x: Tensor, y: Tensor, read: Tensor) -> str:
    """The tensor whose rows are added to those of an embedding, position by position; "" if none.

    For one record, the slope of its row l is then that of the token at l, if it occurs once.
    """
    import torch

    try:
        p = task.initial().requires_grad_(True)
        with task.evaluating():
            losses = task.losses(task.named(p), x[:1], y[:1], None)
        (slope,) = torch.autograd.grad(losses.mean(), [p])
    except RuntimeError:  # a model that this record does not fit: order is not searched for
        return ""
    slopes = task.named(slope)
    tokens = read[0].reshape(-1)
    once = torch.tensor([int((tokens == t).sum()) == 1 for t in tokens])
    wanted = slopes[tensor][tokens[once].clamp_min(0)]
    for entry in task.layout.entries:
        one = slopes[entry.name]
        if entry.name == tensor or one.dim() != 2 or one.shape[1] != wanted.shape[1]:
            continue
        if len(one) < len(tokens) or not bool(once.any()) or not bool(wanted.abs().any()):
            continue
        if torch.allclose(one[: len(tokens)][once], wanted, rtol=1e-3, atol=1e-9):
            return entry.name
    return ""


def linear_ends(task: Task, x: Tensor, y: Tensor) -> LinearEnds:
    """The linear layers at both ends of a task's module, from one forward pass over x (n, ...).

    A layer is first if its input is the record, flattened or not, number by number; it is last if
    its output is the model's. Layers that are not trained do not count.
    """
    import torch
    from torch import nn

    seen, output = _layers_passed(task, x, y, nn.Linear, ("weight", "bias"))
    flat = x.reshape(len(x), -1)
    first = next((of for of, into, _ in seen if _equal(into, flat)), None)
    last = next(
        (of for of, _, out in seen if torch.is_tensor(output) and _equal(out, output)), None
    )
    return LinearEnds(*((None if of is None else (of[0], of[1])) for of in (first, last)))


def _layers_passed(
    task: Task, x: Tensor, y: Tensor, kind: type[nn.Module], tensors: tuple[str, ...]
) -> tuple[list[tuple[tuple[str, ...], Tensor, Tensor]], Any]:
    """Tensors, input and output of every layer of a kind that x (n, ...) passes, in that order, and
    the model's output. Only layers count whose `tensors` are all trained; the model itself may be
    the layer."""
    import torch

    trained = set(task.layout.names)
    seen: list[tuple[tuple[str, ...], Tensor, Tensor]] = []

    def note(own: tuple[str, ...]) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append((own, inputs[0].detach(), output.detach()))

        return hook

    handles = [
        module.register_forward_hook(note(own))
        for name, module in task.module.named_modules()
        if isinstance(module, kind)
        and trained.issuperset(own := tuple(f"{name}.{t}".lstrip(".") for t in tensors))
    ]
    try:
        with torch.no_grad(), task.evaluating():
            noise = task.noise_shape()
            z = None if noise is None else torch.zeros(len(x), *noise)
            output = task.output(task.named(task.initial()), x, y, z)
    finally:
        for handle in handles:
            handle.remove()
    return seen, output


def _equal(one: Tensor, other: Tensor) -> bool:
    import torch

    return one.shape == other.shape and torch.equal(one, other)
