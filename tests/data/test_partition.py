from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.data.builtin import load
from fedaudit.data.dataset import Dataset
from fedaudit.data.partition import (
    KINDS,
    ByLabel,
    ByOwner,
    Coupled,
    Dirichlet,
    Iid,
    Inverted,
    Kind,
    Partition,
    from_settings,
)
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed

DIGITS = load("digits", seed=Seed(0))


def made(y: list[int], **owners: tuple[str, ...]) -> Dataset:
    x = np.linspace(0, 1, len(y), dtype=np.float32)[:, None]
    return Dataset(name="made", kind="features", x=x, y=np.array(y, dtype=np.int64), **owners)


KIND = st.one_of(
    st.just(Iid()),
    st.builds(Dirichlet, alpha=st.sampled_from([1e-4, 0.05, 0.5, 100.0])),
    st.just(ByLabel()),
    st.just(Inverted()),
    st.builds(
        Coupled,
        eta=st.sampled_from([0.0, 0.3, 1.0]),
        alpha=st.sampled_from([1e-3, 0.5, 50.0]),
        position=st.sampled_from(["index", "region"]),
    ),
)


@settings(max_examples=250, deadline=None)
@given(
    kind=KIND,
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    root=st.integers(0, 2**40),
    persons=st.integers(0, 20),
)
def test_every_record_has_one_client_and_no_client_is_empty(
    kind: Kind, y: list[int], clients: int, root: int, persons: int
) -> None:
    names = tuple(f"p{(i * 7) % persons}" for i in range(len(y))) if persons else None
    data = made(y) if names is None else made(y, person=names)
    position = np.arange(clients) // 2
    have = len(y) if names is None else len(set(names))
    if clients > have:
        with pytest.raises(DataError, match="clients"):
            kind.partition(data, clients, Seed(root), position)
        return
    out = kind.partition(data, clients, Seed(root), position)
    again = kind.partition(data, clients, Seed(root), position)
    assert np.array_equal(np.sort(np.concatenate(out.clients)), np.arange(len(y)))
    assert out.sizes.min() >= 1
    assert out.sizes.sum() == len(y)
    assert len(out) == clients == len(set(out.names))
    for a, b in zip(out.clients, again.clients, strict=True):
        assert np.array_equal(a, b)
        assert a.dtype == np.int64
        assert (np.diff(a) > 0).all()
    if names is not None:
        homes = [{names[i] for i in rows} for rows in out.clients]
        assert sum(len(h) for h in homes) == len(set(names))
    elif kind.kind != "dirichlet":
        assert out.sizes.max() - out.sizes.min() <= 1
    assert out.organisations == tuple(f"organisation-{g}" for g in position)
    assert out.class_histograms(data.y, 5).sum() == len(y)


def test_class_histograms_equal_a_count_by_hand() -> None:
    out = Dirichlet(alpha=0.3).partition(DIGITS, 7, Seed(1))
    table = out.class_histograms(DIGITS.y, 10)
    assert table.shape == (7, 10)
    for k, rows in enumerate(out.clients):
        for c in range(10):
            assert table[k, c] == sum(int(DIGITS.y[i]) == c for i in rows)


def test_iid_clients_look_like_the_whole() -> None:
    out = Iid().partition(DIGITS, 4, Seed(1))
    share = out.class_histograms(DIGITS.y, 10) / out.sizes[:, None]
    assert np.abs(share - np.bincount(DIGITS.y) / len(DIGITS)).max() < 0.06
    other = Iid().partition(DIGITS, 4, Seed(2))
    assert not np.array_equal(out.clients[0], other.clients[0])


def test_dirichlet_skew_follows_alpha() -> None:
    def distance(alpha: float) -> float:
        out = Dirichlet(alpha=alpha).partition(DIGITS, 10, Seed(1))
        mix = out.class_histograms(DIGITS.y, 10) / out.sizes[:, None]
        return float(np.abs(mix - np.bincount(DIGITS.y) / len(DIGITS)).sum(axis=1).mean())

    skew = [distance(a) for a in (0.05, 0.5, 5.0, 500.0)]
    assert skew == sorted(skew, reverse=True)
    assert skew[0] > 1.0
    assert skew[-1] < 0.15


