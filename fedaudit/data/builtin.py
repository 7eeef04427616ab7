"""Data sets without download, by name.

Real: `digits` and `breast-cancer` (from scikit-learn's files), `docs` (the language reference of
Python 3.11, as its `help()` shows it; shipped, because every Python has another text). Synthetic,
with a known truth: `one-hot`, `spherical`, `gaussian-mixture`.

`load(name, seed=..., **settings)` also loads sets of `fetch` that are in the cache. `BUILTIN`
describes each set and its settings, for listings and config checks.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data import fetch
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError
from fedaudit.files import read_data
from fedaudit.randomness import Seed

SHIPPED = Path(__file__).with_name("shipped")


@dataclass(frozen=True, kw_only=True)
class DatasetSetting:
    """One argument of a data set: its type, default, smallest value and meaning."""

    name: str
    type: type[int] | type[float] | type[bool]
    default: int | float | bool
    minimum: float | None = None
    meaning: str

    def check(self, dataset: str, value: Any) -> int | float | bool:
        """Convert `value` to this setting's type, or raise ConfigError."""
        # bool is a subclass of int: records = true would be one record
        good = (
            isinstance(value, bool)
            if self.type is bool
            else isinstance(value, int | float | np.integer | np.floating)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and (self.type is float or value == int(value))
        )
        if not good or (self.minimum is not None and value < self.minimum):
            least = "" if self.minimum is None else f", at least {self.minimum:g}"
            raise ConfigError(
                f"data set {dataset!r}: setting {self.name!r} cannot be {value!r}",
                expected=f"{self.type.__name__}{least}",
                got=f"{value!r} ({type(value).__name__})",
                remedy=f"{self.name} = {self.default!r} is the default ({self.meaning})",
            )
        return self.type(value)


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A data set that can be loaded by name."""

    name: str
    summary: str
    make: Callable[..., Dataset]
    settings: tuple[DatasetSetting, ...] = ()


def check_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of data set `name`, with defaults.

    Raises ConfigError for an unknown data set, an unknown setting or a wrong value.
    """
    known = _settings_of(name)
    by_name = {s.name: s for s in known}
    for given in settings:
        if given not in by_name:
            raise ConfigError.unknown(f"data set {name!r} has no setting {given!r}", given, by_name)
    return {s.name: s.check(name, settings.get(s.name, s.default)) for s in known}


def load(name: str, *, seed: Seed, **settings: Any) -> Dataset:
    """Load data set `name`; `seed` draws synthetic ones."""
    values = check_settings(name, settings)
    if name in fetch.SOURCES:
        return fetch.load_fetched(name, seed=seed, **values)
    return BUILTIN[name].make(seed=seed, **values)


def _settings_of(name: str) -> tuple[DatasetSetting, ...]:
    if name in BUILTIN:
        return BUILTIN[name].settings
    if name in fetch.SOURCES:
        return FETCHED_SETTINGS
    raise ConfigError.unknown(
        f"there is no data set called {name!r}",
        name,
        [*BUILTIN, *fetch.SOURCES],
        expected="the name of a built-in or fetched data set, or a path to your own files",
    )


# ---------------------------------------------------------------- real, bundled elsewhere


