"""Template attribution on safe plans: found, falsely named, and pretended owners.

A federation is trained once. Sums over groups do not change training, so every plan is read from
the same updates. Sums are formed here, without the masks and the rounding of the protocol, but for
the cells named "scalars": there inner products go through the secure sum, masks and all. Each
owner's key has a template, so have unused keys, and further keys that nobody holds: a pretended
owner tests one of them alone, in a federation where others did mark their documents.

`python -m reproductions.attribution.template --kind canary --seeds 501-510` adds what is missing to
`template.json`; `--store FOLDER` keeps inner products, so that they can be read again. Seeds 201 to
220 (canaries) and 201 to 203 (text) were used for development.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit import accounting
from fedaudit.audits.attribution import template
from fedaudit.audits.attribution.calibration import NamingDecision
from fedaudit.protections.secure_aggregation import SecureAggregator
from fedaudit.stats import query_plans
from reproductions.attribution.inner import LEAST_LEFT, SETTINGS, Inner, stored

Floats = npt.NDArray[np.float64]
Queries = Sequence[Floats]
"""The groups of every round, (G_t, K) each."""

RESULTS = Path(__file__).parent / "template.json"
STORE = Path("template-inner-products")
LENGTHS = (5, 10)
GROUP = 5
EPSILONS = (8, 16, 32, 64, 256, 1024)
DELTA = 1e-5
CLIPS = {"canary": 1.2, "fictitious": 1.2, "kgw": 0.8}
"""Kind of marks -> bound on the norm of a client's products, chosen on `CHOSEN_ON`."""
CHOSEN_ON = {"canary": range(201, 209), "fictitious": (701,), "kgw": (701,)}
"""Seeds that noise is not measured on."""


def plan_of(name: str, clients: int, rounds: int, rng: np.random.Generator) -> query_plans.Plan:
    """A plan (T, G, K) by name."""
    if name == "random":
        return query_plans.random_partitions(clients, GROUP, rounds, rng)
    if name == "balanced":
        return query_plans.balanced_partitions(clients, GROUP, rounds, rng)
    if name == "unequal":
        return unequal_partitions(clients, rounds, rng)
    return query_plans.cycled_partitions(clients, GROUP, rounds, rng)


PLANS = ("random", "balanced", "cycled")


def unequal_partitions(clients: int, rounds: int, rng: np.random.Generator) -> query_plans.Plan:
    """Five partitions into 4 and the rest, cycled: of 200 draws the one that parts all pairs most
    often."""

    def draw() -> query_plans.Plan:
        inside = np.zeros((query_plans.CYCLE, clients), dtype=np.uint8)
        for row in inside:
            row[rng.permutation(clients)[: GROUP - 1]] = 1
        return np.stack([inside, 1 - inside], axis=1)

    best = max((draw() for _ in range(200)), key=query_plans.least_separation)
    return best[np.arange(rounds) % len(best)]


def without_absent(plan: query_plans.Plan, present: npt.NDArray[np.bool_], least: int) -> Queries:
    """The groups without clients who dropped out; those with fewer than `least` are not opened."""
    left = [p.astype(np.float64) * here for p, here in zip(plan, present, strict=True)]
    return [q[q.sum(axis=1) >= least] for q in left]


def in_the_clear(queries: Queries, values: Floats) -> list[Floats]:
    """Sums over groups (G_t, S + U + P) of every round."""
    return [q @ each for q, each in zip(queries, values, strict=True)]


def through_the_protocol(queries: Queries, values: Floats) -> list[Floats]:
    """The same sums by the protocol: masks, shares, and numbers rounded to the ring."""
    aggregator = SecureAggregator(threshold=GROUP)
    sums = []
    for number, (groups, each) in enumerate(zip(queries, values, strict=True), start=1):
        aggregator.begin(number, dict(enumerate(each)))
        aggregator.query(number, range(len(each)))
        sums.append(
            np.array([aggregator.query(number, np.flatnonzero(g).tolist()) for g in groups])
        )
    return sums


def with_noise(
    queries: Queries, values: Floats, epsilon: float, clip: float, rng: np.random.Generator
) -> list[Floats]:
    """Sums of clipped products with Gaussian noise: (epsilon, 1e-5)-DP of all rounds' products for
    a whole client, each of which is in one group a round."""
    exposure = accounting.Exposure(sampling_rate=1.0, steps=1, rounds=len(values))
    multiplier = accounting.calibrate(epsilon, exposure, DELTA)
    size = np.linalg.norm(values, axis=2, keepdims=True)
    clear = in_the_clear(queries, values / np.maximum(1.0, size / clip))
    return [s + multiplier * clip * rng.standard_normal(s.shape) for s in clear]


