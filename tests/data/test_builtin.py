from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from fedaudit.data import builtin
from fedaudit.data.builtin import BUILTIN, check_settings, load
from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed

SEED = Seed(7)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_same_seed_same_data_and_valid_labels(name: str) -> None:
    a, b = load(name, seed=SEED), load(name, seed=SEED)
    assert np.array_equal(a.x, b.x)
    assert np.array_equal(a.y, b.y)
    assert a.client == b.client
    assert a.name == name
    assert a.y.dtype == np.int64
    if a.kind != "text":
        assert a.x.dtype == np.float32


@pytest.mark.parametrize("name", ["one-hot", "spherical", "gaussian-mixture"])
def test_another_seed_gives_other_data(name: str) -> None:
    assert not np.array_equal(load(name, seed=SEED).x, load(name, seed=Seed(8)).x)


def test_digits_and_breast_cancer_agree_with_scikit_learn() -> None:
    from sklearn.datasets import load_breast_cancer, load_digits

    digits, (x, y) = load("digits", seed=SEED), load_digits(return_X_y=True)
    assert digits.x.shape == (1797, 1, 8, 8)
    np.testing.assert_allclose(digits.x.reshape(1797, 64) * 16, x)
    assert np.array_equal(digits.y, y)
    assert (digits.x.min(), digits.x.max()) == (0.0, 1.0)

    cancer, bunch = load("breast-cancer", seed=SEED), load_breast_cancer()
    np.testing.assert_allclose(cancer.x, bunch.data, rtol=1e-6)
    assert np.array_equal(cancer.y, bunch.target)
    assert cancer.columns == tuple(bunch.feature_names)
    assert cancer.classes == tuple(bunch.target_names)


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_without_the_packaged_file_scikit_learn_itself_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = load(name, seed=SEED)
    monkeypatch.setattr(builtin, "_bundled", lambda filename: None)
    slow = load(name, seed=SEED)
    assert np.array_equal(quick.x, slow.x)
    assert np.array_equal(quick.y, slow.y)
    assert quick.classes == slow.classes


def test_loading_digits_does_not_import_scikit_learn() -> None:
    code = (
        "import sys; from fedaudit.data.builtin import load; from fedaudit.randomness import Seed;"
        "load('digits', seed=Seed(0)); load('breast-cancer', seed=Seed(0));"
        "sys.exit('sklearn' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_docs_owners_hold_enough_text_and_neighbouring_topics() -> None:
    docs = load("docs", seed=SEED)
    assert len(docs) == 79
    assert docs.client is not None
    size: Counter[str] = Counter()
    for text, owner in zip(docs.x, docs.client, strict=True):
        size[owner] += len(text.encode())
    assert min(size.values()) >= 8192
    assert len(size) >= 10
    changes = sum(a != b for a, b in zip(docs.client, docs.client[1:], strict=False))
    assert changes == len(size) - 1  # records are alphabetical, so every owner is one run
    assert len(set(load("docs", seed=SEED, minimum_bytes=10**9).client or ())) == 1


def test_one_hot_truth() -> None:
    data = load("one-hot", seed=SEED, records=300, dimension=40)
    assert np.array_equal(data.x.sum(axis=1), np.ones(300))
    assert np.array_equal(data.x.argmax(axis=1), data.y)
    distinct = load("one-hot", seed=SEED, records=40, dimension=40, distinct=True)
    assert len(np.unique(distinct.y)) == 40
    with pytest.raises(ConfigError, match="distinct"):
        load("one-hot", seed=SEED, records=41, dimension=40, distinct=True)


def test_spherical_truth() -> None:
    x = load("spherical", seed=SEED, records=4000, dimension=10).x
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-5)
    # uniform on the sphere: mean 0 and covariance I / d, to within 5 standard errors
    assert np.abs(x.mean(axis=0)).max() < 5 / math.sqrt(10 * 4000)
    assert np.abs(x.T @ x / 4000 - np.eye(10) / 10).max() < 5 * 0.14 / math.sqrt(4000)


def test_gaussian_mixture_has_the_stated_bayes_accuracy_and_shift() -> None:
    from scipy.stats import norm

    x, y, owner = builtin.gaussian_mixture(
        np.random.default_rng(1), records=20_000, dimension=5, classes=2, separation=2.0
    )
    assert owner is None
    means = np.stack([x[y == c].mean(axis=0) for c in (0, 1)])
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(2.0, abs=0.08)
    nearest_mean = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    accuracy = (nearest_mean == y).mean()
    assert accuracy == pytest.approx(norm.cdf(1.0), abs=5 * math.sqrt(0.84 * 0.16 / 20_000))

    x, y, owner = builtin.gaussian_mixture(
        np.random.default_rng(1), records=20_000, dimension=5, classes=2, separation=0.0,
        clients=4, client_shift=3.0,
    )  # fmt: skip
    assert owner is not None
    for k in range(4):
        assert np.linalg.norm(x[owner == k].mean(axis=0)) == pytest.approx(3.0, abs=0.12)
        assert np.bincount(y[owner == k]).min() > 2300  # owners say nothing of the class


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"classes": 30}, "dimension"),
        ({"clients": 3000}, "records"),
        ({"client_shift": 1.0}, "clients"),
    ],
)
def test_gaussian_mixture_refuses_what_cannot_be(settings: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load("gaussian-mixture", seed=SEED, **settings)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        load("digit", seed=SEED)
    with pytest.raises(ConfigError, match="did you mean 'dimension'"):
        load("spherical", seed=SEED, dimensions=5)
    with pytest.raises(ConfigError, match="remove"):
        load("digits", seed=SEED, records=5)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", None, math.nan, math.inf])
def test_wrong_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="records"):
        check_settings("spherical", {"records": value})


def test_defaults_are_filled_in_and_have_their_type() -> None:
    values = check_settings("gaussian-mixture", {"separation": 2})
    assert values["separation"] == 2.0
    assert isinstance(values["separation"], float)
    for entry in BUILTIN.values():
        assert entry.summary
        for setting in entry.settings:
            assert setting.check(entry.name, setting.default) == setting.default
    assert check_settings("mnist", {}) == {"records": 0}


def test_docs_are_the_same_text_under_every_python() -> None:
    text = "".join(load("docs", seed=SEED).x)
    assert hashlib.sha256(text.encode()).hexdigest().startswith("37d06970fc926e60")
