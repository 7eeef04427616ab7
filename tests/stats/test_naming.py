"""Names of anonymous rows: evidence, posterior, and the test by permuted senders."""

import itertools

import numpy as np
import pytest

from fedaudit.stats import naming


def planted(rng, clients=6, rounds=5, strength=2.0):
    """Fits (K, P) whose own row is larger by `strength` deviations, and who sent each row."""
    who = [rng.permutation(clients) for _ in range(rounds)]
    fits = [
        rng.normal(size=(clients, clients)) + strength * (w[:, None] == range(clients)) for w in who
    ]
    return fits, who


def test_names_are_those_of_a_search_over_all_assignments():
    rng = np.random.default_rng(0)
    for shape in ((4, 4), (3, 5)):
        p = rng.dirichlet(np.ones(shape[1]), size=shape[0])
        best = max(
            itertools.permutations(range(shape[1]), shape[0]),
            key=lambda o, p=p: sum(np.log(p[i, c]) for i, c in enumerate(o)),
        )
        assert naming.names(p, rng).tolist() == [*best]
    more_rows = naming.names(np.full((5, 3), 1 / 3), rng)
    assert sorted(more_rows.tolist()) == [-1, -1, 0, 1, 2]


def test_ties_are_broken_at_random():
    rng = np.random.default_rng(1)
    equal = np.full((6, 6), 1 / 6)
    right = [(naming.names(equal, rng) == np.arange(6)).mean() for _ in range(400)]
    assert np.mean(right) == pytest.approx(1 / 6, abs=0.03)


def test_the_posterior_is_close_to_that_over_all_assignments():
    rng = np.random.default_rng(2)
    for strength in (0.0, 0.5, 1.0, 3.0):
        ratio = strength * rng.normal(size=(4, 4))
        exact = np.zeros((4, 4))
        for order in itertools.permutations(range(4)):
            exact[range(4), order] += np.exp(sum(ratio[i, c] for i, c in enumerate(order)))
        exact /= exact.sum(axis=1, keepdims=True)
        found = naming.one_to_one(ratio)
        np.testing.assert_allclose(found.sum(axis=1), 1.0)
        np.testing.assert_allclose(found, exact, atol=0.25)
        assert np.abs(found - exact).mean() < 0.06
    sizes = naming.anonymity_set(np.array([[1.0, 0, 0, 0], [0.25] * 4]))
    np.testing.assert_allclose(sizes, [1.0, 4.0])


def test_strengths_and_links_are_learnt_without_labels():
    rng = np.random.default_rng(3)
    fits, who = planted(rng, clients=8, rounds=12, strength=1.5)
    noise = [rng.normal(size=f.shape) for f in fits]
    asked = [np.arange(8)] * 12

    def right(kinds, groups):
        p, trust = naming.posteriors(naming.weigh_fits(kinds), asked, groups)
        hits = [naming.names(q, rng) == w for q, w in zip(p, who, strict=True)]
        return np.mean(hits), trust

    alone, _ = right([fits], None)
    with_noise, _ = right([noise, fits], None)
    linked, trust = right([fits], who)
    mistaken, used = right([fits], [rng.permutation(8) for _ in who])
    assert alone > 0.4
    assert with_noise > alone - 0.08
    assert linked > alone + 0.2
    assert trust > 0.9
    assert mistaken > alone - 0.08
    assert used == 0.0
    half = [np.where(rng.random(8) < 0.5, w, rng.permutation(8)) for w in who]
    mixed, _ = right([fits], half)
    assert mixed > alone - 0.02  # half of the links are wrong
    only_noise, _ = right([noise], who)
    assert only_noise < 0.35  # links name nobody


@pytest.mark.parametrize(("clients", "rounds"), [(3, 2), (4, 5), (8, 10)])
def test_random_names_alarm_at_most_at_the_level(clients, rounds):
    """Exact within Monte-Carlo error: one-to-one names in every round are respected."""
    rng = np.random.default_rng(4)
    words = [f"c{i}" for i in range(clients)]
    alarms = 0
    for _ in range(200):
        senders = [rng.permutation(words).tolist() for _ in range(rounds)]
        names = {r: [rng.permutation(words).tolist() for _ in senders] for r in ("a", "b")}
        test = naming.naming_test(senders, names, level=0.05, rng=rng, draws=399)
        alarms += min(*test.p.values(), *test.clients.values()) <= 0.05
    assert alarms <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_the_p_value_is_the_share_of_all_orders_that_name_as_many():
    senders = [["a", "b", "c"], ["b", "c", "a"]]
    names = {"one": [["a", "b", "c"], ["b", "a", "c"]]}  # 3 + 1 right
    test = naming.naming_test(senders, names, level=0.05, rng=np.random.default_rng(5))
    orders = [*itertools.permutations(range(3))]
    right = [
        sum(names["one"][0][i] == senders[0][a[i]] for i in range(3))
        + sum(names["one"][1][i] == senders[1][b[i]] for i in range(3))
        for a in orders
        for b in orders
    ]
    assert test.p["one"] / 2 == pytest.approx(np.mean(np.array(right) >= 4), abs=0.02)  # Holm: x 2
    alone = naming._client_p_values(senders, names["one"])
    assert alone == pytest.approx({"a": 5 / 9, "b": 1 / 9, "c": 5 / 9})
    assert np.isinf(naming.naming_test(senders[:1], {"one": names["one"][:1]}, level=0.05,
                                       rng=np.random.default_rng(6)).least)  # fmt: skip


def test_own_and_best_rows_tell_members_from_others():
    rng = np.random.default_rng(7)
    order = rng.permutation(5)
    evidence = rng.normal(size=(5, 5, 40))
    for row, client in enumerate(order):
        evidence[row, client, :20] += 1.5
    present = np.ones((5, 40), bool)
    rows = naming.assign(naming.fits(evidence, present))
    np.testing.assert_array_equal(order[rows], np.arange(5))
    own, best = naming.own_row(evidence, rows, present), naming.best_row(evidence, present)
    assert own[:, :20].mean() > own[:, 20:].mean() + 1.0
    assert best[:, :20].mean() > best[:, 20:].mean() + 0.1
    rows[0] = -1
    assert np.isnan(naming.own_row(evidence, rows, present)[0]).all()
