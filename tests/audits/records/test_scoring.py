"""Batched scores and derivatives against one model, one record and one gradient at a time."""

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.records import scoring
from fedaudit.audits.records.scoring import RecordBatch, Scorer, rough_layers
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CNN, GPT, MLP, VAE
from fedaudit.tasks.classifier import Classifier

IMAGES = Dataset(
    name="images",
    kind="image",
    x=np.random.default_rng(0).random((40, 1, 4, 4)).astype(np.float32),
    y=np.tile([0, 1, 2, 0], 10).astype(np.int64),
    classes=("a", "b", "c"),
)
WORDS = Dataset(
    name="words",
    kind="text",
    x=tuple(
        " ".join(np.random.default_rng(i).choice(["one", "two", "three", "four"], 5 + i % 4))
        for i in range(12)
    ),
    y=np.zeros(12, dtype=np.int64),
)


def normalised(layer):
    """Layers without a stacked form, optional batch statistics, and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), layer, nn.Tanh(), nn.Dropout(0.5),
        nn.Linear(6, 3),
    )  # fmt: skip


TASKS = {
    "mlp": lambda: MLP(hidden=(5,), activation="tanh").build(IMAGES, Seed(1)),
    "cnn": lambda: CNN(channels=(4,)).build(IMAGES, Seed(1)),
    "vae": lambda: VAE(hidden=6, latent=2, activation="tanh").build(IMAGES, Seed(1)),
    "conv_vae": lambda: VAE(latent=2, channels=(4, 4), activation="gelu").build(IMAGES, Seed(1)),
    "gpt": lambda: GPT(width=8, depth=1, heads=2, length=6).build(WORDS, Seed(1)),
    "normalised": lambda: Classifier(normalised(nn.BatchNorm1d(6))),
    "dropped": lambda: Classifier(normalised(nn.LayerNorm(6))),
}


def asked_of(task, records=6, draws=3, seed=0):
    data = WORDS if task.kind == "language_model" else IMAGES
    few = task.encode(data.take(range(records)))
    rows = torch.arange(records) % len(few)
    noise = None
    if task.noise_shape() is not None:
        noise = torch.randn(
            draws, records, *task.noise_shape(), generator=torch.Generator().manual_seed(seed)
        )
    return RecordBatch(few.x[rows], few.y[rows], noise)


def models_of(task, count=3, spread=0.05):
    torch.manual_seed(2)
    return task.initial() + spread * torch.randn(count, task.layout.width).abs()


def naive_score(task, model, asked, i):
    """One record under one model: the mean of minus the loss over its draws, in words."""
    p = task.named(model)
    x, y = asked.x[i : i + 1], asked.y[i : i + 1]
    with task.evaluating():
        if asked.noise is None:
            loss = task.losses(p, x, y, None)
        else:
            loss = torch.stack([task.losses(p, x, y, z[i : i + 1]) for z in asked.noise]).mean(0)
    tokens = int((x[..., 1:] >= 0).sum()) if task.kind == "language_model" else 1
    return -loss.sum() * tokens


@pytest.mark.parametrize("kind", TASKS)
def test_scores_equal_one_record_and_model_at_a_time(kind):
    task = TASKS[kind]()
    scorer, asked, models = Scorer(task), asked_of(task), models_of(task)
    with torch.no_grad():
        naive = torch.stack(
            [torch.stack([naive_score(task, m, asked, i) for i in range(6)]) for m in models]
        )
    torch.testing.assert_close(
        torch.stack([scorer.one(m, asked) for m in models]), naive, rtol=1e-4, atol=1e-4
    )
    stacked = RecordBatch(
        asked.x.expand(3, *asked.x.shape),
        asked.y.expand(3, -1),
        None if asked.noise is None else asked.noise.unsqueeze(1).expand(-1, 3, -1, -1),
    )
    torch.testing.assert_close(scorer.each(models, stacked), naive, rtol=1e-4, atol=1e-4)


def test_the_evaluation_mode_is_left_as_it_was():
    task = TASKS["dropped"]()
    task.module.train()
    scorer, asked, model = Scorer(task), asked_of(task), models_of(task)[0]
    assert torch.equal(scorer.one(model, asked), scorer.one(model, asked))
    assert all(m.training for m in task.module.modules())
    scorer.slopes(model[None], model[None], RecordBatch(asked.x[None], asked.y[None], None))
    assert all(m.training for m in task.module.modules())


@pytest.mark.parametrize("numbers", [1, 70, 1000])
def test_blocks_change_nothing(monkeypatch, numbers):
    task = TASKS["vae"]()
    asked, models = asked_of(task), models_of(task, 5)
    x = torch.stack([asked.x[torch.randperm(6)] for _ in range(5)])
    y = asked.y.expand(5, -1)
    noise = torch.randn(3, 5, 6, 2)
    whole = Scorer(task).each(models, RecordBatch(x, y, noise))
    single = Scorer(task).one(models[0], asked)
    monkeypatch.setattr(scoring, "NUMBERS_AT_ONCE", numbers)
    torch.testing.assert_close(Scorer(task).each(models, RecordBatch(x, y, noise)), whole)
    torch.testing.assert_close(Scorer(task).one(models[0], asked), single)


# -- common random numbers ------------------------------------------------------------------------


def test_both_models_see_the_same_draws():
    """Equal models have equal scores, to the last bit; other draws would differ."""
    task = TASKS["vae"]()
    scorer, model = Scorer(task), models_of(task)[0]
    asked, others = asked_of(task), asked_of(task, seed=1)
    assert torch.equal(scorer.one(model, asked), scorer.one(model.clone(), asked))
    assert (scorer.one(model, asked) != scorer.one(model, others)).all()


# -- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "vae", "conv_vae", "gpt", "dropped"])
def test_slopes_equal_gradients_of_single_records(kind):
    task = TASKS[kind]()
    scorer = Scorer(task).precise()
    asked, models = asked_of(task).double(), models_of(task, 2).double()
    directions = models_of(task, 2, spread=0.3).double() - task.initial().double()
    pair = RecordBatch(
        asked.x.expand(2, *asked.x.shape),
        asked.y.expand(2, -1),
        None if asked.noise is None else asked.noise.unsqueeze(1).expand(-1, 2, -1, -1),
    )
    scores, slopes = scorer.slopes(models, directions, pair)
    for k in range(2):
        gradients = []
        for i in range(6):
            at = models[k].clone().requires_grad_()
            score = naive_score(scorer.task, at, asked, i)
            gradients.append(torch.autograd.grad(score, at)[0])
            assert float(slopes[k, i]) == pytest.approx(float(gradients[-1] @ directions[k]))
            assert float(scores[k, i]) == pytest.approx(score.item())
        each = torch.stack(gradients)
        torch.testing.assert_close(scorer.gradient_products(models[k], asked), each @ each.T)
    assert not slopes.requires_grad


def test_curvature_equals_an_explicit_hessian():
    torch.manual_seed(0)
    task = Classifier(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)))
    scorer = Scorer(task).precise()
    asked = RecordBatch(torch.randn(4, 3).double(), torch.tensor([0, 1, 0, 1]), None)
    model, u = task.initial().double(), torch.randn(14).double()
    for i in range(4):
        hessian = torch.autograd.functional.hessian(
            lambda m, i=i: naive_score(scorer.task, m, asked, i), model
        )
        one = asked.take(torch.tensor([i]))
        torch.testing.assert_close(scorer.hessian_products(model, u, one)[0], hessian @ u)


def test_a_linear_score_has_no_curvature():
    torch.manual_seed(0)
    task = Classifier(nn.Linear(3, 2))
    linear = Scorer(task, lambda t, p, x, y, z: (x @ p["weight"].T)[:, 0]).precise()
    asked = RecordBatch(torch.randn(4, 3).double(), torch.zeros(4, dtype=torch.int64), None)
    u = torch.randn(8).double()
    assert (linear.hessian_products(task.initial().double(), u, asked) == 0).all()
    one = RecordBatch(asked.x[None], asked.y[None], None)
    _, slopes = linear.slopes(task.initial().double()[None], u[None], one)
    torch.testing.assert_close(slopes[0], asked.x @ u[:3])


def test_what_does_not_travel_is_as_precise_as_what_does():
    """A frozen layer stays in the module and must become double too."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    task = Classifier(module)
    asked = RecordBatch(torch.randn(2, 3).double(), torch.tensor([0, 1]), None)
    model = task.initial().double()
    products = Scorer(task).precise().hessian_products(model, torch.ones_like(model), asked)
    assert products.dtype == torch.float64
    assert module[0].weight.dtype == torch.float32


