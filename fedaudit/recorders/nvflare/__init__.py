"""Record federations of NVIDIA FLARE: a component of the server writes a trace.

    from fedaudit.recorders.nvflare import FedauditRecorder

    job.to_server(FedauditRecorder("/data/trace"), id="fedaudit")

FLARE 2.9's recipes keep their job in `recipe._job`.
Models are recorded as they leave, after the server's task data filters, and answers as they arrive,
before its result filters. The run does not change. Then `fedaudit audit /data/trace`. See
docs/nvflare.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaudit.recorders.nvflare.component import FedauditRecorder

__all__ = ["FedauditRecorder"]


def __getattr__(name: str) -> Any:
    if name == "FedauditRecorder":
        from fedaudit.recorders.nvflare.component import FedauditRecorder

        return FedauditRecorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
