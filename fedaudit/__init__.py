"""fedaudit: what a federation gives away, to whom, and what to change.

The public surface. Names load when they are first used: `import fedaudit` loads neither torch nor
a plotting library. Audits are in `fedaudit.audits`, protections in `fedaudit.protections`.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` is not imported: see __main__
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "ANONYMOUS": "fedaudit.trace",
    "NETWORK": "fedaudit.trace",
    "PUBLIC": "fedaudit.trace",
    "SERVER": "fedaudit.trace",
    "SHUFFLER": "fedaudit.trace",
    "WIRETAP": "fedaudit.trace",
    "AuditResult": "fedaudit.results",
    "Bound": "fedaudit.results",
    "Estimate": "fedaudit.results",
    "Finding": "fedaudit.results",
    "Recorder": "fedaudit.trace",
    "Seed": "fedaudit.randomness",
    "Trace": "fedaudit.trace",
    "Truth": "fedaudit.trace",
    "FedauditError": "fedaudit.errors",
    "audit": "fedaudit.study.auditing",
    "diff": "fedaudit.decide.diff.compare",
    "gate": "fedaudit.decide.gate.check",
    "guard": "fedaudit.decide.received",
    "harden": "fedaudit.decide.harden.search",
    "init": "fedaudit.study.init",
    "power": "fedaudit.decide.power.sample_sizes",
    "report": "fedaudit.study.study",
    "run": "fedaudit.study.study",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'fedaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
