"""Stage II: increments against a loop over clients, the segment against direct differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.records import scoring
from fedaudit.audits.records.scoring import Models, RecordBatch, Scorer
from fedaudit.audits.two_stage_membership import theory
from fedaudit.audits.two_stage_membership.attribution import (
    GRID,
    jumps,
    leave_one_out,
    measure_segment,
    score_pools,
    update_alone,
)
from fedaudit.data import builtin
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP, VAE
from fedaudit.tasks.classifier import Classifier

DIGITS = builtin.load("digits", seed=Seed(0)).take(range(60))


@pytest.fixture(scope="module", params=["mlp", "vae"])
def case(request):
    """A task, 4 clients' updates, a model, and pools of 5 records each."""
    kind = {
        "mlp": MLP(hidden=(8,), activation="tanh"),
        "vae": VAE(hidden=10, latent=3, activation="gelu"),
    }[request.param]
    task = kind.build(DIGITS, Seed(1))
    examples = task.encode(DIGITS)
    torch.manual_seed(0)
    updates = 0.05 * torch.randn(4, task.layout.width)
    shape = task.noise_shape()
    noise = None if shape is None else torch.randn(2, 4, 5, *shape)
    x, y = examples.x[:20], examples.y[:20]
    pools = RecordBatch(x.view(4, 5, *x.shape[1:]), y.view(4, 5), noise)
    return task, updates, task.initial() + 0.1 * torch.randn(task.layout.width), pools


def of_pool(pools, p):
    return RecordBatch(pools.x[p], pools.y[p], None if pools.noise is None else pools.noise[:, p])


def common_scores(scorer, model, pools):
    return torch.stack([scorer.one(model, of_pool(pools, p)) for p in range(len(pools.y))])


def test_models_are_asked_about_the_pools_they_are_paired_with(case):
    task, updates, model, pools = case
    scorer, pairs = Scorer(task), [[0, 2], [3, 1], [1, 1], [2, 0]]
    found = score_pools(scorer, model + updates, pools, pairs)
    for j, own in enumerate(pairs):
        for i, p in enumerate(own):
            expected = scorer.one(model + updates[j], of_pool(pools, p))
            torch.testing.assert_close(found[j, i], expected, rtol=1e-4, atol=1e-4)


def put_together_at_once(scorer, models, pools, pairs):
    """The naive way: all records of all models in one tensor (K, R n, ...)."""
    which = torch.tensor([list(own) for own in pairs])
    noise = None if pools.noise is None else pools.noise[:, which].flatten(2, 3)
    asked = RecordBatch(pools.x[which].flatten(1, 2), pools.y[which].flatten(1, 2), noise)
    return scorer.each(models, asked).view(*which.shape, -1)


@pytest.mark.parametrize(
    "pairs", [[range(4)] * 4, [[0, 2], [3, 1], [1, 1], [2, 0]], [[2]] * 4], ids=str
)
@pytest.mark.parametrize("at_once", [1, 700, 10**6])
def test_blocks_of_models_give_what_one_tensor_gives(case, monkeypatch, pairs, at_once):
    task, updates, model, pools = case
    expected = put_together_at_once(Scorer(task), model + updates, pools, pairs)
    monkeypatch.setattr(scoring, "NUMBERS_AT_ONCE", at_once)
    found = score_pools(Scorer(task), model + updates, pools, pairs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 3, 1000])
def test_models_that_are_formed_in_blocks_give_the_same_scores(case, monkeypatch, width):
    """Models are a start plus read-only rows, formed block by block."""
    task, contributions, start, pools = case
    scorer, count = Scorer(task), len(contributions)
    rows = contributions.numpy().copy()
    rows.flags.writeable = False
    pairs = [[(j + i) % len(pools.x) for i in range(2)] for j in range(count)]
    plain = score_pools(scorer, start - 0.5 * contributions, pools, pairs)
    monkeypatch.setattr(scoring, "WEIGHTS_AT_ONCE", width * start.numel())
    formed = []
    monkeypatch.setattr(
        Models,
        "__getitem__",
        lambda self, at, old=Models.__getitem__: _noted(old(self, at), formed),
    )
    lazy = score_pools(scorer, Models(start, rows, -0.5), pools, pairs)
    torch.testing.assert_close(lazy, plain, rtol=1e-5, atol=1e-5)
    assert max(formed) <= width
    some = Models(start.numpy(), rows, -0.5, which=(2, 0))
    assert len(some) == 2
    torch.testing.assert_close(some[:], (start - 0.5 * contributions)[[2, 0]])
    own = Models((start + contributions).numpy(), rows, -0.5, which=(1,))
    torch.testing.assert_close(own[0], (start + 0.5 * contributions)[1])


