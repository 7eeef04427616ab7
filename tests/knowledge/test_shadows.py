"""Shadows look like the target and hold nothing of it."""

import csv
import json

import numpy as np
import pytest

from fedaudit.errors import DataError, FedauditError, NotApplicable
from fedaudit.knowledge import shadows as sh
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build, load_data
from fedaudit.study.run import run
from fedaudit.trace import MemoryRecorder, MemoryTruth
from fedaudit.workers import use_workers

BASE = {
    "seed": 3,
    "data": {"name": "digits"},
    "partition": {"kind": "coupled", "eta": 0.6, "position": "region"},
    "topology": {"kind": "hierarchical"},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 10, "rounds": 2},
    "training": {"batch_size": 32},
}


def config_of(**sections):
    return load({**BASE, **sections})


def recorded(config):
    federation, facts = build(config)
    recorder = MemoryRecorder(
        **federation.about(),
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    return recorder.trace(), truth, federation


def shadows_of(config, trace, seed=5, **settings):
    return sh.of_run(config, trace, Seed(seed), **{"count": 10, "vantage": "wiretap", **settings})


def rows(x):
    return {r.tobytes() for r in np.ascontiguousarray(x).reshape(len(x), -1)}


def test_no_record_of_the_target_reaches_a_shadow():
    config = config_of()
    trace, _, federation = recorded(config)
    own = shadows_of(config, trace)
    trained = rows(federation.data.x.numpy())
    held = rows(load_data(config, Seed(config.seed))[1].x)
    for number in range(3):
        shadow, _ = own._one(number)
        drawn = rows(shadow.data.x.numpy())
        assert not drawn & trained
        assert drawn <= held
        assert len(shadow.data.x) == len(federation.data.x)


def test_shadows_have_the_targets_shape_and_labels_of_their_own():
    config = config_of(protections={"dp_sgd": {"noise_multiplier": 0.5, "clip": 2.0}})
    trace, truth, _ = recorded(config)
    target = trace.seen_by("wiretap")
    mixes = []
    for view, known in shadows_of(config, trace):
        assert view.federation == target.federation
        assert view.declared == target.declared
        assert view.layout == target.layout
        assert list(view.rounds) == list(target.rounds)
        # begun from the model that the target's clients were first sent
        np.testing.assert_array_equal(view.payload(1, 0), target.payload(1, 0))
        mixes.append([known.clients[c]["classes"] for c in view.federation["clients"]])
    own = [truth.clients[c]["classes"] for c in target.federation["clients"]]
    assert len({json.dumps(m) for m in [*mixes, own]}) == 11
    assert all(np.sum(m) == np.sum(own) for m in mixes)


def test_labels_of_shadows_do_not_follow_those_of_the_target():
    """Without coupling nothing but a leak could tie a shadow's mix to the target's."""
    config = config_of(partition={"kind": "coupled", "eta": 0.0}, seed=5)
    trace, truth, _ = recorded(config)
    names = trace.seen_by("wiretap").federation["clients"]
    own = np.array([truth.clients[c]["classes"][0] for c in names], dtype=float)
    # the audit's seed equals the run's: streams must differ all the same
    found = [
        np.corrcoef(own, [known.clients[c]["classes"][0] for c in names])[0, 1]
        for _, known in shadows_of(config, trace, count=20)
    ]
    assert abs(np.mean(found)) < 0.25
    assert max(found) < 0.99


def test_each_pass_trains_the_same_ones_again():
    config = config_of()
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace)
    first, second = ([v.updates(2).rows for v, _ in own] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    other = [v.updates(2).rows for v, _ in shadows_of(config, trace, seed=6)]
    assert not np.array_equal(first[0], other[0])


def last_updates(number, view, truth):
    return number, np.array(view.updates(2).rows), truth.clients


def falls_over(number, view, truth):
    raise ValueError("no such thing")


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_depends_on_the_number_of_workers(monkeypatch, workers):
    config = config_of(protections={"dp_sgd": {"noise_multiplier": 0.5, "clip": 2.0}})
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace, count=5)
    monkeypatch.setattr(type(own), "_at_once", lambda _: 2)
    alone = list(own.each(last_updates))
    assert [number for number, _, _ in alone] == [*range(5)]
    with use_workers(workers):
        helped = list(own.each(last_updates))
    for (a, rows_a, mixes_a), (b, rows_b, mixes_b) in zip(alone, helped, strict=True):
        assert (a, mixes_a) == (b, mixes_b)
        np.testing.assert_array_equal(rows_a, rows_b)


