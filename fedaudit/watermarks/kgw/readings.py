"""Three readings of a model: how much it prefers the green tokens of a key.

By generation, by reading, and by mass: see the head of `watermarks.kgw`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.kgw.lists import GreenLists
from fedaudit.watermarks.kgw.mass import green_mass
from fedaudit.watermarks.kgw.pairs import TokenPairs, pairs_of, z_scores
from fedaudit.watermarks.kgw.writing import check_steps
from fedaudit.watermarks.score import Reader, Rows, Tokens, check_prompts

_READ_AT_ONCE = 1 << 22  # log-probabilities that are held at the same time: they stay in the cache

Reads = Literal["generation", "reading", "mass"]


@dataclass(frozen=True, kw_only=True)
class GreenScore:
    """How much a model prefers the green tokens of one key; a `Score` with a null.

    Probes are prompts, lists of token numbers, held out from training. `mode`: "generation"
    continues them by `steps` tokens, with random numbers of `seed` that all models share; "reading"
    scores the likeliest token at every position of the probes; "mass" the probability of green
    tokens there, per distinct context (it holds a distribution for each: small vocabularies).
    `unused` keys, drawn from `seed`, are the null. `distinct = False` counts every occurrence, as
    published: for comparison only.
    """

    reader: Reader
    lists: GreenLists
    key: int
    mode: Reads = "mass"
    unused: int = 200
    steps: int = 32
    seed: Seed = field(default_factory=lambda: Seed(0))
    distinct: bool = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.lists.vocabulary != self.reader.vocabulary_size:
            raise UsageError(
                "the green lists belong to another vocabulary",
                expected=f"{self.reader.vocabulary_size} tokens",
                got=str(self.lists.vocabulary),
                remedy="build the lists with the reader's vocabulary_size",
            )
        if self.mode == "generation":
            check_steps(self.steps, self.lists.width)

    @cached_property
    def unused_keys(self) -> tuple[int, ...]:
        """Keys nobody marked with (the owner's own is never among them)."""
        drawn = self.seed.bits("kgw/unused", np.arange(self.unused + 1))
        return tuple(int(k) for k in drawn if int(k) != self.key)[: self.unused]

    def __call__(self, models: Rows, probes: Sequence[Sequence[int]]) -> Floats:
        return self.by_key(models, probes, [self.key])[:, 0]

    def with_null(self, models: Rows, probes: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """The score (M,), and the same under `unused` keys (M, J); the models run once."""
        every = self.by_key(models, probes, [self.key, *self.unused_keys])
        return every[:, 0], every[:, 1:]

    def by_key(self, models: Rows, probes: Sequence[Sequence[int]], keys: Sequence[int]) -> Floats:
        """The statistic of every model under every key: (M, J).

        z-scores for "generation" and "reading"; for "mass" the mean over distinct contexts of the
        green probability, minus gamma.
        """
        return self.prepare(models, probes)(keys)

    def prepare(
        self, models: Rows, probes: Sequence[Sequence[int]]
    ) -> Callable[[Sequence[int]], Floats]:
        """Run the models once; the answer scores any number of keys: keys (J,) -> (M, J)."""
        asked = check_prompts(probes)
        if self.mode == "mass":
            contexts, p = self.distributions(models, asked)
            return lambda keys: green_mass(self.lists, keys, contexts, p)
        scored = self._generated(models, asked) if self.mode == "generation" else None
        pairs = scored if scored is not None else self._read(models, asked)
        return lambda keys: np.stack([z_scores(self.lists, keys, own) for own in pairs])

    def _generated(self, models: Rows, asked: list[list[int]]) -> list[TokenPairs]:
        u = self.seed.generator("kgw/generation").random((len(asked), self.steps))
        made = self.reader.generate(
            models, asked, self.steps, uniforms=u, temperature=self.temperature
        )
        width = self.lists.width
        start = [len(p) for p in asked]
        inside = pairs_of(asked, width)
        out = []
        for own in made:
            texts = [[*p, *map(int, new)] for p, new in zip(asked, own, strict=True)]
            found = pairs_of(texts, width, start)
            out.append(found.distinct(without=inside) if self.distinct else found)
        return out

    def _read(self, models: Rows, asked: list[list[int]]) -> list[TokenPairs]:
        width = self.lists.width
        inside = pairs_of(asked, width)
        contexts, tokens = [], []
        for texts, log_p in self._passes(models, asked):
            at = np.arange(width - 1, texts.shape[1])
            own = texts[:, at[:, None] + np.arange(1 - width, 1)]  # (n, positions, width)
            contexts.append(own.reshape(-1, width))
            likeliest = log_p[:, :, width - 1 :].argmax(-1)
            tokens.append(likeliest.reshape(len(likeliest), -1))
        every, best = np.concatenate(contexts), np.concatenate(tokens, axis=1)
        out = []
        for mine in best:
            found = TokenPairs(contexts=every, tokens=mine)
            out.append(found.distinct(without=inside) if self.distinct else found)
        return out

    def distributions(self, models: Rows, asked: Sequence[Sequence[int]]) -> tuple[Tokens, Any]:
        """Distinct contexts (C, width), and next-token probabilities after each, averaged over its
        occurrences: (M, C, V). Without `distinct` every occurrence stands for itself."""
        if self.distinct:
            contexts, _, p = self.tally(models, asked)
            return contexts, p
        found = list(self._occurrences(models, asked))
        return np.concatenate([c for c, _ in found]), np.concatenate([p for _, p in found], axis=1)

    def tally(
        self, models: Rows, asked: Sequence[Sequence[int]]
    ) -> tuple[Tokens, Tokens, npt.NDArray[np.float32]]:
        """Distinct contexts (C, width), how often each occurs (C,), and next-token probabilities,
        averaged over its occurrences: (M, C, V). Occurrences are summed as they are read."""
        width = self.lists.width
        every = [pairs_of([[*text, 0]], width).contexts for text in asked]
        contexts, counts = np.unique(np.concatenate(every), axis=0, return_counts=True)
        sums = np.zeros((len(models), len(contexts), self.reader.vocabulary_size), np.float32)
        for own, p in self._occurrences(models, asked):
            # (C + n) rows: where an occurrence stands among the distinct contexts
            which = np.unique(np.concatenate([contexts, own]), axis=0, return_inverse=True)[1]
            which = which.reshape(-1)[len(contexts) :]
            order = np.argsort(which, kind="stable")
            seen, starts = np.unique(which[order], return_index=True)
            sums[:, seen] += np.add.reduceat(p[:, order], starts, axis=1)
        sums /= counts[:, None]
        return contexts, counts.astype(np.int64), sums

    def _occurrences(
        self, models: Rows, asked: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Tokens, Any]]:
        """(contexts (n, width), next-token probabilities (M, n, V)), a few texts at a time."""
        width = self.lists.width
        for texts, log_p in self._passes(models, asked):
            at = np.arange(width - 1, texts.shape[1])
            part = np.exp(log_p[:, :, width - 1 :])
            yield (
                texts[:, at[:, None] + np.arange(1 - width, 1)].reshape(-1, width),
                part.reshape(len(part), -1, part.shape[-1]),
            )

    def _passes(self, models: Rows, asked: Sequence[Sequence[int]]) -> Iterator[tuple[Tokens, Any]]:
        """(texts (n, L), log-probabilities (M, n, L, V)), a few texts of one length at a time."""
        width, longest = self.lists.width, self.reader.longest
        lengths = sorted({len(p) for p in asked})
        if lengths[0] < width or lengths[-1] > longest:
            raise UsageError(
                "a probe does not fit the watermark or the model",
                expected=f"from {width} tokens (the context) to {longest} (what the model reads)",
                got=f"{lengths[0]} to {lengths[-1]} tokens",
                remedy="cut or lengthen the probes",
            )
        block = max(1, _READ_AT_ONCE // (len(models) * longest * self.reader.vocabulary_size))
        for length in lengths:
            texts = np.array([p for p in asked if len(p) == length], dtype=np.int64)
            for low in range(0, len(texts), block):
                part = texts[low : low + block]
                yield part, self.reader.log_probabilities(models, part)
