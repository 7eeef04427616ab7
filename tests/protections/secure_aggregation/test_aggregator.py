"""Subset sums: plaintext within the bound, refused where they tell too much, all written down."""

import csv

import numpy as np
import pytest

from fedaudit import rows
from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import (
    QueryRefused,
    RingOverflow,
    SecureAggregator,
    TooFewLeft,
)
from fedaudit.protections.secure_aggregation.aggregator import Ledger
from fedaudit.stats import query_algebra, query_plans

K, D = 10, 37


def updates(seed=0, clients=K):
    rng = np.random.default_rng(seed)
    return {c: rng.normal(size=D) for c in range(clients)}


def begun(**settings):
    aggregator = SecureAggregator(**{"threshold": 4, **settings})
    aggregator.begin(1, updates())
    return aggregator


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("clients", [range(K), [9, 0, 3, 5], [1, 2, 3, 4, 5]])
def test_a_sum_equals_the_plaintext_within_the_quantisation_bound(bits, clients):
    aggregator = begun(modulus_bits=bits)
    x = updates()
    total = aggregator.query(1, clients)
    error = np.abs(total - sum(x[c] for c in clients)).max()
    assert error <= aggregator.error(len(clients))
    assert aggregator.error(len(clients)) <= (1e-6 if bits == 32 else 1e-12)


def test_without_masks_sums_and_ledger_are_the_same_to_the_last_bit():
    settings = {"refuse_isolating": False, "quorum": "threshold"}
    real, quick = begun(**settings), begun(**settings, masks=False)
    cases = [
        (range(K), {}),
        (range(5), {"gone_before_upload": {1}}),
        (range(3, 9), {"gone_before_reveal": {4, 5}}),
        (range(2, 9), {"gone_before_upload": {2, 3}, "gone_before_reveal": {4}}),
    ]
    for clients, gone in cases:
        assert np.array_equal(real.query(1, clients, **gone), quick.query(1, clients, **gone))
    failing = [
        (range(6), {"gone_before_upload": {0, 1, 2}}),
        (range(6), {"gone_before_reveal": {0, 1, 2}}),
    ]
    for clients, gone in failing:
        for aggregator in (real, quick):
            with pytest.raises(TooFewLeft):
                aggregator.query(1, clients, **gone)
    for a, b in zip(real.ledger.entries, quick.ledger.entries, strict=True):
        assert (a.asked, a.members, a.reason) == (b.asked, b.members, b.reason)
        assert (dict(a.sent), dict(a.received)) == (dict(b.sent), dict(b.received))


def test_below_the_threshold_is_refused_and_in_the_ledger():
    aggregator = begun()
    with pytest.raises(QueryRefused, match="below the threshold"):
        aggregator.query(1, [0, 1, 2])
    (entry,) = aggregator.ledger.entries
    assert (entry.asked, entry.answered, entry.members) == ((0, 1, 2), False, ())
    assert "threshold" in entry.reason
    assert not entry.sent
    aggregator.query(1, range(4))
    assert [e.query for e in aggregator.ledger.of(1)] == [0, 1]


def test_differencing_is_stopped_at_the_source_and_can_be_switched_off():
    careful, careless = begun(), begun(refuse_isolating=False)
    for aggregator in (careful, careless):
        aggregator.query(1, range(K))
    with pytest.raises(QueryRefused, match="isolate too few"):
        careful.query(1, range(1, K))  # the total minus this is client 0
    with pytest.raises(QueryRefused, match="isolate too few"):
        careful.query(1, range(7))  # leaves three
    careful.query(1, range(6))
    careful.query(1, range(6, 10))  # nothing new: the total minus the six
    with pytest.raises(QueryRefused):
        careful.query(1, [0, 1, 2, 3, 4, 6])  # minus the first six: clients 5 and 6 alone
    left = query_algebra.smallest_support(careful.ledger.matrix(1, K))
    assert left.value == 4
    total, rest = careless.query(1, range(K)), careless.query(1, range(1, K))
    assert np.allclose(total - rest, updates()[0], atol=1e-6)


def test_whatever_is_answered_never_isolates_fewer_than_the_threshold():
    rng = np.random.default_rng(4)
    aggregator = begun(masks=False)
    for _ in range(60):
        subset = np.flatnonzero(rng.random(K) < 0.6)
        try:
            aggregator.query(1, subset)
        except QueryRefused:
            continue
    told = aggregator.ledger.matrix(1, K)
    assert len(told) >= 2
    assert query_algebra.smallest_support(told).value >= 4


def test_a_dropout_that_would_isolate_somebody_is_refused_too():
    aggregator = begun()
    aggregator.query(1, range(K))
    with pytest.raises(QueryRefused, match="isolate"):
        aggregator.query(1, range(K), gone_before_upload={3})
    entry = aggregator.ledger.entries[-1]
    assert not entry.answered
    assert entry.sent[3] < entry.sent[0]  # it had shared its keys, and sent no vector


