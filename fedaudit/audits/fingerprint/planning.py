"""Cost, missing needs and sample sizes of linking."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.audits.matching import Matching
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape, from_width
from fedaudit.errors import ConfigError, UsageError
from fedaudit.layout import Layout
from fedaudit.results import AuditResult, Need

HEADLINE = "linkage_accuracy"
LINKS = Matching(
    measure=HEADLINE,
    unit="links",
    right="found",
    tried="links",
    rule="exact power of the permutation test of links",
    earlier_rounds=1,
    note="; n in the report counts clients",
)


def cost(shape: Shape) -> float:
    rows = shape.clients * shape.rounds
    return 0.1 + 4e-9 * rows * shape.width + 2e-6 * rows * shape.clients


def missing(setting: Setting) -> Need | None:
    lack = setting.lacks_tensors() or setting.lacks_updates("update to link")
    if lack is None and setting.rounds < 2 and setting.hidden:
        return Need(code="too_few_rounds", what="linking needs two rounds")
    return lack


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
    found = LINKS.samples(result, recorded, aim)
    return found or from_width(result, HEADLINE, aim, unit="clients", how="more clients")