# -- smooth or not --------------------------------------------------------------------------------


class Block(nn.Module):
    """A user's block with the same name as ours."""

    def forward(self, x):
        return torch.relu(x)


@pytest.mark.parametrize(
    ("layer", "rough"),
    [
        (nn.Tanh(), ()),
        (nn.GELU(), ()),
        (nn.ELU(), ()),
        (nn.ELU(alpha=0.5), ("ELU",)),
        (nn.ReLU(), ("ReLU",)),
        (nn.MaxPool1d(1), ("MaxPool1d",)),
        (Block(), ("Block",)),
    ],
)
def test_layers_without_a_second_derivative_are_named(layer, rough):
    assert rough_layers(Classifier(nn.Sequential(nn.Linear(3, 2), layer))) == rough


def test_the_published_autoencoder_is_smooth_and_relu_is_not():
    assert rough_layers(TASKS["vae"]()) == ()
    assert rough_layers(TASKS["gpt"]()) == ()
    assert rough_layers(TASKS["cnn"]()) == ("MaxPool2d", "ReLU")
    digits = Dataset(
        name="d", kind="image", x=np.zeros((4, 3, 28, 28), np.float32),
        y=np.arange(4, dtype=np.int64), classes=tuple("0123456789"),
    )  # fmt: skip
    published = VAE(latent=32, published=True).build(digits, Seed(0))
    assert rough_layers(published) == ()
    assert published.layout.width == 3_091_555


