"""Protections of uploads applied to a stored trace: exact where they promise to be."""

import numpy as np
import pytest

from fedaudit.errors import NotApplicable, TraceError, UsageError
from fedaudit.protections.clip import Clip
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed
from fedaudit.study import audit, run
from fedaudit.study.replay import replay
from fedaudit.trace import ANONYMOUS, SERVER, SHUFFLER, Recorder, Trace, Truth
from fedaudit.trace.ledger import QUERY
from fedaudit.trace.schema import FAILED

PLAIN = ("federation.rounds=3", "federation.clients=6", "federation.weighting=size")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    config = {"data": {"name": "digits"}, "federation": {"rounds": 3, "clients": 6}}
    config["federation"]["weighting"] = "size"
    run(config, path)
    return Trace.open(path / "trace"), Truth.open(path / "truth")


def test_a_shuffled_replay_holds_the_same_rows_without_names(plain, tmp_path):
    trace, truth = plain
    shuffled, known = replay(trace, [Shuffle()], tmp_path, Seed(9), truth)
    permuted = False
    for number in trace.rounds:
        before = trace.seen_by(SERVER).updates(number)
        after = shuffled.seen_by(SERVER).updates(number)
        assert set(after.senders) == {ANONYMOUS}
        who = [known.senders(number)[i] for i in after.messages]
        permuted |= who != list(before.senders)
        rows = dict(zip(before.senders, before.rows, strict=True))
        for name, row in zip(who, after.rows, strict=True):
            np.testing.assert_array_equal(row, rows[name])
        legs = shuffled.seen_by(SHUFFLER).messages(number)
        assert {m.sender for m in legs if m.receiver == SHUFFLER} == set(before.senders)
    assert permuted
    np.testing.assert_array_equal(
        shuffled.seen_by("public").released(), trace.seen_by("public").released()
    )
    assert shuffled.manifest.declared[-1]["applied"] == "exactly"


def test_a_summed_replay_holds_the_weighted_sum_alone(plain, tmp_path):
    trace, truth = plain
    summed, _ = replay(trace, [SecureSum()], tmp_path, Seed(9), truth)
    view = summed.seen_by(SERVER)
    for number in trace.rounds:
        updates = trace.seen_by(SERVER).updates(number)
        index, _ = next((i, m) for i, m in view.indexed(number) if m.kind == "sum")
        expected = updates.weights @ updates.rows
        np.testing.assert_allclose(view.payload(number, index), expected, rtol=1e-4, atol=1e-4)


class RenamedSum(SecureSum):
    name = "renamed_sum"


@pytest.mark.parametrize("wire", ["delta", "model"])
@pytest.mark.parametrize("failed", [0, 1])
def test_a_secure_sum_under_another_name_is_replayed_like_a_secure_sum(wire, failed, tmp_path):
    """Also if an answer failed: the sum then lists its members."""
    start = {"w": np.zeros((2, 3), np.float32)}
    recorder = Recorder(tmp_path / "trace", like=start)
    for number in range(2):
        with recorder.round() as wired:
            for c in range(4):
                wired.send("model", SERVER, f"site-{c}", start)
            for c in range(4 - failed):
                sent = {"w": np.full((2, 3), c + number, np.float32)}
                wired.send(wire, f"site-{c}", SERVER, sent)
            for c in range(4 - failed, 4):
                wired.send(wire, f"site-{c}", SERVER, None, notes={FAILED: "timeout"})
    recorder.close()
    trace = Trace.open(tmp_path / "trace")
    known, renamed = (
        replay(trace, [hook], tmp_path / hook.name, Seed(9))[0]
        for hook in (SecureSum(), RenamedSum())
    )
    stated = {"only_sums": True, "exact_afterwards": True}  # nobody can look its class up
    assert renamed.manifest.declared[-1] == {
        **known.manifest.declared[-1],
        "name": "renamed_sum",
        **stated,
    }
    assert renamed.manifest.declared[-1]["applied"] == "exactly"
    assert renamed.manifest.federation == known.manifest.federation
    assert renamed.manifest.layouts == known.manifest.layouts
    assert (QUERY in renamed.manifest.layouts) == bool(failed)
    for number in trace.rounds:
        assert renamed.messages(number) == known.messages(number)
        for layout in known.manifest.layouts:
            np.testing.assert_array_equal(
                renamed.block(number, layout), known.block(number, layout)
            )


