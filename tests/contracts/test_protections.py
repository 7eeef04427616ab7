"""One battery over every protection of the catalogue, at its six places.

A new protection is picked up from the catalogue with its default settings. It needs a line in
`SETTINGS` if it must be tried with others, and one in `IDENTITY` if some settings do nothing.
"""

import json
import math
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch

from fedaudit.accounting import Exposure, Guarantee
from fedaudit.errors import ConfigError, UsageError
from fedaudit.hooks import PLACES, AddedNoise, Hook, Uploads
from fedaudit.protections.secure_aggregation.ring import RingQuantiser
from fedaudit.randomness import Seed
from fedaudit.setup.catalogue import PROTECTIONS, find

CLIENTS, WIDTH, BATCH = 6, 9, 4
COVERABLE = {"parameter", "buffer", "integer", "weight", "metadata", "sender"}
EXPOSURE = Exposure(sampling_rate=0.1, steps=3, rounds=2)
SETTINGS = {
    "dp_sgd": ({"noise_multiplier": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)}, {"epsilon": 4.0}),
    "central_dp": ({"epsilon": 4.0},),
    "exposure_limit": ({"epsilon": 4.0}, {"least_records": 3, "refuse_above": 0.5}),
    "update_noise": ({"epsilon": 4.0},),
    "local_dp": ({"mechanism": "laplace"}, {"mechanism": "bitrand"}),
    "secure_aggregation": ({"threshold": 2}, {"threshold": 3, "plan": "groups"}),
}
"""Settings to try beside the defaults."""
IDENTITY = {
    "clip": {"bound": 1e6},
    "central_dp": {"noise_multiplier": 0.0, "clip": 1e6},
    "dp_sgd": {"noise_multiplier": 0.0, "clip": 1e6},
    "exposure_limit": {"noise_multiplier": 0.0, "clip": 1e6, "least_records": 1},
    "update_noise": {"noise_multiplier": 0.0, "clip": 1e6},
}
"""Settings with which a protection changes no number."""

CASES = [(name, {}) for name in PROTECTIONS] + [
    (name, given) for name, several in SETTINGS.items() for given in several
]


def make(name, given):
    return find(PROTECTIONS, "protection", name)(**given)


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
def hook(request):
    """A protection, with a target epsilon resolved as the engine does it."""
    return make(*request.param).resolved([EXPOSURE] * CLIENTS)


def uploads(clients=range(CLIENTS)):
    """What clients would send, a row each; the same row of a client in any company."""
    every = torch.randn(CLIENTS, WIDTH, generator=torch.Generator().manual_seed(5))
    chosen = np.array([*clients])
    return Uploads(
        rows=every[torch.from_numpy(chosen)].clone(),
        senders=tuple(f"client-{c}" for c in chosen),
        weights=np.ones(len(chosen)),
        origin=chosen,
        total_weight=float(len(chosen)),
    )


def features(client):
    generator = torch.Generator().manual_seed(client)
    return torch.rand(8, 5, generator=generator), torch.arange(8) % 2


def sent(hook, seed=1, round_number=1, clients=range(CLIENTS)):
    return hook.upload(uploads(clients), round_number=round_number, seed=Seed(seed))


def stepped(hook, clients, seed=1, step=0):
    sums = torch.zeros(len(clients), WIDTH)
    hook.step(sums, clients=np.array(clients), round_number=1, step=step, seed=Seed(seed))
    return sums


def acts(hook, seed=1):
    """What a protection makes of the same inputs, place by place."""
    sums = torch.ones(CLIENTS, WIDTH)
    hook.step(sums, clients=np.arange(CLIENTS), round_number=1, step=0, seed=Seed(seed))
    x, y = hook.data(*features(0), client=0, seed=Seed(seed))
    receivers = np.arange(CLIENTS)
    return {
        "x": x,
        "y": y,
        "broadcast": hook.broadcast(
            torch.ones(WIDTH), receivers=receivers, round_number=1, seed=Seed(seed)
        ),
        "gradient": hook.gradient(torch.ones(CLIENTS, BATCH, WIDTH)),
        "step": sums,
        "upload": sent(hook, seed).rows,
        "aggregate": hook.aggregate(torch.ones(WIDTH), round_number=1, seed=Seed(seed)),
    }


# -- what a protection states ----------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_protection_is_a_frozen_dataclass_that_acts_somewhere(name):
    cls = find(PROTECTIONS, "protection", name)
    assert issubclass(cls, Hook)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(f.kw_only for f in fields(cls) if f.init)
    assert any(cls().acts_at(place) for place in PLACES)


def test_it_states_what_it_covers_and_whom_it_trusts(hook):
    assert set(hook.covers) <= COVERABLE
    assert hook.trust


def test_what_it_declares_is_plain_json_and_says_the_same(hook):
    hook.data(*features(0), client=0, seed=Seed(1))  # some declare more once data were seen
    declared = json.loads(json.dumps(hook.declare(), allow_nan=False))
    assert declared["name"] == hook.name
    assert declared["covers"] == list(hook.covers)
    assert declared["trust"] == hook.trust


