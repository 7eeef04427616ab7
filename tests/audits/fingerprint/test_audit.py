"""Naive twin, theory, null, power, monotone, vantage, and bad input."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.audits.fingerprint import linkers as linkers_module
from fedaudit.audits.fingerprint.linkers import (
    LINKERS,
    distances,
    embed,
    gram,
    greedy,
    joint,
    kmeans,
    match,
    tracking,
)
from fedaudit.audits.fingerprint.scores import jackknife, links
from fedaudit.audits.outright import single_updates
from fedaudit.audits.rows.directions import Directions, split
from fedaudit.audits.rows.features import (
    collect,
    cosines,
    default_features,
    exact_cosines,
    exact_gram,
    release_pages,
    standardise_columns,
    unit_norm,
)
from fedaudit.decide.gate import gate
from fedaudit.errors import ConfigError, NotApplicable, NotObservable, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.reporting.findings import judge
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.stats import clustering
from fedaudit.stats.assignment import shortest_augmenting_paths
from fedaudit.stats.count_sketch import CountSketch
from fedaudit.stats.links import links_until_sure
from fedaudit.stats.products import product
from fedaudit.trace import ANONYMOUS, SERVER, Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth


def signal_rows(rng, clients=12, rounds=8, width=400, signal=1.0, share=1.0, common=0.0):
    """Shuffled rows of clients with one direction each plus noise, and their senders."""
    base = rng.normal(size=(clients, width))
    shared = rng.normal(size=width)
    out = []
    for _ in range(rounds):
        take = max(2, round(share * clients))
        who = rng.permutation(clients)[:take]
        rows = signal * base[who] + rng.normal(size=(take, width)) + common * shared
        out.append((rows.astype(np.float32), [f"client-{c:02d}" for c in who]))
    return out


def record(path, data, *, senders=ANONYMOUS, declared=()):
    """A trace of anonymous (or named) deltas, and its truth."""
    width = data[0][0].shape[1]
    layout = {"model": Layout.of([("1.weight", (width // 2, 2)), ("1.bias", (width % 2,))])}
    clients = sorted({s for _, own in data for s in own})
    about = {"hubs": [SERVER], "clients": clients, "parties": [SERVER, "shuffler", *clients]}
    recorder = Recorder(path / "trace", layouts=layout, federation=about, declared=declared)
    truth = TruthRecorder(path / "truth", {"clients": {}})
    for number, (rows, who) in enumerate(data, start=1):
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(width, dtype=np.float32))
            wire.send_rows("model", [SERVER] * len(clients), clients, row, step=0)
            shown = who if senders is None else [senders] * len(who)
            first = wire.send_rows("delta", shown, [SERVER] * len(who), rows, step=1)
        truth.round(number, {first + i: s for i, s in enumerate(who)})
    recorder.close()
    return Trace.open(path / "trace"), Truth.open(path / "truth")


def audit(trace, truth, seed=0, vantage=SERVER, **settings):
    a = Fingerprint(**settings)
    guess = a.attack(trace.seen_by(vantage), Knowledge(), np.random.default_rng(seed))
    return a.score(guess, truth, np.random.default_rng(seed + 1))


# -- naive ----------------------------------------------------------------------------------------


def test_greedy_equals_a_search_over_all_assignments():
    rng = np.random.default_rng(0)
    rounds = [unit_norm(rng.normal(size=(5, 9)).astype(np.float32)) for _ in range(4)]
    labels = greedy(rounds, 5, rng)
    for (a, la), (b, lb) in itertools.pairwise(zip(rounds, labels, strict=True)):
        best = min(
            itertools.permutations(range(5)),
            key=lambda p: sum(1 - float(a[i] @ b[j]) for i, j in enumerate(p)),
        )
        assert [int(np.flatnonzero(lb == la[i])[0]) for i in range(5)] == list(best)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (20, 20), (7, 30), (30, 7), (64, 64)])
def test_small_assignments_cost_what_scipys_do(shape):
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(21)
    for kind in range(6):
        cost = rng.normal(size=shape)
        if kind % 3 == 1:
            cost = np.round(cost)  # many ties
        if kind % 3 == 2:
            cost = cost + 10 * rng.normal(size=(1, shape[1]))  # all rows want the same columns
        rows, columns = shortest_augmenting_paths(cost)
        assert len(rows) == len(set(rows.tolist())) == len(set(columns.tolist())) == min(shape)
        best = cost[linear_sum_assignment(cost)].sum()
        assert cost[rows, columns].sum() == pytest.approx(best)
        assert cost[match(cost)].sum() == pytest.approx(best)


def rounding(width):
    """How far sums over rows of length 1 can lie apart in single precision, whatever the order: a
    rounding for each of `width` products, and as many again for both lengths."""
    return 3 * width * float(np.finfo(np.float32).eps)


def test_distances_are_one_minus_cosine():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(4, 7)), rng.normal(size=(3, 7))
    ours = distances(unit_norm(a.astype(np.float32)), unit_norm(b.astype(np.float32)))
    for i, j in itertools.product(range(4), range(3)):
        naive = 1 - a[i] @ b[j] / (np.linalg.norm(a[i]) * np.linalg.norm(b[j]))
        assert ours[i, j] == pytest.approx(naive, abs=rounding(7))


def test_cosines_of_raw_rows_equal_those_of_unit_rows():
    rng = np.random.default_rng(24)
    a, b = (rng.normal(size=(k, 40_000)).astype(np.float32) for k in (5, 3))
    a[2] = 0
    unit = unit_norm(a) @ unit_norm(b).T
    np.testing.assert_allclose(cosines(a, b), unit, atol=1e-5)
    assert (cosines(a, b)[2] == 0).all()


def test_a_product_by_two_threads_is_a_product():
    rng = np.random.default_rng(31)
    a, b = (rng.normal(size=(k, 40_000)).astype(np.float32) for k in (75, 40))
    np.testing.assert_allclose(product(a, b), a @ b.T, atol=1e-2)
    np.testing.assert_allclose(product(a[:3, :5], b[:, :5]), a[:3, :5] @ b[:, :5].T, atol=1e-5)


def test_rows_taken_apart_are_the_same_rows():
    """Whole rows and their distances come back from mean, length and direction."""
    rng = np.random.default_rng(25)
    data = signal_rows(rng, clients=7, rounds=3, width=60, common=30.0)
    rounds = [unit_norm(r) for r, _ in data]
    rounds[1][3] = rounds[1].mean(axis=0)  # a row that is all mean has no direction
    rounds[1] = rounds[1][:5]
    apart = Directions(rounds)
    assert Directions.of(apart) is apart
    assert apart.sizes == [len(r) for r in apart] == [7, 5, 7]
    for t, rows in enumerate(rounds):
        np.testing.assert_allclose(apart[t], rows, atol=rounding(60))
        np.testing.assert_allclose(apart.units[t], split(rows)[2], atol=rounding(60))
    for t in range(2):
        slow = distances(rounds[t], rounds[t + 1])
        np.testing.assert_allclose(apart.distances(t), slow, atol=2 * rounding(60))
    kept = [r.copy() for r in rounds]
    inside = Directions(kept, overwrite=True)
    assert all(np.shares_memory(k, u) for k, u in zip(kept, inside.units, strict=True))
    np.testing.assert_allclose(inside[2], rounds[2], atol=rounding(60))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_joint_equals_a_twin_that_computes_everything_anew(share):
    """Costs from cached products, against sums over the other rounds at every step."""
    for s in range(6):
        data = signal_rows(np.random.default_rng(s), 10, 6, 80, signal=0.6, share=share)
        rounds = [split(unit_norm(r))[2] for r, _ in data]
        start = tracking(rounds, 10, np.random.default_rng(s))
        fit = linkers_module.JointFit(rounds, start, 10)
        if s % 2:  # there and back again: the cache must follow
            fit.refine(np.random.default_rng(0))
            fit.relabel(start)
            same = clustering.scores(np.concatenate(fit.labels), np.concatenate(start))
            assert same["adjusted_rand"] == 1
            start = fit.labels
        labels = [own.copy() for own in start]
        value = fit.refine(np.random.default_rng(s))
        rng, changed, prior, count = np.random.default_rng(s), True, 1.0, len(fit.sizes)

        def cluster(label, without, labels=labels, rounds=rounds):
            own = [r[v == label] for t, (r, v) in enumerate(zip(rounds, labels, strict=True))
                   if t != without]  # fmt: skip
            return np.concatenate(own).astype(np.float64)

        while changed:
            changed = False
            whole = [cluster(c, None) for c in range(count)]
            pairs = sum(len(m) * (len(m) - 1) for m in whole)
            rho = sum((m.sum(0) ** 2).sum() - len(m) for m in whole) / pairs
            rho = min(0.99, max(0.01, rho))
            prior = (1 - rho) / rho
            for t in rng.permutation(len(rounds)):
                mean = [cluster(c, t) for c in range(count)]
                mean = np.array([m.sum(0) / (len(m) + prior) for m in mean])
                cost = ((rounds[t][:, None] - mean[None]) ** 2).sum(-1)
                cost -= (rounds[t] ** 2).sum(-1)[:, None]
                new = np.empty_like(labels[t])
                before, after = match(cost)
                new[before] = after
                every = np.arange(len(new))
                if cost[every, new].sum() < cost[every, labels[t]].sum() - 1e-6:
                    labels[t], changed = new, True
        whole = [cluster(c, None) for c in range(count)]
        slow = sum((m.sum(0) ** 2).sum() / (len(m) + prior) for m in whole)
        assert value == pytest.approx(slow, rel=1e-5)
        same = clustering.scores(np.concatenate(fit.labels), np.concatenate(labels))
        assert same["adjusted_rand"] == 1


def test_many_rows_are_clustered_by_their_strongest_directions(monkeypatch):
    """The rest is noise within clusters: both ways to directions find clusters as well."""
    data = signal_rows(np.random.default_rng(26), clients=6, rounds=8, width=500, signal=0.5)
    rounds = [unit_norm(r) for r, _ in data]
    senders = [s for _, own in data for s in own]

    def found():
        labels = np.concatenate(kmeans(rounds, 6, np.random.default_rng(0)))
        return clustering.scores(senders, labels)["adjusted_rand"]

    whole = found()
    monkeypatch.setattr(linkers_module, "ALL_DIRECTIONS", 10)
    points = linkers_module.cluster_points(rounds, 6, np.random.default_rng(0))
    values, vectors = np.linalg.eigh(gram(rounds))
    top = vectors[:, -6:] * np.sqrt(values[-6:])
    np.testing.assert_allclose(points @ points.T, top @ top.T, atol=1e-4)
    assert found() >= whole - 0.05
    monkeypatch.setattr(linkers_module, "PRODUCTS", 10)
    assert linkers_module.cluster_points(rounds, 6, np.random.default_rng(0)).shape == (48, 6)
    assert found() >= whole - 0.05
    equal = [np.ones((6, 9), np.float32) / 3] * 8  # one direction for six clients
    assert len(kmeans(equal, 6, np.random.default_rng(0))) == 8


def test_clustering_the_gram_matrix_is_clustering_the_rows():
    """K-means on points with the same inner products has the same optimum as on raw rows."""
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(2)
    data = signal_rows(rng, clients=4, rounds=6, width=300, signal=1.5)
    rounds = [unit_norm(r) for r, _ in data]
    rows = np.concatenate(rounds)
    points = embed(gram(rounds))
    np.testing.assert_allclose(points @ points.T, rows @ rows.T, atol=1e-5)
    ours = np.concatenate(kmeans(rounds, 4, rng))
    raw = KMeans(4, n_init=10, random_state=0).fit(rows).labels_
    assert clustering.scores(ours, raw)["adjusted_rand"] == pytest.approx(1.0)


def test_links_against_a_slow_twin():
    rng = np.random.default_rng(3)
    senders = [[f"c{c}" for c in rng.permutation(5)[:3]] for _ in range(9)]
    labels = [list(rng.integers(0, 4, size=3)) for _ in range(9)]  # labels may repeat in a round
    ours = links(senders, labels)
    rows = [(t, s, v) for t in range(9) for s, v in zip(senders[t], labels[t], strict=True)]

    def joined(row):
        """The earlier row that the linker joins to this one, or None."""
        t, _, v = row
        if sum(r[0] == t and r[2] == v for r in rows) > 1:
            return None
        earlier = [r for r in rows if r[2] == v and r[0] < t]
        last = [r for r in earlier if r[0] == earlier[-1][0]]
        return last[0] if len(last) == 1 else None

    slow: dict[str, list[bool]] = {}
    for row in rows:
        before = [r for r in rows if r[1] == row[1] and r[0] < row[0]]
        if before:
            slow.setdefault(row[1], []).append(joined(row) == before[-1])
    assert ours.found == slow
    made = [(row, joined(row)) for row in rows if joined(row) is not None]
    assert sum(ours.made.values()) == len(made)
    assert sum(ours.right.values()) == sum(a[1] == b[1] for a, b in made)


def test_one_label_for_everything_links_nothing():
    senders = [[f"c{c}" for c in range(5)]] * 4
    joined = links(senders, [[0] * 5] * 4)
    assert not any(h for hits in joined.found.values() for h in hits)
    assert not joined.made


def test_a_fold_equals_its_matrix():
    rng = np.random.default_rng(4)
    fold = CountSketch(103, 17, rng)
    rows = rng.normal(size=(3, 103)).astype(np.float32)
    matrix = np.zeros((103, 17))
    matrix[np.arange(103), np.arange(103) % 17] = fold._signs
    whole, pieces = np.zeros((3, 17), np.float32), np.zeros((3, 17), np.float32)
    fold.add(whole, rows, 0)
    squares = np.zeros(3)
    for low in range(0, 103, 10):
        squares += fold.add(pieces, rows[:, low : low + 10], low)
    np.testing.assert_allclose(whole, rows @ matrix, atol=1e-4)
    np.testing.assert_allclose(pieces, whole, atol=1e-5)
    np.testing.assert_allclose(squares, (rows**2).sum(axis=1), rtol=1e-5)


def test_rows_are_folded_alike_by_one_thread_and_by_two(monkeypatch):
    rng = np.random.default_rng(27)
    fold = CountSketch(30_011, 997, rng)
    rows = rng.normal(size=(9, 30_011)).astype(np.float32)
    monkeypatch.setattr("fedaudit.stats.count_sketch.FOLD_COLUMNS", 7_000)
    monkeypatch.setattr("fedaudit.stats.products.CACHED", 20_000)
    found = []
    for threads in (1, 2):
        monkeypatch.setattr("fedaudit.stats.products.THREADS", threads)
        out = np.zeros((9, 997), np.float32)
        found.append((out, fold.add(out, rows, 0)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], (rows**2).sum(axis=1), rtol=1e-5)
    signs = fold._signs.astype(np.float64)
    slow = np.zeros((9, 997))
    for j in range(30_011):
        slow[:, j % 997] += rows[:, j] * signs[j]
    np.testing.assert_allclose(found[0][0], slow, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-24, 1e22])
@pytest.mark.parametrize("sketch", [0, 101])
def test_numbers_whose_squares_leave_single_precision_are_no_zeros(tmp_path, scale, sketch):
    data = signal_rows(np.random.default_rng(28), clients=5, rounds=2, width=600)
    small = [((rows * scale).astype(np.float32), who) for rows, who in data]
    here = [record(tmp_path / n, d)[0].seen_by(SERVER) for n, d in (("a", data), ("b", small))]
    plain, scaled = (collect(v, ("1.weight",), np.random.default_rng(0), sketch=sketch).rows
                     for v in here)  # fmt: skip
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_pages_that_are_given_back_can_be_read_again(tmp_path):
    data = signal_rows(np.random.default_rng(29), clients=5, rounds=2, width=600)
    trace, _ = record(tmp_path, data)
    rows = trace.seen_by(SERVER).updates(1, "1.weight").rows
    before = rows.copy()
    release_pages(rows)
    np.testing.assert_array_equal(rows, before)
    release_pages(before)  # memory of our own stays
    np.testing.assert_array_equal(rows, before)


def test_exact_cosines_streamed_equal_those_in_memory(tmp_path):
    data = signal_rows(np.random.default_rng(5), rounds=2, width=501)
    trace, _ = record(tmp_path, data)
    view = trace.seen_by(SERVER)
    streamed = exact_cosines(view, *single_updates(view, "1.weight"), ("1.weight", "1.bias"))
    a, b = (unit_norm(rows) for rows, _ in data)
    np.testing.assert_allclose(streamed, a @ b.T, atol=1e-5)


# -- theory ---------------------------------------------------------------------------------------


def test_the_sketch_is_unbiased_and_its_noise_is_one_over_root_width():
    rng = np.random.default_rng(6)
    width = 251
    x, y = (unit_norm(rng.normal(size=(1, 5000)).astype(np.float32)) for _ in range(2))
    y = unit_norm(0.5 * x + 0.8 * y)
    exact = float((x @ y.T)[0, 0])
    values = []
    for s in range(400):
        fold = CountSketch(5000, width, np.random.default_rng(s))
        a, b = np.zeros((1, width), np.float32), np.zeros((1, width), np.float32)
        fold.add(a, x, 0)
        fold.add(b, y, 0)
        values.append(float((a @ b.T)[0, 0]))
    assert np.mean(values) == pytest.approx(exact, abs=4 * np.std(values) / 20)
    assert np.std(values) == pytest.approx(np.sqrt((1 + exact**2) / width), rel=0.2)


@pytest.mark.parametrize(
    ("clients", "published"), [(3, (0.458, 0.563, 0.074)), (20, (0.206, 0.909, 0.933))]
)
def test_the_random_method_gives_the_published_random_row(clients, published):
    """[Fingerprint] Table 2, T = 10: independent uniform labels."""
    rng = np.random.default_rng(7)
    truth = np.tile(np.arange(clients), 10)
    rows = [np.zeros((clients, 1), np.float32)] * 10
    drawn = [
        clustering.scores(truth, np.concatenate(LINKERS["random"](rows, clients, rng)))
        for _ in range(400)
    ]
    for name, value in zip(("purity", "rand_index", "mutual_information"), published, strict=True):
        assert np.mean([d[name] for d in drawn]) == pytest.approx(value, abs=0.012)


@pytest.mark.parametrize("method", LINKERS)
def test_chance_is_what_the_same_linker_finds_without_signal(method):
    """Half participation: greedy uses few labels, tracking many; each has its own chance."""
    rng = np.random.default_rng(8)
    found, right, made, chances, precisions = [], 0, 0, [], []
    for _ in range(60 if method in ("kmeans", "spectral") else 200):
        senders = [[f"c{c}" for c in rng.permutation(8)[:4]] for _ in range(6)]
        rounds = [unit_norm(rng.normal(size=(4, 30)).astype(np.float32)) for _ in range(6)]
        labels = [v.tolist() for v in LINKERS[method](rounds, 8, rng)]
        joined = links(senders, labels)
        found += [h for hits in joined.found.values() for h in hits]
        chances += [joined.chance] * sum(len(h) for h in joined.found.values())
        own = sum(joined.made.values())
        right, made = right + sum(joined.right.values()), made + own
        precisions += [joined.precision_chance] * own
    error = np.std(found) / len(found) ** 0.5
    assert np.mean(found) == pytest.approx(np.mean(chances), abs=4 * error)
    assert right / made == pytest.approx(np.mean(precisions), abs=4 * (0.25 / made) ** 0.5)


def test_sure_after_controls_its_error():
    rng = np.random.default_rng(9)
    alarms = [links_until_sure(rng.random(12) < 0.1, 0.1, 0.95) is not None for _ in range(3000)]
    assert np.mean(alarms) <= 0.05
    assert links_until_sure([True] * 9, 0.05, 0.95) == 2
    assert links_until_sure([False] * 9, 0.05, 0.95) is None


# -- null -----------------------------------------------------------------------------------------


def test_no_signal_raises_the_alarm_at_most_at_the_stated_rate(tmp_path):
    alarms = 0
    for s in range(60):
        data = signal_rows(np.random.default_rng(s), clients=8, rounds=5, width=60, signal=0.0)
        trace, truth = record(tmp_path / str(s), data)
        finding = judge(audit(trace, truth, seed=s, methods=("greedy",)))[-1]
        alarms += finding.verdict == "leak"
    # one-sided 2.5 %: more than 6 of 60 would happen once in 2,000
    assert alarms <= 6


@pytest.mark.parametrize("method", LINKERS)
def test_degenerate_rows_in_file_order_score_chance_not_one(tmp_path, method):
    """All updates are equal: ties must not follow file order."""
    names = [f"client-{c:02d}" for c in range(10)]
    rows = np.ones((10, 20), np.float32)
    trace, truth = record(tmp_path, [(rows, names)] * 6)
    result = audit(trace, truth, methods=(method,))
    assert result.estimates["linkage_accuracy"].value < 0.5


# -- power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["greedy", "tracking", "joint", "spectral", "kmeans"])
def test_a_clear_signal_is_found(tmp_path, method):
    trace, truth = record(tmp_path, signal_rows(np.random.default_rng(10), signal=2.0))
    result = audit(trace, truth, methods=(method,))
    assert result.estimates["linkage_accuracy"].value > 0.95
    assert judge(result)[-1].verdict == "leak"


def linkage(method, share, seed, **kind):
    data = signal_rows(np.random.default_rng(seed), clients=16, rounds=12, share=share, **kind)
    rounds = [unit_norm(r) for r, _ in data]
    labels = method(rounds, 16, np.random.default_rng(seed))
    found = links([s for _, s in data], [v.tolist() for v in labels]).found
    return np.mean([h for hits in found.values() for h in hits])


def test_tracking_and_joint_beat_greedy_when_half_take_part_and_match_it_when_all_do():
    half = {m: np.mean([linkage(m, 0.5, s) for s in range(5)]) for m in (greedy, tracking, joint)}
    assert half[tracking] > half[greedy] + 0.2
    assert half[joint] > half[greedy] + 0.2
    every = {m: np.mean([linkage(m, 1.0, s) for s in range(5)]) for m in (greedy, tracking, joint)}
    assert every[joint] >= every[greedy] - 0.01
    assert every[tracking] >= every[greedy] - 0.02


def test_joint_links_what_noise_hides_from_greedy():
    kind = {"signal": 0.35, "common": 1.0}
    pairs = [(linkage(greedy, 1.0, s, **kind), linkage(joint, 1.0, s, **kind)) for s in range(5)]
    weak, strong = np.mean(pairs, axis=0)
    assert strong > weak + 0.1


def test_a_sketch_agrees_with_exact_rows_where_the_signal_shows(tmp_path):
    data = signal_rows(np.random.default_rng(11), clients=20, rounds=5, width=20_000, signal=1.0)
    trace, truth = record(tmp_path, data)
    exact = audit(trace, truth, sketch=0, methods=("greedy",))
    folded = audit(trace, truth, sketch=1021, methods=("greedy",))
    assert exact.estimates["linkage_accuracy"].value == 1.0
    assert folded.estimates["linkage_accuracy"].value == 1.0
    assert folded.settings["sketch"] == 1021
    assert any("a sketch of 1,021 numbers" in n for n in folded.notes)


def test_no_negative_rests_on_a_sketch_alone(tmp_path):
    """Cosine 0.06: a narrow sketch sees nothing, so the audit repeats on exact rows."""
    data = signal_rows(np.random.default_rng(12), clients=20, rounds=4, width=60_000, signal=0.25)
    trace, truth = record(tmp_path, data)
    view = trace.seen_by(SERVER)
    blind = collect(view, ("1.weight",), np.random.default_rng(0), sketch=211)
    seen = links(
        [s for _, s in data],
        [v.tolist() for v in greedy(blind.rows, 20, np.random.default_rng(0))],
    ).found
    assert np.mean([h for hits in seen.values() for h in hits]) < 0.6
    looked = audit(trace, truth, sketch=211, methods=("greedy",))
    assert looked.estimates["linkage_accuracy"].value > 0.95
    assert any("repeated on exact rows" in n for n in looked.notes)
    strong = audit(trace, truth, sketch=211, methods=("joint",))
    assert strong.estimates["linkage_accuracy"].value > 0.95


def test_methods_that_are_not_repeated_exactly_are_named_with_the_reason(tmp_path, monkeypatch):
    from fedaudit.audits.fingerprint import audit as module

    faint = signal_rows(np.random.default_rng(12), rounds=4, width=60_000, signal=0.25)
    trace, truth = record(tmp_path, faint)
    asked = ("joint", "kmeans", "random")
    whole = audit(trace, truth, sketch=211, methods=asked)
    assert not any(n.startswith("left out") for n in whole.notes)
    monkeypatch.setattr(module, "EXACT_ROWS", 3)
    looked = audit(trace, truth, sketch=211, methods=asked)
    (note,) = [n for n in looked.notes if n.startswith("left out")]
    assert note.startswith("left out: joint, kmeans, which compare all pairs of rows")
    assert note.endswith("The verdict is from greedy")
    assert looked.settings["methods"] == list(asked)
    assert looked.source.endswith("greedy")
    assert "linkage_accuracy (random)" in looked.estimates
    alone = audit(trace, truth, sketch=211, methods=("greedy",))
    assert not any(n.startswith("left out") for n in alone.notes)
    assert looked.estimates["linkage_accuracy"].value == alone.estimates["linkage_accuracy"].value
    blind = audit(trace, None, sketch=211, methods=asked)
    assert note in blind.notes


def test_what_all_clients_share_does_not_pass_for_a_match(tmp_path):
    rng = np.random.default_rng(22)
    data = signal_rows(rng, clients=16, rounds=4, width=60_000, signal=0.3, common=2.0)
    trace, truth = record(tmp_path, data)
    looked = audit(trace, truth, sketch=211)
    assert any("repeated on exact rows" in n for n in looked.notes)
    assert looked.estimates["linkage_accuracy"].value > 0.95


def test_exact_cosines_of_all_rows_equal_those_in_memory(tmp_path):
    data = signal_rows(np.random.default_rng(23), rounds=3, width=501)
    trace, _ = record(tmp_path, data)
    rows = np.concatenate([unit_norm(r) for r, _ in data])
    view = trace.seen_by(SERVER)
    every = exact_gram(view, single_updates(view, "1.weight"), ("1.weight", "1.bias"))
    np.testing.assert_allclose(every, rows @ rows.T, atol=1e-5)


# -- monotone -------------------------------------------------------------------------------------


def test_more_noise_never_reads_as_more_leak():
    for method in (greedy, joint):
        shares = [
            np.mean([linkage(method, 1.0, s, signal=g) for s in range(4)])
            for g in (2.0, 0.6, 0.3, 0.15, 0.0)
        ]
        assert all(a >= b - 0.05 for a, b in itertools.pairwise(shares))
        assert shares[0] > 0.95
        assert shares[-1] < 0.15


# -- vantage and contracts ------------------------------------------------------------------------


def test_a_narrower_view_raises(tmp_path):
    trace, truth = record(tmp_path, signal_rows(np.random.default_rng(13)))
    for party in ("client-00", "network", "shuffler"):
        with pytest.raises(NotObservable):
            audit(trace, truth, vantage=party)


def test_same_seed_same_result_and_a_json_round_trip(tmp_path):
    from fedaudit.results import AuditResult

    trace, truth = record(tmp_path, signal_rows(np.random.default_rng(14), signal=0.3))
    one, two = audit(trace, truth, seed=3), audit(trace, truth, seed=3)
    assert one == two
    assert AuditResult.from_json(one.to_json()) == AuditResult.from_json(two.to_json())


def test_renaming_clients_changes_only_labels(tmp_path):
    data = signal_rows(np.random.default_rng(15), signal=0.3)
    renamed = [(rows, [s.replace("client", "site") for s in own]) for rows, own in data]
    a = audit(*record(tmp_path / "a", data), seed=1)
    b = audit(*record(tmp_path / "b", renamed), seed=1)
    assert {k: e.value for k, e in a.estimates.items()} == {
        k: e.value for k, e in b.estimates.items()
    }
    assert [k.replace("client", "site") for k in a.per_client] == list(b.per_client)


def test_without_truth_the_attack_is_blind(tmp_path):
    trace, _ = record(tmp_path, signal_rows(np.random.default_rng(16)))
    result = audit(trace, None)
    assert result.need.code == "no_truth"
    assert not result.estimates


def test_perfect_linkage_still_has_an_interval():
    truth = np.repeat(np.arange(6), 5)
    for low, high in jackknife(truth, truth, 0.95).values():
        assert low < high


@pytest.mark.parametrize(
    ("noise", "signal", "said"),
    [(1.0, 2.0, "void"), (1.0, 0.0, "does not apply, since one report costs"),
     (200.0, 0.0, "gains nothing")],
)  # fmt: skip
def test_noise_of_whole_clients_states_what_shuffling_adds(tmp_path, noise, signal, said):
    """Local noise and a shuffler: the audit states whether amplification holds."""
    clients = 12 if noise < 100 else 400
    data = signal_rows(np.random.default_rng(30), clients, 3, 40, signal=signal)
    declared = [{"name": "update_noise", "noise_multiplier": noise}]
    trace, truth = record(tmp_path, data, declared=declared)
    given = {"epsilon": 9.0, "delta": 1e-5, "unit": "client", "relation": "replace"}
    truth.facts["guarantees"] = {"update_noise": {"client-00": given}}
    notes = " ".join(audit(trace, truth, methods=("greedy",)).notes)
    assert "update_noise spends epsilon 9" in notes
    assert said in notes
    of_record = {**given, "unit": "record", "relation": "add_or_remove"}
    truth.facts["guarantees"] = {"update_noise": {"client-00": of_record}}
    notes = " ".join(audit(trace, truth, methods=("greedy",)).notes)
    assert "whole input, not for a record" in notes or "void" in notes


def test_columns_are_standardised_over_all_rounds():
    rng = np.random.default_rng(17)
    rounds = [rng.normal(3, 2, size=(4, 5)).astype(np.float32) for _ in range(6)]
    rounds = [np.concatenate([r, np.ones((4, 1), np.float32)], axis=1) for r in rounds]
    out = np.concatenate(standardise_columns(rounds))
    np.testing.assert_allclose(out[:, :5].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out[:, :5].std(0), 1, atol=1e-5)
    assert (out[:, 5] == 0).all()
    assert np.isfinite(split(np.ones((3, 4), np.float32))[2]).all()


def test_default_features():
    gpt = Layout.of(
        [
            ("tokens.weight", (9, 4)),
            ("blocks.0.mlp.fc.weight", (8, 4)),
            ("blocks.0.mlp.fc.bias", (8,)),
            ("blocks.1.mlp.fc.weight", (8, 4)),
        ]
    )
    assert default_features(gpt) == ("blocks.0.mlp.fc.weight",)
    plain = Layout.of([("1.weight", (3, 2)), ("1.bias", (3,))])
    assert default_features(plain) == ("1.weight",)


# -- known outright -------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 4])
def test_named_senders_are_a_leak_at_full_value(tmp_path, rounds):
    """Noise does not hide a name. One round is enough."""
    trace, truth = record(
        tmp_path, signal_rows(np.random.default_rng(31), rounds=rounds), senders=None
    )
    clients = len(trace.messages(1)) // 2
    for known in (truth, None):  # names in the trace need no truth
        result = audit(trace, known)
        assert (result.status, result.known) == ("ok", True)
        e = result.estimates["linkage_accuracy"]
        assert (e.value, e.low, e.high, e.confidence) == (1.0, 1.0, 1.0, 1.0)
        assert e.baseline == pytest.approx(1 / clients)
        assert clients == len(result.per_client)
        assert e.n == clients * rounds  # messages by name
        assert {row["share"] for row in result.per_client.values()} == {1.0}
        (finding,) = judge(result)
        assert (finding.verdict, finding.rule, finding.known) == ("leak", "K1", True)
        assert finding.measure == "linkage_accuracy"


def mixed(path, data, bare):
    """A trace in which the clients `bare` send by name, and all others through a shuffler."""
    width = data[0][0].shape[1]
    layout = {"model": Layout.of([("1.weight", (width // 2, 2)), ("1.bias", (width % 2,))])}
    clients = sorted({s for _, own in data for s in own})
    recorder = Recorder(
        path / "trace", layouts=layout, federation={"hubs": [SERVER], "clients": clients}
    )
    truth = TruthRecorder(path / "truth", {"clients": {}})
    for number, (rows, who) in enumerate(data, start=1):
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(width, dtype=np.float32))
            wire.send_rows("model", [SERVER] * len(clients), clients, row, step=0)
            shown = [s if s in bare else ANONYMOUS for s in who]
            first = wire.send_rows("delta", shown, [SERVER] * len(who), rows, step=1)
        truth.round(number, {first + i: s for i, s in enumerate(who)})
    recorder.close()
    return Trace.open(path / "trace"), Truth.open(path / "truth")


def test_only_what_is_unnamed_needs_linking(tmp_path):
    rng = np.random.default_rng(32)
    names = [f"client-{c:02d}" for c in range(12)]
    data = [(rng.normal(size=(12, 20)).astype(np.float32), names) for _ in range(6)]
    trace, truth = mixed(tmp_path, data, names[:3])
    result = audit(trace, truth, clients=9)
    hidden, _ = record(tmp_path / "rest", [(rows[3:], own[3:]) for rows, own in data])
    alone = audit(hidden, Truth.open(tmp_path / "rest" / "truth"), clients=9)
    assert result.known
    assert not alone.known
    e, rest = result.estimates["linkage_accuracy"], alone.estimates["linkage_accuracy"]
    assert (e.value, e.low, e.high, e.baseline, e.n) == (1.0, 1.0, 1.0, 1 / 12, 18)
    assert result.estimates["messages_by_name"].value == 0.25
    assert result.estimates["linkage_accuracy (anonymous updates)"].value == rest.value
    assert {result.per_client[n]["share"] for n in names[:3]} == {1.0}
    assert result.per_client[names[5]] == alone.per_client[names[5]]
    assert judge(result)[0].verdict == "leak"
    blind = audit(trace, None).estimates
    assert blind["linkage_accuracy"] == e
    assert blind["messages_by_name"].value == 0.25


@pytest.mark.parametrize("bare", [1, 4])
def test_one_named_client_is_exposed_in_full_whoever_else_is_not(tmp_path, bare):
    """A share of all messages would understate the exposure of the named client."""
    rng = np.random.default_rng(34)
    names = [f"client-{c:02d}" for c in range(5)]
    data = [(rng.normal(size=(5, 20)).astype(np.float32), names) for _ in range(6)]
    trace, truth = mixed(tmp_path, data, names[:bare])
    for known in (truth, None):
        result = audit(trace, known)
        e = result.estimates["linkage_accuracy"]
        assert (e.value, e.low, e.high) == (1.0, 1.0, 1.0)
        assert (e.baseline, e.n) == (1 / 5, 6 * bare)
        assert result.estimates["messages_by_name"].value == pytest.approx(bare / 5)
        assert result.notes[0] == f"by name, on {6 * bare} of 30 messages"
    found = study.audit(trace.path)
    (plan,) = [r for r in found.results if r.audit == "query_plan"]
    assert plan.notes[0] == f"by name, on {6 * bare} of 30 messages"
    limit = {"metric": "fingerprint.linkage_accuracy", "at_most_times_chance": 1.5}
    assert not gate(found.path, {"limit": [limit]}).passed


def test_a_name_beside_an_anonymous_update_is_a_name(tmp_path):
    rng = np.random.default_rng(33)
    plain = {"w": np.zeros(6, dtype=np.float32)}
    names = ["north", "south", "east"]
    recorder = Recorder(tmp_path, like=plain, federation={"hubs": [SERVER], "clients": names})
    for _ in range(3):
        with recorder.round() as wire:
            for name in names:
                wire.send("model", SERVER, name, plain, step=0)
            for name in rng.permutation(names):
                update = {"w": rng.normal(size=6).astype(np.float32)}
                about = {"cid": str(name), "loss": float(rng.random())}
                wire.send("delta", ANONYMOUS, SERVER, update, step=1, metadata=about)
    recorder.close()
    result = audit(Trace.open(tmp_path), None, features=("w",))
    assert result.known
    assert set(result.per_client) == set(names)


@pytest.mark.parametrize(("sizes", "known"), [("own", True), ("alike", False), ("drawn", False)])
def test_weights_that_tell_clients_apart_need_no_attack(tmp_path, sizes, known):
    """Updates of pure noise: only the weight identifies senders, if it is always right."""
    rng = np.random.default_rng(34)
    width, names = 10, [f"client-{c:02d}" for c in range(6)]
    layout = {"model": Layout.of([("1.weight", (5, 2)), ("1.bias", (0,))])}
    recorder = Recorder(tmp_path / "trace", layouts=layout, federation={"clients": names})
    truth = TruthRecorder(tmp_path / "truth", {"clients": {}})
    for number in range(1, 5):
        order = rng.permutation(6)
        weights = {"own": order + 10.0, "alike": np.ones(6), "drawn": rng.permutation(6) + 10.0}
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(width, dtype=np.float32))
            wire.send_rows("model", [SERVER] * 6, names, row, step=0)
            rows = rng.normal(size=(6, width)).astype(np.float32)
            first = wire.send_rows(
                "delta", [ANONYMOUS] * 6, [SERVER] * 6, rows, step=1, weights=weights[sizes]
            )
        truth.round(number, {first + i: names[c] for i, c in enumerate(order)})
    recorder.close()
    result = audit(Trace.open(tmp_path / "trace"), Truth.open(tmp_path / "truth"))
    assert result.known is known
    assert (result.estimates["linkage_accuracy"].low == 1.0) is known


def beside(rng, fields, clients=4, rounds=6, share=1.0):
    """Updates of pure noise; `fields(rng, round, clients)` are the metadata of their senders."""
    names = [f"client-{c:02d}" for c in range(clients)]
    recorder = MemoryRecorder(
        layouts={"model": Layout.of([("1.weight", (3, 2))])},
        federation={"hubs": [SERVER], "clients": names},
    )
    truth = MemoryTruth({"clients": {}})
    for number in range(1, rounds + 1):
        order = rng.permutation(clients)[: max(2, round(share * clients))]
        noise = rng.normal(size=(len(order), 6)).astype(np.float32)
        about = fields(rng, number, order)
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(6, dtype=np.float32))
            wire.send_rows("model", [SERVER] * clients, names, row, step=0)
            senders = {}
            for update, c, metadata in zip(noise, order, about, strict=True):
                at = wire.send(
                    "delta",
                    ANONYMOUS,
                    SERVER,
                    {"1.weight": update.reshape(3, 2)},
                    step=1,
                    metadata=metadata,
                )
                senders[at] = names[c]
        truth.round(number, senders)
    return recorder.trace(), truth


def each(values, name="field"):
    return [{name: v.item()} for v in np.asarray(values)]


TELL_NOTHING = {
    "continuous": lambda rng, t, who: each(rng.random(len(who))),
    "an accuracy": lambda rng, t, who: each(rng.integers(0, 151, len(who)) / 150),
    "small integers": lambda rng, t, who: each(rng.integers(0, 8, len(who))),
    "a constant": lambda rng, t, who: each(np.full(len(who), 7)),
    "equal counts": lambda rng, t, who: each(np.full(len(who), 600), "num_examples"),
    "a counter of rounds": lambda rng, t, who: each(np.full(len(who), t)),
    "a counter of arrivals": lambda rng, t, who: each(rng.permutation(len(who))),
    "many fields": lambda rng, t, who: [
        {f"metric {k}": int(rng.integers(0, 12)) for k in range(6)} for _ in who
    ],
}


@pytest.mark.parametrize("shape", TELL_NOTHING)
def test_fields_that_tell_nothing_raise_the_alarm_at_most_at_the_stated_rate(shape):
    """Counts alarms from fields only: the linker's own alarms are subtracted."""
    alarms, a = 0, Fingerprint(methods=("greedy",))
    for s in range(150):
        trace, truth = beside(np.random.default_rng([s, len(shape)]), TELL_NOTHING[shape])
        guess = a.attack(trace.seen_by(SERVER), Knowledge(), np.random.default_rng(s))
        with_fields, without = (
            judge(a.score(g, truth, np.random.default_rng(s)))[-1].verdict == "leak"
            for g in (guess, replace(guess, recurring=()))
        )
        alarms += with_fields and not without
    # one-sided 2.5 %: more than 10 of 150 would happen once in 500
    assert alarms <= 10


