"""Honest federations, round by round, as one of their clients sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedaudit.data import builtin
from fedaudit.data.dataset import Dataset
from fedaudit.data.partition import Dirichlet, Iid
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.guard import HonestRun
from fedaudit.protections.guard.calibration import together
from fedaudit.protections.guard.guard import observed
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CNN, GPT, MLP, VAE, LoRA, ViT
from fedaudit.tasks.pretraining import Pretraining, pretrained

ROUNDS = 20
CLIENTS = 5
RECORDS = 300
SMALL_GPT: dict[str, Any] = {
    "width": 64,
    "depth": 2,
    "heads": 4,
    "length": 40,
    "vocabulary_size": 1000,
}
"""The built-in language model that comes with trained weights."""
MODELS: dict[str, Callable[[np.random.Generator], Any]] = {
    "mlp": lambda rng: MLP(
        hidden=tuple(map(int, rng.choice([32, 64, 128], size=rng.integers(1, 3))))
    ),
    "wide mlp": lambda rng: MLP(hidden=(int(rng.choice([512, 2048, 4096])), 64)),
    "logistic": lambda rng: MLP(hidden=()),
    "words mlp": lambda rng: MLP(hidden=(int(rng.choice([64, 128])),)),
    "cnn": lambda rng: CNN(channels=((8, 16), (16, 32))[rng.integers(2)]),
    "vit": lambda rng: ViT(patch=4, width=int(rng.choice([32, 64])), depth=2, heads=4),
    "gpt": lambda rng: GPT(width=32, depth=1, heads=2, length=16, vocabulary_size=300),
    "pretrained gpt": lambda rng: GPT(**SMALL_GPT),
    "lora": lambda rng: LoRA(rank=int(rng.choice([4, 8, 16])), **SMALL_GPT),
    "vae": lambda rng: VAE(hidden=64, latent=4),
}
SHARES = {
    "mlp": 0.2,
    "wide mlp": 0.05,
    "logistic": 0.05,
    "words mlp": 0.1,
    "cnn": 0.2,
    "vit": 0.15,
    "gpt": 0.1,
    "pretrained gpt": 0.04,
    "lora": 0.11,
}
"""How often a calibration draws each kind."""
TEXT = ("gpt", "pretrained gpt", "lora")
CONDITIONS = ("plain", "plain", "adam", "noise", "pruned", "zero_bias", "zero_head", "one_bias")
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
    kind = model or str(rng.choice([*SHARES], p=[*SHARES.values()]))
    data = data or ("docs" if kind in TEXT else "words" if kind == "words mlp" else "digits")
    how = condition or str(rng.choice(CONDITIONS))
    if kind == "words mlp" and condition is None and rng.random() < 0.5:
        how = "adam"  # sparse inputs are where it leaves its mark
    records = words(rng) if data == "words" else builtin.load(data, seed=seed)
    if records.kind == "features" and scaled and data != "words":
        x = np.asarray(records.x)
        records = replace(records, x=((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32))
    if len(records) > RECORDS:
        records = records.take(np.sort(rng.permutation(len(records))[:RECORDS]))
    task = MODELS[kind](rng).build(records, seed)
    trained = [(n, p) for n, p in task.module.named_parameters() if p.requires_grad]
    if kind == "pretrained gpt":
        base, _ = pretrained(Pretraining(**SMALL_GPT))
        task.module.load_state_dict(base.state_dict())
    if how in ("zero_bias", "one_bias"):
        constant = 0.0 if how == "zero_bias" else float(rng.choice([0.01, 0.1]))
        for name, p in trained:
            if name.endswith("bias") and "norm" not in name:
                nn.init.constant_(p, constant)
    if how == "zero_head" or kind == "logistic":
        last = [p for _, p in trained if p.dim() >= 2][-1]
        if kind != "lora":  # whose second factors begin at zero anyway
            nn.init.zeros_(last)
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
        steps=4 if kind in TEXT else None,
        batch_size=8 if kind in ("lora", "pretrained gpt") else int(rng.choice([16, 32])),
    )
    protections: tuple[Hook, ...] = ()
    if how == "noise":
        z = float(rng.uniform(0.5, 2.0))
        # gradients per example of transformers take too long: noise on updates stands in
        noise = UpdateNoise(clip=1.0, noise_multiplier=0.01 * z)
        protections = (
            noise
            if kind in ("vit", "vae", "wide mlp", *TEXT)
            else DPSGD(clip=1.0, noise_multiplier=z),
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
    own = None if kind in (*TEXT, "vae") else (parts[0].x, parts[0].y)
    return Honest(f"{kind}, {data}, {how}", watching.kept, task.module, own)


def words(rng: np.random.Generator, inputs: int = 500, classes: int = 10) -> Dataset:
    """Bags of words: 20 of the 50 words of a class in each record, 0 or 1 per word."""
    y = rng.integers(0, classes, RECORDS)
    x = np.zeros((RECORDS, inputs), dtype=np.float32)
    own = rng.integers(0, 50, (RECORDS, 20)) + (inputs // classes - 5) * y[:, None]
    np.put_along_axis(x, own, 1.0, axis=1)
    return Dataset(name="words", kind="features", x=x, y=y, classes=tuple(map(str, range(classes))))


def parts(honest: Honest) -> Iterator[HonestRun]:
    """Every check on every model of a run, with the model before and own records."""
    before = None
    for state in honest.states:
        module = honest.module if honest.records is not None else None
        yield HonestRun(honest.kind, *observed(state, before, honest.records, module=module))
        before = state


def largest(honest: Honest) -> HonestRun:
    """What a calibration keeps of a run."""
    top: dict[str, float] = {}
    each = list(parts(honest))
    for part in each:
        for name, value in part.largest.items():
            top[name] = max(value, top.get(name, -np.inf))
    return HonestRun(honest.kind, top, together(each))
