"""What is measured: published settings of gradient inversion and membership inference.

Every piece depends on nothing but its key and the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.membership import attack
from fedaudit.audits.reconstruction import Prior, Reconstruction, images, matching, small_clients
from fedaudit.audits.reconstruction.layers import linear_ends
from fedaudit.audits.reconstruction.rows import SeenRows
from fedaudit.audits.records.scoring import RecordBatch, Scorer
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared
from fedaudit.stats import roc
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import mlp

CIFAR_MEAN = np.array([0.4914672, 0.4822617, 0.4467580], dtype=np.float32)
CIFAR_STD = np.array([0.2470323, 0.2434850, 0.2615858], dtype=np.float32)
"""Of the training images, as the published code normalises them."""


@dataclass(frozen=True)
class Scale:
    """`images` of CIFAR-10 and `steps` of the search; `batches` of Adult; LiRA's `records`,
    `models`, `epochs` and width of the hidden layer; numbers of `shadows`."""

    images: int = 8
    steps: int = 4800
    batches: int = 50
    records: int = 3000
    models: int = 65
    epochs: int = 30
    hidden: int = 128
    shadows: tuple[int, ...] = (4, 8, 16, 32, 64)


FULL = Scale()
QUICK = Scale(2, 40, 2, 200, 9, 4, 16, (4, 8))


@dataclass(frozen=True)
class Piece:
    """One measurement of an `experiment`: `inversion` from the `untrained` or `trained` network,
    `table` (Adult), or `shadows` (LiRA)."""

    experiment: str
    variant: str = ""

    @property
    def key(self) -> str:
        return "/".join(filter(None, (self.experiment, self.variant)))


def pieces() -> list[Piece]:
    return [
        Piece("inversion", "untrained"),
        Piece("inversion", "trained"),
        Piece("table"),
        Piece("shadows"),
    ]


def measure(piece: Piece, scale: Scale) -> Any:
    torch.manual_seed(42)
    if piece.experiment == "inversion":
        return inversion(scale, trained=piece.variant == "trained")
    return table(scale) if piece.experiment == "table" else shadows(scale)


# -- images: [Geiping] Table 1 ---------------------------------------------------------------------


def lenet() -> nn.Sequential:
    """The network "LeNet (Zhu)": sigmoids, strides instead of pooling, uniform weights."""
    layers: list[nn.Module] = []
    for into, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(into, 12, 5, padding=2, stride=stride), nn.Sigmoid()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 10))
    for p in net.parameters():
        nn.init.uniform_(p, -0.5, 0.5)
    return net


@cache
def cifar() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Normalised training and test images (n, 3, 32, 32) with labels."""
    data = builtin_or_fetched("cifar10")

    def normalised(x: Any) -> Tensor:
        pixels = np.asarray(x, dtype=np.float32).reshape(len(x), 3, 32, 32)
        pixels = pixels / 255.0 if pixels.max() > 2.0 else pixels
        return torch.from_numpy((pixels - CIFAR_MEAN[:, None, None]) / CIFAR_STD[:, None, None])

    train, test = data
    return (
        (normalised(train.x), torch.from_numpy(train.y)),
        (normalised(test.x), torch.from_numpy(test.y)),
    )


def builtin_or_fetched(name: str) -> tuple[Any, Any]:
    """Training and test part of a data set, as a config reads it."""
    made = Prepared.of(load({"data": {"name": name}, "seed": 0}))
    return made.train, made.test


def inversion(scale: Scale, *, trained: bool) -> dict[str, Any]:
    """PSNR in dB of the first test images, rebuilt from the gradient of each alone."""
    train, test = cifar()
    net = lenet()
    accuracy = fit(net, *train, *test) if trained else None
    task = Classifier(net)
    start = task.initial()
    x, y = test[0][: scale.images], test[1][: scale.images]
    rows = torch.stack(
        [-gradient(task, start, a[None], b[None]) for a, b in zip(x, y, strict=True)]
    )
    ends = [torch.from_numpy(((v - CIFAR_MEAN) / CIFAR_STD).astype(np.float32)) for v in (0.0, 1.0)]
    low, high = (e[:, None, None].expand(3, 32, 32) for e in ends)
    # a step of 0.1 and total variation in normalised coordinates, as published
    search = matching.MatchingSearch(
        steps=scale.steps, restarts=1, rate=0.1 / float((high - low).mean()), tv=0.01
    )
    found, cosine = matching.match(
        task, start, rows, y[:, None], low, high, search, np.random.default_rng(0)
    )
    values = [
        images.psnr(as_pixels(a[None, 0]), as_pixels(b[None]), 1.0)[0]
        for a, b in zip(found, x, strict=True)
    ]
    mean = [
        images.psnr(as_pixels(torch.zeros(1, 3, 32, 32)), as_pixels(b[None]), 1.0)[0] for b in x
    ]
    return {
        "psnr": [round(float(v), 4) for v in values],
        "mean_colour": [round(float(v), 4) for v in mean],
        "cosine": round(float(cosine.mean()), 6),
        "accuracy": accuracy,
    }


