"""Record federations of Flower.

    strategy = RecordingStrategy(FedAvg(), "trace")        # on the server: all of its messages
    app = ClientApp(mods=[record_mod("trace")])             # at a client: its own messages only

Recording does not change a run: messages pass through a strategy unchanged, and a trace is written.
Then audit it with `fedaudit audit trace`. See docs/flower.md.
"""

from __future__ import annotations

import os
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from fedaudit.errors import UsageError

if TYPE_CHECKING:
    from fedaudit.recorders.flower.data import protect_data
    from fedaudit.recorders.flower.inprocess import run_in_process
    from fedaudit.recorders.flower.legacy import RecordingLegacyStrategy
    from fedaudit.recorders.flower.mods import (
        allocated_noise_mod,
        exposure_limit_mod,
        guard_mod,
        update_noise_mod,
    )
    from fedaudit.recorders.flower.recording import RecordingStrategy, record_mod, site_name_mod
    from fedaudit.recorders.flower.secagg import RecordingSecAggWorkflow
    from fedaudit.recorders.flower.secure import SecureSumStrategy, secure_sum_mod

__all__ = [
    "QUIET",
    "RecordingLegacyStrategy",
    "RecordingSecAggWorkflow",
    "RecordingStrategy",
    "SecureSumStrategy",
    "allocated_noise_mod",
    "exposure_limit_mod",
    "guard_mod",
    "protect_data",
    "record_mod",
    "require",
    "run_in_process",
    "secure_sum_mod",
    "site_name_mod",
    "update_noise_mod",
]

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment for Flower and every process that it starts: no telemetry, no update check, no
installation at run time."""

SUPPORTED = ((1, 41), (1, 42))
"""At least the first version, below the second."""


_HOME = {
    "RecordingLegacyStrategy": "legacy",
    "RecordingSecAggWorkflow": "secagg",
    "RecordingStrategy": "recording",
    "SecureSumStrategy": "secure",
    "allocated_noise_mod": "mods",
    "exposure_limit_mod": "mods",
    "guard_mod": "mods",
    "protect_data": "data",
    "record_mod": "recording",
    "run_in_process": "inprocess",
    "secure_sum_mod": "secure",
    "site_name_mod": "recording",
    "update_noise_mod": "mods",
}


def require() -> str:
    """The installed version of Flower, checked against `SUPPORTED`; also sets `QUIET`."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    low, high = SUPPORTED
    wanted = f"{low[0]}.{low[1]} or later, below {high[0]}.{high[1]}"
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise UsageError(
            "Flower is not installed",
            expected=f"flwr {wanted}",
            got="no such package",
            remedy='pip install "fedaudit[flower]"',
        ) from None
    if not is_supported(found):
        raise UsageError(
            "this version of Flower is not supported",
            expected=f"flwr {wanted}",
            got=found,
            remedy='pip install "fedaudit[flower]"',
        )
    return found


def is_supported(version: str) -> bool:
    """Whether fedaudit is tested with this version of Flower."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    low, high = SUPPORTED
    return len(numbers) == 2 and low <= numbers < high


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require()

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
