"""Exposure and tampering: against slow twins, on honest rounds, and on plants."""

import copy
import json
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import fedaudit
from fedaudit.data import builtin
from fedaudit.errors import ConfigError, DataError
from fedaudit.protections.guard import GuardReport, LocalSteps, local_steps
from fedaudit.protections.guard.exposure import MEMBERSHIP, SUCCESS, distances, exposure, membership
from fedaudit.protections.guard.guard import ALONE
from fedaudit.protections.guard.tampering import (
    ModelHistory,
    jump,
    lengths,
    silenced,
    tampering,
    unit_changes,
)
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from reproductions.guard import behaviour, plants, rounds

TARGET = 17
FAMILIES = {name: plant for name, plant, hosts in plants.PLANTS if plants.TABLES[0] in hosts}
ISOLATING = ("matched filter", "one bias", "imprint", "decoys", "dead unit", "secret directions")
"""Plants with a threshold that one record passes."""
SUDDEN = [name for name in FAMILIES if "drift" not in name]


def made(kind, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "cnn":
            return models.cnn((1, 8, 8), (4, 6), 10)
        if kind == "in place":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(64, 24), nn.ReLU(inplace=True), nn.Linear(24, 10)
            )
        return models.mlp(64, (24,), 10)


@cache
def records(n=40):
    data = builtin.load("digits", seed=Seed(1)).take(np.arange(n))
    return torch.as_tensor(data.x).float(), torch.as_tensor(data.y)


# -- slow twins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("visits", [1, 3])
def test_ratios_are_those_of_gradients_written_out(visits, bias):
    rng = np.random.default_rng(visits)
    h, d = rng.normal(size=(visits, 7, 4)), rng.normal(size=(visits, 7, 3))
    e, own = membership(h, d, bias=bias, noise=0.2)
    for u in range(3):
        g = [
            sum(d[p, i, u] * np.append(h[p, i], 1.0 if bias else 0.0) for p in range(visits))
            for i in range(7)
        ]
        for i in range(7):
            k = np.array([g[i] @ g[j] for j in range(7) if j != i])
            kii = g[i] @ g[i]
            slow = kii / np.sqrt(np.square(k - k.mean()).sum() + 0.2**2 * kii)
            assert e[i, u] == pytest.approx(slow, rel=1e-6)
            assert own[i, u] == pytest.approx(kii)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "in place"])
def test_what_records_add_is_what_the_steps_change(kind):
    """The sum over records and visits is the change of every row, over any local steps."""
    x, y = records()
    steps = LocalSteps(learning_rate=0.3, epochs=3, batch_size=16)
    found = local_steps.run(made(kind), x, y, steps)
    assert len(found) == len(local_steps.readable(made(kind)))
    for layer in found.values():
        change = np.einsum("pnu,pnd->ud", layer.errors, layer.inputs)
        np.testing.assert_allclose(layer.weight - layer.weight_after, change, atol=2e-6)
        if layer.bias is not None:
            added = layer.errors.sum(axis=(0, 1))
            np.testing.assert_allclose(layer.bias - layer.bias_after, added, atol=2e-6)
    assert next(iter(found.values())).sees_records == (kind != "cnn")


def test_one_record_adds_its_own_gradient():
    x, y = records()
    module = made("cnn")
    found = local_steps.run(module, x, y, LocalSteps(learning_rate=1.0))
    module.eval()
    for i in (0, 5):
        loss = nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1]) / len(x)
        grads = torch.autograd.grad(loss, [module.get_parameter(f"{n}.weight") for n in found])
        for g, v in zip(grads, found.values(), strict=True):
            alone = np.einsum("pu,pd->ud", v.errors[:, i], v.inputs[:, i])
            np.testing.assert_allclose(alone, g.flatten(1).numpy(), atol=1e-7)


def test_the_module_of_the_client_is_left_as_it_was():
    module = made("mlp").train()
    before = copy.deepcopy(module.state_dict())
    x, y = records()
    local_steps.run(module, x, y, LocalSteps(epochs=2))
    tampering([module] * 3, x, y)
    assert module.training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


@pytest.mark.parametrize("visits", [2, 5])
def test_units_are_left_out_only_if_no_ratio_can_be_so_large(visits):
    """The bound from sums of records: what it leaves is exact, and what it drops is below."""
    rng = np.random.default_rng(visits)
    h = rng.normal(size=(visits, 60, 5))
    d = rng.normal(size=(visits, 60, 9)) * np.exp(2 * rng.normal(size=(60, 9)))
    d[:, 1:, 3] *= 1e-3
    d[:, 0, 3] = 5.0
    d[:, :, 5] = 1.0
    every, norms = membership(h, d, bias=True, noise=0.01)
    some, same = membership(h, d, bias=True, noise=0.01, least=MEMBERSHIP)
    np.testing.assert_allclose(norms, same)
    kept = some.any(axis=0)
    np.testing.assert_allclose(some[:, kept], every[:, kept])
    assert kept[3]
    assert not kept[5]
    assert every[:, ~kept].max() <= MEMBERSHIP