def _bundled(filename: str) -> str | None:
    """Text of a file in scikit-learn's data folder.

    Does not import scikit-learn: `import sklearn.datasets` takes more than a second.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        return None
    for place in spec.submodule_search_locations:
        path = Path(place) / "datasets" / "data" / filename
        if path.is_file():
            return read_data(path).decode()
    return None


def _digits(*, seed: Seed) -> Dataset:
    text = _bundled("digits.csv.gz")
    if text is not None:
        table = np.array([row.split(",") for row in text.split()], dtype=np.float64)
        pixels, labels = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    return Dataset(
        name="digits",
        kind="image",
        x=(pixels / 16.0).reshape(-1, 1, 8, 8).astype(np.float32),
        y=labels.astype(np.int64),
        classes=tuple("0123456789"),
        licence="CC BY 4.0 (Optical Recognition of Handwritten Digits, UCI)",
    )


# The ten measurements, each as mean, standard error and worst value over the cell nuclei.
_NUCLEUS = (
    "radius", "texture", "perimeter", "area", "smoothness",
    "compactness", "concavity", "concave points", "symmetry", "fractal dimension",
)  # fmt: skip


def _breast_cancer(*, seed: Seed) -> Dataset:
    text = _bundled("breast_cancer.csv")
    if text is not None:
        head, *rows = text.split()
        table = np.array([row.split(",") for row in rows], dtype=np.float64)
        values, labels, classes = table[:, :-1], table[:, -1], tuple(head.split(",")[2:])
    else:
        from sklearn.datasets import load_breast_cancer

        values, labels = load_breast_cancer(return_X_y=True)
        classes = ("malignant", "benign")
    return Dataset(
        name="breast-cancer",
        kind="features",
        x=values.astype(np.float32),
        y=labels.astype(np.int64),
        classes=classes,
        columns=(
            *(f"mean {m}" for m in _NUCLEUS),
            *(f"{m} error" for m in _NUCLEUS),
            *(f"worst {m}" for m in _NUCLEUS),
        ),
        licence="CC BY 4.0 (Breast Cancer Wisconsin Diagnostic, UCI)",
    )


def _docs(*, seed: Seed, minimum_bytes: int) -> Dataset:
    topics: dict[str, str] = json.loads(read_data(SHIPPED / "docs.json.gz"))
    names = sorted(topics)
    texts = tuple(topics[name].strip() + "\n" for name in names)
    # Topics close in the alphabet are related (assert, assignment, async, ...), so runs of topics
    # are natural owners. A run grows until it holds enough text.
    runs: list[list[int]] = [[]]
    held = 0
    for i, text in enumerate(texts):
        if held >= minimum_bytes:
            runs.append([])
            held = 0
        runs[-1].append(i)
        held += len(text.encode())
    if held < minimum_bytes and len(runs) > 1:
        runs[-2].extend(runs.pop())
    client = [""] * len(texts)
    for run in runs:
        for i in run:
            client[i] = f"{names[run[0]]}..{names[run[-1]]}"
    return Dataset(
        name="docs",
        kind="text",
        x=texts,
        y=np.zeros(len(texts), dtype=np.int64),
        client=tuple(client),
        licence="PSF-2.0 (the Python Language Reference)",
        notes=(
            f"{len(texts)} topics of the language reference of Python 3.11, {len(runs)} owners",
        ),
    )


# ---------------------------------------------------------------- synthetic, truth known


def one_hot(
    rng: np.random.Generator, *, records: int, dimension: int, distinct: bool = False
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """One-hot vectors (records, dimension) and the position of each 1 (records,).

    `distinct`: all records differ; needs `records <= dimension`.
    """
    if distinct and records > dimension:
        raise ConfigError(
            "data set 'one-hot': not enough distinct vectors",
            expected=f"records of at most {dimension} when distinct = true",
            got=f"records = {records}",
            remedy="raise dimension, lower records, or set distinct = false",
        )
    position = (
        rng.permutation(dimension)[:records] if distinct else rng.integers(dimension, size=records)
    ).astype(np.int64)
    x = np.zeros((records, dimension), dtype=np.float32)
    x[np.arange(records), position] = 1.0
    return x, position


def spherical(rng: np.random.Generator, *, records: int, dimension: int) -> npt.NDArray[np.float32]:
    """Points uniform on the unit sphere, (records, dimension)."""
    x = rng.standard_normal((records, dimension))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32)


def gaussian_mixture(
    rng: np.random.Generator,
    *,
    records: int,
    dimension: int,
    classes: int,
    separation: float,
    clients: int = 0,
    client_shift: float = 0.0,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Spherical Gaussians of unit variance, one per class.

    Any two class means are exactly `separation` apart, so for two classes the best possible
    accuracy is Phi(separation / 2). With `clients`, each client's records are shifted by one vector
    of length `client_shift`, in a random direction per client.

    Returns:
        x (records, dimension), y (records,), client number (records,) or None.
    """
    if classes > dimension:
        raise ConfigError(
            "data set 'gaussian-mixture': too many classes for the dimension",
            expected=f"classes of at most {dimension}, the dimension",
            got=f"classes = {classes}",
            remedy="raise dimension or lower classes (means are orthogonal)",
        )
    if clients > records:
        raise ConfigError(
            "data set 'gaussian-mixture': more clients than records",
            expected=f"clients of at most {records}, the records",
            got=f"clients = {clients}",
            remedy="raise records or lower clients",
        )
    if client_shift and not clients:
        raise ConfigError(
            "data set 'gaussian-mixture': client_shift without clients",
            expected="clients of at least 1 when client_shift is not 0",
            got="clients = 0",
            remedy="set clients to the number of owners",
        )
    y = rng.permutation(np.arange(records) % classes).astype(np.int64)
    # Orthonormal directions times separation / sqrt(2) are pairwise `separation` apart.
    basis, _ = np.linalg.qr(rng.standard_normal((dimension, classes)))
    x = rng.standard_normal((records, dimension)) + (basis.T * separation / math.sqrt(2))[y]
    if not clients:
        return x.astype(np.float32), y, None
    owner = (np.arange(records) % clients).astype(np.int64)
    shift = rng.standard_normal((clients, dimension))
    shift *= client_shift / np.linalg.norm(shift, axis=1, keepdims=True)
    return (x + shift[owner]).astype(np.float32), y, owner


