"""Embedding of a record as the patterns that attention sees: patches or tokens, then a fixed map.

    linear    x_j = Flatten(I_j) W_embed + p_j                    [ActiveMembership] Section 3.4
    fourier   x_j = sqrt(2/d) cos(Flatten(I_j) W + phase)         ours
    tokens    x_j = E[t_j] + p_j, or a separate row for every token and place

The server chooses the model, and with it the embedding, which is public, fixed and never trained.
The attack needs nearly orthogonal patterns. No linear map makes patches of small images nearly
orthogonal. Random Fourier features (Rahimi and Recht, 2007) of a small bandwidth do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices
from fedaudit.errors import ConfigError, DataError

BANDWIDTHS = (0.1, 0.3, 1.0)
"""Bandwidths of Fourier features that the server tries, in median distances of two patches."""
LARGEST_TABLE = 1 << 24
"""Largest size of a token embedding table, in numbers."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """A fixed map from records to patterns.

    `cut` (N, p): feature indices of each patch. `map` (p, d): the linear map. Then either
    `position` (N, d) is added, or the cosine is taken with `phase` (d,). For tokens instead:
    `table` (N, k, d), the pattern of each of k tokens in each place.
    """

    cut: Indices
    map: Floats
    position: Floats | None = None
    phase: Floats | None = None
    table: Floats | None = None

    def __post_init__(self) -> None:
        if self.patterns < 2:
            raise DataError(
                "attention needs several patterns per record",
                expected="at least 2 patterns",
                got=str(self.patterns),
                remedy="cut records into smaller patches",
            )
        if self.patterns > self.dimension:
            raise ConfigError(
                "a record has more patterns than dimensions",
                expected=f"at least {self.patterns} dimensions for {self.patterns} patterns",
                got=str(self.dimension),
                remedy=f"dimension = {self.patterns}, or larger patches",
            )

    @property
    def patterns(self) -> int:
        return len(self.cut)

    @property
    def dimension(self) -> int:
        return self.map.shape[1]

    @property
    def features(self) -> int:
        """Number of features that a record must have."""
        return int(self.cut.max()) + 1

    @property
    def tells_places_apart(self) -> bool:
        """Whether equal patches in different places become different patterns."""
        if self.table is not None:
            return not np.array_equal(self.table[0], self.table[1])
        if self.position is None:
            return False
        return len(np.unique(self.position.round(9), axis=0)) == self.patterns

    def __call__(self, x: npt.ArrayLike) -> Floats:
        """Records (n, r) to patterns (n, N, d)."""
        flat = np.asarray(x, dtype=np.float64)
        if self.table is not None:
            token = np.rint(flat[:, self.cut[:, 0]]).astype(np.int64)
            return np.asarray(self.table[np.arange(self.patterns), token])
        out = flat[:, self.cut] @ self.map
        if self.position is not None:
            out += self.position
        if self.phase is not None:
            out += self.phase
            np.cos(out, out=out)
            out *= np.sqrt(2.0 / self.dimension)
        return np.asarray(out)


def identity(patterns: int, dimension: int) -> Embedding:
    """For records that are already patterns, concatenated: (n, N d)."""
    return Embedding(
        np.arange(patterns * dimension).reshape(patterns, dimension), np.eye(dimension)
    )


def from_table(table: Floats) -> Embedding:
    """For records that are rows of token numbers (n, N); `table` (N, k, d) holds their patterns."""
    places, _, dimension = table.shape
    return Embedding(np.arange(places)[:, None], np.zeros((1, dimension)), table=table)


def tokens(
    places: int, words: int, dimension: int, rng: np.random.Generator, *, additive: bool = False
) -> Embedding:
    """Random unit rows for every token in every place.

    `additive`: a row per token plus a row per place, as in language models.
    """
    if places * words * dimension > LARGEST_TABLE:
        raise ConfigError(
            "the embedding of all tokens in all places is too large",
            expected=f"at most {LARGEST_TABLE:,} numbers",
            got=f"{places} places x {words:,} tokens x {dimension} dimensions",
            remedy="a smaller task.vocabulary_size or task.length, or fewer dimensions",
        )
    shape = (words, dimension) if additive else (places, words, dimension)
    table = rng.normal(size=shape) / np.sqrt(dimension)
    if additive:
        position = rng.normal(size=(places, 1, dimension)) / np.sqrt(dimension)
        table = (table[None] + position) / np.sqrt(2.0)
    return from_table(table)


def linear(
    shape: tuple[int, ...], patch: int, dimension: int, rng: np.random.Generator
) -> Embedding:
    """Patches mapped by orthonormal rows into `dimension` dimensions, plus a row for each place.

    The rows of places have random directions, and the root mean square norm of a patch whose values
    are uniform on [0, 1].
    """
    cut = cut_record(shape, patch)
    count, width = cut.shape
    if dimension < width:
        raise ConfigError(
            "a patch does not fit into so few dimensions",
            expected=f"at least {width} dimensions",
            got=str(dimension),
            remedy=f"dimension = {width}, or smaller patches",
        )
    q, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    position = rng.normal(size=(count, dimension))
    position *= np.sqrt(width / 3.0) / np.linalg.norm(position, axis=1, keepdims=True)
    return Embedding(cut, q[:width], position)


def fourier(
    shape: tuple[int, ...],
    patch: int,
    dimension: int,
    known: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    bandwidth: float = 0.3,
) -> Embedding:
    """Random Fourier features of patches.

    `bandwidth` is in median distances between patches of the `known` records (m, r).
    """
    cut = cut_record(shape, patch)
    patches = np.asarray(known, dtype=np.float64)[:, cut].reshape(-1, cut.shape[1])
    pairs = rng.integers(0, len(patches), (2, 2000))
    apart = np.linalg.norm(patches[pairs[0]] - patches[pairs[1]], axis=1)
    apart = apart[apart > 0]
    if not len(apart):
        raise DataError(
            "all patches are alike",
            expected="records that differ",
            got="no two different patches in 2,000 pairs",
            remedy="choose other records, or larger patches",
        )
    scale = bandwidth * float(np.median(apart))
    map_ = rng.normal(size=(cut.shape[1], dimension)) / scale
    return Embedding(cut, map_, phase=rng.uniform(0.0, 2.0 * np.pi, dimension))


def cut_record(shape: tuple[int, ...], patch: int) -> Indices:
    """Feature indices of every patch (N, p), for images (c, h, w) or features (r,).

    Images are cut into squares of `patch` pixels, feature rows into runs of `patch`.
    """
    size = int(np.prod(shape))
    numbers = np.arange(size)
    if len(shape) == 1:
        if size % patch:
            raise ConfigError(
                "records cannot be cut into patches of this size",
                expected=f"a divisor of {size} features",
                got=f"patch = {patch}",
                remedy=f"patch = {_divisor(size, patch)}",
            )
        return numbers.reshape(-1, patch)
    c, h, w = shape if len(shape) == 3 else (1, *shape)
    if h % patch or w % patch:
        raise ConfigError(
            "images cannot be cut into patches of this size",
            expected=f"a divisor of both {h} and {w}",
            got=f"patch = {patch}",
            remedy=f"patch = {_divisor(int(np.gcd(h, w)), patch)}",
        )
    cut = numbers.reshape(c, h // patch, patch, w // patch, patch).transpose(1, 3, 0, 2, 4)
    return cut.reshape(-1, c * patch * patch)


def _divisor(number: int, near: int) -> int:
    every = [k for k in range(1, number + 1) if number % k == 0]
    return min(every, key=lambda k: (abs(k - near), -k))