COUNTS = np.array([120, 340, 560, 77, 901, 45, 300, 210])


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_example_counts_of_their_own_tell_clients_apart(share):
    def fields(rng, t, who):  # beside a metric that comes first, recurs and says nothing
        metric = rng.permutation(len(who))
        return [
            {"a": int(m), "num_examples": int(COUNTS[c])} for m, c in zip(metric, who, strict=True)
        ]

    trace, truth = beside(np.random.default_rng(1), fields, clients=8, rounds=5, share=share)
    result = audit(trace, truth)
    assert result.known
    assert "num_examples" in result.notes[0]
    assert result.estimates["linkage_accuracy"].low == 1.0


def test_what_is_right_too_seldom_is_not_known():
    """Two clients agree twice by chance one time in four."""

    def fields(rng, t, who):
        return each(COUNTS[who])

    for rounds, known in ((3, False), (7, True)):
        trace, truth = beside(np.random.default_rng(2), fields, clients=2, rounds=rounds)
        assert audit(trace, truth).known is known


def test_a_field_on_some_updates_counts_as_it_was_measured():
    def fields(rng, t, who):
        return [{"count": int(COUNTS[c])} if c < 6 else {} for c in who]

    trace, truth = beside(np.random.default_rng(3), fields, clients=8, rounds=6)
    result = audit(trace, truth)
    assert not result.known
    e = result.estimates["linkage_accuracy"]
    assert 0.75 <= e.value < 1.0
    assert judge(result)[-1].verdict == "leak"


