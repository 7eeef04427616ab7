"""From increments to numbers with intervals: slow twins, exact nulls, planted disagreements."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import scores, theory
from fedaudit.audits.two_stage_membership.scores import Contribution
from fedaudit.report.findings import judge, judge_all
from fedaudit.results import Estimate, Underpowered


def matched(rng, clients, classes, pairs, shift=0.0):
    """Candidates of every client and class in matched pairs; members lie higher by `shift`."""
    n = 2 * classes * pairs
    y = np.tile(np.repeat(np.arange(classes), 2 * pairs), (clients, 1))
    member = np.tile(np.tile([True] * pairs + [False] * pairs, classes), (clients, 1))
    values = rng.normal(size=(clients, n)) + shift * member
    guess = SimpleNamespace(classes=y, present=np.ones((clients, n), bool))
    return values, member, guess


# -- statistics -----------------------------------------------------------------------------------


def test_centring_against_a_loop():
    rng = np.random.default_rng(0)
    values, _, guess = matched(rng, 3, 2, 2)
    values[1] = np.nan  # did not take part
    guess.present[2, 5:] = False  # padding
    found = scores._centred(values, guess)
    assert np.isnan(found[1]).all()
    for p in (0, 2):
        for i in np.flatnonzero(guess.present[p]):
            same = guess.present[p] & (guess.classes[p] == guess.classes[p, i])
            assert found[p, i] == pytest.approx(values[p, i] - values[p, same].mean())


def test_rounds_count_alike_and_only_those_taken_part_in():
    present = np.ones((2, 3), bool)
    one = scores._standardised(np.array([[1.0, -1.0, 0.0], [3.0, -3.0, 0.0]]), present)
    assert one.std() == pytest.approx(1.0)
    away = np.array([[2.0, 2.0, 2.0], [np.nan] * 3])
    both = scores._stouffer([one, away])
    np.testing.assert_allclose(both[0], (one[0] + 2) / np.sqrt(2))
    np.testing.assert_allclose(both[1], one[1])
    np.testing.assert_allclose(scores._latest([one, away]), np.stack([away[0], one[1]]))
    assert np.isnan(scores._stouffer([np.full((1, 2), np.nan)])).all()
    still = scores._standardised(np.zeros((2, 3)), present)
    assert (still == 0).all()


def test_a_likelihood_ratio_of_two_gaussians_of_equal_spread():
    rng = np.random.default_rng(1)
    local, reference = rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    spread = np.array([[1.0, 1, 1, 1], [3.0, 3, 3, 3]])
    survey = SimpleNamespace(local=local, reference=reference, spread=spread)
    found = scores._likelihood_ratio(survey, np.ones((2, 4), bool))
    # half the weight of a spread goes to the typical one, the median 2
    scale = np.sqrt(0.5 * spread**2 + 0.5 * 4.0)
    np.testing.assert_allclose(found, (local - reference) / scale)
    still = SimpleNamespace(local=local, reference=reference, spread=0 * spread)
    np.testing.assert_allclose(
        scores._likelihood_ratio(still, np.ones((2, 4), bool)), local - reference
    )


def test_rows_are_linked_by_the_candidates_of_a_client():
    rng = np.random.default_rng(2)
    order = rng.permutation(5)
    evidence = rng.normal(size=(5, 5, 40))
    for row, party in enumerate(order):
        evidence[row, party, :20] += 1.5  # half of the candidates are members
    survey = SimpleNamespace(local_by_row=evidence)
    found = scores.linked_rows(survey, np.ones((5, 40), bool))
    np.testing.assert_array_equal(order[found], np.arange(5))
    fewer = scores.linked_rows(SimpleNamespace(local_by_row=evidence[:3]), np.ones((5, 40), bool))
    assert sorted(found for found in fewer if found >= 0) == [0, 1, 2]
    own = scores._own_row(survey, np.ones((5, 40), bool))
    assert own[:, :20].mean() > own[:, 20:].mean() + 1


# -- the area under the curve ---------------------------------------------------------------------


def test_ranks_and_rank_correlation_are_those_of_scipy():
    from scipy.stats import rankdata, spearmanr

    rng = np.random.default_rng(12)
    values = np.round(rng.normal(size=200), 1)
    np.testing.assert_array_equal(scores._midranks(values), rankdata(values))
    member = np.array([True] * 5 + [False] * 5)
    parts = [part(name, t, rng.normal(size=10), member) for name in "abcdef" for t in (1, 2)]
    table = np.round(rng.normal(size=(30, 4)), 1)
    np.testing.assert_array_equal(scores._midranks_of_columns(table), rankdata(table, axis=0))
    # two halvings each way: the mean of the correlations of the two columns
    groups = [g[..., [0, 2]] for g in scores.crossed(parts, fake_audit(), rng).values()]
    found = scores._correlation(groups, 0.95, rng)
    both = np.concatenate(groups)
    naive = [spearmanr(*both[:, s].T).statistic for s in range(2 * scores.SPLITS)]
    assert found.value == pytest.approx(float(np.mean(naive)))
    same = np.zeros((4, 2))
    assert (scores._column_ranks(same) == 0).all()


def test_the_plain_auc_counts_pairs():
    rng = np.random.default_rng(3)
    values, member = np.round(rng.normal(size=30), 1), rng.random(30) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in values[member] for b in values[~member]]
    assert scores._plain_auc(values, member) == pytest.approx(np.mean(pairs))


def test_the_permutation_error_by_permuting():
    rng = np.random.default_rng(4)
    values, member, guess = matched(rng, 2, 3, 2)
    statistic = np.round(scores._centred(values, guess), 1)  # with ties
    stated = scores.permutation_error(statistic, member, guess.present, guess.classes)
    drawn = []
    for _ in range(1500):
        labels = member.copy()
        for p in range(2):
            for c in range(3):
                at = np.flatnonzero(guess.classes[p] == c)
                labels[p, at] = rng.permutation(labels[p, at])
        drawn.append(scores._plain_auc(statistic.ravel(), labels.ravel()))
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.01)
    assert np.std(drawn) == pytest.approx(stated, rel=0.08)


@pytest.mark.parametrize(("clients", "classes", "pairs"), [(2, 16, 1), (2, 5, 3), (6, 4, 4)])
def test_exchangeable_candidates_raise_the_alarm_at_most_at_the_stated_rate(
    clients, classes, pairs
):
    """Pairs that are centred together are not independent: records alone would give 9 %."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        values, member, guess = matched(rng, clients, classes, pairs)
        statistic = scores._centred(values, guess)
        e = scores.membership_auc(statistic, member, guess.present, guess.classes, 0.95)
        alarms += e.low > 0.5
    # 2.5 % of 400 is 10; 21 or more would happen once in 700
    assert alarms <= 20


