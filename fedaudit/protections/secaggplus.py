"""Flower's SecAgg+ with its real coverage: tensors are summed, what is beside them is in the clear.

Formal guarantees: none here. In Flower 1.41 every client sends its number of examples, its metrics
and, by its node, its name beside a masked vector; the receiver opens the weighted sum of tensors.

Trust: enough clients that stay, and a server that follows the protocol: its pairwise masks have
seeds that a server can search for (docs/flower.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedaudit.hooks import Leg, Uploads
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.randomness import Seed
from fedaudit.trace.schema import SERVER


@dataclass(frozen=True, kw_only=True)
class SecAggPlus(SecureSum):
    """Release the weighted sum of all uploads; names, weights and metrics stay in the clear."""

    name: ClassVar[str] = "secaggplus"
    covers: ClassVar[tuple[str, ...]] = ("parameter", "buffer", "integer")
    trust: ClassVar[str] = (
        "enough clients that stay, and a server that follows the protocol and does not search"
    )
    other_names: ClassVar[tuple[str, ...]] = ("secagg+", "secagg")

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        beside = uploads.metadata or ({},) * len(uploads.senders)
        size = uploads.rows.shape[1] * uploads.rows.element_size()
        legs = tuple(
            Leg(sender, SERVER, size, kind="masked", weight=float(weight), metadata=dict(told))
            for sender, weight, told in zip(uploads.senders, uploads.weights, beside, strict=True)
        )
        summed = super().upload(uploads, round_number=round_number, seed=seed)
        return replace(summed, legs=(*uploads.legs, *legs))
