"""Claims against facts: who is refuted, who is not, and when draws cannot tell."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.protections.local_dp import (
    GRR,
    OME,
    RAPPOR,
    BitRand,
    DBitFlip,
    Gaussian,
    Laplace,
)
from fedaudit.protections.local_dp.check import (
    check_callable,
    check_mechanism,
    largest_bound,
    learn,
    load_callable,
    log_ratios,
    samples_needed,
)


def rng(seed=1):
    return np.random.default_rng(seed)


# -- mechanisms with a known law ------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "exact"), [(BitRand, 9238.86), (OME, 35342.24)])
def test_published_settings_are_refuted_by_the_exact_budget_and_by_draws(cls, exact):
    done = check_mechanism(cls(epsilon=5.0, bits=10, features=512), rng=rng(), samples=4000)
    assert (done.verdict, done.draws) == ("refuted", "refuted")
    assert done.claimed == 5.0
    assert done.exact == pytest.approx(exact, abs=0.01)
    assert 5.0 < done.measured.low <= done.ceiling


@pytest.mark.parametrize(
    "m",
    [
        GRR(epsilon=1.0, alphabet=4),
        GRR(epsilon=0.5, alphabet=3, features=4),
        RAPPOR(epsilon=2.0, alphabet=5),
        RAPPOR(epsilon=0.5, alphabet=40, filter_bits=32, hashes=3),
        DBitFlip(epsilon=2.0, alphabet=4),
        DBitFlip(epsilon=2.0, alphabet=4, buckets=2),
        DBitFlip(epsilon=2.0, alphabet=4, buckets=1),
        Laplace(epsilon=1.0, features=2),
        Gaussian(epsilon=1.0, features=2),
    ],
    ids=lambda m: m.name,
)
def test_honest_claims_are_consistent_and_draws_come_near_the_exact_budget(m):
    done = check_mechanism(m, rng=rng(), samples=20_000)
    assert (done.verdict, done.draws) == ("consistent", "consistent")
    assert done.exact <= done.claimed * (1 + 1e-9)
    # so few draws do not reach the tail that makes up a Gaussian's delta
    near = 0.2 if done.delta else 0.5
    assert near * done.exact < done.measured.low <= done.exact


def test_a_claim_that_leaves_out_the_hashes_is_refuted():
    """RAPPOR with h hashes spends h epsilon; claimed as epsilon it is refuted by draws too."""
    m = RAPPOR(epsilon=1.0, alphabet=40, filter_bits=32, hashes=3)
    done = check_mechanism(m, rng=rng(), claimed=1.0)
    assert (done.verdict, done.draws) == ("refuted", "refuted")
    per_feature = check_mechanism(
        GRR(epsilon=1.0, alphabet=4, features=8), rng=rng(), claimed=1.0, samples=4000
    )
    assert (per_feature.verdict, per_feature.draws) == ("refuted", "refuted")


def test_where_draws_cannot_tell_the_exact_budget_does():
    held = check_mechanism(GRR(epsilon=1.0, alphabet=4, features=64), rng=rng(), samples=1000)
    assert (held.verdict, held.draws) == ("consistent", "underpowered")
    broken = check_mechanism(BitRand(epsilon=20.0, bits=10, features=8), rng=rng(), samples=1000)
    assert (broken.verdict, broken.draws) == ("refuted", "underpowered")
    assert "draws cannot decide" in held.reason
    assert "draws cannot decide" in broken.reason


@dataclass(frozen=True, kw_only=True)
class Careless(GRR):
    """Draws with less noise than its law says."""

    def perturb(self, x, rng):
        return GRR(epsilon=self.epsilon + 1, alphabet=self.alphabet).perturb(x, rng)


def test_draws_beyond_the_exact_budget_are_found_whatever_is_claimed():
    done = check_mechanism(Careless(epsilon=1.0, alphabet=4), rng=rng(), claimed=9.0)
    assert done.verdict == "refuted"
    assert "does not draw from the law" in done.reason


def test_ratios_are_the_exact_ones_whatever_the_blocks(monkeypatch):
    from fedaudit.protections.local_dp import check

    m = GRR(epsilon=1.5, alphabet=3, features=5)
    x, other = m.worst_pair()
    whole = log_ratios(m, x, x, other, 64, rng())
    assert set(np.round(whole / 1.5).astype(int)) <= set(range(-5, 6))
    assert np.allclose(whole / 1.5, np.round(whole / 1.5))
    monkeypatch.setattr(check, "_BLOCK", 7)
    assert len(log_ratios(m, x, x, other, 64, rng())) == 64


def test_a_false_alarm_is_rarer_than_the_stated_rate():
    """200 honest checks at 95 %: refuted by draws in well under ten of them."""
    m = GRR(epsilon=1.0, alphabet=3)
    alarms = [check_mechanism(m, rng=rng(s), samples=1000).draws == "refuted" for s in range(200)]
    assert sum(alarms) < 10


def test_json_holds_everything_and_no_infinity():
    done = check_mechanism(BitRand(epsilon=5.0, features=16), rng=rng(), samples=500)
    plain = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert plain["measured"]["high"] == "inf"
    assert plain["settings"] == {"epsilon": 5.0, "bits": 10, "features": 16}
    assert plain["verdict"] == "refuted"


# -- somebody else's mechanism --------------------------------------------------------------------


def coin(x, rng):
    """Warner's coin: epsilon = ln 3."""
    return x if rng.random() < 0.75 else 1 - x