def test_a_guarantee_states_all_of_its_fields(hook):
    hook.data(*features(0), client=0, seed=Seed(1))
    promise = hook.guarantee(0, EXPOSURE)
    if promise is None:
        assert not any(f.name in ("noise_multiplier", "epsilon") for f in fields(hook))
        return
    assert promise.epsilon > 0
    assert 0 <= promise.delta < 1
    assert promise.unit in ("record", "person", "example", "client")
    assert promise.relation in ("add_or_remove", "replace", "zero_out")
    assert promise.trust == hook.trust
    assert promise.covers
    assert promise.by
    assert Guarantee.from_dict(json.loads(json.dumps(promise.to_dict()))) == promise


# -- noise -----------------------------------------------------------------------------------------

PLACE_OF_NOISE = {
    "central_dp": "aggregate",
    "dp_sgd": "step",
    "exposure_limit": "upload",
    "secure_aggregation": "rounding",
    "update_noise": "upload",
}
"""Where a protection adds noise; the others add none, or to the data."""


def noise_of_hook(hook):
    """Its noise as an audit computes it, from the declaration in a trace."""
    return type(hook).noise(json.loads(json.dumps(hook.declare())), clients=CLIENTS)


def test_noise_agrees_with_the_settings(hook):
    noise = noise_of_hook(hook)
    assert (noise and noise.place) == PLACE_OF_NOISE.get(hook.name)
    if noise is None:
        assert not hasattr(hook, "noise_multiplier")
    elif noise.place == "rounding":
        assert noise.scale == RingQuantiser(hook.bound, CLIENTS, hook.modulus_bits).step
        assert noise.multiplier == 1 / math.sqrt(12)
    else:
        assert (noise.multiplier, noise.scale) == (hook.noise_multiplier, hook.clip)
    assert hook.noise(hook.declare(), clients=CLIENTS) == noise


def test_noise_agrees_with_what_is_added(hook):
    noise, width = noise_of_hook(hook), 20_000
    zeros = torch.zeros(CLIENTS, width)
    if noise is None:
        pytest.skip("adds no noise, or to the data")
    if noise.place == "step":
        added = zeros.clone()
        hook.step(added, clients=np.arange(CLIENTS), round_number=1, step=0, seed=Seed(1))
    elif noise.place == "aggregate":
        added = hook.aggregate(zeros[:1], round_number=1, seed=Seed(1))
    elif noise.place == "upload":
        added = hook.upload(replace(uploads(), rows=zeros), round_number=1, seed=Seed(1)).rows
    else:  # the error of a sum of rounded uploads
        rows = torch.rand(CLIENTS, width, generator=torch.Generator().manual_seed(1))
        total = hook.upload(replace(uploads(), rows=rows), round_number=1, seed=Seed(1)).rows[0]
        error = (total.double() - rows.double().sum(0)).abs().max()
        assert error <= CLIENTS * noise.scale / 2 + 1e-6
        return
    expected = np.broadcast_to(np.multiply(noise.multiplier, noise.scale), len(added))
    np.testing.assert_allclose(added.std(dim=1).numpy(), expected, rtol=0.03)


def test_noise_declared_by_other_software():
    """Of an adaptive clip norm, the multiplier of the mean counts; an unknown ring has no step."""
    central, ring = (
        find(PROTECTIONS, "protection", name) for name in ("central_dp", "secure_aggregation")
    )
    more = {"noise_multiplier": 0.5, "mean_multiplier": 0.7, "clip": 2}
    assert central.noise(more, clients=3) == AddedNoise("aggregate", 0.7, 2.0)
    assert ring.noise({"modulus": "2^32"}, clients=3) is None
    assert ring.noise({"modulus": "2^24", "bound": 8.0}, clients=3) is None


# -- randomness by address -------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_and_the_input_stays(hook):
    first, second = acts(hook), acts(hook)
    assert all(torch.equal(first[place], second[place]) for place in first)
    given = uploads()
    hook.upload(given, round_number=1, seed=Seed(1))
    assert torch.equal(given.rows, uploads().rows)
    assert given.senders == uploads().senders


