"""Layers of the run's own model that an adversary can plant in, or why there are none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedaudit.arrays import Indices
from fedaudit.audits.active_membership.own_model import LARGEST, LOUD, MATCH, OwnModel
from fedaudit.audits.outright import without_config
from fedaudit.errors import NotApplicable

if TYPE_CHECKING:
    from fedaudit.federation.local.schedule import Training
    from fedaudit.tasks.task import Task


def refusal(task: Task, training: Training) -> str:
    """Why nothing can be planted in a model; empty if something can."""

    kinds = [m for _, m in _layers(task)]
    fits = (
        len(kinds) >= 3
        and all(isinstance(m, nn.Linear) and m.bias is not None for m in kinds[::2])
        and all(isinstance(m, nn.ReLU | nn.GELU) for m in kinds[1::2])
    )
    if not fits:
        return type(task.module).__name__
    return "weight decay, which moves all weights" if training.weight_decay else ""


def _layers(task: Task) -> list[tuple[str, Any]]:
    """Names and modules of a sequential model's layers, without flattening."""

    named = task.module.named_children() if isinstance(task.module, nn.Sequential) else ()
    return [(name, m) for name, m in named if not isinstance(m, nn.Flatten)]


def drowned(training: Training | None, noise: Mapping[str, Any], *, randomised: bool) -> str:
    """Why nothing of ours can be planted in the run's own model behind this noise; empty if
    something can. `noise`: multipliers by place; `randomised`: records carry noise."""
    if training is None:
        return "nobody says how clients train"
    if randomised:
        return "records carry noise before a client trains on them"
    if np.max(noise["upload"]) > 0:
        return "uploads carry noise for whole clients"
    if np.max(noise["step"]) > 0 and (training.optimizer != "sgd" or training.momentum):
        return "behind DP-SGD it needs plain SGD, without momentum"
    return ""


def own_model(
    task: Task,
    training: Training | None,
    features: int,
    labels: Indices | None = None,
    *,
    only_sums: bool = False,
    noisy: bool = False,
) -> OwnModel:
    """The first two layers of the run's model; NotApplicable if nothing can be planted in it.

    `labels` (N,): of the possible records. `noisy`: clients' steps are clipped and carry noise.
    """

    if training is None:
        remedy = 'adversary = "fc": what a server could do if clients accept any architecture'
        raise without_config("how clients train is not known", "training_unknown", remedy)
    kept = _layers(task)
    got = refusal(task, training)
    if not got and kept[0][1].in_features != features:
        got = f"a first layer of {kept[0][1].in_features} inputs for records of {features} numbers"
    if got:
        raise NotApplicable(
            "nothing can be planted in the run's own model",
            code="architecture_fixed",
            expected="linear layers with ReLU or GELU between them, without weight decay",
            got=got,
            remedy='adversary = "fc": what a server could do if clients accept any architecture',
        )
    relu = {"silent": MATCH, "reach": 0.0} if isinstance(kept[1][1], nn.ReLU) else {}
    at = {e.name: slice(e.offset, e.offset + e.size) for e in task.layout.entries}
    one, two = kept[0][0], kept[2][0]
    return OwnModel(
        task=task,
        start=task.initial().numpy().astype(np.float32),
        first=(at[f"{one}.weight"], at[f"{one}.bias"]),
        second=(at[f"{two}.weight"], at[f"{two}.bias"]),
        answer_tensor=f"{two}.weight",
        rate=training.learning_rate,
        classes=kept[-1][1].out_features,
        labels=np.empty(0, np.int64) if labels is None else labels,
        match=LOUD if noisy else MATCH,
        largest=LARGEST if only_sums else math.inf,
        **relu,
    )
