"""Attribution on a recorded digits federation behind secure aggregation, by both plans."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedaudit.audits.attribution import Attribution, scoring, template, theory
from fedaudit.audits.audit import Knowledge
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.knowledge import KnowledgeBuilder
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult
from fedaudit.setup.config import load
from fedaudit.stats import query_plans
from fedaudit.study.auditing import audit_one
from fedaudit.study.run import simulate
from fedaudit.trace import Trace, Truth
from fedaudit.trace.ledger import round_queries
from reproductions.attribution import comparison

BASE = {
    "seed": 1,
    "data": {"name": "digits"},
    "partition": {"kind": "iid"},
    "task": {"kind": "mlp", "hidden": [64]},
    "federation": {"clients": 10, "rounds": 4},
    "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
    "marks": {"clients": 3, "share": 0.2},
    "audits": {"attribution": {"unused_keys": 299, "score_by": "margin"}},
    "trace": {"raw_updates": True},
}
PAIRED = {"threshold": 5, "plan": "paired", "refuse_isolating": False, "masks": "skipped"}
GROUPS = {"threshold": 5, "plan": "partitions", "masks": "skipped"}


def recorded(path, protection, **changes):
    raw = {**BASE, "protections": {"secure_aggregation": protection}, **changes}
    config = load(raw)
    simulate(config, path)
    return config, Trace.open(path / "trace"), Truth.open(path / "truth")


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("paired") / "run", PAIRED)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    changes = {"federation": {"clients": 10, "rounds": 11}}
    return recorded(tmp_path_factory.mktemp("groups") / "run", GROUPS, **changes)


def builder(case):
    config, trace, truth = case
    return KnowledgeBuilder(trace, truth, Seed(1), None, config)


def audited(case, **settings):
    config, trace, truth = case
    audit = replace(config.audits["attribution"], **settings)
    return audit_one(audit, trace, truth, 1, builder(case))


@pytest.mark.parametrize("plan", ["paired", "grouped"])
def test_power_the_marked_clients_are_named_and_nobody_else(plan, request):
    case = request.getfixturevalue(plan)
    result = audited(case)
    marked = set(case[2].facts["marked"])
    assert {n for n, row in result.per_client.items() if row["named"]} == marked
    assert {n for n, row in result.per_client.items() if row["marked"]} == marked
    assert judge(result)[0].verdict == "attributed"
    assert result.estimates["detected"].value == 1.0
    assert any("false_alarms" in u.what for u in result.underpowered)  # 7 benign are too few
    e = result.estimates["false_alarm_rate_per_test"]
    assert e.low <= 4 * e.baseline
    assert ("published_detected" in result.estimates) == (plan == "paired")
    assert {"3 of 3 marked clients were named", "0 of 7 benign clients were named"} <= {
        *result.notes
    }


@pytest.mark.parametrize("plan", ["paired", "grouped"])
def test_who_stands_out_by_what_is_needed_is_named(plan, request):
    """In the unit of the statistic that was tested: the table explains the decision."""
    for error in (0.05, 0.01):
        rows = audited(request.getfixturevalue(plan), error=error).per_client.values()
        assert all(row["named"] for row in rows if row["stands_out"] >= row["named_from"])
        least = min(row["stands_out"] for row in rows if row["named"])
        assert all(row["stands_out"] < least for row in rows if not row["named"])


def test_clients_whom_no_sum_tells_apart_are_not_said_to_lack_unused_keys(tmp_path):
    result = audited(recorded(tmp_path / "run", {**GROUPS, "plan": "groups"}))
    assert any("clients cannot be tested" in n for n in result.notes)
    assert not any("no p-value falls" in n for n in result.notes)


def published_scores(marks, start, estimates):
    """[FedAttr] Eq. (7) of estimates (n, d) by every key."""
    raw = marks.statistics(np.vstack([start, start + estimates]), 299)
    z = scoring.standardised(raw, len(marks.keys), every=True)
    return scoring.differential(z[1:], z[0])


def test_estimates_of_the_audit_equal_those_of_plain_updates(paired):
    """Naive twin: the same pairs on raw updates, through no protocol and no ledger."""
    config, trace, truth = paired
    knowledge, _ = builder(paired).knowledge_for(config.audits["attribution"])
    audit = config.audits["attribution"]
    guess = audit.attack(trace.seen_by("server"), knowledge, np.random.default_rng(0))
    marks = knowledge.extra["marks"]
    for t, number in enumerate(trace.rounds):
        pairs = query_plans.paired_plan(
            10, 5, 5, Seed(1).generator("secure_aggregation/plan", number, 0)
        )
        names, raw = truth.raw_updates(number)
        assert names == guess.names
        start = trace.seen_by("server").received(number, names[0], before=1)
        estimates = np.stack([p.contrast for p in pairs]) @ raw
        want = published_scores(marks, start, estimates)
        assert np.allclose(guess.published[t], want, atol=2e-3 * np.abs(want).max())
        # the sums determine the updates, and these decide
        want = marks.statistics(np.vstack([start, start + raw]), 299)
        assert (guess.designs[t] == np.eye(10)).all()
        assert np.allclose(guess.scores[t], want[1:] - want[0], atol=2e-3)


def test_templates_of_the_audit_equal_those_of_plain_updates(grouped):
    """Naive twin: the same templates on raw updates, through no protocol and no ledger."""
    _, trace, truth = grouped
    audit, view = Attribution(score_by="template"), trace.seen_by("server")
    knowledge, _ = builder(grouped).knowledge_for(audit)
    templates = knowledge.extra["templates"]
    guess = audit.attack(view, knowledge, np.random.default_rng(0))
    assert guess.by_template
    keys = len(templates.keys)
    for t, number in enumerate(trace.rounds):
        names, raw = truth.raw_updates(number)
        groups = round_queries(view, number).answered
        start = view.received(number, names[0], before=1)
        unit = template.unit_templates(templates.gradients(start, audit.templates), keys)
        rows = template.round_rows(groups, -(groups @ raw) @ unit.T, keys)
        assert np.allclose(guess.designs[t], rows.design, atol=1e-9)
        assert np.allclose(guess.scores[t], rows.values, atol=1e-3)
    result = audit.score(guess, truth, np.random.default_rng(0))
    named = {n for n, row in result.per_client.items() if row["named"]}
    assert named
    assert named <= set(truth.facts["marked"])
    assert all(
        (row["stands_out"] >= row["named_from"]) <= row["named"]
        for row in result.per_client.values()
    )


def test_templates_are_the_default_where_the_plan_is_safe(paired, grouped):
    for case, safe in ((paired, False), (grouped, True)):
        view = case[1].seen_by("server")
        assert Attribution().reads_templates(view) == safe
        assert Attribution(score_by="template").reads_templates(view)
        assert not Attribution(score_by="margin").reads_templates(view)
        with pytest.raises(NotApplicable):
            Attribution(score_by="template").attack(
                case[1].seen_by("client-00"),
                Knowledge(extra={"templates": object()}),
                np.random.default_rng(0),
            )


def test_no_marks_no_names(tmp_path):
    case = recorded(tmp_path / "run", PAIRED, marks={"clients": 0, "spare": 3})
    result = audited(case)
    assert all(row["adjusted_p"] > 0.05 for row in result.per_client.values())
    assert result.estimates["clients_named"].value == 0
    assert judge(result)[0].verdict == "no_evidence"
    assert result.detectable == 1.0
    # ranks among 299 keys do not reach Holm's level for 30 tests: the tail decides
    assert all(row["named_from"] > 3 for row in result.per_client.values())
    assert any("deviations of unused keys: weaker marks may" in n for n in result.notes)
    few = audited(case, unused_keys=40)
    assert few.detectable == float("inf")
    assert any("no p-value falls" in note for note in few.notes)
    assert judge(few)[0].verdict == "nothing_to_say"
    assert "detected" not in result.estimates
    none = replace(case[0], marks=replace(case[0].marks, spare=0))
    assert audited((none, *case[1:])).need.code == "no_keys_to_test"


def test_contracts(paired):
    first, again = audited(paired), audited(paired)
    assert first == again
    assert AuditResult.from_json(first.to_json()) == first
    config, trace, _ = paired
    unknown = KnowledgeBuilder(trace, None, Seed(1), None, config)
    blind = audit_one(config.audits["attribution"], trace, None, 1, unknown)
    assert "detected" not in blind.estimates
    assert blind.estimates["clients_named"] == first.estimates["clients_named"]


def test_a_ledger_without_the_servers_notes_is_read_by_pooling(paired):
    config, trace, truth = paired
    known, _ = builder(paired).knowledge_for(config.audits["attribution"])
    extra = {"marks": known.extra["marks"]}
    audit = config.audits["attribution"]
    guess = audit.attack(
        trace.seen_by("server"), replace(known, extra=extra), np.random.default_rng(0)
    )
    assert "published scores: estimates from all subsets pooled" in guess.reading
    assert {guess.names[k] for k in np.flatnonzero(guess.decision.named.flagged)} == set(
        truth.facts["marked"]
    )


def test_vantage_and_needs(paired, tmp_path):
    config, trace, truth = paired
    audit = config.audits["attribution"]
    with pytest.raises(NotApplicable) as error:
        audit.attack(trace.seen_by("server"), Knowledge(), np.random.default_rng(0))
    assert error.value.code == "no_keys"
    knowledge, _ = builder(paired).knowledge_for(audit)
    with pytest.raises(NotApplicable, match="sees no sums"):
        audit.attack(trace.seen_by("client-03"), knowledge, np.random.default_rng(0))
    alone = recorded(tmp_path / "run", {"threshold": 5, "masks": "skipped"})
    assert audited(alone).need.code == "only_totals"
    assert audit_one(audit, trace, truth, 1, None).need.code == "no_keys"


def test_keys_stay_in_the_truth(tmp_path):
    config = load({**BASE, "marks": {"clients": 1, "keys": [123454321]}})
    assert "123454321" not in json.dumps(config.public())
    other = load({**BASE, "marks": {"clients": 1, "keys": [99]}})
    assert config.sha256 == other.sha256
    assert config.full_sha256 != other.full_sha256


def test_partial_participation_is_read_by_the_rounds_a_client_was_in(tmp_path):
    changes = {"federation": {"clients": 12, "rounds": 6, "participation": 0.75}}
    result = audited(recorded(tmp_path / "run", PAIRED, **changes))
    assert result.status == "ok"
    assert len(result.per_client) == 12


def test_clients_who_miss_half_of_the_rounds_are_counted_and_nobody_else_is_named(tmp_path):
    protection = GROUPS | {"threshold": 3, "dropout": 0.5, "quorum": "threshold", "plan": "cycled"}
    changes = {"federation": {"clients": 10, "rounds": 8}, "seed": 4}
    case = recorded(tmp_path / "run", protection, **changes)
    server = case[1].seen_by("server")
    inside = dict.fromkeys([f"client-{n:02d}" for n in range(10)], 0)
    answered = [a for n in server.rounds if len((a := round_queries(server, n)).answered)]
    for a in answered:
        for name, some in zip(a.clients, a.answered.any(axis=0), strict=True):
            inside[name] += int(some)
    few = sum(2 * count < len(answered) for count in inside.values())
    assert few
    result = audited(case, score_by="template")
    said = [n for n in result.notes if "fewer than half of the rounds" in n]
    assert said[0].startswith(f"{few} clients")
    marked = case[2].facts["marked"]
    assert all(name in marked for name, row in result.per_client.items() if row["named"])


@pytest.mark.parametrize(
    ("protection", "changes"),
    [
        (PAIRED | {"dropout": 0.15}, {"seed": 3, "federation": {"clients": 10, "rounds": 1}}),
        (PAIRED, {"federation": {"clients": 20, "rounds": 2, "participation": 0.45}}),
    ],
)
def test_clients_without_an_estimate_do_not_cost_the_others_theirs(tmp_path, protection, changes):
    changes = {"federation": {"clients": 10, "rounds": 2}, **changes}
    result = audited(recorded(tmp_path / "run", protection, **changes))
    scored = [name for name, row in result.per_client.items() if "published_z" in row]
    assert 0 < len(scored) < len(result.per_client)
    assert any("have no published score" in note for note in result.notes)
    assert "clients_named" in result.estimates


def test_thresholds_that_grow_with_the_rounds_and_the_bound_of_theorem_4(paired):
    result = audited(paired)
    drift, noise = (result.estimates[name].value for name in ("drift", "noise"))
    grown = theory.growing_threshold(4, drift=drift, noise=noise, error=0.05)
    anytime = theory.anytime_threshold(4, drift=drift, noise=noise, error=0.05)
    assert result.bounds["growing_threshold"].value == grown
    assert result.bounds["anytime_threshold"].value == anytime > grown
    for row in result.per_client.values():
        assert row["published_above_growing"] == (row["published_z"] > grown)
        assert row["published_above_anytime"] == (row["published_z"] > anytime)
    errors = theory.error_bounds(4, 4.0, signal=0.0, drift=drift, noise=noise)
    assert result.bounds["theorem_3_false_positive"].value == errors.false_positive
    assert result.bounds["theorem_4_leakage"] == theory.leakage_bound(10, 5, 5)


def test_theorem_3_counts_the_rounds_that_a_client_took_part_in(tmp_path):
    changes = {"federation": {"clients": 12, "rounds": 6, "participation": 0.6}}
    result = audited(recorded(tmp_path / "run", PAIRED, **changes))
    said = result.bounds["theorem_3_false_positive"].assumes
    assert any(f"{n} rounds with a benign client" in said for n in (4, 5))


def test_rounds_in_which_clients_drop_out_are_read_for_those_who_are_left(tmp_path):
    """Naive twin: the pairs drawn for all ten, on plain updates of the clients in the total."""
    protection = PAIRED | {"threshold": 4, "subset_size": 5, "dropout": 0.12}
    case = recorded(tmp_path / "run", protection, seed=8)
    config, trace, truth = case
    server, audit = trace.seen_by("server"), config.audits["attribution"]
    knowledge, _ = builder(case).knowledge_for(audit)
    guess = audit.attack(server, knowledge, np.random.default_rng(0))
    assert guess.rounds == tuple(trace.rounds)
    assert "published scores: estimates of the published pairs" in guess.reading
    lost = 0
    for t, number in enumerate(trace.rounds):
        answered = round_queries(server, number).answered
        left, have = (answered != 0).any(axis=0), {tuple(row) for row in answered}
        rng = Seed(8).generator("secure_aggregation/plan", number, 0)
        every, of = [], []
        for pair in query_plans.paired_plan(10, 5, 5, rng):
            sides = [
                [row * left for row in side if tuple(row * left) in have]
                for side in (pair.include, pair.exclude)
            ]
            if left[pair.target] and all(sides):
                every.append(np.mean(sides[0], axis=0) - np.mean(sides[1], axis=0))
                of.append(pair.target)
        lost += 10 - len(every)
        names, raw = truth.raw_updates(number)
        start = server.received(number, names[0], before=1)
        want = published_scores(knowledge.extra["marks"], start, np.stack(every) @ raw)
        assert np.allclose(guess.published[t][of], want, atol=2e-3 * np.abs(want).max())
        assert np.isnan(np.delete(guess.published[t], of, axis=0)).all()
    assert lost >= 3, "somebody drops out in most rounds"
    result = audited(case)
    assert any(f"{lost} estimates of the published pairs are missing" in n for n in result.notes)
    assert not any("rounds are left out" in n for n in result.notes)
    marked = set(truth.facts["marked"])
    assert {n for n, row in result.per_client.items() if row["named"]} == marked


def test_rounds_whose_subsets_went_unanswered_are_counted(tmp_path):
    """Subsets have the threshold's size: a dropout fails all of its subsets."""
    case = recorded(
        tmp_path / "run",
        PAIRED | {"dropout": 0.15, "subset_size": 5, "quorum": "threshold"},
        seed=3,
    )
    result = audited(case)
    assert any("are missing" in n for n in result.notes)
    # groups of 10 at the threshold: a dropout fails the group's sum, not the total
    none = recorded(tmp_path / "none", GROUPS | {"dropout": 0.3, "quorum": "threshold"}, seed=6)
    answered = [round_queries(none[1].seen_by("server"), n).answered for n in none[1].rounds]
    assert [len(a) for a in answered] == [1, 0, 1, 1]
    assert audited(none).need.code == "no_estimable_client"


