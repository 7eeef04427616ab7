"""Secure summation as an ideal functionality: only the weighted sum of a round is released.

Formal guarantees: the receiver learns the sum and nothing else about single updates. The sum itself
is not protected: audits of sums measure what it reveals.

Trust: the aggregator as an ideal party.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedaudit.hooks import Hook, Leg, Uploads
from fedaudit.protections.clip import needs_deltas
from fedaudit.randomness import Seed
from fedaudit.trace.schema import AGGREGATOR, ANONYMOUS


@dataclass(frozen=True, kw_only=True)
class SecureSum(Hook):
    """Release only the weighted sum of all uploads."""

    name: ClassVar[str] = "secure_sum"
    covers: ClassVar[tuple[str, ...]] = ("parameter", "weight", "metadata", "sender")
    trust: ClassVar[str] = "the aggregator"
    other_names: ClassVar[tuple[str, ...]] = ("securesum",)
    only_sums: ClassVar[bool] = True
    transport: ClassVar[str] = "secure sum"
    between: ClassVar[str] = AGGREGATOR
    outside_parties: ClassVar[tuple[str, ...]] = (AGGREGATOR,)
    exact_afterwards: ClassVar[bool] = True

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        import torch

        needs_deltas(self.name, uploads)
        size = uploads.rows.shape[1] * uploads.rows.element_size()
        total = torch.from_numpy(uploads.weights).to(uploads.rows.dtype) @ uploads.rows
        named = tuple(s for s in uploads.senders if s != ANONYMOUS)
        return replace(
            uploads,
            rows=total.unsqueeze(0),
            senders=(AGGREGATOR,),
            weights=np.ones(1),
            origin=np.array([-1], dtype=np.int64),
            kind="sum",
            metadata=(),
            legs=(*uploads.legs, *(Leg(s, AGGREGATOR, size) for s in named)),
        )
