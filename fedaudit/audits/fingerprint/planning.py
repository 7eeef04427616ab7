"""Cost, missing needs and sample sizes of linking."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape, from_width
from fedaudit.errors import ConfigError, UsageError
from fedaudit.layout import Layout
from fedaudit.results import AuditResult, Need
from fedaudit.stats import power
from fedaudit.stats.intervals import design_effect

HEADLINE = "linkage_accuracy"
RULE = "exact binomial power of Wilson's interval"


def cost(shape: Shape) -> float:
    rows = shape.clients * shape.rounds
    return 0.1 + 4e-9 * rows * shape.width + 2e-6 * rows * shape.clients


def missing(setting: Setting) -> Need | None:
    if setting.no_tensors:
        return setting.lacks_tensors()
    if setting.sums_by:
        return Need(
            code="no_single_updates",
            what="the server sees sums only"
            if setting.recording
            else f"only sums leave ({setting.sums_by}): there is no single update to link",
        )
    if setting.rounds < 2 and setting.hidden:
        return Need(code="too_few_rounds", what="linking needs two rounds")
    return None


def check_features(features: Sequence[str], layout: Layout) -> None:
    """Refuse patterns that match no recorded layer, before training starts."""
    if not features:
        return  # the audit chooses recorded layers
    try:
        layout.select(features)
    except UsageError as error:
        raise ConfigError(
            "audits.fingerprint.features matches no recorded layer",
            expected="names of tensors, or shell patterns over them",
            got=error.got,
            remedy=error.remedy,
        ) from None


def samples(result: AuditResult, recorded: Recorded, aim: Aim) -> SampleSize:
    head = result.estimates[HEADLINE]
    rows = list(result.per_client.values())
    hits = np.array([float(r.get("found") or 0) for r in rows])
    tries = np.array([float(r.get("links") or 0) for r in rows])
    hits, tries = hits[tries > 0], tries[tries > 0]
    if head.baseline is None or not len(tries):
        return from_width(result, HEADLINE, aim, unit="clients", how="more clients")
    clients, links = len(tries), int(tries.sum())
    effect = design_effect(hits, tries)
    each = links / clients
    likeness = min(1.0, (effect - 1.0) / (each - 1.0)) if each > 1 else 0.0
    chance = head.baseline
    share = aim.goal(chance, default=min(chance, 1 - chance) / 2)
    independent = power.trials_for_share(share, chance, *aim.level)
    per_client = power.links_per_client(independent, clients, likeness)
    same = float(hits.sum()) in (0.0, float(tries.sum()))
    alike = (
        "all links of a client agree: each client counts once"
        if same
        else f"design effect {effect:.2g}"
    )
    more = f"{math.ceil(independent * likeness) + 1:,}"
    return SampleSize(
        audit=result.audit,
        measure=HEADLINE,
        unit="links",
        chance=chance,
        have=links,
        seen=power.detectable_share(chance, max(1, int(links / effect)), *aim.level),
        wanted=share,
        needed=None if per_client is None else per_client * clients,
        how=f"links of a client are too similar: at least {more} clients instead of {clients}"
        if per_client is None
        else f"{per_client + 1} rounds with all {clients} clients (now {recorded.rounds})",
        rule=f"{RULE}; {alike}; {links:,} links of "
        f"{clients} clients; n in the report counts clients",
    )


def samples_before(audit: str, aim: Aim) -> SampleSize:
    chance = 1.0 / aim.clients
    share = aim.goal(chance, default=chance / 2)
    links = power.trials_for_share(share, chance, *aim.level)
    each = power.links_per_client(links, aim.clients)
    assert each is not None  # independent links always add up
    return SampleSize(
        audit=audit,
        measure=HEADLINE,
        unit="links",
        chance=chance,
        wanted=share,
        needed=links,
        how=f"{each + 1} rounds with all {aim.clients} clients; more if the links of a client are "
        "similar",
        rule=RULE,
    )