def test_integer_buffers_stay_with_their_rows(tmp_path):
    start = {"w": np.zeros((2, 3), np.float32), "seen": np.array(0)}
    recorder = Recorder(tmp_path / "trace", like=start)
    for number in range(3):
        with recorder.round() as wire:
            for c in range(4):
                wire.send("model", SERVER, f"site-{c}", start)
            for c in range(4):
                sent = {"w": np.full((2, 3), c + number, np.float32), "seen": np.array(10 * c)}
                wire.send("model", f"site-{c}", SERVER, sent)
    recorder.close()
    shuffled, known = replay(
        Trace.open(tmp_path / "trace"), [Shuffle()], tmp_path / "replay", Seed(2)
    )
    view = shuffled.seen_by(SERVER)
    for number in shuffled.rounds:
        for i, name in known.senders(number).items():
            assert view.payload(number, i, layout="integers")[0] == 10 * int(name[-1])


def test_whole_models_are_summed_as_updates(plain, tmp_path):
    config = {"data": {"name": "digits"}, "federation": {"rounds": 2, "clients": 4}}
    config["federation"]["wire"] = "model"
    run(config, tmp_path / "run")
    trace = Trace.open(tmp_path / "run" / "trace")
    summed, _ = replay(trace, [SecureSum()], tmp_path / "sum", Seed(3))
    view = summed.seen_by(SERVER)
    for number in trace.rounds:
        updates = trace.seen_by(SERVER).updates(number)
        index, _ = next((i, m) for i, m in view.indexed(number) if m.kind == "sum")
        np.testing.assert_allclose(
            view.payload(number, index), updates.rows.sum(0), rtol=1e-3, atol=1e-5
        )


def test_the_seed_of_a_replay_is_secret(plain, tmp_path):
    trace, _ = plain
    done = [
        audit(trace.path, ["coverage"], out=tmp_path / n, as_if=["shuffle"]) for n in ("a", "b")
    ]
    seeds = {Truth.open(d.path / "truth").facts["seed_of_replay"] for d in done}
    assert len(seeds) == 2


def test_what_would_have_changed_training_says_so(plain, tmp_path):
    trace, truth = plain
    clipped, _ = replay(trace, [Clip(bound=0.01), Shuffle()], tmp_path, Seed(9), truth)
    rows = clipped.seen_by(SERVER).updates(1).rows
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 0.01, rtol=1e-4)
    assert clipped.manifest.declared[0]["applied"] == "training was not rerun"


def test_the_audit_of_a_replay_finds_what_a_shuffled_run_would(plain, tmp_path):
    trace, _ = plain
    named = audit(trace.path, ["fingerprint"], out=tmp_path / "named")
    assert (named.findings[0].verdict, named.findings[0].known) == ("leak", True)
    done = audit(trace.path, ["fingerprint"], out=tmp_path / "shuffled", as_if=["shuffle"])
    assert done.findings[0].verdict == "leak"
    assert "as if" in done.summary["protected by"]
    again = audit(trace.path, ["fingerprint"], out=tmp_path / "shuffled", as_if=["shuffle"])
    assert again.findings == done.findings
    with pytest.raises(TraceError, match="another replay"):
        audit(trace.path, ["fingerprint"], out=tmp_path / "shuffled", as_if=["secure_sum"])