def test_clients_are_named_after_rounds_of_the_trace_not_after_looks(tmp_path):
    """Round 2 fails: a client named by the second look is named after round 3."""
    protection = PAIRED | {"dropout": 0.3, "quorum": "threshold"}
    case = recorded(tmp_path / "run", protection, seed=6)
    config, trace, _ = case
    audit = config.audits["attribution"]
    knowledge, _ = builder(case).knowledge_for(audit)
    guess = audit.attack(trace.seen_by("server"), knowledge, np.random.default_rng(0))
    assert guess.rounds == (1, 3, 4)
    second = replace(guess, sequential=replace(guess.sequential, first=np.arange(10) % 4))
    scored = audit.score(second, None, np.random.default_rng(0))
    after = [row["named_after_round"] for row in scored.per_client.values()]
    assert after == [None, 1, 3, 4, None, 1, 3, 4, None, 1]
    assert scored.curves["by_round"]["named_so_far"] == (3.0, 5.0, 7.0)
    assert any("1 of 4 rounds are left out (2)" in note for note in scored.notes)


def test_a_marked_client_that_was_missed_speaks_against_the_power(tmp_path):
    weak = {"learning_rate": 0.01, "epochs": 1, "batch_size": 64}
    case = recorded(tmp_path / "run", PAIRED, training=weak, marks={"clients": 3, "share": 0.01})
    result = audited(case)
    assert result.estimates["detected"].value < 1
    assert result.detectable is None


