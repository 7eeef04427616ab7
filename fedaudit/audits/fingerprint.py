"""Who sent this anonymous update?

Question: a shuffler removes the names from uploads. Can the server link the updates of one client
across rounds by their content alone?
Vantage: SERVER behind a shuffler: anonymous rows of every round, and the model it sent out.
Paper: [Fingerprint] Section 3.2, Eqs. (10, 11); scores of Section 4.1.
Differs: rows are permuted before linking, because assignment solvers break ties in file order and
degenerate input would then score 1.0. Chance is a linker that deals one label per row and round
(K=20, T=10: purity 0.217), not independent uniform labels (0.206). Linkage accuracy, intervals and
per-client figures are ours.
Shapes: T rounds of rows (K_t, d); labels (K_t,) per round, equal labels meaning "same client".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.audits.audit import Knowledge
from fedaudit.errors import NotApplicable, TraceError
from fedaudit.layout import Layout
from fedaudit.results import AuditResult, Estimate
from fedaudit.trace import ANONYMOUS, Truth, View

Rows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# -- theory ---------------------------------------------------------------------------------------


def chance_of_a_link(rows_in_next_round: int) -> float:
    """Probability that a linker which knows nothing matches a row with its successor."""
    return 1.0 / rows_in_next_round


# -- attack ---------------------------------------------------------------------------------------


def unit_norm(rows: Rows) -> Rows:
    """Rows scaled to length 1, (K, d); a zero row stays zero and resembles nothing."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def distances(before: Rows, after: Rows) -> npt.NDArray[np.float32]:
    """D_ij = 1 - Sim(theta_i^t, theta_j^{t+1}) of unit rows, [Fingerprint] Eq. (11).

    (K_t, d) and (K_{t+1}, d) to (K_t, K_{t+1}).
    """
    return 1.0 - before @ after.T


def match(cost: npt.NDArray[np.floating]) -> tuple[Labels, Labels]:
    """The assignment of least total cost: [Fingerprint] Eq. (10), by the Hungarian method."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return rows.astype(np.int64), columns.astype(np.int64)


def greedy(rounds: Sequence[Rows], rng: np.random.Generator) -> list[Labels]:
    """Step-wise greedy match, [Fingerprint] Section 3.2.4: neighbours matched, matches chained.

    `rounds`: unit rows of every round. Holds two rounds at a time. A row without a partner in the
    round before gets a label of its own.
    """
    labels: list[Labels] = []
    fresh = 0
    previous: Rows | None = None
    carried = np.empty(0, dtype=np.int64)
    for rows in rounds:
        order = rng.permutation(len(rows))  # ties must not fall in file order
        shuffled = rows[order]
        own = np.full(len(rows), -1, dtype=np.int64)
        if previous is not None:
            before, after = match(distances(previous, shuffled))
            own[order[after]] = carried[before]
        new = np.flatnonzero(own < 0)
        own[new] = fresh + rng.permutation(len(new))
        fresh += len(new)
        labels.append(own)
        previous, carried = shuffled, own[order]
    return labels


METHODS = {"greedy": greedy}


# -- audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """The attack's answer: for every round, the message of each row and the label it was given."""

    rounds: tuple[int, ...]
    messages: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    tensors: tuple[str, ...]
    vantage: str
    trace_sha256: str


