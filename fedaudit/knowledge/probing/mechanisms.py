"""A local DP mechanism as the server knows it: a random function, and the law of each feature."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.audits.active_membership.channel import (
    LARGEST_ALPHABET,
    MOST_BITS,
    NO_MECHANISM,
    Channel,
    Codebook,
)
from fedaudit.protections.local_dp import GRR, Discrete
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, Quantiser
from fedaudit.protections.local_dp.protection import LocalDP


def channel_of(local: LocalDP | None, features: int) -> Channel:
    """A local mechanism in the form that the audit needs."""
    if local is None:
        return NO_MECHANISM
    encoder, mechanism = local.encoder(), local.of(features)

    def perturb(x: Floats, rng: np.random.Generator) -> Floats:
        return local.randomise(x, rng)[0]

    return Channel(
        name=local.mechanism,
        perturb=perturb,
        clean=local.rounded,
        codes=_codebook(local, mechanism, encoder),
        claimed_epsilon=float(mechanism.claimed_epsilon),
        exact_epsilon=float(mechanism.worst_case_epsilon()),
        delta=float(mechanism.delta),
    )


def _codebook(
    local: LocalDP, mechanism: Any, encoder: FloatBits | Quantiser | Interval
) -> Codebook | None:
    """The law of a decoded feature, if features decode to one of their codes; else None."""
    if isinstance(encoder, Interval) or local.decoder == "unbiased" or local.by_column:
        return None
    if isinstance(encoder, FloatBits):
        if encoder.bits > MOST_BITS:
            return None  # played in floats
        ones = np.stack([mechanism.one_from_zero, mechanism.one_from_one])
        if local.decoder == "likelihood":
            # the decoder inverts bits that flip with probability above 1/2
            turned = ones[1] < ones[0]
            ones[:, turned] = 1.0 - ones[:, turned]
        return Codebook(
            step=1.0 / encoder.scale, encode=lambda x: encoder.encode(x).values, ones=ones
        )
    law = _law(mechanism, encoder.alphabet, local.decoder)
    if law is None:
        return None
    return Codebook(
        step=(encoder.high - encoder.low) / (encoder.alphabet - 1),
        origin=encoder.low,
        encode=lambda x: encoder.encode(x).values,
        **law,
    )


def _law(mechanism: Any, alphabet: int, decoder: Any) -> dict[str, Any] | None:
    """The law of the decoded code as arguments of `Codebook`.

    None if it has no closed form (a Bloom filter) or none is implemented: games then use the
    mechanism itself.
    """
    if getattr(mechanism, "filter_bits", None) is not None:
        return None
    discrete: Discrete = mechanism
    if alphabet <= LARGEST_ALPHABET:
        return {"table": discrete.decoded_transition(decoder=decoder)}
    if isinstance(mechanism, GRR):
        return {"symmetric": (alphabet, mechanism.truth)}
    # unary reports, decoded to the likeliest value: errors are uniform
    return {"symmetric": (alphabet, mechanism.hit_probability)} if decoder == "likelihood" else None
