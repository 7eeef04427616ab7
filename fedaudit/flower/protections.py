"""What Flower's own protections promise, in our words: unit, who is trusted, what is covered.

    DifferentialPrivacyServerSide...   the server clips and adds noise: it sees everything before
    DifferentialPrivacyClientSide...   clients clip (by a mod), the server adds noise to the mean
    LocalDpMod                         the client clips and adds noise before anything leaves
    update_noise_mod                   the same, ours
    SecAgg+ (older kind of app only)   the server sees sums, and what is not a tensor

Flower adds noise of z C / n to the mean of n updates. That is multiplier z if every update counts
1/n. FedAvg counts updates by their examples: the largest client then moves the mean by more than
C/n, and the multiplier that holds is z (1/n) / (largest share), see `effective_multiplier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedaudit.accounting import Exposure, Guarantee, epsilon

SERVER_SIDE = "the server, which sees every update before noise is added"
CLIENT_SIDE = "the client's own code"
CENTRAL = "DifferentialPrivacy"
CLIP, MULTIPLIER = "update-noise-clip", "update-noise-multiplier"
"""Keys of the run config for `update_noise_mod`."""
MASKED_BY = "enough clients that stay, and a server that follows the protocol and does not search"
MASK_BITS = 28
"""Flower 1.41 draws a pairwise mask from RandomState, seeded by the four-byte pieces of a key in
base64, XORed: the top bit of every byte is 0. https://github.com/flwrlabs/flower/issues/7522"""


def declared_by(strategy: Any) -> list[dict[str, Any]]:
    """Protections that a strategy (and those it wraps) declares, outermost first."""
    out = []
    while strategy is not None:
        kind = type(strategy).__name__
        if kind.startswith(CENTRAL):
            out.append(
                {
                    "name": "central_dp",
                    "flower": kind,
                    "covers": [],
                    "trust": SERVER_SIDE,
                    "unit": "client",
                    "noise_multiplier": float(getattr(strategy, "noise_multiplier", 0.0)),
                    "clip": float(getattr(strategy, "clipping_norm", 0.0)),
                    "clients": int(getattr(strategy, "num_sampled_clients", 0)),
                }
            )
        strategy = vars(strategy).get("strategy")
    return out


def effective_multiplier(noise_multiplier: float, weights: Sequence[float]) -> float:
    """The multiplier that holds where updates count by `weights` (n,): z (1/n) / max share."""
    total = float(sum(weights))
    if not weights or total <= 0:
        return noise_multiplier
    return noise_multiplier * total / (len(weights) * max(weights))


def joint_multiplier(noise_multiplier: float, clipped_count_stddev: float) -> float:
    """Of a noisy mean and a noisy count of clipped updates together, as adaptive clipping releases
    them: (z^-2 + (2 s)^-2)^(-1/2), the inverse of what Flower does with its setting."""
    if noise_multiplier == 0 or clipped_count_stddev == 0:
        return 0.0
    return float((noise_multiplier**-2 + (2 * clipped_count_stddev) ** -2) ** -0.5)


def central(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    *,
    weights: Sequence[float] = (),
    by: Any = "pld",
) -> Guarantee:
    """The guarantee of Flower's central DP wrappers after `rounds` rounds.

    Fixed-size draws of nodes: no amplification is claimed, as in Flower's own accountant. The
    `weights` of a round's updates, where they are not equal.
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

    Replacing a client's data moves its clipped update by at most 2 C, whatever was given as the
    sensitivity; the noise that is really added is composed over the messages.
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
    """What our `update_noise_mod` promises a client after `rounds` messages."""
    once = Exposure(sampling_rate=1.0, steps=1, rounds=rounds)
    return Guarantee(
        epsilon=epsilon(once, noise_multiplier / 2, delta),
        delta=delta,
        unit="client",
        relation="replace",
        trust=CLIENT_SIDE,
        covers=f"{rounds} noisy updates, z = {noise_multiplier:g}; not the metrics",
    )