def test_a_shift_is_found_and_its_interval_covers_it():
    from scipy.special import ndtr

    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(60):
        values, member, guess = matched(rng, 8, 3, 6, shift=0.5)
        e = scores.membership_auc(values, member, guess.present, guess.classes, 0.95)
        covered += e.low <= float(ndtr(0.5 / np.sqrt(2))) <= e.high
        assert e.baseline == 0.5
        assert e.n == 8 * 36
    assert covered >= 53


def test_clients_that_differ_widen_the_interval():
    rng = np.random.default_rng(7)
    values, member, guess = matched(rng, 6, 2, 20)
    values += np.where(member, np.array([3, 3, 3, -3, -3, -2.0])[:, None], 0.0)
    e = scores.membership_auc(values, member, guess.present, guess.classes, 0.95)
    assert "over clients" in e.method
    assert e.low < 0.3
    assert e.high > 0.7


def test_one_record_of_a_kind_has_no_area():
    e = scores.membership_auc(
        np.array([[0.0, 1.0]]), np.array([[True, False]]), np.ones((1, 2), bool),
        np.zeros((1, 2), int), 0.95,
    )  # fmt: skip
    assert isinstance(e, Underpowered)


def test_rates_are_stated_only_with_enough_records():
    rng = np.random.default_rng(8)
    audit = SimpleNamespace(confidence=0.95)
    values, member, guess = matched(rng, 5, 10, 20, shift=1.0)
    found, short = scores.true_positive_rates(values, member, guess.present, audit)
    assert [*found] == ["true_positive_rate at 1 %"]
    assert found["true_positive_rate at 1 %"].value > 0.02
    assert [s.needed for s in short] == [10_000]
    few, lacking = scores.true_positive_rates(values[:1], member[:1], guess.present[:1], audit)
    assert not few
    assert [s.needed for s in lacking] == [1000, 10_000]


