"""Rehearsals: run a federation again with canaries, and discard its model.

Same config, same protections, same starting model; other seeds. Canaries are examples of their
clients, so batches, clipping and noise treat them as production treats records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.epsilon.canaries import (
    CanaryVectors,
    Gradients,
    Promise,
    Rehearsal,
    place_canaries,
)
from fedaudit.errors import NotApplicable
from fedaudit.federation.requests import run_rounds
from fedaudit.randomness import Seed
from fedaudit.setup.canaries import (
    added_power,
    plant,
    planted_settings,
    production_canaries,
    promises_of,
)
from fedaudit.tasks.lora import DenseLoRA
from fedaudit.trace import MemoryRecorder, Recorder, Trace, Truth

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.epsilon.audit import EpsilonAudit
    from fedaudit.federation.engine import Federation
    from fedaudit.federation.local.planted import PlantedExamples
    from fedaudit.federation.local.trainer import ClientData
    from fedaudit.federation.requests import Request

    Train = Callable[[Request], Tensor]

HELD_BYTES = 256 << 20
"""Recordings above this size go to a temporary folder, not to memory."""


PATH = (
    "gradient canaries are drawn, clipped and summed by the engine beside its kernel; records "
    "test the kernel's own clipping"
)


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal, and its truth: `coins` (m,), and `drawn` (m, steps) which step drew which
    canary."""

    seen: Rehearsal
    coins: Bools
    drawn: Bools


def rehearsals_of(
    audit: EpsilonAudit, federation: Federation, clients: Sequence[str], seed: Seed
) -> tuple[Rehearsed, ...]:
    """The rehearsals of an audit; `clients` are the names that the recording uses."""
    if len(clients) == len(federation.party):
        federation = replace(federation, party=tuple(clients))
    seeds = [Seed(seed.key("rehearsal", r)) for r in range(audit.repeats)]
    return tuple(rehearse(federation, audit, own) for own in seeds)


def rehearse(federation: Federation, audit: EpsilonAudit, seed: Seed) -> Rehearsed:
    """Run the federation once with canaries, and record what its parties see.

    Canaries are records where noise on batch sums is declared, else whole clients.
    """
    if set(audit.kinds) - {"client"}:
        promises = promises_of(federation)
        if promises is not None:
            return _rehearse_records(federation, audit, seed, promises)
    if "client" in audit.kinds:
        promises = promises_of(federation, ("upload", "aggregate"))
        if promises is not None:
            return rehearse_clients(federation, audit, seed, promises)
    raise NotApplicable(
        "no protection declares an epsilon that these canaries can test",
        code="no_declaration",
        expected="noise on the sums of batches at every client (dense, layer, record), or on "
        "whole updates or their sum (client)",
        got=", ".join(h.name or type(h).__name__ for h in federation.protections) or "none",
        remedy="[protections.dp_sgd]",
    )


def _rehearse_records(
    federation: Federation, audit: EpsilonAudit, seed: Seed, promises: tuple[Promise, ...]
) -> Rehearsed:
    """A rehearsal whose canaries are examples of the clients."""
    summed = _summed(federation, audit)
    records = [] if summed else _record_canaries(federation, audit, seed)
    if not records and not audit.gradients:
        raise NotApplicable(
            "this task has no record canaries",
            code="no_record_canaries",
            expected=NO_RECORDS,
            got=type(federation.task).__name__,
            remedy='kinds = ["dense", "layer"]',
        )
    playing, canaries, coins = plant(federation, audit, seed, promises, records)
    played = replace(playing, seed=Seed(seed.key("federation")))
    trace, held = recorded(played)
    notes = (
        (PATH,) if records else (PATH, f"no record canaries: {SUMMED if summed else NO_RECORDS}")
    )
    # another seed draws other participants, who take part in other numbers of rounds
    own = promises_of(played)
    assert own is not None
    seen, drawn = _as_seen(played, audit, trace, canaries, own, notes)
    seen = replace(seen, gradients=_gradients(played, records), held=held)
    return Rehearsed(seen, coins, drawn)


