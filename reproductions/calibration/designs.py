"""The federations that every audit is calibrated on: one design without a leak, one with.

Both are small federations of this package, trained and audited as a user's would be. "Without a
leak" is exact wherever it can be: the labels that an audit is scored with are dealt out again at
random (`redealt`), or the records asked about are records that nobody trained on. A design of an
audit that is not listed here is made by `design_for`: a shuffled federation, scored as it is and
with labels dealt out again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from fedaudit.knowledge import KnowledgeBuilder, Records, of_config
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import settled
from fedaudit.results import AuditResult
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.setup.config import Config, load
from fedaudit.setup.prepare import Prepared, build
from fedaudit.study.auditing import audit_one
from fedaudit.trace import MemoryRecorder, MemoryTruth, Trace

BASE: Mapping[str, Any] = {
    "data": {"name": "digits", "test_fraction": 0.4},
    "partition": {"kind": "dirichlet", "alpha": 1.0},
    "task": {"kind": "mlp", "hidden": [16]},
    "federation": {"clients": 8, "rounds": 6},
    "training": {"batch_size": 32},
}

DEALS = 10
"""Deals of the labels of one federation, where scoring costs little beside training."""

AGAIN = 10
"""Trainings of one federation: the same clients and records, other weights, batches and noise."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """One kind of federation, and how it is audited.

    `words` describe it. `config`: sections beside `BASE`. `settings` of the audit. `labels`: "true"
    ones, or "redealt". `records`: that membership is asked about, "own" or "unseen" by everybody.
    `deals`: how often labels are dealt to one attack, and scored; deals are independent given the
    attack, so each is a test without a leak of its own.
    `noise`: what DP-SGD adds, in units of what it declares. `true`: the value of the headline
    where it is known, of all federations or of one; else it is the mean over trainings of the same
    federation with other randomness (`AGAIN`).
    """

    words: str
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: str = "true"
    deals: int = 1
    records: str = "own"
    noise: float = 1.0
    true: float | Callable[[AuditResult], float] | None = None

    @property
    def digest(self) -> str:
        """Changes with what is trained and how it is audited, not with the words."""
        how = [BASE, self.config, self.settings, self.labels, self.records, self.noise]
        how += [self.deals] * (self.deals > 1)
        return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The design `without` a leak and the one `with_leak`; `federations` of each are played.

    `audit`: its name, where a row has another one.
    """

    without: Design
    with_leak: Design
    federations: int = 200
    audit: str | None = None


def chance(result: AuditResult) -> float:
    """What chance alone gives, as the result itself states it."""
    baseline = result.estimates[result.headline or ""].baseline
    assert baseline is not None
    return baseline


def declared(result: AuditResult) -> float:
    """The declared epsilon, which a lower bound must not pass where the declaration is kept."""
    return result.bounds["declared"].value


def mean_over_orders(result: AuditResult) -> float:
    """Mean share explained over all orders of p: guesses that know nothing of p explain less than
    one guess for all, by their own spread."""
    channel = (result.headline or "").removeprefix("explained (").removesuffix(")")
    p, g = (
        np.array([row[column] for row in result.per_client.values()], dtype=float)
        for column in ("p", f"guess ({channel})")
    )
    return -float(np.mean((g - p.mean()) ** 2) / p.var())


def rows() -> list[str]:
    """Rows of the table: every audit, and its other designs after it."""
    more = {name: pair.audit for name, pair in DESIGNS.items() if pair.audit is not None}
    return [r for audit in AUDITS for r in (audit, *(n for n, own in more.items() if own == audit))]


def design_for(audit: str) -> Pair:
    """The designs of a row: its own, else the ones that fit every audit of updates."""
    known = DESIGNS.get(audit)
    if known is not None:
        return known
    shuffled: dict[str, Any] = {"protections": {"shuffle": {}}}
    return Pair(
        without=Design(
            words="8 clients, 6 rounds, shuffled; senders dealt out again within rounds",
            config=shuffled,
            labels="redealt",
            deals=DEALS,
            true=chance,
        ),
        with_leak=Design(words="the same, true senders", config=shuffled),
    )


# -- one federation --------------------------------------------------------------------------------


