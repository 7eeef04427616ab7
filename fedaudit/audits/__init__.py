"""One file or folder per method; each audit attacks a view, and is scored against the truth.

`AUDITS` is the one list of them: an audit is its folder and its line here. Classes load when they
are first used, so that a list of names costs nothing.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from fedaudit.audits.facts import AuditFacts

if TYPE_CHECKING:
    from fedaudit.audits.active_membership import ActiveMembership
    from fedaudit.audits.attribution import Attribution
    from fedaudit.audits.attribution.record_sets import RecordSetNaming
    from fedaudit.audits.coverage import Coverage
    from fedaudit.audits.epsilon import EpsilonAudit
    from fedaudit.audits.fingerprint import Fingerprint
    from fedaudit.audits.membership import Membership
    from fedaudit.audits.query_plan import QueryPlan
    from fedaudit.audits.reconstruction import Reconstruction
    from fedaudit.audits.reidentification import Reidentification
    from fedaudit.audits.topology_inference import TopologyInference
    from fedaudit.audits.two_stage_membership import TwoStageMembership

AUDITS = {
    "active_membership": "fedaudit.audits.active_membership:ActiveMembership",
    "attribution": "fedaudit.audits.attribution:Attribution",
    "coverage": "fedaudit.audits.coverage:Coverage",
    "epsilon": "fedaudit.audits.epsilon:EpsilonAudit",
    "fingerprint": "fedaudit.audits.fingerprint:Fingerprint",
    "membership": "fedaudit.audits.membership:Membership",
    "query_plan": "fedaudit.audits.query_plan:QueryPlan",
    "reconstruction": "fedaudit.audits.reconstruction:Reconstruction",
    "reidentification": "fedaudit.audits.reidentification:Reidentification",
    "record_set_naming": "fedaudit.audits.attribution.record_sets:RecordSetNaming",
    "topology_inference": "fedaudit.audits.topology_inference:TopologyInference",
    "two_stage_membership": "fedaudit.audits.two_stage_membership:TwoStageMembership",
}
"""Name in a config -> module and class."""

__all__ = [
    "AUDITS",
    "ActiveMembership",
    "Attribution",
    "Coverage",
    "EpsilonAudit",
    "Fingerprint",
    "Membership",
    "QueryPlan",
    "Reconstruction",
    "Reidentification",
    "RecordSetNaming",
    "TopologyInference",
    "TwoStageMembership",
    "facts_of",
]


def __getattr__(name: str) -> Any:
    for place in AUDITS.values():
        module, _, found = place.partition(":")
        if found == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def facts_of(audit: str) -> AuditFacts:
    """The facts of an audit by its name; the defaults for an audit that is not registered."""
    if audit not in AUDITS:
        return AuditFacts()
    module, _, name = AUDITS[audit].partition(":")
    found: AuditFacts = getattr(importlib.import_module(module), name).facts
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
