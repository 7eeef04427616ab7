"""The audit on whole federations: naive, null, power, monotone, vantage, contracts, bad input."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Candidates, Knowledge, Noise
from fedaudit.audits.records.seen import sent_models
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.audits.two_stage_membership.attack import linked_rows
from fedaudit.audits.two_stage_membership.facts import CHECKED as BY_UPDATE
from fedaudit.audits.two_stage_membership.scores import statistics_of
from fedaudit.errors import ConfigError, NotApplicable, NotObservable
from fedaudit.knowledge import Records
from fedaudit.layout import Layout
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult
from fedaudit.setup.prepare import build
from fedaudit.trace import ANONYMOUS, SERVER, MemoryRecorder, MemoryTruth, Recorder, Trace

FEW = {"checked_rounds": 0, "records": 24}
CHECKED = {"checked_rounds": 1, "checked_records": 2}
VAE = {
    "task": {"kind": "vae", "hidden": 64, "latent": 4, "activation": "tanh"},
    "training": {"optimizer": "adam", "learning_rate": 0.003, "epochs": 15, "batch_size": 16},
    "federation": {"clients": 6, "rounds": 2},
}


def some_updates(rounds=3, clients=4, width=43, size=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return [size * rng.normal(size=(clients, width)).astype(np.float32) for _ in range(rounds)]


# -- naive ----------------------------------------------------------------------------------------


def test_a_round_equals_a_loop_over_clients_and_records(by_hand):
    """Every array of a survey, from models formed one after the other."""
    updates, weights = some_updates(), np.array([1.0, 2.0, 3.0, 4.0])
    hand = by_hand(updates, weights=weights)
    _, guess = hand.attack(references=3)
    task = hand.task

    def score(model, pool, i):
        p = task.named(torch.from_numpy(model.astype(np.float32)))
        with torch.no_grad():
            return float(-task.losses(p, pool.x[i : i + 1], pool.y[i : i + 1], None))

    def odds(value):
        return value - np.log(-np.expm1(value))

    model = task.initial().double().numpy()
    for survey, rows in zip(guess.rounds, updates, strict=True):
        u = (weights / weights.sum())[:, None] * rows.astype(np.float64)
        after = model + u.sum(0)
        for k, party in enumerate(guess.parties):
            pool = hand.pools[party]
            for i in (0, 5, 11):
                now, then = score(after, pool, i), score(model, pool, i)
                assert survey.aggregate[k, i] == pytest.approx(now - then, abs=1e-5)
                without = score(after - u[k], pool, i)
                assert survey.own[k, i] == pytest.approx(now - without, abs=1e-5)
                alone = score(model + u[k], pool, i) - then
                assert survey.isolated[k, i] == pytest.approx(alone, abs=1e-5)
                own = odds(score(model + rows[k], pool, i))
                assert survey.local[k, i] == pytest.approx(own, abs=1e-3)
                others = [odds(score(model + rows[j], pool, i)) for j in range(4) if j != k]
                assert survey.reference[k, i] == pytest.approx(np.mean(others), abs=1e-3)
                assert survey.spread[k, i] == pytest.approx(np.std(others, ddof=1), abs=1e-3)
        model = after
    for k, party in enumerate(guess.parties):
        assert guess.final[k, 3] == pytest.approx(score(model, hand.pools[party], 3), abs=1e-5)


def test_anonymous_rows_equal_a_loop_too(by_hand):
    updates = some_updates(rounds=2)
    hand = by_hand(updates, senders=[ANONYMOUS] * 4)
    _, guess = hand.attack()
    model, survey = hand.task.initial().numpy(), guess.rounds[0]
    assert survey.seen == "anonymous"
    after = model + updates[0].mean(0)
    for row in range(4):
        for p, party in enumerate(guess.parties):
            pool = hand.pools[party]
            scores = []
            for m in (after, after - updates[0][row] / 4):
                named = hand.task.named(torch.from_numpy(m))
                with torch.no_grad():
                    scores.append(-hand.task.losses(named, pool.x, pool.y, None).numpy())
            np.testing.assert_allclose(survey.by_row[row, p], scores[0] - scores[1], atol=1e-5)


@pytest.mark.parametrize("clients", [2, 3, 9])
def test_every_pool_meets_as_many_strangers(by_hand, clients):
    hand = by_hand(some_updates(rounds=1, clients=clients))
    _, guess = hand.attack(references=4)
    survey = guess.rounds[0]
    assert np.isfinite(survey.reference).all()
    if clients == 2:
        assert (survey.spread == 0).all()
    else:
        assert (survey.spread > 0).all()


def test_a_server_with_a_rate_and_momentum(by_hand):
    """The first round, without momentum, shows the rate of all rounds."""
    updates = some_updates(rounds=4)
    hand = by_hand(updates, rate=0.5, momentum=0.9)
    _, guess = hand.attack(noise=Noise(aggregate=0.01, own={"client-01": 0.004}))
    for survey, rows in zip(guess.rounds, updates, strict=True):
        assert survey.scale == pytest.approx(0.5, rel=1e-4)
        sizes = 0.5 * np.linalg.norm(rows / 4, axis=1)
        np.testing.assert_allclose(survey.stage_one.own, sizes, rtol=1e-4)
        # noise passes through the same step
        np.testing.assert_allclose(np.delete(survey.stage_one.snr - sizes / 0.005, 1), 0, atol=0.1)
        inside = np.sqrt(sizes[1] ** 2 - 43 * 0.002**2)
        assert survey.stage_one.snr[1] == pytest.approx(inside / 0.005, rel=1e-3)
    assert guess.rounds[0].residual < 1e-3
    assert guess.rounds[-1].residual > 0.1


def test_gradients_become_models_by_the_servers_step(by_hand):
    updates = some_updates()
    _, steps = by_hand(updates).attack()
    _, gradients = by_hand(updates, kind="gradient").attack()
    for a, b in zip(steps.rounds, gradients.rounds, strict=True):
        assert b.scale == pytest.approx(0.1, rel=1e-3)
        for name in ("own", "isolated", "local", "reference", "spread"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=2e-3)


def test_tensors_in_another_order_are_put_in_place(by_hand):
    """Other software orders tensors differently: names decide, not positions."""
    updates = some_updates()
    hand = by_hand(updates)
    own = hand.task.layout.entries
    shuffled = Layout.of([(own[i].name, own[i].shape) for i in (2, 0, 3, 1)])
    other = by_hand(updates, layout=shuffled, pools=hand.pools)
    _, a = hand.attack()
    _, b = other.but(members=hand.members).attack()
    np.testing.assert_allclose(a.final, b.final, atol=1e-6)
    for one, two in zip(a.rounds, b.rounds, strict=True):
        for name in ("aggregate", "own", "isolated", "local", "reference", "spread"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-4)


# -- what was sent, and who took part -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "model"])
def test_models_that_differ_by_client_are_each_ones_own(by_hand, kind):
    """The attack scores the model that a client trained, not the first client's model plus its
    update."""
    updates = some_updates(rounds=2)
    planted = some_updates(rounds=2, size=1.0, seed=9)
    hand = by_hand(updates, planted=planted, kind=kind)
    _, guess = hand.attack(references=3)
    model, task = hand.task.initial().numpy(), hand.task
    for survey, rows, apart in zip(guess.rounds, updates, planted, strict=True):
        assert survey.personal
        assert survey.stage_one is None
        for k, party in enumerate(guess.parties):
            pool = hand.pools[party]
            scores = []
            for j in range(4):
                p = task.named(torch.from_numpy((model + apart[j] + rows[j]).astype(np.float32)))
                with torch.no_grad():
                    value = -task.losses(p, pool.x, pool.y, None).double().numpy()
                scores.append(value - np.log(-np.expm1(value)))
            np.testing.assert_allclose(survey.local[k], scores[k], atol=2e-3)
            others = np.delete(scores, k, axis=0).mean(axis=0)
            np.testing.assert_allclose(survey.reference[k], others, atol=2e-3)
        model = model + rows.mean(0)
    result = hand.audit()
    assert any("sent different models in 2 rounds (1, 2)" in n for n in result.notes)
    assert "own model against other clients'" in result.source
    assert not {"ts_mia", "sur"} & {*result.estimates}
    assert not any("moved by" in name for name in result.estimates)
    assert AuditResult.from_json(result.to_json()) == result


def test_one_round_of_planted_models_leaves_the_others_as_they_are(by_hand):
    updates = some_updates(rounds=3)
    planted = [np.zeros((4, 43), np.float32) for _ in range(3)]
    planted[1][2] = 0.5
    result = by_hand(updates, planted=planted).audit()
    plain = by_hand(updates).audit()
    assert any("different models in round 2:" in n for n in result.notes)
    for which in ("risk by round", "energy by round"):
        assert result.curves[which]["round"] == (1, 3)
    assert plain.curves["risk by round"]["round"] == (1, 2, 3)


def test_planted_models_behind_a_shuffler_or_a_sum_are_not_guessed_at(by_hand):
    planted = some_updates(size=1.0, seed=9)
    for hidden in ({"senders": [ANONYMOUS] * 4}, {"kind": "sum"}, {"kind": "gradient"}):
        with pytest.raises(NotApplicable, match="different models"):
            by_hand(some_updates(), planted=planted, **hidden).audit()


@pytest.mark.parametrize("known", [0, 1])
def test_a_round_without_asked_about_senders_takes_nothing_from_the_others(by_hand, known):
    """Clients 4 and 5 have no records; round 2 has only them (or one more)."""
    hand = by_hand(some_updates(clients=6), absent={2: range(known, 4)})
    for name in ("client-04", "client-05"):
        del hand.pools[name]
        del hand.members[name]
    result = hand.audit()
    assert "own model against other clients'" in result.source
    assert {"ts_mia", "sur"} <= {*result.estimates}
    assert result.curves["risk by round"]["round"] == (1, 3)
    assert any(n.startswith("round 2 was left out: fewer than two senders") for n in result.notes)
    assert not any("not observable" in n for n in result.notes)


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_final_model_of_an_unreleased_run_is_what_the_last_round_made(by_hand, rounds):
    updates = some_updates(rounds=rounds)
    _, shown = by_hand(updates).attack()
    _, hidden = by_hand(updates, released=False).attack()
    np.testing.assert_allclose(hidden.final, shown.final, atol=1e-5)
    # behind a sum the last round's result is unknown: use the model before it, with a note
    _, before = by_hand(some_updates(), kind="sum", released=False).attack()
    assert any("the final model is the one sent in round 3" in n for n in before.notes)


# -- null -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", [{}, {"shuffle": {}}, {"secure_sum": {}}])
def test_records_that_nobody_trained_on_are_not_told_apart(play, protection):
    """ "Members" that nobody trained on: exchangeable with the others for any training."""
    played = play(protections=protection)
    test = played.records.others
    order = np.random.default_rng(3).permutation(len(test))
    fake = np.array_split(order[: len(test) // 2], 6)
    own = {p: test.take(rows) for p, rows in zip(played.records.own, fake, strict=True)}
    records = Records(played.records.task, own, test.take(order[len(test) // 2 :]))
    result = replace(played, records=records).audit(**FEW)
    e = result.estimates["membership_auc"]
    assert e.low <= 0.5 <= e.high
    assert judge(result)[-1].verdict == "no_evidence"
    assert result.detectable > 0.5


# -- power ----------------------------------------------------------------------------------------


def test_an_overfitted_classifier_leaks_and_rounds_add_up(play):
    result = play().audit()
    auc = result.estimates["membership_auc"]
    assert auc.low > 0.55
    finding = judge(result)[-1]
    assert finding.verdict == "leak"
    assert finding.measure == "membership_auc"
    # all rounds beat the last one, and both what a server behind a secure sum could do
    last = result.estimates["auc (own_model_last_round)"]
    aggregate = result.estimates["auc (model_change)"]
    assert auc.value > last.value > aggregate.value
    # TS-MIA alone says little: it is nearly as high for records that nobody trained on
    risk = result.estimates["ts_mia"]
    assert risk.value > 0.95
    assert risk.baseline > 0.6
    assert set(result.curves) >= {"ROC", "risk by round", "survival", "bound check"}


def test_an_overfitted_autoencoder_leaks(play):
    result = play(**VAE).audit(noise_draws=2, **CHECKED)
    assert result.estimates["membership_auc"].low > 0.55
    assert judge(result)[-1].verdict == "leak"
    assert all(f.verdict != "disagreement" for f in judge(result))


def test_paths_of_anonymous_rows_are_found_by_linkage_and_marked_so(play):
    played = play(protections={"shuffle": {}})
    _, guess, _ = played.survey(checked_rounds=1, checked_clients=6, checked_records=3)
    (checked,) = [r for r in guess.rounds if r.segments]
    assert checked.paths_linked
    linked = linked_rows(checked, guess.present)
    lengths = {p: checked.stage_one.own[linked[i]] for i, p in enumerate(guess.parties)}
    for party, segment in checked.segments.items():
        assert segment.norm == pytest.approx(lengths[party], rel=1e-4)
    result = played.audit(checked_rounds=1, checked_clients=6, checked_records=3)
    assert set(result.curves[BY_UPDATE]["found by linkage"]) == {1.0}
    assert result.bounds["j_beyond_theorem_1"].kind == "upper"
    assert "found by linkage" in result.estimates["j_beyond_theorem_1"].method
    assert any("6 paths found by linkage" in n for n in result.notes)
    named = play().audit(checked_rounds=1, checked_clients=6, checked_records=3)
    assert set(named.curves[BY_UPDATE]["found by linkage"]) == {0.0}
    assert not any("linkage" in n for n in named.notes)


ADAPTERS = {
    "data": {"name": "docs"},
    "task": {"kind": "lora", "rank": 2, "width": 64, "depth": 2, "length": 12},
    "federation": {"clients": 3, "rounds": 1},
    "training": {"optimizer": "adam", "learning_rate": 0.01, "steps": 2, "batch_size": 4},
}


@pytest.mark.parametrize("protection", [{}, {"shuffle": {}}])
def test_adapters_of_a_language_model_have_bounds_of_stage_two(play, protection):
    result = play(**ADAPTERS, protections=protection).audit(
        records=4, checked_rounds=1, checked_clients=2, checked_records=2
    )
    assert {"j_beyond_theorem_1", "j_beyond_lemma_7"} <= set(result.bounds)
    assert not any("no derivatives" in n or "not applicable" in n for n in result.notes)


def test_shuffling_does_not_hide_what_candidates_give_away(play):
    """Candidates link rows to clients; the attack then treats rows as named."""
    named, hidden = play().audit(**FEW), play(protections={"shuffle": {}}).audit(**FEW)
    linked = hidden.estimates["rows_linked"]
    assert linked.value > 0.8
    assert linked.baseline == pytest.approx(1 / 6)
    assert hidden.estimates["membership_auc"].value == pytest.approx(
        named.estimates["membership_auc"].value, abs=0.05
    )
    assert any("senders are hidden" in n for n in hidden.notes)


# -- monotone -------------------------------------------------------------------------------------


def test_more_noise_never_reads_as_more_leak(play):
    """DP-SGD at the clients: enough noise hides a leak that is found without noise."""
    values, powers = [], []
    for z in (0.1, 3.0, 30.0):
        one = {"epochs": 5, "learning_rate": 0.3, "batch_size": 16}
        noisy = {"dp_sgd": {"noise_multiplier": z}}
        result = play(protections=noisy, training=one).audit(**FEW, threshold="noise")
        values.append(result.estimates["membership_auc"].value)
        name = "update_detection_power (at 5 %)"
        found = result.estimates.get(name)
        # no power is stated if noise hides the length of updates
        powers.append(0.05 if found is None else found.value)
    assert all(a >= b - 0.06 for a, b in itertools.pairwise(values))
    assert values[0] > 0.55
    assert values[-1] < 0.58
    assert powers[0] > 0.99
    assert all(a >= b - 0.05 for a, b in itertools.pairwise(powers))


# -- vantage --------------------------------------------------------------------------------------


def test_behind_a_secure_sum_only_the_aggregate_can_be_attacked(play):
    result = play(protections={"secure_sum": {}}).audit(**FEW)
    assert result.headline == "membership_auc"
    assert "what the model moved by" in result.source
    assert not any(name.startswith(("ts_mia", "sur", "stage")) for name in result.estimates)
    assert any("not observable" in n for n in result.notes)
    named = play().audit(**FEW)
    # the server computes the same as from the plain aggregate
    assert result.estimates["membership_auc"].value == pytest.approx(
        named.estimates["auc (model_change)"].value, abs=1e-3
    )


@pytest.mark.parametrize("vantage", ["client-00", "network", "public"])
def test_narrower_views_do_not_hold_it(play, vantage):
    with pytest.raises((NotApplicable, NotObservable)):
        play().audit(vantage=vantage, **FEW)


def test_gossip_has_no_server_to_look_from(play):
    gossip = {"clients": 6, "rounds": 2, "aggregation": "gossip"}
    played = play(federation=gossip, topology={"kind": "ring"}, training={"epochs": 1})
    with pytest.raises(NotApplicable, match="no model that was sent"):
        played.audit(vantage="wiretap", **FEW)


def test_the_root_of_a_hierarchy_sees_regions_and_attacks_the_aggregate(play):
    tree = {"kind": "hierarchical", "sizes": [3, 3]}
    federation = {"clients": 6, "rounds": 2, "aggregation": "hierarchical"}
    played = play(federation=federation, topology=tree, training={"epochs": 2})
    result = played.audit(**FEW)
    assert "what the model moved by" in result.source
    assert any("not observable" in n for n in result.notes)


def test_partial_participation_leaves_the_absent_out(play):
    part = {"clients": 8, "rounds": 3, "participation": 0.5}
    result = play(federation=part).audit(**FEW)
    assert len(result.per_client) == 8
    assert result.curves["risk by round"]["round"] == (1, 2, 3)


# -- contracts ------------------------------------------------------------------------------------


def test_the_view_is_left_unchanged_and_the_same_seed_gives_the_same(play):
    played = play(**VAE)
    view = played.trace.seen_by(SERVER)
    before = [view.updates(n).rows.copy() for n in view.rounds]
    models = sent_models(view)
    setting = {"records": 8, "noise_draws": 2, **CHECKED}
    one, two = played.audit(seed=4, **setting), played.audit(seed=4, **setting)
    assert one == two
    for number, rows in zip(view.rounds, before, strict=True):
        np.testing.assert_array_equal(view.updates(number).rows, rows)
    for number, model in sent_models(view).items():
        np.testing.assert_array_equal(model, models[number])
    assert AuditResult.from_json(one.to_json()) == one


def test_renaming_clients_changes_only_labels(by_hand):
    updates = some_updates(clients=5)
    hand = by_hand(updates)
    names = [f"site-{c}" for c in "abcde"]
    old = sorted(hand.pools)
    renamed = by_hand(
        updates, names=names, pools=dict(zip(names, (hand.pools[n] for n in old), strict=True))
    )
    renamed = renamed.but(members=dict(zip(names, (hand.members[n] for n in old), strict=True)))
    a, b = hand.audit(seed=2, **CHECKED), renamed.audit(seed=2, **CHECKED)
    assert a.estimates == b.estimates
    assert list(b.per_client) == names
    assert list(a.per_client.values()) == list(b.per_client.values())


def test_no_answer_lies_in_what_the_adversary_brings():
    assert {f.name for f in fields(Candidates)} == {"x", "y"}
    assert "member" not in " ".join(f.name for f in fields(Knowledge))


def test_without_truth_nothing_is_scored(by_hand):
    audit, guess = by_hand(some_updates()).attack()
    result = audit.score(guess, None, np.random.default_rng(0))
    assert result.need.code == "no_truth"
    assert not result.estimates
    # the blind result lists the likeliest members of every client
    strongest = next(iter(statistics_of(guess).values()))
    assert list(result.per_client) == list(guess.parties)
    for p, row in enumerate(result.per_client.values()):
        said = [s.split(":") for s in row["likeliest_members"].split()]
        values = [float(v) for _, v in said]
        assert values == sorted(values, reverse=True)
        usable = guess.present[p] & np.isfinite(strongest[p])
        assert row["candidates"] == usable.sum()
        assert int(said[0][0]) - 1 == int(np.argmax(np.where(usable, strongest[p], -np.inf)))


def test_settings_are_checked():
    for wrong in (
        {"records": 1}, {"threshold": 0.0}, {"sample": 0}, {"noise_draws": 0}, {"references": 1},
        {"false_positive_rate": 1.0}, {"checked_rounds": -1}, {"checked_records": 1},
        {"checked_clients": 0}, {"confidence": 1.0},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TwoStageMembership(**wrong)


def test_the_threshold_can_be_derived_in_a_config():
    from fedaudit.settings import check

    assert check(TwoStageMembership, {"threshold": "noise"}, "audits.x").threshold == "noise"
    with pytest.raises(ConfigError, match="threshold"):
        check(TwoStageMembership, {"threshold": "loud"}, "audits.x")


# -- bad input ------------------------------------------------------------------------------------


def test_a_model_that_does_not_move(by_hand):
    """dW = 0 in one round of two: SUR is undefined there, and a note says so."""
    rng = np.random.default_rng(0)
    up = 0.1 * rng.normal(size=(2, 43)).astype(np.float32)
    still = np.concatenate([up, -up])
    result = by_hand([still, some_updates(clients=4)[0]]).audit()
    assert any("4 updates are in rounds without movement" in n for n in result.notes)
    assert result.curves["risk by round"]["round"] == (2,)
    assert result.estimates["ts_mia"].n == 4
    never = by_hand([still, still]).audit()
    assert "ts_mia" not in never.estimates
    assert AuditResult.from_json(never.to_json()) == never


def test_an_update_of_zero(by_hand):
    updates = some_updates()
    for rows in updates:
        rows[1] = 0
    hand = by_hand(updates)
    _, guess = hand.attack()
    assert all((survey.own[1] == 0).all() for survey in guess.rounds)
    result = hand.audit(**CHECKED)
    assert any("3 updates are zero" in n for n in result.notes)
    row = result.per_client["client-01"]
    assert (row["SUR"], row["J"], row["SNR"]) == (0.0, 0.0, 0.0)


def test_nobody_moves_at_all(by_hand):
    result = by_hand([np.zeros((3, 43), np.float32)] * 2).audit(**CHECKED)
    assert judge(result)[-1].verdict == "nothing_to_say"
    assert result.estimates["membership_auc"].value == pytest.approx(0.5)


def test_a_single_client_has_no_background(by_hand):
    with pytest.raises(NotApplicable, match="no background") as error:
        by_hand(some_updates(clients=1)).audit()
    assert "two clients" in error.value.remedy


def test_a_client_without_records_is_background_only(by_hand):
    hand = by_hand(some_updates(clients=5))
    del hand.pools["client-03"]
    del hand.members["client-03"]
    result = hand.audit()
    assert list(result.per_client) == ["client-00", "client-01", "client-02", "client-04"]
    assert result.estimates["sur"].n == 4
    for name in ("client-00", "client-01", "client-02"):
        del hand.pools[name]
    with pytest.raises(NotApplicable, match="fewer than two senders"):
        hand.attack()


def test_a_round_that_cannot_be_used_is_left_out_and_the_others_are_not(by_hand):
    """The last round of an unfinished recording behind a secure sum has no model after it."""
    hand = by_hand(some_updates(rounds=3), kind="sum", released=False)
    result = hand.audit()
    assert any("round 3 was left out" in n for n in result.notes)
    assert result.estimates["membership_auc"].n == 4 * 12
    one = by_hand(some_updates(rounds=1), kind="sum", released=False)
    with pytest.raises(NotApplicable, match="neither updates nor"):
        one.audit()


def test_an_unreleased_model_is_what_the_updates_add_up_to(by_hand):
    updates = some_updates()
    a = by_hand(updates).audit()
    b = by_hand(updates, released=False).audit()
    assert a.estimates["j_on_members"].value == pytest.approx(
        b.estimates["j_on_members"].value, abs=1e-4
    )


def test_uploads_of_models_are_not_taken_for_downlinks(by_hand):
    updates = some_updates()
    sent = by_hand(updates, kind="model").audit()
    same = by_hand(updates).audit()
    assert sent.estimates["j_on_members"].value == pytest.approx(
        same.estimates["j_on_members"].value, abs=1e-4
    )
    with pytest.raises(NotApplicable, match="no model that was sent"):
        by_hand(updates, kind="model", downlinks=False).audit()


def test_a_trace_without_rounds(by_hand):
    hand = by_hand(some_updates())
    empty = MemoryRecorder(layouts={"model": hand.task.layout}, federation={"parties": [SERVER]})
    with pytest.raises(NotApplicable, match="no rounds"):
        hand.but(trace=empty.trace()).attack()


def test_without_records_or_model_there_is_nothing_to_ask(by_hand):
    hand = by_hand(some_updates())
    view, rng = hand.trace.seen_by(SERVER), np.random.default_rng(0)
    with pytest.raises(NotApplicable) as error:
        TwoStageMembership().attack(view, Knowledge(), rng)
    assert error.value.code == "no_records"
    with pytest.raises(NotApplicable) as error:
        TwoStageMembership().attack(view, Knowledge(task=hand.task), rng)
    assert error.value.code == "no_records"
    assert error.value.got == "no records"


def test_a_model_that_does_not_fit_is_named_with_shapes(by_hand, net, plain_task):
    hand = by_hand(some_updates())
    with pytest.raises(NotApplicable, match="do not fit") as error:
        hand.attack(task=plain_task(net(hidden=6)))
    assert "0.weight of shape (6, 4)" in error.value.expected
    assert "(5, 4) (the trace)" in error.value.got
    with pytest.raises(NotApplicable, match="do not fit") as error:
        hand.attack(task=plain_task(nn.Sequential(*net(), nn.Linear(3, 3))))
    assert "absent (the trace); 2 tensors differ" in error.value.got


def test_updates_that_are_not_numbers(by_hand):
    updates = some_updates()
    updates[1][2, 7] = np.nan
    with pytest.raises(NotApplicable, match="not a number"):
        by_hand(updates).audit()


# -- scores and models of one's own ---------------------------------------------------------------


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "two_stage_scores.py").write_text(
        "import torch\n"
        "def margin(task, p, x, y, noise):\n"
        "    out = task.output(p, x, y, noise)\n"
        "    return out.gather(1, y[:, None])[:, 0] - out.logsumexp(1)\n"
        "def right(task, p, x, y, noise):\n"
        "    return (task.output(p, x, y, noise).argmax(1) == y).float()\n"
        "def nothing(task, p, x, y, noise):\n"
        "    return torch.full((len(x),), torch.nan)\n"
        "def broken(task, p, x, y, z):\n"
        "    return x / 0 + undefined\n"
        "def half(task, p, x, y, noise):\n"
        "    scale = torch.full((3, 3), 0.5)\n"
        "    return task.output(p, x, y, noise).matmul(scale)[:, 0]\n"
        "def rough(task, p, x, y, noise):\n"
        "    return margin(task, p, x, y, noise).neg().clamp_min(0).sub(2).relu().sqrt()\n"
        "numbers = 3\n"
    )
    return "two_stage_scores"


def test_a_score_of_ones_own(by_hand, own_code):
    hand = by_hand(some_updates())
    result = hand.audit(score_by=f"{own_code}:margin", **CHECKED)
    plain = hand.audit()
    # the score is the log-likelihood: the same increments, but not known to be smooth
    assert result.estimates["j_on_members"].value == pytest.approx(
        plain.estimates["j_on_members"].value, abs=1e-5
    )
    assert not result.bounds
    assert any(f"{own_code}:margin" in n for n in result.notes)
    assert "gamma" in result.per_client["client-00"]


def test_a_score_without_derivatives_still_serves_the_attack(by_hand, own_code):
    result = by_hand(some_updates()).audit(score_by=f"{own_code}:right", **CHECKED)
    assert "membership_auc" in result.estimates
    assert any(n.startswith("no derivatives along an update") for n in result.notes)
    assert "gamma" not in result.per_client["client-00"]


@pytest.mark.parametrize("name", ["half", "rough"])
def test_a_score_that_fails_along_the_segment_only_still_serves_the_attack(by_hand, own_code, name):
    """A constant in single precision, or a slope that is infinite at some point."""
    result = by_hand(some_updates()).audit(score_by=f"{own_code}:{name}", **CHECKED)
    assert "membership_auc" in result.estimates
    assert any(n.startswith("no derivatives along an update: ") for n in result.notes)


def test_all_clients_have_their_turn_at_a_close_look(by_hand):
    hand = by_hand(some_updates(rounds=4, clients=7))
    for each, seen in ((2, 7), (3, 7), (1, 4)):
        setting = {"checked_rounds": 4, "checked_records": 2, "checked_clients": each}
        _, guess = hand.attack(**setting)
        assert [len(s.segments) for s in guess.rounds] == [each] * 4
        assert len({p for s in guess.rounds for p in s.segments}) == seen


def test_a_score_that_is_no_number_or_no_function(by_hand, own_code):
    hand = by_hand(some_updates())
    with pytest.raises(NotApplicable, match="not a number"):
        hand.attack(score_by=f"{own_code}:nothing")
    with pytest.raises(ConfigError, match="not a function"):
        hand.attack(score_by=f"{own_code}:numbers")
    with pytest.raises(ConfigError, match=r"NameError: name 'undefined' .*two_stage_scores.py:"):
        hand.attack(score_by=f"{own_code}:broken")


def test_statistics_that_travel_have_no_derivative_and_the_attack_goes_on(by_hand, plain_task):
    torch.manual_seed(0)
    task = plain_task(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))
    width = task.layout.width
    result = by_hand(some_updates(width=width, size=0.01), task=task).audit(**CHECKED)
    assert "membership_auc" in result.estimates
    assert any("native_batch_norm" in n for n in result.notes)


def test_relu_has_no_smoothness_and_says_so(play):
    relu = {"kind": "mlp", "hidden": [8]}
    result = play(task=relu, training={"epochs": 1}).audit(records=8, **CHECKED)
    assert not result.bounds
    assert any("smoothness is not applicable" in n and "ReLU" in n for n in result.notes)
    assert "increments_beyond_lemma_6 (the published L)" in result.estimates


class Own(nn.Module):
    """A user module: its name does not say what `forward` does."""

    def __init__(self, between=torch.tanh, layer=None):
        super().__init__()
        self.one, self.two, self.between = nn.Linear(4, 5), nn.Linear(5, 3), between
        self.layer = layer

    def forward(self, x):
        x = self.between(self.one(x))
        return self.two(x if self.layer is None else self.layer(x))


@pytest.mark.parametrize("said", [False, True])
def test_a_module_of_ones_own_has_bounds_where_it_is_said_to_be_smooth(by_hand, plain_task, said):
    torch.manual_seed(0)
    hand = by_hand(some_updates(size=1.0), task=plain_task(Own()))
    result = hand.audit(smooth=said, **CHECKED)
    assert bool(result.bounds) == said
    rough = [n for n in result.notes if n.startswith("smoothness is not applicable")]
    assert bool(rough) != said
    if not said:
        assert "Own (set smooth = true if they have one)" in rough[0]
        return
    # the same numbers as from a Sequential of these layers, which is known to be smooth
    plain = nn.Sequential(hand.task.module.one, nn.Tanh(), hand.task.module.two)
    same = by_hand(some_updates(size=1.0), task=plain_task(plain)).audit(**CHECKED)
    name = "j_beyond_theorem_1"
    assert result.estimates[name].value == pytest.approx(same.estimates[name].value, rel=1e-6)


def test_a_relu_that_was_said_to_be_smooth_is_noticed(by_hand, plain_task):
    torch.manual_seed(0)
    setting = {"smooth": True, "checked_rounds": 3, "checked_clients": 4}
    hidden = by_hand(some_updates(size=2.0), task=plain_task(Own(torch.relu))).audit(**setting)
    assert any("slopes jump" in n for n in hidden.notes)
    torch.manual_seed(0)
    shown = by_hand(some_updates(), task=plain_task(Own(layer=nn.ReLU()))).audit(**setting)
    assert not shown.bounds
    assert any("ReLU" in n for n in shown.notes)


def test_a_score_of_ones_own_that_is_said_to_be_smooth(by_hand, own_code):
    result = by_hand(some_updates()).audit(score_by=f"{own_code}:margin", smooth=True, **CHECKED)
    assert result.bounds


def test_noise_of_unknown_size_states_no_power(by_hand):
    unknown = Noise(aggregate=0.0, rule="dp_sgd: of unknown size", complete=False)
    result = by_hand(some_updates()).audit(noise=unknown)
    assert not any(name.startswith("power") for name in result.estimates)
    assert result.per_client["client-00"]["SNR"] is None
    assert any("power of stage I is not stated" in n for n in result.notes)


def test_rounding_alone_gives_a_threshold_and_its_rule(play, tmp_path):
    """A run that was recorded in half precision: tau is the size of the rounding."""
    played = play()
    federation, facts = build(played.config)
    about = {"layouts": federation.layouts(), "federation": federation.describe()}
    federation.run(Recorder(tmp_path / "half", dtype="float16", **about), MemoryTruth(facts))
    half = replace(played, trace=Trace.open(tmp_path / "half"))
    result = half.audit(**FEW, threshold="noise")
    (tau,) = [n for n in result.notes if n.startswith("tau = ")]
    assert "quantisation: recorded in float16" in tau
    assert 0 < float(tau.split()[2]) < 0.01
    assert result.estimates["stage_1_survival"].value == 1.0
    exact = played.audit(**FEW, threshold="noise")
    assert any(n.startswith("tau = 0 (") and "no noise is known" in n for n in exact.notes)


def test_noise_takes_the_power_of_stage_one(by_hand):
    hand, name = by_hand(some_updates()), "update_detection_power (at 5 %)"
    powers = [
        hand.audit(noise=Noise(aggregate=s, rule="known")).estimates[name].value
        for s in (1e-4, 0.05, 0.2, 50.0)
    ]
    assert powers[0] > 0.999
    assert powers[-1] == pytest.approx(0.05, abs=0.01)
    assert (np.diff(powers) < 0).all()
    sure = hand.audit()
    assert sure.estimates[name].value == 1.0
    assert any("no noise is declared" in n for n in sure.notes)
