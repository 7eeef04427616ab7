"""A mechanism of local DP as the server knows it: a function of records, a law of each feature."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.audits.active_membership.channel import (
    LARGEST_ALPHABET,
    MOST_BITS,
    OPEN,
    Channel,
    Codebook,
)
from fedaudit.protections.local_dp import GRR, Discrete
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, Quantiser
from fedaudit.protections.local_dp.protection import LocalDP


def channel_of(local: LocalDP | None, features: int) -> Channel:
    """A local mechanism as the audit takes it: a function of records, and the law of a feature."""
    if local is None:
        return OPEN
    encoder, mechanism = local.encoder(), local.of(features)

    def perturb(x: Floats, rng: np.random.Generator) -> Floats:
        return local.randomise(x, rng)[0]

    def clean(x: Floats) -> Floats:
        return np.asarray(encoder.decode(encoder.encode(x).values), dtype=np.float64)

    return Channel(
        name=local.mechanism,
        perturb=perturb,
        clean=clean,
        codes=_codebook(local, mechanism, encoder),
        claimed_epsilon=float(mechanism.claimed_epsilon),
        exact_epsilon=float(mechanism.worst_case_epsilon()),
        delta=float(mechanism.delta),
    )


def _codebook(
    local: LocalDP, mechanism: Any, encoder: FloatBits | Quantiser | Interval
) -> Codebook | None:
    """The law of what is trained on, where a feature is read back as one of its codes."""
    if isinstance(encoder, Interval) or local.decoder == "unbiased":
        return None
    if isinstance(encoder, FloatBits):
        if encoder.bits > MOST_BITS:
            return None  # played in floats
        ones = np.stack([mechanism.one_from_zero, mechanism.one_from_one])
        if local.decoder == "likelihood":
            # bits that flip more often than not are turned back
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
    """The law of the code that is read back, as a `Codebook` takes it; None where it has no closed
    form (a Bloom filter) or is not written out: games are then played with the mechanism itself."""
    if getattr(mechanism, "filter_bits", None) is not None:
        return None
    discrete: Discrete = mechanism
    if alphabet <= LARGEST_ALPHABET:
        return {"table": discrete.decoded_transition(decoder=decoder)}
    if isinstance(mechanism, GRR):
        return {"symmetric": (alphabet, mechanism.truth)}
    # unary reports, read by the likeliest value: errors are uniform
    return {"symmetric": (alphabet, mechanism.hit_probability)} if decoder == "likelihood" else None
