"""What each observer of an app would see, and which audits a recording allows."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.audits.planning import Setting
from fedaudit.recorders.flower.doctor.app import WITHOUT_MEAN, App
from fedaudit.recorders.flower.doctor.diagnosis import Protection
from fedaudit.recorders.flower.doctor.protections import NOISE_MODS
from fedaudit.recorders.flower.protections import CENTRAL
from fedaudit.results import Need
from fedaudit.setup.catalogue import AUDITS, find

MANY = 20
"""Assumed clients and rounds if the code does not show them: enough for every audit."""


def sees(app: App, protections: Sequence[Protection]) -> dict[str, str]:
    """Observer -> what it would see."""
    noisy = [p.sure for p in protections if p.name.startswith(CENTRAL)]
    noised = any(p.name in ("LocalDpMod", *NOISE_MODS) and p.sure for p in protections)
    single = (
        "every client's model by node, clipped and with noise"
        if noised
        else ("every client's model by node, in the clear")
    )
    if app.records:
        single += ", trained on randomised features"
    server = "sums of models, and masked ones by node" if app.summed else single
    released = "as it was averaged"
    if noisy:
        released = "with noise" if all(noisy) else "with noise, if a branch of the code adds it"
    return {
        "server": f"{server}; metrics and numbers of examples by node",
        "client": f"its own messages, and the model of every round ({released})",
        "public": f"the last model ({released})",
        "network": "who talks when, and how much; without TLS, all that the server sees",
    }


def secure_aggregation(app: App) -> str:
    """Whether the app uses Flower's secure aggregation, or could."""
    if app.summed:
        return f"in use ({app.secagg[0].short}); RecordingSecAggWorkflow records it"
    if app.kind == "legacy":
        return (
            "available, not in use: DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)) at "
            "the server, secaggplus_mod at the clients"
        )
    return (
        "not available to this app: Flower supports SecAgg+ only for the older API "
        "(NumPyClient and a strategy of flwr.server.strategy); for this one fedaudit.flower has "
        "SecureSumStrategy and secure_sum_mod"
    )


def audits(app: App) -> dict[str, tuple[bool, str]]:
    """Audit -> (whether a recording meets its needs, how to run it or what is missing)."""
    setting = Setting(
        clients=MANY,
        rounds=app.rounds or MANY,
        sums_by="SecAgg+" if app.summed else "",
        recording=True,
        no_tensors=WITHOUT_MEAN[app.trees[0]] if app.trees else "",
    )
    out = {}
    for name in sorted(AUDITS):
        audit = find(AUDITS, "audit", name)()
        missing = audit.missing(setting)
        out[name] = (missing is None, audit.on_recording if missing is None else _said(missing))
    return out


def _said(missing: Need) -> str:
    return f"{missing.what}: {missing.remedy}" if missing.remedy else missing.what


def lines(app: App) -> tuple[str, ...]:
    """Changes to the app's code that record it."""
    if app.kind == "loop":
        return (
            "from fedaudit.flower import record_mod",
            'app = ClientApp(mods=[record_mod("traces")])',
        )
    if app.summed:
        return (
            "from fedaudit.flower import RecordingSecAggWorkflow",
            f'fit_workflow=RecordingSecAggWorkflow({app.secagg[0].short}(...), "trace")',
        )
    name = "RecordingStrategy" if app.kind == "message" else "RecordingLegacyStrategy"
    return (
        f"from fedaudit.flower import {name}",
        f'strategy = {name}(strategy, "trace")',
    )
