"""The green-list watermark of Kirchenbauer et al. (KGW): marked text, and models that learnt it.

[FedAttr] Section 3.2, Tables 4 and 6: the context (the last `width` tokens, one by default) and a
secret key choose a green list of a fraction gamma = 0.25 of the vocabulary; a marked text is a
model's continuation with delta = 3 added to the logits of green tokens.

Three readings of a model, all of them on (context, token) pairs:

    by generation   the model continues prompts; z = (G - gamma T) / sqrt(T gamma (1 - gamma)) over
                    T scored tokens of which G are green. Sampled with the same random numbers for
                    all models: greedy text of a small model runs in circles.
    by reading      one teacher-forced pass over given text; its likeliest next tokens are scored.
    by mass         one pass; the probability that falls on green lists, averaged over the distinct
                    contexts. Counting sees a token only when it wins, this sees every nudge.

Differs from the paper: a pair counts **once** over the whole corpus, and pairs that stand in the
prompts do not count; without that, a clean model passes the published threshold. The null is
not the normal distribution but the same statistic under unused keys, which the hash below makes
cheap: a key costs one pass over the pairs, with no permutation of a vocabulary.

Shapes: keys (J,), contexts (n, width), tokens (n,), tables (J, n, V).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.score import Floats, Processor, Reader, Rows, Tokens, Writer, check_prompts

if TYPE_CHECKING:
    from torch import Tensor

Booleans = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_READ_AT_ONCE = 1 << 22  # log-probabilities that are held at the same time: they stay in the cache
_AT_ONCE = 1 << 22  # entries of a table of green lists that are held at the same time


# -- green lists -------------------------------------------------------------------------------


class GreenLists(Protocol):
    """Which tokens are green after which context, for any number of keys at once."""

    @property
    def gamma(self) -> float: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Booleans:
        """(J,), (n, width), (n,) -> (J, n)."""
        ...

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Booleans:
        """(J,), (n, width) -> (J, n, V)."""
        ...


def _check_lists(vocabulary: int, gamma: float, width: int) -> None:
    if vocabulary < 2 or not 0 < gamma < 1 or width < 1:
        raise UsageError(
            "green lists cannot be drawn",
            expected="a vocabulary of at least 2, 0 < gamma < 1, a context of at least 1 token",
            got=f"vocabulary {vocabulary}, gamma {gamma:g}, context {width}",
            remedy="gamma = 0.25 and a context of 1 are the published ones",
        )


@dataclass(frozen=True, kw_only=True)
class HashedLists:
    """Green by a hash of (key, context, token): each token by itself with probability gamma.

    Under a random key, distinct pairs are independent coin flips, which is what the z-test
    assumes. Good statistics, no cryptography: the key is not safe from who sees many green lists.
    """

    vocabulary: int
    gamma: float = 0.25
    width: int = 1

    def __post_init__(self) -> None:
        _check_lists(self.vocabulary, self.gamma, self.width)

    def _words(self, keys: Sequence[int], contexts: Tokens) -> Words:
        """A word (J, n) per key and context, to which a token is added."""
        mine = np.array([int(k) % 2**64 for k in keys], dtype=np.uint64)[:, None]
        columns = [contexts[None, :, i] for i in range(self.width)]
        return Seed(0).bits("kgw", mine, *columns)

    def _below(self, z: Words) -> Booleans:
        """Finish the hash of z, in place, and compare with gamma.

        The finaliser of `randomness`, but for its last line, which no leading bit depends on.
        """
        spare = z >> np.uint64(30)
        z ^= spare
        z *= _M1
        np.right_shift(z, np.uint64(27), out=spare)
        z ^= spare
        z *= _M2
        below: Booleans = z < np.uint64(int(self.gamma * 2**64))
        return below

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Booleans:
        # many tokens share a context: its word is most of a hash, and made once
        flat = contexts[:, 0] if self.width == 1 else contexts  # numbers sort faster than rows
        different, which = np.unique(flat, axis=0, return_inverse=True)
        z = self._words(keys, different.reshape(-1, self.width))[:, which.reshape(-1)]
        return self._below(z + (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN)

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Booleans:
        every = (np.arange(self.vocabulary, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        return self._below(self._words(keys, contexts)[:, :, None] + every)


@dataclass(frozen=True, kw_only=True)
class PermutedLists:
    """The `lefthash` lists of transformers' `WatermarkingConfig`: for text marked with it.

    The first gamma V numbers of a permutation that is seeded by key * last token. One permutation
    per key and context: slow for many keys.
    """

    vocabulary: int
    gamma: float = 0.25
    width: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        _check_lists(self.vocabulary, self.gamma, self.width)

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Booleans:
        import torch

        size = int(self.vocabulary * self.gamma)
        out = np.zeros((len(keys), len(contexts), self.vocabulary), dtype=np.bool_)
        different, which = np.unique(contexts[:, -1], return_inverse=True)
        for j, key in enumerate(keys):
            lists = np.zeros((len(different), self.vocabulary), dtype=np.bool_)
            for i, token in enumerate(different):
                rng = torch.Generator().manual_seed((int(key) * int(token)) % (2**64 - 1))
                lists[i, torch.randperm(self.vocabulary, generator=rng)[:size].numpy()] = True
            out[j] = lists[which]
        return out

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Booleans:
        different, which = np.unique(contexts[:, -1:], axis=0, return_inverse=True)
        lists = self.tables(keys, different)
        return lists[:, which.reshape(-1), tokens]


# -- marking -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A logits processor: adds `delta` to the green tokens of one key.

    Its form is that of transformers (tokens (B, t), logits (B, V)), so that it can be passed to
    `generate` of a Hugging Face model as well.
    """

    lists: GreenLists
    key: int
    delta: float = 3.0

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        import torch

        width = self.lists.width
        if tokens.shape[1] < width:
            return logits  # no whole context yet, and nothing will be scored here
        contexts = tokens[:, -width:].numpy()
        different, which = np.unique(contexts, axis=0, return_inverse=True)
        green = self.lists.tables([self.key], different)[0][which.reshape(-1)]
        return logits + self.delta * torch.from_numpy(green).to(logits.dtype)


