"""Clipped sums equal Opacus', noise is right and independent, promises are the accountant's."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.accounting import Exposure, epsilon
from fedaudit.errors import ConfigError
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.randomness import Seed
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import Attention, cnn, mlp
from fedaudit.tasks.task import Task, seeded

SEED = Seed(11)
# Opacus hooks the input layer, whose input needs no gradient: torch remarks on it
OPACUS = "ignore:Full backward hook is firing:UserWarning"


def classifier(build, *args) -> Classifier:
    return Classifier(seeded(SEED, "weights", build, *args))


class Words(nn.Module):
    """Embedding, attention, normalisation, mean, linear: the layers of a text model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attn = Attention(8, 2, causal=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attn(self.norm(self.tokens(x))).mean(-2))


class OpacusWords(nn.Module):
    """The same in layers that Opacus can differentiate per example (q, k, v as one Linear)."""

    def __init__(self, twin: Words) -> None:
        super().__init__()
        self.tokens = copy.deepcopy(twin.tokens)
        self.norm = copy.deepcopy(twin.norm)
        self.qkv = copy.deepcopy(twin.attn.qkv)
        self.proj = copy.deepcopy(twin.attn.proj)
        self.head = copy.deepcopy(twin.head)

    def forward(self, x):
        q, k, v = (
            self.qkv(self.norm(self.tokens(x))).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(4), dim=-1)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        return self.head(self.proj(mixed).mean(-2))