def test_it_draws_from_its_own_generators(hook):
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
    acts(hook)
    assert all(
        np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_steps_of_all_clients_equal_steps_client_by_client(hook):
    together = stepped(hook, range(CLIENTS))
    alone = torch.cat([stepped(hook, [c]) for c in range(CLIENTS)])
    assert torch.equal(together, alone)
    backwards = stepped(hook, range(CLIENTS)[::-1])
    assert torch.equal(together, backwards.flip(0))


def test_gradients_and_broadcasts_act_client_by_client(hook):
    each = torch.randn(CLIENTS, BATCH, WIDTH, generator=torch.Generator().manual_seed(2))
    alone = torch.cat([hook.gradient(each[c : c + 1].clone()) for c in range(CLIENTS)])
    assert torch.equal(hook.gradient(each.clone()), alone)

    def to(receivers):
        model = hook.broadcast(
            torch.ones(WIDTH), receivers=np.array(receivers), round_number=1, seed=Seed(1)
        )
        return model.expand(len(receivers), WIDTH)

    assert torch.equal(to(range(CLIENTS)), torch.cat([to([c]) for c in range(CLIENTS)]))


@pytest.mark.parametrize("size", [1, CLIENTS // 2])
def test_uploads_of_all_equal_uploads_of_parts(hook, size):
    """Client by client, or region by region where a sum needs several clients."""
    parts = [range(i, i + size) for i in range(0, CLIENTS, size)]
    try:
        hook.check_round(size)
    except UsageError:
        pytest.skip(f"{hook.name} refuses {size} clients")
    together, apart = sent(hook), [sent(hook, clients=part) for part in parts]
    whole = torch.from_numpy(together.weights).float() @ together.rows
    pieces = sum(torch.from_numpy(u.weights).float() @ u.rows for u in apart)
    # a secure sum rounds to its ring, and states by how much
    slack = sum(float(m.get("error", 0.0)) for u in (together, *apart) for m in u.metadata)
    assert torch.allclose(whole, pieces, rtol=1e-5, atol=1e-5 + slack)
    assert together.total_weight == sum(u.total_weight for u in apart)
    if (together.origin >= 0).all():
        own = {int(c): row for u in apart for c, row in zip(u.origin, u.rows, strict=True)}
        for client, row in zip(together.origin, together.rows, strict=True):
            assert torch.equal(row, own[int(client)])


def test_what_randomises_draws_anew_for_another_seed(hook):
    multiplier = getattr(hook, "noise_multiplier", None)
    if multiplier is None and hook.name != "local_dp":
        pytest.skip("adds no noise")
    first, other = acts(hook, seed=1), acts(hook, seed=2)
    assert any(not torch.equal(first[place], other[place]) for place in first)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDENTITY)
def test_settings_without_effect_change_nothing(name):
    """Without noise and with a bound that nothing reaches."""
    hook, nothing = make(name, IDENTITY[name]), Hook()
    for place, value in acts(hook).items():
        assert torch.allclose(value, acts(nothing)[place], rtol=0, atol=1e-6), place
    assert sent(hook).senders == uploads().senders
    promise = hook.guarantee(0, EXPOSURE)
    assert promise is None or math.isinf(promise.epsilon)
    assert "parameter" not in hook.covers


def test_noise_can_be_switched_off_where_there_is_some():
    noisy = {
        name
        for name in PROTECTIONS
        if any(f.name == "noise_multiplier" for f in fields(make(name, {})))
    }
    assert noisy <= set(IDENTITY)


def test_too_few_clients_are_refused(hook):
    """By those that need several: a sum over one client is no secret."""
    least = getattr(hook, "threshold", None)
    if least is None:
        hook.check_round(1)
        return
    for check in (hook.check_clients, hook.check_round):
        check(2 * least)
        with pytest.raises(ConfigError):
            check(least - 1)


def test_noise_per_client_fits_the_number_of_clients(hook):
    if not isinstance(getattr(hook, "noise_multiplier", None), tuple):
        hook.check_clients(CLIENTS)
        return
    hook.check_clients(CLIENTS)
    with pytest.raises(ConfigError):
        hook.check_clients(CLIENTS + 1)
    hook.repeated(2).check_clients(2 * CLIENTS)


def test_resolved_and_repeated_keep_the_type(hook):
    assert type(hook.resolved([EXPOSURE] * CLIENTS)) is type(hook)
    assert hook.resolved([EXPOSURE] * CLIENTS) == hook
    assert type(hook.repeated(2)) is type(hook)
    twice = hook.repeated(2)
    assert torch.equal(stepped(twice, range(CLIENTS)), stepped(hook, range(CLIENTS)))


@pytest.mark.parametrize("name", [name for name, given in CASES if given == {"epsilon": 4.0}])
def test_a_target_epsilon_is_met_and_not_undershot(name):
    hook = make(name, {"epsilon": 4.0}).resolved([EXPOSURE] * CLIENTS)
    assert hook.epsilon is None
    assert 3.8 <= hook.guarantee(0, EXPOSURE).epsilon <= 4.0
    less = replace(hook, noise_multiplier=hook.noise_multiplier * 2)
    assert less.guarantee(0, EXPOSURE).epsilon < hook.guarantee(0, EXPOSURE).epsilon


def test_searched_noise_can_be_set_and_ranked():
    kinds = {name: find(PROTECTIONS, "protection", name) for name in PROTECTIONS}
    searched = {name: kind.search for name, kind in kinds.items() if kind.search is not None}
    assert len(searched) >= 5
    assert len({s.rank for s in searched.values()}) == len(searched)
    for name, how in searched.items():
        for level in (how.low, how.high):
            setting = "epsilon" if kinds[name].randomises_records else "noise_multiplier"
            own = {setting: 1 / level if setting == "epsilon" else level}
            hook = make(name, {**how.settings, **own})
            promised = hook.guarantee(0, EXPOSURE)
            assert promised is None or not how.unit or promised.unit == how.unit
        if how.per_client:
            many = make(name, {"noise_multiplier": (how.low, how.high)})
            assert many.own_multipliers == (how.low, how.high)