def read(queries: Queries, sums: Sequence[Floats], run: Inner, pretended: int) -> dict[str, Any]:
    """Counts of one plan: (G_t, S + U + P) sums of every round."""

    asked = [
        (q, s)
        for q, s in zip(queries, sums, strict=True)
        if len(q) and len(template.centred_rows(q)[1])
    ]

    def named(columns: npt.NDArray[np.int64], own: int) -> NamingDecision:
        rows = [template.round_rows(q, s[:, columns], own) for q, s in asked]
        return template.decide([r for r in rows if r is not None], own, 0.05)

    keys, unused, holders = run.keys, run.unused, run.holders
    marked = holders >= 0
    counts = {"marked": int(marked.sum()), "benign": int((~marked).sum()), "pretended": pretended}
    if not asked:  # nobody was there: no sum tells clients apart, and nobody is named
        return {**counts, "found": 0, "by_own_key": 0, "named": 0, "pretended_named": 0, "z": []}
    null = keys + np.arange(unused)
    decision = named(np.concatenate([np.arange(keys), null]), keys)
    flagged = decision.named.flagged
    wrong = [
        int(named(np.array([at, *null]), 1).named.flagged.any())
        for at in range(keys + unused, keys + unused + pretended)
    ]
    z = decision.p_values.distance
    return {
        **counts,
        "found": int(flagged[marked].sum()),
        "by_own_key": int((flagged & (decision.named.key == holders))[marked].sum()),
        "named": int(flagged[~marked].sum()),
        "pretended_named": sum(wrong),
        "z": [round(float(z[k, holders[k]]), 2) for k in np.flatnonzero(marked)],
    }


def cells_of(run: Inner, kind: str, setting: str, seed: int) -> dict[str, Any]:
    """Every reading of one federation, by name."""
    clients, pretended = len(run.holders), run.values.shape[2] - run.keys - run.unused
    least = LEAST_LEFT if setting.endswith("drop out") else 1

    def asked(plan: str, rounds: int) -> Queries:
        drawn = plan_of(plan, clients, rounds, np.random.default_rng(seed))
        return without_absent(drawn, run.present[:rounds], least)

    def cell(
        plan: str, rounds: int, add: Callable[[Queries, Floats], list[Floats]], many: int
    ) -> dict[str, Any]:
        queries = asked(plan, rounds)
        return read(queries, add(queries, run.values[:rounds]), run, many)

    found: dict[str, Any] = {
        "train_seconds": round(run.train_seconds, 1),
        "template_seconds": round(run.template_seconds, 1),
    }
    for plan in PLANS:
        for rounds in LENGTHS:
            found[f"{plan}/{rounds}"] = cell(plan, rounds, in_the_clear, pretended)
    if setting != "iid":
        return found
    found["unequal/10"] = cell("unequal", 10, in_the_clear, pretended)
    for plan in ("cycled", "balanced"):
        found[f"{plan}, scalars/10"] = cell(plan, 10, through_the_protocol, pretended)
    if seed not in CHOSEN_ON[kind]:
        only = np.arange(run.keys + run.unused)
        rng = np.random.default_rng([seed, 1])
        queries, values = asked("cycled", 10), run.values[:, :, only]
        for epsilon in EPSILONS:
            sums = with_noise(queries, values, epsilon, CLIPS[kind], rng)
            found[f"epsilon {epsilon}/10"] = read(queries, sums, run, 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("canary", "fictitious", "kgw"), required=True)
    parser.add_argument("--setting", choices=SETTINGS, default="iid")
    parser.add_argument("--windows", type=int, default=48, help="most records of a key")
    parser.add_argument("--seeds", default="501-510", help="first-last")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of inner products")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    low, high = (int(s) for s in given.seeds.split("-"))
    for seed in range(low, high + 1):
        known = json.loads(given.results.read_text()) if given.results.exists() else {}
        name = f"{given.kind}/{given.setting}/{given.windows}/{seed}"
        if name not in known:
            run = stored(given.store, given.kind, given.setting, given.windows, seed)
            found = cells_of(run, given.kind, given.setting, seed)
            save(given.results, name, found)


def save(file: Path, name: str, found: dict[str, Any]) -> None:
    """Add one measurement to a file, a line each."""
    known = json.loads(file.read_text()) if file.exists() else {}
    known[name] = found
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items()))
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
