"""Every tier against a plain loop over clients with torch.optim; the choice of a tier; invariance.

The twin knows nothing of stacking: it takes a copy of the module, the client's batches, and steps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, UsageError
from fedaudit.federation.local import trainer
from fedaudit.federation.local.analytic import Analytic
from fedaudit.federation.local.loop import Loop
from fedaudit.federation.local.schedule import Training, plan
from fedaudit.federation.local.stacked import Stacked
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.federation.local.vmapped import Vmapped
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CNN, GPT, MLP, VAE, ViT
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.task import Task

SIZES = (5, 1, 9, 4, 6)
SEED = Seed(7)


def image_data() -> tuple[Dataset, list[int]]:
    draw = np.random.default_rng(2)
    n = sum(SIZES)
    x = draw.random(size=(n, 1, 8, 8)).astype(np.float32)
    return Dataset(name="images", kind="image", x=x, y=draw.integers(0, 3, n)), list(SIZES)


def text_data() -> Dataset:
    draw = np.random.default_rng(3)
    words = ["a", "bird", "cat", "dog", "eats", "fish", "green", "house", "."]
    x = tuple(" ".join(draw.choice(words, 12)) for _ in range(sum(SIZES)))
    return Dataset(name="texts", kind="text", x=x, y=np.zeros(len(x), dtype=np.int64))


TASKS: dict[str, Any] = {
    "mlp": MLP(hidden=(7, 6)),
    "smooth mlp": MLP(hidden=(7, 6), activation="tanh"),
    "linear": MLP(hidden=()),
    "cnn": CNN(channels=(3, 4)),
    "vit": ViT(width=8, heads=2, depth=2),
    "vae": VAE(hidden=8, latent=3),
    "unconditional vae": VAE(hidden=8, latent=3, conditional=False, activation="relu"),
    "conv_vae": VAE(channels=(3, 4), latent=3),
    "gpt": GPT(width=8, heads=2, depth=2, length=5, vocabulary_size=20),
}
_built: dict[str, tuple[Task, ClientData]] = {}


def build(name: str) -> tuple[Task, ClientData]:
    if name not in _built:
        dataset = text_data() if name == "gpt" else image_data()[0]
        task = TASKS[name].build(dataset, SEED)
        ends = np.cumsum(SIZES)
        parts = [
            task.encode(dataset.take(np.arange(e - s, e))) for s, e in zip(SIZES, ends, strict=True)
        ]
        _built[name] = task, ClientData.join([(p.x, p.y) for p in parts])
    return _built[name]


def plain(
    task: Task,
    training: Training,
    data: ClientData,
    start: Tensor,
    client: int,
    number: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The delta of one client, by a plain loop with an optimiser of torch."""
    module = copy.deepcopy(task.module).to(dtype)
    start = start.to(dtype)
    records = data.x.to(dtype) if data.x.is_floating_point() else data.x
    with torch.no_grad():
        for name, value in task.named(start).items():
            module.get_parameter(name).copy_(value)
    settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        optimiser: Any = torch.optim.Adam(module.parameters(), **settings)
    else:
        optimiser = torch.optim.SGD(module.parameters(), momentum=training.momentum, **settings)
    own = plan(training, np.array([client]), data.starts, data.sizes, SEED, number)
    steps = int(own.steps[0])
    shape, noise = task.noise_shape(), None
    if shape is not None:
        widest = max(1, int(own.valid[0].sum(axis=1).max()))
        draw = SEED.torch_generator("loss", client, number)
        noise = torch.randn(steps, widest, *shape, generator=draw).to(dtype)
    for s in range(steps):
        rows = own.index[0, s][own.valid[0, s]]
        x, y = records[rows], data.y[rows]
        optimiser.zero_grad(set_to_none=False)
        if len(rows):
            z = None if noise is None else noise[s, : len(rows)]
            losses = task.criterion(module(*task.inputs(x, y, z)), x, y)
            (losses.sum() / float(own.divisor[0, s])).backward()
        else:
            for p in module.parameters():
                p.grad = torch.zeros_like(p)
        optimiser.step()
    with torch.no_grad():
        end = torch.cat([module.get_parameter(n).reshape(-1) for n in task.layout.names])
    return end - start