def _one_hot(*, seed: Seed, records: int, dimension: int, distinct: bool) -> Dataset:
    x, y = one_hot(
        seed.generator("data/one-hot"), records=records, dimension=dimension, distinct=distinct
    )
    return Dataset(
        name="one-hot", kind="features", x=x, y=y,
        classes=tuple(str(c) for c in range(dimension)),
        notes=("synthetic: the label is the position of the one",),
    )  # fmt: skip


def _spherical(*, seed: Seed, records: int, dimension: int) -> Dataset:
    x = spherical(seed.generator("data/spherical"), records=records, dimension=dimension)
    return Dataset(
        name="spherical", kind="features", x=x, y=(x[:, 0] > 0).astype(np.int64),
        classes=("south", "north"),
        notes=("synthetic: the label is the sign of the first coordinate",),
    )  # fmt: skip


def _gaussian_mixture(
    *,
    seed: Seed,
    records: int,
    dimension: int,
    classes: int,
    separation: float,
    clients: int,
    client_shift: float,
) -> Dataset:
    x, y, owner = gaussian_mixture(
        seed.generator("data/gaussian-mixture"),
        records=records,
        dimension=dimension,
        classes=classes,
        separation=separation,
        clients=clients,
        client_shift=client_shift,
    )
    width = len(str(max(clients - 1, 0)))
    return Dataset(
        name="gaussian-mixture",
        kind="features",
        x=x,
        y=y,
        classes=tuple(f"class-{c}" for c in range(classes)),
        client=None if owner is None else tuple(f"owner-{k:0{width}d}" for k in owner),
        notes=(f"synthetic: class means {separation:g} apart, clients moved by {client_shift:g}",),
    )


def _count(name: str, default: int, meaning: str, minimum: int = 1) -> DatasetSetting:
    return DatasetSetting(name=name, type=int, default=default, minimum=minimum, meaning=meaning)


_TABLE = (
    Builtin(
        name="digits", make=_digits,
        summary="1,797 images of handwritten digits, 10 classes",
    ),
    Builtin(
        name="breast-cancer", make=_breast_cancer,
        summary="569 patients, 30 measurements of cell nuclei, benign or malignant",
    ),
    Builtin(
        name="docs", make=_docs,
        summary="Python's language reference, one text per topic",
        settings=(_count("minimum_bytes", 8192, "least text of an owner"),),
    ),
    Builtin(
        name="one-hot", make=_one_hot,
        summary="synthetic: one-hot vectors, the easiest records to recognise",
        settings=(
            _count("records", 1000, "number of records"),
            _count("dimension", 100, "length of a vector", 2),
            DatasetSetting(
                name="distinct", type=bool, default=False, meaning="no two records are equal"
            ),
        ),
    ),
    Builtin(
        name="spherical", make=_spherical,
        summary="synthetic: points uniform on the unit sphere",
        settings=(
            _count("records", 1000, "number of records"),
            _count("dimension", 100, "length of a vector", 2),
        ),
    ),
    Builtin(
        name="gaussian-mixture", make=_gaussian_mixture,
        summary="synthetic: one Gaussian per class, optional shift per client",
        settings=(
            _count("records", 2000, "number of records"),
            _count("dimension", 20, "length of a vector"),
            _count("classes", 4, "number of classes", 2),
            DatasetSetting(
                name="separation", type=float, default=3.0, minimum=0.0,
                meaning="distance of any two class means, in standard deviations",
            ),
            _count("clients", 0, "number of natural owners, 0 for none", 0),
            DatasetSetting(
                name="client_shift", type=float, default=0.0, minimum=0.0,
                meaning="how far all records of an owner are moved, in standard deviations",
            ),
        ),
    ),
)  # fmt: skip

BUILTIN: Mapping[str, Builtin] = MappingProxyType({entry.name: entry for entry in _TABLE})

FETCHED_SETTINGS: tuple[DatasetSetting, ...] = (
    _count("records", 0, "training records to draw at random, 0 for all", 0),
)
