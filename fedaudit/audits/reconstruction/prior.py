"""What the adversary of a reconstruction knows about records before it sees any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedaudit.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Ranges of inputs, sizes of clients, and how they train.

    `low`, `high`, `middle` (D,): range and median of every input number over records of the
    adversary's own. `shape`: of one record. `sizes`: party -> number of its examples, which
    federations treat as public. `learning_rate`, `epochs` and `batch_size` of the clients; None
    if unknown. `discrete`: inputs are tokens, not numbers. `constant` (D,): the one value of
    each column that is right for most of the adversary's records; the median if left out.
    """

    low: Floats
    high: Floats
    middle: Floats
    shape: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    learning_rate: float | None = None
    epochs: int = 1
    batch_size: int | None = None
    discrete: bool = False
    constant: Floats | None = None

    @property
    def best_constant(self) -> Floats:
        return self.middle if self.constant is None else self.constant
