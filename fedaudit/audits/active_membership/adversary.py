"""Both adversaries as players: what they plant, how they score an answer, where they cut.

A score is greater for members; the client is said to hold the target where it exceeds `cut`. Scores
do not depend on the cut, so that one set of games gives the whole ROC curve: every cut is a tau or
a gamma that could have been planted.
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

Threshold = Literal["tuned", "theory", "published"]

PATTERN_BYTES = 1 << 26
"""Of patterns that are held at once."""


class Adversary(Protocol):
    """A player of the game on a universe of records that it knows."""

    read: ClassVar[str]

    @property
    def universe(self) -> Universe: ...

    @property
    def cut(self) -> float: ...

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        """Scores (G,) of games in closed form; the clients' noise is drawn from `rng`."""
        ...

    def answers(self, shown: Floats, target: Indices) -> Floats:
        """Scores (G,) of what clients train on, (G, n, r), for targets (G,)."""
        ...

    def task(self, *, classes: int, detectors: int = 1) -> Classifier: ...

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
        """The learning rate that the server asks for."""
        ...


# -- fully connected ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FullyConnected:
    """Says yes where a protected record lies closer than `tau` to the target."""

    read: ClassVar[str] = fc.READ

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
        """With tau = Delta ("theory"), or from games of the server's own on the distribution that
        it knows: halfway between mean distances ("published"), or the best cut ("tuned")."""
        if threshold == "theory" or not universe.channel.protects:
            return cls(universe=universe, tau=universe.snapped(universe.radius))
        played = games.challenge(len(universe), records, simulated, rng)
        closest = games.distances(universe, played, rng)
        if threshold == "published":
            tau = games.midpoint(closest, played.member)
        else:
            tau = -games.best_cut(-closest, played.member)
        # a ball of radius Delta holds nobody else: less would only miss members
        return cls(universe=universe, tau=universe.snapped(max(tau, universe.radius)))

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
    """Says yes where two heads, one blind to the target pattern, differ by more than `gamma`.

    `pattern` (N,): which pattern of each record of the universe is its target; no other record has
    it. `other` (N, d): the direction that heads 2 and 4 leave out when the record is the target.
    `sampled`: the patterns, clean and protected, that Theorem 3's beta and gamma were taken from,
    and `measured` what they show, with a margin.
    """

    read: ClassVar[str] = attention.READ

    universe: Universe
    embedding: Embedding
    pattern: Indices
    other: Floats = field(repr=False)
    beta: float
    gamma: float
    sampled: tuple[Floats, Floats] | None = field(default=None, repr=False, compare=False)
    measured: attention.Measured | None = None

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
        betas: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
        simulated: int = 200,
        left_out: Literal["spare", "random"] = "spare",
    ) -> AttentionAdversary:
        """With beta and gamma = 2 Delta-bar from Theorem 3 ("theory"), or from games of the
        server's own: gamma where a logistic fit is undecided ("published") or at the best cut
        ("tuned"), beta as given or the one of `betas` (in units of one over the median squared norm
        of a pattern) that separates best. Of several embeddings of one cut the best is taken.
        `left_out`: what heads 2 and 4 do not see, a direction that is hardly used, or ("random", as
        published) another random one for every target."""
        offered = [embeddings] if isinstance(embeddings, Embedding) else list(embeddings)
        embedding = offered[0]
        universe, pattern = with_own_patterns(universe, embedding, rng)
        theory.check_game(records, len(universe))
        other = rng.normal(size=(len(universe), embedding.dimension))
        if left_out == "spare":
            other = np.broadcast_to(attention.spare(embedding(universe.values)), other.shape)
        blank = cls(
            universe=universe,
            embedding=embedding,
            pattern=pattern,
            other=other,
            beta=1.0,
            gamma=0.0,
        )
        if threshold == "theory":
            clean, shown = blank.sample(rng, 4 * PATTERN_BYTES // 64)
            m = attention.measure(clean, shown).with_margin()
            if beta is None:
                theory.check_beta(np.inf, m.separation, m.patterns, m.bound)
                found = theory.smallest_beta(m.separation, m.patterns, m.bound)
                beta = max(float(found or 0.0), 1e-9) * (1 + 1e-6)
            theory.check_beta(beta, m.separation, m.patterns, m.bound)
            error = theory.retrieval_error(beta, m.separation, m.patterns, m.bound)
            # the floor is checked on the draws that beta was taken from
            return replace(blank, beta=beta, gamma=2.0 * error, sampled=(clean, shown), measured=m)
        played = games.challenge(len(universe), records, simulated, rng)
        if beta is None or len(offered) > 1:
            tried = []
            for one in offered:
                unit = float(np.median((one(universe.values[:200]) ** 2).sum(axis=-1)))
                spared = np.broadcast_to(attention.spare(one(universe.values)), other.shape)
                tried += [
                    replace(
                        blank,
                        embedding=one,
                        beta=b,
                        other=spared if left_out == "spare" else other,
                    )
                    for b in ([b / unit for b in betas] if beta is None else [beta])
                ]
            state = rng.bit_generator.state
            gained = []
            for candidate in tried:
                rng.bit_generator.state = state  # the same noise for all
                scored = candidate.scores(played, rng)
                cut = games.best_cut(scored, played.member)
                gained.append(_gain(scored > cut, played.member))
            blank = tried[int(np.argmax(gained))]
            played = games.challenge(len(universe), records, simulated, rng)
        else:
            blank = replace(blank, beta=beta)
        scored = blank.scores(played, rng)
        if threshold == "published":
            gamma = logistic_cut(scored, played.member)
        else:
            gamma = games.best_cut(scored, played.member)
        return replace(blank, gamma=max(gamma, 0.0))

    @property
    def cut(self) -> float:
        return self.gamma

    def sample(self, rng: np.random.Generator, numbers: int) -> tuple[Floats, Floats]:
        """Patterns (n, N, d) of the known distribution, clean and protected, so many numbers."""
        each = self.embedding.patterns * self.embedding.dimension
        some = rng.permutation(len(self.universe))[: max(2, numbers // each)]
        shown = self.universe.shown(some, rng)
        return self.embedding(self.universe.values[some]), self.embedding(shown)

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        n = played.data.shape[1]
        each = 8 * n * self.embedding.patterns * self.embedding.dimension
        step = max(1, PATTERN_BYTES // each)
        out = np.empty(len(played))
        for low in range(0, len(played), step):
            part = played.part(slice(low, low + step))
            shown = self.universe.shown(part.data.ravel(), rng).reshape(*part.data.shape, -1)
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
                remedy='ask "which client" with adversary = "fc"',
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
        """1: most weights of W_O are 0, beside which any step survives."""
        return 1.0


def own_patterns(cut: Floats, *, placed: bool) -> list[list[int]]:
    """For every record of (N, patterns, p) the patterns that no other record has, nor itself twice.

    `placed`: equal patches in different places count as different.
    """
    flat = np.ascontiguousarray(cut)
    keys = [[(j if placed else 0, one.tobytes()) for j, one in enumerate(row)] for row in flat]
    seen = Counter(key for own in keys for key in own)
    return [[j for j, key in enumerate(own) if seen[key] == 1] for own in keys]


def with_own_patterns(
    universe: Universe, embedding: Embedding, rng: np.random.Generator
) -> tuple[Universe, Indices]:
    """The records with a pattern that no other has, and one such pattern of each.

    The target pattern then stands in a client's data if and only if its record does.
    """
    if embedding.features > universe.features:
        raise UsageError(
            "the embedding does not fit the records",
            expected=f"records of at least {embedding.features} features",
            got=str(universe.features),
            remedy="cut the patches from records of this size",
        )
    free = own_patterns(universe.values[:, embedding.cut], placed=embedding.placed)
    blank = np.linalg.norm(embedding(universe.values), axis=2) <= 0  # has no direction
    usable = [[j for j in own if not blank[i, j]] for i, own in enumerate(free)]
    rows = np.array([i for i, own in enumerate(usable) if own], dtype=np.int64)
    chosen = [usable[i][int(rng.integers(0, len(usable[i])))] for i in rows]
    return universe.restricted(rows), np.array(chosen)


def logistic_cut(scores: Floats, member: Bools) -> float:
    """Where a logistic fit on the score alone is undecided. [ActiveMembership] Appendix G.3"""
    from sklearn.linear_model import LogisticRegression

    scale = float(scores.std()) or 1.0
    fit = LogisticRegression().fit((scores / scale)[:, None], member)
    slope = float(fit.coef_[0, 0])
    if slope <= 0:
        return float(scores.max())  # scores do not tell: say no
    return -float(fit.intercept_[0]) / slope * scale


def _gain(called: Bools, member: Bools) -> float:
    return float(called[member].mean() - called[~member].mean())
