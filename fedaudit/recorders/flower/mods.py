"""Protections at a client, as Flower's mods.

    app = ClientApp(mods=[record_mod("traces"), update_noise_mod(clip=1.0, noise_multiplier=2.0)])
    app = ClientApp(mods=[allocated_noise_mod("dp_sgd.toml")])
    app = ClientApp(mods=[record_mod("traces"), guard_mod()])

`guard_mod` checks a model before training and refuses one that looks planted. `update_noise_mod`
clips an update and adds Gaussian noise before it leaves. `exposure_limit_mod` also drops what a
single record drives, while torch trains. `allocated_noise_mod` passes the training
code its own noise multiplier, from a file of `fedaudit allocate`. Missing settings come from the
run config, in Flower's spelling: `update-noise-clip`. The operating system seeds the noise, so
nobody can draw it again.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeGuard

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from fedaudit import settings
from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.files import Unreadable, read_toml
from fedaudit.matching import match_clients
from fedaudit.protections.exposure_limit import LITTLE, ExposureLimit
from fedaudit.protections.guard import Calibration, GuardReport, guard
from fedaudit.recorders.flower.arrays import misfit, named
from fedaudit.recorders.flower.protections import CLIP, MULTIPLIER

_log = logging.getLogger(__name__)

MULTIPLIER_KEY, CLIP_KEY = "noise-multiplier", "clip"
PARTITION, CLIENT = "partition-id", "client-name"
"""Keys of a node's config: its partition number, and its name in an allocation."""
NAMED = "allocation"
"""The section of a dp_sgd.toml that names its clients."""
CORRECT = "correct the run config"
LAST = "fedaudit-guard"
"""The record of a node's state that holds the model it received last."""


def update_noise_mod(*, clip: float | None = None, noise_multiplier: float | None = None) -> Mod:
    """Clip the whole update to `clip` and add N(0, (z clip)^2) to every floating-point number.

    Replacing a client's data moves a clipped update by at most 2 `clip`; the guarantee over a run
    is `protections.update_noise`. Counters and other integers are sent back as received, since the
    guarantee does not cover them.
    """

    def noised(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if not message.metadata.message_type.startswith(MessageType.TRAIN) or reply.has_error():
            return reply
        return _with_noise(message, reply, *_noise_settings(clip, noise_multiplier, context))

    return noised


def _noise_settings(
    clip: float | None, noise_multiplier: float | None, context: Context
) -> tuple[float, float]:
    """Clip norm and noise multiplier, from the arguments of a mod or the run config."""
    bound = _setting(clip, context, CLIP)
    z = _setting(noise_multiplier, context, MULTIPLIER)
    settings.require(settings.Positive, ConfigError, remedy=CORRECT, **{CLIP: bound})
    settings.require(settings.NonNegative, ConfigError, remedy=CORRECT, **{MULTIPLIER: z})
    return bound, z


def _with_noise(message: Message, reply: Message, clip: float, z: float) -> Message:
    """The reply with its update clipped and noised."""
    received, sent = message.content.array_records, reply.content.array_records
    if len(received) != 1 or len(sent) != 1:
        raise UsageError(
            "the update cannot be found in these records",
            expected="one record of arrays in the message and one in the reply",
            got=f"{len(received)} and {len(sent)}",
            remedy="do not send further arrays, or remove this mod",
        )
    before = named(next(iter(received.values())))
    key, record = next(iter(sent.items()))
    after = named(record)
    wrong = misfit(after, {k: a.shape for k, a in before.items()})
    if wrong:
        raise UsageError(
            "the update cannot be computed from this reply",
            expected="the tensors that were received",
            got=wrong,
            remedy="send back every trained tensor under its name",
        )
    noisy = _noised(before, after, clip, z)
    reply.content[key] = ArrayRecord({k: Array(a) for k, a in noisy.items()})
    return reply


def exposure_limit_mod(
    *,
    clip: float | None = None,
    noise_multiplier: float = LITTLE,
    least_records: int = 2,
    refuse_above: float | None = None,
) -> Mod:
    """`protections.exposure_limit` around torch training in this process.

    Units of linear layers and convolutions that fewer than `least_records` of a batch drive are
    dropped, then the update is clipped and noised as by `update_noise_mod`, whose guarantee holds.
    If no layer was seen training, nothing could be dropped: the client declines to answer.
    """
    limit = ExposureLimit(
        noise_multiplier=noise_multiplier, least_records=least_records, refuse_above=refuse_above
    )

    def limited(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        with limit.dropping() as watched:
            reply = call_next(message, context)
        if reply.has_error():
            return reply
        if not watched.units:
            _log.warning("fedaudit exposure_limit: no layer trained in this process; not answered")
            return _declined(message, "the client declined to answer")
        if watched.unread:
            kinds = ", ".join(sorted(watched.unread))
            _log.info("fedaudit exposure_limit: nothing is dropped in layers of kind %s", kinds)
        return _with_noise(message, reply, *_noise_settings(clip, limit.noise_multiplier, context))

    return limited


def _declined(message: Message, why: str) -> Message:
    """An error in place of an answer, without a reason that tells the server more."""
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, why), reply_to=message)


