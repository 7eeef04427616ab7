"""Guarantees of Flower's DP wrappers for the clients of a recorded run, from the recording alone.

The manifest holds the wrapper's settings; the rounds hold who took part and the weight of each
reply. Flower adds noise z C / n to the mean. A client with share s of the weight moves the mean by
at most s C, so the multiplier z / (n s) holds for this client. Rounds are composed as Gaussian
mechanisms without amplification, since a fixed number of nodes is drawn.

With an adaptive clipping norm, every round also releases a noisy count. Flower scales the noise to
the norm of the **next** round, which it computes from that count: C' = C exp(-r (b - q)) for the
noisy fraction b of clipped updates. b is at most 1 plus noise. A part of delta covers the tail of
that noise; C' / C and the multiplier of the mean then have a lower bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from fedaudit.accounting import (
    Exposure,
    Guarantee,
    composed_multiplier,
    epsilon,
    joint_multiplier,
)
from fedaudit.trace import ANONYMOUS, SERVER, Manifest, Message, Trace

REPLIES = ("model", "delta", "gradient")
EVERYONE = "every client"
TAIL = 0.1
"""The part of delta that pays for the noise on the count of clipped updates."""


def promise(trace: Trace) -> dict[str, dict[str, Any]]:
    """Client -> guarantee of the noise that a Flower wrapper added; empty if none can be stated."""
    return promise_of(trace.manifest, [shares_of(trace.messages(n)) for n in trace.rounds])


def promise_of(
    manifest: Manifest, shares: Sequence[Mapping[str, float]], *, worst: bool = False
) -> dict[str, dict[str, Any]]:
    """Client -> guarantee after rounds with these `shares`; `worst`: of the weakest one alone.

    Empty without a wrapper, with several, with a strategy that is not a mean, and if only sums are
    recorded. With hidden senders, every client gets the guarantee of the largest weight in every
    round.
    """
    declared = [d for d in manifest.declared if d.get("flower") and "delta" in d]
    if len(declared) != 1 or "note" in declared[0]:
        return {}
    own = declared[0]
    adaptive = "Adaptive" in str(own["flower"])
    shares = [share for share in shares if share]
    senders = {party for share in shares for party in share}
    if not senders or not own.get("clients"):
        return {}
    delta, kept = float(own["delta"]), 1.0
    if adaptive:
        replies = min(len(share) for share in shares)
        kept = _scaled_by(own, replies, TAIL * delta / len(shares))
        delta *= 1 - TAIL
    covers = _covers(own, shares, kept)
    once = Exposure(sampling_rate=1.0, steps=1, rounds=1)
    hidden = any(party.startswith(ANONYMOUS) for party in senders)
    clients = manifest.federation.get("clients") or (EVERYONE,)
    multipliers = {}
    for party in clients if hidden else sorted(senders):
        counted = [max(share.values()) if hidden else share.get(party, 0.0) for share in shares]
        multipliers[party] = composed_multiplier([_multiplier(own, s, kept) for s in counted if s])
    if worst:
        weakest = min(multipliers, key=lambda party: multipliers[party])
        multipliers = {weakest: multipliers[weakest]}
    return {
        party: Guarantee(
            epsilon=0.0 if math.isinf(z) else epsilon(once, z, delta),
            delta=float(own["delta"]),
            unit="client",
            relation="zero_out",
            trust=str(own.get("trust", "")),
            covers=covers,
        ).to_dict()
        for party, z in multipliers.items()
    }


def shares_of(messages: Sequence[Message]) -> dict[str, float]:
    """Sender -> its share in the mean of a round; a second reply counts too. The position tells
    replies of hidden senders apart."""
    weights: defaultdict[str, float] = defaultdict(float)
    for i, m in enumerate(messages):
        if m.receiver == SERVER and m.kind in REPLIES and not m.lost:
            weights[f"{ANONYMOUS} {i}" if m.sender == ANONYMOUS else m.sender] += m.weight
    total = sum(weights.values())
    return {party: weight / total for party, weight in weights.items()} if total > 0 else {}


def _multiplier(own: Mapping[str, Any], share: float, kept: float) -> float:
    """The multiplier for all that one round releases, for a client with this `share`."""
    alone = float(own.get("mean_multiplier", own["noise_multiplier"]))
    z = alone * kept / (int(own["clients"]) * share)
    return joint_multiplier(z, float(own["count_stddev"])) if "count_stddev" in own else z


def _scaled_by(own: Mapping[str, Any], replies: int, tail: float) -> float:
    """Lower bound on C' / C in a round; it fails with probability at most `tail`."""
    above = NormalDist().inv_cdf(1 - tail) * float(own["count_stddev"]) / replies
    return min(1.0, math.exp(-float(own["clip_rate"]) * (1 + above - float(own["clip_quantile"]))))


def _covers(own: Mapping[str, Any], shares: Sequence[Mapping[str, float]], kept: float) -> str:
    """What was composed, and the assumptions: the same text for all clients."""
    n = int(own["clients"])
    every = [s for share in shares for s in share.values()]
    text = [f"{len(shares)} noisy means"]
    if "count_stddev" in own:
        text[0] += f" and counts of clipped updates, z = {own['noise_multiplier']:.4g} together"
        text.append(
            "Flower scales the noise to the clipping norm of the next round, counted as "
            f"{kept:.3g} of the one that clips"
        )
    else:
        text[0] += f", z = {own['noise_multiplier']:.4g}"
    if max(every) - min(every) < 1e-9 and abs(max(every) * n - 1) < 1e-9:
        text.append("holds if all clients count alike, as reported: Flower does not bound weights")
    else:
        text.append(
            f"holds for the weights that were reported, {min(every):.3g} to {max(every):.3g} of a "
            f"mean (noise is for 1/{n}): Flower does not bound them"
        )
    if "ClientSide" in str(own["flower"]):
        text.append("holds if every client clips")
    return "; ".join([*text, "not the metrics"])