def test_a_worker_that_fails_is_told():
    config = config_of()
    trace, _, _ = recorded(config)
    with use_workers(1), pytest.raises(FedauditError, match=r"ValueError: no such thing"):
        list(shadows_of(config, trace, count=2).each(falls_over))


def test_few_are_held_at_once(monkeypatch):
    """Memory does not grow with the number of shadows: what was looked at is gone."""
    import gc
    import weakref

    config = config_of()
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace)
    each = 4 * trace.layout.width * 12 * 2
    monkeypatch.setattr(sh, "AT_ONCE_BYTES", 2 * each)
    assert own._at_once() == 2
    alive = []
    for view, _ in own:
        alive.append(weakref.ref(view._trace))
        del view
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 2
    assert len(alive) == 10


def test_rewiring_keeps_the_records():
    config = config_of(federation={"clients": 10, "rounds": 2, "aggregation": "gossip"})
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace)
    ring = [(i, i + 1) for i in range(9)] + [(0, 9)]
    changed = own.rewired(edges=[ring] * 10, organisations=[tuple(range(10))] * 10)
    for (a, known_a), (b, known_b) in zip(own, changed, strict=True):
        mixes = [
            {c: f["classes"] for c, f in known.clients.items()} for known in (known_a, known_b)
        ]
        assert mixes[0] == mixes[1]
        assert b.federation["edges"] == [list(e) for e in sorted(ring)]
        assert a.federation["edges"] != b.federation["edges"]
        assert b.federation["organisations"] == list(range(10))


@pytest.mark.parametrize(
    ("partition", "prior", "name", "coupled"),
    [
        ({"kind": "coupled", "eta": 0.5}, "auto", "matched (coupled)", True),
        ({"kind": "coupled", "eta": 0.0}, "auto", "matched (coupled)", False),
        ({"kind": "dirichlet", "alpha": 0.1}, "matched", "matched (dirichlet)", False),
        ({"kind": "by_label"}, "auto", "matched (by_label)", True),
        ({"kind": "coupled", "eta": 0.5}, "dirichlet", "dirichlet", False),
    ],
)
def test_priors(partition, prior, name, coupled):
    config = config_of(partition=partition)
    _, found, ties, note = sh.choose_prior(config, prior)
    assert (found, ties) == (name, coupled)
    assert ("MISMATCHED" in note) == (name == "dirichlet")


def test_nobody_repeats_natural_clients():
    config = load({"data": {"name": "digits"}, "partition": {"kind": "by_owner"}})
    with pytest.raises(NotApplicable, match="cannot repeat"):
        sh.choose_prior(config, "matched")
    assert sh.choose_prior(config, "auto")[1] == "dirichlet"


def test_shadows_without_protection_say_so():
    config = config_of(protections={"dp_sgd": {}})
    trace, _, _ = recorded(config)
    bare = shadows_of(config, trace, protected=False)
    assert bare.protections == ()
    assert any("MISMATCH by choice" in n for n in bare.notes)
    assert shadows_of(config, trace).protections == tuple(config.protections.values())


def test_a_target_epsilon_is_taken_as_the_trace_announces_it():
    config = config_of(protections={"dp_sgd": {"epsilon": 20.0, "accountant": "rdp"}})
    trace, _, federation = recorded(config)
    (hook,) = shadows_of(config, trace).protections
    assert hook.epsilon is None
    assert hook.noise_multiplier == federation.protections[0].noise_multiplier


def test_a_corpus_too_small_names_the_number_needed():
    config = config_of(data={"name": "digits", "test_fraction": 0.01})
    trace, _, _ = recorded(config)
    with pytest.raises(NotApplicable, match="shadow corpus is too small") as error:
        shadows_of(config, trace)
    assert "178 records or more" in str(error.value)


