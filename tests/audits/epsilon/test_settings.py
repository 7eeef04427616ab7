"""Runs without a fault and with unusual settings: they are measured, and nothing contradicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit.accounting import Exposure, privacy_curve
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.audits.epsilon.gauge import spread_interval
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.federation.local.trainer import ClientData
from fedaudit.knowledge.rehearsal import as_members, rehearsals_of
from fedaudit.protections.central_dp import CentralDP
from fedaudit.protections.clip import Clip
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import contradicts
from fedaudit.trace import MemoryRecorder
from fedaudit.trace.truth import MembersOnly

NOISE = DPSGD(noise_multiplier=1.0, clip=0.5)


def contradictions(result):
    return {
        name: bound.suspect
        for name, bound in result.bounds.items()
        if contradicts(bound, result.estimates[bound.of])
    }


def changed(made, *hooks, training=None, data=None, **rounds):
    """The federation with other protections, training, data or rounds."""
    return replace(
        made,
        protections=hooks or made.protections,
        training=replace(made.training, **(training or {})),
        data=made.data if data is None else data,
        rounds=replace(made.rounds, **rounds),
    )


def of_sizes(made, sizes):
    """Clients that keep their first examples alone."""
    pairs = zip(made.data.starts, sizes, strict=True)
    rows = [slice(int(low), int(low) + n) for low, n in pairs]
    return ClientData.join([(made.data.x[r], made.data.y[r]) for r in rows])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("hooks", [(NOISE,), (NOISE, Shuffle())], ids=["named", "shuffled"])
def test_other_participants_than_in_the_run_are_no_fault(hooks, seed, federation, audited):
    """The rehearsal draws its own participants, and declares the rounds that they take part in."""
    made = changed(federation(seed=seed), *hooks, participation=0.5)
    result = audited(made, seed, canaries=200)
    assert contradictions(result) == {}
    assert result.estimates["steps"].value == result.estimates["steps"].baseline


@pytest.mark.parametrize("kind", ["dense", "layer", "record"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_each_kind_alone_and_a_single_round(kind, rounds, federation, audited):
    result = audited(changed(federation(), rounds=rounds), canaries=100, kinds=(kind,))
    assert contradictions(result) == {}
    assert result.estimates["epsilon"].n == pytest.approx(100, abs=20)


def test_canary_clients_of_a_single_round(federation, audited):
    made = changed(federation(), CentralDP(noise_multiplier=1.0, clip=0.5), rounds=1)
    result = audited(made, canaries=100, kinds=("client",))
    assert contradictions(result) == {}
    assert "noise_between_rounds" not in result.estimates


def test_too_little_noise_in_a_single_round_is_said(federation, audited):
    class TooLittle(CentralDP):
        def aggregate(self, total, *, round_number, seed):
            weaker = CentralDP(noise_multiplier=0.3, clip=0.5)
            return weaker.aggregate(total, round_number=round_number, seed=seed)

    made = changed(federation(), TooLittle(noise_multiplier=1.0, clip=0.5), rounds=1)
    found = contradictions(audited(made, canaries=100, kinds=("client",)))
    assert any("less noise than declared" in said for said in found.values())


def test_canaries_that_cannot_be_placed_are_refused(federation, audited):
    with pytest.raises(ConfigError, match="production"):
        EpsilonAudit(mode="production", norms=(1.0,), kinds=("record",))
    made = federation()
    flat = replace(made.data, x=torch.ones(len(made.data.x), 30, dtype=torch.float32))
    flat = replace(flat, y=torch.nn.functional.one_hot(made.data.y).float())
    with pytest.raises(NotApplicable, match="record canaries"):
        audited(replace(made, data=flat), canaries=50, kinds=("record",))


@pytest.mark.parametrize(
    "other", [CentralDP(noise_multiplier=1.0, clip=0.3), Clip(bound=0.3)], ids=["central", "clip"]
)
def test_uploads_that_are_clipped_after_dp_sgd_are_no_fault(other, federation, audited):
    result = audited(changed(federation(), NOISE, other), canaries=200)
    assert contradictions(result) == {}
    assert not any(name.startswith(("noise", "gain")) for name in result.estimates)
    assert any(f"({other.name})" in note for note in result.notes)


@pytest.mark.parametrize("hooks", [(NOISE,), (NOISE, Shuffle())], ids=["named", "shuffled"])
def test_clients_of_unequal_sizes_are_no_fault(hooks, federation, audited):
    """Their steps differ, and so does the noise in their uploads."""
    made = federation()
    made = changed(
        made, *hooks, data=of_sizes(made, [20, 80, 40, 12]), training={"steps": None, "epochs": 1}
    )
    result = audited(made, canaries=200)
    assert contradictions(result) == {}
    assert any("bear no names" in note for note in result.notes) == (len(hooks) > 1)


def test_shared_noise_is_found_among_shuffled_rows(federation, audited):
    class Shared(DPSGD):
        def step(self, sums, *, clients, **at):
            noise = torch.zeros_like(sums[:1])
            super().step(noise, clients=clients[:1], **at)
            sums += noise

    made = changed(federation(), Shared(noise_multiplier=1.0, clip=0.5), Shuffle())
    found = contradictions(audited(made, canaries=200))
    assert "Clients share" in found["noise_between_clients, at least"]


@pytest.mark.parametrize(
    ("pool", "rate", "n"), [(80, 0.2, 60), (5, 0.2, 100), (100, 0.01, 100), (12, 0.5, 25)]
)
def test_the_spread_of_binomial_sizes_rarely_leaves_its_interval(pool, rate, n):
    """20,000 draws at a level of one percent per side, of sizes and of counts of rare draws."""
    rng = np.random.default_rng(0)
    sizes = rng.binomial(pool, rate, (20_000, n))
    spread = (np.square(sizes - pool * rate) / (pool * rate * (1 - rate))).mean(axis=1)
    low, high = spread_interval(1.0, np.full(n, float(pool)), np.full(n, rate), 0.01)
    assert 0 < low < high < np.inf
    assert np.isfinite(spread_interval(1.0, np.full(3, 20.0), np.full(3, 0.1), 1e-5)).all()
    for missed in (np.mean(spread * low > 1), np.mean(spread * high < 1)):
        assert missed <= 0.013  # 0.01 and four deviations


def test_an_epsilon_is_rounded_to_its_own_side():
    """A promise upwards, a lower bound downwards; exact in between."""
    for exposure in (
        Exposure(sampling_rate=0.2, steps=5, rounds=8),
        Exposure(sampling_rate=1.0, steps=1, rounds=4),
    ):
        curve = privacy_curve(exposure, 2.0)
        below, above = curve.epsilon_at(1e-5, below=True), curve.epsilon_at(1e-5)
        assert 0 < below < above < below + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_unequal_shuffled_clients_that_sit_out_are_no_fault(seed, federation, audited):
    """Their steps, their noise and their rounds all differ."""
    made = federation(seed=seed)
    made = changed(
        made,
        NOISE,
        Shuffle(),
        data=of_sizes(made, [20, 80, 40, 12]),
        training={"steps": None, "epochs": 1},
        participation=0.5,
    )
    assert contradictions(audited(made, seed, canaries=150)) == {}


class OnceARound(DPSGD):
    def step(self, sums, *, step, **at):
        if step == 0:
            super().step(sums, step=step, **at)


@pytest.mark.parametrize("faulty", [False, True])
def test_the_noise_of_the_run_itself_is_measured(faulty, federation):
    """A sound rehearsal says nothing about a run with another loop."""
    made, audit = federation(), EpsilonAudit(canaries=100, kinds=("dense",))
    ran = changed(made, OnceARound(noise_multiplier=1.0, clip=0.5)) if faulty else made
    recorder = MemoryRecorder(**ran.about())
    ran.run(recorder)
    played = rehearsals_of(audit, made, made.party, Seed(1))
    known = Knowledge(extra={"rehearsals": tuple(r.seen for r in played)})
    rng = np.random.default_rng(0)
    guess = audit.attack(recorder.trace().seen_by("server"), known, rng)
    result = audit.score(guess, MembersOnly(as_members(played)), rng)
    found = contradictions(result)
    assert "run_noise (0.weight)" in result.estimates
    assert all(name.startswith("run_noise") for name in found)
    assert bool(found) == faulty
    assert all(said.startswith("In the run itself: There is less noise") for said in found.values())


class Halved(DPSGD):
    def step(self, sums, **at):
        noise = torch.zeros_like(sums)
        super().step(noise, **at)
        sums.add_(noise, alpha=0.5)


UNEQUAL = {"weighting": "size", "server_learning_rate": 0.5}


@pytest.mark.parametrize(
    ("hooks", "rounds", "vantage"),
    [
        ((NOISE, SecureSum()), {}, "server"),
        ((NOISE, SecureSum()), UNEQUAL, "server"),
        ((NOISE,), {}, "client-00+public"),
    ],
    ids=["sums", "unequal", "models"],
)
def test_sums_show_canaries_in_the_movement_of_the_model(
    hooks, rounds, vantage, federation, audited
):
    """Every client's canaries count in its own weight: gains and noise are those of the sum."""
    made = changed(federation(), *hooks, **rounds)
    if rounds:
        made = replace(made, data=of_sizes(made, [50, 80, 70, 60]))
    result = audited(made, canaries=1000, vantage=vantage)
    assert contradictions(result) == {}
    assert result.vantage == vantage
    for name in ("gain (norm 1)", "gain (norm 1000)"):
        assert result.estimates[name].value == pytest.approx(1.0, abs=0.35)
        assert result.estimates[name].low > 0
    assert result.estimates["noise (0.weight)"].value == pytest.approx(1.0, abs=0.15)
    assert "noise_between_clients" not in result.estimates


def test_too_little_noise_is_found_in_sums(federation, audited):
    made = changed(federation(), Halved(noise_multiplier=1.0, clip=0.5), SecureSum())
    found = contradictions(audited(made, canaries=200))
    assert "There is less noise than declared" in found["noise (0.weight), at least"]


def test_persons_and_noise_of_each_client_are_no_fault(federation, audited):
    made = federation()
    own = replace(NOISE, noise_multiplier=(1.0, 0.8, 2.0, 1.5))
    persons = replace(made.data, person=torch.arange(len(made.data.x)) // 2)
    for hook, data in ((own, made.data), (replace(NOISE, unit="person"), persons)):
        result = audited(replace(made, protections=(hook,), data=data), canaries=200)
        assert contradictions(result) == {}
        assert result.bounds["declared"].unit == hook.unit
        assert result.estimates["gain (norm 1)"].value == pytest.approx(1.0, abs=0.3)
    assert len(result.per_client) == 4