def test_regions_that_send_means_name_no_client(tmp_path):
    plain = {"w": np.zeros(4, dtype=np.float32)}
    about = {"hubs": [SERVER, "ward"], "clients": ["a", "b"]}
    recorder = Recorder(tmp_path, like=plain, federation=about)
    for _ in range(2):
        with recorder.round() as wire:
            wire.send("model", SERVER, "ward", plain, step=0)
            for name in ("a", "b"):
                wire.send("model", "ward", name, plain, step=1)
                wire.send("delta", name, "ward", {"w": np.ones(4, np.float32)}, step=2)
            wire.send("delta", "ward", SERVER, {"w": np.ones(4, np.float32)}, step=3)
    recorder.close()
    trace = Trace.open(tmp_path)
    with pytest.raises(NotApplicable) as error:
        audit(trace, None, features=("w",))
    assert error.value.code == "only_regions"
    # the region itself sees names
    assert audit(trace, None, vantage="ward", features=("w",)).known
    assert set(audit(trace, None, vantage="ward", features=("w",)).per_client) == {"a", "b"}


# -- bad input ------------------------------------------------------------------------------------


def test_what_cannot_be_linked_is_refused(tmp_path):
    rng = np.random.default_rng(18)
    trace, truth = record(tmp_path / "one", signal_rows(rng, rounds=1))
    with pytest.raises(NotApplicable, match="two rounds"):
        audit(trace, truth)
    alone = [(rows[:1], own[:1]) for rows, own in signal_rows(rng)]
    trace, truth = record(tmp_path / "alone", alone)
    with pytest.raises(NotApplicable, match="nothing to link"):
        audit(trace, truth)


