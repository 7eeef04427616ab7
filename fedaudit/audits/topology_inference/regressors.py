"""From features to a share in [0, 1]: LightGBM (default), a multilayer perceptron, or ridge.

The number of trees, epochs and the penalty are chosen on held-out federations, never on rows of a
training federation: clients of one federation share a model, so a split by row would reward memory.
A regressor that does not beat the mean of the shadows there by a standard error is replaced by that
mean.

Shapes: `x` (N, D) may hold NaN; `p` (N,) in [0, 1]; `federation` (N,) numbers the federation of a
row; predictions (N,) are clipped to [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import NothingToSay

Features = npt.NDArray[np.float32]
Kind = Literal["lightgbm", "mlp", "ridge"]

FOLDS = 5
FEWEST_FEDERATIONS = 2 * FOLDS
FEWEST_ROWS = 100
HELD_OUT = 0.2
"""Share of the federations on which sizes and penalties are chosen."""

TREES = 400
PATIENCE = 20
TREE_SETTINGS: dict[str, Any] = {
    "objective": "l2",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "max_bin": 63,
    "verbosity": -1,
    # equal trees for any number of threads
    "deterministic": True,
    "force_col_wise": True,
}
EPOCHS = 100
PENALTIES = tuple(10.0**e for e in range(-1, 6))


@dataclass(frozen=True)
class Fitted:
    """A regressor: the `mean` p of its training rows, or a `predictor` that beats it."""

    mean: float
    predictor: Callable[[Features], Floats] | None

    def __call__(self, x: Features) -> Floats:
        if self.predictor is None:
            return np.full(len(x), self.mean)
        return np.clip(self.predictor(x), 0.0, 1.0)


def require_enough(federations: int, rows: int) -> None:
    """Refuse a corpus of shadows that is too small to learn from and validate on."""
    if federations < FEWEST_FEDERATIONS or rows < FEWEST_ROWS:
        clients = max(1, rows // max(federations, 1))
        need = max(FEWEST_FEDERATIONS, -(-FEWEST_ROWS // clients))
        raise NothingToSay(
            "the shadow corpus is too small for a regressor",
            code="too_few_shadows",
            expected=f"at least {FEWEST_FEDERATIONS} shadow federations and {FEWEST_ROWS} clients "
            "in them",
            got=f"{federations} with {rows} clients",
            remedy=f"audits.topology_inference.shadows = {need} or more",
        )


def fit(
    kind: Kind, x: Features, p: Floats, federation: npt.NDArray[np.int64], rng: np.random.Generator
) -> Fitted:
    """A regressor of `p` on `x`, its size chosen on a fifth of the federations."""
    names = np.unique(federation)
    held = rng.permutation(names)[: max(1, round(HELD_OUT * len(names)))]
    out = np.isin(federation, held)
    mean = float(p[~out].mean())
    if x.shape[1] == 0 or not np.ptp(p[~out]):
        return Fitted(mean, None)
    predictor = _FITTING[kind](x[~out], p[~out], x[out], p[out], int(rng.integers(2**31)))
    guess = np.clip(predictor(x[out]), 0.0, 1.0)
    gain = (p[out] - mean) ** 2 - (p[out] - guess) ** 2
    each = np.array([gain[federation[out] == f].mean() for f in held])
    doubt = float(each.std(ddof=1)) / np.sqrt(len(each)) if len(each) > 1 else 0.0
    return Fitted(mean, predictor if float(each.mean()) > doubt else None)


def out_of_fold(
    kind: Kind, x: Features, p: Floats, federation: npt.NDArray[np.int64], rng: np.random.Generator
) -> Floats:
    """Predictions (N,) of every row by a regressor that was not trained on its federation."""
    names = rng.permutation(np.unique(federation))
    fold_of = {f: i % FOLDS for i, f in enumerate(names.tolist())}
    fold = np.array([fold_of[f] for f in federation.tolist()])
    out = np.empty(len(p))
    for k in range(min(FOLDS, len(names))):
        inside = fold != k
        out[~inside] = fit(kind, x[inside], p[inside], federation[inside], rng)(x[~inside])
    return out


# -- the three kinds: trained on x, p; sized on x_held, p_held -------------------------------------

Predictor = Callable[[Features], Floats]


def _lightgbm(x: Features, p: Floats, x_held: Features, p_held: Floats, seed: int) -> Predictor:
    import lightgbm as lgb

    settings = {**TREE_SETTINGS, "seed": seed}
    data = lgb.Dataset(x, p, params=settings)
    held = data.create_valid(x_held, p_held)
    trees = lgb.train(
        settings,
        data,
        TREES,
        valid_sets=[held],
        callbacks=[lgb.early_stopping(PATIENCE, verbose=False)],
    )
    best = trees.best_iteration

    def predict(rows: Features) -> Floats:
        return np.asarray(trees.predict(rows, num_iteration=best), dtype=np.float64)

    return predict


def _scaler(x: Features) -> Callable[[Features], Features]:
    """A scaler of columns to mean 0 and deviation 1; missing values become the mean."""
    there = np.isfinite(x)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, x, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.square(np.where(there, x - mean, 0.0)).sum(axis=0) / count)
    spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(mean)), spread, np.inf)

    def scaled(rows: Features) -> Features:
        out = (np.where(np.isfinite(rows), rows, mean) - mean) / spread
        # limit extrapolation to a target far outside the shadows
        return np.clip(out, -10.0, 10.0).astype(np.float32)

    return scaled


def _mlp(x: Features, p: Floats, x_held: Features, p_held: Floats, seed: int) -> Predictor:
    from sklearn.neural_network import MLPRegressor

    scaled = _scaler(x)
    own, held = scaled(x), scaled(x_held)
    mean, spread = float(p.mean()), float(p.std())
    net = MLPRegressor(
        hidden_layer_sizes=(32,),
        alpha=1.0,
        learning_rate_init=3e-3,
        batch_size=min(64, len(own)),
        random_state=seed,
    )

    def predict(rows: Features) -> Floats:
        return np.asarray(mean + spread * net.predict(scaled(rows)), dtype=np.float64)

    best, at, weights = np.inf, 0, None
    for epoch in range(EPOCHS):
        net.partial_fit(own, (p - mean) / spread)
        loss = float(np.mean((np.clip(mean + spread * net.predict(held), 0, 1) - p_held) ** 2))
        if loss < best:
            best, at = loss, epoch
            weights = [[w.copy() for w in ws] for ws in (net.coefs_, net.intercepts_)]
        elif epoch - at >= PATIENCE // 2:
            break
    assert weights is not None
    net.coefs_, net.intercepts_ = weights
    return predict


def _ridge(x: Features, p: Floats, x_held: Features, p_held: Floats, seed: int) -> Predictor:
    scaled = _scaler(x)
    own, held = scaled(x).astype(np.float64), scaled(x_held).astype(np.float64)
    mean = float(p.mean())
    # one decomposition serves every penalty
    values, vectors = np.linalg.eigh(own.T @ own)
    moment = vectors.T @ (own.T @ (p - mean))
    best, chosen = np.inf, np.zeros(own.shape[1])
    for penalty in PENALTIES:
        slope = vectors @ (moment / (np.maximum(values, 0.0) + penalty))
        loss = float(np.mean((np.clip(held @ slope + mean, 0, 1) - p_held) ** 2))
        if loss < best:
            best, chosen = loss, slope

    def predict(rows: Features) -> Floats:
        return np.asarray(scaled(rows) @ chosen + mean, dtype=np.float64)

    return predict


_FITTING: dict[str, Callable[..., Predictor]] = {
    "lightgbm": _lightgbm,
    "mlp": _mlp,
    "ridge": _ridge,
}
