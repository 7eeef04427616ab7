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
    joint_multiplier,
)

SERVER_SIDE = "the server, which sees every update before noise is added"
CLIENT_SIDE = "the client's own code"
CENTRAL = "DifferentialPrivacy"
MEANS = ("FedAvg", "FedProx")
"""Strategies whose result is the weighted mean of the replies; a wrapper scales its noise for that.
Other strategies derive a step from the mean, with another sensitivity."""
DELTA = 1e-5
CLIP, MULTIPLIER = "update-noise-clip", "update-noise-multiplier"
"""Keys of the run config for `update_noise_mod`."""
MASKED_BY = "enough clients that stay, and a server that follows the protocol and does not search"
MASK_BITS = 28
"""Flower 1.41 draws a pairwise mask from RandomState, seeded by the four-byte pieces of a key in
base64, XORed: the top bit of every byte is 0. https://github.com/flwrlabs/flower/issues/7522"""


def declared_by(strategy: Any, delta: float = DELTA) -> list[dict[str, Any]]:
    """Protections that a strategy (and those it wraps) declares, outermost first.

    `noise_multiplier` holds for everything that a round releases. With an adaptive clipping norm,
    that is the mean and a count; `mean_multiplier` is that of the mean alone.
    """
    out = []
    while strategy is not None:
        kind = type(strategy).__name__
        if kind.startswith(CENTRAL):
            z = float(getattr(strategy, "noise_multiplier", 0.0))
            own: dict[str, Any] = {
                "name": "central_dp",
                "flower": kind,
                "covers": [],
                "trust": SERVER_SIDE,
                "unit": "client",
                "noise_multiplier": z,
                "clip": float(getattr(strategy, "clipping_norm", 0.0)),
                "clients": int(getattr(strategy, "num_sampled_clients", 0)),
                "delta": delta,
            }
            if "Adaptive" in kind:
                # Flower stores the mean's part; the user's setting is for mean and count together
                count = float(getattr(strategy, "clipped_count_stddev", 0.0))
                own |= {
                    "noise_multiplier": joint_multiplier(z, count),
                    "mean_multiplier": z,
                    "count_stddev": count,
                    "clip_rate": float(getattr(strategy, "clip_norm_lr", 0.0)),
                    "clip_quantile": float(getattr(strategy, "target_clipped_quantile", 0.0)),
                }
            inner = type(_wrapped(strategy))
            own["around"] = inner.__name__
            if inner.__name__ not in MEANS or not inner.__module__.startswith("flwr."):
                own["note"] = (
                    f"epsilon unknown: the noise is scaled for a mean, and {inner.__name__} may "
                    "not compute one"
                )
            out.append(own)
        strategy = vars(strategy).get("strategy")
    return out


def _wrapped(strategy: Any) -> Any:
    """The strategy inside a wrapper, recorders left out."""
    inner = vars(strategy).get("strategy")
    while type(inner).__name__.startswith("Recording") and "strategy" in vars(inner):
        inner = vars(inner)["strategy"]
    return inner


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
