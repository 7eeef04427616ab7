"""Games with the clients of a run: mechanisms as laws, and what protections leave of the answer."""

import math

import numpy as np
import pytest
from scipy import stats

from fedaudit.errors import ConfigError, DataError
from fedaudit.experiment.auditing import audit_one
from fedaudit.experiment.build import build
from fedaudit.experiment.config import load
from fedaudit.experiment.knowledge import Desk, of_config
from fedaudit.experiment.probing import channel_of, for_clients
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.trace import MemoryRecorder, MemoryTruth

MECHANISMS = [
    LocalDP(mechanism="grr", epsilon=2.0, alphabet=5),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4, decoder="published"),
    LocalDP(mechanism="dbitflip", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0, decoder="published"),
    LocalDP(mechanism="ome", epsilon=4.0, bits=6, integer_bits=0),
]


@pytest.mark.parametrize("hook", MECHANISMS, ids=lambda h: f"{h.mechanism}-{h.decoder}")
def test_the_codebook_has_the_law_of_the_protection(hook):
    """What a client trains on, drawn by the hook itself, against the audit's codebook."""
    rng = np.random.default_rng(3)
    channel = channel_of(hook, 2)
    book = channel.codes
    x = np.array([[0.0, 0.7]])
    codes = book.encode(x).astype(np.int32)
    slow, _ = hook.randomise(np.repeat(x, 20_000, axis=0), rng)
    drawn = book.draw(np.repeat(codes, 20_000, axis=0).ravel(), rng)
    fast = (book.origin + book.step * book.level(drawn)).reshape(20_000, 2)
    for j in range(2):
        values = np.unique(np.concatenate([slow[:, j], fast[:, j]]).round(9))
        for v in values:
            a = np.mean(np.isclose(slow[:, j], v))
            b = np.mean(np.isclose(fast[:, j], v))
            assert abs(a - b) < 4.5 * math.sqrt(2 * max(a, b, 1e-4) / 20_000)
    levels = book.level(np.arange(book.alphabet, dtype=np.int32))
    assert book.transition.shape == (book.alphabet, book.alphabet)
    np.testing.assert_allclose(book.transition.sum(axis=1), 1.0)
    mean = book.transition[codes[0, 1]] @ (book.origin + book.step * levels)
    assert slow[:, 1].mean() == pytest.approx(mean, abs=4.5 * slow[:, 1].std() / math.sqrt(20_000))


def test_budgets_are_those_of_the_mechanism():
    channel = channel_of(LocalDP(mechanism="bitrand", epsilon=5.0), 512)
    assert channel.claimed_epsilon == 5.0
    assert channel.exact_epsilon == pytest.approx(9238.859, abs=1e-2)
    assert not channel.claim_holds
    assert channel_of(LocalDP(mechanism="grr", epsilon=1.5), 10).exact_epsilon == 15.0


def test_mechanisms_without_codes_stay_functions():
    for hook in (
        LocalDP(mechanism="laplace", epsilon=1.0),
        LocalDP(mechanism="grr", epsilon=1.0, decoder="unbiased"),
    ):
        assert channel_of(hook, 3).codes is None


def test_values_outside_the_encoder_are_refused_or_clipped():
    with pytest.raises(DataError, match="outside the encoder's range"):
        channel_of(LocalDP(epsilon=1.0), 1).clean(np.array([[2.0]]))
    clipped = channel_of(LocalDP(epsilon=1.0, outside="clip"), 1).clean(np.array([[2.0]]))
    assert clipped.item() == 1.0


def test_settings_for_every_client_are_repeated():
    hook = for_clients(DPSGD(noise_multiplier=(1.0, 2.0)), 5)
    assert hook.noise_multiplier == (1.0, 2.0, 1.0, 2.0, 1.0)
    assert for_clients(DPSGD(noise_multiplier=1.5), 5).noise_multiplier == 1.5


# -- in a federation ------------------------------------------------------------------------------


TEXT = {
    "data": {"name": "docs"},
    "task": {
        "kind": "gpt",
        "width": 32,
        "depth": 1,
        "heads": 2,
        "length": 12,
        "vocabulary_size": 400,
    },
}
IMAGES = {"task": {"kind": "vit", "width": 32, "depth": 1, "heads": 2, "patch": 2}}


