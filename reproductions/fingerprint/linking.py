"""From a recorded federation to scores: rows of the chosen layers, labels, agreement, chance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fedaudit.arrays import Rows
from fedaudit.audits.fingerprint import scores
from fedaudit.audits.fingerprint.linkers import LINKERS
from fedaudit.audits.rows.features import collect
from fedaudit.randomness import Seed
from fedaudit.stats import clustering, intervals
from reproductions.fingerprint.setting import Recorded

PUBLISHED = ("random", "kmeans", "spectral", "greedy")
OURS = ("tracking", "joint")
METHODS = (*PUBLISHED, *OURS)
NAMES = ("purity", "rand_index", "mutual_information")
LAYERS = {"fc": "blocks.{}.mlp.fc.weight", "proj": "blocks.{}.mlp.proj.weight"}
Score = dict[str, list[float]]

DRAWS = Seed(11)  # of the attackers, not of the federation


def tensors(part: str = "both", layer: int = 0) -> tuple[str, ...]:
    """Names of the feed-forward weights of one block: `fc`, `proj` or both."""
    chosen = LAYERS if part == "both" else (part,)
    return tuple(LAYERS[p].format(layer) for p in chosen)


def rows_of(
    recorded: Recorded, names: Sequence[str], normalise: Literal["unit", "column"] = "unit"
) -> tuple[list[Rows], list[list[str]]]:
    """Exact unit rows of every round, and the true senders of those rows."""
    view = recorded.trace.seen_by("server")
    rng = DRAWS.generator("features")
    found = collect(view, names, rng, normalise=normalise, sketch=0)
    senders = [
        [recorded.truth.senders(number)[i] for i in own]
        for number, own in zip(found.rounds, found.messages, strict=True)
    ]
    return found.rows, senders


def judge(
    rows: Sequence[Rows],
    senders: Sequence[Sequence[str]],
    clients: int,
    methods: Sequence[str] = METHODS,
) -> dict[str, Score]:
    """Every method's scores as [value, half-width of the 95 % interval over clients].

    `links` is the share of a client's rows whose next row was found, `false` the share of the
    links made that join two different clients.
    """
    truth = [s for own in senders for s in own]
    out: dict[str, Score] = {}
    for method in methods:
        labels = [v.tolist() for v in LINKERS[method](rows, clients, DRAWS.generator(method))]
        flat = [v for own in labels for v in own]
        ranges = scores.jackknife(truth, flat, 0.95)
        score = {
            name: _with_half(value, *ranges[name])
            for name, value in clustering.scores(truth, flat).items()
            if name in NAMES
        }
        joined = scores.links(senders, labels)
        names = sorted(joined.found)
        share = intervals.clustered_share(
            np.array([sum(joined.found[n]) for n in names]),
            np.array([len(joined.found[n]) for n in names]),
            confidence=0.95,
            baseline=joined.chance,
        )
        score["links"] = _with_half(share.value, share.low, share.high)
        made = sum(joined.made.values())
        if made:
            score["false"] = [round(1 - sum(joined.right.values()) / made, 4), 0.0]
        out[method] = score
    return out


def _with_half(value: float, low: float, high: float) -> list[float]:
    # an interval may be cut off at 0 or 1: the longer side is its half-width
    return [round(value, 4), round(max(value - low, high - value), 4)]


@lru_cache(maxsize=32)
def chance(clients: int, rounds: int, each: int | None = None) -> dict[str, float]:
    """Mean scores of a linker that deals labels at random, one per row and round.

    `each`: how many of the clients take part in a round (all by default).
    """
    rng = DRAWS.generator("chance", clients, rounds)
    taking = [rng.permutation(clients)[: each or clients] for _ in range(rounds)]
    truth = [int(c) for own in taking for c in own]
    numbers = [t for t, own in enumerate(taking) for _ in own]
    found = clustering.chance(truth, numbers, clusters=clients, rng=rng, draws=1000)
    return {name: found[name].value for name in NAMES}


def merge(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of several seeds as one, leaf by leaf: mean, and a half-width for both spreads.

    The interval over clients does not shrink with more seeds, since the clients stay the same; the
    variance between seeds is added to it.
    """
    first = measured[0]
    if all(isinstance(v, dict) for v in first.values()):
        return {k: merge([m[k] for m in measured if k in m]) for k in first}
    out: dict[str, Any] = {}
    for name, value in first.items():
        if not (isinstance(value, list) and len(value) == 2):
            out[name] = value
            continue
        pairs = np.array([m[name] for m in measured if name in m], dtype=np.float64)
        between = float(pairs[:, 0].var(ddof=1)) if len(pairs) > 1 else 0.0
        half = float(np.sqrt((pairs[:, 1] ** 2).mean() + 1.96**2 * between))
        out[name] = [float(pairs[:, 0].mean()), half]
    return out
