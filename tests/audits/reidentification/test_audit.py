"""Naive twin, theory, null, power, monotone, vantage, and what cannot be named."""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Candidates, Knowledge
from fedaudit.audits.records.pools import pad_pools
from fedaudit.audits.records.scoring import Scorer
from fedaudit.audits.reidentification import Reidentification, theory
from fedaudit.audits.reidentification.evidence import along
from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.study.auditing import audit_one
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace import ANONYMOUS, SERVER, MemoryRecorder, MemoryTruth

FEATURES, CLASSES, RECORDS = 12, 3, 10


def linear():
    torch.manual_seed(0)
    return Classifier(nn.Linear(FEATURES, CLASSES))


def gradient(task, model, x, y):
    """Gradient of the mean score, the step of a client that trains on these records."""
    at = model.clone().requires_grad_()
    (out,) = torch.autograd.grad(task.scores(task.named(at), x, y, None).mean(), at)
    return out.numpy()


@dataclass
class Planted:
    """Rows that are a step along the gradient of a client's own records, plus noise."""

    trace: Any
    truth: Any
    knowledge: Any

    def audit(self, seed=0, vantage=SERVER, **settings):
        made = Reidentification(**{"auxiliary": (0, 5), **settings})
        rng = np.random.default_rng(seed)
        return made.score(
            made.attack(self.trace.seen_by(vantage), self.knowledge, rng), self.truth, rng
        )


def plant(
    seed=0, *, signal=1.0, noise=0.05, clients=8, rounds=4, share=1.0, enrolled=5,
    senders=ANONYMOUS, guarantee=None, declared=(), shuffled=True, sparse=False,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    task = linear()
    names = [f"client-{c:02d}" for c in range(clients)]
    about = {"hubs": [SERVER], "clients": names, "parties": [SERVER, *names]}
    recorder = MemoryRecorder(
        layouts={"model": task.layout}, federation=about, declared=list(declared)
    )
    promised = {} if guarantee is None else {"update_noise": dict.fromkeys(names, guarantee)}
    truth = MemoryTruth({"guarantees": promised})
    own = [_records(rng) for _ in names]
    model = task.initial()
    kept = rng.random((clients, task.layout.width)) < (0.8 if sparse else 1.0)
    for number in range(1, rounds + 1):
        here = rng.permutation(clients)[: max(2, round(share * clients))]
        here = here if shuffled else np.sort(here)
        steps = [
            signal * gradient(task, model, own[c][0][:RECORDS], own[c][1][:RECORDS]) for c in here
        ]
        rows = np.stack(steps) + noise * rng.normal(size=(len(here), task.layout.width))
        rows *= kept[here]
        with recorder.round() as wire:
            row = wire.put_once("model", model.numpy())
            asked = [names[c] for c in np.sort(here)]
            wire.send_rows("model", [SERVER] * len(asked), asked, row, step=0)
            shown = [names[c] for c in here] if senders is None else [senders] * len(here)
            first = wire.send_rows(
                "delta", shown, [SERVER] * len(here), rows.astype(np.float32), step=1
            )
        truth.round(number, {first + i: names[c] for i, c in enumerate(here)})
        model = model + torch.from_numpy(rows.mean(axis=0).astype(np.float32))
    pools, known, members = {}, {}, {}
    for name, (x, y) in zip(names, own, strict=True):
        other_x, other_y = _records(rng)
        pools[name] = Candidates(
            torch.cat([x[:RECORDS], other_x[:RECORDS]]), torch.cat([y[:RECORDS], other_y[:RECORDS]])
        )
        members[name] = np.arange(2 * RECORDS) < RECORDS
        known[name] = Candidates(x[RECORDS - enrolled : RECORDS], y[RECORDS - enrolled : RECORDS])
    extra = {"enrolled": known} if enrolled else {}
    knowledge = Knowledge(task=task, candidates=pools, extra=extra)
    return Planted(recorder.trace(), truth.with_members(members), knowledge)


def _records(rng):
    return (
        torch.from_numpy(rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, CLASSES, RECORDS)),
    )


