"""The null of linking: in every round the rows belong to the senders in random order.

The linker's labels are kept and permuted within their round, for all linkers in the same way. That
respects what a linker knows (one row per client and round, or not) and how many labels it uses, so
one set of permutations gives the chance level of every score and one test over all linkers.

Shapes: N rows of T rounds, m linkers, L true links, b permutations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedaudit.arrays import Floats, Indices
from fedaudit.stats import clustering
from fedaudit.stats.combine import holm, two_halves
from fedaudit.stats.max_t import MaxT, from_values

Labelled = Sequence[Sequence[int]]
"""The label of every row, round by round."""

MOST_DRAWS, FEWEST_DRAWS = 9999, 999
WORK = 20_000_000
"""Labels to permute at most, where that leaves `FEWEST_DRAWS`."""
BLOCK = 1 << 20

LINKS = "linkage_accuracy"
TESTED = (LINKS, "adjusted_rand")
"""Measures that the test reads of every linker. The others are functions of the same tables."""


@dataclass(frozen=True)
class LinkDesign:
    """Rows of all rounds, one after the other.

    `sender` (N,) codes; `rounds` (N,); a true link is a row `before` and the same sender's next row
    `after`, both (L,).
    """

    sender: Indices
    rounds: Indices
    before: Indices
    after: Indices

    @classmethod
    def of(cls, senders: Sequence[Sequence[str]]) -> LinkDesign:
        sizes = [len(own) for own in senders]
        rounds = np.repeat(np.arange(len(sizes)), sizes)
        _, codes = np.unique([s for own in senders for s in own], return_inverse=True)
        last: dict[int, int] = {}
        pairs = []
        for row, code in enumerate(codes.tolist()):
            if code in last:
                pairs.append((last[code], row))
            last[code] = row
        links = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(codes, rounds, links[:, 0], links[:, 1])

    def permutations(self, draws: int, rng: np.random.Generator) -> Indices:
        """Rows (draws, N), permuted within their round."""
        out = np.tile(np.arange(len(self.rounds)), (draws, 1))
        for t in range(int(self.rounds[-1]) + 1):
            own = np.flatnonzero(self.rounds == t)
            out[:, own] = rng.permuted(out[:, own], axis=1)
        return out


@dataclass(frozen=True)
class Joined:
    """What a linker joins: `label` (N,) codes, and `source` (N,) the round whose row with this
    label each row is joined to; -1 for none."""

    label: Indices
    source: Indices

    @classmethod
    def of(cls, labels: Labelled) -> Joined:
        seen: dict[int, tuple[int, bool]] = {}  # label -> its latest round, and whether only once
        source = []
        for t, given in enumerate(labels):
            times = Counter(given)
            for label in given:
                s, once = seen.get(label, (-1, False))
                source.append(s if once and times[label] == 1 else -1)
            seen |= {label: (t, many == 1) for label, many in times.items()}
        _, codes = np.unique([v for own in labels for v in own], return_inverse=True)
        return cls(codes, np.array(source, dtype=np.int64))

    def found(self, rows: Indices, design: LinkDesign) -> Floats:
        """Number of true links found (b,), if row i has the label of row `rows`[:, i] (b, N)."""
        label, source = self.label[rows], self.source[rows]
        a, b = design.before, design.after
        right = (label[:, a] == label[:, b]) & (source[:, b] == design.rounds[a])
        return np.asarray(right.sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class LinkTest:
    """One test over all linkers and clients.

    `chance`: linker -> measure -> mean over permutations. `p`: (linker, measure) -> p-value,
    adjusted for all readings. `strongest`: the linker with the smallest p-value of its links; of
    several, that with most links. `clients`: client -> its p-value with the strongest linker,
    adjusted for all clients and linkers. `least`: the fewest links of the strongest linker that
    would have been significant at `level`; infinite if no number would.
    """

    chance: Mapping[str, Mapping[str, float]]
    p: Mapping[tuple[str, str], float]
    strongest: str
    clients: Mapping[str, float]
    least: float
    level: float
    draws: int

    @property
    def decided(self) -> tuple[str, str]:
        """The reading with the strongest evidence; of several, links of the strongest linker."""
        return min(self.p, key=lambda r: (self.p[r], r != (self.strongest, LINKS)))


def link_test(
    senders: Sequence[Sequence[str]],
    labels: Mapping[str, Labelled],
    *,
    level: float,
    rng: np.random.Generator,
    draws: int | None = None,
) -> LinkTest:
    """Test all linkers at once, and every client with the strongest.

    Readings (max-T) and clients (Holm) are two halves of one family: Holm's correction over the
    two smallest p-values keeps the error rate of both together.
    """
    design = LinkDesign.of(senders)
    rows = len(design.rounds)
    draws = draws or int(np.clip(WORK // rows, FEWEST_DRAWS, MOST_DRAWS))
    joined = {name: Joined.of(given) for name, given in labels.items()}
    observed = {n: _readings(j, np.arange(rows)[None], design) for n, j in joined.items()}
    drawn: dict[str, list[dict[str, Floats]]] = {name: [] for name in joined}
    step = max(1, BLOCK // rows)
    for start in range(0, draws, step):
        some = design.permutations(min(step, draws - start), rng)
        for name, own in joined.items():
            drawn[name].append(_readings(own, some, design))
    values = {
        name: {m: np.concatenate([observed[name][m], *(d[m] for d in parts)]) for m in parts[0]}
        for name, parts in drawn.items()
    }
    readings = [(name, measure) for name in joined for measure in TESTED]
    test = from_values(
        [observed[n][m][0] for n, m in readings],
        np.stack([values[n][m] for n, m in readings], axis=1),
        exact=False,
    )
    strongest = min(
        joined,
        key=lambda n: (test.adjusted[readings.index((n, LINKS))], -observed[n][LINKS][0]),
    )
    # chosen of several by its links: each client had as many chances
    alone = {
        n: min(1.0, len(joined) * p) for n, p in client_p_values(senders, labels[strongest]).items()
    }
    one, two = two_halves(test.p, min(alone.values(), default=1.0) * max(1, len(alone)))
    names = list(alone)
    corrected = holm([alone[n] for n in names]) if names else np.ones(0)
    return LinkTest(
        chance={n: {m: float(v.mean()) for m, v in own.items()} for n, own in values.items()},
        p={r: min(1.0, float(p) * one) for r, p in zip(readings, test.adjusted, strict=True)},
        clients={n: min(1.0, float(p) * two) for n, p in zip(names, corrected, strict=True)},
        strongest=strongest,
        least=_least(test, readings.index((strongest, LINKS)), level),
        level=level,
        draws=draws,
    )


def _least(test: MaxT, reading: int, level: float) -> float:
    """Fewest links of a linker that would have been significant, all else at chance."""
    return float(np.ceil(test.critical(level / 2)[reading] - 1e-9))


def _readings(own: Joined, rows: Indices, design: LinkDesign) -> dict[str, Floats]:
    """Links found and the scores of the clusters, each (b,)."""
    out = {LINKS: own.found(rows, design)}
    out |= clustering.scores_of_labellings(design.sender, own.label[rows])
    return out


# -- single clients -------------------------------------------------------------------------------


def client_p_values(senders: Sequence[Sequence[str]], labels: Labelled) -> dict[str, float]:
    """Client -> exact probability that chance finds as many of its links; without Holm.

    A client's row is uniform in every round, and independent between rounds. Clients with the same
    rounds share the distribution.
    """
    where: dict[str, list[tuple[int, int]]] = {}
    for t, own in enumerate(senders):
        for row, sender in enumerate(own):
            where.setdefault(sender, []).append((t, row))
    cached: dict[tuple[int, ...], tuple[Floats, list[Indices]]] = {}
    out = {}
    for sender, rows in where.items():
        if len(rows) < 2:
            continue
        rounds = tuple(t for t, _ in rows)
        if rounds not in cached:
            sources = partner_rows(rounds, labels)
            cached[rounds] = upper_tail(rounds, labels, sources), sources
        tail, sources = cached[rounds]
        hits = sum(
            int(partner[row]) == before
            for partner, (_, before), (_, row) in zip(sources, rows, rows[1:], strict=False)
        )
        out[sender] = float(tail[hits])
    return out


def partner_rows(rounds: Sequence[int], labels: Labelled) -> list[Indices]:
    """For each neighbouring pair of these rounds: the row of the earlier one that each row of the
    later one is joined to; -1 for none."""
    joined = Joined.of(labels)
    ends = np.cumsum([0, *map(len, labels)])
    out = []
    for s, t in pairwise(rounds):
        at = {label: row for row, label in enumerate(labels[s])}
        source = joined.source[ends[t] : ends[t + 1]]
        out.append(
            np.array(
                [at[v] if source[r] == s else -1 for r, v in enumerate(labels[t])], dtype=np.int64
            )
        )
    return out


def upper_tail(rounds: Sequence[int], labels: Labelled, partners: Sequence[Indices]) -> Floats:
    """P(at least h links found) of a client in these rounds, h = 0, 1, ...: (links + 1,).

    State: the client's row in the latest round and its hits so far. The next row is uniform, and
    only the row joined to the present one adds a hit.
    """
    links = len(rounds) - 1
    state = np.zeros((len(labels[rounds[0]]), links + 1))
    state[:, 0] = 1.0 / len(state)
    for partner, t in zip(partners, rounds[1:], strict=True):
        total = state.sum(axis=0)
        new = np.tile(total, (len(labels[t]), 1))
        here = np.flatnonzero(partner >= 0)
        stays = state[partner[here]]
        new[here] -= stays
        new[here, 1:] += stays[:, :-1]
        state = new / len(new)
    return np.minimum(state.sum(axis=0)[::-1].cumsum()[::-1], 1.0)