def test_values_that_are_not_finite_are_named_by_round_and_row(tmp_path):
    data = signal_rows(np.random.default_rng(19))
    data[2][0][4, 7] = np.nan
    trace, truth = record(tmp_path, data)
    with pytest.raises(TraceError, match="round 3") as error:
        audit(trace, truth)
    assert "row 4" in error.value.got
    # the remedy names existing settings
    named = re.findall(r"\w+(?:\.\w+)+", error.value.remedy)
    assert named == ["training.learning_rate", "audits.fingerprint.features"]
    load({"training": {"learning_rate": 0.01}, "audits": {"fingerprint": {"features": ["x"]}}})


def test_zero_updates_score_chance(tmp_path):
    names = [f"client-{c:02d}" for c in range(8)]
    trace, truth = record(tmp_path, [(np.zeros((8, 10), np.float32), names)] * 5)
    result = audit(trace, truth, methods=("combined", *LINKERS))
    assert not result.test.significant
    assert {f.verdict for f in judge(result)} == {"no_evidence"}


def test_settings_are_checked(tmp_path):
    trace, truth = record(tmp_path, signal_rows(np.random.default_rng(20)))
    with pytest.raises(UsageError, match="no tensor matches") as error:
        audit(trace, truth, features=("1.weigth",))
    assert "1.weight" in error.value.remedy
    for wrong in ({"methods": ()}, {"confidence": 1.0}, {"sketch": -1}, {"clients": 1}):
        with pytest.raises(ConfigError):
            Fingerprint(**wrong)
    with pytest.raises(UsageError, match="exact rows"):
        audit(trace, truth, normalise="column", sketch=7)


def test_known_links_have_the_largest_scores_there_are():
    """Mutual information in nats is the entropy of the senders, above that of any linker."""
    config = {
        "seed": 3,
        "data": {"name": "digits"},
        "task": {"kind": "mlp", "hidden": [8]},
        "federation": {"clients": 6, "rounds": 3},
    }
    federation, facts = build(load(config))
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth)
    audit, rng = Fingerprint(), np.random.default_rng(0)
    guess = audit.attack(recorder.trace().seen_by("server"), Knowledge(), rng)
    found = audit.score(guess, truth, rng)
    assert found.known
    assert found.estimates["mutual_information"].value == pytest.approx(np.log(6))
    for name in ("purity", "rand_index", "adjusted_rand"):
        e = found.estimates[name]
        assert (e.value, e.low, e.high) == (1.0, 1.0, 1.0)
        assert e.baseline is not None
        assert e.baseline < 1.0
