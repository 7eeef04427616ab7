"""Groups of all rounds: left-out clients have no effect, unused keys keep the level, marks are
found."""

import numpy as np
import pytest

from fedaudit.audits.attribution import (
    calibration,
    leave_out,
    over_rounds,
    ranks,
    scoring,
)
from fedaudit.stats import query_plans
from reproductions.attribution import comparison

K, S, U, D = 10, 3, 199, 60


class Learnt:
    """Marks in directions of their own; a score that a fifth of a mark hardly moves."""

    linear = False

    def __init__(self, seed, unused=U):
        rng = np.random.default_rng(seed)
        self.directions = rng.standard_normal((S + unused, D)) / np.sqrt(D)

    @property
    def keys(self):
        return range(S)

    def statistics(self, rows, unused):
        along = np.asarray(rows) @ self.directions[: S + unused].T
        return along + 20 * np.maximum(along - 1.2, 0.0)


def played(seed, *, rounds=10, effect=0.0, marked=(), persistence=0.67, unused=U):
    """Updates (T, K, D) of which a part persists; marked clients add their key's direction."""
    rng = np.random.default_rng(seed)
    marks = Learnt(seed + 1, unused)
    kept = np.sqrt(persistence) * rng.standard_normal((K, D))
    for key, client in enumerate(marked):
        kept[client] += effect * marks.directions[key] / np.linalg.norm(marks.directions[key])
    updates = kept + np.sqrt(1 - persistence) * rng.standard_normal((rounds, K, D))
    groups = query_plans.random_partitions(K, 5, rounds, rng)
    return marks, updates, comparison.safe_plan(groups), np.zeros((rounds, D))


def read(seed, *, unused=U, **changes):
    marks, updates, plan, models = played(seed, unused=unused, **changes)
    return comparison.read(plan, models, updates, marks, unused=unused)


def stacked(plan):
    return np.concatenate([c.design for c in plan.candidates])


def test_guesses_are_the_best_linear_ones():
    """With the assumed persistence, guesses are conditional means of the persistent part."""
    _, _, plan, _ = played(0)
    design = stacked(plan)
    share = 0.4
    noise = np.diag((1 - share) * (design**2).sum(axis=1))  # of a mean of N: (1 - share) / N
    want = share * design.T @ np.linalg.inv(share * design @ design.T + noise)
    got = over_rounds.coefficients(design, None, share)
    assert np.allclose(got, want)


def test_nothing_of_a_client_that_is_left_out_is_in_any_guess():
    _, updates, plan, _ = played(1)
    design = stacked(plan)
    for left_out in range(K):
        weights = over_rounds.coefficients(design, left_out)
        assert np.array_equal((weights @ design)[:, left_out], np.zeros(K))
        moved = updates.copy()
        moved[:, left_out] += 100.0
        means = [
            np.concatenate([c.design @ u for c, u in zip(plan.candidates, x, strict=True)])
            for x in (updates, moved)
        ]
        assert np.allclose(weights @ means[0], weights @ means[1])


def test_tables_are_scores_of_the_guesses_at_the_model():
    marks, updates, plan, _ = played(2, effect=4.0, marked=(1, 5))
    design = stacked(plan)
    means = np.concatenate([c.design @ u for c, u in zip(plan.candidates, updates, strict=True)])
    model = np.random.default_rng(0).standard_normal(D)
    tables = over_rounds.tables(design, means, model, marks, U, error=0.05)
    assert set(tables) == {None, *range(K)}
    start = marks.statistics(model[None], U)[0]
    for left_out, table in tables.items():
        assert left_out not in table.clients
        weights = over_rounds.coefficients(design, left_out)
        for client, scores in zip(table.clients, table.scores, strict=True):
            want = marks.statistics((model + weights[client] @ means)[None], U)[0] - start
            assert np.allclose(scores, want)
    found = over_rounds.p_values(tables, K, S).p
    for i in range(K):
        each = []
        for j in (None, *(c for c in range(K) if c != i)):
            row = tables[j].scores[list(tables[j].clients).index(i)]
            each.append(ranks.p_values(row[None], S).p[0])
        assert np.allclose(found[i], np.max(each, axis=0))


def test_marks_are_found_where_scores_of_groups_do_not_show_them():
    """With enough unused keys for ranks to reach Holm's first step: this score's tail is heavy."""
    hits = by_groups = alarms = 0
    for seed in range(8):
        found = read(200 + seed, effect=6.5, marked=(0, 4, 8), unused=999)
        hits += int(found.named[[0, 4, 8]].sum())
        alarms += int(found.named.sum() - found.named[[0, 4, 8]].sum())
        old = calibration.decide(found.design, found.scores, S, 0.05, linear=False).named.flagged
        by_groups += int(old[[0, 4, 8]].sum())
    assert hits >= 15
    assert by_groups <= hits - 8
    assert alarms <= 2, "5 % of 8 runs, give or take"