# -- naive ----------------------------------------------------------------------------------------


def test_gradients_of_pools_equal_those_of_single_records():
    task, rng = linear(), np.random.default_rng(1)
    pools = [Candidates(*_records(rng)) for _ in range(4)]
    pools[2] = Candidates(pools[2].x[:3], pools[2].y[:3])
    batch, present = pad_pools(pools, task, 1, rng)
    found = Scorer(task).pool_gradients(
        task.initial(), batch, torch.from_numpy(present.astype(np.float32))
    )
    for got, pool in zip(found.numpy(), pools, strict=True):
        each = [
            gradient(task, task.initial(), pool.x[i : i + 1], pool.y[i : i + 1])
            for i in range(len(pool))
        ]
        np.testing.assert_allclose(got, np.sum(each, axis=0), atol=1e-5)
    rows = rng.normal(size=(5, task.layout.width)).astype(np.float32)
    fit = along(rows, found.numpy(), present)
    mean = found.numpy() / present.sum(axis=1)[:, None]
    naive = [[(r - rows.mean(0)) @ (g - mean.mean(0)) for g in mean] for r in rows]
    np.testing.assert_allclose(fit, naive, rtol=1e-4, atol=1e-5)


# -- theory ---------------------------------------------------------------------------------------


def named_at_best(rng, means, noise, games):
    """Share of rows named correctly by an adversary that knows every client's row without noise."""
    clients = len(means)
    orders = [*itertools.permutations(range(clients))]
    right = 0
    for _ in range(games):
        order = rng.permutation(clients)
        rows = means[order] + noise * rng.normal(size=means.shape)
        fit = -((rows[:, None] - means) ** 2).sum(axis=2) / (2 * noise**2)
        weight = np.array([math.exp(sum(fit[i, c] for i, c in enumerate(o))) for o in orders])
        chance = np.zeros((clients, clients))
        for o, w in zip(orders, weight / weight.sum(), strict=True):
            chance[range(clients), o] += w
        right += int((chance.argmax(axis=1) == order).sum())
    return right / games / clients


@pytest.mark.parametrize(("clients", "noise"), [(2, 1.0), (2, 3.0), (4, 1.0), (4, 3.0), (4, 10.0)])
def test_who_knows_everything_stays_below_the_ceiling_and_comes_close(clients, noise):
    """Clipped updates as far apart as they can be: within 5 points for two clients, whose
    exchange the ceiling describes exactly, and within 20 for four, which are never 2 C apart."""
    rng = np.random.default_rng(2)
    corners = np.eye(clients) - 1.0 / clients
    means = corners / np.linalg.norm(corners, axis=1, keepdims=True)  # clip norm 1
    games = 1500
    found = named_at_best(rng, means, noise, games)
    most = theory.ceiling(clients, theory.swapped_gaussians(noise))
    assert found - 4 * math.sqrt(0.25 / games) <= most
    assert found >= most - (0.05 if clients == 2 else 0.2)


def test_the_ceiling_is_chance_under_perfect_privacy_and_one_without():
    assert theory.ceiling(20, lambda _: 0.0) == pytest.approx(1 / 20)
    assert theory.ceiling(20, theory.swapped_gaussians(0.0)) == 1.0
    assert theory.ceiling(20, theory.swapped(math.inf, 1e-5)) == 1.0
    for noise in (0.5, 3.0, 30.0):
        # two clients: the best test between two orders of two Gaussians
        best = 0.5 * math.erfc(-math.sqrt(2) / noise / math.sqrt(2))
        ceiling = theory.ceiling(2, theory.swapped_gaussians(noise))
        assert best <= ceiling + 1e-9
        assert ceiling == pytest.approx(best, abs=1e-3)
    values = [theory.ceiling(20, theory.swapped_gaussians(z)) for z in (1, 3, 10, 100)]
    assert values == sorted(values, reverse=True)
    # a guarantee in figures is looser than the mechanism that it describes
    in_figures = theory.ceiling(20, theory.swapped(0.5, 1e-6))
    assert in_figures == pytest.approx(math.e / (19 + math.e), abs=1e-2)


