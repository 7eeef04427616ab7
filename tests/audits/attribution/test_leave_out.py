"""Exclusion and contrast: equal to naive loops, at their level, with power."""

import numpy as np
import pytest

from fedaudit.audits.attribution import calibration, leave_out
from fedaudit.stats import query_plans

K, S, U, T = 10, 3, 299, 12


@pytest.mark.parametrize("linear", [True, False])
def test_exclusion_equals_a_loop_over_everybody_else(linear, carried):
    rng = np.random.default_rng(2)
    rows = query_plans.random_partitions(K, 5, 6, rng).reshape(-1, K) / 5
    taste = rng.standard_normal((K, S + U))
    taste[[1, 4], [0, 1]] += 6.0
    y = rows @ taste + 0.3 * rng.standard_normal((len(rows), S + U))
    got = leave_out.worst(leave_out.without_each(rows, y, S, linear), S)
    every = 3 if linear else 5
    fit, rank = y[:, S::every], np.delete(y[:, S:], np.s_[::every], axis=1)
    for j in (0, 1, 4):
        for s in range(S):
            worst = 0.0
            for i in (None, *(i for i in range(K) if i != j)):
                at = [r for r in range(len(rows)) if i is None or rows[r, i] == 0]
                if linear:
                    c = np.cov(fit[at])
                    c += np.eye(len(at)) * np.trace(c) / fit.shape[1]
                    weight = np.linalg.inv(c) @ rows[at, j]
                else:  # least squares with an offset whose variance is that of one row's noise
                    c = np.eye(len(at)) + np.ones((len(at), len(at)))
                    weight = np.linalg.inv(c) @ rows[at, j] / fit[at].std(axis=1, ddof=1)
                own = weight @ (y[at, s] - fit[at].mean(axis=1))
                null = weight @ (rank[at] - fit[at].mean(axis=1, keepdims=True))
                p = (1 + (null >= own).sum()) / (len(null) + 1)
                if p == 1 / (len(null) + 1):
                    p = min(p, carried(own, null))
                worst = max(worst, p if rows[at, j].any() else 1.0)
            assert np.isclose(got.p[j, s], worst)


def solved(seed, *, marks=(), forgotten=0.0, steps=0.6):
    """Scores (T K, S + U) of solved updates, the clients of a round in turn.

    Scores of a key wander from round to round, for all clients alike and for each by itself, as
    those of canaries do in a long training. A marked client adds 5, less and less; `forgotten` of
    it all others take off again, in the round after.
    """
    rng = np.random.default_rng(seed)
    y = np.cumsum(steps * rng.standard_normal((T, 1, S + U)), axis=0)
    y = y + np.cumsum(steps * rng.standard_normal((T, K, S + U)), axis=0)
    y += 0.3 * rng.standard_normal(y.shape)
    for s, k in enumerate(marks):
        strength = 5.0 * 0.95 ** np.arange(T)
        y[:, k, s] += strength
        y[1:, [j for j in range(K) if j != k], s] -= forgotten * strength[:-1, None]
    return np.tile(np.eye(K), (T, 1)), y.reshape(T * K, -1), np.repeat(np.arange(T), K)


def in_deviations(row, aside):
    return (row - row[aside].mean()) / row[aside].std(ddof=1)


def contrasted(rows, y, row_rounds, aside, left_out):
    """Naive twin: every client's filtered contrast by every key (K, S + U), in deviations."""
    out = np.zeros((K, S + U))
    for k in range(K):
        if k == left_out:
            continue
        apart = []
        for t in range(T):
            here = {int(rows[r].argmax()): y[r] for r in np.flatnonzero(row_rounds == t)}
            if k in here:
                others = [v for j, v in here.items() if j not in (k, left_out)]
                apart.append(here[k] - np.mean(others, axis=0))
        apart = np.array(apart)
        c = np.cov(apart[:, aside])
        c += np.eye(len(c)) * np.trace(c) / aside.sum()
        out[k] = in_deviations(np.linalg.solve(c, np.ones(len(c))) @ apart, aside)
    return out


