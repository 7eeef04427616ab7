"""Guarantees of Flower's own protections: unit, trusted party, coverage.

    DifferentialPrivacyServerSide...   the server sees all updates, clips them and adds noise
    DifferentialPrivacyClientSide...   clients clip (with a mod), the server adds noise to the mean
    LocalDpMod                         the client clips and adds noise before anything leaves
    update_noise_mod                   the same, from fedaudit
    SecAgg+ (older API only)           the server sees sums, and everything that is not a tensor

Flower adds noise of z C / n to the mean of n updates. The multiplier is z if every update has
weight 1/n. FedAvg weights updates by examples: the largest client then moves the mean by more than
C/n, and the multiplier is z (1/n) / (largest share), see `effective_multiplier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedaudit.accounting import (
    Exposure,
    Guarantee,
    effective_multiplier,
    epsilon,
)
from fedaudit.recorders.flower.declared import CENTRAL as CENTRAL
from fedaudit.recorders.flower.declared import DELTA as DELTA
from fedaudit.recorders.flower.declared import SERVER_SIDE
from fedaudit.recorders.flower.declared import declared_by as declared_by

CLIENT_SIDE = "the client's own code"
CLIP, MULTIPLIER = "update-noise-clip", "update-noise-multiplier"
"""Keys of the run config for `update_noise_mod`."""
MASKED_BY = "enough clients that stay, and a server that follows the protocol and does not search"
MASK_BITS = 28
"""Flower 1.41 draws a pairwise mask from RandomState, seeded by the four-byte pieces of a key in
base64, XORed: the top bit of every byte is 0. https://github.com/flwrlabs/flower/issues/7522"""


def central(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    *,
    weights: Sequence[float] = (),
    by: Any = "pld",
) -> Guarantee:
    """The guarantee of Flower's central DP wrappers after `rounds` rounds.

    Flower draws a fixed number of nodes: no amplification is claimed, as in Flower's own
    accountant. `weights`: of a round's updates, if they are not equal.
    """
    z = effective_multiplier(noise_multiplier, weights)
    return Guarantee(
        epsilon=epsilon(Exposure(sampling_rate=1.0, steps=1, rounds=rounds), z, delta, by=by),
        delta=delta,
        unit="client",
        relation="zero_out",
        trust=SERVER_SIDE,
        covers=f"{rounds} noisy means, z = {z:.4g}; not the metrics",
        by=by,
    )


def local_noise(sensitivity: float, epsilon_per_message: float, delta: float) -> float:
    """Standard deviation that LocalDpMod adds: s sqrt(2 ln(1.25 / delta)) / epsilon."""
    if epsilon_per_message == 0 or delta == 0:
        return math.inf
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon_per_message


def local(
    clipping_norm: float,
    sensitivity: float,
    epsilon_per_message: float,
    delta: float,
    rounds: int,
    *,
    by: Any = "pld",
) -> Guarantee:
    """The guarantee of LocalDpMod after `rounds` messages of a client.

    Replacing a client's data moves its clipped update by at most 2 C, whatever the `sensitivity`
    setting is. The actual noise is composed over the messages.
    """
    z = local_noise(sensitivity, epsilon_per_message, delta) / (2 * clipping_norm)
    once = Exposure(sampling_rate=1.0, steps=1, rounds=rounds)
    return Guarantee(
        epsilon=0.0 if math.isinf(z) else epsilon(once, z, delta, by=by),
        delta=delta,
        unit="client",
        relation="replace",
        trust=CLIENT_SIDE,
        covers=f"{rounds} noisy updates, z = {z:.4g}; not the metrics",
        by=by,
    )


def update_noise(noise_multiplier: float, rounds: int, delta: float) -> Guarantee:
    """The guarantee of `update_noise_mod` for a client after `rounds` messages."""
    once = Exposure(sampling_rate=1.0, steps=1, rounds=rounds)
    return Guarantee(
        epsilon=epsilon(once, noise_multiplier / 2, delta),
        delta=delta,
        unit="client",
        relation="replace",
        trust=CLIENT_SIDE,
        covers=f"{rounds} noisy updates, z = {noise_multiplier:g}; not the metrics",
    )
