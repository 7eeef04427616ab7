"""What the received model does on the client's own records: a gradient for each of them.

A planted detector is silent for all records but the target. `silent`: of the tensor that answers
to the fewest records, the share of records whose gradient there is exactly zero. `one_record`: how
much more of a tensor's squared gradient comes from a single record than is usual in this model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError
from fedaudit.protections.guard.tensors import Received, Score

SILENT, ONE = "silent", "one_record"
UNIT = 0.05
RECORDS = 16
"""Records that are looked at."""
FEWEST = 8


def both(model: Received) -> tuple[Score | None, Score | None]:
    """Both scores; None without a module and records of one's own."""
    if model.module is None or model.records is None:
        return None, None
    names, squares = gradients(model.module, *model.records)
    quiet = (squares == 0).mean(axis=0)
    at = int(quiet.argmax())
    silent = Score(
        float(quiet[at]), names[at], f"{quiet[at]:.0%} of own records do not move it at all"
    )
    total = squares.sum(axis=0)
    largest = np.divide(squares.max(axis=0), total, out=np.zeros_like(total), where=total > 0)
    at = int(largest.argmax())
    value = float(largest[at] - np.median(largest))
    words = f"{largest[at]:.0%} of its gradient comes from one record, {value:.0%} above the usual"
    return silent, Score(value, names[at], words)


def gradients(module: Any, x: Any, y: Any) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Names of the trained tensors and squared norms (records, tensors) of their gradients."""
    import torch
    import torch.nn.functional as F

    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if len(x) != len(y) or len(x) < FEWEST:
        raise DataError(
            "own records cannot be used",
            expected=f"at least {FEWEST} records and a label for each",
            got=f"{len(x)} records and {len(y)} labels",
            remedy="hand over more records, or none",
        )
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    out = np.zeros((min(len(x), RECORDS), len(named)))
    was = module.training
    module.eval()  # what a record does may not depend on its neighbours in a batch
    try:
        for i in range(len(out)):
            logits = module(x[i : i + 1])
            loss = F.cross_entropy(logits.flatten(0, -2), y[i : i + 1].flatten())
            each = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
            out[i] = [0.0 if g is None else float(g.double().square().sum()) for g in each]
    except (RuntimeError, IndexError, ValueError) as error:
        raise DataError(
            "the model does not run on own records",
            expected="records as the model takes them, and a class number for each",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            remedy="encode records as for training, or leave them out",
        ) from None
    finally:
        module.train(was)
    return [n for n, _ in named], out