def play(row: str, design: Design, number: int, run: int = 0) -> list[AuditResult]:
    """Train one federation of a design, and audit it: one result per deal of its labels.

    `number` settles clients and records; with a `run` above 0 they are trained with randomness of
    their own.
    """
    audit = design_for(row).audit or row
    config = load({**BASE, **design.config, "seed": number})
    if design.noise != 1.0:
        config = less_noise(config, design.noise)
    federation, facts = build(config)
    seed = number
    if run:
        seed = 10_000_000 + 1000 * number + run
        federation = replace(federation, seed=Seed(seed))
    recorder = MemoryRecorder(**federation.about())
    truth = MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    trace = recorder.trace()
    scored: MemoryTruth = truth
    if design.labels != "true":
        scored = redealt(truth, np.random.default_rng([seed, 1]))
    records: Callable[[], Records] = functools.partial(of_config, config, trace, truth)
    if design.records == "unseen":
        records = functools.partial(unseen, config, trace, np.random.default_rng([seed, 2]))
    made = Listening(find(AUDITS, "audit", audit)(**design.settings))
    builder = KnowledgeBuilder(trace, scored, Seed(seed + 1), records, config)
    results = [audit_one(made, trace, scored, seed + 1, builder)]
    for deal in range(1, design.deals if made.guess is not None else 1):
        dealt = redealt(truth, np.random.default_rng([seed, 1, deal]))
        dealt.members = dict(made.members)
        rng = np.random.default_rng([seed, 3, deal])
        results.append(settled(made.audit.score(made.guess, dealt, rng)))
    return results


class Listening:
    """An audit whose guess, and whose candidates' membership, are kept."""

    def __init__(self, audit: Any) -> None:
        self.audit = audit
        self.guess: Any = None
        self.members: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.audit, name)

    def score(self, guess: Any, truth: Any, rng: np.random.Generator) -> AuditResult:
        self.guess, self.members = guess, truth.members
        scored: AuditResult = self.audit.score(guess, truth, rng)
        return scored


def redealt(truth: MemoryTruth, rng: np.random.Generator) -> MemoryTruth:
    """The same truth with labels of other clients: senders permuted within every round, class
    histograms among all clients. Labels and trace are then independent."""
    facts = dict(truth.facts)
    clients = facts.get("clients", {})
    names = list(clients)
    other = [names[i] for i in rng.permutation(len(names))]
    facts["clients"] = {name: clients[o] for name, o in zip(names, other, strict=True)}
    out = MemoryTruth(facts)
    for number in range(1, truth.rounds + 1):
        senders = truth.senders(number)
        dealt = rng.permutation(list(senders.values())).tolist()
        who, raw = truth.raw_updates(number)
        out.round(number, dict(zip(senders, dealt, strict=True)), raw, who, truth.metrics(number))
    return out


def unseen(config: Config, trace: Trace, rng: np.random.Generator) -> Records:
    """Records that nobody trained on: half are called the clients' own, half held-out.

    Members and non-members are exchangeable, whatever the models learnt.
    """
    made = Prepared.of(config)
    test, parties = made.test, trace.manifest.federation["clients"]
    order = rng.permutation(len(test))
    half = len(test) // 2
    own = np.array_split(order[:half], len(parties))
    return Records(
        task=made.task,
        own={p: test.take(rows) for p, rows in zip(parties, own, strict=True)},
        others=test.take(order[half:]),
    )


# -- faults ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LessNoise(DPSGD):
    """DP-SGD whose noise is `factor` times what it declares."""

    factor: float = 1.0

    def step(self, sums: torch.Tensor, **at: Any) -> None:
        noise = torch.zeros_like(sums)
        super().step(noise, **at)
        sums.add_(noise, alpha=self.factor)


def less_noise(config: Config, factor: float) -> Config:
    """The same config, whose DP-SGD adds less noise than it says."""
    hook = config.protections["dp_sgd"]
    assert isinstance(hook, DPSGD)
    own = {f.name: getattr(hook, f.name) for f in fields(hook)}
    return replace(config, protections={"dp_sgd": LessNoise(**own, factor=factor)})


# -- designs of single audits ----------------------------------------------------------------------

