"""The tasks that a config can name: built for a dataset, or refused with a remedy."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.data.dataset import Dataset
from fedaudit.data.text import IGNORE
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CATALOGUE, CNN, GPT, MLP, VAE, Module, ViT, load_factory


def images(n: int = 12, side: int = 8, classes: int = 3) -> Dataset:
    draw = np.random.default_rng(1)
    x = draw.random(size=(n, 1, side, side)).astype(np.float32)
    return Dataset(name="images", kind="image", x=x, y=np.arange(n) % classes)


def features(n: int = 12, width: int = 5) -> Dataset:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(n, width)).astype(np.float32)
    return Dataset(name="features", kind="features", x=x, y=np.arange(n) % 3)


def texts() -> Dataset:
    x = ("the cat sat on the mat and slept all day", "a dog barked at the cat", "no")
    return Dataset(name="texts", kind="text", x=x, y=np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize(
    ("settings", "data", "name"),
    [
        (MLP(hidden=(7,)), images, "1.weight"),
        (MLP(hidden=()), features, "1.weight"),
        (CNN(channels=(6,)), images, "0.weight"),
        (ViT(width=8, heads=2), images, "blocks.1.mlp.proj.bias"),
        (VAE(hidden=9, latent=2), images, "code.weight"),
        (VAE(channels=(3, 4), latent=2, conditional=False), images, "decoder.3.weight"),
        (VAE(published=True, latent=2), images, "decoder.14.weight"),
        (MLP(hidden=(7,), activation="tanh"), images, "3.weight"),
        (VAE(hidden=9, latent=2, activation="gelu"), images, "code.weight"),
        (VAE(channels=(3,), latent=2, activation="silu"), images, "code.weight"),
        (GPT(width=8, heads=2, depth=4, length=4), texts, "blocks.3.attn.qkv.weight"),
        (GPT(width=8, heads=2, length=8, vocabulary="bytes", vocabulary_size=260), texts, "tokens"),
    ],
)
def test_built_tasks_give_finite_losses(settings: Any, data: Callable[[], Dataset], name: str):
    dataset = data()
    task = settings.build(dataset, Seed(1))
    assert any(n.startswith(name) for n in task.layout.names)
    assert task.settings["kind"] == settings.kind
    few = task.encode(dataset)
    noise = task.draw_noise(len(few), Seed(1), "test")
    losses = task.losses(task.named(task.initial()), few.x, few.y, noise)
    assert losses.shape == (len(few),)
    assert torch.isfinite(losses).all()
    assert torch.equal(task.initial(), settings.build(dataset, Seed(1)).initial())
    assert not torch.equal(task.initial(), settings.build(dataset, Seed(2)).initial())


def test_default_gpt_is_four_blocks_of_width_128() -> None:
    task = GPT().build(texts(), Seed(1))
    assert task.layout.select("blocks.3.mlp.fc.weight")[0].shape == (512, 128)
    assert not any(n.startswith("blocks.4") for n in task.layout.names)


def test_language_model_windows_and_padding() -> None:
    dataset = texts()
    task = GPT(width=8, heads=2, depth=1, length=4).build(dataset, Seed(1))
    few = task.encode(dataset)
    assert few.x.shape[1] == 5
    assert few.record.dtype == torch.int64
    # the mean is over the targets that count
    flat = task.named(task.initial())
    losses = task.losses(flat, few.x, few.y, None)
    logits = task.output(flat, few.x, few.y, None)
    for window, loss, scores in zip(few.x, losses, logits, strict=True):
        kept = [(t, int(w)) for t, w in enumerate(window[1:]) if int(w) != IGNORE]
        own = [-torch.log_softmax(scores[t], -1)[w] for t, w in kept]
        torch.testing.assert_close(loss, torch.stack(own).mean())


def test_documents_without_a_window_give_no_examples() -> None:
    task = GPT(width=8, heads=2, depth=1, length=30).build(texts(), Seed(1))
    few = task.encode(texts())
    assert len(few) == 0
    assert few.record.dtype == torch.int64


def test_autoencoder_loss_is_the_negative_evidence_bound() -> None:
    dataset = images()
    task = VAE(hidden=6, latent=2).build(dataset, Seed(1))
    few = task.encode(dataset)
    noise = task.draw_noise(len(few), Seed(1), "test")
    named = task.named(task.initial())
    logits, mean, log_variance = task.output(named, few.x, few.y, noise)
    p = torch.sigmoid(logits)
    x = few.x.flatten(1)
    likelihood = (x * p.log() + (1 - x) * (1 - p).log()).sum(1)
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    divergence = torch.distributions.kl_divergence(normal, prior).sum(1)
    losses = task.losses(named, few.x, few.y, noise)
    torch.testing.assert_close(losses, divergence - likelihood, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("settings", [MLP(), CNN(), ViT(), VAE(), Module(factory="torch.nn:ReLU")])
def test_text_is_refused_by_tasks_on_numbers(settings: Any) -> None:
    with pytest.raises(DataError, match="gpt"):
        settings.build(texts(), Seed(1))
    if not isinstance(settings, Module):
        task = settings.build(images(), Seed(1))
        with pytest.raises(DataError, match="gpt"):
            task.encode(texts())


def test_numbers_are_refused_by_a_language_model() -> None:
    with pytest.raises(DataError, match="text"):
        GPT().build(images(), Seed(1))
    with pytest.raises(DataError, match="not text"):
        GPT(width=8, heads=2).build(texts(), Seed(1)).encode(images())


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (lambda: CNN(channels=(4, 4, 4, 4)), images, "fewer channels"),
        (lambda: CNN(), features, "needs images"),
        (lambda: ViT(patch=3), images, "divisor of 8"),
        (lambda: ViT(patch=0), images, "at least 1"),
        (lambda: ViT(width=10, heads=4), images, "divisor of 10"),
        (lambda: GPT(width=10, heads=4), texts, "divisor of 10"),
        (lambda: GPT(depth=0), texts, "at least 1"),
        (lambda: MLP(hidden=(4, 0)), images, "at least 1"),
        (lambda: CNN(channels=(0,)), images, "at least 1"),
        (lambda: VAE(latent=0), images, "at least 1"),
        (lambda: VAE(channels=(2,) * 4), images, "divide by 16"),
        (lambda: VAE(published=True), lambda: images(side=6), "divide by 4"),
        (lambda: VAE(published=True), features, "needs images"),
        (lambda: VAE(published=True, channels=(4,)), images, "fixes the layers"),
        (lambda: VAE(published=True, activation="tanh"), images, "fixes the layers"),
    ],
)
def test_settings_that_do_not_fit(
    make: Callable[[], Any], data: Callable[[], Dataset], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        make().build(data(), Seed(1))


def test_autoencoder_refuses_values_out_of_range() -> None:
    with pytest.raises(DataError, match=r"values in \[0, 1\]"):
        VAE().build(features(), Seed(1)).encode(features())


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8),"
        " nn.ReLU(), nn.Linear(8, 3))\n"
        "def narrow():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))\n"
        "def other():\n    return nn.Linear(7, 3)\n"
        "def forgot():\n    return nn.Linear\n"
        "def boom():\n    raise RuntimeError('no weights')\n"
        "def needs(path):\n    return nn.Linear(64, 3)\n"
        "number = 3\n"
    )
    (tmp_path / "slip_models.py").write_text("def build()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    importlib.invalidate_caches()


@pytest.mark.usefixtures("factories")
def test_a_users_own_module() -> None:
    task = Module(factory="own_models:build").build(images(), Seed(1))
    assert [e.name for e in task.layout.entries if e.role == "buffer"] == [
        "2.running_mean",
        "2.running_var",
    ]
    assert task.settings == {"kind": "module", "factory": "own_models:build"}


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("own_models:narrow", r"logits of shape \(2, 3\)"),
        ("own_models:other", "cannot read dataset 'images'"),
        ("own_models:forgot", "a torch.nn.Module"),
        ("own_models:number", "not a function"),
        ("own_models:absent", "cannot load"),
        ("absent_models:build", "cannot load"),
        ("slip_models:build", r"SyntaxError: .* \(slip_models.py:1\)"),
        ("own_models:boom", r"RuntimeError: no weights \(.*own_models.py:11\)"),
        ("own_models:needs", r"needs\(path\): missing a required argument"),
        ("own_models", "package.module:function"),
    ],
)
def test_a_factory_that_does_not_fit(factory: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Module(factory=factory).build(images(), Seed(1))


def test_load_factory_and_catalogue() -> None:
    assert load_factory("torch.nn:ReLU") is torch.nn.ReLU
    assert set(CATALOGUE) == {"mlp", "cnn", "vit", "vae", "gpt", "lora", "module", "sklearn"}
