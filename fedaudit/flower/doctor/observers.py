"""Who would see what of an app, and what a recording of it could be asked."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.flower.doctor.app import WITHOUT_MEAN, App
from fedaudit.flower.doctor.diagnosis import Protection
from fedaudit.flower.protections import CENTRAL


def sees(app: App, protections: Sequence[Protection]) -> dict[str, str]:
    """Observer -> what it would see."""
    noisy = any(p.name.startswith(CENTRAL) for p in protections)
    noised = any(p.name in ("LocalDpMod", "update_noise_mod") for p in protections)
    single = (
        "every client's model by node, clipped and with noise"
        if noised
        else ("every client's model by node, in the clear")
    )
    if app.records:
        single += ", trained on randomised features"
    server = "sums of models, and masked ones by node" if app.summed else single
    released = "with noise" if noisy else "as it was averaged"
    return {
        "server": f"{server}; metrics and numbers of examples by node",
        "client": f"its own messages, and the model of every round ({released})",
        "public": f"the last model ({released})",
        "network": "who talks when, and how much; without TLS, all that the server sees",
    }


def secure_aggregation(app: App) -> str:
    """Whether Flower's own is in use, or could be."""
    if app.summed:
        return f"in use ({app.secagg[0].short}); RecordingSecAggWorkflow records it"
    if app.kind == "legacy":
        return (
            "available, not in use: DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)) at "
            "the server, secaggplus_mod at the clients"
        )
    return (
        "not available to this app: Flower has SecAgg+ for the older API alone "
        "(NumPyClient and a strategy of flwr.server.strategy)"
    )


def audits(app: App) -> dict[str, tuple[bool, str]]:
    """Every audit -> whether its needs would be met by a recording, and how, or what is missing."""
    trees = f"the app sends {WITHOUT_MEAN[app.trees[0]]}" if app.trees else ""
    named = "names senders: ask what a shuffler would change, --as shuffle"
    records = "with --model package.module:function and --data FILE"
    return {
        "active_membership": (False, trees)
        if trees
        else (True, f"{records}: games with a server that plants weights"),
        "attribution": (
            False,
            "marks are looked for with their owner's keys, which a recording does not hold: run "
            "the federation with fedaudit and [marks]",
        ),
        "coverage": (True, "what left a client outside of every declared protection"),
        "fingerprint": (False, trees or "the server sees sums only")
        if trees or app.summed
        else (True, f"the trace {named}"),
        "query_plan": (True, "on the sums that were asked for")
        if app.summed
        else (False, "nothing is summed by secure aggregation"),
        "topology_inference": (
            False,
            "it learns from federations that it simulates, and a recording does not say how "
            "clients train: rebuild the federation as a config of fedaudit",
        ),
        "two_stage_membership": (False, trees) if trees else (True, records),
    }


def lines(app: App) -> tuple[str, ...]:
    """What to change to record the app."""
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
