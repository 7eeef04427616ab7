"""FedIT and FLoRA: what is averaged, what is summed, and that the two differ."""

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.federation.rounds import Rounds
from fedaudit.randomness import Seed
from fedaudit.tasks.lora import AdapterLoRA, DenseLoRA
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import seeded

V, L, K = 20, 6, 3
TRAINING = Training(learning_rate=0.5, epochs=1, batch_size=2)


class Letters:
    def encode(self, text):
        return [ord(c) % V for c in text]

    def __len__(self):
        return V


def base():
    return seeded(Seed(0), "weights", TinyGPT, V, L, 8, 1, 2)


def task(kind, **more):
    return kind(
        base(), Letters(), L, rank=2, scale=2.0, targets=("all-linear",), seed=Seed(1), **more
    )


def data():
    x = torch.randint(0, V, (K, 4, L + 1), generator=torch.Generator().manual_seed(1))
    return ClientData.join([(own, torch.zeros(4, dtype=torch.int64)) for own in x])


def federation(model, rounds=2, **more):
    return Federation(
        task=model,
        data=data(),
        rounds=Rounds(clients=K, rounds=rounds, **more),
        training=TRAINING,
        seed=Seed(3),
    )


@pytest.mark.parametrize("ranks", [(), (1, 2, 3)])
def test_flora_adds_the_mean_of_products(ranks):
    """Two rounds against a slow twin: adapters client by client, merged by hand."""
    model = task(DenseLoRA, ranks=ranks)
    found = federation(model).run()
    weights = model.initial()
    for number in (1, 2):
        total = torch.zeros_like(weights)
        for c in range(K):
            rank = ranks[c] if ranks else 2
            merged = base()
            with torch.no_grad():
                for name, value in model.named(weights).items():
                    merged.get_parameter(name).copy_(value)
            local = AdapterLoRA(
                merged,
                Letters(),
                L,
                rank=rank,
                scale=4.0 / rank,
                targets=("all-linear",),
                seed=Seed(1),
            )
            start = model.fresh(local, number)
            slow = Trainer(local, TRAINING, Seed(3), tier="loop")
            row = start + slow.train(start, np.array([c]), data(), number)[0]
            for layer, product in local.products(row).items():
                entry = next(e for e in model.layout.entries if e.name == f"{layer}.weight")
                total[entry.columns] += product.flatten() / K
        weights = weights + total
    torch.testing.assert_close(found, weights, rtol=1e-4, atol=1e-5)
    assert float((found - model.initial()).abs().max()) > 1e-3


def test_fedit_averages_adapters_and_is_not_flora():
    model = task(AdapterLoRA)
    run = federation(model, rounds=1)
    found = run.run()
    start = model.initial()
    deltas = Trainer(model, TRAINING, Seed(3), tier="loop").train(start, np.arange(K), data(), 1)
    torch.testing.assert_close(found, start + deltas.mean(0), rtol=1e-4, atol=1e-5)
    rows = start + deltas
    states = [model.peft_state(r) for r in rows]
    averaged = {n: torch.stack([s[n] for s in states]).mean(0) for n in states[0]}
    torch.testing.assert_close(model.from_peft(averaged), found, rtol=1e-4, atol=1e-5)
    name = model.targets[0]
    mean_of_products = torch.stack([model.products(r)[name] for r in rows]).mean(0)
    # what FLoRA sums: adapters as peft names them, stacked side by side
    peft = "base_model.model." + name
    stacked = torch.cat([s[peft + ".lora_B.weight"] for s in states], dim=1) @ torch.cat(
        [s[peft + ".lora_A.weight"] for s in states]
    )
    torch.testing.assert_close(model.scale / K * stacked, mean_of_products)
    gap = mean_of_products - model.products(found)[name]
    assert float(gap.abs().max()) > 1e-3 * float(mean_of_products.abs().max())


def test_ranks_must_fit_the_clients():
    with pytest.raises(ConfigError, match="does not fit the clients"):
        federation(task(DenseLoRA, ranks=(1, 2)))


def test_some_clients_and_planted_weights_train_as_they_would_alone():
    model = task(DenseLoRA)
    run = federation(model)
    trainer = run.trainer_for(1)
    start = model.initial()
    other = start * 1.1
    rows = torch.stack([start, other, start])
    together = trainer.train(rows, np.arange(K), data(), 1)
    for c, row in enumerate(rows):
        alone = trainer.train(row, np.array([c]), data(), 1)[0]
        torch.testing.assert_close(together[c], alone, rtol=1e-4, atol=1e-6)
