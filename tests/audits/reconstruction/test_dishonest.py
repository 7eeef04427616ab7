"""Records rebuilt by a server that plants weights: naive twin, closed form, null, power, views."""

import functools
import math

import numpy as np
import pytest
import torch

from fedaudit.audits.reconstruction import Reconstruction
from fedaudit.audits.reconstruction.dishonest import PlantedRound, beside, read
from fedaudit.audits.reconstruction.facts import DISHONEST, REBUILT
from fedaudit.audits.reconstruction.planting import imprint, plant, thresholds
from fedaudit.audits.reconstruction.prior import Prior
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import SERVER, MemoryRecorder, MemoryTruth

WIDTH, UNITS, CLASSES = 10, 24, 3


def answer(kind, x, y, steps=1, own=None, seed=0):
    """What `steps` full-batch steps on x (n, D) change in planted layers: dW (h, D), db (h,)."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(4000, WIDTH)) if own is None else own
    layers = plant(kind, own, UNITS, CLASSES, len(x), rng)
    start = [
        torch.tensor(v, dtype=torch.float32)
        for v in (layers.weight, layers.bias, layers.weight_after, layers.bias_after)
    ]
    moved = [v.clone().requires_grad_(True) for v in start]
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    for _ in range(steps):
        w, b, after, bias_after = moved
        logits = torch.relu(x @ w.T + b) @ after.T + bias_after
        loss = torch.nn.functional.cross_entropy(logits, y)
        slopes = torch.autograd.grad(loss, moved)
        moved = [
            (v - 0.1 * g).detach().requires_grad_(True) for v, g in zip(moved, slopes, strict=True)
        ]
    change = [(m.detach() - s).numpy() for m, s in zip(moved, start, strict=True)]
    return layers, change


def rebuilt(kind, x, y, noise=0.0, **settings):
    """Which records (n,) a guess equals, from the answer of one client."""
    layers, (dw, db, *_) = answer(kind, x, y, **settings)
    rng = np.random.default_rng(9)
    dw, db = (v + noise * rng.normal(size=v.shape).astype(np.float32) for v in (dw, db))
    layout = Layout.of([("w", dw.shape), ("b", db.shape)])
    recorder = MemoryRecorder(layouts={"model": layout})
    with recorder.round() as wire:
        wire.send("model", SERVER, "c0", {"w": dw * 0, "b": db * 0})
        wire.send("delta", "c0", SERVER, {"w": dw, "b": db})
    played = PlantedRound(
        kind=kind,
        view=recorder.trace().seen_by(SERVER),
        weight=slice(0, dw.size),
        bias=slice(dw.size, dw.size + db.size),
        largest=float(np.abs(layers.weight).max()),
    )
    wide = np.full(WIDTH, 9.0)
    prior = Prior(low=-wide, high=wide, middle=0 * wide, shape=(WIDTH,), sizes={"c0": len(x)})
    [(sender, guesses)] = read(played, prior, most=1000)
    assert sender == "c0"
    apart = np.abs(guesses[None] - x[:, None]).max(axis=2).min(axis=1, initial=np.inf)
    return layers, apart < 0.02


def records(count, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, WIDTH)), rng.integers(0, CLASSES, count)


@pytest.mark.parametrize("kind", ["imprint", "trap"])
def test_naive_what_is_rebuilt_is_what_alone_drives_a_unit_or_a_bin(kind):
    x, y = records(30)
    layers, found = rebuilt(kind, x, y)
    on = x @ layers.weight.T + layers.bias > 0  # (record, unit)
    alone = on[:, on.sum(axis=0) == 1].any(axis=1)
    if kind == "imprint":
        bins = on.sum(axis=1)  # thresholds ascend
        alone = np.array([b > 0 and (bins == b).sum() == 1 for b in bins])
    assert alone.sum() >= 5
    assert (found >= alone).all()
    assert (found & ~alone).sum() <= 1  # a mean that lies near a record


def test_theory_a_bin_of_one_expected_record_holds_one_with_chance_1_over_e():
    rng, hits, bins = np.random.default_rng(0), 0, 0
    for _ in range(30):
        layers = imprint(rng.normal(size=(20_000, WIDTH)), 60, CLASSES, 60, rng)
        on = rng.normal(size=(60, WIDTH)) @ layers.weight.T + layers.bias > 0
        count = np.bincount(on.sum(axis=1), minlength=61)[1:]
        hits, bins = hits + int((count == 1).sum()), bins + len(count)
    assert hits / bins == pytest.approx(math.exp(-1.0), abs=0.03)


def test_theory_thresholds_beyond_the_servers_records_follow_the_normal_tail():
    values = np.random.default_rng(0).normal(size=500)
    cut = thresholds(values, np.array([0.5, 0.1, 1e-4]))
    assert (values > cut[0]).mean() == pytest.approx(0.5, abs=0.01)
    assert (values > cut[1]).mean() == pytest.approx(0.1, abs=0.01)
    assert cut[2] == pytest.approx(3.72, abs=0.3)


def test_several_steps_spare_traps_and_spoil_imprints():
    x, y = records(30)
    once = {kind: rebuilt(kind, x, y)[1].sum() for kind in ("imprint", "trap")}
    often = {kind: rebuilt(kind, x, y, steps=6)[1].sum() for kind in ("imprint", "trap")}
    assert often["trap"] >= 0.7 * once["trap"]
    assert often["imprint"] < 0.5 * once["imprint"]


@pytest.mark.parametrize("kind", ["imprint", "trap"])
def test_monotone_more_noise_never_rebuilds_more(kind):
    x, y = records(30)
    found = [int(rebuilt(kind, x, y, noise=z)[1].sum()) for z in (0.0, 1e-4, 1e-2, 1.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == 0


def test_differences_of_neighbours_come_before_the_units():
    units = np.arange(6.0, dtype=np.float32).reshape(1, 3, 2)
    assert beside(units)[0].tolist() == [[-2, -2], [-2, -2], [0, 1], [2, 3], [4, 5]]


# -- through the engine ---------------------------------------------------------------------------

BASE = {
    "seed": 3,
    "data": {"name": "digits", "test_fraction": 0.5},
    "partition": {"kind": "iid"},
    "task": {"kind": "mlp", "hidden": [48]},
    "federation": {"clients": 5, "rounds": 1},
    "training": {"epochs": 2, "batch_size": 32},
}


@functools.cache
def attacked(*changes, vantage="server", **settings):
    config = load({**BASE, **{name: dict(values) for name, values in changes}})
    federation, facts = build(config)
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    records_of = functools.partial(of_config, config, trace, truth)
    builder = KnowledgeBuilder(trace, truth, Seed(1), records_of, config)
    audit = Reconstruction(vantage=vantage, matched_rounds=0, records=40, **settings)
    known, truth = builder.knowledge_for(audit)
    rng = np.random.default_rng(0)
    return audit, audit.attack(trace.seen_by(vantage), known, rng), truth


def audited(*changes, **settings):
    audit, guess, truth = attacked(*changes, **settings)
    return audit.score(guess, truth, np.random.default_rng(0))


def test_power_a_dishonest_server_rebuilds_what_an_honest_one_does_not():
    result = audited()
    honest, planted = result.estimates[REBUILT], result.estimates[DISHONEST]
    assert planted.low > honest.high
    assert planted.baseline < 0.05
    assert result.test.adjusted[DISHONEST] <= result.test.level


def test_power_through_secure_sums_and_a_shuffler():
    secure = ("protections", (("secure_aggregation", {"threshold": 3, "masks": "skipped"}),))
    wide = ("task", (("kind", "mlp"), ("hidden", [300])))
    result = audited_once(secure, wide)
    assert result.test.adjusted[DISHONEST] <= result.test.level
    shuffled = audited_once(("protections", (("shuffle", {}),)))
    assert shuffled.estimates[DISHONEST].low > shuffled.estimates[DISHONEST].baseline


def audited_once(*changes, **settings):
    audit, guess, truth = attacked.__wrapped__(*changes, **settings)
    return audit.score(guess, truth, np.random.default_rng(0))


def test_null_records_that_nobody_trained_on_alarm_at_most_at_the_level():
    """Labels drawn within client and class: half of everything asked about."""
    audit, guess, truth = attacked()
    rng, alarms = np.random.default_rng(2), 0
    for seed in range(15):
        drawn = {}
        for party, (_, y) in truth.records.items():
            drawn[party] = truth.members[party].copy()
            for c in np.unique(y):
                rows = np.flatnonzero(y == c)
                drawn[party][rows] = rng.permutation(drawn[party][rows])
        moved = truth.with_members(drawn, truth.records)
        test = audit.score(guess, moved, np.random.default_rng(seed)).test
        alarms += test.adjusted[DISHONEST] <= test.level
    assert alarms <= 2  # 15 at 2.5 % for all readings together: more than 2 in one of 170


def test_noise_at_the_clients_sets_a_ceiling():
    noisy = ("protections", (("dp_sgd", {"noise_multiplier": 4.0, "clip": 1.0}),))
    result = audited_once(noisy)
    assert result.estimates[DISHONEST].value == 0.0
    assert result.bounds["ceiling of dp_sgd on records_rebuilt_dishonest"].value < 1.0


def test_vantage_only_a_server_sends_models():
    _, guess, _ = attacked(vantage="client-00")
    assert not guess.dishonest
    assert DISHONEST not in audited(dishonest="none").estimates


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("training", {"optimizer": "adam", "learning_rate": 0.01}), "adam"),
        (("training", {"weight_decay": 0.01}), "weight decay"),
        (("task", {"kind": "mlp", "hidden": [48], "activation": "gelu"}), "GELU"),
        (("task", {"kind": "mlp", "hidden": []}), "Sequential"),
    ],
)
def test_where_nothing_can_be_planted_a_note_says_why(change, why):
    _, guess, _ = attacked.__wrapped__(change)
    assert not guess.dishonest
    assert any("no dishonest server" in n and why in n for n in guess.notes)
