"""Both adversaries as players: planted weights, scores of answers, thresholds.

A score is greater for members: above `cut` the adversary says that the client holds the target.
Scores do not depend on the cut, so one set of games gives the whole ROC curve. Every cut is a tau
or a gamma that the server could have planted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices, Rows
from fedaudit.audits.active_membership import attention, fc, games, theory
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.audits.active_membership.patterns import Embedding
from fedaudit.errors import UsageError

if TYPE_CHECKING:
    from fedaudit.tasks.classifier import Classifier
    from fedaudit.tasks.task import Task

Threshold = Literal["tuned", "theory", "published"]

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Values of beta to try, in units of one over the median squared norm of a pattern."""
PATTERN_BYTES = 1 << 26
"""Memory for patterns at one time."""


class Adversary(Protocol):
    """A player of the game on a known universe of records."""

    @property
    def answer_tensor(self) -> str: ...

    @property
    def universe(self) -> Universe: ...

    @property
    def cut(self) -> float: ...

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        """Scores (G,) of games in closed form; `rng` draws the clients' noise."""
        ...

    def answers(self, shown: Floats, target: Indices) -> Floats:
        """Scores (G,) of the records (G, n, r) that clients train on, for targets (G,)."""
        ...

    def task(self, *, classes: int, detectors: int = 1) -> Task: ...

    def rows(
        self,
        target: Indices,
        *,
        classes: int,
        detectors: int = 1,
        armed: npt.ArrayLike | None = None,
        gain: float = 1.0,
    ) -> Rows:
        """Planted models (K, w) for targets (K,)."""
        ...

    def rate(self, records: int, classes: int) -> float:
        """The learning rate that the server prescribes."""
        ...


# -- fully connected ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FullyConnected:
    """Says yes if a protected record lies closer than `tau` to the target."""

    answer_tensor: ClassVar[str] = fc.ANSWER_TENSOR

    universe: Universe
    tau: float

    @classmethod
    def prepare(
        cls,
        universe: Universe,
        records: int,
        rng: np.random.Generator,
        *,
        threshold: Threshold = "tuned",
        simulated: int = 1000,
    ) -> FullyConnected:
        """Choose tau: Delta ("theory"), or from the server's own games on the known distribution:
        halfway between mean distances ("published"), or the best cut ("tuned")."""
        if threshold == "theory" or not universe.channel.protects:
            return cls(universe=universe, tau=universe.snap(universe.radius))
        played = games.challenge(len(universe), records, simulated, rng)
        closest = games.distances(universe, played, rng)
        if threshold == "published":
            tau = games.midpoint(closest, played.member)
        else:
            tau = -games.best_cut(-closest, played.member)
        # a ball of radius Delta holds no other record: a smaller one only misses members
        return cls(universe=universe, tau=universe.snap(max(tau, universe.radius)))

    @property
    def cut(self) -> float:
        return -self.tau

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        return -games.distances(self.universe, played, rng)

    def answers(self, shown: Floats, target: Indices) -> Floats:
        apart = np.abs(shown - self.universe.values[target][:, None]).sum(axis=2)
        return np.asarray(-apart.min(axis=1))

    def task(self, *, classes: int, detectors: int = 1) -> Classifier:
        return fc.task(self.universe.features, detectors=detectors, classes=classes)

    def rows(
        self,
        target: Indices,
        *,
        classes: int,
        detectors: int = 1,
        armed: npt.ArrayLike | None = None,
        gain: float = 1.0,
    ) -> Rows:
        return fc.weights(
            self.universe.values[target],
            self.tau,
            detectors=detectors,
            armed=armed,
            classes=classes,
            gain=gain,
            scale=fc.scale_for(self.tau),
        )

    def rate(self, records: int, classes: int) -> float:
        return fc.learning_rate(records, classes)