def _noised(before: Any, after: Any, clip: float, z: float) -> dict[str, Any]:
    """Named arrays: the received model plus the clipped update plus noise."""
    rng = np.random.default_rng()  # seeded by the operating system
    floats = [k for k, a in before.items() if a.dtype.kind == "f"]
    updates = {k: after[k].astype(np.float64) - before[k] for k in floats}
    length = math.sqrt(sum(float(np.square(u).sum()) for u in updates.values()))
    # an update that is not finite cannot be clipped: send none of it
    scale = min(1.0, clip / length) if 0 < length < math.inf else 0.0
    out = dict(before)
    for k, u in updates.items():
        kept = scale * u if scale else np.zeros_like(u)
        noise = rng.normal(0.0, z * clip, u.shape) if z else 0.0
        out[k] = np.asarray(before[k] + kept + noise, dtype=before[k].dtype)
    return {k: np.asarray(a) for k, a in out.items()}


def _setting(given: float | None, context: Context, key: str) -> float:
    value = given if given is not None else context.run_config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(
            f"{key} is not set",
            expected=f"a number for {key} in [tool.flwr.app.config]",
            got=repr(value),
            remedy=f"{key} = 1.0",
        )
    return float(value)


def allocated_noise_mod(
    allocation: str | os.PathLike[str] | Sequence[float],
    *,
    partitions: Sequence[str] | None = None,
) -> Mod:
    """Pass the training code of this node its own noise multiplier.

    `allocation` is the dp_sgd.toml that `fedaudit allocate` wrote, or one multiplier per client. If
    the file names its clients, the node's `client-name` selects one; simulated nodes have only a
    number, so `partitions` gives a name for each `partition-id`. Without names, the order is that
    of `partition-id`. The training function reads `noise-multiplier` (and `clip`, if the file has
    one) from the message's config and uses it in its DP-SGD.
    """
    found = _Allocation.of(allocation)
    if partitions is not None:
        found.check_partitions(partitions)

    def allocated(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        multiplier = found.own(context.node_config, partitions)
        records = message.content.config_records
        key, config = next(iter(records.items()), ("config", ConfigRecord()))
        config[MULTIPLIER_KEY] = multiplier
        if found.clip is not None:
            config[CLIP_KEY] = found.clip
        message.content[key] = config
        return call_next(message, context)

    return allocated


@dataclass(frozen=True)
class _Allocation:
    """Multipliers, the names of their clients (empty without names), and the clipping norm."""

    multipliers: tuple[float, ...]
    names: tuple[str, ...] = ()
    clip: float | None = None

    @classmethod
    def of(cls, given: str | os.PathLike[str] | Sequence[float]) -> Self:
        if not isinstance(given, str | os.PathLike):
            return cls(tuple(float(z) for z in given))
        file = Path(given)
        try:
            raw = read_toml(file)
            own = raw["protections"]["dp_sgd"]
            many = own["noise_multiplier"]
            multipliers = tuple(float(z) for z in (many if isinstance(many, list) else [many]))
            clip = None if own.get("clip") is None else float(own["clip"])
            named = raw[NAMED]["clients"] if NAMED in raw else 0
            names = () if isinstance(named, int) else tuple(str(n) for n in named)
        except (Unreadable, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{file} does not hold an allocation",
                expected="[protections.dp_sgd] with noise_multiplier, one per client, and their "
                "names in [allocation], clients",
                got=f"{type(error).__name__}: {error}",
                remedy="fedaudit allocate CLIENTS.csv ... writes dp_sgd.toml",
            ) from None
        if names and not len(set(names)) == len(names) == len(multipliers):
            raise ConfigError(
                f"the names in {file} do not fit its multipliers",
                expected=f"{len(multipliers)} names in allocation.clients, each once",
                got=f"{len(names)}, of which {len(set(names))} are different",
                remedy="write the file again: fedaudit allocate CLIENTS.csv ...",
            )
        return cls(multipliers, names, clip)

    def check_partitions(self, partitions: Sequence[str]) -> None:
        """Refuse names of partitions that are not those of the file, each once."""
        if not self.names or len(set(partitions)) < len(partitions):
            raise ConfigError(
                "the names of the partitions are not those of the allocation",
                expected=f"each once: {', '.join(self.names) or 'none, the file has no names'}",
                got=", ".join(partitions),
                remedy="name every client once",
            )
        match_clients(
            dict(zip(self.names, self.multipliers, strict=True)),
            partitions,
            what="the allocated noise",
            values_in="the allocation",
            clients_in="partitions",
        )

    def own(self, node: Mapping[str, Any], partitions: Sequence[str] | None) -> float:
        """The multiplier of the node with this config."""
        if self.names:
            return self.multipliers[self.names.index(self._name(node, partitions))]
        number = node.get(PARTITION)
        if not _is_number(number, len(self.multipliers)):
            raise ConfigError(
                "the allocation has no multiplier for this node",
                expected=f"a {PARTITION} from 0 to {len(self.multipliers) - 1} in the node config",
                got=repr(number),
                remedy=f"flower-supernode --node-config '{PARTITION}=0 ...'",
            )
        return self.multipliers[number]

    def _name(self, node: Mapping[str, Any], partitions: Sequence[str] | None) -> str:
        """The node's name: from its config, or from `partitions`."""
        name, number = node.get(CLIENT), node.get(PARTITION)
        if name is None and partitions is not None and _is_number(number, len(partitions)):
            name = partitions[number]
        if name is None:
            # a number does not suffice: partitions may be ordered differently from the file
            raise ConfigError(
                "the allocation names its clients, and this node has no name",
                expected=f"{CLIENT} in the node config: {', '.join(self.names)}",
                got=", ".join(f"{k}={v!r}" for k, v in node.items()) or "an empty node config",
                remedy=f"flower-supernode --node-config '{CLIENT}=\"{self.names[0]}\" ...'; in a "
                "simulation allocated_noise_mod(..., partitions=[names by partition-id])",
            )
        if name not in self.names:
            raise ConfigError.unknown(f"the allocation has no client {name!r}", name, self.names)
        return str(name)


def _is_number(value: Any, below: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def guard_mod(
    *,
    level: float = 0.01,
    calibration: str | os.PathLike[str] | None = None,
    action: Literal["refuse", "warn"] = "refuse",
    compare: bool = True,
    strict: bool = False,
    reports: str | os.PathLike[str] | None = None,
) -> Mod:
    """Check every model before training (`fedaudit guard`).

    A model that looks planted is refused: the training function is not called, and the server gets
    an error without a reason. With "warn", a warning is logged and training goes on. `compare`
    stores the received model in the node's state and also checks the change since the last one;
    refused and non-finite models are not stored. A model that cannot be checked (other shapes than
    the last one, vectors alone) is refused like a planted one. If the checks have nothing to say,
    for example because layers are too narrow, a warning is logged and training goes on; `strict`
    refuses such a model too. `reports`: a local folder for the report of every model. The check
    does not use the client's records: a mod does not have them.
    """
    settings.require(Literal["refuse", "warn"], action=action)
    table = None if calibration is None else Calibration.read(calibration)

    def guarded(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        received = message.content.array_records
        if not received:
            return call_next(message, context)  # nothing to train on
        # check tensors of all records: a detector may travel in a separate record
        model = {
            name if len(received) == 1 else f"{key}/{name}": array
            for key, record in received.items()
            for name, array in named(record).items()
        }
        before = context.state.array_records.get(LAST) if compare else None
        last = None if before is None else named(before)
        found = ""
        report = None
        try:
            report = guard(model, last, level=level, calibration=table, sent_as_model=True)
        except DataError as error:
            found = f"cannot be checked: {error.what} ({error.got})"
        if report is not None:
            if reports is not None:
                _file(report, Path(reports) / f"run-{context.run_id}" / f"node-{context.node_id}")
            if report.flagged:
                found = _finding(report)
            elif report.verdict == "nothing_to_say":
                unsaid = f"nothing to say. {'; '.join(report.notes)}"
                if strict:
                    found = unsaid
                else:
                    _log.warning("fedaudit guard: %s", unsaid)
        if found:
            _log.warning("fedaudit guard: %s", found)
            if action == "refuse":
                return _declined(message, "the client declined to train on this model")
        if compare and report is not None and report.verdict != "not_finite":
            context.state[LAST] = ArrayRecord({k: Array(a) for k, a in model.items()})
        return call_next(message, context)

    return guarded


def _finding(report: GuardReport) -> str:
    """Message for the node's log."""
    if report.p_value is None:
        return f"{report.verdict}: {report.notes[0]}"
    where = ", ".join(f"{c.name} in {c.where}" for c in report.alarms)
    return f"{report.verdict} (p = {report.p_value:.2g}) {where}"


def _file(report: GuardReport, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + sum(1 for _ in folder.glob("*.json"))
    (folder / f"{number:05d}.json").write_text(report.to_json(), encoding="utf-8")
