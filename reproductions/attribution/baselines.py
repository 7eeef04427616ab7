"""Other ways to find marked clients, on the same run. All but the first read plaintext updates.

    global test         the owner's score of the last model: says that, never who
    direct              Stouffer over scores of w + update, without the difference (the paper's
                        oracle, [FedAttr] Appendix F.4)
    FLDetector          a client is suspicious whose updates a quasi-Newton model predicts badly
    FLForensics         a client is suspicious whose updates lower the loss on the owner's probes,
                        and not that on ordinary records

Adaptations, since both were made for other questions: FLDetector as released gives no score before
round 51; here the window is as long as the run, from round 3 on. FLForensics as released asks for
clusters of 7, which cannot split 10 clients; here of 2. Influence is to first order. Both flag the
cluster with the larger mean score if two clusters are better than one by the silhouette.
Shapes: models (T + 1, d), updates (T, K, d), influence (K, 2).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution import scoring
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.errors import UsageError


def global_test(marks: Marks, model: npt.ArrayLike, *, unused: int = 999) -> Floats:
    """z (S,) of the owner's keys on one model, against unused keys."""
    row = np.atleast_2d(np.asarray(model))
    return scoring.standardised(
        marks.statistics(row, unused), len(marks.keys), apart=bool(getattr(marks, "apart", False))
    )[0]


def direct(
    marks: Marks,
    starts: npt.ArrayLike,
    updates: npt.ArrayLike,
    *,
    threshold: float = 4.0,
    unused: int = 999,
) -> Bools:
    """The oracle (K,): Stouffer's sum of z(w + update) above the threshold for any key."""
    w, x = np.asarray(starts, dtype=np.float64), np.asarray(updates, dtype=np.float64)
    keys, apart = len(marks.keys), bool(getattr(marks, "apart", False))
    z = [
        scoring.standardised(marks.statistics(w[t] + x[t], unused), keys, apart=apart)
        for t in range(len(x))
    ]
    total = scoring.stouffer_by_client(np.stack(z))
    return np.asarray(total.max(axis=1, initial=-np.inf) > threshold)


def fldetector_scores(models: npt.ArrayLike, updates: npt.ArrayLike, *, history: int = 5) -> Floats:
    """Suspicion (K,): mean over rounds of the normalised distance to the predicted update.

    Predicted is a client's last update plus H (w_t - w_{t-1}), with L-BFGS's H from up to `history`
    pairs of model and mean-update differences.
    """
    w, x = np.asarray(models, dtype=np.float64), np.asarray(updates, dtype=np.float64)
    if len(x) < 3:
        raise UsageError(
            "FLDetector predicts an update from earlier ones",
            expected="at least 3 rounds",
            got=str(len(x)),
            remedy="record more rounds",
        )
    means = x.mean(axis=1)
    scores = []
    for t in range(2, len(x)):
        first = max(0, t - 1 - history)
        s = np.diff(w[first:t], axis=0)
        y = np.diff(means[first:t], axis=0)
        predicted = x[t - 1] + _hessian_times(s, y, w[t] - w[t - 1])
        away = np.linalg.norm(x[t] - predicted, axis=1)
        scores.append(away / max(float(away.sum()), 1e-300))
    return np.asarray(np.mean(scores, axis=0))


def _hessian_times(s: Floats, y: Floats, v: Floats) -> Floats:
    """B v by L-BFGS's compact form; s, y (m, d) differences of models and of mean updates."""
    sy = s @ y.T
    sigma = float((y[-1] @ s[-1]) / max(float(s[-1] @ s[-1]), 1e-300))
    lower = np.tril(sy, -1)
    middle = np.block([[sigma * (s @ s.T), lower], [lower.T, -np.diag(np.diag(sy))]])
    right = np.concatenate([sigma * (s @ v), y @ v])
    inner = np.linalg.lstsq(middle, right, rcond=None)[0]
    both = np.concatenate([sigma * s, y])
    return np.asarray(sigma * v - both.T @ inner)


def influence(gradients: npt.ArrayLike, updates: npt.ArrayLike) -> Floats:
    """To first order, by how much a client's updates lower losses: (K, P).

    `gradients` (T, P, d) of P losses (owner's probes, ordinary records) at the models of each
    round; `updates` (T, K, d).
    """
    g, x = np.asarray(gradients, dtype=np.float64), np.asarray(updates, dtype=np.float64)
    return np.asarray(-np.einsum("tkd,tpd->kp", x, g))


def suspicious(
    scores: npt.ArrayLike, method: Literal["kmeans", "hdbscan"], *, smallest: int = 2
) -> Bools:
    """Flagged clients (K,) from scores (K,) or influence (K, P), the first column the suspicious.

    k-means in two, if the silhouette says that two are better than one (above 0.5); HDBSCAN with
    clusters of `smallest`: the one with the largest mean, if there are two at least. Noise is not
    flagged.
    """
    from sklearn.cluster import HDBSCAN, KMeans
    from sklearn.metrics import silhouette_score

    x = np.asarray(scores, dtype=np.float64)
    x = x.reshape(len(x), -1)
    x = x - x.mean(axis=0)
    spread = float(np.abs(x).max())  # one scale for all columns: a quiet one stays quiet
    none = np.zeros(len(x), dtype=np.bool_)
    if spread == 0 or len(x) < 3:
        return none
    x = x / spread
    if method == "kmeans":
        labels = KMeans(n_clusters=2, n_init=10, random_state=0).fit_predict(x)
        if silhouette_score(x, labels) <= 0.5:
            return none
    else:
        size = min(smallest, len(x))
        labels = HDBSCAN(min_cluster_size=size, copy=True).fit_predict(x)
    found = [c for c in np.unique(labels) if c >= 0]
    if len(found) < 2:
        return none
    worst = max(found, key=lambda c: float(x[labels == c, 0].mean()))
    return np.asarray(labels == worst)