def exactly(
    task: Task, training: Training, data: ClientData, clients: Sequence[int], number: int
) -> tuple[Tensor, float]:
    """The deltas of clients in double precision, and how far from them single precision may end.

    Thirty times as far as the plain loop does in single precision: adding in another order costs as
    much, and an optimiser that divides by small gradients makes either larger by as much. At least
    a few roundings of the weights.
    """
    start = task.initial()
    exact, single = (
        torch.stack([plain(task, training, data, start, c, number, dtype) for c in clients])
        for dtype in (torch.float64, torch.float32)
    )
    scale = max(float(start.abs().max()), float(exact.abs().max()))
    few = 8 * torch.finfo(torch.float32).eps * scale
    return exact, few + 30 * float((single - exact).abs().max())


TRAININGS = {
    "sgd": Training(learning_rate=0.1, batch_size=4, epochs=2),
    "momentum": Training(learning_rate=0.05, momentum=0.9, batch_size=4, epochs=2),
    "decay": Training(learning_rate=0.1, weight_decay=0.1, batch_size=4),
    "adam": Training(optimizer="adam", learning_rate=0.01, batch_size=4, epochs=2),
    "adam decay": Training(optimizer="adam", learning_rate=0.01, weight_decay=0.1, batch_size=3),
    "steps": Training(learning_rate=0.1, batch_size=2, steps=4),
    "full batch": Training(learning_rate=0.1, batch_size=0, epochs=2),
    "poisson": Training(learning_rate=0.1, batch_size=3, epochs=2, sampling="poisson"),
    "poisson momentum": Training(
        learning_rate=0.1, momentum=0.5, weight_decay=0.01, batch_size=2, sampling="poisson"
    ),
}
TIERS = {
    "mlp": ("analytic", "stacked", "vmap", "loop"),
    "smooth mlp": ("stacked", "vmap", "loop"),
    "linear": ("analytic", "stacked", "vmap", "loop"),
    "cnn": ("stacked", "vmap", "loop"),
    "vit": ("stacked", "vmap", "loop"),
    "vae": ("analytic", "stacked", "vmap", "loop"),
    "unconditional vae": ("analytic", "stacked"),
    "conv_vae": ("stacked", "vmap", "loop"),
    "gpt": ("stacked", "vmap", "loop"),
}


@pytest.mark.parametrize("mode", TRAININGS)
@pytest.mark.parametrize("name", TASKS)
def test_every_tier_equals_a_plain_loop(name: str, mode: str) -> None:
    task, data = build(name)
    training = TRAININGS[mode]
    clients = np.array([2, 0, 1, 4, 3])
    start = task.initial()
    expected, bound = exactly(task, training, data, clients.tolist(), 3)
    assert bound < 0.01 * float(expected.abs().max())
    # the slow tiers share the optimiser with the fast ones: three modes are enough for them
    slow = name != "mlp" and mode not in ("momentum", "adam decay", "poisson")
    for tier in TIERS[name][: 1 if slow else None]:
        got = Trainer(task, training, SEED, tier=tier).train(start, clients, data, 3)
        assert float((got - expected).abs().max()) <= bound, tier
    assert float(expected.abs().max()) > 1e-3


def test_clients_start_from_their_own_models() -> None:
    task, data = build("cnn")
    training = TRAININGS["sgd"]
    clients = np.array([4, 1, 2])
    start = torch.stack([task.initial() * (1 + 0.1 * i) for i in range(3)])
    got = Trainer(task, training, SEED).train(start, clients, data, 1)
    for row, own, c in zip(got, start, clients, strict=True):
        expected = plain(task, training, data, own, int(c), 1)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


# -- choosing a tier -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tiers"), TIERS.items())
def test_the_first_tier_that_fits_is_chosen(name: str, tiers: tuple[str, ...]) -> None:
    task, data = build(name)
    assert Trainer(task, TRAININGS["sgd"], SEED).kernel(data).name == tiers[0]


class Gate(nn.Module):
    """A layer of somebody's own: vmap can trace it, no stacked rule knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 5), nn.Linear(64, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(self.a(flat) * torch.sigmoid(self.b(flat)))


class Branch(Gate):
    """Python control flow on values: only the loop can run it."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * 2 if float(x.mean()) > 0.2 else out