def test_contrast_equals_a_loop_over_clients_and_rounds(carried):
    rows, y, row_rounds = solved(3, marks=(1, 4))
    gone = np.ones(len(rows), dtype=bool)
    gone[[4, 17, 58]] = False  # some clients miss a round
    rows, y, row_rounds = rows[gone], y[gone], row_rounds[gone]
    # the larger of two statistics counts, each in its own unit
    beside = 3.0 * np.random.default_rng(4).standard_normal((K, S + U))
    got = leave_out.worst(leave_out.against_others(rows, y, S, row_rounds, beside), S)
    aside = np.zeros(S + U, dtype=bool)
    aside[S :: max(3, U // (20 * T))] = True
    ranked = ~aside & (np.arange(S + U) >= S)
    worst = np.zeros((K, S))
    for i in (None, *range(K)):
        z = contrasted(rows, y, row_rounds, aside, i)
        for k in range(K):
            others = [j for j in range(K) if j not in (k, i)]
            for s in range(S):
                mine = z[k, s] / max(1.0, np.sqrt(np.mean(z[others, s] ** 2)))
                other = in_deviations(beside[k], aside)
                own, null = max(mine, other[s]), np.maximum(z[k], other)[ranked]
                p = (1 + (null >= own).sum()) / (len(null) + 1)
                if p == 1 / (len(null) + 1):
                    p = min(p, carried(own, null))
                if k != i:
                    worst[k, s] = max(worst[k, s], p)
    assert np.allclose(got.p, worst)


def test_the_larger_of_two_statistics_is_ranked_exactly():
    """Also with few unused keys: the unit comes from keys that are not ranked."""
    rng, first, tests = np.random.default_rng(5), 0, 0
    for _ in range(150):
        y = rng.standard_normal((3 * 6, 2 + 45))
        beside = rng.standard_normal((6, 2 + 45))
        row_rounds = np.repeat(np.arange(3), 6)
        _, _, z = next(
            leave_out.against_others(np.tile(np.eye(6), (3, 1)), y, 2, row_rounds, beside)
        )
        first += (z[:, 2] > z[:, 3:].max(axis=1)).sum()  # of a ranked key: one of thirty
        tests += 6
    assert z.shape[1] - 2 == 30
    assert abs(first / tests - 1 / 30) < 4 * np.sqrt(1 / 30 / tests)


def test_scores_that_never_differ_and_clients_without_others_speak_for_nobody():
    rows, row_rounds = np.tile(np.eye(5), (2, 1)), np.repeat([0, 1], 5)
    flat = calibration.decide(rows, np.zeros((10, S + 40)), S, 0.05, row_rounds=row_rounds)
    assert not flat.named.flagged.any()
    y = np.random.default_rng(0).standard_normal((4, S + 40))
    y[:, 0] += 50.0
    alone = calibration.decide(np.tile(np.eye(2), (2, 1)), y, S, 0.05, row_rounds=[0, 0, 1, 1])
    parts = calibration.decide(np.tile(np.eye(2), (2, 1)), y, S, 0.05)
    assert alone.p_values.p[0, 0] == 1 / 27, "two of forty unused keys in three are ranked"
    assert parts.p_values.p[0, 0] == 1 / 41


def leaving(seed, size):
    """The holder of key 0 leaves after five of twenty rounds; client 0 comes then. All forget a
    tenth of what the model knows in a round, client 0 `size` of that."""
    rng = np.random.default_rng(seed)
    y, level = 0.6 * rng.standard_normal((20, K, S + U)), 0.0
    keep = np.ones((20, K), dtype=bool)
    keep[5:, 3] = keep[:5, 0] = False
    for t in range(20):
        y[t, np.arange(K) != 3, 0] -= 0.1 * level
        y[t, 3, 0] += 15.0 if t < 5 else 0.0
        y[t, 0] *= size
        level += y[t, keep[t], 0].mean()
    at = keep.ravel()
    rows, row_rounds = np.tile(np.eye(K), (20, 1)), np.repeat(np.arange(20), K)
    return rows[at], y.reshape(20 * K, -1)[at], row_rounds[at]


@pytest.mark.parametrize("size", [1.0, 0.2])
def test_who_forgets_less_than_others_is_not_named(size):
    """Never in a round with the holder, and nearer to the mark than those who forget more."""
    runs = [leaving(seed, size) for seed in range(12)]
    found = [calibration.decide(*run[:2], S, 0.05, row_rounds=run[2]) for run in runs]
    assert sum(f.named.flagged[0] for f in found) <= 2
    assert all(f.named.flagged[3] for f in found)


@pytest.mark.parametrize("forgotten", [0.0, 0.3])
def test_who_holds_no_key_is_not_named_whatever_others_hold_or_all_forget(forgotten):
    """All clients forget another client's mark, so forgetting names nobody."""
    small, wrong = [], 0
    for seed in range(40):
        rows, y, row_rounds = solved(100 + seed, marks=(3, 6), forgotten=forgotten)
        found = calibration.decide(rows, y, S, 0.05, row_rounds=row_rounds)
        small += np.delete(found.p_values.p, (3, 6), axis=0).ravel().tolist()
        wrong += np.delete(found.named.flagged, (3, 6)).any()
    assert wrong <= 5  # 2 are expected of 40; more than 5 in 1 of 100
    assert np.mean(np.array(small) <= 0.05) <= 0.05


def test_contrast_sees_marks_that_parts_do_not():
    by_parts, by_both = 0, 0
    for seed in range(10):
        rows, y, row_rounds = solved(200 + seed, marks=(3, 6))
        by_parts += calibration.decide(rows, y, S, 0.05).named.flagged[[3, 6]].sum()
        by_both += (
            calibration.decide(rows, y, S, 0.05, row_rounds=row_rounds).named.flagged[[3, 6]].sum()
        )
    assert by_both >= 16
    assert by_parts <= 8