def as_pixels(x: Tensor) -> Floats:
    return (x.numpy() * CIFAR_STD[:, None, None] + CIFAR_MEAN[:, None, None]).astype(np.float64)


def fit(net: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> float:
    """Train for some epochs on 10,000 images; the accuracy on test images."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        for rows in torch.split(torch.randperm(10_000, generator=generator), 100):
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float((net(x_test[:2000]).argmax(1) == y_test[:2000]).float().mean())


def gradient(task: Classifier, start: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient (d,) of the mean loss on x (n, ...)."""
    p = start.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(task.losses(task.named(p), x, y, None).mean(), [p])
    return found


# -- tables: TabLeak, Table 1 ----------------------------------------------------------------------

WITHIN = 0.319
"""Error, in standard deviations, up to which a number counts as right, as published."""
BATCH = 8


def table(scale: Scale) -> dict[str, Any]:
    """Share of right features of Adult's records, from one gradient of eight records each."""
    train, _ = builtin_or_fetched("adult")
    x, y = train.x.astype(np.float64), train.y
    blocks = features(train.columns)
    task = Classifier(mlp(x.shape[1], [100, 100], 2))
    start = task.initial()
    prior = Prior(
        low=x.min(axis=0),
        high=x.max(axis=0),
        middle=np.median(x, axis=0),
        shape=(x.shape[1],),
        sizes={"client": BATCH},
        learning_rate=1.0,
    )
    audit = Reconstruction(matched_size=BATCH)
    ends = linear_ends(task, torch.from_numpy(train.x[:1]), torch.from_numpy(y[:1]))
    spread = x.std(axis=0)
    rng = np.random.default_rng(0)
    right, ways, constant = [], [], []
    for _ in range(scale.batches):
        rows = rng.permutation(len(x))[:BATCH]
        sent = -gradient(
            task, start, torch.from_numpy(train.x[rows]), torch.from_numpy(y[rows])
        ).numpy()
        found = small_clients.rebuild(
            task,
            SeenRows(1, sent[None], ("client",), start.numpy()),
            ends,
            prior,
            audit,
            rng,
            {},
        )
        x_found, ways_found = [], []
        for _, guess, way in found:
            x_found.append(guess)
            ways_found += [way] * len(guess)
        guesses = np.concatenate(x_found)
        score = np.stack([right_share(guesses, x[i], blocks, spread) for i in rows])
        mine, chosen = linear_sum_assignment(-score)
        right.append(float(score[mine, chosen].mean()))
        ways += [ways_found[j] for j in chosen]
        typical = prior.middle[None]
        constant.append(float(np.mean([right_share(typical, x[i], blocks, spread) for i in rows])))
    return {
        "right": [round(v, 4) for v in right],
        "constant": [round(v, 4) for v in constant],
        "separated": ways.count("separated"),
        "matched": ways.count("matched"),
        "features": len(blocks),
    }


def features(columns: tuple[str, ...]) -> list[Indices]:
    """Columns of each feature: one of a number, several of a category."""
    names: dict[str, list[int]] = {}
    for i, title in enumerate(columns):
        names.setdefault(title.partition("=")[0], []).append(i)
    return [np.array(v) for v in names.values()]


def right_share(guesses: Floats, x: Floats, blocks: list[Indices], spread: Floats) -> Floats:
    """Share (G,) of features that guesses (G, D) have right about one record x (D,)."""
    right = np.zeros(len(guesses))
    for block in blocks:
        if len(block) == 1:
            right += np.abs(guesses[:, block[0]] - x[block[0]]) <= WITHIN * spread[block[0]]
        else:
            right += guesses[:, block].argmax(axis=1) == x[block].argmax()
    return right / len(blocks)


# -- membership: [LiRA] Table I and the curve over shadows -----------------------------------------

LOW = (0.001, 0.01)
TARGETS = 16


def shadows(scale: Scale) -> dict[str, Any]:
    """True-positive rates of LiRA online and offline, RMIA and the loss, by number of shadows.

    Every model trains on a random half of the records; each of the first is the target in turn, and
    the others are its shadows.
    """
    x, y, inside, task = halves(scale)
    models = trained(task, x, y, inside, scale.epochs)
    scorer = Scorer(task)
    batch = RecordBatch(x, y, None)
    scores = torch.stack([scorer.one(m, batch) for m in models])
    odds = scorer.evidence(scores).double().numpy()
    log_p = scores.double().numpy()
    out: dict[str, Any] = {"rates": {}, "curve": {}}
    for count in scale.shadows:
        for name in ("online", "offline", "rmia", "loss"):
            if name == "loss" and count != scale.shadows[-1]:
                continue
            found = [
                statistic(name, t, count, odds, log_p, inside)
                for t in range(min(TARGETS, len(odds)))
            ]
            out["rates"][f"{name}/{count}"] = rates(found, inside[: len(found)])
    for name in ("online", "offline", "loss"):
        found = [
            statistic(name, t, scale.shadows[-1], odds, log_p, inside)
            for t in range(min(TARGETS, len(odds)))
        ]
        out["curve"][name] = mean_curve(found, inside)
    fits = np.where(inside, np.nan, odds > 0)
    out["accuracy"] = {
        "trained on": float((odds[inside] > 0).mean()),
        "others": float(np.nanmean(fits)),
    }
    return out


def halves(scale: Scale) -> tuple[Tensor, Tensor, Bools, Classifier]:
    """Fashion-MNIST records (n, 784), labels, who trains on what (S, n), and the task."""
    train, _ = builtin_or_fetched("fashion-mnist")
    rng = np.random.default_rng(7)
    rows = rng.permutation(len(train.x))[: scale.records]
    x = torch.from_numpy(train.x[rows].astype(np.float32).reshape(len(rows), -1))
    x = x / 255.0 if float(x.max()) > 2.0 else x
    # every record is in half of the models, as in the published experiment
    order = np.argsort(rng.random((scale.models, scale.records)), axis=0)
    inside = order < scale.models // 2
    torch.manual_seed(1)
    return x, torch.from_numpy(train.y[rows]), inside, Classifier(mlp(784, [scale.hidden], 10))


def trained(task: Classifier, x: Tensor, y: Tensor, inside: Bools, epochs: int) -> Tensor:
    """Models (S, d), each trained on its own records, as clients of one round."""
    parts = [(x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]) for rows in inside]
    federation = Federation(
        task=task,
        data=ClientData.join(parts),
        rounds=Rounds(clients=len(parts), rounds=1),
        training=Training(epochs=epochs, learning_rate=0.1, batch_size=32),
        seed=Seed(3),
    )
    trainer = federation.trainer_for(1)
    start = task.initial()
    return start + trainer.train(start, np.arange(len(parts)), federation.clients_data, 1)


