"""Records to ask about: matched by client and class, in an order that gives no answer."""

import numpy as np
import pytest
import torch

from fedaudit.data.dataset import Dataset
from fedaudit.errors import NotApplicable
from fedaudit.knowledge import (
    Records,
    candidates,
    of_config,
)
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import GPT, MLP


def rows_of(x):
    return [row.tobytes() for row in np.ascontiguousarray(x).reshape(len(x), -1)]


def table(x, y, client=None):
    return Dataset(
        name="table", kind="features", x=np.asarray(x, np.float32), y=np.asarray(y, np.int64),
        classes=("a", "b", "c"), client=client,
    )  # fmt: skip


def random_records(counts, others, seed=0, **more):
    """Records of clients with the given labels, and others."""
    rng = np.random.default_rng(seed)
    own = {n: table(rng.normal(size=(len(y), 4)), y) for n, y in counts.items()}
    nobody = table(rng.normal(size=(len(others), 4)), others)
    task = MLP(hidden=(3,)).build(nobody, Seed(0))
    return Records(task, own, nobody, **more)


def test_records_of_a_run_are_those_its_clients_trained_on(small):
    from fedaudit.setup.prepare import load_data

    config, _, truth, records = small
    train, test = load_data(config, Seed(config.seed))
    for party, facts in truth.clients.items():
        assert rows_of(records.own[party].x) == rows_of(train.x[facts["records"]])
    assert rows_of(records.others.x) == rows_of(test.x)


@pytest.mark.parametrize("most", [3, 20, 10_000])
def test_candidates_are_matched_by_client_and_class(small, most):
    records = small[3]
    pools, members, _ = candidates(records, most, Seed(1))
    nobodys = []
    for party, pool in pools.items():
        inside = members[party]
        assert inside.sum() == (~inside).sum() <= most
        y = pool.y.numpy()
        np.testing.assert_array_equal(
            np.bincount(y[inside], minlength=10), np.bincount(y[~inside], minlength=10)
        )
        rows = rows_of(pool.x.numpy())
        own = dict(zip(rows_of(records.own[party].x), records.own[party].y, strict=True))
        for row, label, mine in zip(rows, y, inside, strict=True):
            assert (row in own) == mine
            if mine:
                assert own[row] == label
        nobodys += [row for row, mine in zip(rows, inside, strict=True) if not mine]
        assert len({*rows}) == len(rows)
    assert len({*nobodys}) == len(nobodys)
    assert {*nobodys} <= {*rows_of(records.others.x)}


def test_the_classes_asked_about_are_those_a_client_holds():
    """Few candidates of many records: a sample of all classes, not the first ones in order."""
    labels = np.repeat([0, 1, 2], [100, 200, 100])
    records = random_records({"a": labels, "b": labels}, np.repeat([0, 1, 2], 400))
    pools, _, _ = candidates(records, 80, Seed(2))
    for pool in pools.values():
        shares = np.bincount(pool.y.numpy(), minlength=3) / len(pool)
        np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.15)


def test_no_client_takes_all_held_out_records_of_a_class():
    records = random_records({n: [0] * 50 for n in "abcde"}, [0] * 50)
    _, members, _ = candidates(records, 64, Seed(3))
    assert [int(members[n].sum()) for n in "abcde"] == [10] * 5


def test_order_gives_no_answer_and_the_seed_decides(small):
    positions = []
    for s in range(30):
        _, members, _ = candidates(small[3], 20, Seed(s))
        positions += [np.flatnonzero(m).mean() / (len(m) - 1) for m in members.values()]
    assert np.mean(positions) == pytest.approx(0.5, abs=0.03)
    a, b = candidates(small[3], 20, Seed(4)), candidates(small[3], 20, Seed(4))
    for party in a[0]:
        assert torch.equal(a[0][party].x, b[0][party].x)
        np.testing.assert_array_equal(a[1][party], b[1][party])


def test_inverted_clients_are_asked_about_inverted_records(played):
    config, trace, truth = played(partition={"kind": "inverted", "target": 1})
    records = of_config(config, trace, truth)
    assert records.inverted == {*records.own} - {"client-01"}
    pools, members, _ = candidates(records, 10, Seed(5))
    plain, mirrored = {*rows_of(records.others.x)}, {*rows_of(1 - records.others.x)}
    for party, pool in pools.items():
        inside, rows = members[party], rows_of(pool.x.numpy())
        own = {*rows_of(records.own[party].x)}
        assert all(row in own for row, mine in zip(rows, inside, strict=True) if mine)
        expected = plain if party == "client-01" else mirrored
        assert all(row in expected for row, mine in zip(rows, inside, strict=True) if not mine)


