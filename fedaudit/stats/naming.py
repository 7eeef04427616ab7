"""Name the senders of anonymous rows: P(client | row) from evidence about clients, and a test.

Each round has K rows and the clients that were asked; every row is of one of them, no client has
two. A *fit* (K, P) says how well rows agree with what is known about P clients. Fits become
log-likelihood ratios whose strength is learnt without labels, and rows that were linked over rounds
share theirs. Whether the names are right is tested by permuting the senders within rounds: names
that have nothing to do with the senders are right equally often for each of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.stats.assignment import match
from fedaudit.stats.combine import holm, two_halves
from fedaudit.stats.evidence import gain
from fedaudit.stats.max_t import MaxT, from_values

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the evidence of linked rows that may count for a row."""
RIGHT = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999, 1.0)
"""Chances that a linked row is of the same client."""
PRICE = 2.0
"""Log-likelihood that a kind of evidence must gain to count with more than the least strength, and
links must gain to count at all."""
DRAWS, BLOCK = 9_999, 1 << 22


# -- evidence -------------------------------------------------------------------------------------


def fits(evidence: Floats, present: Bools) -> Floats:
    """Fit (K, P) of K rows to P clients from the evidence (K, P, n) for n records of each client.

    `present` (P, n): records that count. A client's own records together stand out under its own
    row. Each record counts in units of its spread over rows, shrunk halfway to the typical one: a
    spread over few rows is itself uncertain.
    """
    apart = in_spreads(evidence - evidence.mean(axis=0), deviation_of(evidence), present)
    total = np.where(present, apart, 0.0).sum(axis=2)
    return np.asarray(total / np.maximum(present.sum(axis=1), 1))


def in_spreads(apart: Floats, spread: Floats, present: Bools) -> Floats:
    """Distances in units of a spread, shrunk halfway to the typical one: a spread over a few
    clients is itself uncertain. Unscaled where it is 0 (a model that did not move)."""
    usable = present & np.isfinite(spread)
    typical = float(np.median(spread[usable])) if usable.any() else 0.0
    scale = np.sqrt(0.5 * spread**2 + 0.5 * typical**2)
    return np.where(scale > 0, apart / np.where(scale > 0, scale, 1.0), apart)


def deviation_of(rows: Floats) -> Floats:
    """Deviation over the first axis; zero for a single row."""
    return rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1:])


def own_row(evidence: Floats, rows: Indices, present: Bools) -> Floats:
    """Evidence for a record under its client's row `rows` (P,), against all other rows: (P, n).

    `evidence` (K, P, n); NaN for a client without a row (-1).
    """
    apart, spread = np.full(evidence.shape[1:], np.nan), np.full(evidence.shape[1:], np.nan)
    for client in np.flatnonzero(rows >= 0):
        rest = np.delete(evidence[:, client], rows[client], axis=0)
        apart[client] = evidence[rows[client], client] - rest.mean(axis=0)
        spread[client] = deviation_of(rest)
    return in_spreads(apart, spread, present)


def best_row(evidence: Floats, present: Bools) -> Floats:
    """Evidence for a record under its best row, against the median row: (P, n)."""
    apart = evidence.max(axis=0) - np.median(evidence, axis=0)
    return in_spreads(apart, deviation_of(evidence), present)


def assign(fit: Floats) -> Indices:
    """The row of each client (P,) in the best one-to-one assignment of rows (K, P), -1 for none."""
    rows, clients = match(-fit)
    out = np.full(fit.shape[1], -1, dtype=np.int64)
    out[clients] = rows
    return out


def weigh_fits(kinds: Sequence[Sequence[Floats]]) -> list[Floats]:
    """Log-likelihood ratios [(K_t, P_t)] from several kinds of fits, each [(K_t, P_t)].

    For a client's own row a fit is normal and larger by `strength` deviations. Kinds join by what
    they gain.
    """
    scaled = [_in_deviations(fit) for fit in kinds]
    out = [np.zeros_like(block) for block in scaled[0]] if scaled else []
    left, so_far = list(range(len(scaled))), 0.0
    while left:
        tried = [(*_best_strength(scaled[i], out), i) for i in left]
        total, strength, which = max(tried)
        if total < so_far + PRICE:
            strength = STRENGTHS[0] if so_far == 0.0 else 0.0
        out = [a + _ratio(b, strength) for a, b in zip(out, scaled[which], strict=True)]
        so_far = max(total, so_far)
        left.remove(which)
        if not strength:
            break
    return out