def test_keys_that_nobody_used_hold_the_level_and_so_does_a_neighbours_mark():
    """p-values of unused keys are no smaller than they should be; of a key that another client
    holds they are not either, however strong its mark."""
    unused, neighbours = [], []
    for seed in range(60):
        found = read(500 + seed, effect=12.0, marked=(3,))
        p = over_rounds.p_values(found.tables, K, S).p
        unused += p[:, 1:].ravel().tolist()
        neighbours += np.delete(p[:, 0], 3).tolist()
    for level in (0.01, 0.05):
        assert np.mean(np.array(unused) <= level) <= level
        assert np.mean(np.array(neighbours) <= level) <= level


def test_following_only_those_named_with_nobody_left_out_names_the_same_clients():
    marks, updates, plan, models = played(7, effect=9.0, marked=(0, 4, 8))
    design = stacked(plan)
    means = np.concatenate([c.design @ u for c, u in zip(plan.candidates, updates, strict=True)])
    whole, few = (
        over_rounds.tables(design, means, models[-1], marks, U, error=0.05, every=every)
        for every in (True, False)
    )
    alone = over_rounds.decide(design, {None: few[None]}, S, 0.05).named.flagged
    followed = {int(k) for j, t in few.items() if j is not None for k in t.clients}
    assert followed == set(np.flatnonzero(alone))
    assert len(followed) < K
    one, other = (over_rounds.decide(design, t, S, 0.05) for t in (whole, few))
    assert one.named.flagged.any()
    assert np.array_equal(one.named.flagged, other.named.flagged)
    flagged = one.named.flagged
    assert np.allclose(one.p_values.p[flagged], other.p_values.p[flagged])
    known, partly = (over_rounds.smallest_named(design, t, S, 0.05) for t in (whole, few))
    assert np.isfinite(known).all()
    assert np.array_equal(np.isnan(partly), ~alone), "what others would need is not known"
    assert np.allclose(partly[alone], known[alone])


def test_looks_pay_for_themselves_and_end_with_all_rounds():
    marks, updates, plan, models = played(9, rounds=12, effect=12.0, marked=(0, 4, 8))
    designs = [c.design for c in plan.candidates]
    means = [(d @ u).astype(np.float32) for d, u in zip(designs, updates, strict=True)]
    final = over_rounds.tables(
        np.concatenate(designs), np.concatenate(means), models[-1], marks, U, error=0.05
    )
    found = over_rounds.sequential(designs, means, list(models), marks, U, 0.05, final)
    first = next(
        t for t in range(1, 13) if leave_out.distinguishable(np.concatenate(designs[:t])).any()
    )
    assert found.looks == 13 - first
    assert (found.first[[0, 4, 8]] > 0).any()
    assert not np.delete(found.first, [0, 4, 8]).any()
    named = over_rounds.decide(np.concatenate(designs), final, S, 0.05).named.flagged
    assert not (found.first[~named] == 12).any(), "the last look pays, so it names no more"


def test_fixed_groups_tell_nobody_apart():
    marks, updates, _, models = played(3, effect=20.0, marked=(0,))
    groups = query_plans.fixed_groups(K, 5, 10, np.random.default_rng(0))
    found = comparison.read(comparison.safe_plan(groups), models, updates, marks, unused=U)
    assert not found.named.any()
    assert not leave_out.distinguishable(found.design).any()


def test_keys_with_a_null_of_their_own_are_ranked_in_it():
    marks, updates, plan, models = played(4, effect=9.0, marked=(0,))

    class Apart(Learnt):
        apart = True

        def statistics(self, rows, unused):
            own = super().statistics(rows, unused)
            return np.concatenate([own[:, :S], *[own[:, S:] + 5 * s for s in range(S)]], axis=1)

    other = Apart(5)
    other.directions = marks.directions
    same = comparison.read(plan, models, updates, marks, unused=U)
    found = comparison.read(plan, models, updates, other, unused=U)
    assert np.array_equal(found.named, same.named)
    with pytest.raises(KeyError):
        over_rounds.p_values({}, K, S)
    columns = scoring.blocks(S + S * U, S, True)[1].columns
    alone = over_rounds.p_values(over_rounds.select_columns(found.tables, columns), K, 1).p[:, 0]
    assert np.allclose(alone, over_rounds.p_values(found.tables, K, S, apart=True).p[:, 1])