def default_features(layout: Layout) -> tuple[str, ...]:
    """Feed-forward weights of the first block of a transformer; otherwise all weight matrices."""
    for prefix in ("blocks.0.mlp.", "h.0.mlp.", "transformer.h.0.mlp."):
        names = [n for n in layout.names if n.startswith(prefix) and n.endswith("weight")]
        if names:
            return tuple(names)
    matrices = [e.name for e in layout.entries if len(e.shape) >= 2 and e.role == "parameter"]
    return tuple(matrices or layout.names)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Link anonymous updates across rounds by their content."""

    name: ClassVar[str] = "fingerprint"
    question: ClassVar[str] = "Can the server re-link shuffled updates to the same client?"
    source: ClassVar[str] = "[Fingerprint] Section 3.2.4, greedy match"
    vantage: str = "server"
    features: tuple[str, ...] = ()
    method: Literal["greedy"] = "greedy"
    confidence: float = 0.95

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Linkage:
        patterns = self.features or default_features(view.layout)
        tensors = tuple(e.name for e in view.layout.select(patterns))
        if len(view.rounds) < 2:
            raise NotApplicable(
                "linking needs two rounds",
                expected="at least 2 recorded rounds",
                got=str(len(view.rounds)),
                remedy="run or record more rounds",
            )
        messages: list[tuple[int, ...]] = []

        def rows_of_rounds() -> Any:
            for number in view.rounds:
                updates = view.updates(number, tensors)
                if any(s != ANONYMOUS for s in updates.senders):
                    raise NotApplicable(
                        "senders are already known from this vantage",
                        expected="anonymous uploads",
                        got=f"named senders in round {number}",
                        remedy="put a shuffler before the server: [protections.shuffle]",
                    )
                bad = ~np.isfinite(updates.rows).all(axis=1)
                if bad.any():
                    raise TraceError(
                        f"round {number} holds updates that are not finite",
                        expected="finite numbers",
                        got=f"NaN or infinity in row {int(np.flatnonzero(bad)[0])}",
                        remedy="lower the learning rate, or leave the round out",
                    )
                if len(updates.rows) < 2:
                    raise NotApplicable(
                        "there is nothing to link",
                        expected="at least 2 clients in a round",
                        got=f"{len(updates.rows)} in round {number}",
                        remedy="audit a federation with more clients",
                    )
                messages.append(tuple(int(i) for i in updates.messages))
                yield unit_norm(updates.rows)

        labels = METHODS[self.method](rows_of_rounds(), rng)
        return Linkage(
            rounds=tuple(view.rounds),
            messages=tuple(messages),
            labels=tuple(tuple(int(v) for v in own) for own in labels),
            tensors=tensors,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def score(self, guess: Linkage, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared: dict[str, Any] = {
            "audit": self.name,
            "question": self.question,
            "vantage": guess.vantage,
            "settings": {**asdict(self), "features": list(guess.tensors)},
            "source": self.source,
            "trace_sha256": guess.trace_sha256,
        }
        if truth is None:
            return AuditResult(
                **shared, not_applicable="no truth: the attack guessed, and nothing was scored"
            )
        from fedaudit.stats import clustering, intervals

        senders = [
            [truth.senders(number)[i] for i in own]
            for number, own in zip(guess.rounds, guess.messages, strict=True)
        ]
        links = correct_links(senders, guess.labels)
        names = sorted(links)
        hits = np.array([sum(links[n]) for n in names])
        tries = np.array([len(links[n]) for n in names])
        chance = float(
            np.average(
                [chance_of_a_link(len(s)) for s in senders[1:]],
                weights=[len(set(a) & set(b)) for a, b in itertools.pairwise(senders)],
            )
        )
        accuracy = intervals.clustered_share(
            hits, tries, confidence=self.confidence, baseline=chance
        )
        flat_truth = [s for own in senders for s in own]
        flat_labels = [v for own in guess.labels for v in own]
        flat_rounds = [t for t, own in zip(guess.rounds, senders, strict=True) for _ in own]
        estimates = {"linkage_accuracy": accuracy}
        clusters = len(set(flat_labels))
        random = clustering.chance(
            flat_truth, flat_rounds, clusters=clusters, rng=rng, confidence=self.confidence
        )
        values = clustering.scores(flat_truth, flat_labels)
        ranges = jackknife_scores(flat_truth, flat_labels, self.confidence)
        for name, value in values.items():
            low, high = ranges[name]
            estimates[name] = Estimate(
                value=value,
                low=low,
                high=high,
                n=len(names),
                confidence=self.confidence,
                baseline=random[name].value,
                method="jackknife over clients",
            )
        per_client: dict[str, dict[str, float | int | str | None]] = {}
        for name, h, n in zip(names, hits, tries, strict=True):
            own = intervals.wilson(int(h), int(n), confidence=self.confidence)
            per_client[name] = {
                "links": int(n),
                "correct": int(h),
                "share": own.value,
                "low": own.low,
                "high": own.high,
                "longest chain": longest_run(links[name]),
            }
        by_round = [
            (number, *_round_share(a, b, la, lb))
            for number, a, b, la, lb in zip(
                guess.rounds[1:],
                senders,
                senders[1:],
                guess.labels,
                guess.labels[1:],
                strict=False,
            )
        ]
        return AuditResult(
            **shared,
            headline="linkage_accuracy",
            estimates=estimates,
            per_client=per_client,
            curves={
                "links by round": {
                    "round": tuple(r for r, _, _ in by_round),
                    "correct": tuple(c for _, c, _ in by_round),
                    "possible": tuple(n for _, _, n in by_round),
                }
            },
            detectable=intervals.smallest_share_above(
                chance, int(tries.sum()), confidence=self.confidence
            ),
        )


def correct_links(
    senders: Sequence[Sequence[str]], labels: Sequence[Sequence[int]]
) -> dict[str, list[bool]]:
    """For every client present in two neighbouring rounds: were its two rows given one label?"""
    out: dict[str, list[bool]] = {}
    for t in range(len(senders) - 1):
        now = dict(zip(senders[t], labels[t], strict=True))
        then = dict(zip(senders[t + 1], labels[t + 1], strict=True))
        for name in now.keys() & then.keys():
            out.setdefault(name, []).append(now[name] == then[name])
    return out


def longest_run(hits: Sequence[bool]) -> int:
    """Longest row of correct links in time order."""
    best = run = 0
    for h in hits:
        run = run + 1 if h else 0
        best = max(best, run)
    return best


def _round_share(
    a: Sequence[str], b: Sequence[str], la: Sequence[int], lb: Sequence[int]
) -> tuple[int, int]:
    links = correct_links([a, b], [la, lb])
    return sum(h[0] for h in links.values()), len(links)


def jackknife_scores(
    truth: Sequence[str], labels: Sequence[int], confidence: float
) -> dict[str, tuple[float, float]]:
    """Interval of each clustering score, leaving out one client at a time.

    A client is the independent unit: its rows stand or fall together.
    """
    from scipy.special import ndtri

    from fedaudit.stats import clustering

    table = clustering.contingency(truth, labels)  # (clients, labels)
    k = len(table)
    z = float(ndtri(0.5 + confidence / 2))
    without = np.stack([np.delete(table, i, axis=0) for i in range(k)])
    out = {}
    for name, score in clustering.SCORES.items():
        value, left = float(score(table)), score(without)
        error = float(np.sqrt((k - 1) / k * ((left - left.mean()) ** 2).sum()))
        low, high = value - z * error, value + z * error
        floor = -1.0 if name == "adjusted_rand" else 0.0
        ceiling = float(np.log(k)) if name == "mutual_information" else 1.0
        out[name] = (min(value, max(floor, low)), max(value, min(ceiling, high)))
    return out
