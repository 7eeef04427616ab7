"""Plants by somebody who had read docs/guard.md and none of the code of the guard or of its plants.

Three ideas that the page does not list. Each takes a model, the target and records of the server's
own, and returns an altered copy:

- ``climbed``: no unit is built. The server trains the loss of the target up and that of its own
  records back down (Nasr et al. 2019); a client that holds the target undoes it in one round.
- ``sharpened``: the head is shifted so that the target lies between its two best classes, and
  scaled until other records have no gradient left: the answer is the target's.
- ``twinned``: two units get one ordinary direction and two thresholds, the target between them. Each
  sees many records; their difference sees one.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _linears(model: nn.Module) -> list[nn.Linear]:
    return [part for part in model.modules() if isinstance(part, nn.Linear)]


def climbed(
    model: nn.Module,
    target: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    loss: float = 5.0,
    rate: float = 0.05,
    steps: int = 200,
) -> nn.Module:
    """Ascent on the target's loss until it reaches ``loss`` nats, with descent on ``others`` beside.

    ``target`` is one record as a batch, (1, ...) and (1,); ``others`` (n, ...) and (n,).
    """
    planted = copy.deepcopy(model)
    optimiser = torch.optim.SGD(planted.parameters(), lr=rate)
    for _ in range(steps):
        high = F.cross_entropy(planted(target[0]), target[1])
        if high >= loss:
            break
        optimiser.zero_grad()
        (F.cross_entropy(planted(others[0]), others[1]) - high).backward()
        nn.utils.clip_grad_norm_(planted.parameters(), 1.0)
        optimiser.step()
    return planted


def sharpened(
    model: nn.Module,
    target: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    left: float = 0.01,
    largest: float = 100.0,
) -> nn.Module:
    """Scale the head until the median other record keeps ``left`` of its error; the target keeps half."""
    planted = copy.deepcopy(model)
    head = _linears(planted)[-1]
    with torch.no_grad():
        logits = planted(target[0])[0]
        first, second = logits.topk(2).indices
        half = (logits[first] - logits[second]) / 2
        head.bias[first] -= half
        head.bias[second] += half
        outputs = planted(others[0])
        scale = 1.0
        while scale < largest:
            error = 1 - F.softmax(scale * outputs, 1).max(1).values
            if error.median() <= left:
                break
            scale *= 1.25
        head.weight *= scale
        head.bias *= scale
    return planted


def twinned(
    model: nn.Module, target: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> nn.Module:
    """Overwrite the two least used units of the first layer with one row and two thresholds.

    The row is the one of the layer along which the target is farthest from its nearest neighbour
    among ``others``, in standard deviations; thresholds lie half way to the neighbours. Both units
    get the same outgoing weights, so that what each other record adds to them is the same.
    """
    planted = copy.deepcopy(model)
    first, after = _linears(planted)[:2]
    with torch.no_grad():
        flat = others[0].flatten(1)
        seen = flat @ first.weight.T  # (n, units)
        mine = (target[0].flatten(1) @ first.weight.T)[0]  # (units,)
        away = seen - mine
        infinite = torch.full_like(away, torch.inf)
        above = torch.where(away > 0, away, infinite).min(0).values
        below = torch.where(away < 0, -away, infinite).min(0).values
        gap = torch.minimum(above, below) / seen.std(0)
        gap[~torch.isfinite(gap)] = -1.0  # outermost targets need no twins
        row = int(gap.argmax())
        used = ((seen + first.bias) > 0).sum(0)
        used[row] = len(seen) + 1
        low, high = used.argsort()[:2].tolist()
        out = after.weight[:, [low, high]].mean(1)
        for unit, threshold in (
            (low, mine[row] - below[row] / 2),
            (high, mine[row] + above[row] / 2),
        ):
            first.weight[unit] = first.weight[row]
            first.bias[unit] = -threshold
            after.weight[:, unit] = out
    return planted
