"""The noise in force, which is public: of declared protections, and of rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedaudit.audits.audit import Noise
from fedaudit.experiment.config import Config
from fedaudit.experiment.knowledge.records import NO_CLIENT
from fedaudit.trace import ANONYMOUS, Trace, Truth
from fedaudit.trace.recorder import MODEL

RINGS = {"2^32": 32, "2^64": 64}
"""Moduli of a secure sum, as they are declared -> bits."""


def noise_of(
    trace: Trace, truth: Truth | None = None, config: Config | None = None
) -> Noise | None:
    """The noise that declared protections put on the mean over clients, and what rounding adds:
    of a secure sum's ring, and of a trace in half precision. None if there is none."""
    shares, present = _shares(trace)
    own: dict[str, float] = {}
    squared, rules, complete = 0.0, [], True
    for d in trace.manifest.declared:
        z, clip = d.get("noise_multiplier"), float(d.get("clip") or 0.0)
        name = d.get("name")
        if name == "secure_aggregation" and d.get("bound") and d.get("modulus") in RINGS:
            rules.append(_add_ring_rounding(own, d, present, _examples(trace, truth), config))
            continue
        if not z:
            continue
        if name == "central_dp":
            z = d.get("mean_multiplier", z)  # of the mean alone, where more is released
            count = max(len(present), 1)
            squared += (float(z) * clip / count) ** 2
            rules.append(f"central_dp: {z:g} x {clip:g} / {count} clients")
        elif name == "update_noise":
            for party, share in shares.items():
                own[party] = math.hypot(own.get(party, 0.0), share * float(z) * clip)
            rules.append(f"update_noise: {z:g} x {clip:g} on every upload")
        elif name == "dp_sgd" and config is not None and _is_plain(config):
            many = list(z) if isinstance(z, list | tuple) else [float(z)] * len(shares)
            _add_training_noise(own, many, clip, shares, _examples(trace, truth), config)
            rules.append("dp_sgd: rate x multiplier x clip x sqrt(steps) / batch, to first order")
        else:
            complete = False
            rules.append(f"{name}: of unknown size")
    recorded = trace.manifest.layouts.get(MODEL)
    if recorded is not None and recorded.dtype == "float16" and len(trace.rounds):
        sent = _add_recorded_rounding(own, trace, shares)
        # both models of a step are rounded; noise is stated before the server's rate
        rate = 1.0 if config is None else float(config.federation.server_learning_rate)
        squared += 2.0 * (sent / rate) ** 2
        rules.append("quantisation: recorded in float16, rounding step / sqrt(12)")
    # who stays away adds no noise
    squared += sum(own.get(party, 0.0) ** 2 for party in present or own)
    if complete and squared == 0:
        return None
    return Noise(aggregate=math.sqrt(squared), own=own, rule="; ".join(rules), complete=complete)


def _shares(trace: Trace) -> tuple[dict[str, float], tuple[str, ...]]:
    """Party -> its share in the mean of a round it takes part in, and who did in the first.

    From the weights of the first round: the typical one for those who were not there, equal ones
    where they did not cross the wire.
    """
    parties = list(trace.manifest.federation.get("clients", ()))
    first = trace.messages(1) if len(trace.rounds) else ()
    seen = {m.sender: m.weight for m in first if m.sender in set(parties)}
    if not seen:
        seen = dict.fromkeys(parties, 1.0)
    total = sum(seen.values()) or 1.0
    typical = total / max(len(seen), 1)
    return {p: seen.get(p, typical) / total for p in parties}, tuple(seen)


def _add_ring_rounding(
    own: dict[str, float],
    declared: Mapping[str, Any],
    present: tuple[str, ...],
    sizes: Mapping[str, int],
    config: Config | None,
) -> str:
    """Rounding to whole numbers of a secure sum's ring, uniform within a step; the rule it follows.

    Every client rounds its update times its weight over the largest weight: in the mean that is
    the step times the largest share, whoever it is.
    """
    from fedaudit.protections.secure_aggregation.ring import Quantiser

    count = max(len(present), 1)
    step = Quantiser(float(declared["bound"]), count, RINGS[declared["modulus"]]).step
    largest = 1.0 / count
    if config is not None and config.federation.weighting == "size" and set(present) <= {*sizes}:
        weights = [sizes[party] for party in present]
        largest = max(weights) / sum(weights)
    for party in present:
        own[party] = math.hypot(own.get(party, 0.0), largest * step / math.sqrt(12.0))
    return f"quantisation: secure_aggregation in steps of {step:.3g}, step / sqrt(12) per client"


def _add_recorded_rounding(
    own: dict[str, float], trace: Trace, shares: Mapping[str, float]
) -> float:
    """Deviation that half precision puts on every client's part of the mean, from the rows of the
    first round; returns that on the model which was sent.

    Rounding is uniform within a step, which grows with the number.
    """
    block, messages = trace.block(1), [m for m in trace.messages(1) if MODEL in m.parts]

    def deviation(row: int) -> float:
        values = block[row][np.isfinite(block[row])]
        steps = np.spacing(np.abs(values)).astype(np.float64)
        return math.sqrt(float(np.square(steps).mean()) / 12.0) if len(steps) else 0.0

    hubs = {*trace.manifest.federation.get("hubs", ()), *NO_CLIENT}
    down = [m.parts[MODEL] for m in messages if m.kind == "model" and m.sender in hubs]
    sent = deviation(down[0]) if down else 0.0
    found: dict[str, float] = {}
    hidden = []
    for m in messages:
        if m.sender in hubs and m.sender != ANONYMOUS:
            continue
        # a model is read as the difference from the one that was sent
        size = math.hypot(deviation(m.parts[MODEL]), sent if m.kind == "model" else 0.0)
        if m.sender == ANONYMOUS:
            hidden.append(size)
        else:
            found[m.sender] = size
    if hidden and not found:
        # nobody knows whose row this is: the typical amount
        found = dict.fromkeys(shares, math.sqrt(float(np.square(hidden).mean())))
    for party, size in found.items():
        part = shares.get(party, 1.0 / len(found)) * size
        own[party] = math.hypot(own.get(party, 0.0), part)
    return sent


def _add_training_noise(
    own: dict[str, float],
    multipliers: list[float],
    clip: float,
    shares: Mapping[str, float],
    sizes: Mapping[str, int],
    config: Config,
) -> None:
    """Noise of DP-SGD in an update: independent steps add up, each divided by the batch."""
    training = replace(config.training, sampling="poisson")
    for (party, share), z in zip(shares.items(), multipliers, strict=True):
        n = sizes.get(party)
        if n is None:
            continue
        steps, batch = training.steps_for(n), training.expected_batch(n)
        std = training.learning_rate * z * clip * math.sqrt(steps) / batch
        own[party] = math.hypot(own.get(party, 0.0), share * std)


def _is_plain(config: Config) -> bool:
    """Whether local steps only add up: Adam and momentum reshape the noise."""
    return config.training.optimizer == "sgd" and not config.training.momentum


def _examples(trace: Trace, truth: Truth | None) -> dict[str, int]:
    """Party -> examples, from the truth, or as far as counts crossed the wire."""
    if truth is not None and truth.clients:
        return {p: int(c["examples"]) for p, c in truth.clients.items() if "examples" in c}
    return {
        m.sender: int(m.metadata["examples"])
        for m in trace.messages(1)
        if m.metadata and "examples" in m.metadata
    }
