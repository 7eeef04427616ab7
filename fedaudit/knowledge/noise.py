"""The noise of a run, which is public: from declared protections and from rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedaudit.audits.audit import Noise
from fedaudit.hooks import AddedNoise
from fedaudit.knowledge.records import RESERVED_NAMES
from fedaudit.protections import declared
from fedaudit.setup.config import Config
from fedaudit.trace import ANONYMOUS, Trace, Truth
from fedaudit.trace.recorder import MODEL


def noise_of(
    trace: Trace, truth: Truth | None = None, config: Config | None = None
) -> Noise | None:
    """Noise on the mean over clients, from declared protections and rounding; None without any.

    Rounding comes from the ring of a secure sum and from a trace in half precision.
    """
    shares, present = _shares(trace)
    uploads: dict[str, float] = {}
    ring: dict[str, float] = {}
    on_sum = on_mean = 0.0
    rules, complete = [], True
    for d in trace.manifest.declared:
        name, count = d.get("name"), max(len(present), 1)
        match declared.noise_of(d, clients=count):
            case AddedNoise("rounding", _, step):
                _add_rounding(ring, step, present, _examples(trace, truth), config)
                rules.append(
                    f"quantisation: {name} in steps of {step:.3g}, step / sqrt(12) per client"
                )
            case None if not d.get("noise_multiplier"):
                continue
            case AddedNoise(multiplier=z) if not z:
                continue
            case AddedNoise("aggregate", float(z), clip):
                on_sum = math.hypot(on_sum, z * clip)
                rules.append(f"{name}: {z:g} x {clip:g} / {count} clients")
            case AddedNoise("upload", float(z), clip):
                _add(uploads, dict.fromkeys(shares, z * clip))
                rules.append(f"{name}: {z:g} x {clip:g} on every upload")
            case AddedNoise("step", many, clip) if config is not None and _is_plain(config):
                each = many if isinstance(many, tuple) else (many,) * len(shares)
                _add(uploads, _training_noise(each, clip, shares, _examples(trace, truth), config))
                rules.append(
                    f"{name}: rate x multiplier x clip x sqrt(steps) / batch, to first order"
                )
            case _:
                complete = False
                rules.append(f"{name}: unknown size")
    recorded = trace.manifest.layouts.get(MODEL)
    if recorded is not None and recorded.dtype == "float16" and len(trace.rounds):
        rounded, sent = _recorded_rounding(trace, shares)
        _add(uploads, rounded)
        # both models of a step are rounded; noise is stated before the server's rate
        rate = 1.0 if config is None else float(config.federation.server_learning_rate)
        on_mean = math.sqrt(2.0) * sent / rate
        rules.append("quantisation: recorded in float16, rounding step / sqrt(12)")
    own = {p: shares.get(p, 1.0 / len(uploads)) * size for p, size in uploads.items()}
    _add(own, ring)
    # absent clients add no noise
    squared = on_mean**2 + (on_sum / max(len(present), 1)) ** 2
    squared += sum(own.get(party, 0.0) ** 2 for party in present or own)
    if complete and squared == 0:
        return None
    return Noise(
        aggregate=math.sqrt(squared),
        own=own,
        rule="; ".join(rules),
        complete=complete,
        uploads=uploads,
        on_sum=on_sum,
        on_mean=on_mean,
        clip=_clipped_to(trace),
    )


def _add(deviations: dict[str, float], more: Mapping[str, float]) -> None:
    """Add independent noise to `deviations`, in place."""
    for party, size in more.items():
        deviations[party] = math.hypot(deviations.get(party, 0.0), size)


def _clipped_to(trace: Trace) -> float | None:
    """The clip norm before one protection added noise to uploads; None if another changes them."""
    every = trace.manifest.declared
    changing = [d for d in every if not declared.has_fact(d, "exact_afterwards")]
    if len(changing) != 1:
        return None
    added = declared.noise_of(changing[0], clients=1)
    return added.scale or None if added is not None and added.place == "upload" else None


def _shares(trace: Trace) -> tuple[dict[str, float], tuple[str, ...]]:
    """Party -> its share in the mean of a round, and the parties of the first round.

    Shares follow the weights of the first round. Absent parties get the typical weight; if no
    weights crossed the wire, all are equal.
    """
    parties = list(trace.manifest.federation.get("clients", ()))
    first = trace.messages(1) if len(trace.rounds) else ()
    seen = {m.sender: m.weight for m in first if m.sender in set(parties)}
    if not seen:
        seen = dict.fromkeys(parties, 1.0)
    total = sum(seen.values()) or 1.0
    typical = total / max(len(seen), 1)
    return {p: seen.get(p, typical) / total for p in parties}, tuple(seen)


def _add_rounding(
    own: dict[str, float],
    step: float,
    present: tuple[str, ...],
    sizes: Mapping[str, int],
    config: Config | None,
) -> None:
    """Add the rounding of a secure sum, uniform within a step.

    Every client rounds its update times its weight over the largest weight. In the mean, the step
    is therefore multiplied by the largest share, for every client.
    """
    largest = 1.0 / max(len(present), 1)
    if config is not None and config.federation.weighting == "size" and set(present) <= {*sizes}:
        weights = [sizes[party] for party in present]
        largest = max(weights) / sum(weights)
    for party in present:
        own[party] = math.hypot(own.get(party, 0.0), largest * step / math.sqrt(12.0))


def _recorded_rounding(trace: Trace, shares: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Rounding deviation of half precision: of every client's upload, and of the sent model.

    Computed from the first round; absent clients get the typical deviation. Rounding is uniform
    within a step, and the step grows with the number.
    """
    block, messages = trace.block(1), [m for m in trace.messages(1) if MODEL in m.parts]

    def deviation(row: int) -> float:
        values = block[row][np.isfinite(block[row])]
        steps = np.spacing(np.abs(values)).astype(np.float64)
        return math.sqrt(float(np.square(steps).mean()) / 12.0) if len(steps) else 0.0

    hubs = {*trace.manifest.federation.get("hubs", ()), *RESERVED_NAMES}
    down = [m.parts[MODEL] for m in messages if m.kind == "model" and m.sender in hubs]
    sent = deviation(down[0]) if down else 0.0
    found: dict[str, float] = {}
    sizes = []
    for m in messages:
        if m.sender in hubs and m.sender != ANONYMOUS:
            continue
        # an uploaded model counts as its difference from the sent one
        size = math.hypot(deviation(m.parts[MODEL]), sent if m.kind == "model" else 0.0)
        sizes.append(size)
        if m.sender != ANONYMOUS:
            found[m.sender] = size
    if sizes:
        typical = math.sqrt(float(np.square(sizes).mean()))
        found = {**dict.fromkeys(shares, typical), **found}
    return found, sent


def _training_noise(
    multipliers: Sequence[float],
    clip: float,
    shares: Mapping[str, float],
    sizes: Mapping[str, int],
    config: Config,
) -> dict[str, float]:
    """Noise of DP-SGD in an update: independent steps add up, each divided by the batch size."""
    training = replace(config.training, sampling="poisson")
    out = {}
    for party, z in zip(shares, multipliers, strict=True):
        n = sizes.get(party)
        if n is None:
            continue
        steps, batch = training.steps_for(n), training.expected_batch(n)
        out[party] = training.learning_rate * z * clip * math.sqrt(steps) / batch
    return out


def _is_plain(config: Config) -> bool:
    """Whether local steps simply add up: Adam and momentum reshape the noise."""
    return config.training.optimizer == "sgd" and not config.training.momentum


def _examples(trace: Trace, truth: Truth | None) -> dict[str, int]:
    """Party -> number of examples, from the truth or else from counts that crossed the wire."""
    if truth is not None and truth.clients:
        return {p: int(c["examples"]) for p, c in truth.clients.items() if "examples" in c}
    return {
        m.sender: int(m.metadata["examples"])
        for m in trace.messages(1)
        if m.metadata and "examples" in m.metadata
    }