# -- null -----------------------------------------------------------------------------------------


def test_rows_that_tell_nothing_alarm_at_most_at_the_stated_rate():
    """Level 2.5 %. Rows in the order of the clients, so that ties broken in file order would
    name everybody."""
    found = [plant(s, signal=0.0, rounds=3, shuffled=s % 2 > 0).audit() for s in range(16)]
    rates = [r.estimates["naming_rate"].value for r in found]
    assert np.mean(rates) == pytest.approx(1 / 8, abs=0.06)
    assert sum(r.test.significant for r in found) <= 2
    quiet = plant(0, signal=0.0, noise=0.0, shuffled=False).audit()  # all rows are zero
    assert not quiet.test.significant
    assert quiet.estimates["anonymity_set"].value == pytest.approx(8.0, abs=0.1)


# -- power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_clients_are_named_by_their_records(share):
    result = plant(3, share=share, rounds=6).audit()
    rate = result.estimates["naming_rate"]
    assert rate.value > 0.9
    assert rate.low > rate.baseline == pytest.approx(1 / (8 * share))
    assert result.test.significant
    for reading in ("candidates", "enrolled records", "without links"):
        (name,) = [n for n in result.estimates if n.startswith("naming_rate") and reading in n
                   and "5 c" not in n]  # fmt: skip
        assert result.estimates[name].value > 0.6
    assert result.estimates["anonymity_set"].value < 2
    assert result.estimates["membership_auc_named"].value > 0.6
    by_records = result.curves["naming by records held"]
    assert by_records["records per site"] == (0, 5, 20)
    assert by_records["naming_rate"][0] == rate.baseline
    assert by_records["naming_rate"][-1] > by_records["naming_rate"][0]
    assert judge(result)[0].verdict == "leak"


def test_links_add_what_noise_hides():
    """Links by a pattern of zeros share the evidence of rows that noise alone would hide."""
    gains = []
    for seed in range(2):
        e = plant(seed, noise=0.5, rounds=8, sparse=True).audit().estimates
        gains.append(e["naming_rate"].value - e["naming_rate (without links)"].value)
    assert np.mean(gains) > 0.1


def federation(rounds=4, **protections):
    config = load({
        "seed": 3, "data": {"name": "digits", "test_fraction": 0.3},
        "partition": {"kind": "iid"}, "task": {"kind": "mlp", "hidden": [16]},
        "federation": {"clients": 8, "rounds": rounds}, "training": {"batch_size": 16, "epochs": 5,
        "learning_rate": 0.2}, "protections": {"shuffle": {}, **protections},
    })  # fmt: skip
    made, facts = build(config)
    recorder, truth = MemoryRecorder(**made.about()), MemoryTruth(facts)
    made.run(recorder, truth)
    trace = recorder.trace()
    records = functools.partial(of_config, config, trace, truth)
    return trace, truth, KnowledgeBuilder(trace, truth, Seed(1), records, config)


def test_trained_clients_with_equal_class_mixes_are_named_and_noise_hides_them():
    """No class mix to go by: the records themselves name their client."""
    audit = Reidentification(records=20, enrolled=20)
    trace, truth, builder = federation()
    plain = audit_one(audit, trace, truth, 1, builder)
    assert plain.test.significant
    assert plain.estimates["naming_rate"].value > 0.7
    noise = {"noise_multiplier": 20.0, "clip": 1.0}
    trace, truth, builder = federation(update_noise=noise)
    noisy = audit_one(audit, trace, truth, 1, builder)
    (bound,) = noisy.bounds.values()
    assert (bound.unit, bound.relation, bound.of) == ("client", "replace", "naming_rate")
    assert noisy.estimates["naming_rate"].value < plain.estimates["naming_rate"].value
    assert noisy.estimates["naming_rate"].low <= bound.value < 0.5
    assert judge(noisy)[0].verdict != "disagreement"


