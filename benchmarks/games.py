"""Security games of active membership: a torch module per game, against the closed form.

    python benchmarks/games.py [--features 512] [--bits 20] [--records 64] [--data FILE.npz]

BitRand on 512 features of 20 bits, 64 records per client, as published. Contestants decide the same
kind of game, each with its own draws:

    module   a torch module is built and planted, every bit drawn, one backward pass
    drawn    the closed form on whole numbers, every feature drawn from alias tables
    lazy     the same, features drawn only until the decision is certain

With `--agree N` a module and the closed form also decide N games on the very same protected
records; how many they decide alike is printed.

By default records come from a mixture that has the geometry of image embeddings (smallest and
median distance of two records as on CIFAR-10); `--data` takes the array `x` (n, r) of a file.
Medians over interleaved repeats, processor time on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.adversary import FullyConnected
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP


def embeddings(count: int, features: int, rng: np.random.Generator) -> np.ndarray:
    """Ten classes, a few strong directions, and some records that are nearly alike."""
    spectrum = 1.0 / np.sqrt(1.0 + np.arange(features))
    basis = np.linalg.qr(rng.normal(size=(features, features)))[0]
    centre = rng.normal(size=(10, features)) * spectrum
    x = centre[rng.integers(0, 10, count)] + rng.normal(size=(count, features)) * spectrum
    twin = rng.permutation(count)[: count // 25]
    x[twin] = x[(twin + 1) % count] + 0.8 * rng.normal(size=(len(twin), features)) * spectrum
    x = x @ basis.T
    return x / x.std()


class Naive:
    """A module per game; bits are drawn one by one."""

    def __init__(self, universe: Universe, bits: int, tau: float) -> None:
        book = universe.channel.codes
        assert book is not None
        assert book.ones is not None
        assert universe.codes is not None
        self.codes = torch.from_numpy(universe.codes.astype(np.int64))
        self.values = torch.from_numpy(universe.values).float()
        self.flip = torch.from_numpy(book.ones[0]).float()
        self.shifts = torch.arange(bits - 1, -1, -1)
        self.place = 2.0 ** self.shifts[1:] * book.step
        self.tau = tau

    def one(self, data: np.ndarray, target: int) -> bool:
        bits = (self.codes[torch.from_numpy(data)].unsqueeze(-1) >> self.shifts) & 1
        bits ^= torch.rand(bits.shape) < self.flip
        magnitude = (bits[..., 1:] * self.place).sum(-1)
        return self.answer(torch.where(bits[..., 0] == 1, -magnitude, magnitude), target)

    def answer(self, x: torch.Tensor, target: int) -> bool:
        """Whether a gradient comes back for protected records (n, r)."""
        r = self.values.shape[1]
        net = nn.Sequential(
            nn.Linear(r, 2 * r), nn.ReLU(), nn.Linear(2 * r, 1), nn.ReLU(), nn.Linear(1, 11)
        )
        with torch.no_grad():
            net[0].weight.copy_(torch.cat([torch.eye(r), -torch.eye(r)]))
            net[0].bias.copy_(torch.cat([-self.values[target], self.values[target]]))
            net[2].weight.fill_(-1.0)
            net[2].bias.fill_(self.tau)
            net[4].weight.zero_()[-1] = 1.0
        loss = F.cross_entropy(net(x), torch.zeros(len(x), dtype=torch.int64))
        loss.backward()
        return bool(net[2].bias.grad != 0)

    def __call__(self, played: Challenge) -> np.ndarray:
        pairs = zip(played.data, played.target, strict=True)
        return np.array([self.one(data, int(target)) for data, target in pairs])


def agreement(universe: Universe, bits: int, records: int, count: int) -> tuple[int, int]:
    """Games that a module and the closed form decide alike, shown the same protected records, and
    games in which the module says yes. Tau is tuned, so that both answers occur."""
    rng = np.random.default_rng(1)
    server = FullyConnected.prepare(universe, records, rng)
    naive = Naive(universe, bits, server.tau)
    played = games.challenge(len(universe), records, count, rng)
    alike = yes = 0
    for i in range(count):
        shown = universe.perturbed(played.data[i], rng)
        closed = bool(server.answers(shown[None], played.target[i : i + 1])[0] > server.cut)
        answer = naive.answer(torch.from_numpy(shown).float(), int(played.target[i]))
        alike += answer == closed
        yes += answer
    return alike, yes


def rate(decided: np.ndarray, member: np.ndarray) -> float:
    return 0.5 * float(decided[member].mean() + (~decided[~member]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--bits", type=int, default=20)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--universe", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[6.0, 8.0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--agree", type=int, default=0)
    parser.add_argument("--data")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    print(f"cores {os.cpu_count()}, threads 1, load {before:.1f}")
    rng = np.random.default_rng(0)
    if args.data:
        with np.load(args.data, allow_pickle=False) as file:
            x = file["x"][: args.universe].astype(np.float64)
    else:
        x = embeddings(args.universe, args.features, rng)
    out: dict[str, dict[str, Any]] = {}
    for epsilon in args.epsilon:
        local = LocalDP(
            mechanism="bitrand", epsilon=epsilon, bits=args.bits, integer_bits=5, outside="clip"
        )
        universe = Universe.of(x, channel_of(local, x.shape[1]))
        tau = universe.snap(universe.radius)
        universe.levels_by_weight  # noqa: B018  made once, not per game
        naive = Naive(universe, args.bits, tau)
        contestants: dict[str, tuple[int, Callable[[Challenge], np.ndarray]]] = {
            "module": (8, naive),
            "drawn": (100, lambda c, u=universe, t=tau: games.distances(u, c, rng) < t),
            "lazy": (1000, lambda c, u=universe, t=tau: games.decisions(u, c, t, rng)),
        }
        took: dict[str, list[float]] = {name: [] for name in contestants}
        won: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(args.repeats):
            for name, (count, play) in contestants.items():
                played = games.challenge(len(universe), args.records, count, rng)
                start = time.process_time()
                decided = play(played)
                took[name].append((time.process_time() - start) / count)
                won[name].append(rate(decided, played.member))
        median = {name: statistics.median(t) for name, t in took.items()}
        ratios = {
            name: statistics.median(a / b for a, b in zip(took["module"], t, strict=True))
            for name, t in took.items()
        }
        print(
            f"epsilon {epsilon:g}, tau {tau:.1f}: "
            + "; ".join(
                f"{name} {1e3 * median[name]:.3f} ms a game ({ratios[name]:.0f}x), "
                f"success {np.mean(won[name]):.2f}"
                for name in contestants
            )
        )
        out[f"{epsilon:g}"] = {
            "milliseconds": {name: 1e3 * t for name, t in median.items()},
            "ratio": ratios,
        }
        if args.agree:
            alike, yes = agreement(universe, args.bits, args.records, args.agree)
            print(f"decided alike: {alike} of {args.agree}, {yes} with yes")
            out[f"{epsilon:g}"] |= {"agreed": alike, "yes": yes, "compared": args.agree}
    after = os.getloadavg()[0]
    print(f"load {after:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"load": [before, after], "games": out}, file, indent=1)


if __name__ == "__main__":
    main()
