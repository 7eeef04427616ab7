"""Encode text as token numbers, decode it, and cut token numbers into windows for a model.

Both vocabularies are built from a corpus, without download or third-party licence:
`WordVocabulary` (words and punctuation marks, the rest unknown) and `BytePairVocabulary`
(byte-level byte-pair encoding: no text is unknown, `decode(encode(text)) == text`).
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import ConfigError, DataError
from fedaudit.files import parse_json
from fedaudit.settings import AtLeastTwo, Count, Whole, require

IGNORE = -100  # target number that torch's cross entropy ignores

_WORD = re.compile(r"\w+|[^\w\s]")
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%'’")
_NO_SPACE_AFTER = frozenset("([{'’")
# A piece is a word or a run of marks with the blank before it, or a run of blanks. Every character
# belongs to exactly one piece, so that decoding restores the text.
_PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")


def _read_json(text: str, kind: str) -> dict[str, Any]:
    try:
        raw = parse_json(text)
    except ValueError as error:
        raise DataError(
            f"this is not a stored {kind} vocabulary",
            expected="JSON written by to_json",
            got=str(error),
            remedy="build the vocabulary again",
        ) from None
    if not isinstance(raw, dict) or raw.get("vocabulary") != kind:
        found = raw.get("vocabulary") if isinstance(raw, dict) else type(raw).__name__
        raise DataError(
            f"this is not a stored {kind} vocabulary",
            expected=f'"vocabulary": "{kind}"',
            got=repr(found),
            remedy="use the class that wrote it",
        )
    return raw


@dataclass(frozen=True)
class WordVocabulary:
    """Words and punctuation marks by number; number 0 stands for everything else.

    Decoding joins words with blanks: the original line breaks and spacing are lost.
    """

    words: tuple[str, ...]
    _number: dict[str, int] = field(init=False, repr=False, compare=False)

    UNKNOWN = "<unk>"

    def __post_init__(self) -> None:
        distinct = len(set(self.words))
        if self.words[:1] != (self.UNKNOWN,) or distinct != len(self.words):
            raise DataError(
                "a word vocabulary is not well formed",
                expected=f"distinct words, the first is {self.UNKNOWN!r}",
                got=f"{len(self.words)} words, {distinct} distinct",
                remedy="build it with WordVocabulary.build",
            )
        object.__setattr__(self, "_number", {word: i for i, word in enumerate(self.words)})

    @classmethod
    def build(cls, texts: Iterable[str], *, size: int) -> WordVocabulary:
        """The `size - 1` most frequent words of `texts` (ties: alphabetical) and the unknown."""
        require(AtLeastTwo, ConfigError, size=size, remedy="raise size")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_WORD.findall(text))
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]
        return cls((cls.UNKNOWN, *kept))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """Token numbers of `text`."""
        return [self._number.get(word, 0) for word in _WORD.findall(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Readable text with English spacing, without ignored tokens."""
        out: list[str] = []
        glue = True
        for token in tokens:
            if token == IGNORE:
                continue
            word = self.words[token]
            if not glue and word not in _NO_SPACE_BEFORE:
                out.append(" ")
            out.append(word)
            glue = word in _NO_SPACE_AFTER
        return "".join(out)

    def to_json(self) -> str:
        return json.dumps({"vocabulary": "word", "words": self.words}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> WordVocabulary:
        return cls(tuple(_read_json(text, "word")["words"]))


@dataclass(frozen=True)
class BytePairVocabulary:
    """Byte-level byte-pair encoding. Tokens 0 to 255 are the bytes, token 256 + i is merge i.

    Merges never cross the border of a piece (a word with the blank before it), so the training cost
    depends on the number of distinct pieces.
    """

    merges: tuple[tuple[int, int], ...]
    _rank: dict[tuple[int, int], int] = field(init=False, repr=False, compare=False)
    _bytes: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    _seen: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        spelled = [bytes([b]) for b in range(256)]
        for i, (left, right) in enumerate(self.merges):
            if not (0 <= left < 256 + i and 0 <= right < 256 + i):
                raise DataError(
                    f"merge {i} of a byte-pair vocabulary is not well formed",
                    expected=f"two tokens from 0 to {255 + i}",
                    got=f"{left} and {right}",
                    remedy="build it with BytePairVocabulary.build",
                )
            spelled.append(spelled[left] + spelled[right])
        object.__setattr__(self, "_rank", {pair: i for i, pair in enumerate(self.merges)})
        object.__setattr__(self, "_bytes", tuple(spelled))
        object.__setattr__(self, "_seen", {})

    @classmethod
    def build(cls, texts: Iterable[str], *, merges: int) -> BytePairVocabulary:
        """The `merges` most frequent pairs, greedily; ties go to the smaller pair.

        Stops early if no pair occurs twice. Each merge recounts only the pieces with the merged
        pair; the best pair comes from a heap with lazy deletion.
        """
        require(Whole, ConfigError, merges=merges, remedy="raise merges")
        pieces: Counter[str] = Counter()
        for text in texts:
            pieces.update(_PIECE.findall(text))
        words = [list(piece.encode()) for piece in pieces]
        weight = list(pieces.values())

        counts: dict[tuple[int, int], int] = {}
        holders: dict[tuple[int, int], set[int]] = {}
        for w, word in enumerate(words):
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + weight[w]
                holders.setdefault(pair, set()).add(w)
        heap = [(-count, pair) for pair, count in counts.items()]
        heapq.heapify(heap)

        chosen: list[tuple[int, int]] = []
        while len(chosen) < merges and heap:
            negative, best = heapq.heappop(heap)
            if counts.get(best, 0) != -negative:
                continue  # outdated entry: the pair's count has changed
            if -negative < 2:
                break
            token = 256 + len(chosen)
            chosen.append(best)
            touched: set[tuple[int, int]] = set()
            for w in holders.pop(best):
                word = words[w]
                for pair in pairwise(word):
                    counts[pair] -= weight[w]
                    touched.add(pair)
                word = words[w] = _merged(word, best, token)
                for pair in pairwise(word):
                    counts[pair] = counts.get(pair, 0) + weight[w]
                    holders.setdefault(pair, set()).add(w)
                    touched.add(pair)
            counts.pop(best)
            touched.discard(best)
            for pair in touched:
                if counts[pair] > 0:
                    heapq.heappush(heap, (-counts[pair], pair))
                else:
                    counts.pop(pair)
                    holders.pop(pair, None)
        return cls(tuple(chosen))

    def __len__(self) -> int:
        return 256 + len(self.merges)

    def encode(self, text: str) -> list[int]:
        """Token numbers of any `text`."""
        out: list[int] = []
        for piece in _PIECE.findall(text):
            tokens = self._seen.get(piece)
            if tokens is None:
                tokens = self._seen[piece] = self._split(piece)
            out.extend(tokens)
        return out

    def _split(self, piece: str) -> tuple[int, ...]:
        word = list(piece.encode())
        while len(word) > 1:
            known = [self._rank[p] for p in pairwise(word) if p in self._rank]
            if not known:
                break
            first = min(known)
            word = _merged(word, self.merges[first], 256 + first)
        return tuple(word)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens` without ignored ones; incomplete characters become U+FFFD."""
        return b"".join(self._bytes[t] for t in tokens if t != IGNORE).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"vocabulary": "byte-pair", "merges": self.merges})

    @classmethod
    def from_json(cls, text: str) -> BytePairVocabulary:
        raw = _read_json(text, "byte-pair")
        return cls(tuple((int(left), int(right)) for left, right in raw["merges"]))


def _merged(word: list[int], pair: tuple[int, int], token: int) -> list[int]:
    """`word` with every occurrence of `pair`, left to right, replaced by `token`."""
    left, right = pair
    out: list[int] = []
    i, last = 0, len(word) - 1
    while i <= last:
        if i < last and word[i] == left and word[i + 1] == right:
            out.append(token)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def windows(
    token_ids: Sequence[int] | npt.NDArray[np.int64], length: int, *, ignore: int = IGNORE
) -> npt.NDArray[np.int64]:
    """Non-overlapping windows (n, length + 1): a model reads [:, :-1] and predicts [:, 1:].

    Drops a tail that fills less than half of a window; pads a longer one with `ignore`, which a
    loss ignores as a target. As an input, replace `ignore` by any valid token: in a causal model no
    kept target follows it.
    """
    require(Count, ConfigError, length=length, remedy="raise length")
    tokens = np.asarray(token_ids, dtype=np.int64)
    width = length + 1
    full, tail = divmod(len(tokens), width)
    if 2 * tail < width:
        return tokens[: full * width].reshape(full, width).copy()
    out = np.full((full + 1, width), ignore, dtype=np.int64)
    out.reshape(-1)[: len(tokens)] = tokens
    return out
