"""Beside breaching 0.1.2 and sacroml 2.0: equal gradients and equal scores for both.

    pip download --no-deps breaching==0.1.2 hydra-core==1.3.8 omegaconf==2.4.0 sacroml==2.0.1 \\
        antlr4-python3-runtime==4.9.3

and unpack all of them (of the last one `src/antlr4`) into one folder, which `--peers` names. They
are imported from there and installed nowhere. torchvision and packages for printing reports, which
both import and this comparison does not use, are replaced by empty modules.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedaudit.arrays import Floats
from fedaudit.audits.membership import attack
from fedaudit.audits.reconstruction import Prior, Reconstruction, images, small_clients, tokens
from fedaudit.audits.reconstruction.layers import linear_ends
from fedaudit.audits.reconstruction.rows import SeenRows
from fedaudit.audits.reconstruction.scores import COLUMN_WITHIN
from fedaudit.results import Estimate
from fedaudit.stats import roc
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import cnn, mlp
from reproductions.records.experiments import builtin_or_fetched, gradient

CLIENTS = 20
ITERATIONS = 800
"""Of breaching's search: as many as 400 steps from two starts, the audit's default."""
THEIR_CLIENTS, INNER = 4, 20
"""Clients that breaching inverts, one after another; evaluations in a step of its L-BFGS."""
VOCABULARY, LENGTH = 200, 16
RECORDS = 20_000
"""Of the comparison of scores: enough non-members for 0.1 % false positives."""
PRESETS = {
    "image": ("invertinggradients, light", "deepleakage"),
    "table": ("invertinggradients",),
    "text": ("tag",),
}
"""Presets of breaching that apply; light: with the weight of total variation of our default, since
its own is made for photographs."""


@dataclass(frozen=True)
class Comparison:
    """One comparison: a `case` of gradients, or "membership scores"."""

    case: str
    quick: bool = False

    @property
    def key(self) -> str:
        return f"peers/{self.case}"


@dataclass(frozen=True)
class Case:
    """Equal clients: module, records x (K, n, ...) in 0 to 1 (or tokens), labels y (K, n)."""

    module: nn.Module
    x: Tensor
    y: Tensor
    kind: str  # "image", "table" or "text"


def pieces(home: Path, *, quick: bool) -> list[Comparison]:
    return [Comparison(case, quick) for case in (*CASES, "membership scores")]


def measure(piece: Comparison, home: Path) -> Any:
    """Quality and processor seconds per record of both."""
    make_importable(home)
    if piece.case == "membership scores":
        return membership_scores()
    torch.manual_seed(0)
    case = CASES[piece.case]()
    few = 2 if piece.quick else CLIENTS
    case = Case(case.module, case.x[:few], case.y[:few], case.kind)
    task = Classifier(case.module)
    start = task.initial()
    rows = torch.stack([gradient(task, start, a, b) for a, b in zip(case.x, case.y, strict=True)])
    warm = Case(case.module, case.x[:1], case.y[:1], case.kind)
    ours(warm, task, start, rows[:1], steps=5)
    found, seconds = timed(lambda: ours(case, task, start, rows))
    records = case.y.numel()
    out: dict[str, Any] = {
        "clients": few,
        "fedaudit": {"quality": quality(case, found), "seconds": seconds / records},
    }
    part = Case(case.module, case.x[:THEIR_CLIENTS], case.y[:THEIR_CLIENTS], case.kind)
    for preset in PRESETS[case.kind]:
        steps = 5 if piece.quick else ITERATIONS // (INNER if preset == "deepleakage" else 1)
        theirs, spent = timed(partial(breached, part, task, rows, preset, steps))
        out[preset] = {"quality": quality(part, theirs), "seconds": spent / part.y.numel()}
    return out


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    return work(), time.process_time() - begin


# -- cases -----------------------------------------------------------------------------------------


def digits(module: nn.Module, records: int) -> Case:
    train, _ = builtin_or_fetched("digits")
    x = torch.from_numpy(train.x).reshape(-1, 1, 8, 8)
    return dealt(module, x / float(x.max()), torch.from_numpy(train.y), records, "image")


def fashion() -> Case:
    train, _ = builtin_or_fetched("fashion-mnist")
    x = torch.from_numpy(train.x[:2000].astype(np.float32)).reshape(-1, 1, 28, 28)
    module = cnn((1, 28, 28), [8, 16], 10)
    return dealt(module, x / float(x.max()), torch.from_numpy(train.y[:2000]), 1, "image")


def adult() -> Case:
    train, _ = builtin_or_fetched("adult")
    low, high = train.x.min(axis=0), train.x.max(axis=0)
    x = torch.from_numpy((train.x - low) / np.maximum(high - low, 1e-6)).float()
    return dealt(mlp(x.shape[1], [100, 100], 2), x, torch.from_numpy(train.y), 4, "table")


class TextNet(nn.Module):
    """An embedding and a linear layer on all positions."""

    name = "embedding model"

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, 16)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(16 * LENGTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.flatten(self.encoder(x)))
        return out


def text() -> Case:
    rng = np.random.default_rng(0)
    often = 1.0 / np.arange(1, VOCABULARY + 1)
    x = torch.from_numpy(rng.choice(VOCABULARY, (CLIENTS, 1, LENGTH), p=often / often.sum()))
    return Case(TextNet(), x, torch.from_numpy(rng.integers(0, 4, (CLIENTS, 1))), "text")


def dealt(module: nn.Module, x: Tensor, y: Tensor, records: int, kind: str) -> Case:
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[: CLIENTS * records])
    return Case(
        module,
        x[rows].reshape(CLIENTS, records, *x.shape[1:]),
        y[rows].reshape(CLIENTS, records),
        kind,
    )


CASES: dict[str, Callable[[], Case]] = {
    "MLP, digits": lambda: digits(mlp(64, [128], 10), 4),
    "CNN, digits": lambda: digits(cnn((1, 8, 8), [8, 16], 10), 1),
    "CNN, Fashion-MNIST": fashion,
    "MLP, Adult": adult,
    "embedding, text": text,
}

# -- both attacks ----------------------------------------------------------------------------------


def ours(
    case: Case, task: Classifier, start: Tensor, rows: Tensor, steps: int = 400
) -> list[Floats]:
    """Guesses (G, D) of every client, by the audit's own functions; of texts the named tokens."""
    names = tuple(f"c{i}" for i in range(len(rows)))
    if case.kind == "text":
        entry = next(e for e in task.layout.entries if e.name == "encoder.weight")
        table = rows[:, entry.offset : entry.offset + entry.size].numpy()
        used = tokens.named_tokens(table.reshape(len(rows), *entry.shape), 1e-9)
        return [np.flatnonzero(u).astype(np.float64)[None] for u in used]
    shape = tuple(case.x.shape[2:])
    flat = case.x.flatten(2)
    width = flat.shape[2]
    prior = Prior(
        low=np.zeros(width),
        high=np.ones(width),
        middle=np.full(width, 0.5),
        shape=shape,
        sizes=dict.fromkeys(names, case.y.shape[1]),
        learning_rate=1.0,
    )
    audit = Reconstruction(matched_clients=len(rows), steps=steps)
    ends = linear_ends(task, case.x[0, :1], case.y[0, :1])
    rng = np.random.default_rng(0)
    out: dict[str, list[Floats]] = {n: [np.full((1, width), 0.5)] for n in names}
    found = small_clients.rebuild(
        task, SeenRows(1, -rows.numpy(), names, start.numpy()), ends, prior, audit, rng, {}
    )
    for name, x, _ in found:
        out[name].append(x)
    return [np.concatenate(v) for v in out.values()]


