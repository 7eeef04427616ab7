"""The audit on the clients of a run: null, power, monotone, vantage, theory, and the contracts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedaudit.audits.active_membership import ActiveMembership, rates
from fedaudit.audits.active_membership.rates import Counts
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.planning import Aim, Recorded
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult, Bound, Estimate, Underpowered
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.stats import power
from fedaudit.study.auditing import audit_one
from fedaudit.trace import MemoryRecorder, MemoryTruth

SMALL = {
    "adversary": "fc",
    "games": 300,
    "recorded": 20,
    "client_games": 0,
    "simulated": 300,
    "universe": 150,
}


class Run:
    """A recorded federation of five clients on digits, with whatever protects it."""

    def __init__(self, **protections):
        self.config = load(
            {
                "data": {"name": "digits"},
                "task": {"kind": "mlp", "hidden": [4]},
                "federation": {"clients": 5, "rounds": 1},
                "training": {"batch_size": 64},
                "protections": protections,
                "audits": {"active_membership": {}},
            }
        )
        federation, facts = build(self.config)
        recorder = MemoryRecorder(
            layouts=federation.layouts(),
            federation=federation.describe(),
            declared=[p.declare() for p in federation.protections],
        )
        self.truth = MemoryTruth(facts)
        federation.run(recorder, self.truth)
        self.trace = recorder.trace()

    def builder(self, seed=1):
        return KnowledgeBuilder(
            self.trace,
            self.truth,
            Seed(seed),
            lambda: of_config(self.config, self.trace),
            self.config,
        )

    def audit(self, seed=1, **settings):
        asked = ActiveMembership(**{**SMALL, "records": 12, **settings})
        return audit_one(asked, self.trace, self.truth, seed, self.builder(seed))


@pytest.fixture(scope="module")
def plain():
    return Run()


def local(epsilon, **settings):
    return {"mechanism": "grr", "epsilon": epsilon, "alphabet": 4, **settings}


def verdict(result):
    return judge(result)[0].verdict


# -- power, null, monotone, vantage ---------------------------------------------------------------


def test_without_protection_the_server_wins_every_game(plain):
    result = plain.audit(client_games=20)
    assert result.estimates["success"].value == 1.0
    assert result.estimates["success (through the engine)"].value == 1.0
    assert result.bounds["Theorem 1"].value == 1.0  # nothing leaves its ball
    assert verdict(result) == "leak"
    assert any("20 of 20 games" in note for note in result.notes)
    assert set(result.per_client) == {f"client-{i:02d}" for i in range(5)}
    assert all(row["share"] == 1.0 for row in result.per_client.values())


def test_noise_that_drowns_everything_raises_alarms_at_most_at_the_stated_rate(plain):
    """Null: at epsilon 0.001 a report says nothing; 95 % intervals may err once in twenty."""
    alarms = [
        verdict(plain.audit(seed=s, recorded=0, local_dp=local(0.001))) == "leak" for s in range(12)
    ]
    assert sum(alarms) <= 2


def test_more_noise_never_reads_as_more_leak(plain):
    areas = [
        plain.audit(recorded=0, games=600, local_dp=local(e)).estimates["auc"]
        for e in (4.0, 2.0, 1.0, 0.1)
    ]
    for weaker, stronger in zip(areas[1:], areas, strict=False):
        assert weaker.low <= stronger.high
    assert areas[0].low > areas[-1].high


@pytest.mark.parametrize("vantage", ["public", "client-00"])
def test_who_does_not_send_models_cannot_plant_weights(plain, vantage):
    result = plain.audit(vantage=vantage)
    assert result.need.code == "no_server"


def test_a_recording_alone_is_not_enough(plain):
    audit = ActiveMembership()
    with pytest.raises(NotApplicable, match="recording alone"):
        audit.attack(plain.trace.seen_by("server"), Knowledge(), np.random.default_rng(0))


# -- theory beside it -----------------------------------------------------------------------------


def test_bounds_hold_and_say_what_they_assume(plain):
    result = plain.audit(local_dp=local(6.0), games=1000, recorded=40)
    assert verdict(result) == "leak"
    floor, top = result.bounds["Theorem 1"], result.bounds["Theorem 2"]
    assert floor.kind == "lower"
    assert floor.of == "success (tau = Delta)"
    assert floor.value <= result.estimates[floor.of].high
    assert "|X| = 150" in floor.assumes
    assert "exact" in floor.assumes
    assert top.kind == "upper"
    assert result.bounds["total variation"].value <= top.value + 1e-12
    assert any("40 of 40 games" in note for note in result.notes)
    # the engine's games and the closed form's estimate one rate
    a, b = result.estimates["success"], result.estimates["success (through the engine)"]
    assert a.low <= b.high
    assert b.low <= a.high


def test_a_bound_that_says_nothing_is_shown_as_such(plain):
    weak = plain.audit(recorded=0, local_dp=local(0.2))
    floor = weak.bounds["Theorem 1"]
    assert floor.kind == "lower"
    assert floor.value < 0.5
    assert "says nothing: guessing reaches one half" in floor.assumes
    assert any(n.startswith("Theorem 1 says nothing here") for n in weak.notes)
    strong = plain.audit(recorded=0)
    assert strong.bounds["Theorem 1"].value > 0.5
    assert "says nothing" not in strong.bounds["Theorem 1"].assumes
    assert not any("says nothing" in n for n in strong.notes)


def test_a_claim_that_does_not_hold_gives_no_ceiling(plain):
    mechanism = {"mechanism": "bitrand", "epsilon": 3.0, "bits": 10, "integer_bits": 1}
    result = plain.audit(recorded=0, local_dp=mechanism)
    claimed = result.bounds["Theorem 2 at the claimed epsilon"]
    assert claimed.kind == "reference"  # never held against the measurement
    assert claimed.value == pytest.approx(1 / (1 + np.exp(-3.0)))
    assert result.bounds["Theorem 2"].value == pytest.approx(1.0)
    assert any("the claim does not hold" in note for note in result.notes)


def test_a_violated_bound_is_the_top_finding(plain):
    result = plain.audit(recorded=0)
    wrong = replace(result.bounds["Theorem 1"], kind="upper", value=0.6)
    assert verdict(replace(result, bounds={"wrong": wrong})) == "disagreement"


def test_published_trials_resample_whole_trials(plain):
    result = plain.audit(recorded=0, trials=6, games=50, local_dp=local(3.0))
    assert "over 6 trials" in result.estimates["success"].method
    assert result.estimates["success"].n == 6
    # what would be seen follows from how trials spread, not from 300 games taken as independent
    success = result.estimates["success"]
    assert result.detectable == pytest.approx(0.5 + success.value - success.low)
    assert result.detectable != rates.smallest_success(300, 0.95)


def test_baselines_are_what_is_reached_without_looking(plain):
    for settings in ({}, {"trials": 6, "games": 50}):
        e = plain.audit(recorded=0, local_dp=local(0.5), **settings).estimates
        assert e["f1"].baseline == pytest.approx(2 / 3)
        tpr, tnr = e["true_positive_rate"], e["true_negative_rate"]
        assert tpr.baseline == pytest.approx(1 - tnr.value)
        assert tnr.baseline == pytest.approx(1 - tpr.value)
        # who says yes half of the time finds half of the members: no evidence of anything
        assert tpr.low <= tpr.baseline + 0.1


def test_too_few_games_for_the_ceiling_are_said_to_be_too_few():
    top = Bound(value=0.55, kind="upper", of="success", source="a ceiling")
    seen = rates.smallest_success(200, 0.95)
    (said,) = rates.too_few_for_ceilings(200, seen, {"a": top}, 0.95)
    assert said.have == 200
    assert "0.55" in said.what
    assert rates.smallest_success(said.needed, 0.95) < 0.55
    assert rates.too_few_for_ceilings(200, seen, {"a": replace(top, value=0.9)}, 0.95) == ()
    assert rates.too_few_for_ceilings(200, seen, {"a": replace(top, kind="lower")}, 0.95) == ()
    assert rates.too_few_for_ceilings(4, None, {"a": top}, 0.95)[0].needed > 200


# -- attention ------------------------------------------------------------------------------------


def test_attention_wins_on_unprotected_digits(plain):
    result = plain.audit(adversary="attention", recorded=10, games=200, records=6)
    assert result.estimates["success"].low > 0.8
    assert any("10 of 10 games" in note for note in result.notes)
    assert any("Theorem 3 says nothing here" in note for note in result.notes)


def test_attention_with_a_theorem_that_does_not_apply_says_what_would_do(plain):
    result = plain.audit(adversary="attention", threshold="theory", beta=0.001, embedding="linear")
    assert (result.status, result.need.code) == ("not_applicable", "theory_unmet")
    assert result.need.code == "theory_unmet"


# -- contracts ------------------------------------------------------------------------------------


def test_same_seed_same_result_and_it_survives_json(plain):
    first, again = (plain.audit(local_dp=local(3.0)) for _ in range(2))
    assert first == again
    assert AuditResult.from_json(first.to_json()) == first
    assert json.loads(first.to_json())["settings"]["local_dp"]["epsilon"] == 3.0
    assert plain.audit(seed=2, local_dp=local(3.0)).estimates != first.estimates


def test_without_truth_nothing_is_scored(plain):
    audit = ActiveMembership(**SMALL, records=5)
    knowledge, _ = plain.builder().knowledge_for(audit)
    guess = audit.attack(plain.trace.seen_by("server"), knowledge, np.random.default_rng(0))
    assert audit.score(guess, None, np.random.default_rng(0)).need.code == "no_truth"


def test_coins_are_in_the_truth_and_not_in_the_guess(plain):
    audit = ActiveMembership(**SMALL, records=5)
    knowledge, truth = plain.builder().knowledge_for(audit)
    assert set(truth.members) >= {"figure", "recorded"}
    assert knowledge.candidates == {}
    guess = audit.attack(plain.trace.seen_by("server"), knowledge, np.random.default_rng(0))
    held = [v for v in vars(guess).values() if isinstance(v, np.ndarray) and v.dtype == bool]
    coins = truth.members["recorded"]
    assert not any(np.array_equal(v, coins) for v in held)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"games": 3}, "games is out of range"),
        ({"trials": 0}, "trials is out of range"),
        ({"records": 0}, "records is out of range"),
        ({"confidence": 1.0}, "confidence is out of range"),
        ({"beta": -1.0, "adversary": "attention"}, "beta is out of range"),
        ({"beta": 1.0}, "belongs to attention"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        ActiveMembership(**settings)


def test_bad_mechanisms_and_sizes_are_refused(plain):
    with pytest.raises(ConfigError, match="epsilon"):
        plain.audit(local_dp=local(-1.0))
    with pytest.raises(ConfigError, match=r"unknown key audits\.active_membership\.local_dp\.eps"):
        plain.audit(local_dp={"eps": 1.0})
    with pytest.raises(ConfigError, match="does not fit the universe"):
        plain.audit(records=150)


# -- estimates ------------------------------------------------------------------------------------


def test_intervals_of_both_rates_cover_what_they_should(rng):
    """Coverage of the success interval at 90 %, over many samples of known rates."""
    tpr, tnr, missed = 0.8, 0.55, 0
    for _ in range(400):
        member = rng.random(120) < 0.5
        called = rng.random(120) < np.where(member, tpr, 1 - tnr)
        e = rates.success(Counts.of(called, member), 0.9)
        missed += not e.low <= (tpr + tnr) / 2 <= e.high
    assert missed <= 40 + 3 * 6  # conservative: far fewer are expected


def test_f1_of_a_fair_coin_is_the_harmonic_mean():
    c = Counts(found=30, members=40, cleared=36, others=40)
    expected = 2 * 30 / (2 * 30 + 4 + 10)
    assert rates.f1(c, 0.95).value == pytest.approx(expected)
    assert isinstance(rates.success(Counts(0, 0, 3, 4), 0.95), Underpowered)


def test_the_smallest_success_that_would_be_seen_is_just_seen():
    smallest = rates.smallest_success(400, 0.95)
    at = round(smallest * 400)
    assert rates.success(Counts(100, 200, at - 100, 200), 0.95).low > 0.5
    assert rates.success(Counts(100, 200, at - 101, 200), 0.95).low <= 0.5
    assert rates.smallest_success(5, 0.95) == math.inf


# -- the level of the verdict ---------------------------------------------------------------------

GAMES = 400


def _played(rng, effect):
    """Fair coins and scores of 400 games; the cut at 0 has success Phi(effect / 2)."""
    coins = rng.random(GAMES) < 0.5
    return rng.normal(size=GAMES) + effect * (coins - 0.5), coins


@pytest.mark.parametrize("success", [0.5, 0.55, 0.7, 0.9])
def test_the_interval_of_success_covers_as_stated_and_hardly_more(success):
    right = np.arange(GAMES + 1)
    covered = [
        (e := rates.success(Counts(k - k // 2, 200, k // 2, 200), 0.95)).low <= success <= e.high
        for k in right
    ]
    coverage = float(scipy_stats.binom.pmf(right, GAMES, success) @ np.array(covered))
    assert 0.95 <= coverage <= 0.97


def test_null_alarms_and_power_are_those_of_one_exact_test():
    """At 0.55 the exact binomial test finds 48 %; two readings in one test find no fewer."""
    rng = np.random.default_rng(0)
    repeats, alarms = 600, {}
    for success in (0.5, 0.55):
        effect = 2 * float(scipy_stats.norm.ppf(success))
        found = [
            rates.readings_test(*_played(rng, effect), 0.0, 0.95, rng).test.significant
            for _ in range(repeats)
        ]
        alarms[success] = sum(found)
    assert scipy_stats.binomtest(alarms[0.5], repeats, 0.025, alternative="greater").pvalue > 0.001
    exact = float(power.games_power(0.55, GAMES))
    assert exact == pytest.approx(0.48, abs=0.02)
    assert alarms[0.55] > (exact - 0.05) * repeats


def test_readings_and_single_clients_share_one_error():
    """Null: any reading or any of eight clients alarms in at most 2.5 %; power: one client does."""
    rng = np.random.default_rng(5)
    games, repeats, alarms, named = 200, 400, 0, 0

    def clients(share):
        right = rng.binomial(games // 2, [share, *[0.5] * 7], size=(2, 8)).T
        return {f"c{i}": Counts(int(a), 100, int(b), 100) for i, (a, b) in enumerate(right)}

    for _ in range(repeats):
        played = (part[:60] for part in _played(rng, 0.0))
        found = rates.readings_test(*played, 0.0, 0.95, rng, clients(0.5))
        alarms += found.test.significant or min(found.clients.values()) <= found.test.level
    assert scipy_stats.binomtest(alarms, repeats, 0.025, alternative="greater").pvalue > 0.001
    assert alarms > 2  # not far below the level either
    for _ in range(10):
        found = rates.readings_test(*_played(rng, 0.0), 0.0, 0.95, rng, clients(0.7))
        named += found.clients["c0"] <= found.test.level
    assert named >= 9


def test_what_the_test_would_see_is_where_it_turns():
    """Calls alone: the smallest success it would see is that of the exact binomial test."""
    rng = np.random.default_rng(1)
    coins = rng.random(GAMES) < 0.5
    called = rng.random(GAMES) < 0.5
    seen = rates.readings_test(called.astype(float), coins, 0.5, 0.95, rng).detectable
    assert seen == pytest.approx(rates.smallest_success(GAMES, 0.95), abs=0.01)


def test_an_auc_above_chance_is_not_called_chance():
    """A cut that fits badly hides in the success rate what the AUC shows: the AUC decides."""
    rng = np.random.default_rng(3)
    values, coins = _played(rng, 0.6)
    test = rates.readings_test(values, coins, 1.5, 0.95, rng).test
    assert test.decided == "auc"
    assert test.significant


def test_trials_that_differ_widen_the_interval(rng):
    """Games of a trial share data: half of the trials lost, half won is far from 1,000 games."""
    trial = np.repeat(np.arange(10), 100)
    member = rng.random(1000) < 0.5
    values = np.where(trial % 2 == 0, member, rng.random(1000) < 0.5).astype(float)
    clustered = rates.from_trials(values, member, trial, 0.5, 0.95, rng)["success"]
    alone = rates.from_independent_games(values, member, 0.5, 0.95)["success"]
    assert isinstance(clustered, Estimate)
    assert clustered.high - clustered.low > 1.5 * (alone.high - alone.low)


def test_planned_games_leave_half_of_the_error_to_single_clients(plain):
    (before, *_) = ActiveMembership.samples_before(Aim(effect=0.1))
    assert before.needed == power.games_for_success(0.6, 0.9, 0.975)
    (own, *_) = ActiveMembership.samples(
        plain.audit(client_games=20), Recorded(rounds=1), Aim(effect=0.1)
    )
    assert own.needed == before.needed
    (alone, *_) = ActiveMembership.samples(
        plain.audit(client_games=0), Recorded(rounds=1), Aim(effect=0.1)
    )
    assert alone.needed == power.games_for_success(0.6, 0.9, 0.95)
