"""Naive twin, theory, null, power, monotone, vantage; then refusals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.planning import Aim, Recorded
from fedaudit.audits.topology_inference import TopologyInference, rewiring, scores
from fedaudit.audits.topology_inference import channels as ch
from fedaudit.audits.topology_inference import regressors as rg
from fedaudit.audits.topology_inference.audit import best_channel, round_grid
from fedaudit.audits.topology_inference.features import Place
from fedaudit.errors import ConfigError, FedauditError, NotApplicable, NotObservable
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult, Estimate, Underpowered
from fedaudit.trace import ANONYMOUS, SERVER, WIRETAP, MemoryTruth


def place_of(trace):
    return Place.of(trace.seen_by(WIRETAP).federation)


# -- naive ----------------------------------------------------------------------------------------


def test_top_k_with_ties_is_the_mean_over_all_orders():
    guess, p, k = np.array([0.3, 0.3, 0.1, 0.3, 0.0]), np.array([1.0, 0.5, 0.5, 0.2, 0.5]), 2

    def tops(values):
        """Top sets under every order of the clients, as a stable sort would give them."""
        for order in itertools.permutations(range(5)):
            yield set(sorted(order, key=lambda i: -values[i])[:k])

    every = [len(a & b) / k for a in tops(guess) for b in tops(p)]
    assert scores.top_recovery(guess, p, k) == pytest.approx(np.mean(every))
    np.testing.assert_allclose(scores.in_top(np.stack([guess, p]), k).sum(axis=1), k)


def test_permuted_lifts_are_lifts_of_permuted_shares():
    rng = np.random.default_rng(7)
    p, guess = rng.random(6), rng.random(6)
    every = [scores.lift(guess, p[list(o)]) for o in itertools.permutations(range(6))]
    drawn = scores.permuted_lifts(guess, p, rng, 4000)
    assert np.isin(np.round(drawn, 9), np.round(every, 9)).all()
    assert drawn.mean() == pytest.approx(np.mean(every), abs=0.01)


def test_ridge_is_that_of_scikit_learn():
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(8)
    x = rng.normal(size=(300, 6)).astype(np.float32)
    p = np.clip(0.4 + 0.1 * x[:, 0] + 0.02 * rng.normal(size=300), 0, 1)
    federation = np.repeat(np.arange(30), 10)
    fitted = rg.fit("ridge", x, p, federation, np.random.default_rng(1))
    held = np.random.default_rng(1).permutation(np.arange(30))[:6]
    inside = ~np.isin(federation, held)
    mean, spread = x[inside].mean(axis=0), x[inside].std(axis=0)
    best = min(
        (Ridge(alpha=a).fit((x[inside] - mean) / spread, p[inside]) for a in rg.PENALTIES),
        key=lambda m: np.mean((m.predict((x[~inside] - mean) / spread) - p[~inside]) ** 2),
    )
    np.testing.assert_allclose(fitted(x), best.predict((x - mean) / spread), atol=1e-4)


# -- theory ---------------------------------------------------------------------------------------


def test_losses_of_the_reference_guesses():
    """[TopologyAwareDP] Table I: the mean costs Var(p), the truth nothing, and lift is between."""
    rng = np.random.default_rng(9)
    p = rng.random(30)
    assert scores.loss(np.full(30, p.mean()), p) == pytest.approx(p.var())
    assert scores.lift(np.full(30, p.mean()), p) == pytest.approx(0.0)
    assert scores.lift(p, p) == pytest.approx(p.var())
    whole = scores.explained_over_clients(p, p, rng=rng)
    assert (whole.value, whole.low, whole.high) == pytest.approx((1.0, whole.low, 1.0))
    assert whole.low > 0
    shadow = scores.lift(np.full(30, 0.2), p, mean=0.2)
    assert shadow == pytest.approx(0.0)


def test_guesses_that_follow_nothing_lose_their_own_spread():
    """E lift = - mean (g - mean p)^2 if p is permuted: never above zero."""
    rng = np.random.default_rng(10)
    p, guess = rng.random(200), rng.random(200)
    mean = scores.permuted_lifts(guess, p, rng, 5000).mean()
    assert mean == pytest.approx(-np.mean((guess - p.mean()) ** 2), abs=3e-3)


# -- null -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_labels_of_other_clients_show_no_lift(audited, seed):
    guess, result, _ = audited(seed, permuted=True, coupled=False, parameters=1.0)
    assert judge(result)[-1].verdict in ("no_evidence", "nothing_to_say")
    for channel, lifts in guess.learnt.items():
        assert scores.not_above_zero(lifts) > 1e-3, channel


def test_the_null_can_fail():
    """Features that hold the permuted labels: the check raises and names the channel."""
    rng = np.random.default_rng(11)
    p = rng.random((20, 12))
    dealt = ch.permute_shares(p, rng)
    np.testing.assert_allclose(np.sort(dealt, axis=1), np.sort(p, axis=1))
    assert not np.array_equal(dealt, p)
    leaking = dealt.reshape(-1, 1).astype(np.float32)
    lifts = scores.lifts_by_federation(ch.cross_validated("ridge", leaking, dealt, rng), dealt)
    with pytest.raises(FedauditError, match="fails its own null") as error:
        ch.check_null({"A1": lifts, "org": -np.ones(20)}, "p was permuted")
    assert "A1" in str(error.value)
    assert "org" not in str(error.value).split("got:")[1]
    fair = scores.lifts_by_federation(
        ch.cross_validated("ridge", p.reshape(-1, 1).astype(np.float32), dealt, rng), dealt
    )
    ch.check_null({"A1": fair}, "p was permuted")


def test_structure_that_tells_where_the_prior_says_it_cannot_raises(audited):
    """Shadows that wrongly claim no coupling: organisation alone shows lift."""
    with pytest.raises(FedauditError, match="ties no class to a place"):
        audited(organisation=0.9, coupled=False)
    guess, _, _ = audited(organisation=0.0, coupled=False)
    for channel in ("topo", "org"):
        assert guess.learnt[channel].mean() < 1e-3


# -- power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("regressor", ["lightgbm", "ridge", "mlp"])
def test_a_leak_through_parameters_is_found(audited, regressor):
    wanted = {"regressor": regressor, "channels": ["A1"], "by_rounds": False, "sums": False}
    guess, result, truth = audited(1, settings=wanted, parameters=1.0, noise=0.1)
    assert judge(result)[-1].verdict == "leak"
    assert result.estimates["explained (A1)"].low > 0.3
    p = ch.share_of(truth, guess.clients, (0,))
    assert np.corrcoef(p, guess.guesses["A1"])[0, 1] > 0.9


def test_a_leak_through_the_organisation_is_found_without_parameters(audited):
    guess, result, _ = audited(2, parameters=0.0, organisation=0.9)
    assert result.estimates["explained (org)"].low > 0.2
    assert result.estimates["lift (A1)"].low <= 0
    assert result.estimates["topology_contribution"].low > 0
    assert guess.best in ("A2-full", "A2-org", "A2-topo", "org", "topo")
    assert judge(result)[-1].verdict == "leak"
    # the first organisation holds class 0
    own = guess.guesses["org"]
    assert own[:4].min() > own[4:].max()


def test_rounds_and_sums_stand_beside_the_whole(audited):
    guess, result, _ = audited(3, parameters=0.5, noise=0.3, rounds=6, organisation=0.5)
    curve = result.curves["explained (A1) on shadows by rounds observed"]
    assert curve["rounds"] == (1, 2, 5, 6)
    assert curve["explained"][0] < curve["explained"][-1]
    assert guess.through_sums is not None
    assert guess.through_sums[1].mean() < guess.learnt["A1"].mean()
    assert "lift (A1, sums only)" in result.estimates


def test_rewiring_hides_the_place_and_not_the_rest(audited):
    wanted = {"what_if": ["drop_edge", "split_organisation", "random_regular"]}
    guess, result, _ = audited(4, settings=wanted, parameters=0.0, organisation=0.9)
    assert guess.learnt["topo"].mean() > 0.01
    assert guess.rewired["random_regular"]["topo"].mean() < 0.005
    assert guess.rewired["random_regular"]["org"].mean() > 0.01
    assert guess.rewired["split_organisation"]["org"].mean() > 0.01
    assert "without the edge" in guess.change_in_words["drop_edge"]
    assert "shadow_lift_change (A2-full, random_regular)" in result.estimates


# -- monotone -------------------------------------------------------------------------------------


def test_more_noise_never_reads_as_more_leak(audited):
    wanted = {"channels": ["A1"], "by_rounds": False, "sums": False}
    found = [
        float(audited(5, settings=wanted, noise=z)[0].learnt["A1"].mean())
        for z in (0.05, 0.5, 2, 20)
    ]
    # one guess for all costs the variance of federations' means, about 0.004 here
    assert all(more > less - 2e-3 for more, less in itertools.pairwise(found))
    assert found[0] > 0.04
    assert found[-1] < 0


def test_parameters_that_are_noise_tell_nothing_of_the_place(audited):
    """Degrees differ, classes follow the place: A1 reveals neither, the paper's list reveals
    both."""
    groups = (0,) * 8 + (1,) * 3 + (2,)
    edges = tuple(
        (i, j)
        for i, j in itertools.combinations(range(12), 2)
        if groups[i] == groups[j] or {i, j} <= {0, 8, 11}
    )
    wanted = {"channels": ["A1", "topo"], "by_rounds": False, "sums": False}
    world = {"groups": groups, "edges": edges, "parameters": 0.0, "organisation": 0.9, "rounds": 20}
    ours, _, _ = audited(7, settings=wanted, **world)
    theirs, _, _ = audited(7, settings=wanted | {"features": "published"}, **world)
    assert ours.learnt["topo"].mean() > 0.02
    assert ours.learnt["A1"].mean() < 0.002
    assert theirs.learnt["A1"].mean() > 0.02


# -- vantage --------------------------------------------------------------------------------------


def test_the_server_does_not_see_the_graph(audited):
    with pytest.raises(NotObservable, match="does not see the topology"):
        audited(vantage=SERVER)


def test_who_sees_no_senders_has_no_parameter_channel(audited):
    guess, result, _ = audited(6, organisation=0.9, senders=ANONYMOUS)
    assert set(guess.guesses) == {"topo", "org"}
    assert any("no parameters channel" in n for n in result.notes)
    with pytest.raises(NotApplicable, match="none of the channels"):
        audited(6, senders=ANONYMOUS, settings={"channels": ["A1"]})


def test_shadows_that_show_more_than_the_target_are_not_compared_with_it(audited):
    """Named shadows of an anonymous target: the parameters channel is left out."""
    guess, _, _ = audited(6, organisation=0.9, target={"senders": ANONYMOUS})
    assert set(guess.guesses) == {"topo", "org"}


# -- scores over clients and runs -----------------------------------------------------------------


def test_auroc_needs_twenty_clients_of_both_kinds():
    rng = np.random.default_rng(12)
    p = rng.random(30)
    found = scores.auroc(p, p, 0.5)
    assert isinstance(found, Estimate)
    assert found.value == 1.0
    assert isinstance(scores.auroc(p[:19], p[:19], 0.5), Underpowered)
    lacking = scores.auroc(p, np.full(30, 0.2), 0.5)
    assert isinstance(lacking, Underpowered)
    assert "not applicable" in str(lacking)


def test_few_clients_are_no_evidence_by_themselves():
    """Four clients in the right order happen once in 24: no leak at 95 %, two-sided."""
    p = np.array([0.1, 0.2, 0.3, 0.9])
    four = scores.explained_over_clients(p, p, rng=np.random.default_rng(0))
    assert four.value == 1.0
    assert four.low <= 0
    p = np.linspace(0.1, 0.9, 7)
    seven = scores.explained_over_clients(p, p, rng=np.random.default_rng(0))
    assert seven.low > 0


def test_the_test_over_channels_is_that_over_all_orders():
    """Naive: the largest standardised covariance over every order of six clients."""
    rng = np.random.default_rng(3)
    p = rng.random(6)
    guesses = {"A1": p + 0.3 * rng.normal(size=6), "org": rng.random(6)}
    found = scores.channel_test(guesses, p, rng)
    each = np.array(
        [
            [np.mean((g - g.mean()) * (np.array(q) - p.mean())) for g in guesses.values()]
            for q in itertools.permutations(p)
        ]
    )
    z = (each - each.mean(axis=0)) / each.std(axis=0)
    assert found.exact
    assert found.labellings == 720
    assert found.p == pytest.approx(np.mean(z.max(axis=1) >= z[0].max() - 1e-9))


@pytest.mark.parametrize("n", [6, 12])
def test_the_test_over_channels_holds_its_level_and_uses_it(n):
    """Class mixes and guesses as uneven as real ones, p dealt anew 2,000 times: 2.5 % alarms.

    29 or fewer, or 72 or more, of 2,000 would happen once in 300 at 2.5 %.
    """
    rng, alarms = np.random.default_rng(8), 0
    for _ in range(20):
        own = rng.beta(0.3, 1.5, size=n)
        guesses = {"A1": own + 0.05 * rng.normal(size=n), "A2-full": 0.5 * own + 0.1}
        for _ in range(100):
            dealt = rng.permutation(own)
            found = scores.channel_test(guesses, dealt, rng, count=199)
            alarms += found.p <= 0.025
    assert 29 < alarms < 72


@pytest.mark.parametrize("n", [3, 4])
def test_with_few_clients_only_shadows_can_show_anything(audited, n):
    """The most that 4 clients can reach happens by chance once in 24: more than 2.5 %."""
    few = {"groups": tuple(range(n)), "edges": ()}
    _, result, _ = audited(3, settings={"channels": ["A1"], "shadows": 40}, noise=0.01, **few)
    assert result.estimates["explained (A1)"].value > 0.8
    assert result.estimates["explained (A1)"].low <= 0
    assert result.detectable == math.inf
    assert not result.test.significant
    assert f"nothing could have been seen on this run alone: {n} clients" in result.notes[0]
    shown = result.estimates["shadow_explained"]
    assert shown.n == 40
    assert 0 < shown.low <= shown.value <= shown.high <= 1
    first, last = judge(result)
    assert (first.rule, first.verdict, first.measure) == ("L4", "leak", "shadow_explained")
    assert (last.rule, last.verdict) == ("N1", "nothing_to_say")
    assert "no leak of any size would have shown" in last.because


def test_with_few_clients_and_nothing_in_the_updates_nothing_is_said(audited):
    few = {"groups": tuple(range(4)), "edges": ()}
    settings = {"channels": ["A1"], "shadows": 40}
    _, result, _ = audited(3, settings=settings, parameters=0.0, **few)
    assert [f.rule for f in judge(result)] == ["N1"]
    assert judge(result)[0].verdict == "nothing_to_say"


def test_sample_sizes_know_that_few_clients_show_nothing(audited):
    few = {"groups": tuple(range(4)), "edges": ()}
    _, result, _ = audited(3, settings={"channels": ["A1"], "shadows": 40}, **few)
    (size,) = TopologyInference.samples(result, Recorded(rounds=3), Aim())
    assert size.seen is None
    assert size.needed >= 5
    assert "shadow federations" in size.how
    (planned,) = TopologyInference.samples_before(Aim(clients=4))
    assert "runs of 4 can show nothing" in planned.how
    assert scores.fewest_clients(0.025) == 5
    assert scores.fewest_clients(1 / 24) == 4


def test_the_channel_of_the_verdict_is_chosen_on_shadows():
    rng = np.random.default_rng(14)
    base = rng.normal(size=50)
    assert best_channel({"A1": base, "A2-full": base - 1e-9}) == "A1"
    assert best_channel({"A1": base + 0.01 * rng.normal(size=50), "A2-full": base}) == "A2-full"
    assert best_channel({"A1": base - 1, "org": base, "A2-full": base - 1}) == "org"
    assert round_grid(1) == (1,)
    assert round_grid(20) == (1, 2, 5, 10, 20)
    assert round_grid(25) == (1, 2, 5, 10, 20, 25)


# -- contracts ------------------------------------------------------------------------------------


def test_same_seed_same_result_and_json_round_trip(audited):
    settings = {"regressor": "lightgbm", "channels": ["A1", "org"]}
    (_, first, _), (_, second, _) = (audited(8, settings=settings) for _ in range(2))
    assert first == second
    assert AuditResult.from_json(first.to_json()) == first


def test_names_of_clients_change_labels_only(audited):
    names = tuple(f"site {c}" for c in "abcdefghijkl")
    _, plain, _ = audited(9)
    _, renamed, _ = audited(9, names=names)
    assert plain.estimates == renamed.estimates
    assert list(renamed.per_client) == list(names)
    assert list(plain.per_client.values()) == list(renamed.per_client.values())


def test_regressors_stay_within_zero_and_one_and_fall_back_to_the_mean():
    rng = np.random.default_rng(15)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    p = (x[:, 0] > 0).astype(float)
    federation = np.repeat(np.arange(20), 12)
    for kind in ("lightgbm", "mlp", "ridge"):
        fitted = rg.fit(kind, x, p, federation, np.random.default_rng(0))
        guess = fitted(100 * x)
        assert guess.min() >= 0
        assert guess.max() <= 1
        x_missing = x.copy()
        x_missing[::3, 1] = np.nan
        assert np.isfinite(rg.fit(kind, x_missing, p, federation, rng)(x_missing)).all()
    blind = rg.fit("ridge", np.zeros((240, 1), np.float32), p, federation, rng)
    assert np.ptp(blind(x[:, :1])) == 0
    same = rg.fit("ridge", x, np.full(240, 0.3), federation, rng)(x)
    np.testing.assert_allclose(same, 0.3)


def test_out_of_fold_guesses_never_saw_their_federation():
    """Labels that only the federation's number explains cannot be guessed for a new federation."""
    rng = np.random.default_rng(16)
    federation = np.repeat(np.arange(20), 12)
    p = rng.random(20)[federation]
    x = np.eye(20, dtype=np.float32)[federation]
    guess = rg.out_of_fold("ridge", x, p, federation, rng)
    assert np.mean((guess - p) ** 2) > 0.9 * p.var()
    by_row = rg.fit("ridge", x, p, np.arange(240), rng)(x)
    assert np.mean((by_row - p) ** 2) < 0.3 * p.var()


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sensitive", ()),
        ("sensitive", (1, 1)),
        ("sensitive", (-1,)),
        ("channels", ()),
        ("channels", ("A1", "A1")),
        ("shadows", 9),
        ("top", 0),
        ("threshold", 1.0),
        ("what_if", ("drop_edge", "drop_edge")),
        ("confidence", 1.0),
        ("seed", -1),
    ],
)
def test_settings_out_of_range_are_refused(setting, value):
    with pytest.raises(ConfigError, match=f"topology_inference.{setting} is out of range"):
        TopologyInference(**{setting: value})