def test_natural_owners_are_matched_with_their_own_held_out_records():
    rng = np.random.default_rng(6)
    owners = tuple("st"[i % 2] for i in range(40))
    nobody = table(rng.normal(size=(40, 4)), [0] * 40, owners)
    own = {f"client-{i}": table(rng.normal(size=(9, 4)), [0] * 9) for i in range(2)}
    task = MLP(hidden=(3,)).build(nobody, Seed(0))
    records = Records(task, own, nobody, owner={"client-0": "s", "client-1": "gone"})
    pools, members, notes = candidates(records, 64, Seed(6))
    assert [*pools] == ["client-0"]
    of_s = {*rows_of(nobody.x[::2])}
    outside = pools["client-0"].x.numpy()[~members["client-0"]]
    assert {*rows_of(outside)} <= of_s
    assert any("1 client without a record" in n for n in notes)


def test_a_document_is_asked_about_once():
    rng = np.random.default_rng(7)

    def texts(n, seed):
        words = ["one", "two", "three", "four", "five"]
        r = np.random.default_rng(seed)
        return Dataset(
            name="t", kind="text", x=tuple(" ".join(r.choice(words, 40)) for _ in range(n)),
            y=np.zeros(n, np.int64),
        )  # fmt: skip

    own = {f"client-{i}": texts(6, i) for i in range(2)}
    nobody = texts(20, 9)
    task = GPT(width=8, depth=1, heads=2, length=8).build(nobody, Seed(0))
    examples = task.encode(own["client-0"])
    assert len(examples) > 6  # a document gives several windows
    pools, members, _ = candidates(Records(task, own, nobody), 64, Seed(int(rng.integers(9))))
    for party, pool in pools.items():
        assert members[party].sum() == 6
        assert len(pool) == 12


def overlapping(share, inverted=()):
    """Held-out records of which client b trained on a share (or, inverted, on 1 - x of it)."""
    records = random_records({"a": [0] * 20, "b": [1] * 20}, [0, 1] * 20)
    x, count = records.others.x, int(share * 40)
    mine = records.own["b"].x.copy()
    mine[:count] = x[1 : 2 * count : 2]
    own = {"a": records.own["a"], "b": table(1 - mine if inverted else mine, [1] * 20)}
    return Records(records.task, own, records.others, frozenset(inverted))


def test_a_few_held_out_records_that_were_trained_on_are_left_out():
    records = overlapping(0.1)
    pools, members, notes = candidates(records, 64, Seed(8))
    assert notes == ("left out 4 held-out records that a client also trained on",)
    trained = {row for own in records.own.values() for row in rows_of(own.x)}
    for party, pool in pools.items():
        outside = rows_of(pool.x.numpy()[~members[party]])
        assert not trained & {*outside}


def test_many_are_the_wrong_file():
    with pytest.raises(NotApplicable, match="overlap members") as error:
        candidates(overlapping(0.5), 64, Seed(9))
    assert "20 of 40" in error.value.got


def test_doubles_of_inverted_clients_are_seen_through():
    with pytest.raises(NotApplicable, match="overlap members"):
        candidates(overlapping(0.5, inverted=("b",)), 64, Seed(10))


def test_minus_zero_is_zero():
    records = random_records({"a": [0] * 4}, [0] * 20)
    own, x = np.zeros((4, 4), np.float32), records.others.x.copy()
    x[0] = -0.0
    pools, _, notes = candidates(
        Records(records.task, {"a": table(own, [0] * 4)}, table(x, [0] * 20)), 64, Seed(11)
    )
    assert notes[0].startswith("left out 1 held-out")
    assert len(pools["a"]) == 8


def test_classes_that_nobody_holds_out_cannot_be_asked_about():
    records = random_records({"a": [2] * 5, "b": [0] * 5}, [0] * 10)
    pools, _, notes = candidates(records, 64, Seed(12))
    assert [*pools] == ["b"]
    assert notes == ("not asked about: 1 client without a record that can be matched",)
    with pytest.raises(NotApplicable, match="can be matched"):
        candidates(random_records({"a": [2] * 5}, [0] * 10), 64, Seed(13))
