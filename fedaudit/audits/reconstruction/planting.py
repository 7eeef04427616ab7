"""Weights that a dishonest server plants in the first two layers of the clients' own model.

The architecture stays, and so do the clients' local steps. Every unit of the first layer answers to
few records, so that its ratio dW / db is one of them.

imprint   (Fowl et al. 2022) All units look along one direction, each from a higher threshold on.
          Records between two thresholds drive one unit and not the next: the difference of the
          two rows holds them alone. Needs one step, in which all units see equal errors.
trap      (Boenisch et al. 2023) Every unit looks along a direction of its own, beyond which one
          record in `records` lies. Nothing is subtracted, so several local steps do little harm.
          The paper makes half of the weights negative; thresholds here are quantiles.

Shapes: h units of D inputs, m units in the layer after; n records of the server's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from fedaudit.arrays import Floats

Kind = Literal["imprint", "trap"]

RIDGE = 1e-2
"""Added to the covariance of the server's records, in units of its mean diagonal."""
SPAN = 8.0
"""Standard deviations between the lowest and the highest record along a direction."""
LOUDNESS = 4.0
"""Weight of a trap's unit in the layer after: its own error stays above what that layer learns."""


@dataclass(frozen=True)
class PlantedLayers:
    """Weights (h, D) and biases (h,) of the first layer, (m, h) and (m,) of the one after."""

    weight: Floats
    bias: Floats
    weight_after: Floats
    bias_after: Floats


def plant(
    kind: Kind, own: Floats, units: int, after: int, records: int, rng: np.random.Generator
) -> PlantedLayers:
    """Planted layers for updates of `records` records each; `own` (n, D) are the server's."""
    make = imprint if kind == "imprint" else trap
    return make(own, units, after, records, rng)


def imprint(
    own: Floats, units: int, after: int, records: int, rng: np.random.Generator
) -> PlantedLayers:
    """One direction, ascending thresholds: one record in max(records, units) lies between two."""
    w = rng.normal(size=own.shape[1]) * (own.std(axis=0) > 0)
    along = own @ w
    w /= max(float(along.std()), 1e-12)
    above = np.arange(units, 0, -1) / (max(records, units) + 1)
    cut = thresholds(own @ w, above)
    # small activations leave the output unsaturated, and a step large beside the weights
    scale = 1.0 / (SPAN * units)
    shared = rng.normal(size=(after, 1)) / np.sqrt(after)
    return PlantedLayers(
        weight=np.tile(scale * w, (units, 1)),
        bias=-scale * cut,
        weight_after=np.tile(shared, (1, units)),
        bias_after=np.ones(after),
    )


def trap(
    own: Floats, units: int, after: int, records: int, rng: np.random.Generator
) -> PlantedLayers:
    """A direction for every unit; beyond its threshold lies one record in `records`."""
    centred = own - own.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(own))
    ridge = RIDGE * max(float(values.mean()), 1e-12)
    # whitened: every record is as likely to be the outermost one
    w = rng.normal(size=(units, own.shape[1])) @ (vectors / np.sqrt(values + ridge) @ vectors.T)
    along = own @ w.T
    spread = np.maximum(along.std(axis=0), 1e-12)
    w /= spread[:, None]
    cut = [thresholds(v, np.array([1.0 / max(records, 2)]))[0] for v in (along / spread).T]
    # each unit feeds one unit after: a step on most labels then closes it, instead of opening it
    feeds = np.zeros((after, units))
    feeds[np.arange(units) % after, np.arange(units)] = LOUDNESS
    return PlantedLayers(w, -np.array(cut), feeds, np.ones(after))


def thresholds(values: Floats, above: Floats) -> Floats:
    """Thresholds (L,) that a part `above` (L,) of records exceeds, from values (n,) of n records.

    Beyond what n records can tell, the tail of the normal law with their mean and deviation.
    """
    told = np.quantile(values, 1.0 - above)
    tail = values.mean() - values.std() * ndtri(above)
    return np.where(above * len(values) >= 1.0, told, np.maximum(tail, values.max()))