def test_sensitive_classes_must_exist_and_leave_some(audited, toy, toy_shadows):
    with pytest.raises(ConfigError, match="classes 0 to 3"):
        audited(settings={"sensitive": [4]})
    with pytest.raises(ConfigError, match="some, not all"):
        audited(settings={"sensitive": [0, 1, 2, 3]})
    trace, _ = toy(np.random.default_rng(0))
    one = Knowledge(shadows=toy_shadows(classes=1))
    with pytest.raises(NotApplicable, match="only one class"):
        TopologyInference().attack(trace.seen_by(WIRETAP), one, np.random.default_rng(0))


def test_a_corpus_too_small_for_a_regressor_names_the_number_needed():
    with pytest.raises(NotApplicable, match="shadows = 25"):
        rg.require_enough(12, 48)
    with pytest.raises(NotApplicable, match="at least 10 shadow federations"):
        rg.require_enough(9, 900)
    rg.require_enough(10, 100)


def test_no_shadows_no_attack(toy):
    trace, _ = toy(np.random.default_rng(0))
    with pytest.raises(NotApplicable, match="shadow federations"):
        TopologyInference().attack(trace.seen_by(WIRETAP), Knowledge(), np.random.default_rng(0))


def test_groups_of_one_are_no_groups():
    place = Place(clients=("a", "b", "c"), edges=((0, 1),), organisations=(0, 1, 2))
    assert not place.has_groups()
    said = ch.missing_parts(place, None)
    assert "would name the client" in said["organisation"]
    one = replace(place, organisations=(0, 0, 0))
    assert "one organisation" in ch.missing_parts(one, None)["organisation"]
    ring = replace(place, edges=((0, 1), (0, 2), (1, 2)), organisations=None)
    missing = ch.missing_parts(ring, None)
    assert "alike" in missing["structure"]
    # neighbours still add information beyond parameters
    assert [c for c in ch.PARTS if ch.usable(c, missing)] == ["A1", "A2-topo", "A2-full"]
    star = ch.missing_parts(replace(place, edges=(), organisations=None), None)
    assert [c for c in ch.PARTS if ch.usable(c, star)] == ["A1"]


