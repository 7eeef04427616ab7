"""Check a received model for planted weights, before training on it.

    from fedaudit.protections.guard import guard
    report = guard(state_dict)            # or a torch module; previous=, data=, level=
    report.verdict                        # "planted", "no_evidence", "not_finite", "nothing_to_say"

`guard.py` holds the function; every other file is one check, or code that checks share.
"""

from __future__ import annotations

from fedaudit.protections.guard.calibration import Calibration, HonestRun
from fedaudit.protections.guard.exposure import ExposedRecord, ExposureReport
from fedaudit.protections.guard.guard import guard, measure
from fedaudit.protections.guard.local_steps import LocalSteps
from fedaudit.protections.guard.report import CheckResult, GuardReport, LayerResult, OutOfReach
from fedaudit.protections.guard.tampering import ModelHistory, TamperingReport

__all__ = [
    "Calibration",
    "CheckResult",
    "ExposedRecord",
    "ExposureReport",
    "GuardReport",
    "LayerResult",
    "LocalSteps",
    "ModelHistory",
    "OutOfReach",
    "HonestRun",
    "TamperingReport",
    "guard",
    "measure",
]