def _in_deviations(fit: Sequence[Floats]) -> list[Floats]:
    """Fits without the mean of each client over a round's rows, in deviations of one fit.

    Own rows lie on the high side, so the deviation is read off the low one. A mean over K rows
    leaves 1 - 1/K of the variance.
    """
    apart = [block - block.mean(axis=0) for block in fit]
    whole = [a / math.sqrt(1.0 - 1.0 / len(a)) for a in apart if len(a) > 1]
    if not whole:
        return [np.zeros_like(a) for a in apart]
    low, middle = np.quantile(np.concatenate([w.ravel() for w in whole]), [LOW, 0.5])
    spread = float(middle - low) / LOW_DEVIATIONS
    return [a / spread if spread > 0 else np.zeros_like(a) for a in apart]


LOW, LOW_DEVIATIONS = 0.1, 1.2816
"""A low quantile, and how many deviations it lies below the middle of a normal."""


def _ratio(scaled: Floats, strength: float) -> Floats:
    """ln P(fit | own row) / P(fit | another's), both without the mean over the rows."""
    return np.asarray(strength * scaled - strength**2 / 2 * (1.0 - 1.0 / len(scaled)))


def _best_strength(scaled: Sequence[Floats], base: Sequence[Floats]) -> tuple[float, float]:
    return max(
        (sum(gain(b + _ratio(s, k), b.shape[1]) for b, s in zip(base, scaled, strict=True)), k)
        for k in STRENGTHS
    )


# -- names ----------------------------------------------------------------------------------------


def posteriors(
    ratios: Sequence[Floats], clients: Sequence[Indices], groups: Sequence[Indices] | None
) -> tuple[list[Floats], float]:
    """P(client | row) of every round [(K_t, P_t)], and how far links are trusted.

    `ratios` [(K_t, P_t)] are for the clients `clients` [(P_t,)] that were asked; `groups` [(K_t,)]
    link rows over rounds. Other rows of a row's group predict its own evidence, if the link is
    right. The share of their evidence and the chance that links are right are those that predict
    best; links do not count unless that gains `PRICE`. So links that are wrong do little harm, and
    links alone name no client.
    """
    trust, priors = 0.0, [np.zeros_like(r) for r in ratios]
    if groups is not None and len(ratios) > 1:
        others = _of_others(ratios, clients, groups)
        plain = sum(_predicted(q, r) for q, r in zip(priors, ratios, strict=True))
        found = {
            (share, right): [_log_prior(share * o, right) for o in others]
            for share in SHARES
            for right in RIGHT
        }
        gained = {
            how: sum(_predicted(q, r) for q, r in zip(of, ratios, strict=True)) - plain
            for how, of in found.items()
        }
        best = max(gained, key=gained.__getitem__)
        if gained[best] >= PRICE:
            priors, trust = found[best], best[1]
    return [one_to_one(r + q) for r, q in zip(ratios, priors, strict=True)], trust


def _log_prior(others: Floats, right: float) -> Floats:
    """Log odds (K, P) of the clients from linked rows that are of one client with chance `right`.

    They are bounded unless links are certain: evidence of its own can contradict a wrong link.
    """
    log_odds = others - _log_sum(others)[:, None] + math.log(others.shape[1])
    if right == 1.0:
        return np.asarray(log_odds)
    return np.asarray(np.log(right * np.exp(log_odds) + 1.0 - right))


def _of_others(
    ratios: Sequence[Floats], clients: Sequence[Indices], groups: Sequence[Indices]
) -> list[Floats]:
    """Summed ratios of the other rows of each row's group."""
    many = 1 + max(int(c.max()) for c in clients)
    total = np.zeros((1 + max(int(g.max()) for g in groups), many))
    for ratio, asked, group in zip(ratios, clients, groups, strict=True):
        np.add.at(total, (group[:, None], asked[None, :]), ratio)
    return [
        total[group[:, None], asked[None, :]] - ratio
        for ratio, asked, group in zip(ratios, clients, groups, strict=True)
    ]


def _predicted(prior: Floats, ratio: Floats) -> float:
    """Log-likelihood of the rows' evidence if clients have these prior log odds."""
    both = _log_sum(prior + ratio) - _log_sum(prior)
    return float(both.sum())


def _log_sum(x: Floats) -> Floats:
    top = x.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(x - top).sum(axis=1)) + top[:, 0])