def test_a_lone_member_among_groups_is_said(audited, toy):
    groups = (0, *toy.groups[1:-1], 99)
    guess, result, _ = audited(groups=groups)
    assert place_of(toy(np.random.default_rng(0), groups=groups)[0]).lone_members()
    note = next(n for n in guess.notes if "have one member" in n)
    assert f"client-{len(toy.groups) - 1:02d}" in note
    assert not any("have one member" in n for n in audited()[0].notes)
    assert any("level 0.001" in n and "would pass" in n for n in result.notes)


def test_components_are_named_and_far_from_the_root(audited, toy):
    edges = tuple(e for e in toy.edges if toy.groups[e[0]] == toy.groups[e[1]])
    guess, _, _ = audited(edges=edges)
    note = next(n for n in guess.notes if "components" in n)
    assert "3 components" in note
    assert "client-04" in note


def test_equal_shares_leave_nothing_to_tell_apart(audited, toy):
    trace, _ = toy(np.random.default_rng(0))
    guess, _, _ = audited()
    names = guess.clients
    flat = MemoryTruth({"clients": {c: {"classes": [1, 1, 1, 1]} for c in names}})
    result = TopologyInference(shadows=20).score(guess, flat, np.random.default_rng(0))
    assert result.need.code == "all_alike"
    blind = TopologyInference(shadows=20).score(guess, None, np.random.default_rng(0))
    assert blind.need.code == "no_truth"
    with pytest.raises(NotApplicable, match="which classes"):
        ch.share_of(MemoryTruth({}), names, (0,))
    assert trace.rounds


