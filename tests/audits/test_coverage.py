"""Coverage: exact count of what crossed the wire outside every declared protection."""

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits import AUDITS
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.coverage import COVERABLE, PLAIN_KINDS, Coverage, uncovered
from fedaudit.decide.gate import gate
from fedaudit.errors import NothingToSay, NotObservable
from fedaudit.results import AuditResult
from fedaudit.trace import AGGREGATOR, ANONYMOUS, SERVER, Recorder, Trace
from fedaudit.trace.recorder import layouts_like

CLIENTS = ("client-00", "client-01", "client-02")
PLAIN = {"w": np.zeros(4, dtype=np.float32)}
WITH_STATISTICS = {**PLAIN, "norm.running_mean": np.zeros(2, dtype=np.float32)}
WITH_COUNTER = {**PLAIN, "norm.num_batches_tracked": np.zeros(1, dtype=np.int64)}
RNG = np.random.default_rng(0)


def recorded(
    path,
    *,
    like=PLAIN,
    covers=(),
    name="some",
    names=False,
    weights=(1.0, 1.0, 1.0),
    metadata=None,
    absent=False,
    sealed=False,
    listed=True,
    kind="delta",
):
    """A trace of two rounds in which clients send exactly the given contents."""
    federation = {"clients": list(CLIENTS), "hubs": [SERVER]} if listed else {}
    declared = [{"name": name, "covers": list(covers), "trust": "nobody"}]
    recorder = Recorder(path, like=like, federation=federation, declared=declared)
    for number in (1, 2):
        with recorder.round() as messages:
            for client in CLIENTS:
                messages.send("model", SERVER, client, like, step=0)
            for i, client in enumerate(CLIENTS):
                if absent and (i, number) == (1, 2):
                    continue
                payload = {
                    k: v + RNG.integers(1, 9, v.shape).astype(v.dtype) for k, v in like.items()
                }
                if sealed:
                    messages.send("masked", client, AGGREGATOR, None, step=1, size=16)
                else:
                    messages.send(
                        kind, client if names else ANONYMOUS, SERVER, payload, step=1,
                        weight=weights[i], metadata=metadata,
                    )  # fmt: skip
            if sealed:
                messages.send("sum", AGGREGATOR, SERVER, like, step=2)
    recorder.close()
    return Trace.open(path)


def test_where_nothing_arrived_nothing_is_said_to_be_protected(tmp_path):
    """If all uploads failed, no audit reports full protection."""
    recorder = Recorder(tmp_path / "t", like=PLAIN, federation={"clients": list(CLIENTS)})
    for _ in range(2):
        with recorder.round() as messages:
            for client in CLIENTS:
                messages.send("model", SERVER, client, PLAIN, step=0)
    recorder.close()
    trace = Trace.open(tmp_path / "t")
    with pytest.raises(NothingToSay) as error:
        judged(trace)
    assert error.value.code == "nothing_arrived"
    found = study.audit(trace.path)
    assert len(found.results) == len(AUDITS)
    for r in found.results:
        assert (r.status, r.need.code) == ("nothing_to_say", "nothing_arrived")
    assert {f.verdict for f in found.findings} == {"nothing_to_say"}
    policy = {
        "limit": [{"metric": "verdict"}, {"metric": "fingerprint.linkage_accuracy", "at_most": 1.0}]
    }
    done = gate(found.path, policy)
    assert not done.passed
    assert {c.code for c in done.checks} == {"nothing_arrived"}


def judged(trace, **settings):
    audit = Coverage(**settings)
    guess = audit.attack(trace.seen_by(audit.vantage), Knowledge(), np.random.default_rng(1))
    return audit.score(guess, None, np.random.default_rng(2))


def count(trace):
    return judged(trace).estimates["kinds_outside_protection"].value


ALL = COVERABLE


def test_null_nothing_is_reported_when_everything_is_covered(tmp_path):
    trace = recorded(
        tmp_path / "t", like={**WITH_STATISTICS, **WITH_COUNTER}, covers=ALL,
        weights=(1.0, 2.0, 3.0), metadata={"examples": 3}, absent=True,
    )  # fmt: skip
    assert count(trace) == 0
    assert judged(trace).notes == ()


def test_null_a_secure_sum_leaves_nothing_of_a_client(tmp_path):
    for i, listed in enumerate((True, False)):
        trace = recorded(tmp_path / str(i), sealed=True, listed=listed)
        assert count(trace) == 0


