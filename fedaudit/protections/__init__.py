"""One file or folder per mechanism: hooks held by honest parties.

`PROTECTIONS` is the one list of them: a protection is its file and its line here. Classes load when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaudit.protections.central_dp import CentralDP
    from fedaudit.protections.clip import Clip
    from fedaudit.protections.dp_sgd import DPSGD
    from fedaudit.protections.exposure_limit import ExposureLimit
    from fedaudit.protections.local_dp.protection import LocalDP
    from fedaudit.protections.secaggplus import SecAggPlus
    from fedaudit.protections.secure_aggregation import SecureAggregation
    from fedaudit.protections.secure_sum import SecureSum
    from fedaudit.protections.shuffle import Shuffle
    from fedaudit.protections.update_noise import UpdateNoise

PROTECTIONS = {
    "central_dp": "fedaudit.protections.central_dp:CentralDP",
    "clip": "fedaudit.protections.clip:Clip",
    "dp_sgd": "fedaudit.protections.dp_sgd:DPSGD",
    "exposure_limit": "fedaudit.protections.exposure_limit:ExposureLimit",
    "local_dp": "fedaudit.protections.local_dp.protection:LocalDP",
    "secaggplus": "fedaudit.protections.secaggplus:SecAggPlus",
    "secure_aggregation": "fedaudit.protections.secure_aggregation:SecureAggregation",
    "secure_sum": "fedaudit.protections.secure_sum:SecureSum",
    "shuffle": "fedaudit.protections.shuffle:Shuffle",
    "update_noise": "fedaudit.protections.update_noise:UpdateNoise",
}
"""Name in a config -> module and class."""

__all__ = [
    "DPSGD",
    "PROTECTIONS",
    "CentralDP",
    "Clip",
    "ExposureLimit",
    "LocalDP",
    "SecAggPlus",
    "SecureAggregation",
    "SecureSum",
    "Shuffle",
    "UpdateNoise",
]


def __getattr__(name: str) -> Any:
    for place in PROTECTIONS.values():
        module, _, found = place.partition(":")
        if found == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