def test_candidates_made_and_scored_a_few_at_a_time_are_the_same(paired, monkeypatch):
    whole = audited(paired)
    monkeypatch.setattr(
        "fedaudit.audits.attribution.candidate_scores.AT_ONCE", 15_000
    )  # three rows
    few = audited(paired)
    assert few.estimates["clients_named"] == whole.estimates["clients_named"]
    for name, row in few.per_client.items():
        assert row["part"] == pytest.approx(whole.per_client[name]["part"], abs=1e-3)


def test_what_cannot_be_told_apart_is_not_called_clean(tmp_path):
    fixed = GROUPS | {"plan": "groups"}
    result = audited(recorded(tmp_path / "run", fixed))
    assert result.estimates["clients_named"].value == 0
    assert result.detectable is None
    assert any("10 of 10 clients cannot be tested" in note for note in result.notes)
    assert judge(result)[0].verdict == "nothing_to_say"


def test_queries_without_an_answer_are_not_called_unasked(tmp_path):
    case = recorded(tmp_path / "run", PAIRED | {"dropout": 0.9})
    known, _ = builder(case).knowledge_for(case[0].audits["attribution"])
    with pytest.raises(NotApplicable, match=r"no query was answered(.|\n)*refused or failed"):
        Attribution().attack(case[1].seen_by("server"), known, np.random.default_rng(0))