# -- scores of one's own --------------------------------------------------------------------------


def test_any_callable_scores():
    task = TASKS["mlp"]()
    asked, models = asked_of(task), models_of(task)

    def margin(task, p, x, y, z):
        logits = task.output(p, x, y, z)
        return logits.gather(1, y[:, None])[:, 0] - logits.mean(1)

    scorer = Scorer(task, margin)
    stacked = RecordBatch(asked.x.expand(3, *asked.x.shape), asked.y.expand(3, -1), None)
    each = scorer.each(models, stacked)
    for k in range(3):
        torch.testing.assert_close(each[k], scorer.one(models[k], asked))
    assert torch.equal(scorer.evidence(each), each)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_score_that_is_not_a_number_is_refused(value):
    task = TASKS["mlp"]()
    scorer = Scorer(task, lambda t, p, x, y, z: torch.full((len(x),), value))
    with pytest.raises(NotApplicable, match="not a number") as error:
        scorer.one(task.initial(), asked_of(task))
    assert "6 of 6" in error.value.got


@pytest.mark.parametrize(
    "wrong", [lambda t, p, x, y, z: x.sum(), lambda t, p, x, y, z: x.sum(1), lambda *a: 1.0]
)
def test_a_score_of_another_shape_is_refused(wrong):
    task = TASKS["mlp"]()
    with pytest.raises(ConfigError, match="one number per record"):
        Scorer(task, wrong).one(task.initial(), asked_of(task))


def test_a_diverged_model_is_refused():
    task = TASKS["mlp"]()
    with pytest.raises(NotApplicable, match="not a number") as error:
        Scorer(task).one(task.initial() * torch.nan, asked_of(task))
    assert "diverged" in error.value.remedy


def test_log_odds_of_a_classifier():
    p = torch.tensor([0.5, 0.9, 1 - 1e-4])
    found = Scorer(TASKS["mlp"]()).evidence(p.log())
    torch.testing.assert_close(found, torch.log(p / (1 - p)), rtol=1e-3, atol=1e-5)
    assert torch.isfinite(Scorer(TASKS["mlp"]()).evidence(torch.tensor([0.0]))).all()
