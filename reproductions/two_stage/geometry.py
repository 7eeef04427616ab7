"""Figures 1 to 3: no federation in here, only vectors, one model and single images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.audits.records.scoring import RecordBatch, Scorer
from fedaudit.audits.two_stage_membership.theory import (
    phi,
    published_smoothness,
    remainder_bound,
    survival_ratio,
)
from fedaudit.data.dataset import Dataset
from fedaudit.randomness import Seed
from fedaudit.tasks.task import Task
from reproductions.two_stage.setting import figures

Floats = npt.NDArray[np.float64]

DIMENSIONS = 100
LARGEST = 16.0
CANCELLED = 0.3
MAGNITUDES = (0.1, 0.5, 1.0, 2.0, 4.0)
POINTS = 9  # of the segment where curvature is measured
DRAWN = 10  # images whose points are kept for the figure


# -- figure 1 -------------------------------------------------------------------------------------


def surface(grid: int, seed: Seed) -> dict[str, Any]:
    """Measured SUR of synthetic pairs over the published grid, against Eq. (9).

    [TwoStage] Section 6.1.1: u a unit vector, B = r (lambda u + sqrt(1 - lambda^2) v), in R^100.
    """
    rng = seed.generator("surface")
    both = np.meshgrid(np.linspace(0.01, LARGEST, grid), np.linspace(-1, 1, grid))
    r, lam = both[0].ravel(), both[1].ravel()
    u = rng.standard_normal((len(r), DIMENSIONS))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    v = rng.standard_normal(u.shape)
    v -= (v * u).sum(axis=1, keepdims=True) * u
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    moved = u + r[:, None] * (lam[:, None] * u + np.sqrt(1 - lam**2)[:, None] * v)
    measured = 1.0 / np.linalg.norm(moved, axis=1)
    closed = survival_ratio(r, lam)
    cancelled = np.linalg.norm(moved, axis=1) < CANCELLED
    return {
        "points": len(r),
        "worst": figures(np.abs(measured / closed - 1).max()),
        "cancelled": int(cancelled.sum()),
        "cancelled above tau": int((cancelled & (measured > 0.1)).sum()),
        "least in the cancelled region": figures(measured[cancelled].min())
        if cancelled.any()
        else None,
    }


# -- one model and its images ---------------------------------------------------------------------


def trained(task: Task, data: Dataset, steps: int, batch: int, seed: Seed) -> Tensor:
    """The model after some steps of Adam on all records together."""
    own = task.encode(data)
    weights = task.initial().requires_grad_()
    optimiser = torch.optim.Adam([weights], lr=1e-3)
    rows = seed.generator("rows").integers(0, len(own), (steps, batch))
    draws = seed.torch_generator("noise")
    for chosen in torch.from_numpy(rows):
        z = torch.randn(batch, *(task.noise_shape() or ()), generator=draws)
        loss = task.losses(task.named(weights), own.x[chosen], own.y[chosen], z).mean()
        (weights.grad,) = torch.autograd.grad(loss, weights)
        optimiser.step()
    return weights.detach()


def asked(task: Task, data: Dataset, count: int, seed: Seed) -> list[RecordBatch]:
    """Single images in double precision, each with one draw of its random numbers."""
    own = task.encode(data)
    rows = seed.generator("images").permutation(len(own))[:count]
    draws = seed.torch_generator("scores")
    shape = task.noise_shape()
    out = []
    for row in torch.from_numpy(rows):
        z = None if shape is None else torch.randn(1, 1, *shape, generator=draws).double()
        out.append(RecordBatch(own.x[row : row + 1].double(), own.y[row : row + 1], z))
    return out


def gradient(task: Task, model: Tensor, one: RecordBatch) -> Tensor:
    """Gradient of one record's score."""
    z = None if one.noise is None else one.noise[0]
    leaf = model.clone().requires_grad_()
    (out,) = torch.autograd.grad(task.scores(task.named(leaf), one.x, one.y, z).sum(), leaf)
    return out


# -- figure 2 -------------------------------------------------------------------------------------


