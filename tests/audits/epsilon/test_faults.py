"""A zoo of faults in DP-SGD engines: each is caught, in a sentence about its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedaudit.accounting import Exposure
from fedaudit.federation.engine import Federation
from fedaudit.federation.local import trainer as trainers
from fedaudit.federation.local.schedule import plan
from fedaudit.federation.local.trainer import Trainer
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.reporting.findings import judge_all, settled

CLIP = 0.5
BATCH = 16
SIZES = (30 * 48, 48, 48 * 48, 48, 48 * 4, 4)  # weights and biases in turn
LAYERS = tuple((sum(SIZES[:i]), sum(SIZES[: i + 1])) for i in range(len(SIZES)))
BIASES = LAYERS[1::2]


# -- faults in the noise ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scaled(DPSGD):
    """Noise of another size than declared."""

    factor: float = 1.0

    def step(self, sums, **at):
        noise = torch.zeros_like(sums)
        super().step(noise, **at)
        sums.add_(noise, alpha=self.factor)


@dataclass(frozen=True, kw_only=True)
class Sparing(DPSGD):
    """No noise on some columns."""

    spared: tuple[tuple[int, int], ...] = ()

    def step(self, sums, **at):
        noise = torch.zeros_like(sums)
        super().step(noise, **at)
        for low, high in self.spared:
            noise[:, low:high] = 0
        sums.add_(noise)


class OneSeedForClients(DPSGD):
    def step(self, sums, *, clients, **at):
        noise = torch.zeros_like(sums[:1])
        super().step(noise, clients=clients[:1], **at)
        sums.add_(noise)


class OneSeedForRounds(DPSGD):
    def step(self, sums, *, round_number, step, clients, seed):
        draw = seed.torch_generators("fixed", clients, step)
        noise = torch.stack([torch.randn(sums.shape[1], generator=g) for g in draw])
        sums.add_(noise, alpha=self.clip)


class OneSeedForTensors(DPSGD):
    """A generator that begins anew for every tensor."""

    def step(self, sums, **at):
        noise = torch.zeros_like(sums)
        super().step(noise, **at)
        first = noise[:, slice(*LAYERS[0])].clone()
        for low, high in LAYERS[1:]:
            size = min(high - low, first.shape[1])
            noise[:, low : low + size] = first[:, :size]
        sums.add_(noise)


# -- faults in the clipping ------------------------------------------------------------------------


class Clipping(Trainer):
    """Clips records and gradient canaries of a batch together, in `bounded`."""

    def _sums(self, kernel, p, x, y, w, z, person, planted=None):
        self.each = trainers.Stacked(self.task).per_example(p, x, y, w, z)
        self.weight = w
        return torch.zeros_like(p)

    def _with_planted(self, sums, planted):
        columns, values, w = planted
        rows = torch.zeros(*w.shape, sums.shape[1]).scatter_add_(2, columns, values)
        each = torch.cat([self.each, rows], dim=1)
        return self.bounded(each, torch.cat([self.weight, w], dim=1))

    def bounded(self, each, w):
        raise NotImplementedError

    def cut(self, each):
        return self._clipped(each)


class AfterAveraging(Clipping):
    def bounded(self, each, w):
        mean = torch.einsum("kb,kbd->kd", w, each) / BATCH
        return self.cut(mean.unsqueeze(1)).squeeze(1) * BATCH


class PerLayer(Clipping):
    def bounded(self, each, w):
        parts = [self.cut(each[:, :, low:high]) for low, high in LAYERS]
        return torch.einsum("kb,kbd->kd", w, torch.cat(parts, dim=2))


class Biases(Clipping):
    def bounded(self, each, w):
        cut = self.cut(each)
        for low, high in BIASES:
            cut[:, :, low:high] = each[:, :, low:high]
        return torch.einsum("kb,kbd->kd", w, cut)


class MicroBatches(Clipping):
    def bounded(self, each, w):
        each = each * w.unsqueeze(2)
        padding = -each.shape[1] % 4
        each = torch.nn.functional.pad(each, (0, 0, 0, padding))
        means = each.unflatten(1, (-1, 4)).mean(dim=2)
        return self.cut(means).sum(dim=1) * 4


class SquaredNorm(Clipping):
    """Divides by the squared norm: large gradients vanish, some small ones pass."""

    def bounded(self, each, w):
        squared = each.square().sum(dim=-1, keepdim=True)
        cut = each * (self.clip / squared.clamp_min(1e-12)).clamp_max(1.0)
        return torch.einsum("kb,kbd->kd", w, cut)


class KernelOnly(Trainer):
    """The kernel for records does not clip; gradient canaries are clipped beside it."""

    def _sums(self, kernel, p, x, y, w, z, person, planted=None):
        return kernel.sums(p, x, y, w, z)


def clipping(kind: type[Trainer]) -> type[Federation]:
    """A federation whose clients clip by `kind`."""

    class Faulty(Federation):
        def trainer_for(self, copies):
            t: Any = super().trainer_for(copies)
            return kind(t.task, t.training, t.seed, clip=t.clip, step=t.step, tier="stacked")

    return Faulty


# -- faults in sampling and accounting -------------------------------------------------------------


def shuffled(training, clients, starts, sizes, seed, number, person=None, extra=None):
    """Batches of equal shares of a permutation, as a data loader draws them."""
    made = plan(training, clients, starts, sizes, seed, number, person, extra)
    index, valid = np.zeros_like(made.index), np.zeros_like(made.valid)
    who = clients[made.order]
    pools = sizes[who] + (0 if extra is None else extra[who])
    most = max(int(-(-pool // made.steps[k])) for k, pool in enumerate(pools))
    index = np.zeros((*made.index.shape[:2], most), dtype=np.int64)
    valid = np.zeros(index.shape, dtype=bool)
    for k, client in enumerate(who):
        rng = np.random.default_rng([number, int(client)])
        order = rng.permutation(pools[k])
        for s, part in enumerate(np.array_split(order, made.steps[k])):
            index[k, s, : len(part)] = part + starts[client]
            valid[k, s, : len(part)] = True
    return replace(made, index=index, valid=valid)


def full_batches_only(training, clients, starts, sizes, seed, number, person=None, extra=None):
    """Poisson batches; those with fewer records than expected are dropped."""
    made = plan(training, clients, starts, sizes, seed, number, person, extra)
    real = made.index < (starts + sizes)[clients[made.order]][:, None, None]
    full = (made.valid & real).sum(axis=2) >= BATCH
    return replace(made, valid=made.valid & full[:, :, None])


def seeded_anew(training, clients, starts, sizes, seed, number, person=None, extra=None):
    """A sampler that begins anew in every round."""
    return plan(training, clients, starts, sizes, seed, 1, person, extra)


def weighted(training, clients, starts, sizes, seed, number, person=None, extra=None):
    """Every second record is drawn twice as often as the others; batches are as large."""
    made = plan(training, clients, starts, sizes, seed, number, person, extra)
    who = clients[made.order]
    pools = sizes[who] + (0 if extra is None else extra[who])
    every = np.arange(pools.max())
    rate = np.where(every % 2 == 1, 4 / 3, 2 / 3) * BATCH / 80
    uniform = np.random.default_rng(number).random((len(who), made.index.shape[1], len(every)))
    drawn = (uniform < rate) & (every < pools[:, None, None])
    most = int(drawn.sum(axis=2).max())
    first = np.argsort(~drawn, axis=2, kind="stable")[:, :, :most]
    valid = np.arange(most) < drawn.sum(axis=2)[:, :, None]
    return replace(made, index=np.where(valid, first + starts[who][:, None, None], 0), valid=valid)


class UncountedEpochs(Federation):
    """Two passes in every round, of which one is accounted for."""

    def exposures(self):
        return tuple(
            Exposure(sampling_rate=e.sampling_rate, steps=e.steps // 2, rounds=e.rounds)
            for e in super().exposures()
        )


@dataclass(frozen=True)
class Fault:
    """A fault, the measure that catches it, and words of its sentence."""

    name: str
    measure: str
    says: str
    hook: Any = None
    kind: type[Federation] = Federation
    plan: Any = None
    training: ClassVar[Any] = None


FAULTS = (
    Fault("noise divided by the batch twice", "noise (0.weight)", "divided by the batch once more",
          Scaled(clip=CLIP, factor=1 / BATCH)),
    Fault("z instead of z C", "noise (0.weight)", "without the clip", Scaled(clip=2.0, factor=0.5)),
    Fault("no noise on one layer", "noise (4.weight)", "too little noise on 4.weight, or none",
          Sparing(clip=CLIP, spared=(LAYERS[4],))),
    Fault("no noise on biases", "noise (0.bias)", "too little noise on 0.bias, or none",
          Sparing(clip=CLIP, spared=BIASES)),
    Fault("one noise seed for all clients", "noise_between_clients", "Clients share their noise",
          OneSeedForClients(clip=CLIP)),
    Fault("one noise seed for all rounds", "noise_between_rounds", "repeats from round to round",
          OneSeedForRounds(clip=CLIP)),
    Fault("one noise seed for all tensors", "noise_between_tensors", "Tensors share their noise",
          OneSeedForTensors(clip=CLIP)),
    Fault("noise 5 % too small", "noise (0.weight)", "There is less noise than declared",
          Scaled(clip=CLIP, factor=0.95)),
    Fault("clipping after averaging", "gain (norm 1)", "an average", kind=clipping(AfterAveraging)),
    Fault("per-layer clipping with the whole C", "gain (norm 1000)", "Clipping is broken",
          kind=clipping(PerLayer)),
    Fault("biases not clipped", "gain (0.bias, norm 1000)", "leaves out 0.bias",
          kind=clipping(Biases)),
    Fault("micro-batches clipped", "gain (norm 1)", "a micro-batch", kind=clipping(MicroBatches)),
    Fault("divided by the squared norm", "gain (norm 1000)", "not that of the declared norm",
          kind=clipping(SquaredNorm)),
    Fault("records not clipped", "diverged_rounds", "clipping is broken or missing",
          kind=clipping(KernelOnly)),
    Fault("shuffling accounted as Poisson", "spread_of_batch_sizes", "batches are shuffled",
          plan=shuffled),
    Fault("sampler seeded anew every round", "spread_of_draws", "same batches come again",
          plan=seeded_anew),
    Fault("weighted sampler", "spread_of_draws", "drawn more often than others", plan=weighted),
    Fault("drop_last", "batch_sizes", "records are dropped", plan=full_batches_only),
    Fault("uncounted epochs", "steps", "more steps than were accounted for", kind=UncountedEpochs),
    Fault("delta at the wrong n", "delta_times_records", "Delta is too large",
          DPSGD(clip=CLIP, delta=1 / BATCH)),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_fault_is_caught_in_a_sentence_about_its_kind(
    fault, monkeypatch, federation, audited
):
    if fault.plan is not None:
        monkeypatch.setattr(trainers, "plan", fault.plan)
    hook = fault.hook or DPSGD(clip=CLIP)
    result = audited(federation(fault.kind, hook=hook), canaries=1000)
    found = [f for f in judge_all([settled(result)]) if f.verdict == "disagreement"]
    said = {f.measure: f.statement for f in found}
    assert fault.measure in said
    assert fault.says in said[fault.measure]
    others = {"share their noise", "Noise repeats", "leaves out"}
    others -= {kind for kind in others if kind.lower() in f"noise {fault.says}".lower()}
    assert not [v for v in said.values() if any(kind in v for kind in others)]


def test_no_fault_no_contradiction(federation, audited):
    result = audited(federation(), canaries=1000)
    assert {f.verdict for f in judge_all([settled(result)])} == {"no_evidence"}
    declared = result.bounds["declared"].value  # 1,000 canaries show 3.6 of 11.1
    assert declared / 4 < result.estimates["epsilon"].low < declared
    assert result.estimates["delta_times_records"].value == pytest.approx(80 * 1e-5)
