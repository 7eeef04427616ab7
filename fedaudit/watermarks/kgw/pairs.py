"""The distinct (context, token) pairs of a text, and the z-score of their green count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.watermarks.kgw.lists import GreenLists, blocks
from fedaudit.watermarks.score import Tokens


@dataclass(frozen=True, kw_only=True)
class TokenPairs:
    """Scored (context, token) pairs: `contexts` (n, width), `tokens` (n,)."""

    contexts: Tokens
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def whole(self) -> Tokens:
        """(n, width + 1), the token last."""
        return np.concatenate([self.contexts, self.tokens[:, None]], axis=1)

    def distinct(self, without: TokenPairs | None = None) -> TokenPairs:
        """Distinct pairs, except those in `without`."""
        own = np.unique(self.whole(), axis=0)
        if without is not None and len(without) and len(own):
            other = np.unique(without.whole(), axis=0)
            _, where, times = np.unique(
                np.concatenate([other, own]), axis=0, return_inverse=True, return_counts=True
            )
            own = own[times[where.reshape(-1)[len(other) :]] == 1]
        return TokenPairs(contexts=own[:, :-1], tokens=own[:, -1])


def pairs_of(
    sequences: Sequence[Sequence[int]], width: int, first: Sequence[int] = ()
) -> TokenPairs:
    """All pairs of token sequences; in sequence i, only pairs whose token is at position `first[i]`
    or later."""
    contexts, tokens = [], []
    for i, sequence in enumerate(sequences):
        s = np.asarray(sequence, dtype=np.int64)
        at = np.arange(max(width, first[i] if len(first) else 0), len(s))
        contexts.append(s[at[:, None] + np.arange(-width, 0)])
        tokens.append(s[at])
    if not contexts:
        return TokenPairs(contexts=np.empty((0, width), np.int64), tokens=np.empty(0, np.int64))
    return TokenPairs(contexts=np.concatenate(contexts), tokens=np.concatenate(tokens))


def z_scores(lists: GreenLists, keys: Sequence[int], pairs: TokenPairs) -> Floats:
    """z = (G - gamma T) / sqrt(T gamma (1 - gamma)) of every key, (J,); 0 without pairs.

    [FedAttr] Table 4. Standard normal under a random key only if the pairs are distinct.
    """
    total = len(pairs)
    if total == 0:
        return np.zeros(len(keys))
    greens = np.concatenate(
        [
            lists.green(some, pairs.contexts, pairs.tokens).sum(axis=1)
            for some in blocks(keys, total)
        ]
    )
    gamma = lists.gamma
    return np.asarray((greens - gamma * total) / np.sqrt(total * gamma * (1 - gamma)))