def _noted(found, formed):
    formed.append(len(found) if found.ndim == 2 else 1)
    return found


def test_records_are_not_copied_for_every_model(case):
    """Every model on every pool: the same memory as one model on every pool."""
    task, updates, model, pools = case
    shared = []

    class Seeing(Scorer):
        def each(self, models, asked):
            shared.append((len(models), asked))
            return super().each(models, asked)

    score_pools(Seeing(task), model + updates, pools, [range(4)] * 4)
    ((count, asked),) = shared
    assert (count, len(asked.x), asked.x.shape[1]) == (4, 4, 20)
    assert asked.x.untyped_storage().nbytes() == pools.x.numel() * 4
    if asked.noise is not None:
        assert asked.noise.untyped_storage().nbytes() == pools.noise.numel() * 4


def test_increments_equal_a_loop_over_clients(case):
    task, updates, before, pools = case
    scorer, after = Scorer(task), before + updates.sum(0)
    pairs = [[p] for p in range(4)]
    own = leave_one_out(scorer, after, updates, pools, pairs, common_scores(scorer, after, pools))
    alone = update_alone(
        scorer, before, updates, pools, pairs, common_scores(scorer, before, pools)
    )
    for k in range(4):
        mine = of_pool(pools, k)
        base = after - updates[k]
        expected = scorer.one(after, mine) - scorer.one(base, mine)
        np.testing.assert_allclose(own[k, 0], expected, rtol=1e-3, atol=1e-4)
        expected = scorer.one(before + updates[k], mine) - scorer.one(before, mine)
        np.testing.assert_allclose(alone[k, 0], expected, rtol=1e-3, atol=1e-4)


def test_an_update_of_zero_moves_no_score_at_all(case):
    """Not even by rounding, whose sign would decide J > 0."""
    task, updates, before, pools = case
    scorer = Scorer(task)
    none = torch.zeros_like(updates)
    none[1] = updates[1]
    pairs = [[p] for p in range(4)]
    # one model and many use different kernels, which round differently
    common = common_scores(scorer, before, pools) * (1 + 1e-7)
    for found in (
        leave_one_out(scorer, before, none, pools, pairs, common),
        update_alone(scorer, before, none, pools, pairs, common),
    ):
        assert (found[[0, 2, 3]] == 0).all()
        assert (found[1] != 0).all()


def test_the_segment_from_base_to_base_plus_u(case):
    task, updates, model, pools = case
    scorer, mine = Scorer(task), of_pool(pools, 0)
    u = updates[0]
    found = measure_segment(scorer, model, u, mine, smooth=True)
    precise = scorer.precise()
    direct = precise.one((model.double() + u.double()), mine.double()) - precise.one(
        model.double(), mine.double()
    )
    np.testing.assert_allclose(found.increment, direct.numpy(), atol=1e-10)
    assert found.norm == pytest.approx(float(u.double().norm()))
    # Lemma 5: the remainder equals the path integral, within the stated error
    off = found.increment - found.slope
    assert (np.abs(off - found.remainder) <= found.error + 1e-12).all()
    assert (found.error < 1e-3 * np.abs(off).max()).all()
    # Lemma 6, and the bound in between: u' Hess u <= |Hess u| |u|
    assert (np.abs(off) <= theory.remainder_bound(found.smoothness, found.norm)).all()
    assert (found.directional <= found.smoothness * (1 + 1e-9)).all()
    # Theorem 1 and Lemma 7 for these records
    j, proxy = theory.phi(found.increment).mean(), theory.phi(found.slope).mean()
    smooth = found.smoothness.max()
    assert abs(j - proxy) <= theory.advantage_slack(smooth, found.norm)
    wide = theory.mean_score_slack(found.slope.var(), smooth, found.norm)
    assert abs(j - theory.phi(found.slope.mean())) <= wide


def test_the_published_constant_of_a_record_is_the_largest_on_every_other_step(case):
    task, updates, model, pools = case
    scorer, mine = Scorer(task), of_pool(pools, 0)
    found = measure_segment(scorer, model, updates[0], mine, smooth=False)
    precise, base, u = scorer.precise(), model.double(), updates[0].double()
    start = precise.one(base, mine.double()).numpy()
    naive = np.zeros(len(start))
    for t in (1 / 6, 3 / 6, 5 / 6):
        error = np.abs(precise.one(base + t * u, mine.double()).numpy() - start - t * found.slope)
        naive = np.maximum(naive, 2 * error / (t * found.norm) ** 2)
    np.testing.assert_allclose(found.calibrated, naive, rtol=1e-6)
    assert found.smoothness is None
    assert found.directional is None