def test_rows_and_columns_have_their_lengths():
    w = np.random.default_rng(0).normal(size=(4, 3, 2, 2))
    rows, columns = lengths(w)
    np.testing.assert_allclose(rows, [np.linalg.norm(r) for r in w])
    np.testing.assert_allclose(columns, [np.linalg.norm(w[:, j]) for j in range(3)])


def test_a_model_that_was_judged_is_added_without_a_second_look(run):
    """And one that changed in between is looked at again."""
    slow, fast = (ModelHistory(*run.own) for _ in range(2))
    for state in run.states[:-1]:
        module = rounds.answer(run, state)
        slow.add(module)
        fast.judge(module)
        fast.add(module)
    last = rounds.answer(run, run.states[-1])
    assert fast.judge(last) == slow.judge(last)
    with torch.no_grad():
        last.get_parameter("1.bias").add_(1.0)
    fast.add(last)
    slow.add(last)
    again = rounds.answer(run, run.states[-1])
    assert fast.judge(again) == slow.judge(again)


@pytest.mark.parametrize("lasts", [3, 10])
def test_what_drifts_in_is_seen(lasts):
    """And what is judged over several rounds is not compared with rounds of the drift itself."""
    run = rounds.honest_run("mlp", "breast-cancer", seed=6, rounds=2 * lasts)
    states, _ = FAMILIES[f"drift over {lasts}"](run, TARGET, np.random.default_rng(0))
    history = behaviour.history(run, len(run.states) - lasts)
    found = []
    for state in states:
        module = rounds.answer(run, state)
        found.append(history.judge(module))
        history.add(module)
    assert any(r.verdict == "altered" for r in found)
    assert found[-1].rounds in (1, 3, 10)
    if found[-1].rounds > 1 and found[-1].verdict == "altered":
        assert f"over {found[-1].rounds} rounds" in found[-1].words


def test_changes_are_counted_in_spreads_of_a_unit():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(200, 6)) * [1, 2, 3, 4, 5, 6]
    moved = before.copy()
    moved[:, 2] += 9.0
    d = unit_changes(before, moved)
    assert d[2] == pytest.approx(9 / before[:, 2].std())
    value, unit = jump(d, float(np.median(d)))
    assert (value, unit) == (pytest.approx(np.log((d[2] + 0.01) / 0.01)), 2)
    assert jump(np.full(6, 5.0), 5.0)[0] == 0  # all units alike
    assert jump(np.full(6, 5.0), usual=0.1)[0] > np.log(8)  # and they never moved so far
    moved[:, :3] = -1.0
    assert silenced(before, moved) == 0.5


# -- plants and honest rounds ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def run():
    """Models of an honest run, and the records of a client of it."""
    return rounds.honest_run("mlp", "digits", seed=5, rounds=5)


def looked_at(run, state, *, without=None):
    x, y = run.own
    kept = np.arange(len(x)) != (-1 if without is None else without)
    # one local step, as by default
    return fedaudit.guard(state, run.states[:-1], data=(x[kept], y[kept]), module=run.build())


@pytest.mark.parametrize("plant", SUDDEN)
def test_a_plant_is_named_and_so_is_its_target(run, plant):
    (state,), target = FAMILIES[plant](run, TARGET, np.random.default_rng(0))
    report = looked_at(run, state)
    assert report.tampering.verdict == "altered"
    assert report.flagged
    assert "This model was altered" in report.tampering.words
    if plant in ISOLATING:
        assert target in {r.record for r in report.exposure.exposed}
        found = next(r for r in report.exposure.exposed if r.record == target)
        assert f"record {target}" in found.words
        assert found.success is not None
        share, low, high = found.success
        assert 0.5 < low < share < high < 1
    assert GuardReport.from_json(report.to_json()) == report


@pytest.mark.parametrize("plant", ["matched filter", "one bias"])
def test_without_its_target_a_plant_is_still_an_alteration(run, plant):
    (state,), target = FAMILIES[plant](run, TARGET, np.random.default_rng(0))
    usual = {r.record for r in looked_at(run, run.states[-1], without=target).exposure.exposed}
    report = looked_at(run, state, without=target)
    assert report.tampering.verdict == "altered"
    assert {r.record for r in report.exposure.exposed} <= usual


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_honest_rounds_are_not_altered(kind):
    """Four and two runs, the newest of rounds 3 and 6 against all before it."""
    for seed in range(4 if kind == "mlp" else 2):
        run = rounds.honest_run(kind, "digits", seed=seed, rounds=6)
        for t in (3, 6):
            report = fedaudit.guard(
                run.states[t], run.states[:t], data=run.own, module=run.build(), local=run.local
            )
            assert report.tampering.verdict == "no_evidence", report.tampering.words


