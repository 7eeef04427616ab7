"""Scores of guesses: images, columns beside one constant, classes counted, runs of tokens."""

import numpy as np
import pytest

from fedaudit.audits.reconstruction import images, tokens
from fedaudit.audits.reconstruction.audit import Guesses, _by_column, _labels_right, _likeness
from fedaudit.audits.reconstruction.facts import CONSTANT, PSNR, RIGHT, SSIM
from fedaudit.audits.reconstruction.prior import Prior
from fedaudit.audits.reconstruction.scores import Asked
from fedaudit.audits.reconstruction.tokens import TokenGuesses
from fedaudit.knowledge.prior import most_often_right
from fedaudit.trace import MemoryTruth


def twin_ssim(a, b):
    """Window by window, channel by channel."""
    size, found = min(7, *a.shape[1:]), []
    for p, q in zip(a, b, strict=True):
        for y in range(p.shape[0] - size + 1):
            for x in range(p.shape[1] - size + 1):
                s, t = (v[y : y + size, x : x + size].ravel() for v in (p, q))
                c = np.cov(s, t)
                light = (2 * s.mean() * t.mean() + 1e-4) / (s.mean() ** 2 + t.mean() ** 2 + 1e-4)
                found.append(light * (2 * c[0, 1] + 9e-4) / (c[0, 0] + c[1, 1] + 9e-4))
    return np.mean(found)


@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 12, 9), (2, 1, 4, 4)])
def test_naive_structural_similarity_window_by_window(shape):
    rng = np.random.default_rng(0)
    a, b = rng.random(shape), rng.random(shape)
    expected = [twin_ssim(p, q) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(images.ssim(a, b, 1.0), expected, rtol=1e-9)
    np.testing.assert_allclose(images.ssim(a, a, 1.0), 1.0)


def test_theory_signal_to_noise_is_minus_twenty_decimal_logarithms_of_the_error():
    image = np.full((2, 1, 4, 4), 0.5)
    np.testing.assert_allclose(images.psnr(image + 0.1, image, 1.0), 20.0)
    np.testing.assert_allclose(images.psnr(image, image, 1.0), images.MOST_PSNR)


def test_naive_the_best_constant_of_a_column_is_right_most_often():
    rng = np.random.default_rng(1)
    x = np.stack([rng.integers(0, 4, 200), rng.exponential(size=200)], axis=1).astype(np.float64)
    within = np.array([0.15, 0.2])
    best = most_often_right(x, within)
    for d in range(2):
        right = (np.abs(x[:, d] - best[d]) <= within[d] + 1e-9).sum()
        tried = np.linspace(x[:, d].min(), x[:, d].max(), 2000)
        assert right >= max((np.abs(x[:, d] - v) <= within[d]).sum() for v in tried)


def asked(x):
    n = len(x)
    return Asked(x, np.zeros(n, np.int64), np.zeros(n, np.int64), np.arange(n) < n // 2)


def prior(shape, x, **more):
    return Prior(low=x.min(0), high=x.max(0), middle=np.median(x, axis=0), shape=shape, **more)


def test_a_table_is_scored_column_by_column_beside_one_constant():
    x = np.random.default_rng(2).random((40, 3))
    guessed = x.copy()
    guessed[:, 2] = 5.0
    guessed[-1] = np.nan  # nobody guessed this one
    known = prior((3,), x, constant=np.array([0.5, 0.5, 0.5]))
    likeness = _likeness(known, guessed, asked(x))
    np.testing.assert_allclose(likeness[RIGHT][:-1], 2 / 3)
    assert np.isnan(likeness[RIGHT][-1])
    assert 0.0 < likeness[CONSTANT].mean() < 0.3
    assert PSNR not in likeness
    column = _by_column(known, guessed, asked(x))["columns right"]
    assert column["trained on"] == (1.0, 1.0, 0.0)
    assert max(column["one constant"]) < 0.4


def test_an_image_is_scored_by_psnr_and_ssim_and_not_by_column():
    x = np.random.default_rng(3).random((6, 64))
    likeness = _likeness(prior((1, 8, 8), x), x, asked(x))
    assert set(likeness) == {RIGHT, CONSTANT, PSNR, SSIM}
    assert _by_column(prior((1, 8, 8), x), x, asked(x)) == {}


def test_counted_classes_are_compared_with_the_true_ones():
    truth = MemoryTruth({"clients": {"a": {"classes": [3, 1, 0]}}})
    assert _labels_right(np.array([2, 1, 1]), truth, "a") == 0.75
    assert _labels_right(None, truth, "a") is None
    assert _labels_right(np.array([1]), truth, "b") is None


def test_the_longest_run_counts_consecutive_tokens_of_one_update():
    used = np.zeros((2, 10), bool)
    used[0, [1, 2, 4, 5, 6]] = True
    used[1] = True
    guess = TokenGuesses(
        used=used,
        placed=np.full((2, 6), -1),
        sender=("a", "b"),
        round=np.array([1, 1]),
        sizes={"a": 1, "b": 1},
        last_is_read=True,
        noisy=(),
        notes=(),
        vantage="server",
        trace_sha256="",
    )
    x = np.array([[1, 2, 3, 4, 5, 6], [3, 3, 3, 0, 0, 0], [1, 2, -1, -1, -1, -1]])
    found = tokens.longest_run(guess, ["a", "b"], x, np.zeros(3, np.int64))
    np.testing.assert_allclose(found, [0.5, 0.0, 1.0])


def test_guesses_keep_their_order_and_their_way():
    guess = Guesses(
        x=np.arange(6.0).reshape(3, 2),
        sender=("a", "b", "a"),
        round=np.array([1, 1, 2]),
        way=("unit", "planted", "matched"),
        dishonest=True,
        labels={},
        prior=prior((2,), np.eye(2), sizes={"a": 1, "b": 1}),
        noisy=(),
        notes=(),
        vantage="server",
        trace_sha256="",
    )
    kept = guess.only(~guess.planted)
    assert kept.x.tolist() == [[0, 1], [4, 5]]
    assert (kept.sender, kept.way) == (("a", "a"), ("unit", "matched"))
