"""Run many federations of one shape as one computation.

An adversary with shadow federations trains thousands of small ones. Each keeps its own rounds,
hooks, wire and truth; only local training is shared: every round trains the clients of all
federations as one batch. Client c of federation s draws its batches and noise as client s * K + c
under the first federation's seed, so no two clients share random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedaudit.errors import ConfigError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.requests import Request, RoundLoop
from fedaudit.trace.recorder import Recorder
from fedaudit.trace.truth import TruthRecorder

TrainTogether = Callable[[Sequence[int], Sequence[Request]], list[Tensor]]
"""(federation numbers, their requests) -> updates (n, d) of each."""


def run_many(
    federations: Sequence[Federation],
    recorders: Sequence[Recorder | None] | None = None,
    truths: Sequence[TruthRecorder | None] | None = None,
    *,
    at_once: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Tensor]:
    """Run federations in step with each other; returns their final models, (d,) each.

    `at_once`: federations trained in one batch (default: all); results do not depend on it.
    `progress(round, rounds)` is called after every round.
    """
    _refuse_different(federations)
    count = len(federations)
    train = _joint_trainer(federations)
    loops: list[RoundLoop] = [
        f.round_loop(
            None if recorders is None else recorders[i],
            None if truths is None else truths[i],
        )
        for i, f in enumerate(federations)
    ]
    requests: list[Request] = [next(loop) for loop in loops]
    final: list[Tensor | None] = [None] * count
    block = at_once or count
    total = federations[0].rounds.rounds
    for number in range(1, total + 1):
        for low in range(0, count, block):
            own = range(low, min(low + block, count))
            for i, deltas in zip(own, train(own, requests[low : low + block]), strict=True):
                try:
                    requests[i] = loops[i].send(deltas)
                except StopIteration as done:
                    final[i] = done.value
        if progress is not None:
            progress(number, total)
    return [f for f in final if f is not None]


def _refuse_different(federations: Sequence[Federation]) -> None:
    """Raise ConfigError if the federations cannot train as one batch."""
    if not federations:
        raise ConfigError(
            "there are no federations to run",
            expected="at least one",
            got="none",
            remedy="make shadow federations first",
        )
    first = federations[0]
    for what, same in (
        ("models", [f.task.layout == first.task.layout for f in federations]),
        ("training", [f.training == first.training for f in federations]),
        ("rounds", [f.rounds.rounds == first.rounds.rounds for f in federations]),
        ("numbers of clients", [len(f.party) == len(first.party) for f in federations]),
        ("protections", [list(f.protections) == list(first.protections) for f in federations]),
    ):
        if not all(same):
            raise ConfigError(
                f"federations with different {what} cannot run as one",
                expected=f"the {what} of the first",
                got=f"different ones in {len(same) - sum(same)} of {len(same)}",
                remedy="run them one after another",
            )


def _joint_trainer(federations: Sequence[Federation]) -> TrainTogether:
    """Local training of all clients of several federations by one trainer."""
    clients = len(federations[0].party)
    parts = [f.clients_data.of(c) for f in federations for c in range(clients)]
    people = [f.clients_data.person for f in federations]
    data = replace(
        ClientData.join(parts),
        person=torch.cat([p for p in people if p is not None])
        if all(p is not None for p in people)
        else None,
    )
    trainer = federations[0].trainer_for(len(federations))

    def train(which: Sequence[int], requests: Sequence[Request]) -> list[Tensor]:
        rows = [
            r.sent.expand(len(r.clients), -1) if r.sent.dim() == 1 else r.sent for r in requests
        ]
        numbers = [i * clients + r.clients for i, r in zip(which, requests, strict=True)]
        deltas = trainer.train(torch.cat(rows), np.concatenate(numbers), data, requests[0].number)
        return list(torch.split(deltas, [len(n) for n in numbers]))

    return train