SUMS = {"threshold": 3, "plan": "partitions", "refuse_isolating": False, "masks": "skipped"}
MARKED = {
    "protections": {"secure_aggregation": SUMS},
    "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
    "federation": {"clients": 6, "rounds": 4},
}
PAIRED = {**MARKED, "protections": {"secure_aggregation": {**SUMS, "plan": "paired"}}}
KEYS = {"unused_keys": 299}
FEW = {"federation": {"clients": 6, "rounds": 4}}
# one step on all records: the accounting of DP-SGD is the same for all clients, and made once
ONE_STEP = {"batch_size": 0, "steps": 1}
LINKED = {
    "federation": {"clients": 6, "rounds": 6},
    "training": ONE_STEP,
    "protections": {"dp_sgd": {"noise_multiplier": 32.0}, "shuffle": {}},
}
GAMES = {
    "adversary": "fc",
    "games": 400,
    "recorded": 0,
    "client_games": 40,
    "simulated": 400,
    "universe": 400,
}
MIXES = {
    "federation": {"clients": 12, "rounds": 2},
    "training": ONE_STEP,
    "protections": {"dp_sgd": {"noise_multiplier": 4.0}},
}
SHADOWED = {
    "regressor": "ridge",
    "channels": ("A1",),
    "shadows": 20,
    "by_rounds": False,
    "sums": False,
}
NOISY = {
    "federation": {"clients": 4, "rounds": 6},
    "training": {"batch_size": 16, "steps": 2, "sampling": "poisson"},
    "protections": {"dp_sgd": {"noise_multiplier": 1.0}},
}
CANARIES = {"canaries": 400}
FOUR = {**MIXES, "federation": {"clients": 4, "rounds": 2}}
FOUR_SHADOWED = {**SHADOWED, "shadows": 40}
SINGLE_STEP = {
    "data": {"name": "digits", "test_fraction": 0.96},
    "partition": {"kind": "iid"},
    "federation": {"clients": 8, "rounds": 1},
    "training": ONE_STEP,
}
REBUILT = {"records": 16, "matched_rounds": 0}
MEMBERS = {"records": 12, "shadows": 8, "population": 100, "noise_draws": 1}
# sums of groups that change from round to round, of models that fit their few records closely
GROUPED = {
    "data": {"name": "digits", "test_fraction": 0.7},
    "partition": {"kind": "iid"},
    "federation": {"clients": 8, "rounds": 8},
    "training": {"batch_size": 16, "epochs": 4, "learning_rate": 0.3},
    "protections": {"secure_aggregation": {"threshold": 3, "plan": "cycled", "masks": "skipped"}},
}
SETS = {"sizes": (24,), "templates": 40}
LEARNT = {
    "data": {"name": "digits", "test_fraction": 0.8},
    "federation": {"clients": 6, "rounds": 2},
    "training": {"batch_size": 16, "epochs": 8, "learning_rate": 0.5},
}

