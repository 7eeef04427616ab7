"""Generate marked text with a model, or with the bigrams of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.watermarks.kgw.lists import GreenLists, SelfHashedLists
from fedaudit.watermarks.kgw.pairs import pairs_of
from fedaudit.watermarks.score import ModelRows, Processor, Tokens, Writer, check_prompts

if TYPE_CHECKING:
    from torch import Tensor


CANDIDATES = 40
"""Tokens tried where each chooses its own list: transformers and lm-watermarking stop there too."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A logits processor that adds `delta` to the green tokens of one key.

    Its signature is that of transformers (tokens (B, t), logits (B, V)), so `generate` of a Hugging
    Face model accepts it too.
    """

    lists: GreenLists
    key: int
    delta: float = 3.0

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        import torch

        width = self.lists.width
        if tokens.shape[1] < width:
            return logits  # the context is incomplete, so this token is not scored
        contexts = tokens[:, -width:].numpy()
        if isinstance(self.lists, SelfHashedLists):
            return self._by_candidate(contexts, logits)
        different, which = np.unique(contexts, axis=0, return_inverse=True)
        green = self.lists.tables([self.key], different)[0][which.reshape(-1)]
        return logits + self.delta * torch.from_numpy(green).to(logits.dtype)

    def _by_candidate(self, contexts: Tokens, logits: Tensor) -> Tensor:
        """Lists that the next token itself chooses: the likeliest `CANDIDATES` are tried."""
        import torch

        many = min(CANDIDATES, logits.shape[1])
        top = logits.topk(many, dim=1).indices
        green = self.lists.green(
            [self.key], np.repeat(contexts, many, axis=0), top.reshape(-1).numpy()
        )[0]
        added = self.delta * torch.from_numpy(green.reshape(top.shape)).to(logits.dtype)
        return logits.scatter_add(1, top, added)


def marked_text(
    reader: Writer,
    model: ModelRows,
    prompts: Sequence[Sequence[int]],
    marker: Marker,
    *,
    steps: int,
    rng: np.random.Generator,
    temperature: float = 0.8,
    top_p: float = 0.95,
    banned: Sequence[int] = (),
) -> list[list[int]]:
    """Marked documents: each prompt, continued by the model (d,) with the marker.

    Sampling as in [FedAttr] Table 4. `banned`: tokens that cannot be spelled (the unknown token).
    """
    starts = check_prompts(prompts)
    check_steps(steps, marker.lists.width)
    found = reader.generate(
        model,
        starts,
        steps,
        uniforms=rng.random((len(starts), steps)),
        processor=marker,
        temperature=temperature,
        top_p=top_p,
        banned=banned,
    )[0]
    return [p + [int(t) for t in own] for p, own in zip(starts, found, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Bigrams:
    """A bigram model of a token corpus, for owners without a trained model.

    p(next | last) = (count + `unseen` p(next)) / (total + `unseen`).
    """

    corpus: Sequence[Sequence[int]]
    vocabulary: int
    unseen: float = 1.0

    @cached_property
    def _after(self) -> tuple[Floats, dict[int, Tokens]]:
        """Frequencies of all tokens (V,), and token -> the tokens that followed it."""
        flat = np.concatenate([np.asarray(s, dtype=np.int64) for s in self.corpus])
        alone = np.bincount(flat, minlength=self.vocabulary) / len(flat)
        found = pairs_of(self.corpus, 1)
        order = np.argsort(found.contexts[:, 0], kind="stable")
        last, following = found.contexts[order, 0], found.tokens[order]
        which, starts = np.unique(last, return_index=True)
        groups = np.split(following, starts[1:]) if len(starts) else []
        return alone, {int(t): g for t, g in zip(which, groups, strict=True)}

    def logits(self, last: Sequence[int]) -> Floats:
        """Log-probabilities (B, V) after each of the last tokens; -inf for unseen tokens."""
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
        models: ModelRows,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: npt.NDArray[np.float64] | None = None,
        processor: Processor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> Tokens:
        """As `Reader.generate`, from the corpus alone; prompts of equal length: (1, n, steps)."""
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
    """Tokens (B,) from logits (B, V) by inversion of u (B,); the likeliest if u is None."""
    free = logits.copy()
    free[:, list(banned)] = -np.inf
    if u is None:
        return np.asarray(free.argmax(axis=1))
    p = np.exp(free - free.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    sums = sorted_p.cumsum(axis=1)
    # the likeliest tokens up to a total of top_p; at least one
    last = np.maximum((sums - sorted_p < top_p).sum(axis=1) - 1, 0)
    goal = u * np.take_along_axis(sums, last[:, None], axis=1)[:, 0]
    found = np.minimum((sums <= goal[:, None]).sum(axis=1), last)
    return np.asarray(np.take_along_axis(order, found[:, None], axis=1)[:, 0])


def check_steps(steps: int, width: int) -> None:
    """Raise UsageError if no generated token would have a complete context."""
    if steps <= width:
        raise UsageError(
            "the generated text is not longer than the context of the watermark",
            expected=f"more than {width} tokens",
            got=str(steps),
            remedy="generate more tokens: each scored token needs a complete context",
        )
