"""The embedding for the attention adversary: one-hot tokens, or the model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedaudit.audits.active_membership import patterns
from fedaudit.audits.active_membership.audit import ActiveMembership
from fedaudit.errors import NotApplicable
from fedaudit.protections.local_dp.encoders import OneHot, Patches

if TYPE_CHECKING:
    from fedaudit.tasks.task import Task


def embedding_of(
    audit: ActiveMembership, task: Task, shape: tuple[int, ...], words: int
) -> patterns.Embedding | None:
    """The embedding for the attention adversary; None if it is drawn at random."""
    if audit.adversary != "attention" or audit.embedding not in ("one_hot", "model"):
        return None
    if audit.embedding == "one_hot" and words:
        # one more column than tokens; no token uses it
        size = shape[0] * words * (words + 1)
        if size > patterns.LARGEST_TABLE:
            raise NotApplicable(
                "one-hot tokens are too wide",
                code="too_large",
                expected=f"at most {patterns.LARGEST_TABLE:,} numbers in all places",
                got=f"{shape[0]} places x {words:,} tokens x {words + 1:,} dimensions",
                remedy="a smaller task.vocabulary_size, or leave embedding out",
            )
        rows = OneHot(vocabulary=words + 1).encode(np.arange(words)).astype(np.float64)
        return patterns.from_table(np.broadcast_to(rows, (shape[0], *rows.shape)))
    if audit.embedding == "model":
        module = task.module
        weights = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
        position = weights.get("position")
        if words and position is not None and "tokens.weight" in weights:
            return patterns.from_table(weights["tokens.weight"][None] + position[:, None])
        if position is not None and len(shape) == 3 and "embed.weight" in weights:
            size = int(getattr(module, "patch", 0))
            numbers = np.arange(int(np.prod(shape))).reshape(1, *shape)
            cut = Patches(size=size).encode(numbers)[0]
            shift = position + weights["embed.bias"]
            return patterns.Embedding(cut, weights["embed.weight"].T, shift)
    raise NotApplicable(
        f'audits.active_membership.embedding = "{audit.embedding}" does not fit this task',
        code="unsuitable_embedding",
        expected='tokens for "one_hot"; task.kind = "vit" or "gpt" for "model"',
        got=f"a {task.settings.get('kind', 'task')} on {'tokens' if words else 'features'}",
        remedy="leave embedding out",
    )
