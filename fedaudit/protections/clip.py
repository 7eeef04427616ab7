"""Clipping without noise: a bound on one client's influence.

Formal guarantees: none. Without noise, a norm bound hides nothing; it limits influence. It is the
baseline for noise ([Fingerprint] Table 10, rows of noise 0).

Trust: the client's own code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fedaudit.errors import ConfigError
from fedaudit.hooks import Hook, Uploads
from fedaudit.randomness import Seed
from fedaudit.rows import empty_rows
from fedaudit.settings import Positive, checked

if TYPE_CHECKING:
    from torch import Tensor


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Scale rows (n, d) whose norm exceeds `bound` down to it."""
    import torch

    norms = rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return torch.mul(rows, (bound / norms).clamp_max(1.0), out=empty_rows(*rows.shape))


@dataclass(frozen=True, kw_only=True)
@checked("protections.clip")
class Clip(Hook):
    """Bound the norm of every client's update."""

    name: ClassVar[str] = "clip"
    trust: ClassVar[str] = "the client's own code"
    outside_parties: ClassVar[tuple[str, ...]] = ()

    bound: Positive = 1.0

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        needs_deltas(self.name, uploads)
        return replace(uploads, rows=clip_rows(uploads.rows, self.bound))


def needs_deltas(name: str, uploads: Uploads) -> None:
    """Raise if uploads are whole models or sums: clipping and summing need single updates."""
    if uploads.kind != "delta":
        raise ConfigError(
            f"protections.{name} needs single updates",
            expected='messages of kind "delta"',
            got=f'"{uploads.kind}"',
            remedy='set federation.wire = "delta", and put this protection before a secure sum',
        )
