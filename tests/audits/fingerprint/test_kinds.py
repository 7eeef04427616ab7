"""Directions are random: whatever else crosses the wire and tells clients apart is found."""

import math

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.layout import Layout
from fedaudit.reporting.findings import judge
from fedaudit.trace import ANONYMOUS, SERVER, MemoryRecorder, MemoryTruth

CLIENTS, ROUNDS, SHAPES = 32, 7, {"1.weight": (10, 8), "2.weight": (8, 5)}
WIDTH = sum(math.prod(s) for s in SHAPES.values())
FIRST = math.prod(SHAPES["1.weight"])


def at_half(x):
    return x.astype(np.float16).astype(np.float32)


def at_brain(x):
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def plant(kind, seed=0, strength=1.0, rounds=ROUNDS, clients=CLIENTS):
    """Anonymous updates in which `kind` alone tells clients apart; more `strength`, the better."""
    rng = np.random.default_rng(seed)
    names = [f"client-{c:02d}" for c in range(clients)]
    about = {"hubs": [SERVER], "clients": names}
    recorder = MemoryRecorder(layouts={"model": Layout.of(SHAPES.items())}, federation=about)
    truth = MemoryTruth({"clients": {}})
    base = rng.normal(size=(clients, WIDTH))
    level = rng.normal(size=clients)
    mask = rng.random((clients, WIDTH)) < 0.7
    counts = rng.permutation(10 * clients)[:clients] + 10
    group = rng.permutation(clients) % 3
    jitter = 0.03 / strength
    for number in range(1, rounds + 1):
        order = rng.permutation(clients)
        rows = rng.normal(size=(clients, WIDTH))
        if kind == "direction":
            rows += strength * base[order]
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        own = level[order] + jitter * rng.normal(size=clients)
        if kind == "norm":
            unit *= np.exp(own)[:, None] / number  # updates get smaller as training goes on
        if kind == "norms by layer":
            for part in (slice(None, FIRST), slice(FIRST, None)):
                unit[:, part] /= np.linalg.norm(unit[:, part], axis=1, keepdims=True)
            angle = np.pi / 4 + np.arctan(own / 2) / 2
            unit[:, :FIRST] *= np.cos(angle)[:, None]
            unit[:, FIRST:] *= np.sin(angle)[:, None]
        if kind == "sparsity pattern":
            kept = np.where(rng.random((clients, WIDTH)) < min(1.0, strength), mask[order],
                            rng.random((clients, WIDTH)) < 0.7)  # fmt: skip
            unit = unit * kept
        unit = unit.astype(np.float32)
        if kind == "dtype":
            for at, few in ((1, at_half), (2, at_brain)):
                unit[group[order] == at] = few(unit[group[order] == at])
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(WIDTH, dtype=np.float32))
            wire.send_rows("model", [SERVER] * clients, names, row, step=0)
            senders = {}
            for i, c in enumerate(order):
                # counts are told to the nearest multiple of a step, the same for several clients
                weight = counts[c] - counts[c] % max(1, round(4 / strength))
                at = wire.send(
                    "delta",
                    ANONYMOUS,
                    SERVER,
                    {"1.weight": unit[i, :FIRST].reshape(SHAPES["1.weight"]),
                     "2.weight": unit[i, FIRST:].reshape(SHAPES["2.weight"])},
                    step=1,
                    weight=float(weight) if kind == "weight" else 1.0,
                    metadata={"loss": float(own[i])} if kind == "metric" else {},
                    size=int(4000 + 300 * own[i]) if kind == "message size" else 0,
                )  # fmt: skip
                senders[at] = names[c]
        truth.round(number, senders)
    return recorder.trace(), truth


def audit(trace, truth, seed=0):
    a, rng = Fingerprint(), np.random.default_rng(seed)
    return a.score(a.attack(trace.seen_by(SERVER), Knowledge(), rng), truth, rng)


LEAST = {
    "direction": 0.9, "weight": 0.7, "norm": 0.6, "norms by layer": 0.6, "metric": 0.6,
    "message size": 0.6, "sparsity pattern": 0.9, "dtype": 1 / 32,
}  # fmt: skip
"""Kind -> share of links, where it must be found. Chance is 1/32; three groups allow 3/32."""


@pytest.mark.parametrize("kind", LEAST)
def test_every_kind_that_tells_clients_apart_is_found_by_itself(kind):
    result = audit(*plant(kind))
    assert judge(result)[-1].verdict == "leak"
    assert result.test is None or result.test.significant
    assert result.estimates["linkage_accuracy"].value >= LEAST[kind]


def test_three_dtypes_link_within_their_groups_and_no_further():
    """Theory: a random match within 3 equal groups of 32 clients is right 3 times in 32."""
    shares = [audit(*plant("dtype", seed)).estimates["linkage_accuracy"].value for seed in range(6)]
    # 6 federations x 192 links at 3/32, in clusters (design effect up to 1.4): deviation 0.011
    assert np.mean(shares) == pytest.approx(3 / 32, abs=0.033)


def test_nothing_planted_finds_nothing():
    found = [audit(*plant("nothing", seed, clients=16, rounds=4)) for seed in range(4)]
    assert sum(r.test.significant for r in found) <= 1


@pytest.mark.parametrize("kind", LEAST)
def test_what_would_have_been_seen_is_seen(kind):
    """A share of links at or above the stated smallest one is always a leak."""
    for strength in (0.03, 0.1, 0.3, 1.0):
        made = plant(kind, seed=7, strength=strength, clients=12, rounds=4)
        result = audit(*made, seed=7)
        if result.known:
            continue
        value = result.estimates["linkage_accuracy"].value
        assert result.test.significant or value < result.detectable
