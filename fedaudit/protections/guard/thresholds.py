"""Check for biases that are large relative to the weights and differ: thresholds for one record.

The value is the standard deviation of b over the units of a layer, times sqrt(n) / |w|: about 1 for
new layers. Equal biases do not count, since some layers start that way (`constant_bias` checks
negative ones). Layers of fewer than 16 units are left out: output layers that start at zero learn
biases before weights. The check's unit is a factor of 20, because training moves biases far: by 3.5
in the queries of a published sentence encoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedaudit.protections.guard.tensors import CheckScore, Received

NAME, UNIT = "bias_size", 3.0
FEWEST = 16
"""Least number of units of a layer."""


def reach(units: int) -> float:
    """Largest value of units with non-zero weights: any, as biases can be huge and weights tiny."""
    return -math.inf if units < FEWEST else math.inf


def check(model: Received) -> Iterator[CheckScore]:
    """The natural logarithm, layer by layer."""
    for _, bias, lengths, empty in model.biases():
        kept = lengths > 0
        empty = replace(empty, reach=reach(int(kept.sum())))
        if kept.sum() < FEWEST:
            yield empty
            continue
        bias = bias - bias[kept].mean()
        ratios = np.abs(bias[kept]) / lengths[kept] * math.sqrt(empty.shape[1])
        top = float(ratios.max())
        ratio = top * math.sqrt(float(np.mean(np.square(ratios / top)))) if top > 0 else 0.0
        value = max(math.log(ratio), -5.0) if ratio > 0 else -5.0
        words = f"biases are {ratio:.2g} times as large as in new layers"
        yield replace(empty, value=value, words=words)
