"""What every audit is, and what its adversary brings along.

`attack(view, knowledge, rng)` has no truth; `score(guess, truth, rng)` has no view. A leak of truth
into an attack would show in a signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fedaudit.results import AuditResult
from fedaudit.trace import Truth, View


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the adversary brings: never a label of the target.

    `extra` holds what single audits ask for by name (candidate records, keys, shadow federations).
    """

    extra: dict[str, Any] = field(default_factory=dict)


class Audit(Protocol):
    """A frozen keyword-only dataclass that is its own config."""

    name: ClassVar[str]
    question: ClassVar[str]
    source: ClassVar[str]

    @property
    def vantage(self) -> str: ...

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Any: ...

    def score(self, guess: Any, truth: Truth | None, rng: np.random.Generator) -> AuditResult: ...
