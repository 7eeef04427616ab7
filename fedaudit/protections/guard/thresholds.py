"""Biases that are large beside the weights: thresholds that hardly any record passes.

Root mean square of |b| sqrt(n) / |w| over the units of a layer: about 1 as layers begin.
"""

from __future__ import annotations

import math

import numpy as np

from fedaudit.protections.guard.tensors import Received, Score

NAME, UNIT = "bias_size", 0.1


def check(model: Received) -> Score | None:
    """The natural logarithm, at its largest over all layers."""
    best: Score | None = None
    for name, bias, lengths in model.biases():
        kept = lengths > 0
        if not kept.any():
            continue
        width = model.tensors[name.replace("bias", "weight")].size / len(bias)
        ratio = float(np.sqrt(np.mean(np.square(bias[kept] / lengths[kept])) * width))
        value = max(math.log(ratio), -5.0) if ratio > 0 else -5.0
        if best is None or value > best.value:
            best = Score(value, name, f"biases are {ratio:.2g} times what layers begin with")
    return best
