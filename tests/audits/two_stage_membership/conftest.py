"""Small federations, each run once and shared by all tests."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.audits.audit import Candidates, Knowledge
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.knowledge import Records, candidates, noise_of, of_config
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.task import Examples
from fedaudit.trace import PUBLIC, SERVER, MemoryRecorder, MemoryTruth, Trace

OVERFIT = {
    "seed": 1,
    "data": {"name": "digits", "test_fraction": 0.5},
    "partition": {"kind": "iid"},
    "task": {"kind": "mlp", "hidden": [24], "activation": "tanh"},
    "federation": {"clients": 6, "rounds": 3},
    "training": {"epochs": 20, "learning_rate": 0.3, "batch_size": 16},
}


@dataclass(frozen=True)
class Played:
    """A finished federation, with its audits."""

    config: Any
    trace: Trace
    truth: MemoryTruth
    records: Records

    def knowledge(self, audit, seed=0):
        pools, members, notes = candidates(self.records, audit.records, Seed(seed))
        noise = noise_of(self.trace, self.truth, self.config)
        known = Knowledge(task=self.records.task, candidates=pools, noise=noise, notes=notes)
        return known, members

    def survey(self, seed=0, vantage=SERVER, **settings):
        audit = TwoStageMembership(**settings)
        known, members = self.knowledge(audit, seed)
        rng = np.random.default_rng(seed)
        return audit, audit.attack(self.trace.seen_by(vantage), known, rng), members

    def audit(self, seed=0, vantage=SERVER, **settings):
        audit, guess, members = self.survey(seed, vantage, **settings)
        return audit.score(guess, self.truth.with_members(members), np.random.default_rng(seed + 1))


@pytest.fixture(scope="session")
def play():
    """`play(section={...})`: the overfitted federation with other sections; each runs once."""
    done = {}

    def played(**sections):
        raw = OVERFIT | sections
        key = repr(raw)
        if key not in done:
            config = load(raw)
            federation, facts = build(config)
            recorder = MemoryRecorder(
                **federation.about(),
            )
            truth = MemoryTruth(facts)
            federation.run(recorder, truth)
            trace = recorder.trace()
            done[key] = Played(config, trace, truth, of_config(config, trace, truth))
        return done[key]

    return played


@dataclass(frozen=True)
class Hand:
    """A trace of hand-made updates, and candidates of every client."""

    task: Any
    trace: Trace
    truth: MemoryTruth
    pools: dict[str, Candidates]
    members: dict[str, np.ndarray]

    def attack(self, seed=0, vantage=SERVER, noise=None, task=None, **settings):
        audit = TwoStageMembership(**{"checked_rounds": 0, **settings})
        known = Knowledge(task=task or self.task, candidates=self.pools, noise=noise)
        rng = np.random.default_rng(seed)
        return audit, audit.attack(self.trace.seen_by(vantage), known, rng)

    def audit(self, seed=0, vantage=SERVER, noise=None, task=None, **settings):
        audit, guess = self.attack(seed, vantage, noise, task, **settings)
        truth = self.truth.with_members(self.members)
        return audit.score(guess, truth, np.random.default_rng(seed + 1))

    def but(self, **changes):
        return replace(self, **changes)


class Plain(Classifier):
    """A classifier of tensors."""

    def encode(self, dataset):
        return Examples(*dataset)


def tanh_net(inputs=4, hidden=5, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))


@pytest.fixture(scope="session")
def net():
    return tanh_net


@pytest.fixture(scope="session")
def by_hand():
    """`by_hand(rounds)`: a trace of the given updates [(K, d), ...].

    `planted` [(K, d), ...] is what each client's model differs by from the server's; `absent`
    round -> clients that send nothing; `raw` updates as the truth keeps them.
    """

    def made(
        rounds,
        *,
        task=None,
        names=None,
        weights=None,
        senders=None,
        released=True,
        rate=1.0,
        momentum=0.0,
        noise=0.0,
        downlinks=True,
        kind="delta",
        layout=None,
        records=6,
        pools=None,
        raw=None,
        planted=None,
        absent=None,
    ):
        rng = np.random.default_rng(5)
        task = task or Plain(tanh_net())
        count = len(rounds[0])
        names = names or [f"client-{c:02d}" for c in range(count)]
        own = layout or task.layout
        order = (
            np.concatenate(
                [np.arange(task.layout.width)[e.columns] for n in own.names for e in
                 task.layout.entries if e.name == n]
            )
        )  # fmt: skip
        about = {"hubs": [SERVER], "clients": names, "parties": [SERVER, *names]}
        recorder = MemoryRecorder(layouts={"model": own}, federation=about)
        truth = MemoryTruth({})
        model, velocity = task.initial().numpy().astype(np.float64), 0.0
        w = np.ones(count) if weights is None else np.asarray(weights, float)
        for number, rows in enumerate(rounds, start=1):
            rows = np.asarray(rows, dtype=np.float32)
            with recorder.round() as wire:
                sent = model.astype(np.float32)
                held = sent if planted is None else sent + planted[number - 1]
                if planted is not None:
                    wire.send_rows("model", [SERVER] * count, names, held[:, order], step=0)
                elif downlinks:
                    row = wire.put_once("model", sent[order])
                    wire.send_rows("model", [SERVER] * count, names, row, step=0)
                up = {"model": rows + held, "gradient": -10 * rows}.get(kind, rows)
                shown = names if senders is None else senders
                here = [c for c in range(count) if c not in (absent or {}).get(number, ())]
                first = wire.send_rows(
                    kind, [shown[c] for c in here], [SERVER] * len(here), up[here][:, order],
                    step=1 if downlinks else 0, weights=list(w[here]),
                )  # fmt: skip
                mean = (w[here] / w[here].sum()) @ rows[here].astype(np.float64)
                velocity = momentum * velocity + mean
                model = model + rate * velocity + noise * rng.normal(size=model.shape)
                if released and number == len(rounds):
                    wire.send("model", SERVER, PUBLIC, model.astype(np.float32)[order], step=2)
            kept = None if raw is None else np.asarray(raw[number - 1], dtype=np.float32)
            truth.round(number, {first + i: names[c] for i, c in enumerate(here)}, kept, names)
        inputs = next(m for m in task.module.modules() if isinstance(m, nn.Linear)).in_features
        if pools is None:
            pools = {
                name: Candidates(
                    torch.from_numpy(rng.normal(size=(2 * records, inputs)).astype(np.float32)),
                    torch.from_numpy(np.tile([0, 1], records).astype(np.int64)),
                )
                for name in names
            }
        members = {name: rng.permuted(np.arange(len(pool)) % 4 < 2) for name, pool in pools.items()}
        return Hand(task, recorder.trace(), truth, pools, members)

    return made


@pytest.fixture(scope="session")
def plain_task():
    return Plain
