"""Cost, missing needs and sample sizes of naming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaudit.audits.matching import Matching
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.reidentification.facts import NAMING
from fedaudit.results import AuditResult, Need
from fedaudit.stats.links import least_links

if TYPE_CHECKING:
    from fedaudit.audits.reidentification.audit import Reidentification

NAMES = Matching(
    measure=NAMING,
    unit="rows",
    right="named",
    tried="rows",
    rule="exact power of the permutation test of names",
)


def cost(audit: Reidentification, shape: Shape) -> float:
    held = min(2 * audit.records + audit.enrolled, shape.records / shape.clients)
    asked = held * shape.examples / shape.records * shape.clients * shape.rounds
    # every row scores all records of all clients, and every record gives a gradient
    often = (shape.clients if shape.hidden else 0) + 3.0
    rows = shape.clients * shape.rounds
    linking = 4e-9 * rows * shape.width + 2e-6 * rows * shape.clients
    return 0.5 + often * shape.passes(asked) + 2.0 * linking


def missing(setting: Setting) -> Need | None:
    lack = setting.lacks_tensors() or setting.lacks_updates("row to name")
    if lack is None and setting.clients < 2:
        return Need(code="one_client", what="there is one client: every row is its own")
    return lack


def rounds_to_alarm(clients: int, level: float) -> int:
    """Fewest rounds of all clients after which names that are all right would be significant."""
    return next(t for t in range(1, 1000) if least_links(clients, t, level) is not None)


def samples(result: AuditResult, recorded: Recorded, aim: Aim) -> SampleSize:
    found = NAMES.samples(result, recorded, aim)
    return found or SampleSize(
        audit=result.audit,
        measure=NAMING,
        unit=NAMES.unit,
        how="a recording whose rows were scored",
    )