def one_to_one(ratio: Floats, steps: int = 50) -> Floats:
    """Probabilities (K, P) in proportion to exp(ratio) whose rows sum to 1, columns to K / P.

    Sinkhorn's iteration: close to the posterior over one-to-one assignments, and equal to it where
    that is certain or uniform.
    """
    rows, columns = np.zeros((len(ratio), 1)), np.zeros((1, ratio.shape[1]))
    most = math.log(len(ratio) / ratio.shape[1])
    for _ in range(steps):
        rows = -_log_sum(ratio + columns)[:, None]
        columns = most - _log_sum((ratio + rows).T)[None, :]
    rows = -_log_sum(ratio + columns)[:, None]
    return np.asarray(np.exp(ratio + rows + columns))


def names(posterior: Floats, rng: np.random.Generator) -> Indices:
    """The client of each row (K,) in the likeliest one-to-one assignment, -1 for none.

    Ties are broken at random: solvers break them in the order of their input, and recorded rows may
    lie in the order of the clients.
    """
    a, b = (rng.permutation(n) for n in posterior.shape)
    rows, clients = match(-np.log(np.maximum(posterior[np.ix_(a, b)], 1e-300)))
    out = np.full(len(posterior), -1, dtype=np.int64)
    out[a[rows]] = b[clients]
    return out


def anonymity_set(posterior: Floats) -> Floats:
    """Perplexity (K,) of each row's posterior: among so many clients the sender hides."""
    p = np.maximum(posterior, 1e-300)
    return np.asarray(np.maximum(1.0, np.exp(-(posterior * np.log(p)).sum(axis=1))))


# -- test -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class NamingTest:
    """One test over readings and clients.

    `p`: reading -> p-value, adjusted for all readings and clients. `clients`: client -> its
    p-value by the first reading, adjusted alike. `least`: the fewest right names of the first
    reading that would have been significant at `level`; infinite if no number would.
    """

    p: Mapping[str, float]
    clients: Mapping[str, float]
    least: float
    level: float
    draws: int

    @property
    def decided(self) -> str:
        return min(self.p, key=self.p.__getitem__)


def naming_test(
    senders: Sequence[Sequence[str]],
    named: Mapping[str, Sequence[Sequence[str]]],
    *,
    level: float,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> NamingTest:
    """Test names (reading -> round -> name of each row) against the true senders.

    Readings (max-T over permutations of the senders within rounds) and single clients (exactly) are
    two halves of one family (Holm).
    """
    readings = list(named)
    right = [
        np.array([[[g == s for s in own] for g in named[r][t]] for r in readings], dtype=np.int64)
        for t, own in enumerate(senders)
    ]  # round -> (readings, K, K): is the row's name that of sender j
    observed = sum(np.einsum("rkk->r", m) for m in right)
    step = max(1, BLOCK // max(1, sum(map(len, senders))))
    parts = [np.asarray(observed, dtype=np.float64)[None]]
    for start in range(0, draws, step):
        many = min(step, draws - start)
        total = np.zeros((many, len(readings)))
        for m in right:
            size = m.shape[1]
            order = rng.permuted(np.tile(np.arange(size), (many, 1)), axis=1)
            total += m[:, np.arange(size), order].sum(axis=2).T
        parts.append(total)
    test = from_values(parts[0][0], np.concatenate(parts), exact=False)
    alone = _client_p_values(senders, named[readings[0]])
    one, two = two_halves(test.p, min(alone.values(), default=1.0) * max(1, len(alone)))
    corrected = holm(list(alone.values())) if alone else np.ones(0)
    return NamingTest(
        p={r: min(1.0, float(p) * one) for r, p in zip(readings, test.adjusted, strict=True)},
        clients={n: min(1.0, float(p) * two) for n, p in zip(alone, corrected, strict=True)},
        least=_least(test, level),
        level=level,
        draws=draws,
    )


def _least(test: MaxT, level: float) -> float:
    """Fewest right names of the first reading that would be significant, all else at chance."""
    return float(np.ceil(test.critical(level / 2)[0] - 1e-9))


def _client_p_values(
    senders: Sequence[Sequence[str]], named: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Client -> exact chance that as many of its rows are named correctly; without Holm.

    A client's row is uniform among a round's rows, and independent between rounds.
    """
    chances: dict[str, list[float]] = {}
    hits: dict[str, int] = {}
    for own, given in zip(senders, named, strict=True):
        for sender, name in zip(own, given, strict=True):
            chances.setdefault(sender, [])
            hits[sender] = hits.get(sender, 0) + (sender == name)
            chances[sender].append(list(given).count(sender) / len(own))
    out = {}
    for sender, each in chances.items():
        density = np.ones(1)
        for p in each:
            density = np.convolve(density, [1.0 - p, p])
        out[sender] = min(1.0, float(density[hits[sender] :].sum()))
    return out