def test_dirichlet_shares_have_the_law_they_claim() -> None:
    # one class, two clients: the first client's share is Beta(alpha, alpha)
    data = made([0] * 400)
    alpha = 2.0
    shares = np.array(
        [Dirichlet(alpha=alpha).partition(data, 2, Seed(s)).sizes[0] / 400 for s in range(400)]
    )
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 5 * np.sqrt(variance / 400)
    assert shares.var() == pytest.approx(variance, rel=0.3)


def test_dirichlet_minimum_is_kept_and_the_repair_is_told() -> None:
    out = Dirichlet(alpha=0.01, minimum=30).partition(DIGITS, 20, Seed(1))
    assert out.sizes.min() >= 30
    assert "moved from the largest" in out.notes[0]
    with pytest.raises(DataError, match="lower minimum"):
        Dirichlet(minimum=200).partition(DIGITS, 20, Seed(1))
    # two persons of five records each cannot give two clients six records
    data = made([0] * 10, person=tuple("aaaaabbbbb"))
    with pytest.raises(DataError, match="minimum"):
        Dirichlet(minimum=6).partition(data, 2, Seed(1))


def test_by_label_clients_see_few_classes_in_order() -> None:
    out = ByLabel().partition(DIGITS, 10, Seed(1))
    assert out.sizes.max() - out.sizes.min() <= 1
    table = out.class_histograms(DIGITS.y, 10)
    assert (table > 0).sum(axis=1).max() <= 3
    ends = [(int(DIGITS.y[rows].min()), int(DIGITS.y[rows].max())) for rows in out.clients]
    assert all(a[1] <= b[0] for a, b in pairwise(ends))


def test_by_owner_follows_the_column_and_tells_how_much_is_left_out() -> None:
    owner = tuple("bbbaaaaccd")
    data = made([0, 1] * 5, client=owner, organisation=tuple(o.upper() for o in owner))
    out = ByOwner().partition(data, None, Seed(0))
    assert out.names == ("a", "b", "c", "d")
    assert out.organisations == ("A", "B", "C", "D")
    assert out.sizes.tolist() == [4, 3, 2, 1]
    assert out.notes == ()
    for name, rows in zip(out.names, out.clients, strict=True):
        assert {owner[i] for i in rows} == {name}
    few = ByOwner().partition(data, 2, Seed(0))
    assert few.names == ("a", "b")
    assert few.notes[0].endswith("2 owners with 3 of 10 records are left out")  # and no name
    with pytest.raises(DataError, match="at most 4"):
        ByOwner().partition(data, 5, Seed(0))
    with pytest.raises(DataError, match="client column"):
        ByOwner().partition(made([0, 1]), 1, Seed(0))


def test_by_owner_tells_of_persons_with_several_clients() -> None:
    data = made([0, 1, 0], client=("a", "b", "b"), person=("x", "x", "y"))
    assert "1 persons" in ByOwner().partition(data, None, Seed(0)).notes[0]


def test_inverted_clients_see_the_complement() -> None:
    out = Inverted(target=2).partition(DIGITS, 5, Seed(1))
    assert out.inverted == (True, True, False, True, True)
    np.testing.assert_array_equal(out.client_data(DIGITS, 2).x, DIGITS.x[out.clients[2]])
    np.testing.assert_array_equal(out.client_data(DIGITS, 0).x, 1 - DIGITS.x[out.clients[0]])
    with pytest.raises(ConfigError, match="no client 5"):
        Inverted(target=5).partition(DIGITS, 5, Seed(1))
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        Inverted().partition(load("breast-cancer", seed=Seed(0)), 5, Seed(1))
    with pytest.raises(DataError, match="text"):
        Inverted().partition(load("docs", seed=Seed(0)), 5, Seed(1))


