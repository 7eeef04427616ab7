"""Cost of the shadows, what the audit needs in a config, and how many clients it needs."""

from __future__ import annotations

import math
from dataclasses import replace

from fedaudit.audits.planning import Aim, SampleSize, Setting, Shape, from_width
from fedaudit.audits.topology_inference import regressors
from fedaudit.audits.topology_inference.scores import fewest_clients
from fedaudit.results import AuditResult, Need
from fedaudit.stats import power

EXPLAINED = 0.1
"""Default share explained that an audit should be able to show."""


def cost(shape: Shape, shadows: int, channels: int) -> float:
    learning = 0.05 * channels * shadows / 10
    return 1.0 + 0.2 * shadows * shape.training() + learning


def missing(setting: Setting, shadows: int) -> Need | None:
    if setting.recording:
        return Need(
            code="no_shadows",
            what="it learns from simulated federations, and a recording does not say how clients "
            "train",
            remedy="describe the federation in a fedaudit config",
        )
    if setting.classes < 2:
        return Need(code="one_class", what="records without classes have no class mix")
    if setting.hidden and not setting.places_differ and not setting.organisations:
        return Need(
            code="no_channels",
            what="senders are hidden and all places are alike: no channel is left",
        )
    federations, rows = regressors.FEWEST_FEDERATIONS, regressors.FEWEST_ROWS
    if shadows < federations or shadows * setting.clients < rows:
        return Need(
            code="too_few_shadows",
            what=f"too few shadows to learn from: at least {federations} federations with {rows} "
            "clients in total",
        )
    return None


def samples(result: AuditResult, aim: Aim) -> SampleSize:
    assert result.headline is not None
    found = from_width(result, result.headline, aim, unit="clients", how="", default=EXPLAINED)
    fewest = fewest_clients((1 - aim.confidence) / 2)
    if found.have is not None and found.have < fewest:
        return replace(
            found,
            seen=None,
            needed=max(fewest, found.needed or 0),
            how=f"chance reaches any value with fewer than {fewest} clients, in any number of such "
            "runs; shadow federations (audits.topology_inference.shadows) can show it instead",
        )
    if found.needed is None or not found.have:
        return found
    runs = math.ceil(found.needed / found.have)
    return replace(
        found,
        how=f"{runs} target federations of {found.have} clients, or one of {found.needed:,}; "
        "more shadows sharpen the guesses, not the interval",
    )


def samples_before(audit: str, aim: Aim) -> SampleSize:
    wanted = aim.effect if aim.effect is not None else EXPLAINED
    fewest = fewest_clients((1 - aim.confidence) / 2)
    clients = max(fewest, power.clients_for_explained(wanted, *aim.level))
    runs = math.ceil(clients / aim.clients)
    how = f"{runs} target federations of {aim.clients} clients, or one of {clients:,}"
    if aim.clients < fewest:
        how = (
            f"one federation of {clients:,} clients: runs of {aim.clients} can show nothing (fewer "
            f"than {fewest}), their shadow federations can"
        )
    return SampleSize(
        audit=audit,
        measure="explained",
        unit="clients",
        chance=0.0,
        wanted=wanted,
        needed=clients,
        how=how,
        rule="standard error of Fisher's z; the share explained is a squared correlation",
    )