def bound(
    task: Task, model: Tensor, images: list[RecordBatch], steps: int, seed: Seed
) -> dict[str, Any]:
    """Remainders of Lemma 6 along the score gradient, against three constants L.

    [TwoStage] Section 6.2.1: every other step size, in ascending order, calibrates L, the rest
    test it; then with the two halves swapped; then L from Hessian-vector products on a grid of the
    segment up to the next point, which no remainder was used for.
    """
    scorer = Scorer(task)
    model = model.double()
    rng = seed.generator("steps")
    violated: dict[str, list[int]] = {"published": [], "swapped": [], "curvature": []}
    first, published, sound, tightness, points = 0, [], [], [], []
    for number, one in enumerate(images):
        g = gradient(task, model, one)
        size = float(g.norm())
        sizes = np.sort(rng.uniform(0.01, 2.0, steps)) / size  # |v|
        unit = g / size
        start = float(scorer.one(model, one))
        errors = np.array(
            [abs(float(scorer.one(model + s * unit, one)) - start - s * size) for s in sizes]
        )
        odd, even = slice(1, None, 2), slice(0, None, 2)
        calibrated = published_smoothness(errors[odd], sizes[odd])
        over = errors[even] > remainder_bound(calibrated, sizes[even])
        violated["published"].append(int(over.sum()))
        first += bool(over[0])
        swapped = published_smoothness(errors[even], sizes[even])
        over = errors[odd] > remainder_bound(swapped, sizes[odd])
        violated["swapped"].append(int(over.sum()))
        at = np.linspace(0.0, sizes[-1], POINTS)
        curvature = np.array(
            [float(scorer.hessian_products(model + t * unit, unit, one).norm()) for t in at]
        )
        # the first point beyond a step counts too, so that no step lies outside its grid
        upto = np.minimum(np.searchsorted(at, sizes) + 1, POINTS)
        largest = np.array([curvature[:n].max() for n in upto])
        limit = remainder_bound(largest, sizes)
        rounding = 1e-12 * abs(start)
        violated["curvature"].append(int((errors > limit + rounding).sum()))
        published.append(calibrated)
        sound.append(float(curvature.max()))
        tightness.append(float(np.median(errors / limit)))
        if number < DRAWN:
            points.append([sizes, errors, limit])
    return {
        "images": len(images),
        "test points": len(range(*even.indices(steps))),
        "violated": violated,
        "violated at the smallest step": first,
        "published L": figures(np.median(published)),
        "L": figures(np.median(sound)),
        "error over bound": figures(np.median(tightness)),
        "points": figures(points, 3),
    }


# -- figure 3 -------------------------------------------------------------------------------------


def alignment(
    task: Task, model: Tensor, images: list[RecordBatch], angles: int, seed: Seed
) -> dict[str, Any]:
    """J of one image over the alignment of a perturbation with its score gradient, and the proxy.

    [TwoStage] Section 6.3.1. Figures are the curves of the first image and, over all images, the
    largest distance of J from its linear proxy.
    """
    scorer = Scorer(task)
    model = model.double()
    cosines = np.cos(np.linspace(0.0, np.pi, angles))
    draws = seed.torch_generator("directions")
    curves: dict[str, Any] = {}
    apart: dict[str, list[float]] = {f"{m:g}": [] for m in MAGNITUDES}
    for number, one in enumerate(images):
        g = gradient(task, model, one)
        size = float(g.norm())
        unit = g / size
        other = torch.randn(len(g), generator=draws, dtype=torch.float64)
        other = other - (other @ unit) * unit
        other = other / other.norm()
        start = float(scorer.one(model, one))
        for m in MAGNITUDES:
            moved = [
                model + (m / size) * (c * unit + np.sqrt(max(0.0, 1 - c * c)) * other)
                for c in cosines
            ]
            j = phi(np.array([float(scorer.one(w, one)) - start for w in moved]))
            apart[f"{m:g}"].append(float(np.abs(j - phi(m * cosines)).max()))
            if number == 0:
                curves[f"{m:g}"] = figures(j, 4)
    return {"cosines": figures(cosines, 4), "j": curves, "apart": figures_of(apart)}


def figures_of(values: dict[str, list[float]]) -> dict[str, Any]:
    return {name: figures(v, 4) for name, v in values.items()}