# -- the risk as published ------------------------------------------------------------------------


def part(
    party, number, delta, member, ratio=1.0, threshold=0.1, snr=np.inf, evidence=None, classes=None
):
    stage = SimpleNamespace(ratio=np.array([ratio]), snr=np.array([snr]))
    survey = SimpleNamespace(stage_one=stage, threshold=threshold)
    return Contribution(
        round=number,
        party=party,
        row=0,
        survey=survey,
        delta=np.asarray(delta),
        member=np.asarray(member),
        deviation=None,
        evidence=np.asarray(delta if evidence is None else evidence),
        classes=np.zeros(len(delta), int) if classes is None else classes,
    )


def fake_audit(**more):
    def power(stage):
        return theory.detection_power(stage.snr, 0.05)

    values = {"confidence": 0.95, "sample": 4, "false_positive_rate": 0.05, "power": power}
    return SimpleNamespace(**values | more)


def test_the_share_of_draws_with_positive_advantage():
    rng = np.random.default_rng(9)
    assert scores.positive_share(np.array([0.1, 2.0]), 5, rng) == 1.0
    assert scores.positive_share(np.array([-0.1, -2.0]), 5, rng) == 0.0
    # nothing moved: J is 0, which is not above 0
    assert scores.positive_share(np.zeros(4), 5, rng) == 0.0
    # one record drawn: the share of records with a positive increment
    delta = np.array([1.0] * 30 + [-3.0] * 70)
    shares = [scores.positive_share(delta, 1, rng) for _ in range(50)]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.02)


def test_risk_is_survival_times_attribution():
    rng = np.random.default_rng(10)
    member = np.array([True, True, False, False])
    up, down = [1.0, 1.0, -1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]
    parts = [
        part("a", 1, up, member),
        part("a", 2, up, member, ratio=0.05),  # does not survive
        part("b", 1, down, member),
        part("b", 2, up, member),
        part("c", 1, up, member, ratio=np.nan),  # the model did not move: undefined
    ]
    found = scores.risk(fake_audit(), parts, rng)
    assert found["ts_mia"].value == pytest.approx(2 / 4)
    assert found["ts_mia"].baseline == 0.0
    survive = found["stage I: share of updates that survive"]
    attribute = found["stage II: share of draws with J > 0, given survival"]
    assert survive.value == pytest.approx(3 / 4)
    assert attribute.value == pytest.approx(2 / 3)
    # Pr(S and A) = Pr(S) Pr(A | S)
    assert found["ts_mia"].value == pytest.approx(survive.value * attribute.value)
    expected = np.mean([theory.phi(1.0), theory.phi(1.0), theory.phi(-1.0), theory.phi(1.0)])
    assert found["J on members"].value == pytest.approx(float(expected))
    assert found["J on members"].baseline == pytest.approx(float(theory.phi(-1.0)))
    assert found["power to find an update at 5 % false positives"].value == 1.0
    assert "power" not in " ".join(scores.risk(fake_audit(), parts, rng, noise_known=False))
    assert scores.risk(fake_audit(), parts[-1:], rng) == {}


J_FORETELLS, RISK_FORETELLS = (
    f"rank correlation of {risk} with the attack's AUC" for risk in ("J", "TS-MIA")
)


