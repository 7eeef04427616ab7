"""The component that FLARE's server calls at every event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from fedaudit.errors import LimitBroken
from fedaudit.recorders.nvflare.messages import Named, Tensors, tensors_of
from fedaudit.recorders.nvflare.rounds import JobRounds
from fedaudit.recorders.watching import RoundWatch, watch_of
from fedaudit.trace.limits import RecordingLimits
from fedaudit.trace.recorder import check_declared, check_options


class FedauditRecorder(FLComponent):
    """Write the messages of a job into a trace, as the server sees them.

    `path`: a new folder; "{job_id}" in it is replaced. `tasks`: names of the tasks that carry
    models. `tensors`: name patterns that are kept. `dtype`: "float16" halves the space. `every`:
    payloads of one round in so many are kept; `most_bytes`: size at which recording stops.
    `purpose` and `retention` go into the trace. `declared`: protections that FLARE cannot name by
    itself, as in docs/trace-format.md. `policy`: a file with limits that are checked after every
    round; a broken one is logged, and with `stop` the job ends with the finding.
    """

    def __init__(
        self,
        path: str,
        tasks: Sequence[str] = ("train",),
        tensors: str | Sequence[str] = "*",
        dtype: str | None = None,
        purpose: str = "",
        retention: str = "",
        declared: Sequence[dict[str, Any]] = (),
        every: int = 1,
        most_bytes: int | None = None,
        policy: str | None = None,
        stop: bool = False,
    ) -> None:
        super().__init__()
        limits = RecordingLimits(every=every, most_bytes=most_bytes, on_error="stop")
        check_options(dtype, purpose, retention, limits)
        check_declared(declared)
        if stop and policy is None:
            watch_of(policy, stop)  # refuses
        # FLARE writes a job's components into its config by these names: plain values only
        self.path, self.tasks, self.tensors, self.dtype = path, list(tasks), tensors, dtype
        self.purpose, self.retention, self.declared = purpose, retention, list(declared)
        self.every, self.most_bytes, self.policy, self.stop = every, most_bytes, policy, stop
        self._limits = limits
        self._rounds: JobRounds | None = None
        self._panicked = False

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            self._rounds = self._open(fl_ctx)
            self._rounds.begin()
        elif self._rounds is not None:
            self._rounds.guarded(self._handle, self._rounds, event_type, fl_ctx)

    def _handle(self, rounds: JobRounds, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            self._sent(rounds, fl_ctx)
        elif event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            self._answered(rounds, fl_ctx)
        elif event_type == EventType.END_RUN:
            rounds.close(_released(fl_ctx))

    def _open(self, fl_ctx: FLContext) -> JobRounds:
        keep = {
            "tensors": self.tensors,
            "dtype": self.dtype,
            "purpose": self.purpose,
            "retention": self.retention,
            "limits": self._limits,
        }
        rounds = JobRounds(
            Path(self.path.replace("{job_id}", str(fl_ctx.get_job_id()))),
            {"engine": "nvflare", "aggregation": _workflow(fl_ctx)},
            keep,
            lambda text: self.log_error(fl_ctx, text),
        )
        rounds.declared = [*self.declared, *_scope(fl_ctx)]
        if (watch := watch_of(self.policy, self.stop)) is not None:
            rounds.after_round = lambda path: self._check(watch, path, fl_ctx)
        return rounds

    def _check(self, watch: RoundWatch, path: Path, fl_ctx: FLContext) -> None:
        try:
            watch.after_round(path)
        except LimitBroken as broken:
            if not self._panicked:
                self._panicked = True
                self.system_panic(f"{broken.what}: {broken.got}", fl_ctx)

    def _sent(self, rounds: JobRounds, fl_ctx: FLContext) -> None:
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        if fl_ctx.get_prop(FLContextKey.TASK_NAME) in self.tasks:
            rounds.sent(_round_of(task), _peer(fl_ctx), _content(task))

    def _answered(self, rounds: JobRounds, fl_ctx: FLContext) -> None:
        result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if fl_ctx.get_prop(FLContextKey.TASK_NAME) not in self.tasks:
            return
        code = result.get_return_code(ReturnCode.OK)
        failed = "" if code == ReturnCode.OK else str(code)
        content = None if failed else _content(result)
        rounds.answered(_round_of(result), _peer(fl_ctx), content, failed)


def _workflow(fl_ctx: FLContext) -> str:
    """Class names of the job's controllers, as FedAvg or ScatterAndGather; empty if unknown."""
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    flows = getattr(getattr(runner, "config", None), "workflows", None) or []
    return ", ".join(type(getattr(w, "controller", w)).__name__ for w in flows)


def _scope(fl_ctx: FLContext) -> list[dict[str, Any]]:
    """The privacy scope of the job, which every site's own privacy.json turns into filters."""
    name = fl_ctx.get_prop(FLContextKey.EFFECTIVE_JOB_SCOPE_NAME) or fl_ctx.get_prop(
        FLContextKey.JOB_SCOPE_NAME
    )
    if not name:
        return []
    return [
        {
            "name": "privacy_scope",
            "scope": str(name),
            "covers": [],
            "trust": "each site, which applies its own privacy.json",
            "note": "the server sees the scope's name, not the sites' filters",
        }
    ]


def _peer(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def _round_of(shareable: Shareable) -> int | None:
    """The number of a round, from its header or cookie; None where a workflow gives none."""
    found = shareable.get_header(AppConstants.CURRENT_ROUND)
    if found is None:
        found = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
    return found if isinstance(found, int) else None


def _content(shareable: Shareable) -> Tensors:
    try:
        dxo = from_shareable(shareable)
    except (ValueError, TypeError) as error:
        return Tensors(lacks=f"no data exchange object: {error}")
    return tensors_of(dxo.data_kind, dxo.data, dxo.meta or {}, MetaKey.NUM_STEPS_CURRENT_ROUND)


def _released(fl_ctx: FLContext) -> Named | None:
    """The global model at the end of a job, if its workflow leaves it in the context."""
    model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
    weights = model.get("weights") if isinstance(model, dict) else None
    if not isinstance(weights, dict):
        return None
    found = tensors_of("WEIGHTS", weights, {}, "")
    return found.arrays or None
