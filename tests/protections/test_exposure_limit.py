"""Exposure limit: against a slow twin, in training, and against dW / db."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedaudit
from fedaudit.accounting import Exposure
from fedaudit.errors import ConfigError, UsageError
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.protected import protected_trainer
from fedaudit.layout import Layout
from fedaudit.protections import ExposureLimit, UpdateNoise
from fedaudit.protections.exposure_limit import DRIVES
from fedaudit.randomness import Seed
from fedaudit.tasks.classifier import Classifier
from reproductions.guard import plants, rounds
from reproductions.guard.exposure_limit import answered, exact

LAYOUT = Layout.of(
    [("1.weight", (3, 4)), ("1.bias", (3,)), ("scale", ()), ("2.weight", (2, 1, 2, 2))]
)
ONLY_DROPS = ExposureLimit(noise_multiplier=0.0, clip=1e6)
TINY = {
    "seed": 2,
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 2},
    "audits": {"fingerprint": {"methods": ["greedy"]}},
}


def gradients(seed, clients=2, batch=5):
    """Gradients in which many units see few records."""
    generator = torch.Generator().manual_seed(seed)
    each = torch.randn(clients, batch, LAYOUT.width, generator=generator)
    units = torch.rand(clients, batch, 6, generator=generator)
    shown = units[..., [0] * 4 + [1] * 4 + [2] * 4 + [0, 1, 2, 3] + [4] * 4 + [5] * 4]
    return each * (shown < 0.35) * torch.where(shown < 0.1, 0.01, 1.0)


# -- dropping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2, 3])
def test_dropping_is_that_of_a_loop_over_units(least):
    each = gradients(least)
    fast = ExposureLimit(least_records=least).for_layout(LAYOUT).gradient(each)
    units = [[*range(4 * u, 4 * u + 4), 12 + u] for u in range(3)]
    units += [[15], [16, 17, 18, 19], [20, 21, 22, 23]]
    for k in range(len(each)):
        for columns in units:
            norms = each[k][:, columns].norm(dim=1)
            drives = int(((norms >= DRIVES * norms.max()) & (norms > 0)).sum())
            expected = each[k][:, columns] if drives >= least else torch.zeros(5, len(columns))
            assert torch.equal(fast[k][:, columns], expected)


def test_a_batch_that_would_lose_too_many_units_is_refused_whole():
    each = gradients(3)
    limit = ExposureLimit(least_records=2).for_layout(LAYOUT)
    lost = (limit.gradient(each) != each).any(dim=(1, 2))
    assert lost.all()  # some unit of both clients sees one record
    strict = ExposureLimit(least_records=2, refuse_above=0.0).for_layout(LAYOUT)
    assert not strict.gradient(each).any()
    lenient = ExposureLimit(least_records=2, refuse_above=0.99).for_layout(LAYOUT)
    assert torch.equal(lenient.gradient(each), limit.gradient(each))


@pytest.mark.parametrize("kind", ["mlp", "cnn", "tokens"])
def test_plain_torch_drops_what_a_run_drops(kind):
    torch.manual_seed(4)
    if kind == "mlp":
        module = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        x = torch.randn(4, 6)
    elif kind == "cnn":
        module = nn.Sequential(
            nn.Conv2d(1, 5, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
        )
        x = torch.randn(4, 1, 4, 4) - 1.0
    else:
        module = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
        x = torch.randn(4, 3, 2)
    with torch.no_grad():
        module[0].bias -= 0.8
    y = torch.arange(4) % 3
    parameters = list(module.named_parameters())
    layout = Layout.of([(n, tuple(p.shape)) for n, p in parameters])
    rows = []
    for i in range(4):
        loss = F.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        )
    each = torch.stack(rows).unsqueeze(0)
    expected = ONLY_DROPS.for_layout(layout).gradient(each).mean(dim=1)[0]
    assert not torch.equal(expected, each.mean(dim=1)[0])
    for _ in range(2):  # a second pass counts its own records only
        module.zero_grad()
        with ONLY_DROPS.dropping() as watched:
            F.cross_entropy(module(x), y).backward()
        found = torch.cat([p.grad.flatten() for p in module.parameters()])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
        assert watched.dropped > 0
        assert watched.units == sum(p.shape[0] for n, p in parameters if n.endswith("bias"))
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()  # outside of the block nothing is dropped
    found = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(found, each.mean(dim=1)[0], rtol=1e-4, atol=1e-7)


def test_layers_that_are_left_alone_are_named():
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 2))
    with ONLY_DROPS.dropping() as watched:
        module(torch.ones(3, 2, dtype=torch.long)).sum().backward()
    assert watched.unread == {"Embedding"}


# -- what leaves -----------------------------------------------------------------------------------


def test_an_answer_is_clipped_and_has_the_noise_that_is_accounted_for():
    received = {"w": torch.zeros(40_000), "seen": torch.tensor(3)}
    moved = {"w": torch.full((40_000,), 0.5), "seen": torch.tensor(9)}
    generator = torch.Generator().manual_seed(1)
    limit = ExposureLimit(clip=2.0)
    quiet = ExposureLimit(clip=2.0, noise_multiplier=0.0).answer(received, moved, generator)
    assert float(quiet["w"].norm()) == pytest.approx(2.0, rel=1e-4)
    assert int(quiet["seen"]) == 3
    noise = limit.answer(received, received, generator)["w"]
    assert float(noise.std()) == pytest.approx(0.2, rel=0.03)
    assert not torch.equal(limit.answer(received, moved)["w"], limit.answer(received, moved)["w"])
    lost = limit.answer(received, {**moved, "w": torch.full((40_000,), torch.nan)}, generator)
    assert torch.isfinite(lost["w"]).all()
    with pytest.raises(UsageError, match="cannot be computed"):
        limit.answer(received, {"w": moved["w"]})


def test_the_promise_is_that_of_the_noise():
    exposure = Exposure(sampling_rate=0.2, steps=5, rounds=6)
    own = ExposureLimit(noise_multiplier=0.7).guarantee(0, exposure)
    noise = UpdateNoise(noise_multiplier=0.7).guarantee(0, exposure)
    assert own == noise
    assert own.unit == "client"
    assert ExposureLimit().guarantee(0, exposure).epsilon > 1000
    assert any("promises nothing" in words for words in ExposureLimit().remarks())


def exact_records(model, limit):
    """Records that three answers hand over, of 300."""
    found = 0
    for seed in range(3):
        run = rounds.honest_run("mlp", "digits", 400 + seed, 3)
        rng = np.random.default_rng(seed)
        state = run.states[-1] if model == "honest" else plants.imprint(run, 3, rng)[0][0]
        found += exact(run, state, answered(run, state, run.local, limit, seed))
    return found


def test_nothing_is_exact_behind_the_limit_and_its_parts_do_less():
    assert exact_records("honest", None) >= 5
    assert exact_records("honest", ONLY_DROPS) == 0
    imprinted = exact_records("imprint", None)
    assert imprinted >= 20
    assert (
        exact_records("imprint", ExposureLimit(noise_multiplier=0.0, least_records=1)) == imprinted
    )
    assert exact_records("imprint", ONLY_DROPS) >= imprinted / 2  # differences of units hold them
    assert exact_records("imprint", ExposureLimit()) == 0


# -- in a run --------------------------------------------------------------------------------------


def ran(tmp_path, name, settings):
    protections = {} if settings is None else {"exposure_limit": settings}
    return fedaudit.run({**TINY, "protections": protections}, tmp_path / name)


def test_a_run_without_effect_is_the_unprotected_run(tmp_path):
    nothing = {"least_records": 1, "noise_multiplier": 0.0, "clip": 1e6}
    plain = ran(tmp_path, "plain", None)
    same = ran(tmp_path, "same", nothing)
    other = ran(tmp_path, "other", {**nothing, "least_records": 8})
    (plain,), (same,), (other,) = plain.runs, same.runs, other.runs
    assert same.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-4)
    assert other.metrics["loss"] != pytest.approx(plain.metrics["loss"], rel=1e-4)


def test_layers_that_mix_a_batch_are_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    task = Classifier(module, {"kind": "module"})
    several = {"clients": 3, "copies": 1, "persons": False, "tier": "auto"}
    with pytest.raises(ConfigError, match="mixes the examples of a batch"):
        protected_trainer(task, Training(), [ExposureLimit()], Seed(1), **several)


def fails_inside(module):
    with ONLY_DROPS.dropping():
        module(torch.ones(1, 2)).sum().backward()
        raise ZeroDivisionError


def test_no_hook_stays_behind_an_error():
    module = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError):
        fails_inside(module)
    assert not module.weight.grad.any()  # one record drives it
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad.any()
