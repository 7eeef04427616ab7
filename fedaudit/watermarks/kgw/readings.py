"""Three statistics of a model's preference for the green tokens of a key.

By generation, by reading, and by mass: see the docstring of `watermarks.kgw`.
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
from fedaudit.watermarks.score import ModelRows, Reader, Tokens, check_prompts

_READ_AT_ONCE = 1 << 22  # log-probabilities in memory: they stay in the cache

ReadingMode = Literal["generation", "reading", "mass"]


@dataclass(frozen=True, kw_only=True)
class GreenScore:
    """A model's preference for the green tokens of one key; a `CalibratedScore`.

    Probes are prompts (lists of token numbers) held out from training. `mode`: "generation"
    continues them by `steps` tokens, with random numbers of `seed` that all models share; "reading"
    scores the likeliest token at every position; "mass" scores the probability of green tokens, per
    distinct context (it stores a distribution for each, so it suits small vocabularies). `unused`:
    number of null keys, drawn from `seed`. `distinct = False` counts every occurrence, as
    published: for comparison only.
    """

    reader: Reader
    lists: GreenLists
    key: int
    mode: ReadingMode = "mass"
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
        """Keys without marked records; never the owner's key."""
        drawn = self.seed.bits("kgw/unused", np.arange(self.unused + 1))
        return tuple(int(k) for k in drawn if int(k) != self.key)[: self.unused]

    def __call__(self, models: ModelRows, probes: Sequence[Sequence[int]]) -> Floats:
        return self.by_key(models, probes, [self.key])[:, 0]

    def with_null(
        self, models: ModelRows, probes: Sequence[Sequence[int]]
    ) -> tuple[Floats, Floats]:
        """The score (M,), and the same under `unused` keys (M, J); the models run once."""
        every = self.by_key(models, probes, [self.key, *self.unused_keys])
        return every[:, 0], every[:, 1:]

    def by_key(
        self, models: ModelRows, probes: Sequence[Sequence[int]], keys: Sequence[int]
    ) -> Floats:
        """The statistic of every model under every key: (M, J).

        z-scores for "generation" and "reading"; for "mass" the mean over distinct contexts of the
        green probability, minus gamma.
        """
        return self.prepare(models, probes)(keys)

    def prepare(
        self, models: ModelRows, probes: Sequence[Sequence[int]]
    ) -> Callable[[Sequence[int]], Floats]:
        """Run the models once; returns a function that scores any keys: keys (J,) -> (M, J)."""
        prompts = check_prompts(probes)
        if self.mode == "mass":
            contexts, p = self.distributions(models, prompts)
            return lambda keys: green_mass(self.lists, keys, contexts, p)
        scored = self._generated(models, prompts) if self.mode == "generation" else None
        pairs = scored if scored is not None else self._read(models, prompts)
        return lambda keys: np.stack([z_scores(self.lists, keys, own) for own in pairs])

    def _generated(self, models: ModelRows, prompts: list[list[int]]) -> list[TokenPairs]:
        u = self.seed.generator("kgw/generation").random((len(prompts), self.steps))
        made = self.reader.generate(
            models, prompts, self.steps, uniforms=u, temperature=self.temperature
        )
        width = self.lists.width
        start = [len(p) for p in prompts]
        inside = pairs_of(prompts, width)
        out = []
        for own in made:
            texts = [[*p, *map(int, new)] for p, new in zip(prompts, own, strict=True)]
            found = pairs_of(texts, width, start)
            out.append(found.distinct(without=inside) if self.distinct else found)
        return out

    def _read(self, models: ModelRows, prompts: list[list[int]]) -> list[TokenPairs]:
        width = self.lists.width
        inside = pairs_of(prompts, width)
        contexts, tokens = [], []
        for texts, log_p in self._passes(models, prompts):
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

    def distributions(
        self, models: ModelRows, prompts: Sequence[Sequence[int]]
    ) -> tuple[Tokens, Any]:
        """Distinct contexts (C, width), and next-token probabilities (M, C, V) averaged over each
        one's occurrences. Without `distinct`, one row per occurrence."""
        if self.distinct:
            contexts, _, p = self.tally(models, prompts)
            return contexts, p
        found = list(self._occurrences(models, prompts))
        return np.concatenate([c for c, _ in found]), np.concatenate([p for _, p in found], axis=1)

    def tally(
        self, models: ModelRows, prompts: Sequence[Sequence[int]]
    ) -> tuple[Tokens, Tokens, npt.NDArray[np.float32]]:
        """Distinct contexts (C, width), their counts (C,), and next-token probabilities (M, C, V)
        averaged over each one's occurrences. Sums occurrences as they are read."""
        width = self.lists.width
        every = [pairs_of([[*text, 0]], width).contexts for text in prompts]
        contexts, counts = np.unique(np.concatenate(every), axis=0, return_counts=True)
        sums = np.zeros((len(models), len(contexts), self.reader.vocabulary_size), np.float32)
        for own, p in self._occurrences(models, prompts):
            # (C + n) rows: the index of each occurrence among the distinct contexts
            which = np.unique(np.concatenate([contexts, own]), axis=0, return_inverse=True)[1]
            which = which.reshape(-1)[len(contexts) :]
            order = np.argsort(which, kind="stable")
            seen, starts = np.unique(which[order], return_index=True)
            sums[:, seen] += np.add.reduceat(p[:, order], starts, axis=1)
        sums /= counts[:, None]
        return contexts, counts.astype(np.int64), sums

    def _occurrences(
        self, models: ModelRows, prompts: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Tokens, Any]]:
        """(contexts (n, width), next-token probabilities (M, n, V)), a few texts at a time."""
        width = self.lists.width
        for texts, log_p in self._passes(models, prompts):
            at = np.arange(width - 1, texts.shape[1])
            part = np.exp(log_p[:, :, width - 1 :])
            yield (
                texts[:, at[:, None] + np.arange(1 - width, 1)].reshape(-1, width),
                part.reshape(len(part), -1, part.shape[-1]),
            )

    def _passes(
        self, models: ModelRows, prompts: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Tokens, Any]]:
        """(texts (n, L), log-probabilities (M, n, L, V)), a few texts of one length at a time."""
        width, longest = self.lists.width, self.reader.longest
        lengths = sorted({len(p) for p in prompts})
        if lengths[0] < width or lengths[-1] > longest:
            raise UsageError(
                "a probe does not fit the watermark or the model",
                expected=f"from {width} tokens (the context) to {longest} (the model's limit)",
                got=f"{lengths[0]} to {lengths[-1]} tokens",
                remedy="cut or lengthen the probes",
            )
        block = max(1, _READ_AT_ONCE // (len(models) * longest * self.reader.vocabulary_size))
        for length in lengths:
            texts = np.array([p for p in prompts if len(p) == length], dtype=np.int64)
            for low in range(0, len(texts), block):
                part = texts[low : low + block]
                yield part, self.reader.log_probabilities(models, part)