def test_a_planted_unit_gives_its_record_away_exactly(run):
    """The same, from what a server would do with the answer: dW / db of the named unit."""
    (state,), target = FAMILIES["one bias"](run, TARGET, np.random.default_rng(0))
    report = looked_at(run, state)
    found = next(r for r in report.exposure.exposed if r.record == target)
    module = run.build()
    module.load_state_dict(state)
    x, y = run.own
    first = next(m for m in module.modules() if isinstance(m, nn.Linear))
    nn.functional.cross_entropy(module(x), y).backward()
    u = found.units[0]
    rebuilt = (first.weight.grad[u] / first.bias.grad[u]).double().numpy()
    own = x.flatten(1).double().numpy()
    apart = distances(own, rebuilt[None])[:, 0]
    assert found.exact
    assert apart.argmin() == target
    assert apart[target] < 0.05 * np.median(distances(own, own))


def test_the_success_rates_are_those_that_were_measured():
    stored = json.loads(behaviour.RESULTS.read_text(encoding="utf-8"))["membership by exposure"]
    keys = ("from", "right", "low", "high")
    assert tuple(tuple(row[k] for k in keys) for row in stored) == SUCCESS
    assert [row["from"] for row in stored] == list(behaviour.BINS[:-1])


def test_noise_lowers_the_exposure(run):
    x, y = run.own
    module = run.build()
    module.load_state_dict(run.states[-1])
    counts = [
        len(exposure(local_steps.run(module, x, y, LocalSteps()).values(), noise).exposed)
        for noise in (0.0, 1.0)
    ]
    highest = [
        max(
            membership(v.inputs, v.errors, bias=True, noise=noise)[0].max()
            for v in local_steps.run(module, x, y, LocalSteps()).values()
        )
        for noise in (0.0, 1e-3, 1.0)
    ]
    assert highest == sorted(highest, reverse=True)
    assert counts[1] <= counts[0]


def test_strange_weights_alone_decide_nothing(run):
    """A detector that was in all models: training explains the last round, and weights join."""
    r = run.own[0][0].numel()
    planted = {k: v.clone() for k, v in run.states[-1].items()}
    planted["1.weight"][: 2 * r] = torch.cat([torch.eye(r), -torch.eye(r)])[:128]
    own = {"data": run.own, "module": run.build()}
    assert fedaudit.guard(planted).verdict == "planted"
    report = fedaudit.guard(planted, [planted] * 3, **own)
    assert report.verdict == report.tampering.verdict == "no_evidence"
    assert any(n.startswith(ALONE) for n in report.notes)
    assert not report.flagged
    first = fedaudit.guard(planted, **own)
    assert first.verdict == ("planted" if first.exposure.exposed else "nothing_to_say")


# -- nothing to say, and input that cannot be used -------------------------------------------------


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_client_in_its_first_rounds_cannot_tell(run, earlier):
    report = fedaudit.guard(run.states[-1], run.states[:earlier], data=run.own, module=run.build())
    assert report.tampering.verdict == report.verdict == "nothing_to_say"
    assert "cannot tell" in report.tampering.words
    assert report.exposure.records == len(run.own[0])


def test_a_module_without_readable_layers_has_no_exposure(run):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))

        def forward(self, x):
            return x.flatten(1) @ self.w.T

    report = fedaudit.guard(Plain(), data=run.own, module=Plain())
    assert not report.exposure.layers
    assert report.exposure.unread == ("w",)
    assert "nothing to say" in report.exposure.words


def test_an_overflow_hides_nothing(run):
    """Finite weights whose outputs are not: no exposure can be computed; the unit changed."""
    state = {k: v.clone() for k, v in run.states[-1].items()}
    state["1.weight"][3] = 3e38
    report = looked_at(run, state)
    assert report.tampering.verdict == "altered"
    assert report.tampering.unit is not None
    assert not report.exposure.layers
    assert "nothing to say" in report.exposure.words
    assert GuardReport.from_json(report.to_json()) == report


def test_a_model_that_diverged_is_no_history(run):
    broken = {k: torch.full_like(v, torch.nan) for k, v in run.states[0].items()}
    own = {"data": run.own, "module": run.build()}
    with_it = fedaudit.guard(run.states[-1], [broken, *run.states[:-1]], **own).tampering
    assert with_it == fedaudit.guard(run.states[-1], run.states[:-1], **own).tampering
    alone = fedaudit.guard(run.states[-1], [broken, run.states[0]], **own).tampering
    assert alone.verdict == "nothing_to_say"


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": 0.0}, {"epochs": 0}, {"batch_size": 0}, {"noise": -1.0}]
)
def test_impossible_steps_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LocalSteps(**wrong)


def test_records_that_do_not_fit_are_refused(run):
    x, y = run.own
    for data in ((x[:3], y[:3]), (x[:, :5].flatten(1)[:, :5], y), (x / 0 * 0, y)):
        with pytest.raises(DataError) as error:
            fedaudit.guard(run.states[-1], data=data, module=run.build())
        assert error.value.remedy
