"""Names of the signals: the published ones, ours, and those of the last layer."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.layout import Layout, TensorSpec

MOST_CLASSES = 32
"""Most rows of the last layer that become signals, those of sensitive classes first."""

NORM, TO_NEIGHBOURS = "norm", "cosine to neighbours"
UPDATE_NORM, TO_MEAN = "update norm", "cosine to the mean"


def head_of(layout: Layout, classes: int) -> tuple[TensorSpec | None, TensorSpec | None]:
    """The last layer's weight (classes, ...) and bias (classes,); None if missing."""
    weight = bias = None
    for e in layout.entries:
        if e.role != "parameter" or not e.shape or e.shape[0] != classes:
            continue
        if len(e.shape) > 1:
            weight, bias = e, None
        elif weight is not None and bias is None:
            bias = e
    return weight, bias


def tracked_classes(classes: int, sensitive: Sequence[int]) -> tuple[int, ...]:
    """Classes whose rows become signals: sensitive ones first, at most 32."""
    others = [c for c in range(classes) if c not in sensitive]
    return (*sensitive, *others)[:MOST_CLASSES]


def signal_names(layout: Layout, classes: int, sensitive: Sequence[int]) -> tuple[str, ...]:
    """Names of the signals, in the order of the last axis."""
    tensors = [e.name for e in layout.entries if e.role == "parameter"]
    weight, bias = head_of(layout, classes)
    rows_of = tracked_classes(classes, sensitive)
    names = [NORM, *(f"norm of {t}" for t in tensors), TO_NEIGHBOURS]
    names += [UPDATE_NORM, *(f"update norm of {t}" for t in tensors), TO_MEAN]
    if weight is not None:
        names += [f"class {c}: mean of its row" for c in rows_of]
        names += [f"class {c}: norm of its row" for c in rows_of]
    if bias is not None:
        names += [f"class {c}: bias" for c in rows_of]
    return tuple(names)


def is_published(name: str) -> bool:
    """Whether a signal is in the paper's list."""
    return name in (NORM, TO_NEIGHBOURS) or name.startswith("norm of ")
