"""Toy federations without training, and audits of them."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.topology_inference import TopologyInference
from fedaudit.layout import Layout
from fedaudit.trace import SERVER, WIRETAP, MemoryRecorder, MemoryTruth

CLASSES = 4
LAYOUT = Layout.of(
    [("0.weight", (3, 5)), ("0.bias", (3,)), ("1.weight", (CLASSES, 3)), ("1.bias", (CLASSES,))]
)
GROUPS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
EDGES = tuple(
    (i, j)
    for i, j in itertools.combinations(range(12), 2)
    if GROUPS[i] == GROUPS[j] or {i, j} <= {0, 4, 8}
)


class Toy:
    """toy(rng, parameters=..., ...) -> trace, truth; and the common parts of all toys."""

    classes, layout, groups, edges = CLASSES, LAYOUT, GROUPS, EDGES

    def __call__(self, rng, **options):
        return make_toy(rng, **options)


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def toy_shadows():
    return ToyShadows


@pytest.fixture
def audited():
    return audit_toy


def make_toy(
    rng,
    *,
    parameters=1.0,
    organisation=0.0,
    noise=0.3,
    rounds=3,
    share=1.0,
    permuted=False,
    wire="delta",
    groups=GROUPS,
    edges=EDGES,
    senders=None,
    names=None,
):
    """One federation: histograms, and updates whose last bias leans towards a client's classes.

    `organisation`: how far class 0 belongs to the first group; `permuted`: the labels that are
    written down belong to other clients.
    """
    n = len(groups)
    names = names or tuple(f"client-{c:02d}" for c in range(n))
    mix = rng.dirichlet(np.full(CLASSES, 0.7), size=n)
    first = np.array(groups) == groups[0]
    mix[first] = (1 - organisation) * mix[first] + organisation * np.eye(CLASSES)[0]
    histograms = np.array([rng.multinomial(60, m) for m in mix])
    about = {
        "hubs": [SERVER],
        "clients": list(names),
        "parties": [SERVER, *names],
        "edges": [list(e) for e in edges],
        "organisations": list(groups),
        "topology": "hierarchical",
    }
    recorder = MemoryRecorder(layouts={"model": LAYOUT}, federation=about)
    written = rng.permutation(histograms) if permuted else histograms
    truth = MemoryTruth(
        {"clients": {p: {"classes": h.tolist()} for p, h in zip(names, written, strict=True)}}
    )
    model = rng.normal(size=LAYOUT.width).astype(np.float32)
    bias = LAYOUT.entries[-1].columns
    for number in range(1, rounds + 1):
        take = np.sort(rng.permutation(n)[: max(2, round(share * n))])
        rows = noise * rng.normal(size=(len(take), LAYOUT.width))
        rows[:, bias] += parameters * (histograms[take] / 60 - 1 / CLASSES)
        rows = rows.astype(np.float32)
        with recorder.round() as wire_:
            row = wire_.put_once("model", model)
            wire_.send_rows("model", [SERVER] * len(take), [names[c] for c in take], row, step=0)
            sent = rows + model if wire == "model" else rows
            who = [names[c] for c in take] if senders is None else [senders] * len(take)
            first_at = wire_.send_rows(wire, who, [SERVER] * len(take), sent, step=1)
        truth.round(number, {first_at + i: names[c] for i, c in enumerate(take)})
        model = model + rows.mean(axis=0)
    return recorder.trace(), truth


@dataclass(frozen=True)
class ToyShadows:
    """Shadows without training."""

    count: int = 20
    seed: int = 1000
    coupled: bool = True
    options: tuple = ()
    where: tuple = ()
    prior: str = "toy"
    classes: int = CLASSES
    notes: tuple = ()

    def __len__(self):
        return self.count

    def __iter__(self):
        for s in range(self.count):
            own = dict(self.options)
            if self.where:
                own |= {"edges": self.where[s][0], "groups": self.where[s][1]}
            trace, truth = make_toy(np.random.default_rng(self.seed + s), **own)
            yield trace.seen_by(WIRETAP), truth

    def each(self, look):
        return (look(s, view, truth) for s, (view, truth) in enumerate(self))

    def rewired(self, *, edges, organisations):
        return replace(self, where=tuple(zip(edges, organisations, strict=True)))


def audit_toy(seed=0, *, settings=None, target=None, coupled=True, vantage=WIRETAP, **options):
    """An audit of one toy federation by shadows of the same kind."""
    trace, truth = make_toy(np.random.default_rng(seed), **(options | (target or {})))
    audit = TopologyInference(**{"regressor": "ridge", "shadows": 20, **(settings or {})})
    shadows = ToyShadows(
        count=audit.shadows,
        coupled=coupled,
        options=tuple(options.items()),
        seed=1000 * (seed + 1),
    )
    guess = audit.attack(
        trace.seen_by(vantage), Knowledge(shadows=shadows), np.random.default_rng(seed + 1)
    )
    return guess, audit.score(guess, truth, np.random.default_rng(seed + 2)), truth
