"""Records rebuilt from updates: closed form, null, power, protections and views."""

import numpy as np
import pytest
import torch

from fedaudit.accounting import PrivacyCurve
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.reconstruction import Prior, Reconstruction, matching, scores, theory
from fedaudit.audits.reconstruction.facts import EXACT, REBUILT
from fedaudit.audits.reconstruction.layers import linear_ends
from fedaudit.errors import NotApplicable
from fedaudit.layout import Layout
from fedaudit.stats.bias_ratios import ratios
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import cnn, mlp
from fedaudit.trace import ANONYMOUS, PUBLIC, SERVER, MemoryRecorder, MemoryTruth
from fedaudit.trace.schema import AGGREGATOR

WIDTH, CLASSES, RATE = 12, 3, 0.1
CHEAP = {"steps": 60, "restarts": 1, "records": 2}


def model(seed=0, hidden=8):
    torch.manual_seed(seed)
    return Classifier(mlp(WIDTH, [hidden], CLASSES))


def trained(task, x, y):
    """One full-batch step of one client: the update (d,)."""
    start = task.initial().requires_grad_(True)
    loss = task.losses(task.named(start), x, y, None).mean()
    (gradient,) = torch.autograd.grad(loss, [start])
    return -RATE * gradient


class Federation:
    """`clients` clients with `size` records each take one step; as many records stay out."""

    def __init__(self, clients=6, size=1, seed=0, *, learnt=True, noise=0.0, sender=None):
        rng = np.random.default_rng(seed)
        self.task, self.sizes = model(seed), {f"c{i}": size for i in range(clients)}
        x = torch.from_numpy(rng.random((clients, 2 * size, WIDTH), dtype=np.float32))
        y = torch.from_numpy(rng.integers(0, CLASSES, (clients, size))).repeat(1, 2)  # matched
        if not learnt:  # clients train on records that nobody is asked about
            trained_on = torch.from_numpy(rng.random((clients, size, WIDTH), dtype=np.float32))
        else:
            trained_on = x[:, :size]
        start = self.task.initial()
        rows = [trained(self.task, a, b[:size]) for a, b in zip(trained_on, y, strict=True)]
        rows = [r + noise * torch.from_numpy(rng.normal(size=len(r))).float() for r in rows]
        layout = Layout.of([(e.name, e.shape) for e in self.task.layout.entries])
        recorder, self.truth = MemoryRecorder(layouts={"model": layout}), MemoryTruth({})
        with recorder.round() as wire:
            for name in self.sizes:
                wire.send("model", SERVER, name, self.named(start))
            if sender == AGGREGATOR:
                mean = torch.stack(rows).mean(0)
                wire.send("sum", AGGREGATOR, SERVER, self.named(mean * clients))
            else:
                for name, row in zip(self.sizes, rows, strict=True):
                    wire.send("delta", sender or name, SERVER, self.named(row))
            wire.send("model", SERVER, PUBLIC, self.named(start + torch.stack(rows).mean(0)))
        self.trace = recorder.trace()
        members = {n: np.arange(2 * size) < size for n in self.sizes}
        pools = {n: (x[i].numpy(), y[i].numpy()) for i, n in enumerate(self.sizes)}
        self.truth = self.truth.with_members(members, pools)
        self.prior = Prior(
            low=np.zeros(WIDTH),
            high=np.ones(WIDTH),
            middle=np.full(WIDTH, 0.5),
            shape=(WIDTH,),
            sizes=self.sizes,
            learning_rate=RATE,
        )

    def named(self, row):
        return {name: value.numpy() for name, value in self.task.named(row.detach()).items()}

    def audited(self, vantage=SERVER, seed=0, **settings):
        audit, rng = Reconstruction(**{**CHEAP, **settings}), np.random.default_rng(seed)
        known = Knowledge(task=self.task, extra={"prior": self.prior})
        return audit.score(audit.attack(self.trace.seen_by(vantage), known, rng), self.truth, rng)


# -- arrays ---------------------------------------------------------------------------------------


def test_naive_ratio_of_a_unit_that_one_record_drives_is_that_record():
    rng = np.random.default_rng(0)
    x, error = rng.random((3, WIDTH)), np.diag([0.3, -2.0, 1e-3])  # unit u sees record u alone
    weight, bias = (error @ x).astype(np.float32)[None], error.sum(1).astype(np.float32)[None]
    found, usable = ratios(weight, bias, 1e-6)
    assert usable.all()
    np.testing.assert_allclose(found[0], x, rtol=1e-5)


def test_a_unit_of_two_records_gives_their_mean_by_error():
    x = np.array([[0.0] * WIDTH, [1.0] * WIDTH])
    error = np.array([[1.0, 3.0]])
    found, _ = ratios(
        (error @ x).astype(np.float32)[None], error.sum(1).astype(np.float32)[None], 1e-6
    )
    np.testing.assert_allclose(found[0, 0], 0.75)


def test_rounding_is_no_record():
    weight = np.full((1, 1, WIDTH), 5e-8, np.float32)
    _, usable = ratios(weight, np.full((1, 1), 1e-7, np.float32), 1e-6)
    assert not usable.any()


