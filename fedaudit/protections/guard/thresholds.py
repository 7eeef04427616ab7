"""Biases that are large beside the weights, and unlike each other: thresholds for one record.

Standard deviation of b over the units of a layer, times sqrt(n) / |w|: about 1 as layers begin. One
number for all units is how some layers begin, and counts for nothing (`constant_bias` looks at
negative ones). Layers of fewer than 16 units take no part: output layers that begin at zero learn
biases before weights. The step in which values are told apart is wide, a factor of 20: training
moves biases far, by 3.5 in the queries of a published sentence encoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedaudit.protections.guard.tensors import Received, Score

NAME, UNIT = "bias_size", 3.0
FEWEST = 16
"""Units of a layer that counts."""


def reach(units: int) -> float:
    """Of units whose weights are not zero: biases can be as large as numbers go, and weights as
    small."""
    return -math.inf if units < FEWEST else math.inf


def check(model: Received) -> Iterator[Score]:
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
        words = f"biases are {ratio:.2g} times what layers begin with"
        yield replace(empty, value=value, words=words)
