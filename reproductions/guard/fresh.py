"""Plants of other kinds, written after the thresholds were fixed and measured once as they stand.

python -m reproductions.guard.fresh --seeds 6

None rewrites the rows of a few hidden units, which is what the parts of J were made with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from reproductions.guard import behaviour, plants
from reproductions.guard.plants import FIRST, Planted, newest
from reproductions.guard.rounds import Behaved

FRESH = 50_000
"""First seed of the runs."""


def fishing(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """One class is made to look wrong, so that the update is that of its records alone; the target
    is named if it is the only one of its class. One number of the output layer."""
    state = newest(run)
    y = run.own[1]
    label = int(y[target])
    state["3.bias"][label] -= 20.0
    return [state], target if int((y == label).sum()) == 1 else None


def spread(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """A little of the direction of the target in every row, with either sign: no more than three
    times as much as a row moved in the last round. Sums of units hold the filter, no unit does."""
    state = newest(run)
    at = plants.site(run, state, "1")
    v = plants._filter(at, target, 1.0)
    moved = (state[FIRST] - run.states[-2][FIRST]).norm(dim=1).median()
    signs = torch.as_tensor(rng.choice([-1.0, 1.0], size=len(at.weight))).float()
    state[FIRST] += 3 * moved * signs[:, None] * v / v.norm()
    return [state], None


def normalisation(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """One channel of a layer normalisation in a transformer, scaled so that it drowns the others,
    and shifted so that it is off for all tokens but the one that is largest there."""
    state = newest(run)
    name = "blocks.0.norm2"
    at = plants.site(run, state, "blocks.0.mlp.fc")
    channel = int(rng.integers(at.inputs.shape[2]))
    z = at.inputs[..., channel]
    strongest = int(z.amax(0).argmax())
    top = z.flatten().topk(2).values
    state[f"{name}.weight"][channel] *= 20.0
    state[f"{name}.bias"][channel] -= 20.0 * float(top.mean())
    return [state], strongest


FAMILIES: tuple[plants.Family, ...] = (
    ("fishing for a class", fishing, plants.TABLES),
    ("spread over all rows", spread, plants.TABLES),
    ("normalisation of a transformer", normalisation, (plants.VIT,)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=behaviour.RESULTS)
    chosen = parser.parse_args()
    found = behaviour.planted(chosen.seeds, FAMILIES, FRESH)
    behaviour._update(chosen.out, {"fresh": found})


if __name__ == "__main__":
    main()
