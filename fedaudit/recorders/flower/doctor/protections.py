"""The protections of an app: what they cover, who must be honest, their guarantees."""

from __future__ import annotations

from collections.abc import Iterator

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
        if z is None:
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
        )


def _local(app: App) -> Iterator[Protection]:
    for call, line in app.local_noise:
        settings = local_settings(call)
        promise, note = None, ""
        if settings is None:
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
            note="pass its accountant's state: fedaudit audit TRACE --opacus FILE",
        )


def _ours(app: App, delta: float) -> Iterator[Protection]:
    """The protections of fedaudit.flower."""
    for name, call, _ in app.mods:
        if call is None or not name.startswith(OWN):
            continue
        if call.short == "guard_mod":
            yield _guard(call)
        elif call.short == "update_noise_mod":
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
        z = number(app.config, MULTIPLIER, -1)
    promise, note = None, "the code does not show its noise multiplier: epsilon unknown"
    if z is not None and app.rounds is None:
        note = NO_ROUNDS
    elif z is not None and app.rounds is not None:
        promise, note = update_noise(z, app.rounds, delta), ""
    return Protection(
        name="update_noise_mod",
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