def audited(settings, seed=1, as_if=(), other=None, **protections):
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [4]},
            **(other or {}),
            "federation": {"clients": 6, "rounds": 1},
            "training": {"batch_size": 64},
            "protections": protections,
            "audits": {
                "active_membership": {
                    "games": 200,
                    "client_games": 0,
                    "simulated": 200,
                    "universe": 200,
                    "records": 8,
                    **settings,
                }
            },
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        declared=[*(p.declare() for p in federation.protections), *as_if],
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    desk = Desk(trace, truth, Seed(seed), lambda: of_config(config, trace), config)
    return audit_one(config.audits["active_membership"], trace, truth, seed, desk)


@pytest.mark.parametrize("how", ["secure_sum", "shuffle", "secure_aggregation"])
def test_a_sum_or_a_shuffle_hides_neither_membership_nor_whose(how):
    """One planted model for all: is it in the federation? One detector each: with whom?"""
    result = audited({"recorded": 30}, **{how: {}})
    assert result.estimates["success"].value == 1.0
    assert result.estimates["success"].n == 30
    named = result.estimates["right client named"]
    assert named.value == 1.0
    assert named.baseline == pytest.approx(1 / 6)
    assert any("as one sum or without names" in note for note in result.notes)


def test_local_dp_is_felt_in_the_federation_too():
    """The union of all clients' records: more of them, and a noisy one is found by chance."""
    strong = audited({"recorded": 60}, local_dp={"epsilon": 0.1}, secure_sum={})
    assert strong.estimates["success"].low < 0.5 < strong.estimates["success"].high


def test_dp_sgd_leaves_what_one_gaussian_step_allows():
    """An exact match moves one number by C beside noise z C: success Phi(1 / 2z)."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": 0.5})
    e, top = result.estimates["success"], result.bounds["one step of DP-SGD"]
    expected = 0.5 * (1 + math.erf(1.0 / math.sqrt(2)))
    assert e.low <= expected <= e.high
    assert top.value == pytest.approx(0.5 * (1 + math.erf(2.0 / math.sqrt(2))))
    assert e.low <= top.value
    assert result.estimates["success (gradient in the clear)"].value == 1.0
    # what is drawn is what the headline measures; nothing is said of single clients
    drawn, bare = result.curves.values()
    assert [*result.curves] == [
        "ROC (as uploads arrive)",
        "ROC (without the protection of uploads)",
    ]
    assert max(bare["true positive rate"]) == 1.0
    x, y = (np.array(drawn[f"{which} positive rate"]) for which in ("false", "true"))
    assert np.trapezoid(y, x) == pytest.approx(result.estimates["AUC"].value, abs=0.02)
    assert not result.per_client


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.82), (0.5, 0.65)])
def test_a_shuffler_beside_noise_is_read_by_all_rows(noise, least):
    """The largest of K noisy uploads is always large: rows are weighed by their likelihood."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": noise}, shuffle={}).estimates
    success, area = result["success"], result["AUC"]
    assert success.value >= least
    # of scores with this AUC that are normal, the best cut is right so often
    implied = stats.norm.cdf(stats.norm.ppf(area.value) / math.sqrt(2))
    assert success.low - 0.02 <= implied <= success.high + 0.02
    assert abs(result["true positive rate"].value - result["true negative rate"].value) < 0.25
    assert result["right client named"].low > 1 / 6