def marked_text(
    reader: Writer,
    model: Rows,
    prompts: Sequence[Sequence[int]],
    marker: Marker,
    *,
    steps: int,
    rng: np.random.Generator,
    temperature: float = 0.8,
    top_p: float = 0.95,
    banned: Sequence[int] = (),
) -> list[list[int]]:
    """Marked documents: each prompt, continued by the model (d,) under the marker.

    Sampling as in [FedAttr] Table 4. `banned` are tokens a vocabulary cannot spell (the unknown).
    """
    asked = check_prompts(prompts)
    _check_steps(steps, marker.lists.width)
    found = reader.generate(
        model,
        asked,
        steps,
        uniforms=rng.random((len(asked), steps)),
        processor=marker,
        temperature=temperature,
        top_p=top_p,
        banned=banned,
    )[0]
    return [p + [int(t) for t in own] for p, own in zip(asked, found, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Bigrams:
    """A writer for owners without a trained model: what follows what in a corpus of tokens.

    p(next | last) = (count + `unseen` p(next)) / (total + `unseen`).
    """

    corpus: Sequence[Sequence[int]]
    vocabulary: int
    unseen: float = 1.0

    @cached_property
    def _after(self) -> tuple[Floats, dict[int, Tokens]]:
        """Shares of all tokens (V,), and token -> all that followed it."""
        flat = np.concatenate([np.asarray(s, dtype=np.int64) for s in self.corpus])
        alone = np.bincount(flat, minlength=self.vocabulary) / len(flat)
        found = pairs_of(self.corpus, 1)
        order = np.argsort(found.contexts[:, 0], kind="stable")
        last, following = found.contexts[order, 0], found.tokens[order]
        which, starts = np.unique(last, return_index=True)
        groups = np.split(following, starts[1:]) if len(starts) else []
        return alone, {int(t): g for t, g in zip(which, groups, strict=True)}

    def logits(self, last: Sequence[int]) -> Floats:
        """Log-probabilities (B, V) after each of the last tokens; minus infinity where never."""
        alone, after = self._after
        out = np.empty((len(last), self.vocabulary))
        for row, token in zip(out, last, strict=True):
            seen = after.get(int(token), np.empty(0, np.int64))
            counts = np.bincount(seen, minlength=self.vocabulary)
            row[:] = (counts + self.unseen * alone) / (len(seen) + self.unseen)
        with np.errstate(divide="ignore"):
            return np.log(out)

    def generate(
        self,
        models: Rows,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: npt.NDArray[np.float64] | None = None,
        processor: Processor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> Tokens:
        """As `Reader.generate`, by the corpus alone: prompts of one length, (1, n, steps)."""
        import torch

        text = torch.tensor([list(p) for p in prompts])
        start = text.shape[1]
        for s in range(steps):
            logits = torch.from_numpy(self.logits(text[:, -1].tolist()))
            if processor is not None:
                logits = processor(text, logits)
            u = None if uniforms is None else uniforms[:, s]
            new = _sampled(logits.numpy() / temperature, u, top_p, banned)
            text = torch.cat([text, torch.from_numpy(new)[:, None]], dim=1)
        return np.asarray(text[None, :, start:].numpy())


def _sampled(logits: Floats, u: Floats | None, top_p: float, banned: Sequence[int]) -> Tokens:
    """Tokens (B,) from logits (B, V) by inversion of u (B,), the likeliest without."""
    free = logits.copy()
    free[:, list(banned)] = -np.inf
    if u is None:
        return np.asarray(free.argmax(axis=1))
    p = np.exp(free - free.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    sums = sorted_p.cumsum(axis=1)
    # the likeliest tokens that together have top_p; at least one
    last = np.maximum((sums - sorted_p < top_p).sum(axis=1) - 1, 0)
    goal = u * np.take_along_axis(sums, last[:, None], axis=1)[:, 0]
    found = np.minimum((sums <= goal[:, None]).sum(axis=1), last)
    return np.asarray(np.take_along_axis(order, found[:, None], axis=1)[:, 0])


def _check_steps(steps: int, width: int) -> None:
    if steps <= width:
        raise UsageError(
            "the generated text is not longer than the context of the watermark",
            expected=f"more than {width} tokens",
            got=str(steps),
            remedy="generate more tokens: each scored token needs its whole context",
        )


# -- counting ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Scored (context, token) pairs: `contexts` (n, width), `tokens` (n,)."""

    contexts: Tokens
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def whole(self) -> Tokens:
        """(n, width + 1), the token last."""
        return np.concatenate([self.contexts, self.tokens[:, None]], axis=1)

    def distinct(self, without: Pairs | None = None) -> Pairs:
        """Every pair once, none of those in `without`."""
        own = np.unique(self.whole(), axis=0)
        if without is not None and len(without) and len(own):
            other = np.unique(without.whole(), axis=0)
            _, where, times = np.unique(
                np.concatenate([other, own]), axis=0, return_inverse=True, return_counts=True
            )
            own = own[times[where.reshape(-1)[len(other) :]] == 1]
        return Pairs(contexts=own[:, :-1], tokens=own[:, -1])


def pairs_of(sequences: Sequence[Sequence[int]], width: int, first: Sequence[int] = ()) -> Pairs:
    """All pairs of token sequences; of sequence i only those whose token stands at `first[i]` or
    later."""
    contexts, tokens = [], []
    for i, sequence in enumerate(sequences):
        s = np.asarray(sequence, dtype=np.int64)
        at = np.arange(max(width, first[i] if len(first) else 0), len(s))
        contexts.append(s[at[:, None] + np.arange(-width, 0)])
        tokens.append(s[at])
    if not contexts:
        return Pairs(contexts=np.empty((0, width), np.int64), tokens=np.empty(0, np.int64))
    return Pairs(contexts=np.concatenate(contexts), tokens=np.concatenate(tokens))


def z_scores(lists: GreenLists, keys: Sequence[int], pairs: Pairs) -> Floats:
    """z = (G - gamma T) / sqrt(T gamma (1 - gamma)) of every key, (J,); 0 without any pair.

    [FedAttr] Table 4. Standard normal under a random key if, and only if, the pairs are distinct.
    """
    total = len(pairs)
    if total == 0:
        return np.zeros(len(keys))
    block = max(1, _AT_ONCE // total)
    greens = np.concatenate(
        [
            lists.green(keys[low : low + block], pairs.contexts, pairs.tokens).sum(axis=1)
            for low in range(0, len(keys), block)
        ]
    )
    gamma = lists.gamma
    return np.asarray((greens - gamma * total) / np.sqrt(total * gamma * (1 - gamma)))


# -- scores ------------------------------------------------------------------------------------

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
            _check_steps(self.steps, self.lists.width)

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

    def _generated(self, models: Rows, asked: list[list[int]]) -> list[Pairs]:
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

    def _read(self, models: Rows, asked: list[list[int]]) -> list[Pairs]:
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
            found = Pairs(contexts=every, tokens=mine)
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


LIKELY = 2e-3
"""Tokens that no model gives this probability are left out of the green mass of `GreenMarks`."""


@dataclass(frozen=True, kw_only=True)
class GreenMarks:
    """The owner at its desk: scores of models under its `keys`, and under unused ones.

    `probes` are texts (token numbers) that do not depend on these keys; `mode` as in `GreenScore`.
    "mass" leaves out tokens that no model finds likely, and weighs a context by the square root of
    how often it occurs: after a rare one nobody learnt much, the few most frequent would drown the
    others. Neither depends on a key, so that keys stay exchangeable.
    """

    reader: Reader
    lists: GreenLists
    keys: tuple[int, ...]
    probes: Sequence[Sequence[int]]
    mode: Reads = "mass"
    steps: int = 24
    null_seed: int = 0
    apart: bool = field(default=False, init=False)
    linear: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_prompts(self.probes)
        _ = self._score  # its checks, at birth

    @cached_property
    def _score(self) -> GreenScore:
        return GreenScore(
            reader=self.reader,
            lists=self.lists,
            key=0,
            mode=self.mode,
            steps=self.steps,
            seed=Seed(self.null_seed),
        )

    def unused(self, many: int) -> tuple[int, ...]:
        """Keys that nobody marked with, other than the owner's."""
        drawn = Seed(self.null_seed).bits("marks/unused", np.arange(many + len(self.keys)))
        fresh = [int(k) for k in drawn if int(k) not in set(self.keys)]
        return tuple(fresh[:many])

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d): the owner's keys first."""
        keys = (*self.keys, *self.unused(unused))
        if self.mode != "mass":
            return self._score.by_key(rows, self.probes, keys)
        contexts, counts, p = self._score.tally(rows, self.probes)
        return likely_mass(self.lists, keys, contexts, p, weights=np.sqrt(counts))


def likely_mass(
    lists: GreenLists,
    keys: Sequence[int],
    contexts: Tokens,
    p: Any,
    floor: float = LIKELY,
    weights: npt.ArrayLike | None = None,
) -> Floats:
    """`green_mass` over tokens that some model gives at least `floor`, (M, J).

    Most tokens of a vocabulary share a few per cent of the probability: leaving them out saves the
    hashes that most of the time went into. `weights` (C,) of the contexts, equal ones if not given.
    """
    each = np.ones(len(contexts)) if weights is None else np.asarray(weights, dtype=np.float64)
    where, tokens = np.nonzero(p.max(axis=0) >= floor)
    values = (p[:, where, tokens] * (each / each.sum())[where]).astype(np.float32)
    block = max(1, _AT_ONCE // max(1, len(tokens)))
    parts = []
    for low in range(0, len(keys), block):
        green = lists.green(keys[low : low + block], contexts[where], tokens)
        parts.append(values @ green.T.astype(np.float32))
    mass = np.concatenate(parts, axis=1).astype(np.float64)
    # a key's due is gamma of what was kept, which differs from model to model
    return np.asarray(mass - lists.gamma * values.sum(axis=1, dtype=np.float64)[:, None])


def green_mass(lists: GreenLists, keys: Sequence[int], contexts: Tokens, p: Any) -> Floats:
    """Mean over contexts (C, width) of the green probability of p (M, C, V), minus gamma: (M, J).

    One matrix product per block of keys. A model's mass under one key says little, since a
    few likely tokens decide it; its change against a reference is what is calibrated by unused keys
    (`score.differential`).
    """
    flat = np.ascontiguousarray(p, dtype=np.float32).reshape(len(p), -1)
    block = max(1, _AT_ONCE // flat.shape[1])
    parts = []
    for low in range(0, len(keys), block):
        green = lists.tables(keys[low : low + block], contexts)
        parts.append(flat @ green.reshape(len(green), -1).T.astype(np.float32))
    return np.concatenate(parts, axis=1).astype(np.float64) / len(contexts) - lists.gamma


__all__ = [
    "Bigrams",
    "GreenLists",
    "GreenMarks",
    "GreenScore",
    "HashedLists",
    "Marker",
    "Pairs",
    "PermutedLists",
    "green_mass",
    "likely_mass",
    "marked_text",
    "pairs_of",
    "z_scores",
]
