"""The protection of a config: what the server trains on, what is recorded, what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, NotObservable, UsageError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Uploads
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.randomness import Seed
from fedaudit.stats import query_algebra
from fedaudit.tasks.catalogue import MLP
from fedaudit.trace import AGGREGATOR, NETWORK, SERVER, WIRETAP, Recorder, Trace, TruthRecorder
from fedaudit.trace.ledger import QUERY, round_queries

SEED, K = Seed(3), 8


def uploads(clients=K, **changes):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(clients, 50)).astype(np.float32))
    plain = Uploads(
        rows=rows,
        senders=tuple(f"client-{i:02d}" for i in range(clients)),
        weights=np.ones(clients),
        origin=np.arange(clients),
        total_weight=float(clients),
    )
    return replace(plain, **changes)


def after(hook, given, number=1):
    return hook.upload(given, round_number=number, seed=SEED)


@pytest.mark.parametrize("weights", [np.ones(K), np.arange(1.0, K + 1) * 7])
@pytest.mark.parametrize("bits", [32, 64])
def test_the_server_gets_the_weighted_sum_and_the_total_weight(weights, bits):
    given = uploads(weights=weights, total_weight=float(weights.sum()))
    out = after(SecureAggregation(threshold=3, modulus_bits=bits), given)
    ideal = SecureSum().upload(given, round_number=1, seed=SEED)
    bound = out.metadata[0]["error"] + 1e-5 * weights.max()  # float32 on either side
    assert torch.allclose(out.rows, ideal.rows, atol=bound, rtol=0)
    assert out.total_weight == weights.sum()
    assert (out.kind, out.senders) == ("sum", (AGGREGATOR,))
    assert out.metadata[0]["query"] == 0


def test_masked_uploads_show_by_size_alone():
    out = after(SecureAggregation(threshold=3), uploads())
    up = [leg for leg in out.legs if leg.receiver == AGGREGATOR]
    down = [leg for leg in out.legs if leg.sender == AGGREGATOR]
    assert [leg.sender for leg in up] == list(uploads().senders)
    assert len(down) == K
    assert {leg.kind for leg in out.legs} == {"masked"}
    # keys, shares, 50 numbers and the weight of four bytes each, revealed shares, and signatures of
    # shares, upload, list of uploads, revealed shares
    assert {leg.size for leg in up} == {200 + 122 * K + 4 * 51 + 42 * K + 4 * 64}


@pytest.mark.parametrize("plan", ["cycled", "groups", "swapped", "partitions", "paired"])
def test_a_plan_is_asked_and_answered(plan):
    hook = SecureAggregation(threshold=3, plan=plan, refuse_isolating=False)
    given = uploads()
    out = after(hook, given)
    rows = given.rows.numpy()
    assert out.queries[0].clients.tolist() == list(range(K))
    assert out.queries[0].row is None  # its answer is the upload itself
    for question in out.queries[1:]:
        expected = rows[question.clients].sum(axis=0)
        assert np.allclose(
            question.row.numpy(), expected, atol=question.answer_metadata["error"] + 1e-5
        )
        assert len(question.clients) >= 3
    sizes = [len(q.clients) for q in out.queries[1:]]
    if plan == "paired":
        assert set(sizes) == {3, 4}
        assert len(sizes) <= 2 * 5 * K
    else:
        assert sum(sizes) == K
    queries = np.zeros((len(out.queries), K))
    for row, question in zip(queries, out.queries, strict=True):
        row[question.clients] = 1
    assert (query_algebra.rank(queries) == K) == (plan == "paired")
    # each subset costs each of its members an upload of its own
    masked = [leg for leg in out.legs if leg.receiver == AGGREGATOR]
    assert len(masked) == K + sum(sizes)


def test_designs_repeat_as_they_should():
    def plans(plan, rounds):
        hook = SecureAggregation(threshold=4, plan=plan)
        return [
            [tuple(s) for s in hook.subsets(20, number, SEED)] for number in range(1, rounds + 1)
        ]

    groups, swapped, fresh = plans("groups", 4), plans("swapped", 4), plans("partitions", 4)
    assert groups[0] == groups[1] == groups[3]
    assert len({str(p) for p in fresh}) == 4
    kept = [len(set(a) & set(b)) for a, b in zip(swapped[0], swapped[1], strict=True)]
    assert 0 < sum(kept) < 20
    assert plans("swapped", 4) == swapped
    cycled = plans("cycled", 7)
    assert len({str(p) for p in cycled[:5]}) == 5
    assert cycled[5:] == cycled[:2]


def test_skipping_the_masks_changes_nothing_that_is_seen():
    for dropout in (0.0, 0.25):
        hook = SecureAggregation(threshold=3, plan="partitions", dropout=dropout)
        real, quick = (after(replace(hook, masks=m), uploads()) for m in ("real", "skipped"))
        assert torch.equal(real.rows, quick.rows)
        assert real.legs == quick.legs
        assert real.metadata == quick.metadata
        for a, b in zip(real.queries, quick.queries, strict=True):
            assert a.clients.tolist() == b.clients.tolist()
            assert a.metadata == b.metadata
            assert (a.row is None and b.row is None) or torch.equal(a.row, b.row)


def test_refusal_is_on_by_default_and_off_by_name():
    on = after(SecureAggregation(threshold=3, plan="paired", repeats=2), uploads())
    off = after(
        SecureAggregation(threshold=3, plan="paired", repeats=2, refuse_isolating=False), uploads()
    )
    refused = [q for q in on.queries if q.metadata]
    assert len(on.queries) == len(off.queries)
    assert len(refused) > len(on.queries) / 2
    assert all("isolate" in str(q.metadata["unanswered"]) for q in refused)
    assert not any(q.metadata for q in off.queries)
    told = np.zeros((0, K))
    for q in (q for q in on.queries if not q.metadata):
        told = np.vstack([told, np.isin(np.arange(K), q.clients)])
    assert query_algebra.smallest_support(told).value >= 3


def federation(*protections, rounds=3, **settings):
    rng = np.random.default_rng(4)
    data = Dataset(
        name="tiny",
        kind="features",
        x=rng.random(size=(64, 5)).astype(np.float32),
        y=rng.integers(0, 3, 64),
    )
    task = MLP(hidden=(4,)).build(data, SEED)
    parts = [task.encode(data.take(np.arange(8 * c, 8 * c + 8))) for c in range(K)]
    return Federation(
        task=task,
        data=ClientData.join([(p.x, p.y) for p in parts]),
        rounds=Rounds(rounds=rounds, **settings),
        training=Training(learning_rate=0.3, batch_size=4),
        seed=SEED,
        protections=protections,
        region=np.arange(K) % 2 if settings.get("aggregation") == "hierarchical" else None,
    )


def recorded(fed, path):
    recorder = Recorder(
        path / "trace",
        layouts=fed.layouts(),
        federation=fed.describe(),
        declared=[p.declare() for p in fed.protections],
    )
    model = fed.run(recorder, TruthRecorder(path / "truth", {"seed": 3}), keep_raw=True)
    return Trace.open(path / "trace"), model


@pytest.mark.parametrize("settings", [{}, {"weighting": "size"}, {"aggregation": "hierarchical"}])
def test_training_is_as_without_protection_up_to_quantisation(settings, tmp_path):
    plain = federation(**settings).run()
    _, masked = recorded(federation(SecureAggregation(threshold=3), **settings), tmp_path)
    assert torch.allclose(plain, masked, atol=1e-5)


def test_the_trace_holds_questions_sizes_and_sums(tmp_path):
    hook = SecureAggregation(threshold=4, plan="partitions")
    trace, _ = recorded(federation(hook), tmp_path)
    assert trace.manifest.declared[0]["threshold"] == 4
    assert trace.manifest.declared[0]["modulus"] == "2^32"
    assert AGGREGATOR in trace.manifest.federation["parties"]
    view = trace.seen_by(SERVER)
    kinds = [(m.step, m.kind) for m in view.messages(1)]
    assert kinds == [*[(0, "model")] * K, *[(1, "query")] * 3, *[(2, "sum")] * 3]
    ledger = round_queries(view, 1)
    assert ledger.clients == tuple(f"client-{i:02d}" for i in range(K))
    assert ledger.queries.sum(axis=1).tolist() == [8, 4, 4]
    assert (ledger.queries[1] + ledger.queries[2] == 1).all()
    with pytest.raises(NotObservable):
        view.updates(1)
    _, raw = _truth(tmp_path)
    for row, message in zip(ledger.queries, ledger.sums, strict=True):
        got = view.payload(1, int(message))
        assert np.allclose(got, row @ raw, atol=1e-5)
        assert view.messages(1)[-1].metadata["error"] < 1e-5
    seen = trace.seen_by(WIRETAP).messages(1)
    masked = [m for m in seen if m.kind == "masked" and m.receiver == AGGREGATOR]
    assert len(masked) == 2 * K  # the training aggregate, and one group
    assert not any(m.parts for m in masked)
    sizes = {m.size for m in trace.seen_by(NETWORK).messages(1) if m.receiver == AGGREGATOR}
    assert {m.size for m in masked} <= sizes
    assert {m.metadata[QUERY] for m in masked} == {0, 1, 2}


def _truth(path):
    from fedaudit.trace import Truth

    return Truth.open(path / "truth").raw_updates(1)


def test_the_same_seed_gives_the_same_trace(tmp_path):
    hook = SecureAggregation(threshold=3, plan="paired", repeats=1, dropout=0.1)
    seals = [
        recorded(federation(hook), tmp_path / str(i))[0].sha256 for i in range(2)
    ]  # keys are fresh, what is seen is not
    assert seals[0] == seals[1]
    timed, _ = recorded(federation(replace(hook, record_seconds=True)), tmp_path / "timed")
    answers = [m for m in timed.messages(1) if m.kind == "sum"]
    assert all(m.metadata["seconds"] > 0 for m in answers)


def test_dropouts_are_taken_out_of_the_mean(tmp_path):
    hook = SecureAggregation(threshold=3, dropout=0.3, refuse_isolating=False, quorum="threshold")
    trace, _ = recorded(federation(hook), tmp_path)
    view = trace.seen_by(SERVER)
    members = round_queries(view, 1).answered[0]
    assert 3 <= members.sum() < K
    _, raw = _truth(tmp_path)
    first, second = (
        next(view.payload(n, i) for i, m in view.indexed(n) if m.kind == "model") for n in (1, 2)
    )
    assert np.allclose(second - first, members @ raw / members.sum(), atol=1e-5)


@pytest.mark.parametrize("aggregation", ["fedavg", "hierarchical"])
def test_a_round_that_fails_leaves_the_model_and_training_goes_on(aggregation, tmp_path):
    hook = SecureAggregation(threshold=4, dropout=0.9)
    fed = federation(hook, aggregation=aggregation, server_momentum=0.5)
    trace, model = recorded(fed, tmp_path)
    assert torch.equal(model, fed.task.initial())
    assert len(trace.rounds) == 3
    party = SERVER if aggregation == "fedavg" else "region-0"
    ledger = round_queries(trace.seen_by(party), 2)
    assert len(ledger.queries) == 1
    assert len(ledger.answered) == 0
    (question,) = [m for m in trace.seen_by(party).messages(2) if m.kind == "query"]
    assert "too few" in question.metadata["unanswered"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 1}, "threshold"),
        ({"bound": 0.0}, "bound"),
        ({"bound": float("inf")}, "bound"),
        ({"dropout": 1.0}, "dropout"),
        ({"repeats": 0}, "repeats"),
        ({"swap": 2.0}, "swap"),
        ({"subset_size": 0}, "subset_size"),
        ({"plan": "paired", "subset_size": 4}, "below the threshold"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        SecureAggregation(**settings)


@pytest.mark.parametrize(
    ("hook", "given", "words"),
    [
        (SecureAggregation(), uploads(senders=("anonymous",) * K), "named senders"),
        (SecureAggregation(), uploads(clients=4), "fewer clients"),
        (SecureAggregation(), uploads(weights=np.full(K, 0.5)), "whole-number weights"),
        (SecureAggregation(), uploads(kind="model"), "single updates"),
        (SecureAggregation(bound=0.5), uploads(), "does not fit the ring"),
    ],
)
def test_uploads_that_cannot_be_carried_are_refused(hook, given, words):
    with pytest.raises(UsageError, match=words):
        after(hook, given)


def test_a_sparse_graph_is_told_before_training_and_keeps_no_threshold_above_half():
    hook = SecureAggregation(threshold=58)
    (told,) = hook.remarks(120)
    assert "20 neighbours drawn by each, 14 shares open" in told
    assert "a set isolated: 2^-43.7" in told
    assert hook.remarks(100) == hook.remarks() == ()
    hook.check_round(120)
    SecureAggregation(threshold=100).check_round(100)  # all pairs keep any
    for masks in ("real", "skipped"):
        with pytest.raises(ConfigError, match="sparse graph") as refused:
            SecureAggregation(threshold=59, masks=masks).check_round(120)
    assert "threshold = 58" in refused.value.remedy


@pytest.mark.parametrize(
    ("hook", "clients"),
    [
        (SecureAggregation(threshold=9), K),
        (SecureAggregation(threshold=5, plan="partitions"), K),
        (SecureAggregation(threshold=7, plan="paired"), K),
    ],
)
def test_federations_that_are_too_small_are_refused_before_training(hook, clients):
    with pytest.raises(UsageError):
        federation(hook)


def stored_case(rng):
    """A random round: the recorded sum against exact arithmetic, as a share of the stated error."""
    clients, size = int(rng.integers(2, 12)), int(rng.integers(1, 40))
    bits = int(rng.choice([32, 64]))
    bound = float(2.0 ** rng.integers(-6, 12) * rng.uniform(0.5, 1.0))
    scale = bound * 10.0 ** rng.uniform(-6, 0)
    weights = np.ones(clients) if rng.random() < 0.3 else rng.integers(1, 5000, clients) * 1.0
    rows = rng.uniform(-scale, scale, (clients, size)).astype(np.float32)
    if rng.random() < 0.3:
        rows = np.abs(rows)  # sums that grow
    given = uploads(
        clients,
        rows=torch.from_numpy(rows),
        weights=weights,
        total_weight=float(weights.sum()),
    )
    hook = SecureAggregation(threshold=2, bound=bound, modulus_bits=bits, masks="skipped")
    out = after(hook, given)
    exact = (weights.astype(np.longdouble)[:, None] * rows.astype(np.longdouble)).sum(axis=0)
    return float(np.abs(out.rows[0].numpy() - exact).max() / out.metadata[0]["error"])


def check_stored_error(cases):
    rng = np.random.default_rng(cases)
    shares = np.array([stored_case(rng) for _ in range(cases)])
    assert shares.max() <= 1.0
    assert shares.max() >= 0.25  # the bound is not a guess on the safe side


def test_no_recorded_sum_is_off_by_more_than_its_stated_error():
    check_stored_error(300)


@pytest.mark.nightly
def test_no_recorded_sum_of_ten_thousand_is_off_by_more_than_its_stated_error():
    check_stored_error(10_000)


def budgeted(plan, rounds, tmp_path, **settings):
    """Which rounds of a training run were left without a sum."""
    hook = SecureAggregation(threshold=4, plan=plan, max_partitions=5, **settings)
    trace, _ = recorded(federation(hook, rounds=rounds), tmp_path)
    asked = {n: trace.seen_by(SERVER).messages(n) for n in trace.rounds}
    return trace, {
        n: str(m.metadata["unanswered"])
        for n, messages in asked.items()
        for m in messages
        if m.kind == "query" and "unanswered" in m.metadata
    }


def test_the_default_budget_admits_five_partitions_for_ever_and_fresh_ones_for_a_while(tmp_path):
    trace, lost = budgeted("cycled", 15, tmp_path / "cycled", masks="skipped")
    assert not lost
    assert trace.manifest.declared[0]["budget"] == {
        "max_cosine": 0.8,
        "persistence": 2 / 3,
        "max_partitions": 5,
    }
    _, lost = budgeted("partitions", 12, tmp_path / "fresh", masks="skipped")
    assert min(lost) > 5
    assert all("budget across rounds" in why for why in lost.values())
    assert lost == budgeted("partitions", 12, tmp_path / "real", masks="real")[1]


def test_a_budget_is_kept_over_a_restart(tmp_path):
    hook = SecureAggregation(threshold=4, plan="partitions", max_partitions=5, masks="skipped")
    fed = federation(hook, rounds=12)
    whole, _ = recorded(fed, tmp_path / "whole")
    path, seen = tmp_path / "cut", []

    class Killed(Exception):
        pass

    def stop(number, _):
        seen.append(number)
        if number == 7:
            raise Killed

    def start(**more):
        recorder = Recorder(
            path / "trace",
            layouts=fed.layouts(),
            federation=fed.describe(),
            declared=[p.declare() for p in fed.protections],
            resume=True,
        )
        truth = TruthRecorder(path / "truth", {"seed": 3})
        fed.run(recorder, truth, keep_raw=True, checkpoint=path / "checkpoint", **more)

    with pytest.raises(Killed):
        start(progress=stop)
    start()
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    again = Trace.open(path / "trace")
    assert again.sha256 == whole.sha256
    assert any("unanswered" in m.metadata for n in range(8, 13) for m in again.messages(n))