def _as_seen(
    played: Federation,
    audit: EpsilonAudit,
    trace: Any,
    canaries: CanaryVectors,
    promises: tuple[Promise, ...],
    notes: tuple[str, ...],
) -> tuple[Rehearsal, Bools]:
    """A played federation as its adversary sees it, and which step drew which canary."""
    planted: Any = played.clients_data.planted
    drawn, batches = _draws(planted, len(canaries))
    summed = _summed(played, audit)
    scale, changed = _scale(played, summed), _changed_afterwards(played, summed)
    sizes = played.clients_data.sizes.astype(np.float64)
    if changed:
        notes = (*notes, f"uploads change after training ({changed}): no gain, no noise is read")
    seen = Rehearsal(
        view=trace.seen_by(*audit.vantage.split("+")),
        canaries=canaries,
        promises=promises,
        clients=played.party,
        scale=scale,
        batches=batches,
        single=played.clients_data.person is None,
        notes=notes,
        release="sums" if summed else "steps",
        server=(played.rounds.server_learning_rate, 0.0),
        weights=sizes if played.rounds.weighting == "size" else np.ones(len(sizes)),
    )
    return seen, drawn


SUMMED = "they are read in single uploads, and only sums are seen"


def _summed(federation: Federation, audit: EpsilonAudit) -> bool:
    """Whether the vantage sees clients as sums alone, whose weights and noise are known.

    Then the model's movement shows them; who dropped out of a sum is not known, though.
    """
    rounds, hooks = federation.rounds, federation.protections
    if rounds.aggregation == "gossip" or rounds.server_momentum:
        return False
    if any(h.only_sums for h in hooks):
        whole = not any(getattr(h, "dropout", 0.0) for h in hooks)
    else:
        whole = "server" not in audit.vantage.split("+")
    return whole and _scale(federation, summed=True) is not None


def production_of(
    audit: EpsilonAudit, federation: Federation, trace: Trace, truth: Truth | None
) -> tuple[Rehearsed, ...]:
    """The run itself, which held canaries: read as a rehearsal is.

    Which step drew which canary follows from the seed: batches are drawn again, nothing is trained.
    """
    planted = None if truth is None else truth.facts.get("canaries")
    wanted = planted_settings(audit)
    if planted != wanted:
        raise NotApplicable(
            "the run was trained without these canaries",
            code="no_canaries",
            expected=", ".join(f"{k} = {v}" for k, v in wanted.items()),
            got="no canaries"
            if planted is None
            else ", ".join(f"{k} = {v}" for k, v in planted.items()),
            remedy='run anew with mode = "production", or audit with mode = "rehearsal"',
        )
    canaries, coins, promises = production_canaries(federation, audit)
    federation.replay_draws()
    notes = (PATH, added_power(canaries, promises, federation.task.trained))
    seen, drawn = _as_seen(federation, audit, trace, canaries, promises, notes)
    return (Rehearsed(seen, coins, drawn),)


CLIENTS_ONLY = (
    "canary clients upload chosen vectors, which production clips, adds noise to and sums; how "
    "clients train is not tested"
)
RECORDED_BYTES = 1 << 30
"""Bound on the uploads of canary clients in a recording."""