def test_what_acts_inside_training_is_refused(plain, tmp_path):
    trace, truth = plain
    with pytest.raises(UsageError, match="run the federation again"):
        replay(trace, [DPSGD()], tmp_path, Seed(1), truth)
    shuffled, known = replay(trace, [Shuffle()], tmp_path / "a", Seed(1), truth)
    with pytest.raises(NotApplicable, match="anonymous already") as refused:
        replay(shuffled, [Shuffle()], tmp_path / "b", Seed(1), known)
    assert "leave shuffle out of `as_if`" in refused.value.remedy
    with pytest.raises(NotApplicable, match="asks clients by name") as refused:
        replay(shuffled, [SecureAggregation(threshold=3)], tmp_path / "c", Seed(1), known)
    assert "secure_sum" in refused.value.remedy
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("with_truth", [True, False])
def test_uploads_that_are_anonymous_already_are_summed_by_their_own_weights(
    plain, tmp_path, with_truth
):
    """As a sum of the named uploads would have been: a shuffle changes no sum."""
    trace, truth = plain
    shuffled, known = replay(trace, [Shuffle()], tmp_path / "a", Seed(1), truth)
    told = known if with_truth else None
    summed, _ = replay(shuffled, [SecureSum()], tmp_path / "b", Seed(1), told)
    view = summed.seen_by(SERVER)
    for number in trace.rounds:
        named = trace.seen_by(SERVER).updates(number)
        assert len(set(named.weights)) > 1
        index, _ = next((i, m) for i, m in view.indexed(number) if m.kind == "sum")
        expected = named.weights @ named.rows
        np.testing.assert_allclose(view.payload(number, index), expected, rtol=1e-4, atol=1e-4)
        assert not any(m.sender == ANONYMOUS for _, m in view.indexed(number))
    assert [d["name"] for d in summed.manifest.declared] == ["shuffle", "secure_sum"]
    assert summed.manifest.declared[-1]["applied"] == "exactly"


@pytest.mark.parametrize("with_truth", [True, False])
def test_anonymous_uploads_that_are_bounded_keep_their_order_and_what_is_known_of_them(
    plain, tmp_path, with_truth
):
    trace, truth = plain
    shuffled, known = replay(trace, [Shuffle()], tmp_path / "a", Seed(1), truth)
    told = known if with_truth else None
    hooks = [Clip(bound=0.01), UpdateNoise(noise_multiplier=0.0, clip=1.0)]
    clipped, after = replay(shuffled, hooks, tmp_path / "b", Seed(1), told)
    for number in trace.rounds:
        before = shuffled.seen_by(SERVER).updates(number)
        now = clipped.seen_by(SERVER).updates(number)
        assert set(now.senders) == {ANONYMOUS}
        norms = np.linalg.norm(before.rows, axis=1, keepdims=True)
        expected = before.rows * np.minimum(1, 0.01 / norms)
        np.testing.assert_allclose(now.rows, expected, rtol=1e-4, atol=1e-7)
        if with_truth:
            who = [known.senders(number)[i] for i in before.messages]
            assert [after.senders(number)[i] for i in now.messages] == who
        else:
            assert after.senders(number) == {}


def test_a_run_that_has_a_shuffler_is_audited_as_a_secure_sum(tmp_path):
    config = {"data": {"name": "digits"}, "federation": {"rounds": 2, "clients": 4}}
    run({**config, "protections": {"shuffle": {}}}, tmp_path / "run")
    done = audit(tmp_path / "run", ["fingerprint", "coverage"], as_if=["secure_sum"])
    by_name = {r.audit: r for r in done.results}
    assert by_name["fingerprint"].need.code == "no_single_updates"
    assert "secure_sum (as if: applied to the stored trace)" in done.summary["protected by"]


@pytest.mark.parametrize("hook", [SecureSum(), Shuffle()])
def test_a_loop_that_serves_one_client_after_the_other_is_still_one_batch(hook, tmp_path):
    rng = np.random.default_rng(3)
    names = ["a", "b", "c"]
    updates = rng.normal(size=(3, 4)).astype(np.float32)
    recorder = Recorder(tmp_path / "trace", like={"w": np.zeros(4, np.float32)})
    for _ in range(2):
        with recorder.round() as wire:
            for name, update in zip(names, updates, strict=True):
                wire.send("model", SERVER, name, {"w": np.zeros(4, np.float32)})
                wire.send("model", name, SERVER, {"w": update})
    recorder.close()
    trace = Trace.open(tmp_path / "trace")
    assert len({m.step for m in trace.messages(1) if m.receiver == SERVER}) == 3
    seen, _ = replay(trace, [hook], tmp_path / "as", Seed(9))
    view = seen.seen_by(SERVER)
    if hook.name == "shuffle":
        rows = view.updates(1).rows
        np.testing.assert_allclose(np.sort(rows, axis=0), np.sort(updates, axis=0), atol=1e-6)
        assert set(view.updates(1).senders) == {ANONYMOUS}
        return
    sums = [i for i, m in view.indexed(1) if m.kind == "sum"]
    assert len(sums) == 1
    np.testing.assert_allclose(view.payload(1, sums[0]), updates.sum(axis=0), atol=1e-5)