def test_label_counts_are_those_of_a_full_batch_step():
    task = model(3)
    x, y = torch.rand(7, WIDTH), torch.tensor([0, 0, 0, 0, 1, 1, 2])
    bias = trained(task, x, y).numpy()[-CLASSES:].astype(np.float64)
    with torch.no_grad():
        mean = task.output(task.named(task.initial()), x, y, None).softmax(-1).mean(0)
    counts = matching.label_counts(bias, mean.double().numpy(), 7, RATE)
    assert [*counts] == [4, 2, 1]


def test_gradient_matching_finds_records_that_random_guesses_do_not():
    task = model(1, hidden=32)
    x, y = torch.rand(2, 2, WIDTH), torch.tensor([[0, 1], [1, 2]])
    target = torch.stack([trained(task, a, b) for a, b in zip(x, y, strict=True)])
    search = matching.MatchingSearch(steps=300, restarts=2, tv=0.0)
    found, cosine = matching.match(
        task,
        task.initial(),
        target,
        y,
        torch.zeros(WIDTH),
        torch.ones(WIDTH),
        search,
        np.random.default_rng(0),
    )
    blind = torch.rand(2, 2, WIDTH, generator=torch.Generator().manual_seed(5))
    assert float(cosine.min()) > 0.98
    assert float((found - x).abs().mean()) < 0.5 * float((blind - x).abs().mean())


def test_a_guess_hits_its_nearest_record_only():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = scores.nearest(np.array([[0.1, 0.0], [0.2, 0.0]]), x, usual=1.0)
    np.testing.assert_allclose(found.hit, [0.1, np.inf, np.inf])
    np.testing.assert_allclose(found.any[0], 0.1)
    assert [*found.guess] == [0, 1, 0]


def test_layers_at_both_ends_are_found_by_running_the_model():
    x, y = torch.rand(2, WIDTH), torch.zeros(2, dtype=torch.int64)
    assert linear_ends(model(), x, y) == linear_ends(model(), x.view(2, 3, 4), y)
    assert linear_ends(model(), x, y).first == ("1.weight", "1.bias")
    images = Classifier(cnn((1, 8, 8), [4], CLASSES))
    ends = linear_ends(images, torch.rand(1, 1, 8, 8), y[:1])
    assert ends.first is None
    assert ends.last is not None
    alone = linear_ends(Classifier(torch.nn.Linear(WIDTH, CLASSES)), x, y)
    assert alone.first == alone.last == ("weight", "bias")


# -- the audit ------------------------------------------------------------------------------------


def test_power_one_record_per_client_is_rebuilt_exactly():
    result = Federation(clients=8).audited()
    assert result.estimates[EXACT].value > 0.8  # a dead ReLU layer hides a record
    assert result.estimates[REBUILT].baseline < 0.2
    assert result.test.adjusted[result.test.decided] <= result.test.level


def test_null_records_that_nobody_trained_on_alarm_at_most_at_the_level():
    results = [
        Federation(clients=8, seed=s, learnt=False).audited(seed=s, matched_rounds=0)
        for s in range(60)
    ]
    alarms = sum(r.test.adjusted[r.test.decided] <= r.test.level for r in results)
    assert alarms <= 5  # 60 at 2.5 %: more than 5 in one of 250


def test_monotone_more_noise_never_rebuilds_more():
    values = [
        Federation(clients=8, noise=noise).audited(matched_rounds=0).estimates[REBUILT].value
        for noise in (0.0, 1e-3, 1.0)
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_rows_without_names_and_sums_are_searched_for_everybody():
    hidden = Federation(clients=8, sender=ANONYMOUS).audited(matched_rounds=0)
    assert hidden.estimates[REBUILT].value > 0.8
    summed = Federation(clients=2, sender=AGGREGATOR).audited(matched_rounds=0)
    assert summed.status in ("ok", "nothing_to_say")
    public = Federation(clients=2).audited(vantage="c0", matched_rounds=0)
    assert public.estimates[REBUILT].n == 2


def test_vantage_who_sees_no_model_cannot_ask():
    federation = Federation()
    with pytest.raises(NotApplicable):
        federation.audited(vantage="network")


def test_no_truth_is_blind():
    federation = Federation()
    federation.truth = None
    assert federation.audited(matched_rounds=0).status == "blind"


# -- theory ---------------------------------------------------------------------------------------


def test_the_ceiling_starts_at_the_prior_and_grows_with_epsilon():
    curves = [PrivacyCurve.of_point(e, 1e-5) for e in (0.0, 1.0, 4.0, 900.0)]
    values = [theory.ceiling(0.01, curve.most_true) for curve in curves]
    assert values[0] == pytest.approx(0.01, abs=2e-5)
    assert values == sorted(values)
    assert values[-1] == 1.0


def test_an_attack_on_randomised_response_stays_below_the_ceiling_and_reaches_it():
    """Rebuild one of 8 values from 8-ary randomised response: e^eps / (e^eps + 7)."""
    epsilon, values = 1.5, 8
    right = np.exp(epsilon) / (np.exp(epsilon) + values - 1)
    # without the record a report is any value: the prior success is 1 / 8
    limit = theory.ceiling(1 / values, PrivacyCurve.of_point(epsilon, 0.0).most_true)
    assert right <= limit <= 1.7 * right


def test_records_needed_to_rule_out_chance():
    assert theory.records_for_level(0.025) == 6
