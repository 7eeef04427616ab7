"""Honest federations, round by round, as one of their clients sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.data import builtin
from fedaudit.data.partition import Dirichlet, Iid
from fedaudit.federation.engine import Federation, Rounds
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.hooks import Hook
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.guard import Run, measure
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CNN, GPT, MLP, VAE, ViT

ROUNDS = 20
CLIENTS = 5
RECORDS = 300
MODELS: dict[str, Callable[[np.random.Generator], Any]] = {
    "mlp": lambda rng: MLP(
        hidden=tuple(map(int, rng.choice([32, 64, 128], size=rng.integers(1, 3))))
    ),
    "cnn": lambda rng: CNN(channels=((8, 16), (16, 32))[rng.integers(2)]),
    "vit": lambda rng: ViT(patch=4, width=int(rng.choice([32, 64])), depth=2, heads=4),
}
OTHERS = {
    "gpt": GPT(width=32, depth=1, heads=2, length=16, vocabulary_size=300),
    "vae": VAE(hidden=64, latent=4),
}
CONDITIONS = ("plain", "plain", "adam", "noise", "pruned", "zero_bias")
"""How a run trains: plain SGD twice as often as the others."""


@dataclass(eq=False)
class Watching(Hook):
    """Keeps what is sent, and sends it as it is, or with the smallest `pruned` share of each
    matrix set to zero."""

    pruned: float = 0.0
    layout: Any = None
    kept: list[dict[str, np.ndarray]] = field(default_factory=list)

    def broadcast(self, model: Tensor, *, receivers: Any, round_number: int, seed: Seed) -> Tensor:
        row = model.detach().clone()
        state = {}
        for e in self.layout.entries:
            part = row[e.columns]
            if self.pruned and len(e.shape) >= 2:
                sizes = part.abs()
                part[sizes <= sizes.quantile(self.pruned)] = 0.0
            state[e.name] = part.reshape(e.shape).numpy().copy()
        self.kept.append(state)
        return row


@dataclass(frozen=True)
class Honest:
    """One honest run: `states` of every round, the module they fit, and a client's records."""

    kind: str
    states: list[dict[str, np.ndarray]]
    module: nn.Module
    records: tuple[Tensor, Tensor] | None


def run(
    number: int,
    *,
    model: str | None = None,
    data: str | None = None,
    condition: str | None = None,
    rounds: int = ROUNDS,
    prefix: str = "calibration",
    scaled: bool = True,
) -> Honest:
    """Run `number`; what is not given is drawn from its seed. `scaled`: features are standardised;
    those that are not may let training collapse."""
    seed = Seed(number)
    rng = seed.generator(f"guard/{prefix}")
    kind = model or str(rng.choice([*MODELS, "gpt"]))
    data = data or ("docs" if kind == "gpt" else "digits")
    how = condition or str(rng.choice(CONDITIONS))
    records = builtin.load(data, seed=seed)
    if records.kind == "features" and scaled:
        x = np.asarray(records.x)
        records = replace(records, x=((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32))
    if len(records) > RECORDS:
        records = records.take(np.sort(rng.permutation(len(records))[:RECORDS]))
    settings = MODELS[kind](rng) if kind in MODELS else OTHERS[kind]
    task = settings.build(records, seed)
    if how == "zero_bias":
        for name, p in task.module.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
    if how == "orthogonal":
        for p in task.module.parameters():
            if p.dim() >= 2:
                nn.init.orthogonal_(p)
    alike = rng.random() < 0.5
    partition = (Iid() if alike else Dirichlet(alpha=0.5)).partition(records, CLIENTS, seed)
    parts = [task.encode(partition.client_data(records, c)) for c in range(CLIENTS)]
    parts = [p for p in parts if len(p) >= 8]
    rate = float(np.exp(rng.uniform(np.log(0.02), np.log(0.3))))
    training = Training(
        optimizer="adam" if how == "adam" else "sgd",
        learning_rate=rate / 50 if how == "adam" else rate,
        epochs=int(rng.integers(1, 3)),
        steps=4 if kind == "gpt" else None,
        batch_size=int(rng.choice([16, 32])),
    )
    protections = ()
    if how == "noise":
        z = float(rng.uniform(0.5, 2.0))
        # gradients per example of transformers take too long: noise on updates stands in
        noise = UpdateNoise(clip=1.0, noise_multiplier=0.01 * z)
        protections = (
            noise if kind in ("vit", "gpt", "vae") else DPSGD(clip=1.0, noise_multiplier=z),
        )
    pruned = float(rng.choice([0.5, 0.8])) if how == "pruned" else 0.0
    watching = Watching(pruned=pruned, layout=task.layout)
    Federation(
        task=task,
        data=ClientData.join([(p.x, p.y) for p in parts]),
        rounds=Rounds(clients=len(parts), rounds=rounds),
        training=training,
        seed=seed,
        protections=protections,
        probe=watching,
    ).run()
    own = None if kind in OTHERS else (parts[0].x, parts[0].y)
    return Honest(f"{kind}, {data}, {how}", watching.kept, task.module, own)


def values(honest: Honest, *, every: int = 1) -> Iterator[dict[str, float]]:
    """Every check on every model (or every so many) of a run, with the model before and own
    records."""
    before = None
    for t, state in enumerate(honest.states):
        if t % every == 0 or t == len(honest.states) - 1:
            with torch.no_grad():
                for name, p in honest.module.named_parameters():
                    p.copy_(torch.from_numpy(state[name]))
            scores = measure(honest.module, before, honest.records)
            yield {name: s.value for name, s in scores.items()}
        before = state


def largest(honest: Honest, *, every: int = 1) -> Run:
    """What a calibration keeps of a run."""
    top: dict[str, float] = {}
    for each in values(honest, every=every):
        for name, value in each.items():
            top[name] = max(value, top.get(name, -np.inf))
    return Run(honest.kind, top)