def test_rewiring_that_cannot_be_done_is_refused():
    rng = np.random.default_rng(0)
    tree = Place(clients=tuple("abc"), edges=((0, 1), (1, 2)))
    with pytest.raises(NotApplicable, match="no edge can be dropped"):
        rewiring.rewire(tree, "drop_edge", 1, rng)
    with pytest.raises(NotApplicable, match="no organisation can be split"):
        rewiring.rewire(tree, "split_organisation", 1, rng)
    pair = Place(clients=("a", "b"), edges=((0, 1),))
    regular, _ = rewiring.rewire(pair, "random_regular", 2, rng)
    assert [p.edges for p in regular] == [((0, 1),)] * 2


def test_rewiring_does_what_it_says(toy):
    rng = np.random.default_rng(1)
    trace, _ = toy(rng)
    place = place_of(trace)
    (dropped, *_), _ = rewiring.rewire(place, "drop_edge", 3, rng)
    assert len(dropped.edges) == len(place.edges) - 1
    assert len(dropped.components()) == 1
    split, _ = rewiring.rewire(place, "split_organisation", 2, rng)
    assert sorted(np.bincount(split[0].organisations)) == [2, 2, 4, 4]
    regular, words = rewiring.rewire(place, "random_regular", 2, rng)
    degree = math.floor(2 * len(place.edges) / place.n + 0.5)
    assert f"{degree} neighbours" in words
    assert np.ptp(regular[0].structure[:, 0]) == 0
    assert regular[0].edges != regular[1].edges
