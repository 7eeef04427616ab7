"""Baselines: quasi-Newton algebra against a dense matrix, clusters on plain cases."""

import numpy as np
import pytest

from fedaudit.errors import UsageError
from reproductions.attribution import baselines


def test_lbfgs_product_equals_dense_bfgs_updates():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((6, 6))
    hessian = a @ a.T + np.eye(6)
    s = rng.standard_normal((3, 6))
    y = s @ hessian
    b = float(y[-1] @ s[-1] / (s[-1] @ s[-1])) * np.eye(6)
    for si, yi in zip(s, y, strict=True):
        b = b - np.outer(b @ si, b @ si) / (si @ b @ si) + np.outer(yi, yi) / (yi @ si)
    v = rng.standard_normal(6)
    assert np.allclose(baselines._hessian_times(s, y, v), b @ v)


def test_fldetector_finds_who_does_not_follow_a_quadratic():
    """Honest updates are a gradient's; one client sends noise of the same size."""
    rng = np.random.default_rng(1)
    hessian = np.diag(rng.uniform(0.5, 1.5, 20))
    w, models, updates = rng.standard_normal(20), [], []
    for _ in range(8):
        x = np.tile(-0.3 * hessian @ w, (8, 1)) + 0.01 * rng.standard_normal((8, 20))
        x[5] = rng.standard_normal(20)
        models.append(w)
        updates.append(x)
        w = w + np.delete(x, 5, axis=0).mean(axis=0)
    scores = baselines.fldetector_scores([*models, w], updates)
    assert scores.argmax() == 5
    assert baselines.suspicious(scores, "kmeans").tolist() == [k == 5 for k in range(8)]
    with pytest.raises(UsageError, match="3 rounds"):
        baselines.fldetector_scores(models[:2], updates[:2])


def test_influence_is_the_first_order_loss_decrease():
    rng = np.random.default_rng(2)
    g, x = rng.standard_normal((3, 2, 5)), rng.standard_normal((3, 4, 5))
    got = baselines.influence(g, x)
    assert got.shape == (4, 2)
    assert np.isclose(got[1, 0], -sum(g[t, 0] @ x[t, 1] for t in range(3)))


def test_clusters():
    apart = np.array([[5.0, 0], [5.1, 0.1], [4.9, 0], [0, 0.1], [0.1, 0], [0, 0], [0.1, 0.1]])
    want = [True] * 3 + [False] * 4
    assert baselines.suspicious(apart, "kmeans").tolist() == want
    assert baselines.suspicious(apart, "hdbscan").tolist() == want
    # as released: clusters of seven cannot split seven clients
    assert not baselines.suspicious(apart, "hdbscan", smallest=7).any()
    assert not baselines.suspicious(np.ones(9), "kmeans").any()


def test_global_test_and_direct_oracle():
    rng = np.random.default_rng(3)
    null = rng.standard_normal((300, 50))
    own = rng.standard_normal(50)

    class Marks:
        keys = (0,)

        def statistics(self, rows, unused):
            return rows @ np.vstack([own, null[:unused]]).T

    marks = Marks()
    model = rng.standard_normal(50) + own
    assert baselines.global_test(marks, model, unused=300)[0] > 3
    updates = np.zeros((4, 5, 50))
    # the model carries the mark already: the oracle without differences flags benign clients too
    flags = baselines.direct(marks, np.tile(model, (4, 1)), updates, unused=300)
    assert flags.all()
