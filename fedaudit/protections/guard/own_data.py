"""Checks of the received model on the client's own records, by the gradient of each record.

A planted detector is silent for all records but the target. `silent`: for the tensor that responds
to the fewest records, the share of records whose gradient there is exactly zero. `one_record`: how
much more of a tensor's squared gradient comes from a single record than is usual in this model.

A zero tensor (fresh adapters and output layers) passes no gradient back to earlier layers, so zeros
are first replaced by small numbers. Tensors without influence on the output have no gradient and
are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError
from fedaudit.protections.guard.tensors import CheckScore, Received

if TYPE_CHECKING:
    from torch import Tensor

SILENT, ONE = "silent", "one_record"
UNIT = 0.5
"""Detectors are silent for nearly all records; narrow layers with dead units for a few."""
RECORDS = 16
"""Records used at most."""
FEWEST = 8
SMALL = 0.01
"""Size of the numbers that replace zeros."""


def both(model: Received) -> Iterator[tuple[str, CheckScore]]:
    """Both scores; none without a module and own records."""
    if model.module is None or model.records is None:
        return
    names, squares = gradients(model.module, *model.records)
    kept = np.flatnonzero(np.isfinite(squares).all(axis=0))
    names, squares = [names[i] for i in kept], squares[:, kept]
    if not names:
        return
    quiet = (squares == 0).mean(axis=0)
    at = int(quiet.argmax())
    words = f"{quiet[at]:.0%} of own records have zero gradient here"
    looked_at = tuple(names)
    yield SILENT, CheckScore(float(quiet[at]), names[at], words, reach=1.0, layers=looked_at)
    total = squares.sum(axis=0)
    largest = np.divide(squares.max(axis=0), total, out=np.zeros_like(total), where=total > 0)
    at = int(largest.argmax())
    value = float(largest[at] - np.median(largest))
    words = f"{largest[at]:.0%} of its gradient comes from one record, {value:.0%} above the usual"
    most = above_usual(len(names))
    yield ONE, CheckScore(value, names[at], words, reach=most, layers=looked_at)


def above_usual(tensors: int) -> float:
    """The largest value of `one_record`: one tensor is its own median; of two, half is left."""
    return min(tensors - 1, 2) / 2


def gradients(module: Any, x: Any, y: Any) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Names of the trained tensors and squared norms (records, tensors) of their gradients; NaN
    where the output does not depend on a tensor."""
    import torch
    import torch.nn.functional as F

    x, y = checked_records(x, y)
    own = _without_zeros(module)
    named = [(n, p) for n, p in own.named_parameters() if p.requires_grad]
    out = np.full((min(len(x), RECORDS), len(named)), np.nan)
    own.eval()  # a record's gradient must not depend on its batch
    try:
        for i in range(len(out)):
            output = logits(own(x[i : i + 1]))
            loss = F.cross_entropy(output.flatten(0, -2), y[i : i + 1].flatten())
            each = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
            out[i] = [np.nan if g is None else float(g.double().square().sum()) for g in each]
    except UNREADABLE as error:
        raise fails_on_records(error) from None
    return [n for n, _ in named], out


UNREADABLE = (RuntimeError, IndexError, ValueError, TypeError)
"""What a module raises for records of another shape or kind than it takes."""


def fails_on_records(error: Exception) -> DataError:
    return DataError(
        "the model fails on your own records",
        expected="records as the model takes them, and a class number for each",
        got=f"{type(error).__name__}: {str(error)[:200]}",
        remedy="encode records as for training, or leave them out",
    )


def checked_records(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Own records and their labels as tensors; refuses too few, and numbers that are not finite."""
    import torch

    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if len(x) != len(y) or len(x) < FEWEST:
        raise DataError(
            "own records cannot be used",
            expected=f"at least {FEWEST} records and a label for each",
            got=f"{len(x)} records and {len(y)} labels",
            remedy="pass more records, or none",
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError(
            "own records are not finite",
            expected="numbers",
            got=f"NaN or infinite values in {int((~torch.isfinite(x)).sum())} places",
            remedy="repair those records or leave them out",
        )
    return x, y


def logits(output: Any) -> Any:
    """The logits of an output: a tensor, or the entry or attribute `logits`."""
    import torch

    found = output.get("logits") if isinstance(output, Mapping) else output
    if not isinstance(found, torch.Tensor):
        found = getattr(output, "logits", None)
    if not isinstance(found, torch.Tensor):
        keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise DataError(
            "the model does not return logits",
            expected='a tensor, or something with "logits"',
            got=f"{type(output).__name__}{keys}",
            remedy="wrap the module so that it returns the logits",
        )
    if found.dim() < 2 or found.shape[-1] < 2:
        raise DataError(
            "the model has a single output",
            expected="logits of two classes or more: with one class the loss is always 0",
            got=f"outputs of shape {tuple(found.shape)}",
            remedy="leave own records out: the weights are checked without them",
        )
    return found


def _without_zeros(module: Any) -> Any:
    """A copy in which all-zero tensors, except biases, hold small numbers."""
    import torch

    own = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in own.named_parameters():
            if not name.endswith("bias") and p.numel() and not bool(p.any()):
                p.copy_(SMALL * torch.randn(p.shape, generator=generator))
    return own