def test_the_published_plan_is_refused_almost_entirely():
    pairs = query_plans.paired_plan(K, 5, 5, np.random.default_rng(0))
    aggregator = begun(threshold=5, masks=False)
    aggregator.query(1, range(K))
    answered = 0
    for row in np.concatenate([p.queries for p in pairs]):
        try:
            aggregator.query(1, np.flatnonzero(row))
            answered += 1
        except QueryRefused:
            pass
    assert answered < 10
    assert query_algebra.smallest_support(aggregator.ledger.matrix(1, K)).value >= 5


def test_too_few_left_fails_this_query_and_not_the_next():
    aggregator = begun(refuse_isolating=False, quorum="threshold")
    with pytest.raises(TooFewLeft, match="too few"):
        aggregator.query(1, range(K), gone_before_upload=set(range(7)))
    with pytest.raises(TooFewLeft, match="too few"):
        aggregator.query(1, range(K), gone_before_reveal=set(range(7)))
    assert [e.answered for e in aggregator.ledger.entries] == [False, False]
    x = updates()
    total = aggregator.query(1, range(K), gone_before_upload={0, 1}, gone_before_reveal={2, 3, 4})
    assert np.abs(total - sum(x[c] for c in range(2, K))).max() <= aggregator.error(8)
    assert aggregator.ledger.entries[-1].members == tuple(range(2, K))


def test_cost_counts_every_byte_and_some_seconds():
    aggregator = begun()
    aggregator.query(1, range(K))
    (entry,) = aggregator.ledger.entries
    sealed, quorum = 2 * 33 + 16, 7
    shares = (8 + 2 * 16 + sealed) * K
    signatures = 4 * 64  # of shares, upload, list of uploads, revealed shares
    assert set(entry.sent.values()) == {200 + shares + 4 * D + 42 * K + signatures}
    (received,) = set(entry.received.values())
    terms = received - (100 + 200 * K + 2 + shares + 64 + 2 + 64 + 72 * quorum)
    assert 0 < terms < 250  # the run's terms, as text
    assert entry.seconds > 0


def test_an_update_that_does_not_fit_is_refused_before_anything_is_sent():
    aggregator = SecureAggregator(threshold=3, bound=6.0)
    with pytest.raises(RingOverflow, match="client 4 does not fit"):
        aggregator.begin(1, {**updates(), 4: np.full(D, 6.5)})
    with pytest.raises(UsageError, match="cannot be queried"):
        aggregator.query(1, range(4))


def test_rounds_follow_each_other_and_the_old_one_is_closed():
    aggregator = begun()
    aggregator.query(1, range(K))
    aggregator.begin(2, updates(seed=5))
    total = aggregator.query(2, range(1, K))  # in a new round this isolates nobody
    assert np.abs(total - sum(list(updates(seed=5).values())[1:])).max() < 1e-5
    with pytest.raises(UsageError, match="round 1 cannot"):
        aggregator.query(1, range(K))
    assert [e.round for e in aggregator.ledger.entries] == [1, 2]
    assert aggregator.ledger.matrix(2, K).tolist() == [[0] + [1] * 9]


def test_the_ledger_is_a_table_that_says_who_was_in_which_sum(tmp_path):
    aggregator = begun()
    aggregator.query(1, range(K))
    with pytest.raises(QueryRefused):
        aggregator.query(1, [0, 1])
    names = [f"site-{i}" for i in range(K)]
    aggregator.ledger.write_csv(tmp_path / "ledger.csv", names)
    with (tmp_path / "ledger.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [r["answered"] for r in rows] == ["1", "0"]
    assert [rows[1][n] for n in names] == ["1", "1", *["0"] * 8]
    assert int(rows[0]["bytes_up"]) == sum(aggregator.ledger.entries[0].sent.values())
    assert Ledger().matrix(1, 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SecureAggregator(threshold=1), "sum over one client is its update"),
        (lambda: begun().query(1, [0, 1, 2, 3, 77]), "not in the round"),
        (lambda: begun().query(1, [0, 1, 2, 2, 3]), "twice"),
        (lambda: begun().query(2, range(K)), "cannot be queried"),
        (lambda: begun().begin(2, {}), "fit together"),
        (lambda: begun().begin(2, {0: np.zeros(3), 1: np.zeros(4)}), "fit together"),
        (lambda: SecureAggregator(threshold=3, modulus_bits=16), "modulus"),
    ],
)
def test_bad_input_is_refused_with_words(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_updates_are_made_one_by_one_and_may_stand_in_a_file(monkeypatch):
    """A mapping that makes updates when asked is asked once for each; memory changes no sum."""
    updates = {c: np.random.default_rng(c).normal(size=50) for c in range(5)}
    made = []

    class Lazy(dict):
        def items(self):
            for c, u in super().items():
                made.append(c)
                yield c, u

    plain = SecureAggregator(threshold=3)
    plain.begin(1, updates)
    expected = plain.query(1, range(5))
    monkeypatch.setattr(rows, "memory", lambda: 4)
    mapped = SecureAggregator(threshold=3)
    mapped.begin(1, Lazy(updates))
    assert made == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(mapped.query(1, range(5)), expected)
