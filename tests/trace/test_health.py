"""Health: engine runs are clean, and every planted fault is found under its code."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.dataset import Dataset
from fedaudit.errors import TraceError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.federation.topology import build
from fedaudit.protections.central_dp import CentralDP
from fedaudit.protections.clip import Clip
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP
from fedaudit.trace import SERVER, WIRETAP, MemoryRecorder, Recorder, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.health import CODES, Arrivals
from fedaudit.trace.ledger import round_queries
from fedaudit.trace.memory import MemoryTrace, _Held

K, SEED = 6, Seed(3)


def federation(*protections, topology="star", training=None, **rounds):
    rng = np.random.default_rng(0)
    data = Dataset(
        name="blobs",
        kind="features",
        x=rng.standard_normal((K * 6, 4)).astype(np.float32),
        y=rng.integers(0, 3, K * 6),
        classes=("a", "b", "c"),
    )
    task = MLP(hidden=(3,)).build(data, SEED)
    parts = []
    for c in range(K):
        own = task.encode(data.take(np.arange(c * 6, (c + 1) * 6)))
        parts.append((own.x, own.y))
    sizes = {"sizes": (3, 3)} if topology == "hierarchical" else {}
    graph = build(topology, K, SEED, **sizes)
    return Federation(
        task=task,
        data=ClientData.join(parts),
        rounds=Rounds(clients=K, **{"rounds": 3, **rounds}),
        training=training or Training(batch_size=4),
        seed=SEED,
        topology=graph,
        region=None if graph.organisations is None else np.array(graph.organisations),
        protections=protections,
    )


def recorded(*protections, **settings):
    made = federation(*protections, **settings)
    recorder = MemoryRecorder(**made.about())
    made.run(recorder)
    recorder.manifest = replace(recorder.manifest, complete=True)
    return recorder.trace()


HIERARCHY = {"topology": "hierarchical", "aggregation": "hierarchical"}
GOSSIP = {"topology": "ring", "aggregation": "gossip"}
PART = {"participation": 0.5}
SUMS = {
    "threshold": 2,
    "masks": "skipped",
}


@pytest.mark.parametrize(
    ("protections", "settings"),
    [
        ((), {}),
        ((), {"wire": "model", "weighting": "size"}),
        ((), PART),
        ((Clip(bound=1.0), UpdateNoise(noise_multiplier=1.0)), {"wire": "model"}),
        ((CentralDP(noise_multiplier=1.0),), PART),
        ((DPSGD(noise_multiplier=1.0),), {"training": Training(batch_size=4, sampling="poisson")}),
        ((Shuffle(),), {}),
        ((Shuffle(),), {"wire": "model", **PART}),
        ((Shuffle(), SecureSum()), {}),
        ((SecureSum(),), {}),
        ((SecureSum(),), PART),
        ((SecureAggregation(**SUMS),), {}),
        ((SecureAggregation(**SUMS, dropout=0.4),), {"rounds": 6}),
        ((SecureAggregation(**SUMS, plan="groups", subset_size=3),), {}),
        ((SecureAggregation(**SUMS, plan="paired", subset_size=3, repeats=2),), {}),
        ((), HIERARCHY),
        ((), {**HIERARCHY, "wire": "model"}),
        ((Shuffle(),), HIERARCHY),
        ((SecureSum(),), HIERARCHY),
        ((SecureAggregation(**SUMS, dropout=0.3),), HIERARCHY),
        ((), GOSSIP),
        ((), {**GOSSIP, **PART, "rounds": 8}),
    ],
)
def test_runs_of_the_engine_are_whole(protections, settings):
    health = examine(recorded(*protections, **settings))
    assert health.torn == ()
    dropping = any(getattr(p, "dropout", 0) for p in protections)
    assert {p.code for p in health.problems} <= {
        "silent_round",
        *["round_without_answers"] * dropping,
    }
    assert health.expected
    assert (health.arrived < health.expected) == dropping
    if settings.get("aggregation") != "gossip":
        per_round = 3 if "participation" in settings else K
        assert {a.expected for a in health.by_round.values()} == {per_round}


# -- plants ---------------------------------------------------------------------------------------


def edited(trace, number, change):
    """The same trace with another table in one round: change(list of messages)."""
    held = list(trace._held)
    blocks, table = held[number - 1].blocks, list(held[number - 1].messages)
    held[number - 1] = _Held(dict(blocks), tuple(change(table)))
    return MemoryTrace(trace.manifest, tuple(held))


def without(test):
    return lambda table: [m for m in table if not test(m)]


def codes(trace, *, torn=True):
    health = examine(trace)
    return [(p.code, p.round, p.party) for p in health.problems if p.torn or not torn]


C = "client-02"


def down(m):
    return m.kind == "model" and m.receiver == C


def up(m):
    return m.sender == C


@pytest.mark.parametrize("wire", ["delta", "model"])
def test_a_lost_downlink_is_an_answer_without_a_model(wire):
    trace = recorded(wire=wire)
    first = edited(trace, 1, without(down))
    assert codes(first) == [("answer_without_model", 1, C)]
    second = edited(trace, 2, without(down))
    assert codes(second) == [("no_new_model", 2, C)]
    (problem,) = examine(second).torn
    assert second.messages(2)[problem.message].sender == C
    assert (examine(second).arrived, examine(second).expected) == (3 * K, 3 * K)


@pytest.mark.parametrize("protection", [Shuffle(), SecureSum()])
def test_a_lost_downlink_shows_behind_a_shuffler_and_a_secure_sum(protection):
    trace = edited(recorded(protection), 2, without(down))
    assert codes(trace) == [("no_new_model", 2, C)]


def test_a_lost_downlink_shows_in_the_ledger_of_secure_aggregation():
    trace = edited(recorded(SecureAggregation(**SUMS)), 2, without(down))
    assert codes(trace) == [("no_new_model", 2, C)]


def test_a_lost_downlink_shows_in_a_hierarchy_and_at_the_start_of_gossip():
    trace = recorded(**HIERARCHY)
    assert codes(edited(trace, 3, without(down))) == [("no_new_model", 3, C)]
    region = without(lambda m: m.receiver == "region-1" and m.sender == SERVER)
    assert codes(edited(trace, 1, region)) == [("answer_without_model", 1, "region-1")]
    gossip = edited(recorded(**GOSSIP), 1, without(lambda m: down(m) and m.sender == SERVER))
    assert codes(gossip) == [("answer_without_model", 1, C)]


def test_an_answer_before_its_model_has_none():
    def swapped(table):
        return [replace(m, step=5) if down(m) else m for m in table]

    assert ("answer_without_model", 1, C) in codes(edited(recorded(), 1, swapped))


def test_a_model_without_an_answer_is_counted_and_named():
    trace = edited(recorded(), 2, without(up))
    assert codes(trace) == [("no_answer", 2, C)]
    health = examine(trace)
    assert (health.arrived, health.expected, health.sent) == (17, 18, 18)
    assert health.by_round[2] == Arrivals(6, 5)
    assert health.by_party[C] == Arrivals(3, 2)
    assert health.silent == ()


def test_an_answer_that_failed_as_noted_is_no_tear():
    def failed(table):
        return [replace(m, parts={}, notes={"failed": "timeout"}) if up(m) else m for m in table]

    trace = recorded()
    for number in (1, 2, 3):
        trace = edited(trace, number, failed)
    health = examine(trace)
    assert health.whole
    assert {p.code for p in health.problems} == {"answer_failed"}
    assert (health.arrived, health.expected) == (15, 18)
    assert health.silent == (C,)


def test_a_round_in_which_nothing_arrived():
    trace = edited(recorded(), 3, without(lambda m: m.sender.startswith("client")))
    health = examine(trace)
    assert {p.code for p in health.problems} == {"no_answer", "round_without_answers"}
    assert health.by_round[3] == Arrivals(6, 0)
    assert codes(edited(recorded(), 2, lambda table: [])) == [("empty_round", 2, None)]


def test_late_and_second_answers_that_are_noted_are_no_tear():
    trace = recorded()
    (late,) = [m for m in trace.messages(1) if up(m)]
    (now,) = [m for m in trace.messages(2) if up(m)]

    def one_more(extra):
        return lambda table: [*table, extra]

    def came_later(notes):
        first = edited(
            trace,
            1,
            lambda t: [replace(m, parts={}, notes={"failed": "x"}) if up(m) else m for m in t],
        )
        extra = replace(late, step=0, parts=now.parts, notes=notes)
        return edited(first, 2, lambda t: [extra, *(replace(m, step=m.step + 1) for m in t)])

    assert examine(came_later({"late": True})).whole
    assert examine(came_later({"late": True})).arrived == 18
    twice = edited(trace, 2, one_more(replace(now, notes={"again": True})))
    assert codes(twice, torn=False) == [("answered_again", 2, C)]
    assert codes(edited(trace, 2, one_more(now))) == [("duplicate_answer", 2, C)]
    # a message of another kind beside the answer is not a second answer
    assert codes(edited(trace, 2, one_more(replace(now, kind="gradient")))) == []


def test_several_steps_per_round_are_answers_of_their_own():
    recorder = MemoryRecorder(**federation().about())
    width = federation().task.layout.width
    with recorder.round() as wire:
        for step in range(3):
            for name in ("client-00", "client-01"):
                wire.send("model", SERVER, name, np.full(width, step), step=2 * step)
                wire.send("gradient", name, SERVER, np.full(width, 9), step=2 * step + 1)
    recorder.manifest = replace(recorder.manifest, complete=True)
    trace = recorder.trace()
    assert codes(trace) == []
    assert (examine(trace).arrived, examine(trace).expected) == (6, 6)
    lost = edited(
        trace, 1, lambda t: [m for m in t if not (m.sender == "client-01" and m.step == 3)]
    )
    assert codes(lost) == [("no_answer", 1, "client-01")]


def test_models_that_come_out_of_a_round_are_for_the_next_one():
    recorder = MemoryRecorder(**federation().about())
    width = federation().task.layout.width
    names = ("client-00", "client-01")
    for number in range(3):
        with recorder.round() as wire:
            if not number:
                for name in names:
                    wire.send("model", SERVER, name, np.zeros(width), step=0)
            for name in names:
                wire.send("model", name, SERVER, np.full(width, number), step=1)
            for name in names:
                wire.send("model", SERVER, name, np.full(width, number + 0.5), step=2)
    recorder.manifest = replace(recorder.manifest, complete=True)
    trace = recorder.trace()
    assert codes(trace) == []
    lost = edited(trace, 2, without(lambda m: m.receiver == "client-01"))
    assert codes(lost) == [("no_new_model", 3, "client-01")]


@pytest.mark.parametrize(
    ("protections", "settings"),
    [
        ((), {}),
        ((), {"wire": "model", **PART}),
        ((Shuffle(),), {}),
        ((SecureSum(),), {}),
        ((), HIERARCHY),
        ((Shuffle(),), HIERARCHY),
        ((SecureSum(),), HIERARCHY),
        ((), GOSSIP),
    ],
)
def test_whichever_message_is_lost_it_is_missed(protections, settings):
    trace = recorded(*protections, **settings)
    for number in trace.rounds:
        for i, m in enumerate(trace.messages(number)):
            if m.receiver == "public":
                continue  # releasing a model is optional
            less = edited(trace, number, lambda t, i=i: [m for j, m in enumerate(t) if j != i])
            assert not examine(less, payloads=False).whole, (number, i, m)


def test_tables_that_make_no_sense_are_examined_all_the_same():
    rng = np.random.default_rng(7)
    traces = [
        recorded(),
        recorded(Shuffle(), **HIERARCHY),
        recorded(SecureAggregation(**SUMS, plan="groups", subset_size=3, dropout=0.2)),
        recorded(**GOSSIP),
    ]
    names = [*trace_names(traces[0]), SERVER, "anonymous", "aggregator", "shuffler", "x"]
    for turn in range(300):
        trace = traces[turn % len(traces)]

        def garbled(table):
            for _ in range(rng.integers(1, 5)):
                i, j = rng.integers(len(table), size=2)
                table[i] = replace(
                    table[j],
                    sender=str(rng.choice(names)),
                    kind=str(rng.choice(["model", "delta", "sum", "masked", "query"])),
                    step=int(rng.integers(4)),
                    parts={str(rng.choice(["model", "query", "z"])): int(rng.integers(9))},
                    metadata={"query": int(rng.integers(3))},
                    notes={str(rng.choice(["late", "again", "failed", "joined"])): True},
                )
            return [table[k] for k in rng.permutation(len(table))]

        health = examine(edited(trace, int(rng.integers(1, 4)), garbled))
        assert 0 <= health.arrived <= health.expected


def trace_names(trace):
    return trace.manifest.federation["clients"]


def test_unknown_parties_are_named_once_unless_the_recorder_says_that_they_joined():
    def stranger(notes):
        def change(table):
            (model,) = [m for m in table if down(m)]
            (answer,) = [m for m in table if up(m)]
            extra = [replace(model, receiver="mallory", notes=notes)]
            extra.append(replace(answer, sender="mallory"))
            return [*table[:K], extra[0], *table[K:], extra[1]]

        return change

    trace = recorded()
    assert codes(edited(trace, 2, stranger({}))) == [("unknown_party", 2, "mallory")]
    assert codes(edited(trace, 2, stranger({"joined": True}))) == []
    silent = replace(trace.manifest, federation={})
    assert codes(edited(MemoryTrace(silent, trace._held), 2, stranger({}))) == []


def test_rows_that_a_shuffler_or_an_aggregator_keeps_to_itself():
    def drop_one(table):
        at = next(i for i, m in enumerate(table) if m.sender == "anonymous")
        return [m for i, m in enumerate(table) if i != at]

    trace = edited(recorded(Shuffle()), 2, drop_one)
    assert codes(trace) == [("not_handed_on", 2, "shuffler")]
    assert examine(trace).by_round[2] == Arrivals(6, 5)
    legless = recorded(Shuffle())
    for number in (1, 2, 3):
        legless = edited(legless, number, without(lambda m: m.receiver == "shuffler"))
    assert codes(legless) == []
    assert codes(edited(legless, 2, drop_one)) == [("no_answer", 2, None)]
    again = edited(legless, 3, lambda t: [*t[:-1], next(m for m in t if m.sender == "anonymous")])
    assert codes(again) == [("extra_rows", 3, None)]
    summed = edited(recorded(SecureSum()), 1, without(lambda m: m.kind == "sum" and m.parts))
    assert codes(summed) == [("not_handed_on", 1, SERVER)]
    region = edited(
        recorded(SecureSum(), **HIERARCHY),
        1,
        without(lambda m: m.kind == "sum" and m.parts and m.receiver == "region-1"),
    )
    assert codes(region) == [("not_handed_on", 1, "region-1")]


def test_sums_and_questions_that_do_not_fit():
    trace = recorded(SecureAggregation(**SUMS, plan="groups", subset_size=3))
    sums = [i for i, m in enumerate(trace.messages(2)) if m.kind == "sum"]
    questions = [i for i, m in enumerate(trace.messages(2)) if m.kind == "query"]

    def dropped(gone):
        return edited(trace, 2, lambda t: [m for i, m in enumerate(t) if i != gone])

    assert codes(dropped(sums[1])) == [("question_unanswered", 2, SERVER)]
    assert codes(dropped(questions[1])) == [("sum_without_question", 2, SERVER)]
    doubled = edited(trace, 2, lambda t: [*t, t[sums[1]]])
    assert codes(doubled) == [("duplicate_answer", 2, None)]
    blank = edited(
        trace, 2, lambda t: [replace(m, parts={}) if m.kind in ("query", "sum") else m for m in t]
    )
    assert {c for c, _, _ in codes(blank)} == {"question_not_kept"}
    for torn in (dropped(sums[1]), dropped(questions[1]), doubled, blank):
        examine(torn)
        with pytest.raises(TraceError, match="sums of a round"):
            round_queries(torn.seen_by(SERVER), 2)
        assert len(round_queries(torn.seen_by(SERVER), 1).answered)


def test_gossip_in_one_direction_only():
    trace = recorded(**GOSSIP)
    lost = next(m for m in trace.messages(2) if m.kind == "model" and m.step == 1)
    torn = edited(trace, 2, without(lambda m: m is lost))
    assert codes(torn) == [("lost_share", 2, lost.sender)]
    view = torn.seen_by(WIRETAP)
    view.updates(2)
    with pytest.raises(TraceError, match="torn"):
        view.updates(3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["model", "delta"])
def test_numbers_that_are_not_finite_are_found_and_refused(value, part):
    trace = recorded()
    row = next(m.parts["model"] for m in trace.messages(2) if m.kind == part)
    held = list(trace._held)
    block = held[1].blocks["model"].copy()
    block[row, 3] = value
    held[1] = _Held({"model": block}, held[1].messages)
    torn = MemoryTrace(trace.manifest, tuple(held))
    health = examine(torn)
    (problem,) = health.torn
    assert (problem.code, problem.round) == ("non_finite", 2)
    assert problem.message == next(i for i, m in enumerate(trace.messages(2)) if m.kind == part)
    view = torn.seen_by(SERVER)
    view.updates(1)
    with pytest.raises(TraceError, match="not finite"):
        view.payload(2, problem.message)
    if part == "delta":
        with pytest.raises(TraceError, match="not finite"):
            view.updates(2)
        # finite tensors can still be read
        finite = [n for n in torn.layout.names if n != torn.layout.names[0]]
        assert len(view.updates(2, finite).rows) == K
    assert examine(MemoryTrace(trace.manifest, tuple(held)), payloads=False).whole


def test_models_of_a_torn_round_are_not_subtracted():
    trace = recorded(wire="model")
    torn = edited(trace, 2, without(down))
    assert len(torn.seen_by(SERVER).updates(2).rows) == K  # payloads were not examined
    examine(torn)
    with pytest.raises(TraceError, match="torn"):
        torn.seen_by(SERVER).updates(2)
    torn.seen_by(SERVER).updates(1)
    deltas = edited(recorded(), 2, without(down))
    examine(deltas)
    assert len(deltas.seen_by(SERVER).updates(2).rows) == K  # a delta needs no model


def test_the_members_of_a_sum_are_not_guessed_from_a_torn_round():
    torn = edited(recorded(SecureSum()), 2, without(down))
    assert len(round_queries(torn.seen_by(SERVER), 2).clients) == K - 1
    examine(torn)
    with pytest.raises(TraceError, match="torn"):
        round_queries(torn.seen_by(SERVER), 2)
    assert len(round_queries(torn.seen_by(SERVER), 1).clients) == K


def test_a_payload_that_is_not_there():
    def beyond(table):
        return [replace(m, parts={"model": 999}) if up(m) else m for m in table]

    assert codes(edited(recorded(), 1, beyond)) == [("no_such_row", 1, C)]
    elsewhere = edited(
        recorded(), 1, lambda t: [replace(m, parts={"other": 0}) if up(m) else m for m in t]
    )
    assert codes(elsewhere) == [("no_such_row", 1, C)]


@pytest.mark.parametrize("protections", [(), (Shuffle(),), (SecureAggregation(**SUMS),)])
def test_a_recording_of_answers_alone(protections):
    trace = recorded(*protections)
    for number in (1, 2, 3):
        trace = edited(trace, number, without(lambda m: m.kind == "model" and m.sender == SERVER))
    assert codes(trace) == [("no_models", 0, None)]
    assert (examine(trace).arrived, examine(trace).expected) == (18, 18)


def test_a_sum_over_nobody():
    trace = recorded(SecureSum())
    table = without(lambda m: m.sender.startswith("client") or m.sender == SERVER)
    assert codes(edited(trace, 2, table)) == [("answer_without_model", 2, None)]
    for number in (1, 2, 3):
        trace = edited(trace, number, table)
    assert codes(trace) == [("no_models", 0, None)]
    with pytest.raises(TraceError, match="torn"):
        round_queries(trace.seen_by(SERVER), 1)


@pytest.mark.parametrize("bare", [("a",), ("a", "b")])
def test_what_a_shuffler_hands_on_by_name_has_arrived(tmp_path, bare):
    like = {"w": np.zeros(3, dtype=np.float32)}
    recorder = Recorder(tmp_path, like=like, federation={"clients": ["a", "b", "c"]})
    for _ in range(2):
        with recorder.round() as wire:
            for name in ("a", "b", "c"):
                wire.send("model", SERVER, name, like)
            for name in ("a", "b", "c"):
                wire.send("delta", name, "shuffler", {}, size=12)
            for name in ("a", "b", "c"):
                wire.send("delta", name if name in bare else "anonymous", SERVER, like)
    recorder.close()
    health = examine(Trace.open(tmp_path))
    assert (health.arrived, health.expected) == (6, 6)
    assert "not_handed_on" not in {p.code for p in health.problems}


def test_several_steps_per_round_behind_a_shuffler():
    recorder = MemoryRecorder(**federation(Shuffle()).about())
    width = federation().task.layout.width
    names = ("client-00", "client-01")
    with recorder.round() as wire:
        for step in range(0, 6, 2):
            for name in names:
                wire.send("model", SERVER, name, np.full(width, step), step=step)
            for name in names:
                wire.send("delta", name, "shuffler", None, step=step + 1, size=9)
            for _ in names:
                wire.send("delta", "anonymous", SERVER, np.full(width, 9), step=step + 1)
    recorder.manifest = replace(recorder.manifest, complete=True)
    trace = recorder.trace()
    assert codes(trace) == []
    assert (examine(trace).arrived, examine(trace).expected) == (6, 6)


def test_files(tmp_path):
    made = federation(rounds=4)
    recorder = Recorder(tmp_path / "t", **made.about())
    made.run(recorder)
    assert examine(Trace.open(tmp_path / "t")).whole
    # a round was removed and the manifest sealed again
    rounds = recorder.manifest.rounds
    gone = replace(recorder.manifest, rounds=(*rounds[:1], *rounds[2:]))
    (tmp_path / "t" / "manifest.json").write_text(gone.to_json())
    found = examine(Trace.open(tmp_path / "t"))
    assert [(p.code, p.round) for p in found.torn] == [("round_gap", 2)]
    # one byte of a payload changed
    (tmp_path / "t" / "manifest.json").write_text(recorder.manifest.to_json())
    file = tmp_path / "t" / rounds[2].file
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    loose = Trace.open(tmp_path / "t", verify_hashes=False)
    assert [(p.code, p.round) for p in examine(loose, rehash=True).torn] == [("damaged_round", 3)]
    unread = replace(recorder.manifest, rounds=(), complete=False)
    (tmp_path / "t" / "manifest.json").write_text(unread.to_json())
    nothing = examine(Trace.open(tmp_path / "t"))
    assert [p.code for p in nothing.problems] == ["no_rounds"]


def test_a_late_answer_does_not_excuse_those_who_are_due():
    trace = recorded()
    (now,) = [m for m in trace.messages(2) if up(m)]
    late = replace(now, step=0, notes={"late": True})

    def only_late(table):
        return [late, *(replace(m, step=1) for m in table if m.sender == SERVER)]

    found = codes(edited(trace, 2, only_late))
    assert [c for c, _, _ in found] == ["no_answer"] * K


def test_a_round_that_only_releases_a_model_is_empty():
    trace = edited(recorded(), 3, lambda t: [m for m in t if m.receiver == "public"])
    assert codes(trace) == [("empty_round", 3, None)]


def test_the_page_lists_every_code_and_what_it_breaks():
    page = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
    for code, meaning in CODES.items():
        torn, breaks = "torn" if meaning.torn else "no", ", ".join(sorted(meaning.breaks)) or "-"
        assert f"| `{code}` | {meaning.words} | {torn} | {breaks} |" in page


def test_every_code_says_what_it_means():
    assert all(meaning.words for meaning in CODES.values())
    broken = {effect for meaning in CODES.values() for effect in meaning.breaks}
    assert broken == {"updates", "members", "ledger", "rows", "everything"}
    assert not any(meaning.breaks for meaning in CODES.values() if not meaning.torn)