DESIGNS: Mapping[str, Pair] = {
    "coverage": Pair(
        without=Design(
            words="sums of a secure aggregation, 1 round",
            config={
                "federation": {"clients": 8, "rounds": 1},
                "protections": {"secure_aggregation": SUMS},
            },
            true=0.0,
        ),
        with_leak=Design(
            words="shuffled, 1 round: names are covered, parameters are not",
            config={"federation": {"clients": 8, "rounds": 1}, "protections": {"shuffle": {}}},
            true=1.0,
        ),
    ),
    "query_plan": Pair(
        without=Design(
            words="one partition into groups of 3 or more",
            config={
                "federation": {"clients": 8, "rounds": 1},
                "protections": {"secure_aggregation": SUMS},
            },
            true=4.0,
        ),
        with_leak=Design(
            words="one round of the published plan",
            config={
                "federation": {"clients": 8, "rounds": 1},
                "protections": {"secure_aggregation": {**SUMS, "plan": "paired"}},
            },
            true=1.0,
        ),
    ),
    "fingerprint": Pair(
        without=Design(
            words="6 clients, 6 rounds, shuffled, DP-SGD z = 32; senders dealt out again within "
            "rounds",
            config=LINKED,
            labels="redealt",
            deals=DEALS,
            true=chance,
        ),
        with_leak=Design(words="the same, true senders", config=LINKED),
    ),
    "two_stage_membership": Pair(
        without=Design(
            words="6 clients of 60 records, 2 rounds; asked about records that nobody trained on",
            config=LEARNT,
            settings={"records": 16, "checked_rounds": 0},
            records="unseen",
            true=chance,
        ),
        with_leak=Design(
            words="the same; asked about the clients' own records",
            config=LEARNT,
            settings={"records": 16, "checked_rounds": 0},
        ),
    ),
    "active_membership": Pair(
        without=Design(
            words="GRR at epsilon 0.001: no game can be won",
            config={**FEW, "protections": {"local_dp": {"mechanism": "grr", "epsilon": 0.001}}},
            settings=GAMES,
            true=chance,
        ),
        with_leak=Design(
            words="the same at epsilon 0.8",
            config={**FEW, "protections": {"local_dp": {"mechanism": "grr", "epsilon": 0.8}}},
            settings=GAMES,
        ),
    ),
    "topology_inference": Pair(
        without=Design(
            words="12 clients, 2 rounds, DP-SGD z = 4, channel A1; class mixes of other clients",
            config=MIXES,
            settings=SHADOWED,
            labels="redealt",
            deals=DEALS,
            true=mean_over_orders,
        ),
        with_leak=Design(
            words="the same, true class mixes",
            config=MIXES,
            settings=SHADOWED,
        ),
    ),
    "attribution": Pair(
        without=Design(
            words="6 clients, 4 rounds of sums; nobody is marked, three unused keys are tested",
            config={
                **MARKED,
                "marks": {"clients": 0, "spare": 3, "share": 0.2},
            },
            settings=KEYS,
            true=0.0,
        ),
        with_leak=Design(
            words="the same; two clients hold marked records",
            config={
                **MARKED,
                "marks": {"clients": 2, "share": 0.2},
            },
            settings=KEYS,
            true=2.0,
        ),
    ),
    "attribution, published pairs": Pair(
        audit="attribution",
        without=Design(
            words="the same federations, with the paper's pairs of sums",
            config={**PAIRED, "marks": {"clients": 0, "spare": 3, "share": 0.2}},
            settings=KEYS,
            true=0.0,
        ),
        with_leak=Design(
            words="the same; two clients hold marked records",
            config={**PAIRED, "marks": {"clients": 2, "share": 0.2}},
            settings=KEYS,
            true=2.0,
        ),
    ),
    "record_set_naming": Pair(
        without=Design(
            words="8 clients of 67 records, 8 rounds of sums over changing groups; sets of 24 "
            "records that nobody trained on",
            config=GROUPED,
            settings=SETS,
            records="unseen",
        ),
        with_leak=Design(
            words="the same; sets of the clients' own records", config=GROUPED, settings=SETS
        ),
    ),
    "topology_inference, 4 clients": Pair(
        audit="topology_inference",
        without=Design(
            words="4 clients, 40 shadows, DP-SGD z = 100,000: updates are noise alone",
            config={**FOUR, "protections": {"dp_sgd": {"noise_multiplier": 1e5}}},
            settings=FOUR_SHADOWED,
            true=mean_over_orders,
        ),
        with_leak=Design(
            words="the same, z = 1: the shadows alone can show it",
            config={**FOUR, "protections": {"dp_sgd": {"noise_multiplier": 1.0}}},
            settings=FOUR_SHADOWED,
        ),
    ),
    "epsilon": Pair(
        without=Design(
            words="4 clients, 6 rounds of DP-SGD z = 1, 400 canaries",
            config=NOISY,
            settings=CANARIES,
            true=declared,
        ),
        with_leak=Design(
            words="the same, with 0.95 times the noise that is declared",
            config=NOISY,
            settings=CANARIES,
            noise=0.95,
            true=declared,
        ),
    ),
    "membership": Pair(
        without=Design(
            words="6 clients of 60 records, 2 rounds, 8 shadows; asked about records that nobody "
            "trained on",
            config=LEARNT,
            settings=MEMBERS,
            records="unseen",
            true=chance,
        ),
        with_leak=Design(
            words="the same; asked about the clients' own records",
            config=LEARNT,
            settings=MEMBERS,
        ),
    ),
    "reconstruction": Pair(
        without=Design(
            words="8 clients of 9 records, 1 step; asked about records that nobody trained on",
            config=SINGLE_STEP,
            settings=REBUILT,
            records="unseen",
            true=chance,
        ),
        with_leak=Design(
            words="the same; asked about the clients' own records",
            config=SINGLE_STEP,
            settings=REBUILT,
        ),
    ),
}
