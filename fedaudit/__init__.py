"""fedaudit: what a federation gives away, to whom, and what to change.

The public surface, at most thirty names, loaded when first used: `import fedaudit` loads neither
torch nor anything that draws.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # nothing that a working folder could hold is imported: see __main__
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
    "audit": "fedaudit.study",
    "guard": "fedaudit.decide.received",
    "run": "fedaudit.study.study",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'fedaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
