"""Clipping, central noise, noise at the client, and the ideal secure sum."""

import math

import numpy as np
import pytest
import torch

from fedaudit.accounting import Exposure, epsilon
from fedaudit.errors import ConfigError
from fedaudit.hooks import Uploads
from fedaudit.protections.central_dp import CentralDP
from fedaudit.protections.clip import Clip
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed

SEED = Seed(5)


def uploads(n: int = 4, d: int = 7, **changes) -> Uploads:
    rows = torch.arange(n * d, dtype=torch.float32).view(n, d) + 1
    values = {
        "rows": rows,
        "senders": tuple(f"client-{i}" for i in range(n)),
        "weights": np.ones(n),
        "origin": np.arange(n),
        "total_weight": float(n),
    }
    return Uploads(**{**values, **changes})


def test_clip_bounds_long_updates_and_leaves_short_ones():
    u = uploads()
    out = Clip(bound=20.0).upload(u, round_number=1, seed=SEED)
    norms = out.rows.norm(dim=1)
    assert torch.allclose(norms, u.rows.norm(dim=1).clamp_max(20.0), rtol=1e-5)
    cosine = torch.nn.functional.cosine_similarity(out.rows, u.rows)
    assert torch.allclose(cosine, torch.ones(4))


def test_central_noise_goes_on_the_sum_with_the_stated_deviation():
    hook = CentralDP(noise_multiplier=2.0, clip=0.5)
    total = torch.zeros(200_000)
    noisy = hook.aggregate(total, round_number=3, seed=SEED)
    assert float(noisy.std()) == pytest.approx(1.0, rel=0.01)
    other = hook.aggregate(total, round_number=4, seed=SEED)
    assert abs(float(torch.corrcoef(torch.stack([noisy, other]))[0, 1])) < 0.02
    promise = hook.guarantee(0, Exposure(sampling_rate=0.1, steps=9, rounds=5))
    assert (promise.unit, promise.relation) == ("client", "zero_out")
    alone = Exposure(sampling_rate=1.0, steps=1, rounds=5)
    assert promise.epsilon == epsilon(alone, 2.0, 1e-5)


@pytest.mark.parametrize("weights", [(1.0, 2.0, 1.0, 1.0), (20.0, 20.0, 20.0, 20.0)])
def test_central_noise_needs_every_client_to_count_once(weights):
    """Equal weights of 20 would let one client move the sum by twenty times the bound."""
    with pytest.raises(ConfigError, match="equal client weights"):
        CentralDP().upload(uploads(weights=np.array(weights)), round_number=1, seed=SEED)


def test_noise_at_the_client_is_independent_and_accounts_for_replacement():
    hook = UpdateNoise(noise_multiplier=3.0, clip=0.2)
    zero = uploads(rows=torch.zeros(4, 50_000))
    first = hook.upload(zero, round_number=1, seed=SEED).rows
    second = hook.upload(zero, round_number=2, seed=SEED).rows
    assert float(first.std()) == pytest.approx(0.6, rel=0.01)
    off = torch.corrcoef(torch.cat([first, second]))[~torch.eye(8, dtype=torch.bool)]
    assert float(off.abs().max()) < 5 / math.sqrt(50_000)
    promise = hook.guarantee(0, Exposure(sampling_rate=0.5, steps=2, rounds=4))
    assert (promise.unit, promise.relation) == ("client", "replace")
    alone = Exposure(sampling_rate=1.0, steps=1, rounds=4)
    assert promise.epsilon == epsilon(alone, 1.5, 1e-5)


def test_only_the_weighted_sum_leaves_a_secure_sum():
    u = uploads(weights=np.array([1.0, 2.0, 3.0, 4.0]), total_weight=10.0)
    out = SecureSum().upload(u, round_number=1, seed=SEED)
    expected = (u.rows * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]).sum(0)
    assert torch.allclose(out.rows, expected[None])
    assert (out.kind, out.senders, out.total_weight) == ("sum", ("aggregator",), 10.0)
    assert [leg.sender for leg in out.legs] == list(u.senders)
    assert out.origin.tolist() == [-1]


def test_protections_compose_and_the_order_is_checked():
    shuffled = Shuffle().upload(
        Clip(bound=1.0).upload(uploads(), round_number=1, seed=SEED), round_number=1, seed=SEED
    )
    assert set(shuffled.senders) == {"anonymous"}
    assert torch.allclose(shuffled.rows.norm(dim=1), torch.ones(4), atol=1e-5)
    summed = SecureSum().upload(uploads(), round_number=1, seed=SEED)
    with pytest.raises(ConfigError, match="before a secure sum"):
        Clip().upload(summed, round_number=1, seed=SEED)
    with pytest.raises(ConfigError, match="delta"):
        SecureSum().upload(uploads(kind="model"), round_number=1, seed=SEED)


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (Clip, {"bound": 0.0}),
        (CentralDP, {"noise_multiplier": -1.0}),
        (CentralDP, {"clip": 0.0}),
        (UpdateNoise, {"clip": -1.0}),
        (UpdateNoise, {"delta": 1.0}),
    ],
)
def test_values_out_of_range_are_refused(cls, wrong):
    with pytest.raises(ConfigError):
        cls(**wrong)


@pytest.mark.parametrize("kind", [CentralDP, UpdateNoise])
def test_a_target_epsilon_is_met_by_the_client_of_most_rounds_and_hardly_undercut(kind):
    exposures = [Exposure(sampling_rate=0.2, steps=7, rounds=r) for r in (3, 12, 5)]
    hook = kind(epsilon=4.0).resolved(exposures)
    spent = [hook.guarantee(c, e).epsilon for c, e in enumerate(exposures)]
    assert 3.95 < spent[1] <= 4.0
    assert max(spent) == spent[1]
    assert hook.resolved(exposures) == hook
    assert hook.covers == kind(noise_multiplier=1.5).covers


@pytest.mark.parametrize("kind", [CentralDP, UpdateNoise])
def test_noise_is_set_once(kind):
    with pytest.raises(ConfigError, match="two settings"):
        kind(noise_multiplier=2.0, epsilon=4.0)