def federation_of(rng, clients, rounds, pairs, leak=0.0):
    """Clients that differ in how far scores rise, records that keep their luck from round to
    round, evidence that leans on increments. `leak` is the largest shift of members."""
    member = np.arange(2 * pairs) < pairs
    classes = np.tile(np.arange(pairs) % 3, 2)
    parts = []
    for c in range(clients):
        level, shift = 0.3 * rng.normal(), leak * rng.random()
        record = rng.normal(size=2 * pairs)
        for t in range(rounds):
            delta = level + record + 0.7 * rng.normal(size=2 * pairs) + shift * member
            evidence = 0.6 * delta + 0.8 * rng.normal(size=2 * pairs)
            parts.append(part(f"{c:03d}", t, delta, member, evidence=evidence, classes=classes))
    return parts


@pytest.mark.parametrize(("clients", "rounds"), [(4, 3), (8, 1)])
def test_exchangeable_members_give_no_correlation_of_risk_and_attack(clients, rounds):
    """On the same records J and the AUC rise and fall together, whether anything leaks or not."""
    rng = np.random.default_rng(21)
    values, same, outside, count = [], [], 0, 40
    for _ in range(count):
        parts = federation_of(rng, clients, rounds, 12)
        found = scores.prediction(parts, fake_audit(), rng)[J_FORETELLS]
        values.append(found.value)
        outside += not found.low <= 0 <= found.high
        both = np.array(
            [
                (theory.phi(c.delta[c.member]).mean(), scores._plain_auc(c.delta, c.member))
                for c in parts
            ]
        )
        same += [*scores._products(*(scores._column_ranks(both[:, [i]]) for i in (0, 1)))]
    # 5 % of 40 is 2; 8 or more would happen once in 1,500
    assert outside <= 7
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(count)
    assert np.mean(same) > 5 * np.std(same) / np.sqrt(count)


def test_a_risk_that_follows_the_leak_is_found_to_predict_the_attack():
    rng = np.random.default_rng(11)
    found = [
        scores.prediction(federation_of(rng, 24, 2, 24, leak=3.0), fake_audit(), rng)
        for _ in range(6)
    ]
    for name in (J_FORETELLS, RISK_FORETELLS):
        assert sum(f[name].low > 0 for f in found) >= 5
        assert {f[name].baseline for f in found} == {0.0}
        assert {f[name].n for f in found} == {24}


def test_what_cannot_be_correlated_is_not():
    rng = np.random.default_rng(12)
    parts = federation_of(rng, 3, 2, 6)
    assert scores.prediction(parts[:4], fake_audit(), rng) == {}
    assert scores.prediction([], fake_audit(), rng) == {}
    # every draw has J > 0: TS-MIA is 1 for all, and says nothing about who is attacked
    sure = [replace(c, delta=np.abs(c.delta) + 1) for c in parts]
    assert [*scores.prediction(sure, fake_audit(), rng)] == [J_FORETELLS]
    # rows that were linked to nobody have no evidence, rounds without movement no SUR
    unlinked = [replace(c, evidence=np.full(12, np.nan)) for c in parts[:2]]
    assert scores.prediction([*unlinked, *parts[2:]], fake_audit(), rng) == {}


def test_halves_keep_pairs_of_a_class_together():
    rng = np.random.default_rng(13)
    member = np.array([True, False, True, False, True, False, True, True])
    classes = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # nobody's records of class 3 are lacking
    for _ in range(20):
        (one, other), (second, first) = scores._halved(member, classes, rng)
        assert (set(one), set(other)) == (set(first), set(second))
        assert set(one) | set(other) == set(range(6))
        assert not set(one) & set(other)
        for half in (one, other):
            inside, outside = half[member[half]], half[~member[half]]
            assert sorted(classes[inside]) == sorted(classes[outside])
    assert scores._halved(member[:2], classes[:2], rng) == []


def test_a_client_is_halved_alike_in_all_rounds():
    """Twice the same round: the same J and the same AUC, halving by halving."""
    rng = np.random.default_rng(14)
    parts = [replace(c, round=t) for c in federation_of(rng, 3, 1, 6) for t in (1, 2)]
    for table in scores.crossed(parts, fake_audit(), rng).values():
        assert table.shape == (2, 2 * scores.SPLITS, 3)
        np.testing.assert_array_equal(table[0][:, [0, 2]], table[1][:, [0, 2]])


# -- the bound, and what happens when it breaks ---------------------------------------------------