# -- attention ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionAdversary:
    """Says yes if two heads, one blind to the target pattern, differ by more than `gamma`.

    `pattern` (N,): the index of each record's target pattern, which no other record has. `other`
    (N, d): the direction that heads 2 and 4 leave out if the record is the target. `sampled`: the
    clean and the protected patterns behind Theorem 3's beta and gamma; `measured`: their extremes,
    with a margin.
    """

    answer_tensor: ClassVar[str] = attention.ANSWER_TENSOR

    universe: Universe
    embedding: Embedding
    pattern: Indices
    other: Floats = field(repr=False)
    beta: float
    gamma: float
    sampled: tuple[Floats, Floats] | None = field(default=None, repr=False, compare=False)
    measured: attention.PatternExtremes | None = None

    @classmethod
    def prepare(
        cls,
        universe: Universe,
        embeddings: Embedding | Sequence[Embedding],
        records: int,
        rng: np.random.Generator,
        *,
        threshold: Threshold = "tuned",
        beta: float | None = None,
        betas: Sequence[float] = BETAS,
        simulated: int = 200,
        left_out: Literal["spare", "random"] = "spare",
    ) -> AttentionAdversary:
        """Choose beta, gamma and, among several embeddings of one cut, the best one.

        "theory" takes beta and gamma = 2 Delta-bar from Theorem 3. The other thresholds play games
        of the server's own: gamma is where a logistic fit is undecided ("published") or the best
        cut ("tuned"); beta is given, or the one of `betas` that separates best, in units of one
        over the median squared norm of a pattern. `left_out`: the direction that heads 2 and 4 do
        not see, either one that the data hardly use ("spare") or a random one per target
        ("random", as published).
        """
        offered = [embeddings] if isinstance(embeddings, Embedding) else list(embeddings)
        embedding = offered[0]
        universe, pattern = with_own_patterns(universe, embedding, rng)
        theory.check_game(records, len(universe))
        other = rng.normal(size=(len(universe), embedding.dimension))
        if left_out == "spare":
            other = _spare_directions(universe, embedding)
        start = cls(
            universe=universe,
            embedding=embedding,
            pattern=pattern,
            other=other,
            beta=1.0,
            gamma=0.0,
        )
        if threshold == "theory":
            return start._with_theorem3(beta, rng)
        played = games.challenge(len(universe), records, simulated, rng)
        if beta is None or len(offered) > 1:
            variants = []
            for one in offered:
                directions = _spare_directions(universe, one) if left_out == "spare" else other
                each = replace(start, embedding=one, other=directions)
                scaled = [b / each._unit() for b in betas] if beta is None else [beta]
                variants += [replace(each, beta=b) for b in scaled]
            tuned = _best_of(variants, played, rng)
            played = games.challenge(len(universe), records, simulated, rng)
        else:
            tuned = replace(start, beta=beta)
        scored = tuned.scores(played, rng)
        if threshold == "published":
            gamma = logistic_cut(scored, played.member)
        else:
            gamma = games.best_cut(scored, played.member)
        return replace(tuned, gamma=max(gamma, 0.0))

    def _with_theorem3(self, beta: float | None, rng: np.random.Generator) -> AttentionAdversary:
        """The same adversary with beta and gamma from Theorem 3; a given beta is only checked."""
        clean, shown = self.sample(rng, 4 * PATTERN_BYTES // 64)
        m = attention.pattern_extremes(clean, shown).with_margin()
        if beta is None:
            theory.check_beta(np.inf, m.separation, m.patterns, m.bound)
            found = theory.smallest_beta(m.separation, m.patterns, m.bound)
            beta = max(float(found or 0.0), 1e-9) * (1 + 1e-6)
        theory.check_beta(beta, m.separation, m.patterns, m.bound)
        error = theory.retrieval_error(beta, m.separation, m.patterns, m.bound)
        # keep the sample: the floor is checked on the same draws
        return replace(self, beta=beta, gamma=2.0 * error, sampled=(clean, shown), measured=m)

    def _unit(self) -> float:
        """The median squared norm of a pattern."""
        patterns = self.embedding(self.universe.values[:200])
        return float(np.median((patterns**2).sum(axis=-1)))

    @property
    def cut(self) -> float:
        return self.gamma

    def sample(self, rng: np.random.Generator, numbers: int) -> tuple[Floats, Floats]:
        """Clean and protected patterns (n, N, d) of known records, about `numbers` in all."""
        each = self.embedding.patterns * self.embedding.dimension
        some = rng.permutation(len(self.universe))[: max(2, numbers // each)]
        shown = self.universe.perturbed(some, rng)
        return self.embedding(self.universe.values[some]), self.embedding(shown)

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        n = played.data.shape[1]
        each = 8 * n * self.embedding.patterns * self.embedding.dimension
        step = max(1, PATTERN_BYTES // each)
        out = np.empty(len(played))
        for low in range(0, len(played), step):
            part = played.part(slice(low, low + step))
            shown = self.universe.perturbed(part.data.ravel(), rng).reshape(*part.data.shape, -1)
            out[low : low + step] = self.answers(shown, part.target)
        return out

    def answers(self, shown: Floats, target: Indices) -> Floats:
        g, n, r = shown.shape
        patterns = self.embedding(shown.reshape(-1, r)).reshape(
            g, n, self.embedding.patterns, self.embedding.dimension
        )
        apart = attention.differences(
            patterns.astype(np.float32), self.targets(target), self.other[target], self.beta
        )
        return np.asarray(apart.max(axis=1))

    def targets(self, target: Indices) -> Floats:
        """Target patterns (K, d) of records (K,)."""
        every = self.embedding(self.universe.values[target])
        return np.asarray(every[np.arange(len(target)), self.pattern[target]])

    def task(self, *, classes: int, detectors: int = 1) -> Classifier:
        if detectors != 1:
            raise UsageError(
                "the attention adversary has one detector",
                expected="detectors = 1",
                got=str(detectors),
                remedy='use adversary = "fc" to find out which client holds the target',
            )
        return attention.task(self.embedding, classes=classes)

    def rows(
        self,
        target: Indices,
        *,
        classes: int,
        detectors: int = 1,
        armed: npt.ArrayLike | None = None,
        gain: float = 1.0,
    ) -> Rows:
        return np.stack(
            [
                attention.weights(
                    one,
                    self.other[number],
                    beta=self.beta,
                    gamma=self.gamma,
                    classes=classes,
                    rng=np.random.default_rng(int(number)),  # any basis gives the same projection
                )
                for one, number in zip(self.targets(target), target, strict=True)
            ]
        )

    def rate(self, records: int, classes: int) -> float:
        """1: most weights of W_O are 0, so no step is lost to rounding."""
        return 1.0


def own_patterns(cut: Floats, *, by_place: bool) -> list[list[int]]:
    """For every record of (N, patterns, p), its patterns that occur only once in all records.

    `by_place`: equal patches in different places count as different.
    """
    flat = np.ascontiguousarray(cut)
    keys = [[(j if by_place else 0, one.tobytes()) for j, one in enumerate(row)] for row in flat]
    seen = Counter(key for own in keys for key in own)
    return [[j for j, key in enumerate(own) if seen[key] == 1] for own in keys]


def with_own_patterns(
    universe: Universe, embedding: Embedding, rng: np.random.Generator
) -> tuple[Universe, Indices]:
    """The records that have a unique pattern, and one such pattern of each.

    A client's data then contain the target pattern if and only if they contain its record.
    """
    if embedding.features > universe.features:
        raise UsageError(
            "the embedding does not fit the records",
            expected=f"records of at least {embedding.features} features",
            got=str(universe.features),
            remedy="cut the patches of records of this size",
        )
    free = own_patterns(universe.values[:, embedding.cut], by_place=embedding.tells_places_apart)
    blank = np.linalg.norm(embedding(universe.values), axis=2) <= 0  # no direction
    usable = [[j for j in own if not blank[i, j]] for i, own in enumerate(free)]
    rows = np.array([i for i, own in enumerate(usable) if own], dtype=np.int64)
    chosen = [usable[i][int(rng.integers(0, len(usable[i])))] for i in rows]
    return universe.restricted(rows), np.array(chosen)


def logistic_cut(scores: Floats, member: Bools) -> float:
    """The score at which a logistic fit is undecided. [ActiveMembership] Appendix G.3"""
    from sklearn.linear_model import LogisticRegression

    scale = float(scores.std()) or 1.0
    fit = LogisticRegression().fit((scores / scale)[:, None], member)
    slope = float(fit.coef_[0, 0])
    if slope <= 0:
        return float(scores.max())  # scores carry no information: always say no
    return -float(fit.intercept_[0]) / slope * scale


def _spare_directions(universe: Universe, embedding: Embedding) -> Floats:
    """For every record (N, d) the same direction, the one that the data use least."""
    direction = attention.least_used_direction(embedding(universe.values))
    return np.broadcast_to(direction, (len(universe), embedding.dimension))


def _best_of(
    variants: Sequence[AttentionAdversary], played: Challenge, rng: np.random.Generator
) -> AttentionAdversary:
    """The variant with the largest advantage on the same games under the same noise."""
    state = rng.bit_generator.state
    gained = []
    for one in variants:
        rng.bit_generator.state = state
        scored = one.scores(played, rng)
        cut = games.best_cut(scored, played.member)
        gained.append(_advantage(scored > cut, played.member))
    return variants[int(np.argmax(gained))]


def _advantage(called: Bools, member: Bools) -> float:
    return float(called[member].mean() - called[~member].mean())