@pytest.mark.parametrize(
    ("kind", "more", "word"),
    [
        ("parameter", {}, "w"),
        ("buffer", {"like": WITH_STATISTICS}, "norm.running_mean"),
        ("integer", {"like": WITH_COUNTER}, "norm.num_batches_tracked"),
        ("weight", {"weights": (1.0, 2.0, 2.0)}, "2 distinct"),
        ("metadata", {"metadata": {"loss": 0.5}}, "loss"),
        ("sender", {"names": True}, "messages of 3"),
        ("participation", {"names": True, "absent": True}, "which round"),
    ],
)
def test_power_each_kind_is_found_alone_and_by_name(kind, more, word, tmp_path):
    others = [k for k in ALL if k != kind]
    result = judged(recorded(tmp_path / "t", covers=others, **more))
    names = bool(more.get("names"))  # no declaration covers a visible name
    by_name = names and kind != "sender"
    assert result.estimates["kinds_outside_protection"].value == 1 + by_name
    assert word in result.notes[by_name]
    assert PLAIN_KINDS.get(kind, kind) in result.settings["kinds"]
    assert len(result.settings["kinds"]) == 1 + by_name
    assert count(recorded(tmp_path / "covered", covers=[*others, kind], **more)) == names


@pytest.mark.parametrize("name", ["shuffle", "some"])
def test_a_name_in_the_clear_is_uncovered_whatever_is_declared(name, tmp_path):
    result = judged(recorded(tmp_path / "t", name=name, covers=("sender",), names=True))
    assert result.estimates["kinds_outside_protection"].value == 2
    assert any("messages of 3" in note for note in result.notes)
    assert "sender" in result.notes[-1]  # declared, but visible
    kept = judged(recorded(tmp_path / "kept", name=name, covers=("sender",)))
    assert kept.estimates["kinds_outside_protection"].value == 1


@pytest.mark.parametrize("name", ["secure_sum", "Secure-Aggregation", "SecAgg+"])
def test_a_secure_sum_covers_no_update_that_arrives_in_the_clear(name, tmp_path):
    kinds = ("parameter", "weight", "metadata", "sender")
    more = {"weights": (1.0, 2.0, 3.0), "metadata": {"loss": 0.5}}
    assert count(recorded(tmp_path / "t", name=name, covers=kinds, **more)) == 3
    assert count(recorded(tmp_path / "n", name=name, covers=kinds, names=True, **more)) == 4
    assert count(recorded(tmp_path / "s", name=name, covers=kinds, sealed=True)) == 0
    # masked numbers are recorded, but reveal nothing
    assert count(recorded(tmp_path / "m", name=name, covers=("parameter",), kind="masked")) == 0
    # noisy tensors are visible and covered
    assert count(recorded(tmp_path / "noise", name="update_noise", covers=("parameter",))) == 0


def test_naive_twin(tmp_path):
    """The count equals a plain walk over the tables."""
    trace = recorded(
        tmp_path / "t",
        like=WITH_STATISTICS,
        names=True,
        metadata={"examples": 1},
        covers=("sender",),
    )
    kinds = set()
    for number in trace.rounds:
        for m in trace.messages(number):
            if m.sender in CLIENTS and m.parts:
                kinds |= {"parameter", "buffer"} if "model" in m.parts else set()
                kinds |= {"metadata"} if m.metadata else set()
                kinds |= {"sender"}
    assert count(trace) == len(kinds)  # a name in the clear is not covered
    sent = sum(m.sender in CLIENTS for n in trace.rounds for m in trace.messages(n))
    assert judged(trace).estimates["kinds_outside_protection"].n == sent


def test_monotone_declaring_more_never_reports_more():
    items = {kind: (f"{kind} items",) for kind in COVERABLE}
    counts = [len(uncovered(items, set(COVERABLE[:k]))) for k in range(len(COVERABLE) + 1)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == len(COVERABLE)
    assert counts[-1] == 0


def test_vantage_a_narrower_view_is_refused(tmp_path):
    trace = recorded(tmp_path / "t")
    with pytest.raises(NotObservable):
        Coverage(vantage="server").attack(
            trace.seen_by("server"), Knowledge(), np.random.default_rng(0)
        )


def test_a_trace_that_lists_nobody_is_counted_as_well(tmp_path):
    assert count(recorded(tmp_path / "t", names=True, listed=False)) == 2


def test_the_result_is_exact_and_survives_json(tmp_path):
    result = judged(recorded(tmp_path / "t"))
    e = result.estimates["kinds_outside_protection"]
    assert (e.low, e.high, e.confidence, e.baseline) == (e.value, e.value, 1.0, 0.0)
    assert AuditResult.from_json(result.to_json()) == result


def test_whole_numbers_of_a_further_record_are_no_statistics_of_a_layer(tmp_path):
    like = {"w": np.zeros(3, np.float32), "control/steps": np.zeros(1, np.int64)}
    own = layouts_like(like)
    layouts = {"model": own["model"], "record-control-integers": own["integers"]}
    recorder = Recorder(tmp_path / "t", layouts=layouts)
    with recorder.round() as wire:
        wire.send("model", SERVER, "a", {"w": like["w"]}, step=0)
        wire.send("model", "a", SERVER, like, step=1)
    recorder.close()
    notes = study.audit(tmp_path / "t", ["coverage"]).results[0].notes
    assert "integer buffers: control/steps" in notes
    assert not any("normalisation" in note for note in notes)