def rehearse_clients(
    federation: Federation, audit: EpsilonAudit, seed: Seed, promises: tuple[Promise, ...]
) -> Rehearsed:
    """A rehearsal whose canaries are clients: each uploads one vector, or not, by its coin.

    Everything after training is production: clipping, noise, secure sums, the shuffler, the server.
    """

    rounds, task, real = federation.rounds, federation.task, len(federation.party)
    only_sums = any(h.only_sums for h in federation.protections) or promises[0].once
    if rounds.aggregation != "fedavg" or (only_sums and rounds.weighting != "equal"):
        raise NotApplicable(
            "canary clients cannot take part in this federation",
            code="no_canary_clients",
            expected='aggregation = "fedavg", and equal weights where only sums are seen',
            got=f'aggregation = "{rounds.aggregation}", weighting = "{rounds.weighting}"',
            remedy='federation.weighting = "equal"',
        )
    most = RECORDED_BYTES // (4 * task.layout.width * rounds.rounds)
    canaries = place_canaries(
        task.layout,
        kinds=("dense",),
        norms=audit.norms,
        count=max(2, min(audit.canaries, most)),
        clients=1,
        trained=task.trained,
        rng=seed.generator("canaries"),
    )
    m = len(canaries)
    canaries = replace(canaries, client=real + np.arange(m), kind=np.full(m, "client"))
    coins = seed.generator("coins").random(m) < 0.5
    sign = np.where(coins, 1.0, -1.0 if promises[0].relation == "replace" else 0.0)
    size = (sign * canaries.norm * promises[0].clip).astype(np.float32)
    rows = torch.zeros(m, task.layout.width)
    rows.scatter_add_(
        1, torch.from_numpy(canaries.columns), torch.from_numpy(canaries.unit * size[:, None])
    )
    played = replace(
        federation,
        data=_with_clients(federation.data, m),
        rounds=replace(rounds, clients=real + m),
        party=(*federation.party, *(f"canary-{i:05d}" for i in range(m))),
        seed=Seed(seed.key("federation")),
    )
    present: list[Indices] = []

    def train(request: Request) -> Tensor:
        who = request.clients
        present.append(np.column_stack([np.full(len(who), request.number), who]))
        ours, out = who < real, torch.empty(len(who), task.layout.width)
        out[torch.from_numpy(~ours)] = rows[torch.from_numpy(who[~ours] - real)]
        if ours.any():
            sent = request.sent
            own = sent if sent.dim() == 1 else sent[torch.from_numpy(ours)]
            out[torch.from_numpy(ours)] = played.train(own, who[ours], request.number)
        return out

    trace, held = recorded(played, train)
    there = np.concatenate(present)
    drawn = np.zeros((m, rounds.rounds), dtype=bool)
    mine = there[:, 1] >= real
    drawn[there[mine, 1] - real, there[mine, 0] - 1] = True
    one = np.ones(len(there), dtype=np.int64)
    few = () if m >= audit.canaries else (f"{m} canaries: the model has room for no more",)
    seen = Rehearsal(
        view=trace.seen_by(*audit.vantage.split("+")),
        canaries=canaries,
        promises=_of_clients(played, promises),
        clients=played.party,
        scale=np.ones(len(played.party)),
        batches=np.column_stack([there[:, 0], 0 * one, there[:, 1], one, one]),
        single=False,
        notes=(CLIENTS_ONLY, *few),
        release="models" if only_sums else "uploads",
        server=(rounds.server_learning_rate, rounds.server_momentum),
        held=held,
    )
    return Rehearsed(seen, coins, drawn)


def _of_clients(played: Federation, promises: tuple[Promise, ...]) -> tuple[Promise, ...]:
    """What every client of a rehearsal is promised; the federation has as many as before it."""
    found = promises_of(played, ("upload", "aggregate"))
    assert found is not None
    return tuple(replace(p, records=promises[0].records) for p in found)


def _with_clients(data: ClientData, more: int) -> ClientData:
    """Client data with `more` clients that hold one blank example each."""

    last = len(data.x)
    blank_x = torch.zeros_like(data.x[:1]).repeat(more, *(1,) * (data.x.dim() - 1))
    blank_y = torch.zeros_like(data.y[:1]).repeat(more, *(1,) * (data.y.dim() - 1))
    return replace(
        data,
        x=torch.cat([data.x, blank_x]),
        y=torch.cat([data.y, blank_y]),
        starts=np.concatenate([data.starts, last + np.arange(more)]),
        sizes=np.concatenate([data.sizes, np.ones(more, dtype=np.int64)]),
        person=None
        if data.person is None
        else torch.cat([data.person, torch.zeros(more, dtype=data.person.dtype)]),
    )


RECORDS = ("mislabelled", "blank", "noise", "large")
"""Record canaries, in turn. A large one is a thousand times a real record."""

NO_RECORDS = "they need real-valued features, a label, and a plain loss"