def test_bad_input():
    with pytest.raises(ConfigError, match="unused_keys"):
        Attribution(unused_keys=5)
    with pytest.raises(ConfigError, match="error"):
        Attribution(error=0.0)
    text = {**BASE, "data": {"name": "docs"}, "task": {"kind": "gpt"}}
    with pytest.raises(ConfigError, match="do not fit"):
        load({**text, "marks": {"kind": "canary"}})


def test_the_trade_off_between_the_plans(grouped):
    """On the same run: fewer sums and larger groups against exact updates."""
    config, trace, truth = grouped
    audit = config.audits["attribution"]
    marks = builder(grouped).knowledge_for(audit)[0].extra["marks"]
    updates = np.stack([truth.raw_updates(n)[1] for n in trace.rounds])
    server = trace.seen_by("server")
    starts = np.stack([server.received(n, "client-00", before=1) for n in trace.rounds])
    rng = np.random.default_rng(0)
    dear = comparison.read(
        comparison.published_plan(10, 5, 5, len(updates), rng), starts, updates, marks, unused=199
    )
    plan = query_plans.random_partitions(10, 5, len(updates), rng)
    safe = comparison.read(comparison.safe_plan(plan), starts, updates, marks, unused=199)
    assert dear.smallest == 1
    assert dear.leaks.within > 0.999
    assert safe.smallest == 5
    assert safe.leaks.within < 0.95
    assert safe.queries == 3
    assert safe.uploads == 2
    assert dear.uploads > 40
    marked = np.isin(truth.raw_updates(1)[0], list(truth.facts["marked"]))
    assert (dear.named == marked).all()
    assert safe.published is None
    assert safe.change_z is None
    assert dear.published is not None
    # marked clients stand out in units of the change, and unused keys have a spread of 1
    best = dear.change_z.max(axis=1)
    assert best[marked].min() > best[~marked].max()
    every = scoring.standardised(
        dear.scores.reshape(len(updates), 10, -1).sum(axis=0), len(marks.keys), every=True
    )
    assert np.allclose(every[:, len(marks.keys) :].std(axis=1, ddof=1), 1.0)
    assert dear.scores.shape == (len(updates) * 10, len(marks.keys) + 199)
