"""Canaries, guesses and bounds of a rehearsal."""

from dataclasses import replace

import numpy as np
import pytest

from fedaudit.accounting import Exposure
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.audits.epsilon.canaries import Promise, place_canaries
from fedaudit.audits.epsilon.outcome import bound_of, ceiling_of, dominating
from fedaudit.audits.epsilon.scores import among_rows, calls, guesses_on, log_ratio
from fedaudit.errors import ConfigError, NotApplicable, NotObservable
from fedaudit.knowledge.rehearsal import as_members, rehearsals_of
from fedaudit.layout import Layout
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.trace import PUBLIC
from fedaudit.trace.truth import MembersOnly

LAYOUT = Layout.of([("a.weight", (20, 10)), ("a.bias", (20,)), ("b.weight", (40, 20))])
PROMISE = Promise(
    exposure=Exposure(sampling_rate=0.2, steps=5, rounds=8),
    multiplier=1.0,
    clip=1.0,
    epsilon=6.7,
    delta=1e-5,
    unit="record",
    relation="add_or_remove",
    records=80,
)


@pytest.fixture
def placed():
    return place_canaries(
        LAYOUT,
        kinds=("dense", "layer"),
        norms=(1.0, 1000.0),
        count=200,
        clients=4,
        trained=LAYOUT.width,
        rng=np.random.default_rng(0),
    )


def test_canaries_are_orthogonal_unit_vectors(placed):
    whole = np.zeros((len(placed), LAYOUT.width))
    for row, columns, values in zip(whole, placed.columns, placed.unit, strict=True):
        np.add.at(row, columns, values)
    assert np.allclose(whole @ whole.T, np.eye(len(placed)), atol=1e-6)
    rows = np.random.default_rng(1).normal(size=(3, LAYOUT.width))
    assert np.allclose(placed.along(rows), rows @ whole.T, atol=1e-5)


def test_layer_canaries_lie_in_one_tensor_and_clients_take_turns(placed):
    layer = placed.kind == "layer"
    assert set(placed.tensor[layer]) == {0, 1, 2}
    assert (placed.norm[layer] == 1000).all()
    assert np.ptp(np.bincount(placed.client)) <= 1


def test_a_dense_canary_has_the_same_power_in_every_tensor_with_room():
    """Clipping of each tensor by itself leaves sqrt(tensors) times the clip of such a canary."""
    rng = np.random.default_rng(0)
    own = {"kinds": ("dense",), "norms": (1.0,), "count": 100, "clients": 4, "rng": rng}
    placed = place_canaries(LAYOUT, trained=LAYOUT.width, **own)
    ends = np.cumsum([e.size for e in LAYOUT.entries])
    for columns, values in zip(placed.columns, placed.unit, strict=True):
        tensor = np.searchsorted(ends, columns[values != 0], side="right")
        power = np.bincount(tensor, weights=np.square(values[values != 0]))
        assert {0, 2} <= set(tensor)
        assert np.allclose(power[power > 0], 1 / np.count_nonzero(power))


def test_the_likelihood_ratio_is_that_of_a_mixture():
    """Against the two densities written out."""
    from scipy.stats import binom, norm

    x, v, steps, rate = np.array([-1.0, 0.3, 4.0]), 2.5, 5, 0.3
    j = np.arange(steps + 1)
    inside = (binom.pmf(j, steps, rate) * norm.pdf(x[:, None], j, v**0.5)).sum(axis=1)
    found = log_ratio(x, v, steps, rate)
    assert np.allclose(found, np.log(inside / norm.pdf(x, 0, v**0.5)), atol=1e-6)
    assert np.allclose(among_rows(found[:, None]), np.log(np.exp(found).mean()))


