"""Does the risk predict the attack?

Rank correlation, over clients and rounds, of J and TS-MIA ([TwoStage] Eqs. (30), (32)) on one half
of a client's candidates with the attack's AUC on the other half. Ours: the paper runs no attack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.two_stage_membership import theory
from fedaudit.audits.two_stage_membership.facts import RANK_CORRELATION
from fedaudit.audits.two_stage_membership.risk import (
    RESAMPLES,
    Contribution,
    positive_share,
    ratio_of,
    survives,
)
from fedaudit.randomness import Seed
from fedaudit.results import Estimate
from fedaudit.stats import intervals
from fedaudit.stats.roc import plain_auc

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership


SPLITS = 4
"""Random halvings of a client's candidates."""
TOSSES_AT_ONCE = 20
"""Sign tosses that are ranked together."""


def prediction(
    parts: list[Contribution], audit: TwoStageMembership, streams: Seed
) -> dict[str, Estimate]:
    """Rank correlation over (client, round) of J on members, and of TS-MIA, with the headline AUC.

    The risk uses one half of a client's candidates, the AUC the other. On the same records both
    would rise with the same lucky draw, even without a leak.
    """
    tables = crossed(parts, audit, streams)
    clients = sorted(tables)
    out: dict[str, Estimate] = {}
    for column, risk_name in enumerate(("J", "TS-MIA")):
        groups = [tables[c][..., [column, 2]] for c in clients]
        both = np.concatenate(groups) if groups else np.zeros((0, 0, 2))
        if len(clients) < 3 or any(len(np.unique(both[..., i])) < 3 for i in (0, 1)):
            continue
        name = correlation_name(risk_name)
        out[name] = _correlation(groups, audit.confidence, streams.generator(name))
    return out


def correlation_name(risk_name: str) -> str:
    return f"{RANK_CORRELATION} ({risk_name})"


def answer(estimates: Mapping[str, Estimate]) -> str:
    """Whether TS-MIA predicts the attack, in words, by the interval of its correlation."""
    asked = "does TS-MIA predict the attack, over clients and rounds?"
    found = estimates.get(correlation_name("TS-MIA"))
    if found is None:
        return (
            f"{asked} Not measurable: this needs at least three clients, and three different "
            "values of TS-MIA and of the AUC"
        )
    if found.low > 0:
        said = "Yes: the attack does better where TS-MIA is higher"
    elif found.high < 0:
        said = "No, the opposite: the attack does worse where TS-MIA is higher"
    else:
        said = "Not shown: the interval of their correlation covers 0"
    # a report explains "rank" as that of a matrix of sums, so the note avoids the word
    return (
        f"{asked} {said} (Spearman's correlation {found.value:.2f} [{found.low:.2f}, "
        f"{found.high:.2f}] at {100 * found.confidence:g} %)"
    )


def crossed(
    parts: list[Contribution], audit: TwoStageMembership, streams: Seed
) -> dict[int, Floats]:
    """Client -> (rounds, 2 SPLITS, 3): J and TS-MIA on one half of its candidates, AUC on the
    other.

    A client's halves are the same in all rounds, since a record's luck persists over rounds.
    """
    mine: dict[int, list[Contribution]] = {}
    for c in parts:
        if np.isfinite(ratio_of(c)) and np.isfinite(c.evidence).all():
            mine.setdefault(c.client, []).append(c)
    out = {}
    for client, own in mine.items():
        rng = streams.generator("halves of candidates", client)
        sides = [
            side for _ in range(SPLITS) for side in _halved(own[0].member, own[0].classes, rng)
        ]
        if sides:
            out[client] = np.array([[_risk_and_auc(c, *s, audit, rng) for s in sides] for c in own])
    return out


