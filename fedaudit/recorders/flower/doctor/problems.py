"""Protections that do not work together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from fedaudit.recorders.flower.doctor.app import OWN, App
from fedaudit.recorders.flower.doctor.protections import local_settings, rejected
from fedaudit.recorders.flower.doctor.source import number
from fedaudit.recorders.flower.protections import CENTRAL

OUR_MODS = (
    "record_mod",
    "guard_mod",
    "update_noise_mod",
    "exposure_limit_mod",
    "allocated_noise_mod",
    "secure_sum_mod",
)


CLIPPING = {
    "fixedclipping_mod": "clipping norm",
    "adaptiveclipping_mod": "clipping norm",
    "LocalDpMod": "arrays to clip in their answers",
}
"""Flower's mods that answer with an error where a message lacks what they need."""


def problems_of(app: App) -> list[str]:
    """Protections of an app that do not work as they seem to."""
    return [*_local_noise(app), *_strategies(app), *_secure_aggregation(app), *_ours(app)]


def _local_noise(app: App) -> Iterator[str]:
    """Settings for which LocalDpMod does not provide its epsilon."""
    for call, _ in app.local_noise:
        settings = local_settings(call)
        if settings is None or app.rounds is None or rejected(call):
            continue  # unknown settings: no epsilon to question
        clip, sensitivity, each, _ = settings
        if sensitivity < 2 * clip:
            yield (
                f"LocalDpMod: sensitivity {sensitivity:g} is below twice the clipping norm "
                f"{clip:g}, by which replacing a client's data can move its update: "
                f"epsilon {each:g} per message does not hold"
            )
        if each > 1:
            yield (
                f"LocalDpMod: its formula for the noise is proved only for epsilon up to 1, "
                f"not for {each:g}"
            )


def _strategies(app: App) -> Iterator[str]:
    """One half of client-side clipping, noise of zero, a loop without a strategy."""
    names = app.mod_names
    for side, mod in (("Fixed", "fixedclipping_mod"), ("Adaptive", "adaptiveclipping_mod")):
        wrapper = f"{CENTRAL}ClientSide{side}Clipping"
        used = any(c.short == wrapper for c in app.wrappers)
        if used and mod not in names and "" not in names:
            yield f"{wrapper} without {mod} at the clients: nobody clips, there is no guarantee"
        if mod in names and not used:
            yield f"{mod} without {wrapper} at the server: clients answer with errors only"
    for call in (*app.wrappers, *(c for c, _ in app.local_noise)):
        if refused := rejected(call):
            yield f"{call.short}: Flower refuses {refused}, and the app does not start"
    newer = [m for m, _, _ in app.app_mods if m.startswith("flwr.clientapp.")]
    for name in dict.fromkeys(m.rsplit(".", 1)[-1] for m in newer):
        if name in CLIPPING:
            yield (
                f"{name} on the whole ClientApp also acts on evaluation, whose messages have no "
                f"{CLIPPING[name]}: every evaluation is an error; @app.train(mods=[...])"
            )
    for call in app.wrappers:
        if number(call.arguments, "noise_multiplier", 1) == 0:
            yield f"{call.short} with a noise multiplier of 0 gives no guarantee"
    if app.kind == "loop":
        yield (
            "no strategy found: record an app that uses the grid directly at its clients, with "
            "record_mod"
        )


def _secure_aggregation(app: App) -> Iterator[str]:
    """One half of SecAgg+, or SecAgg+ with an API that does not support it."""
    names = app.mod_names
    mods = names & {"secaggplus_mod", "secagg_mod"}
    if mods and not app.secagg:
        yield f"{min(mods)} without SecAggPlusWorkflow at the server"
    if app.secagg and not mods and "" not in names:
        yield (
            f"{app.secagg[0].short} without secaggplus_mod at the clients: they cannot "
            "answer, and no round is aggregated"
        )
    if app.kind != "legacy" and (app.secagg or mods):
        yield "SecAgg+ works only with the older API: it does nothing for this app's strategy"


def _ours(app: App) -> Iterator[str]:
    """Wrong use of fedaudit's own mods."""
    own = [(name.rsplit(".", 1)[-1], call) for name, call, _ in app.mods if name.startswith(OWN)]
    for name, call in own:
        if call is None and name in OUR_MODS:
            yield f"{name} is not called: mods=[{name}(...)]"
    order = [name for name, _ in own]
    if {"guard_mod", "record_mod"} <= set(order) and order.index("guard_mod") < order.index(
        "record_mod"
    ):
        yield "guard_mod before record_mod: refused rounds are not recorded"
