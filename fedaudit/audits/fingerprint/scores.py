"""Scores of labels against senders: links, clusters and clients, with chance and intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedaudit.stats import clustering


@dataclass(frozen=True)
class Links:
    """True links, and whether the linker found them.

    A link is a client's row and the same client's next row. The linker joins a row to the latest
    earlier row with the same label. A label that occurs twice in a round joins nothing. A link is
    found if the linker joined exactly these two rows. `found`: client -> one truth value per link,
    in time order. `made` and `right`: by later round, the links that the linker made and those that
    were right. `chance` and `precision_chance`: the expected shares if every round assigned its
    rows to its senders at random and kept the labels. The same linker would score this without
    information.
    """

    found: dict[str, list[bool]]
    by_round: dict[int, list[bool]]
    made: dict[int, int]
    right: dict[int, int]
    chance: float
    precision_chance: float


def links(senders: Sequence[Sequence[str]], labels: Sequence[Sequence[int]]) -> Links:
    """Compare labels with senders, round by round."""
    last_round: dict[str, int] = {}  # sender -> the round of its last row
    last_label: dict[int, tuple[int, str | None]] = {}  # label -> (round, sender if only one)
    found: dict[str, list[bool]] = {}
    by_round: dict[int, list[bool]] = {}
    made: Counter[tuple[int, int]] = Counter()  # (round, later round) -> links made
    true: Counter[tuple[int, int]] = Counter()  # (round, later round) -> true links
    right: Counter[int] = Counter()
    for t, (own, given) in enumerate(zip(senders, labels, strict=True)):
        times = Counter(given)
        for sender, label in zip(own, given, strict=True):
            s, whom = last_label.get(label, (-1, None))
            joined = whom is not None and times[label] == 1
            if joined:
                made[s, t] += 1
                right[t] += whom == sender
            if sender in last_round:
                hit = joined and whom == sender and s == last_round[sender]
                found.setdefault(sender, []).append(hit)
                by_round.setdefault(t, []).append(hit)
                true[last_round[sender], t] += 1
        for sender, label in zip(own, given, strict=True):
            last_round[sender] = t
            last_label[label] = (t, sender if times[label] == 1 else None)
    # two given rows of rounds s and t are joined with probability made[s, t] / (K_s K_t); two
    # given senders that are both present are the ends of one made link with 1 / (K_s K_t)
    pairs = {(s, t): len(senders[s]) * len(senders[t]) for s, t in {*made, *true}}
    expected = sum(n * made[p] / pairs[p] for p, n in true.items())
    there = [set(own) for own in senders]
    both = {(s, t): len(there[s] & there[t]) for s, t in made}
    expected_right = sum(n * both[p] / pairs[p] for p, n in made.items())
    by_later: Counter[int] = Counter()
    for (_, t), n in made.items():
        by_later[t] += n
    return Links(
        found=found,
        by_round=by_round,
        made=dict(by_later),
        right={t: right[t] for t in by_later},
        chance=expected / max(1, sum(true.values())),
        precision_chance=expected_right / max(1, sum(made.values())),
    )


def longest_run(hits: Sequence[bool]) -> int:
    """Longest run of correct links in time order."""
    best = run = 0
    for h in hits:
        run = run + 1 if h else 0
        best = max(best, run)
    return best


def jackknife(
    truth: Sequence[str], labels: Sequence[int], confidence: float
) -> dict[str, tuple[float, float]]:
    """Interval of each clustering score, leaving out one client at a time.

    The client is the independent unit. If all clients are alike, the jackknife sees no spread. Then
    one client is added that is spread uniformly over the labels, so that no interval is a point;
    the Agresti-Coull interval adds pseudo-trials in the same way.
    """
    table = clustering.contingency(truth, labels).astype(np.float64)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    spread = np.full((1, table.shape[1]), table.sum(axis=1).mean() / table.shape[1])
    errors, wider = (_jackknife_errors(t) for t in (table, np.concatenate([table, spread])))
    out = {}
    for name, score in clustering.SCORES.items():
        value = float(score(table))
        error = errors[name]
        if error < 1e-9:
            error = wider[name]
        low, high = value - z * error, value + z * error
        floor = -1.0 if name == "adjusted_rand" else 0.0
        ceiling = float(np.log(len(table))) if name == "mutual_information" else 1.0
        out[name] = (min(value, max(floor, low)), max(value, min(ceiling, high)))
    return out


def _jackknife_errors(table: npt.NDArray[np.float64]) -> dict[str, float]:
    """Delete-one jackknife over the rows (clients) of a contingency table, by score."""
    m = len(table)
    return {
        name: float(np.sqrt((m - 1) / m * ((left - left.mean()) ** 2).sum()))
        for name, left in clustering.without_each_class(table).items()
    }