def test_a_shuffler_beside_noise_that_drowns_everything_is_chance():
    """Neither yes every time nor no every time, and no leak."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": 20.0}, shuffle={})
    e = result.estimates["success"]
    assert e.low <= 0.5 <= e.high
    assert 0.05 < result.estimates["true positive rate"].value < 0.95
    assert any("any adversary can reach" in u.what for u in result.underpowered)


@pytest.mark.parametrize("mixed", [{}, {"shuffle": {}}])
def test_noise_on_updates_leaves_what_one_gaussian_allows(mixed):
    """A match fills the clipping bound of a whole update, whatever else is in it."""
    result = audited({"recorded": 400}, update_noise={"noise_multiplier": 0.5}, **mixed)
    e, top = result.estimates["success"], result.bounds["one noisy update"]
    if not mixed:
        assert e.low <= stats.norm.cdf(1.0) <= e.high
    assert e.value > 0.65
    assert e.low <= top.value == pytest.approx(stats.norm.cdf(2.0))


def test_more_noise_in_training_never_reads_as_more_leak():
    areas = [
        audited({"recorded": 120}, dp_sgd={"noise_multiplier": z}).estimates["AUC"]
        for z in (0.2, 1.0, 5.0)
    ]
    assert areas[1].low <= areas[0].high
    assert areas[2].low <= areas[1].high
    assert areas[0].low > areas[2].high


def test_a_target_epsilon_is_taken_as_the_noise_of_the_run():
    result = audited({"recorded": 20}, dp_sgd={"epsilon": 2.0})
    assert 0.5 < result.bounds["one step of DP-SGD"].value < 1.0


def test_attention_refuses_noise():
    result = audited({"adversary": "attention"}, dp_sgd={"noise_multiplier": 0.5})
    assert "noise, which makes all of them non-zero" in result.not_applicable


def test_a_gossip_run_has_nobody_who_could_plant_weights():
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [4]},
            "topology": {"kind": "ring"},
            "federation": {"clients": 5, "rounds": 1, "aggregation": "gossip"},
            "audits": {"active_membership": {}},
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    desk = Desk(trace, truth, Seed(1), lambda: of_config(config, trace), config)
    result = audit_one(config.audits["active_membership"], trace, truth, 1, desk)
    assert "nobody sends models to all clients" in result.not_applicable


def test_the_runs_own_mechanism_is_used_unless_the_audit_has_one():
    own = audited({"recorded": 0}, local_dp={"epsilon": 2.0})
    assert any("local DP by grr: claimed epsilon 128" in note for note in own.notes)
    other = audited(
        {"recorded": 0, "local_dp": {"mechanism": "laplace", "epsilon": 1.0}},
        local_dp={"epsilon": 2.0},
    )
    assert any("local DP by laplace" in note for note in other.notes)
    assert any("in place of the run's" in note for note in other.notes)


def test_a_config_with_a_bad_mechanism_is_refused():
    with pytest.raises(ConfigError, match="alphabet"):
        audited({"local_dp": {"epsilon": 1.0, "alphabet": 1}})


def test_what_if_protections_stand_before_the_server_in_games_too():
    added = {"name": "secure_sum", "covers": ["sender"], "applied": "exactly"}
    result = audited({"recorded": 20}, as_if=[added])
    assert "right client named" in result.estimates
    assert any("behind secure_sum, as if" in note for note in result.notes)


# -- mechanisms without a table -------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism",
    [
        {"mechanism": "rappor", "epsilon": 4.0, "alphabet": 16, "hashes": 2, "filter_bits": 32},
        {"mechanism": "grr", "epsilon": 12.0, "alphabet": 5000},
        {"mechanism": "rappor", "epsilon": 20.0, "alphabet": 3000},
        {"mechanism": "bitrand", "epsilon": 8.0, "bits": 40, "integer_bits": 5},
    ],
    ids=["bloom", "large-grr", "large-rappor", "40-bits"],
)
def test_mechanisms_whose_law_is_not_written_out_are_played_too(mechanism):
    own = {"games": 100, "simulated": 100, "universe": 60, "recorded": 20, "records": 4}
    result = audited({**own, "local_dp": mechanism})
    assert result.not_applicable is None
    assert any("20 of 20 games" in note for note in result.notes)
    assert result.estimates["success"].n == 100


@pytest.mark.parametrize("mechanism", ["grr", "rappor", "dbitflip"])
def test_a_large_alphabet_is_drawn_by_its_symmetric_law(mechanism):
    hook = LocalDP(mechanism=mechanism, epsilon=16.0, alphabet=2000)
    book = channel_of(hook, 1).codes
    assert book.table is None
    assert book.transition is None
    codes = np.full(20_000, 700, dtype=np.int32)
    kept = (book.draw(codes, np.random.default_rng(1)) == 700).mean()
    x = np.full((1000, 1), 700 / 1999)
    slow, _ = hook.randomise(x, np.random.default_rng(2))
    read = (np.abs(slow - x) < 1e-9).mean()
    assert kept == pytest.approx(book.symmetric[1], abs=4.5 * math.sqrt(0.25 / 20_000))
    assert read == pytest.approx(kept, abs=4.5 * math.sqrt(0.25 / 1000))
    published = LocalDP(mechanism="rappor", alphabet=2000, decoder="published")
    assert channel_of(published, 1).codes is None


def test_exact_grr_stands_beside_a_smaller_universe(tmp_path):
    """Records of one feature that use nine of twenty values: the reference is still exact."""
    x = np.repeat([0, 1, 2, 5, 8, 11, 14, 17, 19], 40) / 19
    lines = [f"{v!r},{i % 2}" for i, v in enumerate(x.tolist())]
    (tmp_path / "one.csv").write_text("\n".join(["v,y", *lines]) + "\n")
    other = {"data": {"path": str(tmp_path / "one.csv"), "label": "y", "standardise": False}}
    mechanism = {"epsilon": 3.0, "alphabet": 20}
    own = {"games": 4000, "recorded": 0, "records": 4, "threshold": "theory"}
    result = audited({**own, "local_dp": mechanism}, other=other)
    e, exact = result.estimates["success"], result.bounds["exact for this adversary"]
    assert e.low <= exact.value <= e.high
    assert result.bounds["Theorem 4"].value <= exact.value


# -- tokens and patches ---------------------------------------------------------------------------


@pytest.mark.parametrize("embedding", ["fourier", "linear", "one_hot", "model"])
def test_attention_finds_windows_of_tokens(embedding):
    own = {"adversary": "attention", "embedding": embedding, "recorded": 12, "records": 3}
    result = audited({**own, "games": 100, "simulated": 60}, other=TEXT)
    assert result.estimates["success"].low > 0.7
    assert any("12 of 12 games" in note for note in result.notes)
    assert any("of 400 tokens" in note for note in result.notes)


def test_tokens_are_randomised_over_the_vocabulary():
    own = {"recorded": 12, "records": 4, "local_dp": {"epsilon": 12.0}}
    result = audited(own, other=TEXT)
    assert any("claimed epsilon 144 per record" in note for note in result.notes)
    assert result.estimates["success"].low > 0.6
    with pytest.raises(ConfigError, match="does not fit tokens"):
        audited({**own, "local_dp": {"mechanism": "laplace"}}, other=TEXT)


def test_attention_sees_the_patches_of_the_runs_own_transformer():
    own = {"adversary": "attention", "embedding": "model", "recorded": 12, "records": 2}
    result = audited(own, other=IMAGES)
    assert result.not_applicable is None
    assert any("12 of 12 games" in note for note in result.notes)
    none = audited(own)
    assert "has nothing to take" in none.not_applicable
    tokens = audited({**own, "embedding": "one_hot"})
    assert 'tokens for "one_hot"' in tokens.not_applicable


# -- columns that are standardised ----------------------------------------------------------------


@pytest.fixture
def csv(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.random((120, 3)).round(3)
    lines = [",".join(map(str, [*row, int(row[0] > 0.5)])) for row in x.tolist()]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return {"data": {"path": str(tmp_path / "own.csv"), "label": "y"}}


def test_clients_that_randomise_their_records_do_not_pool_them_first(csv):
    result = audited({"recorded": 12, "records": 4}, other=csv, local_dp={"alphabet": 4})
    assert any("local DP by grr" in note for note in result.notes)
    csv["data"]["standardise"] = True
    with pytest.raises(ConfigError, match="standardised columns") as caught:
        audited({}, other=csv, local_dp={"alphabet": 4})
    assert "data.standardise = false" in caught.value.remedy


def test_columns_beyond_the_bounds_are_said_to_come_as_they_are(csv, tmp_path):
    file = tmp_path / "own.csv"
    file.write_text(file.read_text() + "7.5,0.1,0.2,1\n")
    with pytest.raises(DataError, match="outside the encoder's range") as caught:
        audited({}, other=csv, local_dp={"alphabet": 4})
    assert "under local_dp they are not standardised" in caught.value.remedy


def test_a_mechanism_of_the_audit_alone_says_that_columns_are_standardised(csv):
    own = {"recorded": 0, "records": 4}
    with pytest.raises(DataError, match="outside the encoder's range") as caught:
        audited({**own, "local_dp": {"alphabet": 4}}, other=csv)
    assert "data.standardise = false" in caught.value.remedy
    wide = {"alphabet": 4, "low": -3.0, "high": 3.0}
    result = audited({**own, "local_dp": wide}, other=csv)
    assert any("its budget does not count that" in note for note in result.notes)
    csv["data"]["standardise"] = False
    plain = audited({**own, "local_dp": {"alphabet": 4}}, other=csv)
    assert not any("standardised" in note for note in plain.notes)