def statistic(
    name: str, target: int, count: int, odds: Floats, log_p: Floats, inside: Bools
) -> Floats:
    """Evidence (n,) for membership in one model, from `count` others."""
    others = [s for s in range(len(odds)) if s != target][:count]
    if name == "online":
        return attack.lira(odds[target], odds[others], inside[others])
    if name == "offline":
        out = np.where(inside[others], np.nan, odds[others])
        return attack.lira(odds[target], out, None)
    if name == "rmia":
        mine = log_p[target]
        return attack.rmia(mine, log_p[others], mine, log_p[others])
    return log_p[target]


def rates(statistics: list[Floats], inside: Bools) -> dict[str, list[float]]:
    """AUC, balanced accuracy and rates at low false positives, one number per target."""
    out: dict[str, list[float]] = {k: [] for k in ("auc", "balanced", *map("{:g}".format, LOW))}
    for values, member in zip(statistics, inside, strict=True):
        usable = np.isfinite(values)
        found = roc.curve(values[usable], member[usable])
        assert not hasattr(found, "needed")
        false, true = found.false_positive_rate, found.true_positive_rate
        out["auc"].append(float(np.trapezoid(true, false)))
        out["balanced"].append(float((0.5 * (true + 1 - false)).max()))
        for f in LOW:
            out[f"{f:g}"].append(float(true[false <= f].max(initial=0.0)))
    return {k: [round(v, 5) for v in vs] for k, vs in out.items()}


def mean_curve(statistics: list[Floats], inside: Bools) -> list[list[float]]:
    """False-positive rates, and the mean true-positive rate at each."""
    grid = np.logspace(-3, 0, 40)
    rows = []
    for values, member in zip(statistics, inside, strict=False):
        usable = np.isfinite(values)
        found = roc.curve(values[usable], member[usable])
        assert not hasattr(found, "needed")
        false, true = found.false_positive_rate, found.true_positive_rate
        rows.append([float(true[false <= f].max(initial=0.0)) for f in grid])
    return [[round(float(v), 6) for v in column] for column in (grid, np.mean(rows, axis=0))]
