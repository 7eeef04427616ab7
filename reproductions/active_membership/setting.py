"""Data, mechanisms and scales."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.active_membership import patterns
from fedaudit.audits.active_membership.games import Universe
from fedaudit.data import builtin
from fedaudit.data.fetch import cache_folder, load_fetched, source
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from reproductions.active_membership import embedding

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

CATEGORICAL = ("grr", "rappor", "dbitflip")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is run. `trials` x `games` per point, as published 20 x 200.

    `noise`: L1 norms on spherical patterns, `finer` on one-hot ones, which are cheap. `text`:
    budgets of a token; records have `text_places` words of an alphabet of `text_words`.
    """

    sets: tuple[str, ...] = ("digits", "cifar10", "newsgroups")
    trials: int = 20
    games: int = 200
    records: int = 64
    universe: int = 1000
    bitwise: tuple[float, ...] = (2.0, 3.0, 4.0, 5.0, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0)
    ome: tuple[float, ...] = (4.0, 6.5, 8.0)
    categorical: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    one_hot: tuple[int, ...] = (10, 50, 100, 500, 1000)
    spherical: tuple[int, ...] = (10_000, 20_000, 35_000)
    noise: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0)
    finer: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
    patterns: tuple[int, ...] = (5, 10, 15)
    draws: int = 1000
    images: int = 400
    batches: tuple[int, ...] = (10, 20, 40)
    attention: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 6.0)
    betas: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    spreads: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    text: tuple[float, ...] = (8.0, 6.0, 4.0, 2.0)
    text_records: int = 10
    text_words: int = 256
    other_words: tuple[int, ...] = (128, 1000)
    text_places: int = 32

    def described(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


FULL = Scale()
QUICK = Scale(
    sets=("digits",),
    trials=3,
    games=20,
    records=16,
    universe=150,
    bitwise=(5.0, 9.0),
    ome=(5.0,),
    categorical=(1.0, 4.0),
    one_hot=(20, 50),
    spherical=(1000,),
    noise=(0.0, 0.3),
    finer=(0.0, 0.3),
    patterns=(5,),
    draws=200,
    images=40,
    batches=(4,),
    attention=(6.0,),
    betas=(0.01, 0.1),
    spreads=(1.0, 2.0),
    text=(),
    other_words=(),
)


def fetched(name: str) -> bool:
    """Whether a set can be used here without asking the network."""
    return name == "digits" or (cache_folder() / source(name).filename).is_file()


# -- features for the fully connected adversary ---------------------------------------------------


@dataclass(frozen=True)
class Features:
    """Training and held-out records; `low` and `high` that a quantiser is given."""

    x: Floats
    y: Indices
    test_x: Floats
    test_y: Indices
    low: float
    high: float


@lru_cache(maxsize=2)
def features(name: str) -> Features:
    if name == "digits":
        data = builtin.load("digits", seed=Seed(1))
        assert isinstance(data.x, np.ndarray)
        x = data.x.reshape(len(data), -1).astype(np.float64)
        order = Seed(2).generator("split").permutation(len(x))
        inside, outside = order[:1400], order[1400:]
        return Features(x[inside], data.y[inside], x[outside], data.y[outside], 0.0, 1.0)
    found = embedding.embeddings(4000, 1000)
    return Features(
        found["x"].astype(np.float64),
        found["y"],
        found["test_x"].astype(np.float64),
        found["test_y"],
        -3.0,
        3.0,
    )


def local(mechanism: str, epsilon: float, low: float, high: float, levels: int = 8) -> LocalDP:
    """A mechanism as published: bits for bitrand (20) and ome (10), levels for the others."""
    if mechanism in CATEGORICAL:
        bounds = {"alphabet": levels, "low": low, "high": high}
        return LocalDP(mechanism=mechanism, epsilon=epsilon, outside="clip", **bounds)  # type: ignore[arg-type]
    bits = 20 if mechanism == "bitrand" else 10
    return LocalDP(
        mechanism=mechanism,  # type: ignore[arg-type]
        epsilon=epsilon,
        bits=bits,
        integer_bits=5,
        outside="clip",
    )


def universe_of(x: Floats, hook: LocalDP, size: int) -> Universe:
    return Universe.of(x[:size], channel_of(hook, x.shape[1]))


# -- patch embeddings for attention ---------------------------------------------------------------

SHAPES = {49: (28, 4), 144: (36, 3)}  # patterns -> side of the image, side of a patch
DIMENSION = 192
PUBLISHED_DIMENSION = 768


class Plain(patterns.Embedding):
    """Records that are patterns already: what `patterns.identity` gives, without the product."""

    def __call__(self, x: npt.ArrayLike) -> Floats:
        return np.asarray(x, dtype=np.float64).reshape(-1, self.patterns, self.dimension)


@dataclass(frozen=True)
class Patched:
    """Embedded patches of images as records (m, N d), entries of size one."""

    x: Floats
    count: int
    dimension: int = field(default=DIMENSION)

    @property
    def identity(self) -> patterns.Embedding:
        same = patterns.identity(self.count, self.dimension)
        return Plain(same.cut, same.map)


@lru_cache(maxsize=2)
def patched(name: str, count: int, images: int, dimension: int = DIMENSION) -> Patched:
    """Images resized so that they give `count` patches, each as random Fourier features."""
    rng = Seed(9).generator("patches", count)
    if name == "digits":
        data = builtin.load("digits", seed=Seed(1))
        assert isinstance(data.x, np.ndarray)
        shape, patch, dimension = (1, 8, 8), 4, 64
        flat = data.x[:images].reshape(images, -1).astype(np.float64)
    else:
        import torch
        import torch.nn.functional as F

        side, patch = SHAPES[count]
        data = load_fetched(name, records=images, seed=Seed(11))
        resized = F.interpolate(
            torch.from_numpy(np.asarray(data.x)).float(),
            (side, side),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
        shape = (3, side, side)
        flat = resized.reshape(images, -1).double().numpy()
    made = patterns.fourier(shape, patch, dimension, flat, rng, bandwidth=0.1)
    embedded = made(flat) * np.sqrt(dimension / 2.0)
    return Patched(embedded.reshape(images, -1), made.patterns, dimension)