def breached(
    case: Case, task: Classifier, rows: Tensor, preset: str, iterations: int
) -> list[Floats]:
    """Guesses (n, D) of every client by breaching, which is given the true labels."""
    breaching: Any = importlib.import_module("breaching")
    name, _, light = preset.partition(", ")
    changed = [f"optim.max_iterations={iterations}"]
    if light:
        changed.append("regularization.total_variation.scale=0.0001")
    with contextlib.redirect_stdout(None):
        cfg = breaching.get_attack_config(name, changed)
    if case.kind == "table":
        cfg.regularization = None
    if case.kind == "text":
        cfg.attack_type = "optimization"  # its own would guess next tokens; here are true labels
    cfg.optim.callback = iterations
    module = case.module
    attacker = breaching.attacks.prepare_attack(
        module, nn.CrossEntropyLoss(), cfg, {"dtype": torch.float, "device": torch.device("cpu")}
    )
    for regularizer in attacker.regularizers:
        # written for three channels; these images have one
        regularizer.weight, regularizer.groups = regularizer.weight[:2], 1
    metadata = {"image": "vision", "table": "vision", "text": "text"}[case.kind]
    about = Metadata(
        shape=list(case.x.shape[2:]),
        classes=len(list(module.parameters())[-1]),
        vocab_size=VOCABULARY,
        modality=metadata,
        task="classification",
    )
    payload = [{"parameters": list(module.parameters()), "buffers": [], "metadata": about}]
    joint = cfg.attack_type == "joint-optimization"
    out: list[Floats] = []
    for row, y in zip(rows, case.y, strict=False):
        if len(out) == len(case.x):
            break
        named = task.named(row)
        shared = {
            "gradients": [named[n].clone() for n, _ in module.named_parameters()],
            "buffers": None,
            "metadata": {
                "num_data_points": len(y),
                "labels": None if joint else y,
                "local_hyperparams": None,
                "data_key": "inputs",
            },
        }
        found, _ = attacker.reconstruct(payload, [shared], {}, dryrun=False)
        out.append(found["data"].detach().double().flatten(1).numpy())
    return out