def _record_canaries(
    federation: Federation, audit: EpsilonAudit, seed: Seed
) -> list[tuple[Tensor, Tensor, float]]:
    """Examples (x, y) and their size; a fifth of all canaries."""

    data, task = federation.clients_data, federation.task
    number = audit.canaries // 5 if audit.gradients else audit.canaries
    number = min(number, HELD_BYTES // (8 * task.layout.width))
    plain = torch.is_floating_point(data.x) and data.y.dim() == 1 and task.noise_shape() is None
    if "record" not in audit.kinds or not plain or isinstance(task, DenseLoRA):
        return []
    rng = seed.generator("canaries/records")
    classes = torch.unique(data.y)
    real = int(data.sizes.sum())
    spread = float(data.x.std())
    found = []
    for i in range(number):
        at = int(rng.integers(real))
        x, y = data.x[at].clone(), data.y[at].clone()
        kind = RECORDS[i // len(federation.party) % len(RECORDS)]
        if kind == "mislabelled":
            y = classes[(int(torch.searchsorted(classes, y)) + 1) % len(classes)]
        elif kind == "blank":
            x = torch.zeros_like(x)
        elif kind == "noise":
            x = torch.from_numpy(rng.standard_normal(tuple(x.shape))).to(x.dtype) * spread
        else:
            x = x * 1000.0
        found.append((x, y, 1000.0 if kind == "large" else 1.0))
    return found


def _gradients(
    federation: Federation, records: Sequence[tuple[Tensor, Tensor, float]]
) -> Gradients | None:
    """Gradients of the record canaries at any model: the adversary chose them."""

    if not records:
        return None
    x, y = torch.stack([r[0] for r in records]), torch.stack([r[1] for r in records])
    trainer: Any = federation.trainer_for(1)
    data = federation.clients_data

    def at(model: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found = trainer.example_gradients(torch.from_numpy(model.copy()), x, y, data)
        return np.asarray(found.numpy())

    return at


def recorded(federation: Federation, train: Train | None = None) -> tuple[Any, Any]:
    """A recording of the federation, in memory or in a temporary folder.

    `train` answers the training requests; by default the clients do.
    """

    def run(recorder: Any) -> None:
        if train is None:
            federation.run(recorder)
        else:
            run_rounds(federation.round_loop(recorder), train)

    messages = federation.rounds.rounds * (len(federation.party) + 1)
    if 4 * federation.task.layout.width * messages <= HELD_BYTES:
        memory = MemoryRecorder(**federation.about())
        run(memory)
        return memory.trace(), None
    folder = TemporaryDirectory(prefix="fedaudit-rehearsal-")
    run(Recorder(folder.name, **federation.about()))
    return Trace.open(folder.name), folder


def _draws(planted: PlantedExamples, canaries: int) -> tuple[Bools, Any]:
    """Which step drew which canary (m, steps), and the batches without them."""
    batches = np.concatenate(planted.batches) if planted.batches else np.zeros((0, 5), np.int64)
    draws = np.concatenate(planted.draws) if planted.draws else np.zeros((0, 4), np.int64)
    steps, clients = (1 + int(batches[:, c].max(initial=0)) for c in (1, 2))
    # one number for every (round, step), and for every (round, step, client)
    at, of_draw = batches[:, 0] * steps + batches[:, 1], draws[:, 0] * steps + draws[:, 1]
    column = np.unique(at)
    drawn = np.zeros((canaries, max(1, len(column))), dtype=bool)
    drawn[draws[:, 3], np.searchsorted(column, of_draw)] = True
    own = at * clients + batches[:, 2]
    order = np.argsort(own)
    row = order[np.searchsorted(own, of_draw * clients + draws[:, 2], sorter=order)]
    plain = batches.copy()
    plain[:, 3] -= np.bincount(row, minlength=len(plain))
    return drawn, plain


def _scale(federation: Federation, summed: bool) -> Floats | None:
    """Learning rate over the divisor of each client's batch sums.

    None if an upload is no such sum: the optimiser has a memory, or a protection changes it.
    """
    training = federation.training
    if training.optimizer != "sgd" or training.momentum or training.weight_decay:
        return None
    if _changed_afterwards(federation, summed):
        return None
    sizes = federation.clients_data.sizes
    divisor = np.array([training.expected_batch(int(n)) for n in sizes], dtype=np.float64)
    return training.learning_rate / divisor


def _changed_afterwards(federation: Federation, summed: bool) -> str:
    """Names of the protections that may change a row, or a sum of rows, before it is seen."""
    changing = [
        h
        for h in federation.protections
        if h.acts_at("upload") and not h.keeps_rows and not (summed and h.only_sums)
    ]
    return ", ".join(h.name or type(h).__name__ for h in changing)


def as_members(rehearsed: Sequence[Rehearsed]) -> Mapping[str, Bools]:
    """The truth of rehearsals: coins and draws."""
    found = {}
    for r, one in enumerate(rehearsed):
        found[f"coins/{r}"], found[f"drawn/{r}"] = one.coins, one.drawn
    return found