def noise(x, rng):
    return np.asarray(x, dtype=float) + rng.laplace(size=np.shape(x))


def gaps(x, rng):
    """Nothing but noise, and now and then the truth."""
    return float(x) if rng.random() < 0.02 else float(rng.normal())


def words(x, rng):
    return "yes" if rng.random() < (0.9, 0.2)[x] else ("no", 1)


@pytest.mark.parametrize(
    ("function", "inputs", "exact"),
    [
        (coin, (0, 1), math.log(3)),
        (noise, (0, 1), 1.0),
        (noise, ([0, 0], [1, 1]), 2.0),
        (words, (0, 1), math.log(8)),
    ],
)
def test_an_honest_claim_stands_and_a_smaller_one_does_not(function, inputs, exact):
    honest = check_callable(function, inputs, claimed=exact, rng=rng())
    assert honest.verdict == "consistent"
    assert 0.6 * exact < honest.measured.low <= exact
    small = check_callable(function, inputs, claimed=0.6 * exact, rng=rng())
    assert small.verdict == "refuted"
    assert small.exact is None


def test_a_leak_that_is_rare_is_found():
    done = check_callable(gaps, (0, 1), claimed=1.0, rng=rng())
    assert done.verdict == "refuted"
    assert done.measured.low > 2


def test_of_several_inputs_the_farthest_are_told_apart():
    done = check_callable(noise, ([0, 0], [0, 1], [1, 1]), claimed=1.0, rng=rng(), samples=6000)
    assert done.settings["told apart"] == ["[0, 0]", "[1, 1]"]
    assert done.verdict == "refuted"


def test_a_vectorised_function_gives_the_same_answer():
    def many(x, rng):
        return np.where(rng.random(len(x)) < 0.75, x, 1 - x)

    done = check_callable(many, (0, 1), claimed=1.0, rng=rng(), vectorised=True)
    assert done.verdict == "refuted"
    assert done.mechanism == "many"


def test_few_draws_against_a_large_claim_are_underpowered():
    done = check_callable(coin, (0, 1), claimed=9.0, rng=rng(), samples=3000)
    assert done.verdict == "underpowered"
    assert done.ceiling <= 9.0
    enough = samples_needed(9.0, 0.0, 0.95)
    assert largest_bound(enough, 0.0, 0.95) > 9.0
    assert largest_bound(enough * 98 // 100, 0.0, 0.95) <= 9.0
    assert f"{3 * enough:,}" in done.reason
    assert samples_needed(60.0, 0.0, 0.95) is None
    hopeless = check_callable(coin, (0, 1), claimed=60.0, rng=rng(), samples=300)
    assert "no feasible" in hopeless.reason


def test_looking_for_an_event_costs_no_confidence():
    """A mechanism that hides everything, looked at in many ways: alarms stay below the rate."""

    def nothing(x, rng):
        return rng.normal(size=(len(x), 3))

    alarms = 0
    for s in range(30):
        done = check_callable(
            nothing, (0, 1, 2), claimed=0.05, rng=rng(s), samples=400, vectorised=True
        )
        alarms += done.verdict == "refuted"
    assert alarms <= 4


def test_scores_are_log_ratios_of_symbols():
    first = np.array([[0.0]] * 750 + [[1.0]] * 250)
    second = np.array([[0.0]] * 250 + [[1.0]] * 750)
    score = learn(first, second)
    got = score(np.array([[0.0], [1.0], [7.0]]))
    assert got == pytest.approx([math.log(3), -math.log(3), 0.0], abs=0.01)


@pytest.mark.parametrize(
    ("function", "options", "error", "match"),
    [
        (lambda x, rng: 1 / 0, {}, UsageError, "failed"),
        (lambda x, rng: 5, {"vectorised": True}, UsageError, "one output per input"),
        (lambda x, rng: math.nan, {}, DataError, "not finite"),
        (lambda x, rng: str(rng.random()), {}, DataError, "hardly ever repeat"),
        (coin, {"claimed": 0.0}, ConfigError, "claimed"),
        (coin, {"samples": 10}, ConfigError, "few draws"),
        (coin, {"confidence": 1.0}, UsageError, "confidence"),
        (coin, {"delta": 1.0}, UsageError, "delta"),
    ],
)
def test_what_cannot_be_checked_is_refused(function, options, error, match):
    given = {"claimed": 1.0, "samples": 200, **options}
    with pytest.raises(error, match=match):
        check_callable(function, (0, 1), rng=rng(), **given)


@pytest.mark.parametrize("inputs", [(0,), tuple(range(11))])
def test_a_claim_is_about_pairs(inputs):
    with pytest.raises(UsageError, match="pairs"):
        check_callable(coin, inputs, claimed=1.0, rng=rng(), samples=200)


def test_functions_are_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "own_mechanism_for_test.py").write_text("def f(x, rng): return x\ny = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_callable("own_mechanism_for_test:f")(4, None) == 4
    for wrong in ("f", "own_mechanism_for_test:g", "no_such_module:f", "own_mechanism_for_test:y"):
        with pytest.raises(ConfigError):
            load_callable(wrong)