class Metadata(dict):
    """What breaching's server says of its data, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def quality(case: Case, found: list[Floats]) -> list[float]:
    """Of every record: PSNR in dB, share of columns right, or share of its tokens found."""
    out = []
    for guesses, x in zip(found, case.x, strict=True):
        records = x.flatten(1).double().numpy()
        if case.kind == "text":
            out += [float(np.isin(r, guesses).mean()) for r in records]
            continue
        of = np.stack([likeness(case.kind, np.clip(guesses, 0.0, 1.0), r) for r in records])
        mine, chosen = linear_sum_assignment(-of)
        out += of[mine, chosen].tolist()
    return [round(v, 4) for v in out]


def likeness(kind: str, guesses: Floats, record: Floats) -> Floats:
    if kind == "table":
        return np.asarray((np.abs(guesses - record) <= COLUMN_WITHIN).mean(axis=1))
    return images.psnr(guesses, np.broadcast_to(record, guesses.shape), 1.0)


# -- scores of membership --------------------------------------------------------------------------


def membership_scores() -> dict[str, Any]:
    """Largest differences between sacroml and fedaudit on equal log-odds."""
    metrics: Any = importlib.import_module("sacroml.metrics")
    likelihood_attack: Any = importlib.import_module("sacroml.attacks.likelihood_attack")
    rng = np.random.default_rng(0)
    inside = np.argsort(rng.random((80, RECORDS)), axis=0) < 40
    member = rng.permutation(np.arange(RECORDS) < RECORDS // 2)
    target = rng.normal(size=RECORDS) + 0.8 * member
    odds = rng.normal(size=(80, RECORDS)) + 0.8 * inside
    ours = attack.lira(target, odds, inside)
    scored = likelihood_attack.LIRAAttack._get_probabilities
    theirs = np.empty(2000)
    for i in range(len(theirs)):
        a, b = odds[inside[:, i], i], odds[~inside[:, i], i]
        moments = {"in_mean": a.mean(), "in_std": a.std(ddof=1)}
        moments |= {"out_mean": b.mean(), "out_std": b.std(ddof=1)}
        theirs[i] = scored(None, logit=target[i], mode="online-carlini", **moments)[1]
    told = metrics.get_metrics(np.stack([-ours, ours], axis=1), member.astype(int), False)
    auc = roc.auc(ours, member)
    found = {f: roc.true_positive_rate_at(ours, member, f) for f in (0.001, 0.01, 0.05)}
    rates = {f: v.value for f, v in found.items() if isinstance(v, Estimate)}
    assert isinstance(auc, Estimate)
    assert len(rates) == len(found)
    given = metrics._tpr_at_fpr
    return {
        "lira": float(np.abs(ours[: len(theirs)] - theirs).max()),
        "auc": abs(auc.value - told["AUC"]),
        "rates": {
            f"{f:g}": abs(v - float(given(member, ours, f, fpr_perc=False)))
            for f, v in rates.items()
        },
    }


# -- environment -----------------------------------------------------------------------------------

ABSENT = (
    *("torchvision", "fpdf", "pypdf", "acro", "multiprocess", "xgboost", "dictdiffer"),
    *("pylab", "matplotlib", "matplotlib.pyplot"),
)


class Empty(types.ModuleType):
    """A module that has any name in it: classes, and modules of the same kind."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.strip("_")[:1].isupper():
            return type(name, (), {})
        return empty(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


def empty(name: str) -> Empty:
    module = Empty(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    return module


def make_importable(home: Path) -> None:
    if str(home) in sys.path:
        return
    sys.path.insert(0, str(home))
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    for name in ABSENT:
        empty(name)
    for name in ("transforms", "datasets", "datasets.utils", "models", "models.densenet"):
        empty(f"torchvision.{name}")