def test_guesses_are_withheld_where_the_adversary_is_least_sure():
    ratios = np.concatenate([np.linspace(-3, 3, 1900), np.full(60, 9.0), np.full(40, -8.0)])
    found = calls(ratios, np.zeros(2000, dtype=int))
    assert np.count_nonzero(found) == guesses_on(2000) == 200
    assert (found[1900:1960] == 1).all()
    assert (found[1960:] == -1).all()
    assert np.abs(ratios[found == 0]).max() <= np.abs(ratios[found != 0]).min()
    assert guesses_on(30) == 30
    assert guesses_on(2000, total_variation=0.9) == 800


def test_more_right_guesses_never_read_as_less_epsilon():
    found = [bound_of(1000, 100, right, PROMISE, 0.95) for right in (50, 70, 85, 95, 100)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert found[-1] == ceiling_of(1000, 100, PROMISE, 0.95)


def test_a_pooled_schedule_protects_nobody_better():
    other = replace(PROMISE, exposure=Exposure(sampling_rate=0.1, steps=9, rounds=3), epsilon=4.0)
    worst = dominating([PROMISE, other])
    for own in (PROMISE, other):
        for rate in (0.1, 0.5, 0.9):
            assert worst.curve().least_false(rate) <= own.curve().least_false(rate) + 1e-9


def test_inserted_canaries_are_drawn_at_the_declared_rate(federation):
    audit = EpsilonAudit(canaries=40, kinds=("dense",), norms=(1.0,))
    made = federation()
    (played,) = rehearsals_of(audit, made, made.party, Seed(3))
    drawn = played.drawn
    assert not drawn[~played.coins].any()
    share = drawn[played.coins].mean()
    assert share == pytest.approx(0.2, abs=0.05)


def test_a_shuffled_rehearsal_is_read_without_names(federation, audited):
    made = federation()
    hidden = replace(made, protections=(*made.protections, Shuffle()))
    named, anonymous = (audited(f, canaries=200) for f in (made, hidden))
    assert anonymous.estimates["guessed"].value <= named.estimates["guessed"].value
    assert anonymous.estimates["noise_between_clients"].low < 1.1


def test_several_rehearsals_give_a_bound_by_betting(federation, audited):
    result = audited(federation(), canaries=100, repeats=3)
    assert result.estimates["epsilon_rehearsals"].n == 3


def test_adam_leaves_out_what_needs_sums_of_steps(federation, audited):
    made = federation()
    made = replace(made, training=replace(made.training, optimizer="adam", learning_rate=0.01))
    result = audited(made, canaries=200)
    assert "epsilon" in result.estimates
    assert not any(name.startswith(("gain", "noise")) for name in result.estimates)


def test_narrow_views_are_refused(federation):
    made = federation()
    audit = EpsilonAudit(canaries=20, vantage=PUBLIC)
    played = rehearsals_of(audit, made, made.party, Seed(1))
    view, known = played[0].seen.view, Knowledge(extra={"rehearsals": (played[0].seen,)})
    with pytest.raises(NotObservable):
        audit.attack(view, known, np.random.default_rng(0))


def test_without_noise_there_is_no_declaration(federation):
    made = federation(hook=DPSGD(noise_multiplier=0.0))
    with pytest.raises(NotApplicable, match="declares an epsilon"):
        rehearsals_of(EpsilonAudit(), made, made.party, Seed(1))


def test_without_coins_nothing_is_scored(federation):
    made, audit = federation(), EpsilonAudit(canaries=20)
    played = rehearsals_of(audit, made, made.party, Seed(1))
    known = Knowledge(extra={"rehearsals": (played[0].seen,)})
    guess = audit.attack(played[0].seen.view, known, np.random.default_rng(0))
    assert audit.score(guess, MembersOnly({}), np.random.default_rng(0)).status == "blind"
    members = as_members(played)
    assert members["coins/0"].dtype == bool


@pytest.mark.parametrize("wrong", [{"canaries": 1}, {"norms": ()}, {"kinds": ("dense", "dense")}])
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError):
        EpsilonAudit(**wrong)
