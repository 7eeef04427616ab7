"""What protects an app: what it covers, who must be honest, what it promises."""

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

PER_RECORD = ("bitrand", "ome")
"""Mechanisms of local DP whose epsilon is that of a record; for the others, of one feature."""


def protections_of(app: App, delta: float) -> list[Protection]:
    """All that protects; epsilons at `delta`, where the protection names none of its own."""
    return [*_central(app, delta), *_local(app), *_ours(app, delta), *_others(app)]


def _central(app: App, delta: float) -> Iterator[Protection]:
    for call in app.wrappers:
        z = number(call.arguments, "noise_multiplier", 1)
        promise, note = None, "the mean must weigh all clients alike: FedAvg goes by examples"
        if z is None:
            note = "the noise multiplier is not written down: no epsilon can be told"
        elif app.rounds is None:
            note = "the number of rounds is not written down: no epsilon can be told"
        else:
            promise = central(z, app.rounds, delta)
            if "Adaptive" in call.short:
                note += "; noise is scaled to the next clipping norm, which may be smaller: what a "
                note += "recorded run promises, its report says"
        yield Protection(
            name=call.short,
            where=f"{call.file}:{call.line}",
            covers="the model that is sent on and released, for a client's whole data",
            trust="the server, which sees every update before noise is added",
            guarantee=promise,
            note=note,
        )


def _local(app: App) -> Iterator[Protection]:
    for call, line in app.local_noise:
        settings = local_settings(call)
        promise, note = None, ""
        if settings is None:
            note = "its settings are not written down: no epsilon can be told"
        elif app.rounds is None:
            note = "the number of rounds is not written down: no epsilon can be told"
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
                "who keeps masked vectors can search for them; what sums give away together "
                "is a question of its own: query_plan",
            )
    for call in app.opacus[:1]:
        yield Protection(
            name="Opacus DP-SGD",
            where=f"{call.file}:{call.line}",
            covers="single records within a client's update",
            trust="the client's own code",
            note="hand its accountant over: fedaudit audit TRACE --opacus FILE",
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
        "refuse": "such a model is not trained on, and the server is not told why",
        "warn": "it only warns: such a model is trained on all the same",
    }
    return Protection(
        name="guard_mod",
        where=f"{call.file}:{call.line}",
        covers="a client against a server that plants a model to read records out of its "
        "update; an honest model's update is not changed",
        trust=f"{CLIENT_SIDE}, not the server",
        note=acts.get(str(action), "what it does with such a model is not written down"),
    )


def _update_noise(app: App, call: Call, delta: float) -> Protection:
    z = number({**call.arguments, "": 0}, "noise_multiplier", -1)
    if z is None and "noise_multiplier" not in call.arguments:
        z = number(app.config, MULTIPLIER, -1)
    promise, note = None, "its noise multiplier is not written down: no epsilon can be told"
    if z is not None and app.rounds is None:
        note = "the number of rounds is not written down: no epsilon can be told"
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
        note = "its mechanism or epsilon is not written down"
    elif mechanism in PER_RECORD:
        note = f"{mechanism} with epsilon {each:g} a record, as it claims"
    else:
        note = f"{mechanism} with epsilon {each:g} a feature: r features claim r times as much"
    return Protection(
        name="protect_data",
        where=f"{call.file}:{call.line}",
        covers="the features of every record, from everybody who sees anything trained on "
        "them; not the labels, not the number of records",
        trust=CLIENT_SIDE,
        note=f"{note}; fedaudit.recorders.flower.data.local_guarantee says what holds",
    )