@pytest.fixture(scope="module")
def surveyed(play):
    played = play()
    audit, guess, members = played.survey(checked_rounds=2, checked_records=4, records=24)
    return audit, guess, played.truth.knowing(members)


def with_paths(guess, change):
    rounds = tuple(
        replace(r, paths={p: change(path) for p, path in r.paths.items()}) for r in guess.rounds
    )
    return replace(guess, rounds=rounds)


def scored(audit, guess, truth):
    return audit.score(guess, truth, np.random.default_rng(0))


def test_the_bounds_hold_on_a_smooth_model(surveyed):
    audit, guess, truth = surveyed
    result = scored(audit, guess, truth)
    names = {"J beyond Theorem 1", "J beyond Lemma 7", "increment beyond Lemma 6"}
    assert set(result.bounds) == names
    for name in names:
        assert result.estimates[name].high < 0
    assert [f.verdict for f in judge(result)] == ["leak"]
    assert len(guess.rounds[0].paths) == 3
    curve = result.curves["bound check"]
    assert (np.array(curve["remainder"]) <= curve["L |u|^2 / 2"]).all()
    np.testing.assert_allclose(curve["remainder"], curve["by quadrature"], atol=1e-6)
    # the curvature along u bounds it more sharply
    along = np.array(curve["sup |u' Hess u| / 2"])
    assert (along < curve["L |u|^2 / 2"]).all()
    beyond = result.estimates["increments beyond Lemma 6 with the curvature along u"]
    assert beyond.n == len(along)
    over = np.array(curve["remainder"]) > along + np.array(curve["its error"])
    assert beyond.value == pytest.approx(over.mean())


def test_the_energy_of_every_round_adds_up(surveyed):
    audit, guess, truth = surveyed
    curve = scored(audit, guess, truth).curves["energy by round"]
    assert curve["round"] == (1.0, 2.0, 3.0)
    np.testing.assert_allclose(curve["sum"], 1.0, atol=1e-6)
    three = [curve[n] for n in ("|u|^2 / |dW|^2", "|B|^2 / |dW|^2", "2 <u, B> / |dW|^2")]
    np.testing.assert_allclose(np.sum(three, axis=0), 1.0, atol=1e-6)
    own = [np.mean(r.stage_one.ratio**2) for r in guess.rounds]
    np.testing.assert_allclose(three[0], own)


def test_the_headline_is_made_of_the_rounds_that_risk_is_held_against(surveyed):
    _, guess, truth = surveyed
    rounds = scores.round_statistics(guess)
    headline = next(iter(scores.statistics_of(guess).values()))
    np.testing.assert_array_equal(scores._stouffer(rounds), headline)
    member = np.zeros_like(guess.present)
    for i, party in enumerate(guess.parties):
        member[i, : len(truth.members[party])] = truth.members[party]
    for c in scores.contributions(guess, truth, member):
        p = guess.parties.index(c.party)
        np.testing.assert_array_equal(c.evidence, rounds[c.round - 1][p][guess.present[p]])
        np.testing.assert_array_equal(c.classes, guess.classes[p][guess.present[p]])


def test_a_constant_that_is_too_small_is_the_top_finding(surveyed):
    audit, guess, truth = surveyed
    broken = with_paths(guess, lambda p: replace(p, smoothness=p.smoothness * 1e-3))
    result = scored(audit, broken, truth)
    first = judge_all([result])[0]
    assert first.verdict == "disagreement"
    assert "Hessian" in first.remedy
    verdicts = [f.verdict for f in judge(result)]
    assert verdicts.count("disagreement") >= 2
    assert verdicts[-1] == "leak"


def test_what_the_numerical_error_can_explain_is_no_disagreement(surveyed):
    audit, guess, truth = surveyed
    unsure = with_paths(
        guess, lambda p: replace(p, smoothness=p.smoothness * 1e-3, error=p.error + 10.0)
    )
    assert [f.verdict for f in judge(scored(audit, unsure, truth))] == ["leak"]