def test_equal_models_have_increments_of_exactly_zero(case):
    task, _, model, pools = case
    found = measure_segment(
        Scorer(task), model, torch.zeros_like(model), of_pool(pools, 1), smooth=True
    )
    assert (found.increment == 0).all()
    assert (found.remainder == 0).all()
    assert (found.norm, found.smoothness) == (0.0, None)
    assert np.isnan(found.calibrated).all()


def test_products_of_gradients_give_the_mean_score_vector(case):
    task, updates, model, pools = case
    scorer, mine = Scorer(task), of_pool(pools, 2)
    found = measure_segment(scorer, model, updates[2], mine, smooth=False)
    precise = scorer.precise()
    at = model.double().requires_grad_()
    p = task.named(at)
    asked = mine.double()
    scores = (
        precise.task.scores(p, asked.x, asked.y, None)
        if asked.noise is None
        else torch.stack([precise.task.scores(p, asked.x, asked.y, z) for z in asked.noise]).mean(0)
    )
    (s,) = torch.autograd.grad(scores.mean(), at)
    assert float(np.sqrt(found.products.mean())) == pytest.approx(float(s.norm()), rel=1e-6)
    assert found.slope.mean() == pytest.approx(float(s @ updates[2].double()), rel=1e-6)


def test_a_kink_shows_in_the_error_estimate():
    """ReLU: slopes jump along the segment; the two rules differ, and the error says so."""
    torch.manual_seed(1)
    task = Classifier(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)))
    asked = RecordBatch(torch.randn(8, 2), torch.arange(8) % 2, None)
    u = torch.randn(task.layout.width)
    rough = measure_segment(Scorer(task), task.initial(), u, asked, smooth=False)
    smooth = Classifier(nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)))
    even = measure_segment(Scorer(smooth), task.initial(), u, asked, smooth=False)
    assert rough.error.max() > 10 * even.error.max()


def test_a_quadratic_score_is_known_in_closed_form():
    """score = -|W x|^2 / 2: slope, remainder and Hessian by hand."""
    task = Classifier(nn.Linear(3, 2, bias=False))

    def score(task, p, x, y, z):
        return -0.5 * (x @ p["weight"].T).square().sum(1)

    rng = np.random.default_rng(0)
    w, u, x = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    asked = RecordBatch(torch.from_numpy(x), torch.zeros(4, dtype=torch.int64), None)
    found = measure_segment(
        Scorer(task, score), torch.from_numpy(w.ravel()), torch.from_numpy(u.ravel()), asked,
        smooth=True,
    )  # fmt: skip
    np.testing.assert_allclose(found.slope, -np.einsum("nd,cd,ce,ne->n", x, w, u, x), rtol=1e-9)
    exact = -0.5 * np.square(x @ u.T).sum(1)
    np.testing.assert_allclose(found.remainder, exact, rtol=1e-9)
    norm = np.linalg.norm(u)
    curvature = np.linalg.norm(x, axis=1) * np.linalg.norm(x @ u.T, axis=1) / norm
    np.testing.assert_allclose(found.smoothness, curvature, rtol=1e-9)
    np.testing.assert_allclose(found.directional, 2 * np.abs(exact) / norm**2, rtol=1e-9)
    # the bound with the directional curvature is met exactly
    limit = theory.remainder_bound(found.directional, found.norm)
    np.testing.assert_allclose(np.abs(found.increment - found.slope), limit, rtol=1e-9)
    np.testing.assert_allclose(found.calibrated, found.directional, rtol=1e-6)
    smaller = replace(found, smoothness=found.directional * 0.9)
    assert (np.abs(found.remainder) > theory.remainder_bound(smaller.smoothness, norm)).all()


def test_a_slope_that_jumps_is_not_what_curvature_adds_up_to():
    """Integrals of known functions over the grid, and the same with a kink in between."""
    t = np.array(GRID)[:, None]
    rates = np.linspace(0.1, 4.0, 20)[None]
    smooth = np.sin(rates * t + 0.3)
    change = (np.cos(0.3) - np.cos(rates[0] + 0.3)) / rates[0]
    assert not jumps(smooth, change).any()
    assert jumps(smooth, change + 0.3).all()
    # piecewise linear: no curvature anywhere, and yet the slope changes
    assert jumps(np.zeros((5, 3)), np.array([0.1, -2.0, 0.0])).tolist() == [True, True, False]
