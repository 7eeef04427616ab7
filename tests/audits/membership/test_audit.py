"""Membership by shadow federations: power, null, protections and views."""

import functools

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.membership import Membership
from fedaudit.audits.membership.facts import HEADLINE
from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import MemoryRecorder, MemoryTruth

OVERFITTED = {
    "seed": 3,
    "data": {"name": "digits", "test_fraction": 0.5},
    "partition": {"kind": "iid"},
    "task": {"kind": "mlp", "hidden": [16]},
    "federation": {"clients": 8, "rounds": 2},
    "training": {"epochs": 12, "learning_rate": 0.3, "batch_size": 16},
}
CHEAP = {"records": 24, "shadows": 16}


@functools.cache
def recorded(*protection):
    sections = {} if not protection else {"protections": {protection[0]: dict(protection[1:])}}
    config = load({**OVERFITTED, **sections})
    federation, facts = build(config)
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    records = functools.partial(of_config, config, trace, truth)
    return trace, truth, KnowledgeBuilder(trace, truth, Seed(1), records, config)


@functools.cache
def attacked(*protection, vantage="server", online=True):
    trace, _, builder = recorded(*protection)
    audit = Membership(vantage=vantage, online=online, group="class", **CHEAP)
    known, truth = builder.knowledge_for(audit)
    rng = np.random.default_rng(0)
    return audit, audit.attack(trace.seen_by(vantage), known, rng), truth


def scored(*protection, **settings):
    audit, guess, truth = attacked(*protection, **settings)
    return audit.score(guess, truth, np.random.default_rng(0))


def test_candidates_are_in_half_of_the_shadows_and_no_other_record_of_the_target():
    _, _, builder = recorded()
    audit = Membership(**CHEAP)
    known, _ = builder.knowledge_for(audit)
    shadows = known.shadows
    federation, told = shadows._one(0)
    pools = {row.tobytes() for p in known.candidates.values() for row in p.x.numpy()}
    trained = {row.tobytes() for row in federation.data.x.numpy()}
    for party, pool in known.candidates.items():
        inside = told.members[party]
        assert inside.sum() == len(pool) // 2
        assert {r.tobytes() for r in pool.x.numpy()[inside]} <= trained
        assert not {r.tobytes() for r in pool.x.numpy()[~inside]} & trained
    own = build(load(OVERFITTED))[0].data.x.numpy()
    assert not ({row.tobytes() for row in own} - pools) & trained
    assert [len(r) for r in federation.data.x.split(1)] == [1] * len(own)


def test_power_records_of_an_overfitted_federation_are_found():
    result = scored()
    assert result.status == "ok"
    assert result.estimates[HEADLINE].low > 0.5
    assert result.test.adjusted[result.test.decided] <= result.test.level
    assert result.estimates["advantage"].low > 0
    assert "auc (lira)" in result.estimates
    assert "auc (rmia)" in result.estimates


def test_power_without_a_candidate_in_any_shadow():
    assert scored(online=False).estimates[HEADLINE].low > 0.5


def test_null_labels_drawn_within_client_and_class_alarm_at_most_at_the_level():
    audit, guess, truth = attacked()
    rng, alarms = np.random.default_rng(1), 0
    for seed in range(40):
        drawn = {}
        for i, party in enumerate(guess.parties):
            own = truth.members[party].copy()
            for c in np.unique(guess.classes[i, : len(own)]):
                rows = np.flatnonzero(guess.classes[i, : len(own)] == c)
                own[rows] = rng.permutation(own[rows])
            drawn[party] = own
        result = audit.score(guess, truth.with_members(drawn), np.random.default_rng(seed))
        alarms += result.test.adjusted[result.test.decided] <= result.test.level
    assert alarms <= 4  # 40 at 2.5 %: more than 4 in one of 300


def test_monotone_noise_lowers_the_area_and_sets_a_ceiling():
    noisy = scored("dp_sgd", ("noise_multiplier", 2.0), ("clip", 1.0))
    assert noisy.estimates[HEADLINE].value < scored().estimates[HEADLINE].value
    ceilings = [b for b in noisy.bounds.values() if b.of == HEADLINE]
    assert [b.unit for b in ceilings] == ["record"]
    assert noisy.estimates[HEADLINE].low <= ceilings[0].value < 1


def test_vantage_a_narrower_view_has_fewer_attacks():
    public = attacked(vantage="public")[1]
    assert set(public.statistics) == {"lira", "rmia", "loss"}
    shuffled = attacked("shuffle")[1]
    assert set(shuffled.statistics) == {"unnamed_rows", "all_models", "lira", "rmia", "loss"}
    with pytest.raises((NotApplicable, NotObservable)):
        attacked(vantage="network")


def test_a_trace_alone_is_not_enough():
    trace, _, _ = recorded()
    with pytest.raises(NotApplicable) as error:
        Membership().attack(trace.seen_by("server"), Knowledge(), np.random.default_rng(0))
    assert error.value.code == "no_shadows"


def test_no_truth_is_blind():
    audit, guess, _ = attacked()
    assert audit.score(guess, None, np.random.default_rng(0)).status == "blind"


# -- groups and single records ---------------------------------------------------------------------


def test_every_class_is_scored_apart_and_corrected_for():
    result, (_, guess, _) = scored(), attacked()
    groups = [n for n in result.estimates if n.startswith("auc_of_group")]
    assert len(groups) == 10
    assert sum(result.estimates[n].n for n in groups) == result.estimates[HEADLINE].n
    assert set(groups) <= set(result.test.adjusted)
    assert sum(g.sum() for g in guess.groups.values()) == guess.present.sum()


def test_the_most_exposed_records_are_members_with_the_most_evidence():
    result, (_, guess, truth) = scored(), attacked()
    table = result.curves["most exposed records"]
    head = guess.statistics["own_updates"]
    inside = np.zeros_like(guess.present)
    for i, party in enumerate(guess.parties):
        inside[i, : len(truth.members[party])] = truth.members[party]
    best = np.sort(head[inside & guess.present])[::-1][: len(table["evidence"])]
    np.testing.assert_array_equal(table["evidence"], best)
    for client, record, evidence, above in zip(*table.values(), strict=True):
        assert inside[int(client) - 1, int(record) - 1]
        others = head[~inside & guess.present]
        assert above == pytest.approx((others >= evidence).mean())
    for i, row in enumerate(result.per_client.values()):
        own = np.where(inside[i] & guess.present[i], head[i], -np.inf)
        assert row["most_exposed"] == f"record {own.argmax() + 1}"


def test_power_shuffled_rows_tell_more_than_the_models_they_lead_to():
    result = scored("shuffle")
    models = result.estimates["auc (all_models)"]
    assert result.estimates[HEADLINE].value > models.value
