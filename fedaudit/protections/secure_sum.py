"""Secure summation as an ideal functionality: only the weighted sum of a round leaves.

Formal guarantees: the receiver learns the sum and nothing else about single updates. The sum itself
is not protected: what it gives away is what the audits of sums measure.

Trust: the aggregator as an ideal party.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from fedaudit.hooks import Hook, Leg, Uploads
from fedaudit.protections.clip import needs_deltas
from fedaudit.randomness import Seed

AGGREGATOR = "aggregator"


@dataclass(frozen=True, kw_only=True)
class SecureSum(Hook):
    """Let only the weighted sum of all uploads leave."""

    name: ClassVar[str] = "secure_sum"
    covers: ClassVar[tuple[str, ...]] = ("parameter", "weight", "metadata", "sender")
    trust: ClassVar[str] = "the aggregator"

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        needs_deltas(self.name, uploads)
        size = uploads.rows.shape[1] * uploads.rows.element_size()
        total = torch.from_numpy(uploads.weights).to(uploads.rows.dtype) @ uploads.rows
        named = tuple(s for s in uploads.senders if s != "anonymous")
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
