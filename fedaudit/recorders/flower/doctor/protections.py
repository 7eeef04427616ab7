"""The protections of an app: what they cover, who must be honest, their guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fedaudit.protections.exposure_limit import LITTLE
from fedaudit.recorders.flower.doctor.app import OWN, App
from fedaudit.recorders.flower.doctor.diagnosis import Protection
from fedaudit.recorders.flower.doctor.source import Call, number
from fedaudit.recorders.flower.protections import (
    CLIENT_SIDE,
    MASK_BITS,
    MASKED_BY,
    MULTIPLIER,
    central,
    local,
    update_noise,
)

NOISE_MODS = {"update_noise_mod": None, "exposure_limit_mod": LITTLE}
"""Mods of fedaudit that clip and noise an update, and the multiplier that they have by default."""
NO_ROUNDS = "the code does not show the number of rounds: epsilon unknown"
PER_RECORD = ("bitrand", "ome")
"""Mechanisms of local DP whose epsilon is per record; for the others, it is per feature."""


def protections_of(app: App, delta: float) -> list[Protection]:
    """All protections of an app; epsilons at `delta`, unless a protection has its own."""
    return [*_central(app, delta), *_local(app), *_ours(app, delta), *_others(app)]


def _central(app: App, delta: float) -> Iterator[Protection]:
    for call in app.wrappers:
        z = number(call.arguments, "noise_multiplier", 1)
        promise, note = None, "holds for equal weights of clients; FedAvg weights by examples"
        refused = rejected(call)
        if refused:
            note = f"Flower refuses {refused}: nothing runs"
        elif call.in_branch:
            note = "a branch of the code decides whether it acts: epsilon unknown"
        elif z is None:
            note = "the code does not show the noise multiplier: epsilon unknown"
        elif app.rounds is None:
            note = NO_ROUNDS
        else:
            promise = central(z, app.rounds, delta)
            if "Adaptive" in call.short:
                note += "; Flower scales the noise to the next clipping norm, which may be smaller:"
                note += " see the report of a recorded run for its guarantee"
        yield Protection(
            name=call.short,
            where=f"{call.file}:{call.line}",
            covers="the averaged and released model, for a client's whole data",
            trust="the server, which sees every update before noise is added",
            guarantee=promise,
            note=note,
            at_best=promise is not None,
            sure=not call.in_branch,
        )


LEAST: Mapping[str, tuple[tuple[str, int, bool], ...]] = MappingProxyType(
    {
        "Fixed": (
            ("noise_multiplier", 1, True),
            ("clipping_norm", 2, False),
            ("num_sampled_clients", 3, False),
        ),
        "Adaptive": (
            ("noise_multiplier", 1, True),
            ("num_sampled_clients", 2, False),
            ("initial_clipping_norm", 3, False),
            ("clip_norm_lr", 5, False),
        ),
        "LocalDpMod": (
            ("clipping_norm", 0, False),
            ("sensitivity", 1, True),
            ("epsilon", 2, True),
            ("delta", 3, True),
        ),
    }
)
"""Settings that Flower 1.41 checks when an object is made: name, position, whether 0 is allowed."""


def rejected(call: Call) -> str:
    """The setting that Flower refuses, as far as the code shows it; empty if none."""
    for kind, settings in LEAST.items():
        if kind not in call.short:
            continue
        for name, position, zero in settings:
            value = number(call.arguments, name, position)
            if value is not None and (value < 0 or (value == 0 and not zero)):
                return f"{name} = {value:g}"
        quantile = number(call.arguments, "target_clipped_quantile", 4)
        if kind == "Adaptive" and quantile is not None and not 0 <= quantile <= 1:
            return f"target_clipped_quantile = {quantile:g}"
    return ""


def _local(app: App) -> Iterator[Protection]:
    for call, line in app.local_noise:
        settings = local_settings(call)
        promise, note = None, ""
        if refused := rejected(call):
            note = f"Flower refuses {refused}: nothing runs"
        elif call.in_branch:
            note = "a branch of the code decides whether it acts: epsilon unknown"
        elif settings is None:
            note = "the code does not show its settings: epsilon unknown"
        elif app.rounds is None:
            note = NO_ROUNDS
        else:
            clip, sensitivity, each, tiny = settings
            promise = local(clip, sensitivity, each, tiny, app.rounds)
            note = f"set to epsilon {each:g} per message; a client sends {app.rounds}"
        yield Protection(
            name="LocalDpMod",
            where=f"{call.file}:{line}",
            covers="every tensor of an update; not the metrics, not the number of examples",
            trust="the client's own code",
            guarantee=promise,
            note=note,
            sure=not call.in_branch,
        )


def local_settings(call: Call) -> tuple[float, ...] | None:
    """Clipping norm, sensitivity, epsilon and delta of a LocalDpMod; None if one is unknown."""
    keys = ("clipping_norm", "sensitivity", "epsilon", "delta")
    values = [number(call.arguments, k, i) for i, k in enumerate(keys)]
    known = tuple(v for v in values if v is not None)
    return known if len(known) == len(keys) else None


def _others(app: App) -> Iterator[Protection]:
    for call in app.secagg[:1]:
        if app.kind == "legacy":
            yield Protection(
                name="SecAgg+",
                where=f"{call.file}:{call.line}",
                covers="the tensors of single updates: the server opens sums; not the metrics, "
                "not the number of examples",
                trust=MASKED_BY,
                note=f"pairwise masks have seeds of at most {MASK_BITS} bits in Flower 1.41: "
                "a server that keeps masked vectors can search for them; the audit query_plan "
                "checks what sums reveal together",
            )
    for call in app.opacus[:1]:
        yield Protection(
            name="Opacus DP-SGD",
            where=f"{call.file}:{call.line}",
            covers="single records within a client's update",
            trust="the client's own code",
            note="pass its accountant's state: `fedaudit.audit(TRACE, opacus=FILE)`",
        )


def _ours(app: App, delta: float) -> Iterator[Protection]:
    """The protections of fedaudit.flower."""
    for name, call, _ in app.mods:
        if call is None or not name.startswith(OWN):
            continue
        if call.short == "guard_mod":
            yield _guard(call)
        elif call.short in NOISE_MODS:
            yield _update_noise(app, call, delta)
    for call in app.records[:1]:
        yield _local_dp(call)


def _guard(call: Call) -> Protection:
    action = call.arguments.get("action", "refuse")
    acts = {
        "refuse": "it refuses such a model, and does not give the server a reason",
        "warn": "it only warns: the client still trains on such a model",
    }
    return Protection(
        name="guard_mod",
        where=f"{call.file}:{call.line}",
        covers="a client against a server that plants a model to read records out of its "
        "update; an honest model's update is not changed",
        trust=f"{CLIENT_SIDE}, not the server",
        note=acts.get(str(action), "the code does not show what it does with such a model"),
    )


def _update_noise(app: App, call: Call, delta: float) -> Protection:
    z = number({**call.arguments, "": 0}, "noise_multiplier", -1)
    if z is None and "noise_multiplier" not in call.arguments:
        z = NOISE_MODS[call.short] or number(app.config, MULTIPLIER, -1)
    promise, note = None, "the code does not show its noise multiplier: epsilon unknown"
    if z is not None and app.rounds is None:
        note = NO_ROUNDS
    elif z is not None and app.rounds is not None:
        promise, note = update_noise(z, app.rounds, delta), ""
    return Protection(
        name=call.short,
        where=f"{call.file}:{call.line}",
        covers="every tensor of an update; not the metrics, not the number of examples",
        trust=CLIENT_SIDE,
        guarantee=promise,
        note=note,
    )


def _local_dp(call: Call) -> Protection:
    mechanism = call.arguments.get("mechanism", "grr")
    each = number({"epsilon": 1.0, **call.arguments}, "epsilon", -1)
    if each is None or not isinstance(mechanism, str):
        note = "the code does not show its mechanism or epsilon"
    elif mechanism in PER_RECORD:
        note = f"{mechanism} with a claimed epsilon of {each:g} per record"
    else:
        note = f"{mechanism} with epsilon {each:g} per feature: r times that for r features"
    return Protection(
        name="protect_data",
        where=f"{call.file}:{call.line}",
        covers="the features of every record, from everybody who sees anything trained on "
        "them; not the labels, not the number of records",
        trust=CLIENT_SIDE,
        note=f"{note}; fedaudit.recorders.flower.data.local_guarantee computes the guarantee",
    )