def test_the_worst_is_what_is_surely_outside(surveyed):
    """A larger excess within its error must not hide a smaller one beyond its own."""
    _, guess, _ = surveyed
    first = next(iter(guess.rounds[0].paths))
    size = np.abs(guess.rounds[0].paths[first].increment).max()

    def change(path, off, error):
        n = len(path.slope)
        return replace(
            path, increment=path.slope + off, error=np.full(n, error), smoothness=np.zeros(n)
        )

    paths = dict(guess.rounds[0].paths)
    names = list(paths)
    paths[names[0]] = change(paths[names[0]], 5.0 + size, 50.0)
    for name in names[1:]:
        paths[name] = change(paths[name], 1.0, 1e-6)
    survey = replace(guess.rounds[0], paths=paths)
    others = tuple(replace(r, paths={}) for r in guess.rounds[1:])
    found, _ = scores.bound_checks(
        replace(guess, rounds=(survey, *others)), np.ones_like(guess.present)
    )
    assert found["increment beyond Lemma 6"].low == pytest.approx(1.0, abs=1e-3)
    assert found["J beyond Theorem 1"].low > 0


def test_violations_of_the_published_constant_have_a_wilson_interval(surveyed):
    audit, guess, _ = surveyed
    tight = with_paths(guess, lambda p: replace(p, calibrated=0.0))
    published = "increments beyond Lemma 6 with the published L"
    found = scores.violations(tight, audit)[published]
    assert (found.value, found.n) == (1.0, 24)
    loose = with_paths(guess, lambda p: replace(p, calibrated=1e6))
    found = scores.violations(loose, audit)[published]
    assert found.value == 0.0
    assert found.high == pytest.approx(0.138, abs=0.01)
    flat = with_paths(guess, lambda p: replace(p, directional=0 * p.directional))
    along = scores.violations(flat, audit)["increments beyond Lemma 6 with the curvature along u"]
    assert (along.value, along.n) == (1.0, 24)
    rough = with_paths(guess, lambda p: replace(p, directional=None, smoothness=None))
    assert [*scores.violations(rough, audit)] == [published]
    assert scores.violations(with_paths(guess, lambda p: replace(p, norm=0.0)), audit) == {}


def test_alignment_of_the_update_with_the_mean_score(surveyed):
    _, guess, _ = surveyed
    path = next(iter(guess.rounds[0].paths.values()))
    inside = np.array([True, False, True, True])
    g = scores.geometry(path, inside)
    block = path.products[np.ix_(inside, inside)]
    assert g["score"] == pytest.approx(np.sqrt(block.mean()))
    assert g["mean"] == pytest.approx(path.slope[inside].mean())
    assert -1 <= g["gamma"] <= 1
    assert g["gamma"] * g["score"] * path.norm == pytest.approx(g["mean"])
    assert scores.geometry(path, ~inside & inside) == {}


def test_what_lemma_8_says_is_counted(surveyed):
    """Along the mean score vector, with an odd spread: the printed condition holds, J does not."""
    _, guess, _ = surveyed

    def planted(path):
        slope = np.array([10.0, -1.0, -1.0, -1.0])
        return replace(
            path, norm=1.0, slope=slope, increment=slope, smoothness=np.zeros(4),
            products=np.full((4, 4), slope.mean() ** 2), remainder=np.zeros(4), error=np.zeros(4),
        )  # fmt: skip

    member = np.ones_like(guess.present)
    (note,) = scores._conditions(with_paths(guess, planted), member)
    assert "holds for 6 of 6" in note
    assert "(J <= 0 in 6 of them)" in note
    assert note.endswith("sound form for 0")


def test_deviation_of_the_empirical_from_the_true_advantage(surveyed):
    audit, guess, truth = surveyed
    result = scored(audit, guess, truth)
    found = result.estimates["empirical from true score advantage (Eqs. 11, 12)"]
    means = []
    for survey in guess.rounds:
        for i, party in enumerate(guess.parties):
            own = guess.present[i].copy()
            own[own] = truth.members[party]
            means.append(np.abs(survey.aggregate[i] - survey.isolated[i])[own].mean())
    assert found.value == pytest.approx(np.mean(means))
    assert isinstance(found, Estimate)
