from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.data.text import (
    _PIECE,
    IGNORE,
    BytePairVocabulary,
    WordVocabulary,
    windows,
)
from fedaudit.errors import ConfigError, DataError

CORPUS = (
    "the cat sat on the mat, the cat ate the rat.",
    "a cat and a rat: that is that!",
    "naïve café — Ünïcode ​ 日本語\n\n\tindented (text)",
)
PAIRS = BytePairVocabulary.build(CORPUS, merges=60)


def naive_merges(texts: tuple[str, ...], merges: int) -> list[tuple[int, int]]:
    """Recount every pair for every merge."""
    pieces = Counter(piece for text in texts for piece in _PIECE.findall(text))
    words = [(list(piece.encode()), n) for piece, n in pieces.items()]
    out: list[tuple[int, int]] = []
    for token in range(256, 256 + merges):
        counts: Counter[tuple[int, int]] = Counter()
        for word, n in words:
            for i in range(len(word) - 1):
                counts[word[i], word[i + 1]] += n
        if not counts or max(counts.values()) < 2:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        out.append(best)
        for word, _ in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [token]
                i += 1
    return out


def test_merges_equal_the_naive_ones() -> None:
    fast = BytePairVocabulary.build(CORPUS, merges=60)
    assert list(fast.merges) == naive_merges(CORPUS, 60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab c", max_size=25), min_size=1, max_size=5), st.integers(0, 12))
def test_merges_equal_the_naive_ones_on_repetitive_text(texts: list[str], merges: int) -> None:
    fast = BytePairVocabulary.build(texts, merges=merges)
    assert list(fast.merges) == naive_merges(tuple(texts), merges)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_byte_pairs_lose_nothing(text: str) -> None:
    tokens = PAIRS.encode(text)
    assert PAIRS.decode(tokens) == text
    assert all(0 <= t < len(PAIRS) for t in tokens)


def test_byte_pairs_shorten_their_corpus() -> None:
    vocabulary = BytePairVocabulary.build(CORPUS, merges=60)
    assert len(vocabulary.encode(CORPUS[0])) <= len(CORPUS[0]) / 2
    assert vocabulary.encode(CORPUS[0]) == vocabulary.encode(CORPUS[0])


def test_words_known_unknown_and_readable() -> None:
    vocabulary = WordVocabulary.build(CORPUS, size=6)
    # "the" occurs four times, "cat" three times
    assert vocabulary.words[:3] == ("<unk>", "the", "cat")
    assert len(vocabulary) == 6
    assert vocabulary.encode("the dog") == [1, 0]
    full = WordVocabulary.build(CORPUS, size=1000)
    assert full.decode(full.encode(CORPUS[0])) == CORPUS[0]
    assert full.decode([*full.encode("cat (text)"), IGNORE]) == "cat (text)"


def test_vocabularies_survive_json_and_refuse_each_other() -> None:
    words = WordVocabulary.build(CORPUS, size=20)
    pairs = BytePairVocabulary.build(CORPUS, merges=20)
    assert WordVocabulary.from_json(words.to_json()) == words
    assert BytePairVocabulary.from_json(pairs.to_json()) == pairs
    with pytest.raises(DataError, match="word"):
        WordVocabulary.from_json(pairs.to_json())
    with pytest.raises(DataError, match="byte-pair"):
        BytePairVocabulary.from_json("{")
    with pytest.raises(DataError, match="merge 0"):
        BytePairVocabulary(((300, 1),))
    with pytest.raises(ConfigError):
        WordVocabulary.build(CORPUS, size=1)


@pytest.mark.parametrize(
    ("tokens", "length", "rows", "padded"),
    [
        (8, 3, 2, 0),
        (9, 3, 2, 0),
        (10, 3, 3, 2),
        (11, 3, 3, 1),
        (1, 3, 0, 0),
        (0, 3, 0, 0),
        (3, 3, 1, 1),
    ],
)
def test_windows_do_not_overlap_and_follow_the_padding_policy(
    tokens: int, length: int, rows: int, padded: int
) -> None:
    out = windows(list(range(tokens)), length)
    assert out.shape == (rows, length + 1)
    assert out.dtype == np.int64
    assert (out == IGNORE).sum() == padded
    flat = out.reshape(-1)
    kept = flat[flat != IGNORE]
    assert np.array_equal(kept, np.arange(len(kept)))


def test_windows_refuse_a_length_of_zero() -> None:
    with pytest.raises(ConfigError, match="length"):
        windows([1, 2], 0)