def own_task(module: nn.Module) -> tuple[Task, ClientData]:
    return Classifier(module), build("mlp")[1]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


shared = nn.Linear(8, 8)


@pytest.mark.parametrize(
    ("module", "tier"),
    [
        (Gate(), "vmap"),
        (Branch(), "loop"),
        (normalised(), "loop"),
        (nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)), "loop"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False), nn.Linear(5, 3)), "stacked"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), shared, shared, nn.Linear(8, 3)), "vmap"),
    ],
)
def test_modules_of_ones_own(module: nn.Module, tier: str) -> None:
    task, data = own_task(module)
    assert Trainer(task, TRAININGS["sgd"], SEED).kernel(data).name == tier


def test_a_large_model_takes_the_loop_before_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = own_task(Gate())
    numbers = sum(p.numel() for p in task.module.parameters())
    for limit, tier in ((numbers, "vmap"), (numbers - 1, "loop")):
        monkeypatch.setattr("fedaudit.federation.local.vmapped.LARGE", limit)
        assert Trainer(task, TRAININGS["sgd"], SEED).kernel(data).name == tier


def test_shared_layers_train_like_a_plain_loop() -> None:
    layer = nn.Linear(8, 8)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer, nn.Tanh(), layer, nn.Linear(8, 3))
    task, data = own_task(module)
    got = Trainer(task, TRAININGS["momentum"], SEED).train(task.initial(), np.array([2]), data, 1)
    expected = plain(task, TRAININGS["momentum"], data, task.initial(), 2, 1)
    torch.testing.assert_close(got[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["sums", "sgd_", "clipped_sums"])
def test_a_broken_kernel_is_not_used(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry point of the fast tier in turn is off by one per cent of one layer."""
    task, data = build("mlp")
    clip = 0.5 if method == "clipped_sums" else None
    assert Trainer(task, TRAININGS["sgd"], SEED, clip=clip).kernel(data).name == "analytic"
    into = Analytic._into
    state = {"broken": False}
    right = getattr(Analytic, method)

    def slightly_wrong(self: Analytic, *args: Any) -> Any:
        state["broken"] = True
        try:
            return right(self, *args)
        finally:
            state["broken"] = False

    def into_wrong(self: Analytic, out: Tensor, inputs: Any, deltas: Any, scale: float) -> None:
        before = out.clone()
        into(self, out, inputs, deltas, scale)
        if state["broken"]:
            bias = self.layers[-1].bias.columns
            out[:, bias] += 0.01 * (out - before)[:, bias]

    monkeypatch.setattr(Analytic, method, slightly_wrong)
    monkeypatch.setattr(Analytic, "_into", into_wrong)
    chosen = Trainer(task, TRAININGS["sgd"], SEED, clip=clip).kernel(data)
    assert chosen.name == "stacked"
    got = Trainer(task, TRAININGS["sgd"], SEED).train(task.initial(), np.array([2]), data, 1)
    expected = plain(task, TRAININGS["sgd"], data, task.initial(), 2, 1)
    torch.testing.assert_close(got[0], expected, rtol=1e-4, atol=1e-5)


def test_a_tier_that_raises_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = build("cnn")

    def explode(self: object, *args: object) -> Tensor:
        raise KeyError("a layer")

    monkeypatch.setattr(Stacked, "sums", explode)
    assert Trainer(task, TRAININGS["sgd"], SEED).kernel(data).name == "vmap"
    monkeypatch.setattr(Vmapped, "sums", explode)
    assert Trainer(task, TRAININGS["sgd"], SEED).kernel(data).name == "loop"


def test_a_tier_by_name_must_fit() -> None:
    task, data = build("cnn")
    with pytest.raises(UsageError, match="did you mean 'stacked'"):
        Trainer(task, TRAININGS["sgd"], SEED, tier="stack").kernel(data)
    with pytest.raises(UsageError, match="cannot train this model"):
        Trainer(task, TRAININGS["sgd"], SEED, tier="analytic").kernel(data)
    task, data = own_task(normalised())
    with pytest.raises(UsageError, match="cannot train this model"):
        Trainer(task, TRAININGS["sgd"], SEED, tier="vmap").kernel(data)


# -- invariance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "vae"])
@pytest.mark.parametrize("mode", ["sgd", "adam", "poisson", "full batch"])
def test_blocks_order_and_company_do_not_matter(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = build(name)
    training, start = TRAININGS[mode], task.initial()
    everyone = np.arange(len(SIZES))
    whole = Trainer(task, training, SEED).train(start, everyone, data, 2)
    bound = exactly(task, training, data, everyone.tolist(), 2)[1]
    for block in (1, 2, 5):
        got = Trainer(task, training, SEED, block=block).train(start, everyone, data, 2)
        assert float((got - whole).abs().max()) <= bound
    with monkeypatch.context() as patch:
        patch.setattr("fedaudit.federation.local.trainer.PLANNED", 40)
        got = Trainer(task, training, SEED).train(start, everyone, data, 2)
        assert float((got - whole).abs().max()) <= bound
    turned = everyone[::-1].copy()
    got = Trainer(task, training, SEED).train(start, turned, data, 2)
    assert float((got - whole[turned]).abs().max()) <= bound
    for some in ([3], [1, 4], [4, 0, 2]):
        got = Trainer(task, training, SEED).train(start, np.array(some), data, 2)
        assert float((got - whole[some]).abs().max()) <= bound
    other = Trainer(task, training, SEED).train(start, everyone, data, 3)
    if mode != "full batch" or name == "vae":
        assert float((other - whole).abs().max()) > bound


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_threads_do_not_matter(name: str) -> None:
    task, data = build(name)
    bound = exactly(task, TRAININGS["full batch"], data, range(len(SIZES)), 1)[1]
    before = torch.get_num_threads()
    got = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            trainer = Trainer(task, TRAININGS["full batch"], SEED, tier=TIERS[name][0])
            got.append(trainer.train(task.initial(), np.arange(len(SIZES)), data, 1))
    finally:
        torch.set_num_threads(before)
    assert float((got[0] - got[1]).abs().max()) <= bound


def test_what_a_module_draws_by_itself_is_the_clients_own() -> None:
    task, data = own_task(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)))
    training = TRAININGS["sgd"]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    whole = Trainer(task, training, SEED).train(task.initial(), np.arange(5), data, 1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    for some in ([3], [4, 0]):
        got = Trainer(task, training, SEED).train(task.initial(), np.array(some), data, 1)
        assert torch.equal(got, whole[some])
    again = Trainer(task, training, SEED).train(task.initial(), np.arange(5), data, 2)
    assert not torch.equal(again, whole)


# -- buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["decay", "momentum", "adam decay"])
def test_statistics_of_a_batch_travel_and_are_not_optimised(mode: str) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)
    )
    task, data = own_task(module)
    training = TRAININGS[mode]
    trainer = Trainer(task, training, SEED)
    start = task.initial()
    got = trainer.train(start, np.arange(5), data, 1)
    assert trainer.kernel(data).name == "loop"
    for c in range(5):
        own = copy.deepcopy(module)
        settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        optimiser: Any = (
            torch.optim.Adam(own.parameters(), **settings)
            if training.optimizer == "adam"
            else torch.optim.SGD(own.parameters(), momentum=training.momentum, **settings)
        )
        batches = plan(training, np.array([c]), data.starts, data.sizes, SEED, 1)
        for s in range(int(batches.steps[0])):
            rows = batches.index[0, s][batches.valid[0, s]]
            optimiser.zero_grad()
            nn.functional.cross_entropy(own(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
        state = own.state_dict()
        end = torch.cat([state[n].reshape(-1) for n in task.layout.names])
        torch.testing.assert_close(got[c], end - start, rtol=1e-4, atol=1e-5)
    moved = got[:, task.layout.select("1.running_mean")[0].columns]
    assert float(moved.abs().min()) > 0
    assert int(module[1].num_batches_tracked) == 0


def test_batch_normalisation_refuses_what_cannot_be() -> None:
    task, data = own_task(normalised())
    with pytest.raises(ConfigError, match="GroupNorm"):
        Trainer(task, TRAININGS["sgd"], SEED, clip=1.0)
    with pytest.raises(ConfigError, match="batch of one example"):
        Trainer(task, TRAININGS["sgd"], SEED).train(task.initial(), np.array([1]), data, 1)


# -- hooks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("sampling", ["shuffle", "poisson"])
@pytest.mark.parametrize("slices", ["whole batches", "single examples"])
def test_clipping_equals_a_loop_over_examples(
    name: str, sampling: str, slices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slices == "single examples":
        monkeypatch.setattr(trainer, "EXAMPLE_BYTES", 1)
    task, data = build(name)
    training = Training(learning_rate=0.5, batch_size=3, sampling=sampling)
    clip, start = 0.7, task.initial()
    got = Trainer(task, training, SEED, clip=clip).train(start, np.arange(5), data, 1)
    for c in range(5):
        own = plan(training, np.array([c]), data.starts, data.sizes, SEED, 1)
        p = start.clone()
        for s in range(int(own.steps[0])):
            total = torch.zeros_like(p)
            for i in own.index[0, s][own.valid[0, s]]:
                row = p.clone().requires_grad_()
                loss = task.losses(task.named(row), data.x[i : i + 1], data.y[i : i + 1], None)
                (g,) = torch.autograd.grad(loss.sum(), row)
                total += g / max(1.0, float(g.norm()) / clip)
            p -= 0.5 * total / float(own.divisor[0, s])
        torch.testing.assert_close(got[c], p - start, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_an_autoencoder_by_hand_equals_the_loop_for_every_activation(activation: Any) -> None:
    task = VAE(hidden=8, latent=3, activation=activation).build(image_data()[0], SEED)
    data = build("vae")[1]
    kernel = Trainer(task, TRAININGS["sgd"], SEED).kernel(data)
    assert kernel.name == "analytic"
    p = task.initial().repeat(2, 1)
    p[1] += 0.01
    x, y = data.x[:6].view(2, 3, *data.x.shape[1:]), data.y[:6].view(2, 3)
    weight = torch.tensor([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    noise = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1))
    expected = Loop(task).sums(p, x, y, weight, noise)
    torch.testing.assert_close(kernel.sums(p, x, y, weight, noise), expected, rtol=1e-4, atol=1e-5)
    stepped = p.clone()
    kernel.sgd_(stepped, x, y, weight, noise, 0.1)
    torch.testing.assert_close(stepped, p - 0.1 * expected, rtol=1e-4, atol=1e-5)


def test_clipping_of_an_autoencoder_equals_a_loop_over_examples() -> None:
    task, data = build("vae")
    kernel = Trainer(task, TRAININGS["sgd"], SEED, clip=1.0).kernel(data)
    assert kernel.name == "analytic"
    p = task.initial().repeat(2, 1)
    p[1] += 0.01
    x, y = data.x[:6].view(2, 3, *data.x.shape[1:]), data.y[:6].view(2, 3)
    weight = torch.tensor([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    noise = task.draw_noise(6, SEED, "test")
    assert noise is not None
    noise = noise.view(2, 3, -1)
    each = Loop(task).per_example(p, x, y, weight, noise)
    norms = each.norm(dim=2, keepdim=True)
    clip = float(norms[weight != 0].median())  # some are cut, some are not
    expected = torch.einsum(
        "kb,kbd->kd", weight, each * (clip / norms.clamp_min(1e-9)).clamp_max(1)
    )
    got = kernel.clipped_sums(p, x, y, weight, noise, clip)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_round_that_somebody_holds_is_not_written_over() -> None:
    task, data = build("mlp")
    trainer, clients = Trainer(task, TRAININGS["sgd"], SEED), np.array([2, 0, 1, 4, 3])
    first = trainer.train(task.initial(), clients, data, 1)
    kept, before = first.numpy()[1:3], first.clone()
    place = first.data_ptr()
    del first
    second = trainer.train(task.initial(), clients, data, 2)
    assert second.data_ptr() != place
    assert np.array_equal(kept, before[1:3].numpy())
    assert not torch.equal(second, before)
    place = second.data_ptr()
    del second
    assert trainer.train(task.initial(), clients, data, 1).data_ptr() == place
    assert torch.equal(trainer.train(task.initial(), clients, data, 1), before)


@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_hooks_see_examples_and_then_sums_before_the_division(name: str) -> None:
    task, data = build(name)
    training = Training(learning_rate=1.0, batch_size=2, epochs=1)
    seen: list[tuple[tuple[int, ...], int, int]] = []

    def halve(each: Tensor) -> Tensor:
        assert each.dim() == 3
        return each * 0.5

    def note(sums: Tensor, *, clients: Any, round_number: int, step: int) -> None:
        seen.append((tuple(int(c) for c in clients), round_number, step))
        sums += 1.0

    clients = np.array([0, 2])
    got = Trainer(task, training, SEED, gradient=halve, step=note).train(
        task.initial(), clients, data, 6
    )
    p = task.initial()
    own = plan(training, np.array([0]), data.starts, data.sizes, SEED, 6)
    for s in range(int(own.steps[0])):
        rows = own.index[0, s][own.valid[0, s]]
        sums = Loop(task).sums(
            p.unsqueeze(0),
            data.x[rows].unsqueeze(0),
            data.y[rows].unsqueeze(0),
            torch.ones(1, len(rows)),
            None,
        )[0]
        p = p - (0.5 * sums + 1.0) / len(rows)
    torch.testing.assert_close(got[0], p - task.initial(), rtol=1e-4, atol=1e-5)
    # client 2 has nine examples and trains on after client 0 has done its three steps
    assert seen == [((2, 0), 6, 0), ((2, 0), 6, 1), ((2, 0), 6, 2), ((2,), 6, 3), ((2,), 6, 4)]


def test_per_example_gradients_of_all_tiers_agree() -> None:
    task, data = build("vae")
    p = task.initial().repeat(2, 1)
    x, y = data.x[:6].view(2, 3, 1, 8, 8), data.y[:6].view(2, 3)
    weight = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    noise = torch.randn(2, 3, 3, generator=SEED.torch_generator("test"))
    slow = Loop(task).per_example(p, x, y, weight, noise)
    torch.testing.assert_close(
        Vmapped(task).per_example(p, x, y, weight, noise), slow, rtol=1e-4, atol=1e-5
    )
    assert float(slow[0, 2].abs().max()) == 0
    torch.testing.assert_close(
        Loop(task).sums(p, x, y, weight, noise), slow.sum(1), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["cnn", "conv_vae", "mlp"])
def test_large_batches_of_images_are_summed_in_slices(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sums; from the first on, so that a run taken up again goes on as it was."""
    from fedaudit.federation.local import stacked

    task, data = build(name)
    p = task.initial().repeat(2, 1)
    p[1] *= 1.01
    rows = torch.arange(18).view(2, 9)
    weight = torch.linspace(0, 1, 18).view(2, 9)
    noise = task.draw_noise(18, SEED, "check")
    z = None if noise is None else noise.view(2, 9, *noise.shape[1:])
    # in double precision: slices are added in another order
    z = None if z is None else z.double()
    args = (p.double(), data.x[rows].double(), data.y[rows], weight.double(), z)
    whole = Loop(task).sums(*args)
    seen: list[int] = []
    losses = task.stacked_losses

    def watched(named: Any, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        seen.append(x.shape[1])
        return losses(named, x, y, noise)

    monkeypatch.setattr(task, "stacked_losses", watched)
    # 2 clients' feature maps of 3 channels: four examples at a time
    monkeypatch.setattr(stacked, "SLICE_BYTES", 2 * 4 * Stacked(task)._bytes_of_one(*args[:3], z))
    kernel = Stacked(task)
    for _ in range(2):
        seen.clear()
        assert torch.allclose(kernel.sums(*args), whole, rtol=1e-10, atol=1e-10)
        assert [n for n in seen if n > 1] == ([9] if name == "mlp" else [4, 4])


def test_client_data_joins_and_parts() -> None:
    parts = [(torch.arange(3.0), torch.zeros(3)), (torch.arange(2.0) + 10, torch.ones(2))]
    data = ClientData.join(parts)
    assert data.sizes.tolist() == [3, 2]
    for c, (x, y) in enumerate(parts):
        assert torch.equal(data.of(c)[0], x)
        assert torch.equal(data.of(c)[1], y)