def table(path, count, seed, persons=0):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "sick", *(["who"] if persons else [])])
        for i in range(count):
            sick = i % 2
            row = [*np.round(rng.normal(size=2) + sick, 4), "yes" if sick else "no"]
            writer.writerow([*row, *([f"p{i % persons}"] if persons else [])])
    return path


OWN = {
    "partition": {"kind": "dirichlet", "alpha": 1.0, "minimum": 4},
    "topology": {"kind": "star"},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 4, "rounds": 2},
    "training": {"batch_size": 8},
}


def test_a_file_of_the_adversary_takes_the_place_of_held_out_records(tmp_path):
    data = {"path": str(table(tmp_path / "own.csv", 120, 0)), "label": "sick"}
    config = load({"data": data, **OWN})
    trace, _, _ = recorded(config)
    file = table(tmp_path / "theirs.csv", 90, 1)
    own = shadows_of(config, trace, corpus=str(file))
    assert len(own.corpus) == 90
    assert any("theirs.csv" in n for n in own.notes)
    assert sum(1 for _ in own) == 10
    assert abs(float(np.mean(own.corpus.x))) < 1e-5  # standardised by itself
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b,sick\n" + "".join(f"{i},0,{'xyz'[i % 3]}\n" for i in range(30)))
    with pytest.raises(DataError, match="does not fit the run's data"):
        shadows_of(config, trace, corpus=str(bad))


def test_persons_stay_whole_in_shadows(tmp_path):
    data = {
        "path": str(table(tmp_path / "own.csv", 400, 0, persons=80)),
        "label": "sick",
        "person": "who",
        "test_fraction": 0.4,
    }
    config = load({"data": data, **OWN, "protections": {"dp_sgd": {"unit": "person"}}})
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace)
    shadow, _ = own._one(0)
    assert shadow.data.person is not None
    sizes = shadow.data.sizes
    assert sizes.sum() >= own.records
    for c in range(len(sizes)):
        low = int(shadow.data.starts[c])
        person = shadow.data.person[low : low + int(sizes[c])].numpy()
        assert len(np.unique(person)) < len(person)
    assert sum(1 for _ in own) == 10


def test_windows_of_documents_are_cut_once_and_stay_together():
    config = load(
        {
            "data": {"name": "docs", "test_fraction": 0.5},
            "task": {"kind": "gpt", "width": 8, "depth": 1, "heads": 2, "length": 16},
            "federation": {"clients": 4, "rounds": 1},
            "training": {"batch_size": 8, "steps": 1},
            "protections": {"dp_sgd": {"noise_multiplier": 1.0}},
        }
    )
    trace, _, _ = recorded(config)
    own = shadows_of(config, trace)
    shadow, _ = own._one(0)
    assert shadow.data.person is not None  # windows of one document are one unit
    every = rows(own.task.encode(own.corpus).x.numpy())
    assert rows(shadow.data.x.numpy()) <= every


def test_a_run_with_the_audit_writes_what_it_found(tmp_path):
    audit = {"shadows": 12, "regressor": "ridge", "what_if": ["random_regular"]}
    found = run({**BASE, "audits": {"topology_inference": audit}}, tmp_path / "run")
    (result,) = found.results
    assert found.findings[0].verdict == "leak"
    assert found.findings[0].measure == result.headline
    assert result.headline is not None
    assert len(result.per_client) == 10
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Explained (A1) on shadows by rounds observed" in page
    assert "no client trained on" in page
    stored = json.loads((tmp_path / "run" / "results" / "topology_inference.json").read_text())
    assert stored["result"]["settings"]["shadows"] == 12


def test_a_trace_alone_has_no_shadows(tmp_path):
    from fedaudit.setup.catalogue import AUDITS, find
    from fedaudit.study.auditing import audit_one

    trace, truth, _ = recorded(config_of())
    result = audit_one(find(AUDITS, "audit", "topology_inference")(), trace, truth, 1)
    assert result.need.code == "no_shadows"