# -- monotone -------------------------------------------------------------------------------------


def test_more_noise_never_reads_as_more_leak():
    rates = [
        np.mean([plant(s, noise=z).audit().estimates["naming_rate"].value for s in range(2)])
        for z in (0.02, 0.3, 5.0)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.95


# -- vantage --------------------------------------------------------------------------------------


def test_a_narrower_view_raises():
    with pytest.raises((NotObservable, NotApplicable)):
        plant().audit(vantage="public")
    view, rng = plant().trace.seen_by(SERVER), np.random.default_rng(0)
    with pytest.raises(NotApplicable) as caught:
        Reidentification().attack(view, Knowledge(), rng)
    assert caught.value.code == "no_records"


def test_names_on_updates_need_no_attack():
    result = plant(senders=None).audit()
    assert result.known
    assert result.estimates["naming_rate"].value == 1.0
    assert not result.curves
    assert judge(result)[0].rule == "K1"


# -- what cannot be said --------------------------------------------------------------------------


def test_four_clients_in_one_round_can_show_nothing_and_the_note_says_what_would():
    result = plant(clients=4, rounds=1).audit()
    assert math.isinf(result.detectable)
    assert not result.test.significant
    assert judge(result)[0].verdict == "nothing_to_say"
    (said,) = [n for n in result.notes if "nothing could have been seen" in n]
    assert "2 rounds would do" in said
    assert plant(clients=4, rounds=2).audit().test.significant


def test_records_of_a_single_site_name_nobody():
    made = plant(clients=8, rounds=2, share=0.1)
    assert made.audit().status == "ok"  # two of eight
    name, own = next(iter(made.knowledge.candidates.items()))
    made.knowledge = Knowledge(task=made.knowledge.task, candidates={name: own})
    with pytest.raises(NotApplicable, match="records of the sites"):
        made.audit()


def test_sites_without_records_are_named_by_exclusion():
    made = plant(5, rounds=6)
    held = dict(list(made.knowledge.candidates.items())[:7])
    made.knowledge = Knowledge(task=made.knowledge.task, candidates=held)
    result = made.audit()
    assert result.per_client["client-07"]["share"] > 0.8
    assert any("by exclusion alone" in n for n in result.notes)


def test_without_senders_the_names_are_a_guess():
    made = plant(6, rounds=3)
    made.truth = None
    result = made.audit()
    assert result.status == "blind"
    rows = result.per_client["client-00"]
    assert rows["rows_assigned"] == 3
    assert rows["mean_probability"] > 0.8
    assert AuditResult.from_json(result.to_json()) == result


def test_where_senders_were_named_no_amplified_epsilon_is_claimed():
    promise = {"epsilon": 3.0, "delta": 1e-5, "unit": "client", "relation": "replace"}
    spends = {"name": "update_noise", "noise_multiplier": 200.0, "clip": 1.0}
    named = plant(7, guarantee=promise, declared=(spends,)).audit()
    (said,) = [n for n in named.notes if "amplification" in n]
    assert "not claimed" in said
    hidden = plant(8, signal=0.0, guarantee=promise, declared=(spends,)).audit()
    (said,) = [n for n in hidden.notes if "amplification" in n]
    assert "not claimed" not in said


def test_a_naming_rate_above_the_promise_is_a_disagreement():
    """The rows have far less noise than declared."""
    promise = {"epsilon": 0.1, "delta": 1e-6, "unit": "client", "relation": "replace"}
    result = plant(9, rounds=8, clients=12, guarantee=promise).audit()
    (bound,) = result.bounds.values()
    assert result.estimates["naming_rate"].low > bound.value
    assert judge(result)[0].verdict == "disagreement"


def test_the_same_seed_gives_the_same_result():
    made = plant(10)
    assert made.audit(seed=4) == made.audit(seed=4)