def _halved(
    member: Bools, classes: npt.NDArray[np.int64], rng: np.random.Generator
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Indices of both halves of the candidates, in both orders; empty with fewer than two pairs.

    Pairs of a member and a non-member of its class stay together, so that labels in one half say
    nothing about labels in the other.
    """
    pairs = []
    for kind in np.unique(classes):
        inside = rng.permutation(np.flatnonzero(member & (classes == kind)))
        outside = rng.permutation(np.flatnonzero(~member & (classes == kind)))
        pairs += list(zip(inside, outside, strict=False))  # unpaired records are left out
    if len(pairs) < 2:
        return []
    mixed = rng.permutation(np.array(pairs))
    one, other = mixed[: len(mixed) // 2].ravel(), mixed[len(mixed) // 2 :].ravel()
    return [(one, other), (other, one)]


def _risk_and_auc(
    c: Contribution,
    one: npt.NDArray[np.int64],
    other: npt.NDArray[np.int64],
    audit: TwoStageMembership,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """J and TS-MIA of one half, AUC of the other."""
    delta = c.delta[one][c.member[one]]
    risk_of = survives(c) * positive_share(delta, audit.sample, rng)
    j = float(theory.phi(delta).mean())
    return j, risk_of, plain_auc(c.evidence[other], c.member[other])


def _correlation(groups: list[Floats], confidence: float, rng: np.random.Generator) -> Estimate:
    """Spearman's correlation of two columns of clients (rounds, halvings, 2), mean over halvings.

    The interval is the wider of two. The first resamples clients: far too narrow for few clients.
    The second is the spread when a coin toss per client sets the sign of the second column's
    distance from its mean, as if the first column said nothing about it.
    """
    from scipy.special import ndtri

    alpha = intervals.check_confidence(confidence)
    count, halvings = len(groups), groups[0].shape[1]

    def of(chosen: npt.NDArray[np.int64]) -> float:
        both = np.concatenate([groups[i] for i in chosen])
        ranks = _column_ranks(np.concatenate([both[..., 0], both[..., 1]], axis=1))
        return float(_products(ranks[:, :halvings], ranks[:, halvings:]).mean())

    value = of(np.arange(count))
    drawn = [of(rng.integers(0, count, count)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2])
    both = np.concatenate(groups)
    client = np.repeat(np.arange(count), [len(g) for g in groups])
    first, apart = _column_ranks(both[..., 0]), both[..., 1] - both[..., 1].mean()
    tossed = []
    for _ in range(RESAMPLES // TOSSES_AT_ONCE):
        signs = rng.choice([-1.0, 1.0], (count, TOSSES_AT_ONCE))[client]
        ranks = _column_ranks((apart[:, None] * signs[:, :, None]).reshape(len(both), -1))
        products = _products(np.tile(first, TOSSES_AT_ONCE), ranks)
        tossed += [products.reshape(TOSSES_AT_ONCE, halvings).mean(axis=1)]
    reach = float(ndtri(1 - alpha / 2)) * math.sqrt(np.square(tossed).mean())
    return Estimate(
        value=value,
        low=max(-1.0, min(float(low), value - reach)),
        high=min(1.0, max(float(high), value + reach)),
        n=count,
        confidence=confidence,
        baseline=0.0,
        method="Spearman on disjoint halves of a client's candidates; the wider of a bootstrap "
        "over clients and of signs tossed per client",
    )


def _column_ranks(values: Floats) -> Floats:
    """Ranks within every column of (n, m), centred and of length one; zero if all are equal."""
    ranks = _midranks_of_columns(values)
    ranks -= ranks.mean(axis=0)
    size = np.linalg.norm(ranks, axis=0)
    return np.asarray(ranks / np.where(size > 0, size, 1.0))


def _midranks_of_columns(values: Floats) -> Floats:
    """`roc.midranks` of all columns (n, m) at once: resampling needs thousands."""
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    at = np.arange(1.0, len(values) + 1)[:, None]
    fresh = np.ones(values.shape, bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    # tied values get the mean of their first and last rank
    first = np.maximum.accumulate(np.where(fresh, at, 0.0), axis=0)
    ends = np.ones(values.shape, bool)
    ends[:-1] = fresh[1:]
    last = np.minimum.accumulate(np.where(ends, at, np.inf)[::-1], axis=0)[::-1]
    out = np.empty(values.shape)
    np.put_along_axis(out, order, (first + last) / 2, axis=0)
    return out


def _products(first: Floats, second: Floats) -> Floats:
    """Correlations (m,), column by column, of ranks (n, m) from `_column_ranks`."""
    return np.asarray((first * second).sum(axis=0))