def test_fully_coupled_clients_hold_the_class_of_their_place() -> None:
    data = made([c for c in range(5) for _ in range(40)])
    out = Coupled(eta=1.0).partition(data, 10, Seed(1))
    table = out.class_histograms(data.y, 5)
    assert np.array_equal(table.argmax(axis=1), np.arange(10) % 5)
    assert np.array_equal(table.max(axis=1), out.sizes)
    region = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    out = Coupled(eta=1.0, position="region").partition(data, 10, Seed(1), region)
    assert np.array_equal(out.class_histograms(data.y, 5).argmax(axis=1), region)


def test_coupled_targets_are_the_mixture_and_the_records_follow_them() -> None:
    kind = Coupled(eta=0.5, alpha=1.0)
    free = Coupled(eta=0.0, alpha=1.0).targets(10, 50, Seed(1))
    aims = kind.targets(10, 50, Seed(1))
    np.testing.assert_allclose(aims.sum(axis=1), 1.0)
    np.testing.assert_allclose(aims, 0.5 * free + 0.5 * np.eye(10)[np.arange(50) % 10])
    out = kind.partition(DIGITS, 50, Seed(1))
    mix = out.class_histograms(DIGITS.y, 10) / out.sizes[:, None]
    # classes run short here and there; the mean distance stays far below that of a random deal
    random = Iid().partition(DIGITS, 50, Seed(1)).class_histograms(DIGITS.y, 10)
    far = np.abs(random / random.sum(axis=1, keepdims=True) - aims).sum(axis=1).mean()
    assert np.abs(mix - aims).sum(axis=1).mean() < 0.35 * far


def test_more_coupling_means_more_of_the_own_class() -> None:
    own = []
    for eta in (0.0, 0.25, 0.5, 0.75, 1.0):
        out = Coupled(eta=eta).partition(DIGITS, 20, Seed(4))
        table = out.class_histograms(DIGITS.y, 10)
        own.append(float((table[np.arange(20), np.arange(20) % 10] / out.sizes).mean()))
    assert own == sorted(own)
    assert own[-1] > 0.95


def test_coupled_by_region_needs_regions_that_fit() -> None:
    kind = Coupled(position="region")
    with pytest.raises(DataError, match="region of every client"):
        kind.partition(DIGITS, 4, Seed(0))
    with pytest.raises(DataError, match="4 whole numbers"):
        kind.partition(DIGITS, 4, Seed(0), np.zeros(3, dtype=int))


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        ("dirichlet", {"alpha": 0}, "alpha"),
        ("dirichlet", {"alpha": float("nan")}, "alpha"),
        ("dirichlet", {"alpha": "much"}, "alpha"),
        ("dirichlet", {"minimum": 0}, "minimum"),
        ("dirichlet", {"minimum": 2.5}, "minimum"),
        ("dirichlet", {"aplha": 1.0}, "did you mean 'alpha'"),
        ("inverted", {"target": -1}, "target"),
        ("coupled", {"eta": 1.5}, "eta"),
        ("coupled", {"position": "indx"}, "did you mean 'index'"),
        ("iid", {"alpha": 1.0}, "remove"),
        ("dirichlett", {}, "did you mean 'dirichlet'"),
    ],
)
def test_settings_are_checked_at_birth(kind: str, settings: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        from_settings(kind, settings)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"by_owner"}))
def test_number_of_clients_is_needed_and_whole(name: str) -> None:
    for wrong in (None, 0, -3, 2.0, True):
        with pytest.raises(ConfigError, match="clients"):
            from_settings(name).partition(DIGITS, wrong, Seed(0), None)  # type: ignore[arg-type]


def test_partition_remembers_its_kind_and_refuses_columns_that_do_not_fit() -> None:
    out = from_settings("dirichlet", {"alpha": 0.2}).partition(DIGITS, 3, Seed(0))
    assert out.kind == "dirichlet"
    assert out.settings == {"alpha": 0.2, "minimum": 1}
    assert out.names == ("client-00", "client-01", "client-02")
    with pytest.raises(ValueError, match="read-only"):
        out.clients[0][0] = 5
    with pytest.raises(DataError, match="names"):
        Partition(clients=out.clients, names=("a",))
