"""Gradient templates: what training on a key's documents does to a model.

A template is the gradient of the mean loss on one key's documents at a given model. Documents of
unused keys are made as those of the owner's keys, so that templates of both are exchangeable for a
model that saw neither.

Shapes: a key's examples x (n, ...), y (n,); templates (S + U, d), the owner's S keys first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

Drawn = tuple["Tensor", "Tensor"]
"""The examples of one key: x (n, ...), y (n,)."""

Gradient = Callable[[npt.NDArray[Any], "Tensor", "Tensor"], npt.NDArray[np.float32]]
"""A model (d,) and examples -> the gradient (d,) of their mean loss."""


@dataclass(frozen=True, eq=False)
class MarkTemplates:
    """Templates of a model, by its `gradient`.

    `keys`: the owner's. `own`: the examples of each. `control`: number of an unused key -> its
    examples, drawn as `own` are; each is made once. `available`: number of unused keys, if it is
    limited.
    """

    gradient: Gradient
    keys: Sequence[Any]
    own: Callable[[Any], Drawn]
    control: Callable[[int], Drawn]
    available: int | None = None
    notes: tuple[str, ...] = ()
    _made: dict[tuple[str, Any], Drawn] = field(default_factory=dict, repr=False)

    def gradients(self, model: npt.NDArray[Any], unused: int) -> npt.NDArray[np.float32]:
        """Templates (S + U, d) at a model (d,), the owner's keys first."""
        sets = self.documents(unused)
        out = np.empty((len(sets), len(model)), dtype=np.float32)
        for row, (x, y) in zip(out, sets, strict=True):
            row[:] = self.gradient(model, x, y)
        return out

    def documents(self, unused: int) -> list[Drawn]:
        """The examples of every key, the owner's first."""
        own = [self._drawn("own", self.own, key) for key in self.keys]
        return own + [self._drawn("control", self.control, number) for number in range(unused)]

    def _drawn(self, kind: str, draw: Callable[[Any], Drawn], which: Any) -> Drawn:
        at = (kind, which)
        if at not in self._made:
            self._made[at] = draw(which)
        return self._made[at]


@dataclass(frozen=True, eq=False)
class OwnerDocuments:
    """An owner's `keys`, and the `examples` behind any key: (key, most) -> all of them, or so many
    made in the same way."""

    gradient: Gradient
    keys: Sequence[int]
    examples: Callable[[int, int | None], Drawn]

    def given(self, key: int, most: int) -> Drawn:
        """At most `most` of the documents that were given away themselves: fewer may be made of
        other draws."""
        x, y = self.examples(key, None)
        return x[:most], y[:most]

    def templates(self, most: int, key_of: Callable[[int], int]) -> MarkTemplates:
        """Templates of at most `most` examples a key; `key_of`: number of an unused key -> it."""
        return MarkTemplates(
            gradient=self.gradient,
            keys=self.keys,
            own=lambda key: self.given(key, most),
            control=lambda number: self.examples(key_of(number), most),
        )


def unit_templates(gradients: npt.NDArray[Any], keys: int) -> npt.NDArray[np.float32]:
    """Gradients (S + U, d) less the mean of unused ones, of unit length; in place."""
    out = np.asarray(gradients, dtype=np.float32)
    out -= out[keys:].mean(axis=0, dtype=np.float64).astype(np.float32)
    size = np.linalg.norm(out, axis=1)
    if not (size > 0).all():
        raise UsageError(
            "a template is zero",
            expected="documents on which the model's loss has a gradient",
            got=f"{int((size == 0).sum())} of {len(out)} templates without one",
            remedy="give documents that the model does not all treat alike",
        )
    out /= size[:, None]
    return out
