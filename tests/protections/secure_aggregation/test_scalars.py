"""Scalar release: the same statistic as from sums, and what clients refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit.audits.attribution import Attribution, template
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.query_plan import QueryPlan
from fedaudit.errors import ConfigError, NotObservable, UsageError
from fedaudit.hooks import Uploads
from fedaudit.knowledge.builder import KnowledgeBuilder
from fedaudit.knowledge.owner_marks import OwnerMarks
from fedaudit.protections.secure_aggregation import (
    SecureAggregation,
    SecureAggregator,
    scalars,
)
from fedaudit.protections.secure_aggregation.refusals import QueryRefused
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared, build
from fedaudit.trace.ledger import round_queries, scalar_queries
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from fedaudit.trace.schema import SCALARS, UNANSWERED

UNUSED = 24


def config(**protection):
    return load(
        {
            "seed": 7,
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [16]},
            "federation": {"clients": 10, "rounds": 4},
            "training": {"learning_rate": 0.3, "steps": 10, "batch_size": 16},
            "marks": {"clients": 3, "share": 0.3},
            "protections": {"secure_aggregation": {"threshold": 5, "plan": "cycled", **protection}},
        }
    )


SCALAR = {"release": "scalars", "unused_keys": UNUSED}


def played(**protection):
    """Trace, truth and federation of a run in memory, raw updates kept."""
    made = Prepared(config(**protection))
    federation, facts = build(made)
    federation = replace(federation, test=None)
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    return recorder.trace(), truth, federation


@pytest.fixture(scope="module")
def by_scalars():
    return played(**SCALAR, masks="real")


@pytest.fixture(scope="module")
def by_sums():
    return played(masks="skipped")


def hook_of(federation):
    return federation.protections[0]


def test_the_statistic_from_scalars_is_the_one_from_sums(by_scalars, by_sums):
    """Theory: the inner product of a sum is the sum of the inner products."""
    told, full = by_scalars[0].seen_by("server"), by_sums[0].seen_by("server")
    assert np.array_equal(told.released(), full.released())  # training is untouched
    release, names = hook_of(by_scalars[2]).scalars, by_scalars[2].party
    keys = release.terms.keys
    rows = {"scalars": [], "sums": []}
    for number in told.rounds:
        asked = scalar_queries(told, number)
        rows["scalars"].append(template.scalar_rows(told, asked, names, keys))
        rows["sums"].append(
            template.template_rows(
                full, round_queries(full, number), names, release.templates, UNUSED, None
            )
        )
    for a, b in zip(rows["scalars"], rows["sums"], strict=True):
        assert np.allclose(abs(a.design @ b.design.T), 1, atol=1e-9)
        sign = np.sign(a.design @ b.design.T)
        assert np.allclose(sign * a.values, b.values, atol=2e-3 * abs(b.values).max())
    found = {k: template.decide(some, keys, 0.05) for k, some in rows.items()}
    assert np.allclose(
        found["scalars"].p_values.distance, found["sums"].p_values.distance, atol=0.02, rtol=1e-3
    )


def test_no_sum_of_updates_is_opened_beside_the_training_aggregate(by_scalars):
    trace, truth, federation = by_scalars
    view = trace.seen_by("server")
    release = hook_of(federation).scalars
    for number in view.rounds:
        whole, asked = round_queries(view, number), scalar_queries(view, number)
        assert whole.answered.sum(axis=1).tolist() == [10]
        assert asked.answered.sum(axis=1).tolist() == [5, 5]
        assert (asked.answered.sum(axis=0) == 1).all()
        # naive twin: products with the true updates, summed here
        parties, raw = truth.raw_updates(number)
        units = release.units(view.received(number, parties[0], before=1))
        products = -(raw.astype(np.float64) @ units.T)
        for row, at in zip(asked.answered, asked.sums, strict=True):
            got = view.payload(number, int(at), layout=SCALARS)
            inside = np.array([asked.clients.index(p) for p in parties])
            assert np.allclose(got, row[inside] @ products, atol=1e-4)


def test_only_the_server_sees_scalars(by_scalars):
    trace, _, federation = by_scalars
    at = int(scalar_queries(trace.seen_by("server"), 1).sums[0])
    with pytest.raises(NotObservable):
        trace.seen_by(federation.party[0]).payload(1, at, layout=SCALARS)


def test_the_plan_audit_reads_scalars_from_the_trace(by_scalars):
    view = by_scalars[0].seen_by("server")
    audit = QueryPlan()
    found = audit.score(audit.attack(view, Knowledge(), np.random.default_rng(0)), None, None)
    assert found.estimates["smallest_exposed_group"].value == 10
    assert found.estimates["smallest_group_by_scalars"].value == 5
    terms = hook_of(by_scalars[2]).scalars.terms
    assert any(terms.commitment[:16] in note for note in found.notes)


def test_the_trace_states_the_terms_before_round_1(by_scalars):
    declared = by_scalars[0].manifest.declared[0]
    terms = hook_of(by_scalars[2]).scalars.terms
    assert declared["commitment"] == terms.commitment
    assert declared["beacon"] == terms.beacon
    assert (declared["owner_keys"], declared["templates"]) == (3, 3 + UNUSED)


# -- what clients refuse ---------------------------------------------------------------------------


def documents(seed, sets=3):
    rng = np.random.default_rng(seed)
    return [
        (torch.from_numpy(rng.random((4, 6), dtype=np.float32)), torch.arange(4))
        for _ in range(sets)
    ]


def terms_of(own, **changes):
    given = {"commitment": scalars.commitment_of(own), "beacon": "b", "keys": 3, "unused": 20}
    return scalars.ScalarTerms(**{**given, **changes})


def units(count, width=400, seed=0):
    found = np.random.default_rng(seed).standard_normal((count, width))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_other_documents_than_those_committed_to_are_refused():
    own = documents(0)
    terms = terms_of(own)
    terms.check_documents(own)
    for lie in (documents(1), own[:2], own[::-1], [(x, y + 1) for x, y in own]):
        with pytest.raises(QueryRefused, match="committed"):
            terms.check_documents(lie)


def test_unused_keys_follow_from_what_nobody_chose_alone():
    key = scalars.unused_key("beacon", "documents", 0)
    assert key == scalars.unused_key("beacon", "documents", 0)
    others = [("later", "documents", 0), ("beacon", "others", 0), ("beacon", "documents", 1)]
    assert len({key, *(scalars.unused_key(*o) for o in others)}) == 4


@pytest.mark.parametrize(
    ("changes", "what"), [({"keys": 4}, "too many keys"), ({"unused": 61}, "too many templates")]
)
def test_more_keys_or_templates_are_refused(changes, what):
    with pytest.raises(QueryRefused, match=what):
        terms_of(documents(0), **changes)


def test_templates_of_other_length_number_or_spread_are_refused():
    terms, fine = terms_of(documents(0)), units(23)
    terms.check_templates(fine)
    narrow = fine.copy()
    narrow[1] = 0.0
    narrow[1, :3] = 3**-0.5  # three weights
    for bad, what in ((2 * fine, "unit length"), (fine[:5], "number"), (narrow, "single numbers")):
        with pytest.raises(QueryRefused, match=what):
            terms.check_templates(bad)


def test_effective_numbers_of_known_vectors():
    assert np.allclose(scalars.spread(np.eye(5)), 1)
    assert np.allclose(scalars.spread(np.full((1, 16), 0.25)), 16)


def test_an_owner_that_swaps_documents_gets_no_answer():
    """The adversary of the rule: documents change after round 1; training goes on."""
    federation, facts = build(Prepared(config(**SCALAR, masks="skipped")))
    release = hook_of(federation).scalars
    first = release.templates.keys[0]

    class Swap:
        """A server that tells clients of other documents from round 2 on."""

        def __call__(self, number, _metrics):
            x, y = release.templates.documents(0)[0]
            release.templates._made["own", first] = (x + 0.1, y)

    recorder = MemoryRecorder(**federation.about())
    federation.run(recorder, MemoryTruth(facts), progress=Swap())
    view = recorder.trace().seen_by("server")
    answered = [len(scalar_queries(view, n).answered) for n in view.rounds]
    assert answered == [2, 0, 0, 0]
    assert [len(round_queries(view, n).answered) for n in view.rounds] == [1, 1, 1, 1]
    reasons = [m.metadata.get(UNANSWERED, "") for m in view.messages(2) if m.kind == "query"]
    assert sum("committed" in str(r) for r in reasons) == 2


def test_documents_brought_later_are_refused(by_scalars, tmp_path):
    """Products are those of the documents committed to: they say nothing of others."""
    builder = KnowledgeBuilder(
        by_scalars[0], None, Seed(0), None, brought=lambda: (OwnerMarks(tmp_path, {}, ()), None)
    )
    with pytest.raises(UsageError, match=hook_of(by_scalars[2]).scalars.terms.commitment[:16]):
        builder.knowledge_for(Attribution())


def test_clients_with_different_models_refuse(by_scalars):
    hook = hook_of(by_scalars[2])
    parties, raw = by_scalars[1].raw_updates(1)
    given = Uploads(
        rows=torch.from_numpy(raw), senders=parties, weights=np.ones(10),
        origin=np.arange(10), total_weight=10.0,
    )  # fmt: skip
    out = hook.upload(given, round_number=1, seed=Seed(7))
    assert [q.row is None for q in out.queries] == [True, True, True]  # the first is `rows`
    assert "different models" in str(out.queries[1].metadata[UNANSWERED])


def test_a_group_of_products_that_isolates_others_is_refused():
    """The training aggregate counts: 4 of 9 clients follow from it and a group of 5."""
    aggregator = SecureAggregator(threshold=5, masks=False)
    rng = np.random.default_rng(0)
    aggregator.begin(1, {c: rng.standard_normal(40) for c in range(9)})
    aggregator.query(1, range(9))
    aggregator.begin(1, {c: rng.standard_normal(7) for c in range(9)})
    with pytest.raises(QueryRefused, match="isolate"):
        aggregator.query(1, range(5))


# -- noise -----------------------------------------------------------------------------------------


def release_of(noise, clip, threshold=5):
    return scalars.ScalarRelease(terms_of(documents(0)), None, threshold, clip, noise)


def test_products_are_clipped_and_noise_adds_up_to_what_is_stated():
    rng = np.random.default_rng(0)
    some, updates = units(23, 60), 5 * rng.standard_normal((2000, 60))
    draws = [np.random.default_rng(n) for n in range(2000)]
    plain = release_of(0.0, 1.0).products(some, updates, np.ones(len(updates)), draws)
    exact = release_of(0.0, None).products(some, updates, np.ones(len(updates)), draws)
    assert np.allclose(exact, -updates @ some.T)
    assert np.linalg.norm(plain, axis=1).max() <= 1 + 1e-12
    noisy = release_of(2.0, 1.0).products(some, updates, np.ones(len(updates)), draws) - plain
    sums = noisy.reshape(400, 5, 23).sum(axis=1)
    assert sums.std() == pytest.approx(2.0, rel=0.03)


# -- settings --------------------------------------------------------------------------------------


class FixedTemplates(scalars.ScalarRelease):
    """Unit vectors, so that the test needs no gradients."""

    def units(self, model):
        return np.eye(self.terms.keys + self.terms.unused, len(model), dtype=np.float32)


def test_the_stated_noise_is_reached_with_unequal_weights():
    """Noise went on before weights: clients with few examples had next to none."""
    made = release_of(2.0, 1.0)
    fixed = FixedTemplates(made.terms, None, made.threshold, made.clip, made.noise)
    settings = {"scalar_clip": 1.0, "scalar_noise": 2.0, "release": "scalars"}
    hook = SecureAggregation(threshold=5, plan="groups", masks="skipped", bound=64.0, **settings)
    object.__setattr__(hook, "scalars", fixed)
    weights, found = np.array([100.0] + 9 * [1.0]), []
    for number in range(1, 21):
        given = Uploads(
            rows=torch.zeros(10, 100),
            senders=tuple(f"c{i}" for i in range(10)),
            weights=weights,
            origin=np.arange(10, dtype=np.int64),
            total_weight=float(weights.sum()),
            model=torch.zeros(100),
        )
        out = hook.upload(given, round_number=number, seed=Seed(3))
        found += [q.row.numpy() / weights.max() for q in out.queries[1:]]
    assert len(found) == 40
    assert abs(np.std(np.concatenate(found)) / 2.0 - 1.0) < 0.15


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({**SCALAR, "plan": "none"}, "groups of a safe plan"),
        ({**SCALAR, "plan": "paired"}, "groups of a safe plan"),
        ({"scalar_noise": 1.0}, "without scalars"),
        ({**SCALAR, "scalar_noise": 1.0}, "needs a bound"),
        ({**SCALAR, "unused_keys": 63}, "out of range"),
        ({**SCALAR, "unused_keys": 5}, "out of range"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given, what):
    with pytest.raises(ConfigError, match=what) as refused:
        config(**given)
    assert refused.value.remedy


def test_scalars_need_marks():
    with pytest.raises(ConfigError, match="documents"):
        SecureAggregation(plan="cycled", **SCALAR).with_documents(None, Seed(0))