def opacus_sums(module: nn.Module, x, y, clip: float) -> torch.Tensor:
    """Per-example gradients by Opacus' own module wrapper, clipped and added up."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)
    factor = (clip / each.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
    return (each * factor[:, None]).sum(0)


G = torch.Generator().manual_seed(1)
CASES = {
    "linear": (lambda: mlp(12, (9,), 3), torch.randn(7, 12, generator=G), "analytic"),
    "conv and group norm": (
        lambda: cnn((2, 8, 8), (4, 8), 3),
        torch.randn(7, 2, 8, 8, generator=G),
        "auto",
    ),
    "embedding and attention": (Words, torch.randint(0, 11, (7, 5), generator=G), "auto"),
}


@pytest.mark.filterwarnings(OPACUS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clip", [0.05, 0.5, 100.0])
def test_clipped_sums_equal_opacus(case, clip):
    build, x, tier = CASES[case]
    task = classifier(build)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    twin = OpacusWords(task.module) if isinstance(task.module, Words) else task.module
    theirs = opacus_sums(twin, x, y, clip)
    seen = {}

    def look(sums, *, clients, round_number, step):
        seen["sums"] = sums.clone()

    training = Training(batch_size=0, learning_rate=0.1)
    trainer = Trainer(task, training, SEED, clip=clip, step=look, tier=tier)
    trainer.train(task.initial(), np.array([0]), ClientData.join([(x, y)]), 1)
    assert (seen["sums"][0] - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max()))


def small() -> tuple[Task, ClientData]:
    task = classifier(mlp, 6, (5,), 3)
    parts = [
        (torch.randn(n, 6, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3)
        for n in (9, 14, 20, 31)
    ]
    return task, ClientData.join(parts)


def noise(hook: DPSGD, clients, round_number: int, step: int, width: int = 40_000):
    sums = torch.zeros(len(clients), width)
    hook.step(sums, clients=np.array(clients), round_number=round_number, step=step, seed=SEED)
    return sums


def test_noise_has_the_stated_variance():
    hook = DPSGD(noise_multiplier=1.0, clip=0.7)
    drawn = noise(hook, range(10), 1, 0, width=100_000)
    assert float(drawn.std()) == pytest.approx(0.7, rel=0.01)
    assert abs(float(drawn.mean())) < 5 * 0.7 / 1000
    per_client = noise(DPSGD(noise_multiplier=(0.5, 2.0), clip=1.0), [0, 1], 1, 0)
    assert float(per_client[0].std()) == pytest.approx(0.5, rel=0.02)
    assert float(per_client[1].std()) == pytest.approx(2.0, rel=0.02)


def test_noise_is_uncorrelated_across_clients_rounds_and_steps():
    hook = DPSGD(noise_multiplier=1.0)
    draws = torch.cat(
        [noise(hook, [0, 1, 2], r, s) for r in (1, 2, 3) for s in (0, 1, 2)]
    )  # 27 rows
    correlation = torch.corrcoef(draws)
    off = correlation[~torch.eye(27, dtype=torch.bool)].abs()
    assert float(off.max()) < 5 / math.sqrt(40_000)
    assert torch.equal(noise(hook, [1], 2, 1)[0], noise(hook, [0, 1, 2], 2, 1)[1])


def test_a_noisy_round_is_a_clipped_round_plus_its_noise():
    """Through the whole trainer: the difference of two runs is the noise over the batch size."""
    task, data = small()
    training = Training(batch_size=4, steps=1, sampling="poisson", learning_rate=0.5)
    clients = np.arange(4)

    def deltas(z: float):
        hook = DPSGD(noise_multiplier=z, clip=0.3)

        def step(sums, *, clients, round_number, step):
            hook.step(sums, clients=clients, round_number=round_number, step=step, seed=SEED)

        return Trainer(task, training, SEED, clip=0.3, step=step).train(
            task.initial(), clients, data, 1
        )

    width = task.layout.width
    expected = noise(DPSGD(noise_multiplier=1.0, clip=0.3), clients, 1, 0, width) * (-0.5 / 4)
    assert torch.allclose(deltas(1.0) - deltas(0.0), expected, atol=1e-6)


def test_one_record_moves_the_sum_by_at_most_the_bound():
    """The sensitivity that the accountant is told, on real gradients."""
    task, _ = small()
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(12, 6, generator=g) * 30, torch.arange(12) % 3
    seen = []

    def look(sums, *, clients, round_number, step):
        seen.append(sums.clone())

    for rows in (slice(0, 12), slice(0, 11)):
        trainer = Trainer(task, Training(batch_size=0), SEED, clip=0.25, step=look)
        trainer.train(task.initial(), np.array([0]), ClientData.join([(x[rows], y[rows])]), 1)
    assert float((seen[0] - seen[1]).norm()) <= 0.25 + 1e-6


def test_one_person_moves_the_sum_by_at_most_the_bound():
    task, _ = small()
    g = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, 6, generator=g) * 30, torch.arange(12) % 3
    person = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3])
    seen = []

    def look(sums, *, clients, round_number, step):
        seen.append(sums.clone())

    for keep in (torch.ones(12, dtype=torch.bool), person != 3):
        data = ClientData.join([(x[keep], y[keep])], [person[keep]])
        trainer = Trainer(
            task, Training(batch_size=0), SEED, clip=0.25, clip_unit="person", step=look
        )
        trainer.train(task.initial(), np.array([0]), data, 1)
    moved = float((seen[0] - seen[1]).norm())
    assert 0.2 < moved <= 0.25 + 1e-6


def test_persons_are_sampled_whole():
    from fedaudit.federation.local.schedule import plan

    person = np.repeat(np.arange(10), 4)
    training = Training(batch_size=10, steps=30, sampling="poisson")
    s = plan(training, np.array([0]), np.array([0]), np.array([40]), SEED, 1, person)
    for step in range(30):
        taken = person[s.index[0, step][s.valid[0, step]]]
        assert (np.bincount(taken, minlength=10) % 4 == 0).all()


def test_promises_are_the_accountants_and_calibration_meets_them():
    exposures = tuple(Exposure(sampling_rate=q, steps=5, rounds=4) for q in (0.1, 0.3, 0.2))
    hook = DPSGD(epsilon=2.0).resolved(exposures)
    values = [hook.guarantee(c, e).epsilon for c, e in enumerate(exposures)]
    assert max(values) <= 2.0
    assert max(values) > 1.95
    own = DPSGD.calibrated(2.0, exposures, per_client=True)
    assert all(1.95 < own.guarantee(c, e).epsilon <= 2.0 for c, e in enumerate(exposures))
    g = DPSGD(noise_multiplier=1.3, unit="person").guarantee(0, exposures[0])
    assert g.unit == "person"
    assert g.epsilon == epsilon(exposures[0], 1.3, 1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": -1.0}, {"clip": 0.0}, {"delta": 0.0}, {"noise_multiplier": math.nan}],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError):
        DPSGD(**wrong)


@pytest.mark.parametrize("count", [2, 4])
def test_multipliers_must_be_as_many_as_clients(count):
    with pytest.raises(ConfigError, match="does not fit"):
        DPSGD(noise_multiplier=(1.0,) * count).check_clients(3)


def test_noise_of_zero_covers_nothing_and_two_settings_are_refused():
    assert DPSGD(noise_multiplier=0.0).covers == ()
    assert DPSGD(noise_multiplier=(1.0, 0.0)).covers == ()
    assert DPSGD(noise_multiplier=0.5).covers == ("parameter",)
    with pytest.raises(ConfigError, match="two settings"):
        DPSGD(noise_multiplier=2.0, epsilon=3.0)
